"""What makes a reply unfit to be counted: a GPU that is held back, a spill into host memory, other programs on it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from launcher.machine.gpu import Activity, GpuProcess
from launcher.monitor.health_event import Code, Finding
from launcher.monitor.health_gpu import HARDWARE, HOT

_COSTS = 0.92
"""Below this share of its usual clock a GPU that is held back is slower than its settings are."""
_FEWEST, _KEPT = 5, 40
_TAKEN_MIB = 128.0
_USES_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the machine: what stands about the server's health, what the GPU does, and what others have of it."""

    standing: Sequence[Finding] = ()
    activity: Activity | None = None
    others_mib: float | None = None
    engine_pid: int | None = None


class Marks:
    """Says of each reply whether it was spoilt, by a look before and after it, and the clocks of those before.

    A machine that is held back all the time is not spoilt: so it is. Only what differs from its usual state is told,
    since that would count for or against the settings that were measured just then.
    """

    def __init__(self) -> None:
        self._clocks = deque[float](maxlen=_KEPT)

    def judge(self, before: Look, after: Look, clock_mhz: float | None) -> str | None:
        """Return why a reply must not be counted, None if it may. `clock_mhz` is the GPU's mean clock during it."""
        usual = median(self._clocks) if len(self._clocks) >= _FEWEST else None
        if clock_mhz is not None:
            self._clocks.append(clock_mhz)
        return _spilled(after) or _held_back(after, clock_mhz, usual) or _shared(before, after)


def _spilled(after: Look) -> str | None:
    return next((found.sentence for found in after.standing if found.code is Code.SPILL), None)


def _held_back(after: Look, clock_mhz: float | None, usual_mhz: float | None) -> str | None:
    reasons = frozenset(after.activity.throttled_by or ()) & (HOT | HARDWARE) if after.activity else frozenset()
    if not reasons or clock_mhz is None or usual_mhz is None or clock_mhz >= _COSTS * usual_mhz:
        return None
    why = ", ".join(sorted(reasons))
    return f"The GPU was held back ({why}): {clock_mhz:.0f} MHz, usually it had {usual_mhz:.0f} MHz."


def _shared(before: Look, after: Look) -> str | None:
    """Return which other program came onto the GPU, or that others took more of its memory."""
    known, now = _others(before), _others(after)
    if known is not None and now is not None:
        seen = {each.pid for each in known}
        came = [each for each in now if each.pid not in seen and (each.used_bytes or 0) >= _USES_BYTES]
        if came:
            return f"Another program came onto the GPU: {came[0].name}."
    if before.others_mib is not None and after.others_mib is not None:
        taken = after.others_mib - before.others_mib
        if taken >= _TAKEN_MIB:
            return f"Other programs took {taken:.0f} MiB of the GPU's memory."
    return None


def _others(look: Look) -> list[GpuProcess] | None:
    """Return the other programs that are known by name; in a container they are not. None while nobody told."""
    if look.activity is None or look.activity.processes is None:
        return None
    return [each for each in look.activity.processes if each.pid != look.engine_pid and each.name is not None]
