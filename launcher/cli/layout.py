"""Text layout to the width of the terminal: long text is wrapped, nothing is cut."""

import re
import shutil
import textwrap
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.base.text import one_line

UNKNOWN = "–"  # noqa: RUF001 -- the sign for an unknown value in a table
_DEFAULT_COLUMNS, _MIN_COLUMNS, _MAX_COLUMNS = 100, 40, 120
"""Columns of text. The default is used if the width is unknown."""
_UNLIMITED = 10_000
_NUMBER = re.compile(r"\d[\d.,]*")
_MAX_CELL = 4_096
"""Characters. A cell may be a path, and paths may contain line breaks."""


def _terminal_columns() -> int:
    """Return the columns of the terminal or of COLUMNS; 0 if the output is not a terminal."""
    return shutil.get_terminal_size((0, 0)).columns


def text_columns() -> int:
    """Return the number of columns to fill with text."""
    return min(max(_terminal_columns() or _DEFAULT_COLUMNS, _MIN_COLUMNS), _MAX_COLUMNS)


def wrap_text(text: str, label: str = "") -> str:
    """Return `text` wrapped after `label`, with further lines indented to the beginning of the text."""
    return (
        textwrap.fill(
            text,
            text_columns(),
            initial_indent=label,
            subsequent_indent=" " * len(label),
            break_on_hyphens=False,
            break_long_words=False,
        )
        or label.rstrip()
    )


def merge_similar(texts: Iterable[str]) -> str:
    """Return texts one after the other, without those that differ from an earlier one in nothing but numbers."""
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(_NUMBER.sub("0", text), text)
    return " ".join(first.values())


def format_table(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), indent: str = "  ") -> Iterator[str]:
    """Yield the lines of a table. Columns that do not fit the terminal continue on the next line.

    `right` are the numbers of right-aligned columns. Output to a file or another program has one line per row.
    """
    rows = [[one_line(cell, _MAX_CELL) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    groups = list(_group_columns(widths, max(_terminal_columns() or _UNLIMITED, _MIN_COLUMNS) - len(indent)))
    for row in rows:
        cells = [
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        for number, group in enumerate(groups):
            line = "  ".join(cells[column] for column in group).rstrip()
            if line or not number:
                yield indent + ("    " if number else "") + line


def _group_columns(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield the columns for each line; lines after the first are indented by four."""
    group: list[int] = []
    left = room
    for column, width in enumerate(widths):
        if group and width + 2 > left:
            yield group
            group, left = [], room - 4
        left -= width + (2 if group else 0)
        group.append(column)
    yield group


def format_count(count: int | None) -> str:
    """Return a whole number with separators, or an en dash if it is unknown."""
    return UNKNOWN if count is None else f"{count:,}"


def format_path(path: Path) -> str:
    """Return a path on one line."""
    return one_line(str(path), _MAX_CELL)


def format_time(time_s: float) -> str:
    """Return a time in seconds since the epoch as local date and time: 2026-11-21 09:30."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(time_s))


# Health findings of a running server, one per line.


def health_line(finding: Mapping[str, Any], *, cleared: bool = False) -> str:
    """Return a health finding as a line: its level, its sentence, and the suggested fix unless it is over."""
    sentence = finding.get("sentence", "")
    if cleared:
        return f"Over: {sentence}"
    level = "Note" if finding.get("level") == "information" else "Warning"
    action = finding.get("action")
    label = action.get("label") if isinstance(action, Mapping) else None
    return f"{level}: {sentence}" + (f" To do: {label}." if label else "")
