"""Measures the window: the time until it can be used, the change of pages, and its processor time while it is left
open.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.reference import Interpreter, difference_row, paint_empty_window, ratio_row
from benchmarks.report import Row
from benchmarks.workplace import child, read_result

_USABLE_LIMIT, _SWITCH_LIMIT, _STEP_LIMIT = 12, 12.5, 12.5
_SHOWN_POINTS, _HIDDEN_POINTS = 1.0, 0.3


def run(*, quick: bool) -> Iterator[Row]:
    """Open the window several times in a process of its own."""
    processes, showings, settle_s, seconds = (1, 3, 4, 6) if quick else (3, 20, 10, 60)
    bare, windows, empty = Interpreter(), [], []
    for _ in range(processes):
        bare.start(5)
        empty += [paint_empty_window() for _ in range(3)]
        windows.append(_measure_window(showings, settle_s, seconds))
    bare.start(5)
    usable = [each["usable_s"] for each in windows]
    yield ratio_row(
        "from the command until Start shows its plans and can be clicked",
        usable, "s", 2, "an empty PySide6 window", empty, _USABLE_LIMIT,
    )  # fmt: skip
    first = [(took, name) for each in windows for name, took in each["first_ms"].items()]
    what = f"first change to a page, the slowest ({max(first)[1]})"
    yield bare.row(what, [took for took, _ in first], "ms", 0, _SWITCH_LIMIT, worst=True)
    again = [took for each in windows for page in each["again_ms"].values() for took in page[1:]]
    yield bare.row("change to a page seen before, the slowest", again, "ms", 1, _SWITCH_LIMIT, worst=True)
    steps = [step for each in windows for step in each["ahead_ms"]]
    what = "one step of building pages in advance, the slowest"
    yield bare.row(what, steps, "ms", 0, _STEP_LIMIT, worst=True)
    for what, name, limit in (
        ("own processor time while the idle demo is served and the cockpit shown", "shown", _SHOWN_POINTS),
        ("the same while the window is hidden", "hidden", _HIDDEN_POINTS),
    ):
        ours, waker = zip(*(each[name] for each in windows), strict=True)
        yield difference_row(what, ours, "a process that wakes as often", waker, limit)


def _measure_window(showings: int, settle_s: float, seconds: float) -> dict[str, Any]:
    with child("pages_child", str(showings), str(settle_s), str(seconds)) as process:
        return read_result(process, 60 + 3 * seconds)
