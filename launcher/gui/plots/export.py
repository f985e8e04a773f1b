"""Export of the plotted data as CSV."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from launcher.gui.plots.marks import Mark
from launcher.gui.plots.quantities import Quantity, exported_quantities
from launcher.gui.plots.samples import Floats, Samples

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class PlotTable:
    """Copy of the shown data, so that it does not change while it is written."""

    times: Floats
    wall: Floats
    columns: tuple[tuple[Quantity, Floats], ...]
    marks: tuple[Mark, ...]


def copy_table(samples: Samples, from_s: float, to_s: float, marks: Sequence[Mark]) -> PlotTable:
    """Copy the samples and marks of a time span. Series without any value are left out."""
    part = samples.slice_between(from_s, to_s)
    inside = (samples.times(part) >= from_s) & (samples.times(part) <= to_s)
    names = set(samples.names)
    columns = tuple(
        (quantity, samples.values(quantity.name, part)[inside])
        for quantity in exported_quantities()
        if quantity.name in names
    )
    shown = tuple(mark for mark in marks if from_s <= mark.time_s <= to_s)
    return PlotTable(samples.times(part)[inside], samples.wall_times(part)[inside], columns, shown)


def write_csv(table: PlotTable, path: Path) -> None:
    """Write a CSV file: time (ISO 8601, UTC), seconds before the last row, one column per series with its unit, marks.

    An unknown value is an empty cell. A mark is in the row of the first sample after it. Raises OSError.
    """
    end_s = float(table.times[-1]) if len(table.times) else 0.0
    remaining_marks = list(table.marks)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["time (UTC)", "time before the last row [s]", *(_column_title(q) for q, _ in table.columns), "marks"]
        )
        for row in range(len(table.times)):
            at_s = float(table.times[row])
            mark_texts = []
            while remaining_marks and (remaining_marks[0].time_s <= at_s or row == len(table.times) - 1):
                mark_texts.append(remaining_marks.pop(0).text)
            stamp = datetime.fromtimestamp(float(table.wall[row]), UTC).isoformat(timespec="milliseconds")
            values = [_format_cell(quantity, float(values[row])) for quantity, values in table.columns]
            writer.writerow([stamp, f"{at_s - end_s:.3f}", *values, _escape_formula("; ".join(mark_texts))])


def _column_title(quantity: Quantity) -> str:
    """Return a column's title. Titles stay English, because programs read them."""
    title = quantity.title.format(n=quantity.draft_position) if quantity.draft_position else quantity.title
    return f"{title} [{quantity.unit}]"


def _format_cell(quantity: Quantity, value: float) -> str:
    return "" if value != value else f"{value * quantity.scale:.{quantity.digits + 2}f}"


def _escape_formula(text: str) -> str:
    """Escape text that a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
