"""The health of one server while it runs: all detectors, each with its hysteresis, fed by one look at a time."""

from launcher.monitor.health_drafts import AcceptanceLow, DraftsInertNow, RequestsWait
from launcher.monitor.health_event import Code, Finding, HealthEvent, Latch, Moment, Setup
from launcher.monitor.health_gpu import GpuUnused, Throttling, VramPressure
from launcher.monitor.health_speed import SpeedBook, SpeedFalling
from launcher.monitor.health_spill import Spill

_CAUSES = frozenset({Code.SPILL, Code.THROTTLED_HOT, Code.THROTTLED_HARDWARE, Code.THROTTLED_POWER, Code.GPU_UNUSED})
"""Each of these slows replies down and says why; that they are slow is then no news."""


class Health:
    """Watches one server from its start to its end. Its clock is the `time_s` of the moments."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.speed = SpeedBook()
        self._latches = {
            Code.GPU_UNUSED: Latch(GpuUnused(setup), raise_looks=3, clear_looks=3),
            Code.SPILL: Latch(Spill(setup, self.speed), raise_looks=3, clear_looks=5),
            Code.VRAM_PRESSURE: Latch(VramPressure(setup), raise_looks=3, clear_looks=5),
            Code.THROTTLED_HOT: Latch(Throttling(Code.THROTTLED_HOT), raise_looks=5, clear_looks=10),
            Code.THROTTLED_HARDWARE: Latch(Throttling(Code.THROTTLED_HARDWARE), raise_looks=5, clear_looks=10),
            Code.THROTTLED_POWER: Latch(Throttling(Code.THROTTLED_POWER), raise_looks=10, clear_looks=10),
            Code.ACCEPTANCE_LOW: Latch(AcceptanceLow(setup), raise_looks=2, clear_looks=2),
            Code.DRAFTS_INERT: Latch(DraftsInertNow(setup), raise_looks=1, clear_looks=1),
            Code.REQUESTS_WAIT: Latch(RequestsWait(setup), raise_looks=10, clear_looks=10),
            Code.SPEED_FALLING: Latch(SpeedFalling(self.speed), raise_looks=2, clear_looks=2),
        }

    @property
    def standing(self) -> tuple[Finding, ...]:
        """What was raised and is not over."""
        return tuple(latch.raised for latch in self._latches.values() if latch.raised is not None)

    def look(self, moment: Moment) -> tuple[HealthEvent, ...]:
        """Take in one look, and return what has to be told."""
        for reply in moment.finished:
            self.speed.add(moment.time_s, reply)
        events = []
        for code, latch in self._latches.items():
            explained = code is Code.SPEED_FALLING and latch.raised is None and self._cause_stands()
            event = None if explained else latch.feed(moment)
            if event is not None:
                events.append(event)
                if event.cleared and code in _CAUSES:
                    self.speed.forget_last()  # what was slow had its reason
        return tuple(events)

    def _cause_stands(self) -> bool:
        return any(self._latches[code].raised is not None for code in _CAUSES)
