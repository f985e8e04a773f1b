"""What the plots show, as a table for other programs."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from launcher.gui.plots.marks import Mark
from launcher.gui.plots.quantities import Quantity, exported
from launcher.gui.plots.samples import Floats, Samples

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Table:
    """A copy of what is shown: it does not change while it is written."""

    times: Floats
    wall: Floats
    columns: tuple[tuple[Quantity, Floats], ...]
    marks: tuple[Mark, ...]


def table_of(samples: Samples, from_s: float, to_s: float, marks: Sequence[Mark]) -> Table:
    """Copy the samples of a stretch of time, with the marks that are in it. Series that had no value are left out."""
    part = samples.between(from_s, to_s)
    inside = (samples.times(part) >= from_s) & (samples.times(part) <= to_s)
    names = set(samples.names)
    columns = tuple(
        (quantity, samples.values(quantity.name, part)[inside]) for quantity in exported() if quantity.name in names
    )
    shown = tuple(mark for mark in marks if from_s <= mark.time_s <= to_s)
    return Table(samples.times(part)[inside], samples.wall(part)[inside], columns, shown)


def write_csv(table: Table, path: Path) -> None:
    """Write a table: time (ISO 8601, UTC), seconds from its last row, a column per series with its unit, marks.

    An unknown value is an empty cell. A mark stands in the row of the first sample after it. Raises OSError.
    """
    end_s = float(table.times[-1]) if len(table.times) else 0.0
    left = list(table.marks)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["time (UTC)", "time before the last row [s]", *(_header(q) for q, _ in table.columns), "marks"]
        )
        for row in range(len(table.times)):
            at_s = float(table.times[row])
            came = []
            while left and (left[0].time_s <= at_s or row == len(table.times) - 1):
                came.append(left.pop(0).text)
            stamp = datetime.fromtimestamp(float(table.wall[row]), UTC).isoformat(timespec="milliseconds")
            values = [_number(quantity, float(values[row])) for quantity, values in table.columns]
            writer.writerow([stamp, f"{at_s - end_s:.3f}", *values, _safe("; ".join(came))])


def _header(quantity: Quantity) -> str:
    """Return a column's title: names stay English, because programs read them."""
    title = quantity.title.format(n=quantity.step) if quantity.step else quantity.title
    return f"{title} [{quantity.unit}]"


def _number(quantity: Quantity, value: float) -> str:
    return "" if value != value else f"{value * quantity.scale:.{quantity.digits + 2}f}"


def _safe(text: str) -> str:
    """Keep a spreadsheet from taking words for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
