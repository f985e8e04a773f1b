"""Prompts from a text file, to be asked in turn."""

import re
from pathlib import Path

from launcher.base.errors import BadOption

_MOST_BYTES = 4 * 2**20
_MOST_PROMPTS = 1_000


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return the prompts in a UTF-8 file: its blocks, where empty lines part them, else its lines.

    Raises BadOption when it cannot be read, is no text, or holds none, or more than a thousand.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadOption(f"{path.name} cannot be read: {error.strerror or error}.", path=str(path)) from error
    if len(data) > _MOST_BYTES:
        raise BadOption(f"{path.name} is larger than 4 MiB: too large for a file of prompts.", path=str(path))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadOption(f"{path.name} is no text in UTF-8.", "Save it as UTF-8.", path=str(path)) from error
    prompts = prompts_in(text)
    if not prompts:
        raise BadOption(f"{path.name} holds no prompt.", "Write one on each line, or part them by empty lines.")
    if len(prompts) > _MOST_PROMPTS:
        raise BadOption(f"{path.name} holds {len(prompts):,} prompts; a thousand are the most.")
    return prompts


def prompts_in(text: str) -> tuple[str, ...]:
    """Return the blocks of a text, where empty lines part them, else its lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    blocks = re.split(r"\n[ \t]*\n", text)
    pieces = blocks if len(blocks) > 1 else text.split("\n")
    return tuple(piece for each in pieces if (piece := each.strip()))
