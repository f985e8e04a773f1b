"""Text layout to the width of the terminal: long text is wrapped, nothing is cut."""

import shutil
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from launcher.base.text import one_line

_USUAL, _LEAST, _MOST = 100, 40, 120
"""Default, minimum and maximum columns of text; the default is used if the width is unknown."""
_ENDLESS = 10_000
_LONGEST_CELL = 4_096
"""Characters. A cell may be a path, and paths may contain line breaks."""


def _terminal_columns() -> int:
    """Return the columns of the terminal or of COLUMNS; 0 if the output is not a terminal."""
    return shutil.get_terminal_size((0, 0)).columns


def text_columns() -> int:
    """Return the number of columns to fill with text."""
    return min(max(_terminal_columns() or _USUAL, _LEAST), _MOST)


def wrap_text(text: str, label: str = "") -> str:
    """Return `text` wrapped behind `label`, with the following lines indented to the text."""
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


def format_table(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), indent: str = "  ") -> Iterator[str]:
    """Yield rows in columns, those in `right` right-aligned; columns that do not fit continue on the next line.

    Output to a file or another program has one line per row.
    """
    rows = [[one_line(cell, _LONGEST_CELL) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    groups = list(_group_columns(widths, max(_terminal_columns() or _ENDLESS, _LEAST) - len(indent)))
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


# Health findings of a running server, one per line.


def health_line(finding: Mapping[str, Any], *, cleared: bool = False) -> str:
    """Return a health finding as a line: its level, its sentence, and the suggested fix."""
    lead = "Over" if cleared else "Note" if finding.get("level") == "information" else "Warning"
    action = finding.get("action")
    label = action.get("label") if isinstance(action, Mapping) and not cleared else None
    return f"{lead}: {finding.get('sentence', '')}" + (f" To do: {label}." if label else "")
