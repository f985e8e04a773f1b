"""A user's own arguments as one line of text, as a field or an option holds them."""

import re
import shlex
from collections.abc import Iterable

from launcher.base.errors import BadOption

_NEEDS_QUOTES = re.compile(r"[\s\"']")


def split_extra(line: str) -> tuple[str, ...]:
    """Return the words of a line: blanks part them, single or double quotes keep them together.

    A backslash is a character like any other: paths of Windows have them. Raises BadOption for a quote left open.
    """
    reader = shlex.shlex(line, posix=True)
    reader.whitespace_split, reader.escape, reader.commenters = True, "", ""
    try:
        return tuple(reader)
    except ValueError:
        raise BadOption("A quote in the arguments is not closed.", "Close it, or leave it out.", option=line) from None


def join_extra(words: Iterable[str]) -> str:
    """Return words as a line that `split_extra` reads back."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word and not _NEEDS_QUOTES.search(word):
        return word
    parts = [part for part in re.split('(")', word) if part]
    return "".join(f"'{part}'" if part == '"' else f'"{part}"' for part in parts) or '""'
