"""Text for a terminal as wide as it is: what is too long goes on below, and nothing is cut."""

import shutil
import textwrap
from collections.abc import Collection, Iterator, Sequence

from launcher.base.text import one_line

_USUAL, _LEAST, _MOST = 100, 40, 120
"""Columns of text where nobody says how many there are, and the fewest and most that are used."""
_ENDLESS = 10_000
_LONGEST_CELL = 4_096
"""Characters: a cell may be a path, and paths may hold ends of lines."""


def _known() -> int:
    """Return how many columns COLUMNS or the terminal has; 0 where the output goes elsewhere."""
    return shutil.get_terminal_size((0, 0)).columns


def columns() -> int:
    """Return how many columns to fill with text."""
    return min(max(_known() or _USUAL, _LEAST), _MOST)


def filled(text: str, label: str = "") -> str:
    """Return `text` in lines behind `label`; lines after the first begin below the text."""
    return (
        textwrap.fill(
            text,
            columns(),
            initial_indent=label,
            subsequent_indent=" " * len(label),
            break_on_hyphens=False,
            break_long_words=False,
        )
        or label.rstrip()
    )


def print_table(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), indent: str = "  ") -> None:
    """Print rows in columns, those in `right` to the right; columns that have no room go on in lines below.

    What goes to a file or another program has one line a row.
    """
    rows = [[one_line(cell, _LONGEST_CELL) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    groups = list(_groups(widths, max(_known() or _ENDLESS, _LEAST) - len(indent)))
    for row in rows:
        cells = [
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        for number, group in enumerate(groups):
            line = "  ".join(cells[column] for column in group).rstrip()
            if line or not number:
                print(indent + ("    " if number else "") + line)


def _groups(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield the columns that go into one line each; lines after the first are indented by four."""
    group: list[int] = []
    left = room
    for column, width in enumerate(widths):
        if group and width + 2 > left:
            yield group
            group, left = [], room - 4
        left -= width + (2 if group else 0)
        group.append(column)
    yield group
