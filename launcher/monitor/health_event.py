"""Types of the health monitor: its input (Moment), findings, events, and the hysteresis that decides on events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal, Protocol

from launcher.base.action import Action
from launcher.base.codec import JsonView
from launcher.base.messages import message
from launcher.engine.server.reread import Reread
from launcher.engine.server.state import FailedReplies
from launcher.machine.gpu import GpuActivity, Reading

LONGEST_GAP_S = 10.0
"""Longest gap between two checks in seconds. After a longer one (the computer slept) latches restart their count."""


class FindingLevel(StrEnum):
    """Severity of a finding."""

    INFORMATION = "information"
    WARNING = "warning"
    """It costs the user speed or memory now."""


class FindingCode(StrEnum):
    """Codes of the problems that a running server may have."""

    SPILL = "spill"
    THROTTLED_HOT = "throttled_hot"
    THROTTLED_HARDWARE = "throttled_hardware"
    THROTTLED_POWER = "throttled_power"
    VRAM_PRESSURE = "vram_pressure"
    SPEED_FALLING = "speed_falling"
    ACCEPTANCE_LOW = "acceptance_low"
    DRAFTS_INERT = "drafts_inert"
    GPU_UNUSED = "gpu_unused"
    PROCESSOR_BUSY = "processor_busy"
    REQUESTS_WAIT = "requests_wait"
    PROMPT_READ_AGAIN = "prompt_read_again"
    HOST_MEMORY = "host_memory"
    REPLIES_FAIL = "replies_fail"
    NOTHING_KEPT = "nothing_kept"
    OTHER_DRAFTS = "other_drafts"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem found by a detector. The names in `evidence` end in the unit, if there is one.

    A finding that was raised is raised again when its `stage` grows, because the problem got worse.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView("code level sentence evidence:3 action")
    code: FindingCode
    sentence: str
    evidence: Mapping[str, float | str]
    action: Action | None = None
    level: FindingLevel = FindingLevel.WARNING
    stage: int = 0


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """A finding was raised, or (`cleared`) a raised one is over. `time_s` is in seconds of the monitor's clock."""

    time_s: float
    finding: Finding
    cleared: bool = False


@dataclass(frozen=True, slots=True)
class FinishedReply:
    """A finished reply, or the sum of several that ended between two readings of the counters.

    `predicted_n`, `drafted` and `accepted` count tokens; the latter two are None if the engine build does not count
    them. `predicted_s` is the generation time in seconds. `context_used` is the context in use in the middle of the
    reply, in tokens, None if unknown. `streams` is the most replies generated at the same time, as far as observed.
    `others_percent` is the processor share of other programs meanwhile.
    """

    predicted_n: int
    predicted_s: float
    drafted: int | None
    accepted: int | None
    context_used: float | None
    streams: int
    others_percent: float | None = None


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """Facts of a server that are known when it has started; None is unknown."""

    draft: int = 0
    slots: int = 1
    cache_mib: int = 0
    """Limit of the engine's prompt cache in host memory."""
    engine_pid: int | None = None
    on_gpu: bool | None = None
    """Whether the engine put layers of the model on a GPU, by its log."""
    expects_gpu: bool | None = None
    """Whether the engine build has a GPU backend and was not told to use the CPU."""
    sees_gpu: bool | None = None
    """Whether the engine found a GPU, by its log."""
    weights_mib: float | None = None
    """Size of the layers on the GPU, if there is a single one."""
    host_mib: float | None = None
    """Memory that the engine placed in host memory by design."""
    vram_total_mib: float | None = None
    """Memory of the monitored GPU."""
    published_acceptance: float | None = None
    """Lowest published draft acceptance for this model, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The input of one health check: a snapshot of server and machine, taken about every two seconds.

    `readings` are means since the last check. `generating` is whether tokens were generated since then, `waiting` the
    number of requests that wait for a slot; both are None if unknown. `finished` are the replies that ended since then,
    `prompts` what each of these requests read again, None for one that read nothing twice. `failed_replies` are the
    clients' requests that failed one after another, None if that is unknown. `kept_problem` is why no conversation can
    be kept on disk, empty if they can, `advice` what the counts of use advise. `others_percent` is the processor share
    of other programs since the last check, `busy_programs` the names of the one or two busiest if they use much.
    """

    time_s: float
    readings: Mapping[str, Reading] = field(default_factory=dict)
    activity: GpuActivity = field(default_factory=lambda: GpuActivity.unknown(message("Not checked.")))
    generating: bool | None = None
    waiting: int | None = None
    finished: tuple[FinishedReply, ...] = ()
    prompts: tuple[Reread | None, ...] = ()
    failed_replies: FailedReplies | None = None
    kept_problem: str = ""
    advice: Finding | None = None
    on_battery: bool | None = None
    others_percent: float | None = None
    busy_programs: tuple[str, ...] = ()

    def value(self, name: str) -> float | None:
        """Return a reading's value, or None if unknown."""
        reading = self.readings.get(name)
        return reading.value if reading else None


CheckResult = Finding | Literal[False] | None
"""A finding if the problem exists now, False if it certainly does not, None if undecided."""


class Detector(Protocol):
    """Detects one problem. Its results depend only on its setup and the moments so far."""

    def check(self, moment: Moment) -> CheckResult:
        """Return whether the problem exists at this moment."""


class Latch:
    """Hysteresis for the finding of one detector.

    It is raised after `raise_checks` positive checks, again whenever its stage grows, and cleared after `clear_checks`
    negative ones. Undecided checks do not count; one in the other direction resets the count.
    """

    def __init__(self, detector: Detector, *, raise_checks: int, clear_checks: int) -> None:
        self.raised: Finding | None = None
        self._detector = detector
        self._raise_checks, self._clear_checks = raise_checks, clear_checks
        self._count = 0
        self._checked_s: float | None = None

    def check_moment(self, moment: Moment) -> HealthEvent | None:
        """Run the detector on a moment; return an event if its finding was raised or cleared, else None."""
        if self._checked_s is not None and moment.time_s - self._checked_s > LONGEST_GAP_S:
            self._count = 0
        self._checked_s = moment.time_s
        result = self._detector.check(moment)
        if result is None:
            return None
        found = isinstance(result, Finding)
        if found is (self.raised is not None):
            self._count = 0
            return self._raise_again(moment, result)
        self._count += 1
        if self._count < (self._raise_checks if found else self._clear_checks):
            return None
        self._count = 0
        if isinstance(result, Finding):
            self.raised = result
            return HealthEvent(moment.time_s, result)
        cleared, self.raised = self.raised, None
        return HealthEvent(moment.time_s, cleared, cleared=True) if cleared is not None else None

    def _raise_again(self, moment: Moment, result: Finding | Literal[False]) -> HealthEvent | None:
        if not isinstance(result, Finding) or self.raised is None or result.stage <= self.raised.stage:
            return None
        self.raised = result
        return HealthEvent(moment.time_s, result)
