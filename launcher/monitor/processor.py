"""Detects other programs that take the processor from a model that runs on it."""

from launcher.base.action import Action, ActionKind
from launcher.base.messages import message
from launcher.monitor.health_event import (
    LONGEST_GAP_S,
    CheckResult,
    Finding,
    FindingCode,
    FindingLevel,
    Moment,
    ServerSetup,
)

BUSY_PERCENT, _FREE_PERCENT = 50.0, 25.0
"""Shares of the processor used by other programs from which the finding is raised, and up to which it is cleared."""
_LASTING_S = 10.0
"""Seconds for which they must use so much while tokens are generated: a short burst is ordinary."""


class BusyProcessorDetector:
    """Detects that other programs use half of the processor or more while a model without a GPU generates.

    A model on a GPU needs little of the processor, so nothing is reported for it, nor if the place of its layers is
    unknown.
    """

    def __init__(self, setup: ServerSetup) -> None:
        self._needs_processor = setup.on_gpu is False
        self._busy_since_s: float | None = None
        self._checked_s = 0.0

    def check(self, moment: Moment) -> CheckResult:
        """See `Detector.check` in health_event.py."""
        slept = moment.time_s - self._checked_s > LONGEST_GAP_S
        self._checked_s, others = moment.time_s, moment.others_percent
        if not self._needs_processor or others is None:
            return None
        if others < BUSY_PERCENT or not moment.generating:
            self._busy_since_s = None
            return False if others <= _FREE_PERCENT else None
        if self._busy_since_s is None or slept:
            self._busy_since_s = moment.time_s
        busy_s = moment.time_s - self._busy_since_s
        if busy_s < _LASTING_S:
            return None
        busiest, second = (*moment.busy_programs, None, None)[:2]
        programs = {"programs": ", ".join(moment.busy_programs)} if moment.busy_programs else {}
        return Finding(
            FindingCode.PROCESSOR_BUSY,
            message(
                "Replies are slower because other programs use {others:.0f} % of the processor, on which this model"
                " runs[; the busiest is {busiest}][, then {second}].",
                others=others,
                busiest=busiest,
                second=second,
            ),
            {"others_percent": others, "busy_s": busy_s, **programs},
            Action(ActionKind.FREE_PROCESSOR, message("Close programs that use much of the processor")),
            FindingLevel.INFORMATION,
        )
