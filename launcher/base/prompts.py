"""Prompts read from a text file."""

import re
from pathlib import Path

from launcher.base.errors import BadOption
from launcher.base.messages import message

_MOST_BYTES = 4 * 2**20
_MOST_PROMPTS = 1_000


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return the prompts in a UTF-8 file: blocks separated by empty lines, or else its lines.

    Raises BadOption if it cannot be read, is larger than 4 MiB, is not UTF-8, or holds no prompt or more than a
    thousand.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise BadOption(
            message("{name} cannot be read: {strerror}.", name=path.name, strerror=error.strerror or error),
            path=str(path),
        ) from error
    if len(data) > _MOST_BYTES:
        raise BadOption(
            message("{name} is larger than 4 MiB, the limit for a prompt file.", name=path.name), path=str(path)
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadOption(
            message("{name} is not UTF-8 text.", name=path.name), message("Save it as UTF-8."), path=str(path)
        ) from error
    prompts = split_prompts(text)
    if not prompts:
        raise BadOption(
            message("{name} contains no prompt.", name=path.name),
            message("Write one prompt per line, or separate them with empty lines."),
        )
    if len(prompts) > _MOST_PROMPTS:
        raise BadOption(
            message("{name} contains {prompts:,} prompts; the limit is 1,000.", name=path.name, prompts=len(prompts))
        )
    return prompts


def split_prompts(text: str) -> tuple[str, ...]:
    """Return the blocks of a text that empty lines separate, or else its lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    blocks = re.split(r"\n[ \t]*\n", text)
    pieces = blocks if len(blocks) > 1 else text.split("\n")
    return tuple(piece for each in pieces if (piece := each.strip()))
