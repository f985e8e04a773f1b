"""Watches the load of the processor by other programs while replies are measured: marks disturbed replies, and waits
for quiet.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from statistics import fmean, median

from launcher.base.messages import Message, message
from launcher.machine.host_load import HostCounters, HostLoad, measure_load

BUSY_SHARE = 0.2
"""Other programs disturb a reply if they use this share of the processor, and this much more than usual."""
_WAITING_SHARE = 0.1
"""Share of the time in which a program must have waited for a core: otherwise there were cores left.

Where it is unknown, more programs than cores must run or wait at the end; where that is unknown, too, nothing more is
asked.
"""
_STOLEN_SHARE, _THROTTLED_SHARE = 0.05, 0.2
"""Shares by which other virtual machines and throttling must exceed their usual shares."""
_LOWERED_CAP = 0.92
"""Share of the usual highest clock below which the cores count as throttled."""
_FEWEST, _MOST = 5, 40
"""The usual load is the median over the last replies: the fewest and the most of them."""
_SHORTEST_S = 0.2
"""The fewest seconds of a reply whose load is judged: the kernel counts processor time in steps of 10 ms."""
_READING_S = 1.0
"""Seconds between two readings of the load while waiting for quiet."""
_QUIET = HostLoad(0.0, 0.0, throttled=0.0)


class HostWatch:
    """Judges the load of the processor during each reply, and waits for quiet before a trial.

    Load that never ends does not count as a disturbance, because it affects all settings alike: only what exceeds the
    median of the replies before does. Until there are enough replies, the load that `wait_for_quiet` found at its end
    counts as usual; without it no reply is judged, so that measurements never fail on a computer that is always busy.
    `read` returns the counters now, None where they are unknown or of another computer.
    """

    def __init__(
        self,
        read: Callable[[], HostCounters | None],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.read = read
        self._sleep = sleep
        self._loads = deque[HostLoad](maxlen=_MOST)
        self._accepted: HostLoad | None = None
        """The load when `wait_for_quiet` ended."""
        self._may_be_busy = True
        self._taken: list[float] = []

    def find_disturbance(self, before: HostCounters | None, after: HostCounters | None) -> Message | None:
        """Return why a reply between two readings must not be counted. None if it counts."""
        load = measure_load(before, after)
        if before is None or after is None or load is None or after.times.at_s - before.times.at_s < _SHORTEST_S:
            return None
        usual = _usual_load(self._loads) if len(self._loads) >= _FEWEST else self._accepted
        self._loads.append(load)
        self._taken.append(load.others + load.stolen)
        found = None if usual is None else judge_load(load, usual)
        self._may_be_busy |= found is not None
        return found

    def take_share(self) -> float | None:
        """Return the mean share of the processor that others took in the replies since the last call.

        Without replies it is the share when `wait_for_quiet` ended; None if that is unknown.
        """
        taken, self._taken = self._taken, []
        if taken:
            return fmean(taken)
        return None if self._accepted is None else self._accepted.others + self._accepted.stolen

    async def wait_for_quiet(self, most_s: float, on_busy: Callable[[Message], object]) -> float:
        """Wait until nothing else keeps the processor busy, at most `most_s`, and return the seconds.

        The load is read only before the first trial and after a disturbed reply, because that takes a second. `on_busy`
        is called once, with the reason, if it is busy at the first reading.
        """
        if not self._may_be_busy:
            return 0.0
        waited_s, before, load = 0.0, self.read(), None
        while before is not None and waited_s + _READING_S <= most_s:
            await self._sleep(_READING_S)
            waited_s += _READING_S
            earlier, before = before, self.read()
            load = measure_load(earlier, before)
            found = None if load is None else judge_load(load, _QUIET)
            if found is None:
                break
            if waited_s == _READING_S:
                on_busy(found)
        self._may_be_busy, self._accepted = False, load or self._accepted
        return waited_s


def judge_load(load: HostLoad, usual: HostLoad) -> Message | None:
    """Return how a load disturbs a reply, None if it does not. Figures that are None are not judged."""
    queued = load.queue is None or load.queue > 1
    waited = queued if load.waiting is None else load.waiting >= _WAITING_SHARE
    if waited and load.others >= BUSY_SHARE and load.others - usual.others >= BUSY_SHARE:
        return message("Other programs used {percent:.0f} % of the processor.", percent=100 * load.others)
    if load.stolen - usual.stolen >= _STOLEN_SHARE:
        return message("Other virtual machines took {percent:.0f} % of the processor.", percent=100 * load.stolen)
    throttled = load.throttled is not None and load.throttled - (usual.throttled or 0.0) >= _THROTTLED_SHARE
    lowered = load.cap_mhz is not None and usual.cap_mhz is not None and load.cap_mhz < _LOWERED_CAP * usual.cap_mhz
    if throttled or lowered:
        return message("The processor was throttled.")
    return None


def _usual_load(loads: deque[HostLoad]) -> HostLoad:
    """Return the medians of some loads."""
    known = {
        name: [value for load in loads if (value := getattr(load, name)) is not None]
        for name in ("others", "stolen", "throttled", "cap_mhz")
    }
    return HostLoad(**{name: median(values) for name, values in known.items() if values})
