"""What the detectors of health see and say, and the hysteresis between a finding and an event."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from launcher.engine.action import Action
from launcher.machine.gpu import Activity
from launcher.machine.reading import Reading

LONGEST_GAP_S = 10.0
"""Between two looks; after a longer one (the computer slept) what was building up begins anew."""


class Level(StrEnum):
    """How much a finding matters: worth knowing, or costing the user something now."""

    INFORMATION = "information"
    WARNING = "warning"


class Code(StrEnum):
    """What may be wrong with a server that runs."""

    SPILL = "spill"
    THROTTLED_HOT = "throttled_hot"
    THROTTLED_HARDWARE = "throttled_hardware"
    THROTTLED_POWER = "throttled_power"
    VRAM_PRESSURE = "vram_pressure"
    SPEED_FALLING = "speed_falling"
    ACCEPTANCE_LOW = "acceptance_low"
    DRAFTS_INERT = "drafts_inert"
    GPU_UNUSED = "gpu_unused"
    REQUESTS_WAIT = "requests_wait"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a detector sees at one moment. The names of `evidence` end in the unit, where there is one."""

    code: Code
    sentence: str
    evidence: Mapping[str, float | str]
    action: Action | None = None
    level: Level = Level.WARNING

    def as_json(self) -> dict[str, object]:
        """Return it for programs."""
        rounded = {name: round(value, 3) for name, value in self.evidence.items() if isinstance(value, float)}
        return {
            "code": self.code.value,
            "level": self.level.value,
            "sentence": self.sentence,
            "evidence": {**self.evidence, **rounded},
            "action": self.action.as_json() if self.action else None,
        }


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """A finding was raised, or the one that was raised is over (`cleared`); `time_s` is of the monitor's clock."""

    time_s: float
    finding: Finding
    cleared: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """A reply that ended, or several that one look at the counters saw end together.

    `fill` is the context in use in the middle of the reply, in tokens, None where it is not known. `streams` is how
    many were generated at once at most, as far as it was seen; `others_percent` the share of the processor that other
    programs took meanwhile. `drafted` and `accepted` are None where the build does not count them.
    """

    predicted_n: int
    predicted_s: float
    drafted: int | None
    accepted: int | None
    fill: float | None
    streams: int
    others_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """What is known of the server from its start. What is unknown is None.

    `on_gpu` is whether the engine put layers of the model on a GPU, as its log says, and `weights_mib` how much of it,
    where that is on one GPU. `expects_gpu` is whether its build has a backend for one, `sees_gpu` whether it saw any.
    `host_mib` is what it placed in host memory by design. `vram_total_mib` is the size of the GPU that is watched.
    `usual_acceptance` is the lowest share that was published for this model, 0 to 1.
    """

    draft: int = 0
    slots: int = 1
    engine_pid: int | None = None
    on_gpu: bool | None = None
    expects_gpu: bool | None = None
    sees_gpu: bool | None = None
    weights_mib: float | None = None
    host_mib: float | None = None
    vram_total_mib: float | None = None
    usual_acceptance: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at the server and the machine, every two seconds or so.

    `readings` are means since the last look. `generating` is whether tokens came, None while it is not known;
    `waiting` how many requests wait for a slot.
    """

    time_s: float
    readings: Mapping[str, Reading] = field(default_factory=dict)
    activity: Activity = field(default_factory=lambda: Activity.unknown("Not asked."))
    generating: bool | None = None
    waiting: int | None = None
    finished: tuple[Finished, ...] = ()
    on_battery: bool | None = None

    def value(self, name: str) -> float | None:
        """Return a reading's value, None when it is unknown."""
        reading = self.readings.get(name)
        return reading.value if reading else None


class Detector(Protocol):
    """Looks for one thing. Pure: what it says follows from the moments it has seen."""

    def look(self, moment: Moment) -> "Finding | bool | None":
        """Return the finding that holds now; False when surely none does; None when this moment tells neither."""


class Latch:
    """Makes events of a detector's words: one when it found it in `raise_looks` looks, one when gone in `clear_looks`.

    Looks that tell nothing do not count; one that says the contrary begins the count anew.
    """

    def __init__(self, detector: Detector, *, raise_looks: int, clear_looks: int) -> None:
        self.raised: Finding | None = None
        self._detector = detector
        self._raise_looks, self._clear_looks = raise_looks, clear_looks
        self._looks = 0
        self._seen_s: float | None = None

    def feed(self, moment: Moment) -> HealthEvent | None:
        """Take in a moment, and return what has to be told."""
        if self._seen_s is not None and moment.time_s - self._seen_s > LONGEST_GAP_S:
            self._looks = 0
        self._seen_s = moment.time_s
        said = self._detector.look(moment)
        if said is None:
            return None
        found = isinstance(said, Finding)
        if found is (self.raised is not None):
            self._looks = 0
            return None
        self._looks += 1
        if self._looks < (self._raise_looks if found else self._clear_looks):
            return None
        self._looks = 0
        if isinstance(said, Finding):
            self.raised = said
            return HealthEvent(moment.time_s, said)
        over, self.raised = self.raised, None
        return HealthEvent(moment.time_s, over, cleared=True) if over is not None else None
