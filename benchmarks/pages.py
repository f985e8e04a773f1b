"""Measures the window: the time until it can be used, the change of pages, and its processor time while it is left
open.
"""

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.measure import format_summary
from benchmarks.reference import Interpreter, paint_empty_window, ratio_row
from benchmarks.report import Row
from benchmarks.workplace import child, read_result

_USABLE_LIMIT, _USUAL_LIMIT, _SWITCH_LIMIT, _STEP_LIMIT = 4.5, 0.5, 12.5, 12.5
_SHOWN_STARTS_PER_S, _HIDDEN_STARTS_PER_S = 1.25, 0.38


def run(*, quick: bool) -> Iterator[Row]:
    """Open the window several times in a process of its own."""
    processes, starts, showings, settle_s, seconds = (1, 6, 8, 4, 6) if quick else (3, 10, 20, 10, 60)
    empty, new, used = [], [_measure_start()], []
    for _ in range(starts):
        empty.append(paint_empty_window())
        used.append(_measure_start())
    what, reference = "from the command until Start shows its plans and can be clicked", "an empty PySide6 window"
    yield ratio_row(what, used, "s", 2, reference, empty, _USABLE_LIMIT)
    yield Row("the same the first time in a new home", format_summary(new, "s", 2))
    bare, windows = Interpreter(), []
    for _ in range(processes):
        bare.start(5)
        windows.append(_measure_window(showings, settle_s, seconds))
    bare.start(5)
    first = [(took, name) for each in windows for name, took in each["first_ms"].items()]
    what = f"first change to a page, the slowest ({max(first)[1]})"
    yield bare.row(what, [took for took, _ in first], "ms", 0, _SWITCH_LIMIT, worst=True)
    names = windows[0]["again_ms"]
    again = {name: [took for each in windows for took in each["again_ms"][name][1:]] for name in names}
    slowest = max(names, key=lambda name: statistics.median(again[name]))
    what, empty_ms = f"change to the slowest page seen before ({slowest})", 1_000 * statistics.median(empty)
    yield ratio_row(what, again[slowest], "ms", 1, reference, [empty_ms] * len(again[slowest]), _USUAL_LIMIT)
    every = [took for times in again.values() for took in times]
    yield bare.row("the slowest of all these changes", every, "ms", 1, _SWITCH_LIMIT, worst=True)
    steps = [step for each in windows for step in each["ahead_ms"]]
    what = "one step of building pages in advance, the slowest"
    yield bare.row(what, steps, "ms", 0, _STEP_LIMIT, worst=True)
    for what, name, limit in (
        ("own processor time while the idle demo is served and the cockpit shown", "shown", _SHOWN_STARTS_PER_S),
        ("the same while the window is hidden", "hidden", _HIDDEN_STARTS_PER_S),
    ):
        ours, waker = zip(*(each[name] for each in windows), strict=True)
        yield bare.difference_row(what, ours, "a process that wakes as often", waker, limit)


def _measure_start() -> float:
    """Return the seconds from the start of the process until Start can be used."""
    with child("pages_child", "0", "0", "0") as process:
        usable_s: float = read_result(process, 10)["usable_s"]
    return usable_s


def _measure_window(showings: int, settle_s: float, seconds: float) -> dict[str, Any]:
    with child("pages_child", str(showings), str(settle_s), str(seconds)) as process:
        return read_result(process, 60 + 3 * seconds)
