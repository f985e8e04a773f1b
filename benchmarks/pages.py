"""What it takes to use the window, to go from page to page, and to leave it open."""

import statistics
from typing import Any

from benchmarks.measure import summary
from benchmarks.report import Row
from benchmarks.workplace import child, told

_USABLE_S, _SWITCH_MS, _STEP_MS = 1.2, 100.0, 100.0
_SHOWN_PERCENT, _HIDDEN_PERCENT = 1.0, 0.3


def run(*, quick: bool) -> list[Row]:
    """Open the window several times in a process of its own."""
    processes, showings, seconds = (1, 5, 20) if quick else (3, 20, 60)
    windows = [_window(showings, seconds) for _ in range(processes)]
    steps = [step for each in windows for step in each["ahead_ms"]]
    first = [(took, name) for each in windows for name, took in each["first_ms"].items()]
    again = [took for each in windows for page in each["again_ms"].values() for took in page[1:]]
    slowest = max(first)
    return [
        _row("from the command to Start with its plans, ready for a click", _USABLE_S, "s", windows, "usable_s", 2),
        Row(
            f"going to a page for the first time, the slowest ({slowest[1]})",
            f"< {_SWITCH_MS:.0f} ms",
            summary([took for took, _ in first], "ms", 0),
            slowest[0] < _SWITCH_MS,
        ),
        Row("going to it again", f"< {_SWITCH_MS:.0f} ms", summary(again, "ms", 1), max(again) < _SWITCH_MS),
        Row(
            "one step of what is done for pages before they are shown",
            f"< {_STEP_MS:.0f} ms",
            summary(steps, "ms", 0),
            max(steps) < _STEP_MS,
        ),
        _row(
            "own processor time while the demo is served, nobody asks, and the cockpit is shown",
            _SHOWN_PERCENT,
            "%",
            windows,
            "shown_percent",
            2,
        ),
        _row("the same while the window is hidden", _HIDDEN_PERCENT, "%", windows, "hidden_percent", 2),
    ]


def _row(what: str, limit: float, unit: str, windows: list[dict[str, Any]], name: str, digits: int) -> Row:
    values = [each[name] for each in windows]
    return Row(what, f"< {limit:g} {unit}", summary(values, unit, digits), statistics.median(values) < limit)


def _window(showings: int, seconds: float) -> dict[str, Any]:
    with child("pages_child", str(showings), str(seconds)) as process:
        return told(process, 60 + 3 * seconds)
