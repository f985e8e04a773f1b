"""Why a speed fell, as far as the sensors tell."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from launcher.tuning.records import Run

_DREW_LESS = 0.1
_HOTTER_C = 3.0


def because(before: Sequence[Run], after: Sequence[Run], fall: float) -> str:
    """Return "because ..." from what differs between two times, `fall` being the share of the speed that was lost.

    What the monitor noticed goes first; then the clock, if it fell by at least half of what the speed did; then power
    that fell while the clock did not. A cause that nothing shows is not guessed at.
    """
    noticed = _noticed(before, after)
    heat = _heat(before, after)
    clocks = _both(before, after, lambda run: run.clock_mhz)
    powers = _both(before, after, lambda run: run.power_w)
    if clocks is not None and 1 - clocks[1] / clocks[0] >= fall / 2:
        clock = f"the GPU's clock fell from {clocks[0]:,.0f} to {clocks[1]:,.0f} MHz{heat}"
        return f"because {clock} ({noticed})" if noticed else f"because {clock}"
    if noticed:
        return f"because of what was noticed meanwhile: {noticed}"
    if powers is not None and 1 - powers[1] / powers[0] >= _DREW_LESS:
        drew = f"the GPU drew {powers[1]:.0f} W, not {powers[0]:.0f}"
        same = ", at the same clock" if clocks is not None else ""
        return f"because the GPU waits for something else ({drew}{same}), such as memory outside of it or the processor"
    if clocks is None and powers is None:
        return "for a reason that is not known: nothing here tells clocks or power" + (heat and f";{heat} meanwhile")
    return "for a reason that was not seen: clock and power are about the same" + heat


def _noticed(before: Sequence[Run], after: Sequence[Run]) -> str:
    """Return what marks at least half of the runs after, and twice as large a share of them as before."""
    earlier, later = (Counter(run.spoilt for run in runs if run.spoilt) for runs in (before, after))
    often = [
        mark.rstrip(".")
        for mark, count in later.most_common()
        if 2 * count >= len(after) and count / len(after) >= 2 * earlier[mark] / len(before)
    ]
    return "; ".join(often)


def _heat(before: Sequence[Run], after: Sequence[Run]) -> str:
    temperatures = _both(before, after, lambda run: run.temperature_c)
    if temperatures is None or temperatures[1] - temperatures[0] < _HOTTER_C:
        return ""
    return f" at {temperatures[1]:.0f} °C (before: {temperatures[0]:.0f} °C)"


def _both(
    before: Sequence[Run], after: Sequence[Run], figure: Callable[[Run], float | None]
) -> tuple[float, float] | None:
    """Return the medians of a figure before and after; None where it is not told, or was 0."""
    medians = []
    for runs in (before, after):
        known = [value for run in runs if (value := figure(run)) is not None]
        if not known:
            return None
        medians.append(statistics.median(known))
    return (medians[0], medians[1]) if medians[0] > 0 else None
