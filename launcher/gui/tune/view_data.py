"""Display data for the widgets of the Tune page: plain figures, independent of their source. Unknown is None."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

OWN_WORKLOAD = "mine"
"""Name of the user's own file of prompts among the workloads."""


@dataclass(frozen=True, slots=True)
class VerdictText:
    """A verdict to show.

    `kicker` is the line above the sentence, such as the time spent; `meaning` is "good", "attention", "information" or
    "none"; `buttons` are (label, action), the first one primary. `answers` are those for each of several workloads.
    """

    sentence: str
    kicker: str = ""
    detail: str = ""
    meaning: str = "good"
    buttons: Sequence[tuple[str, Callable[[], object]]] = ()
    answers: Sequence["WorkloadAnswer"] = ()


@dataclass(frozen=True, slots=True)
class WorkloadAnswer:
    """The answer for one of several workloads, as texts: its name, the best settings, the gain with MTP, its chance."""

    workload: str
    settings: str
    change: str
    chance: str


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """The requested tune: workloads with commas between, goal (a name of Aim), and time budget in minutes.

    OWN_WORKLOAD stands for the prompts in `file`. If `file` is set without it, these prompts replace all workloads.
    """

    workload: str = "code"
    file: str = ""
    aim: str = "speed"
    minutes: float = 10


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A tried setting.

    `rate` and `spread` (half the 95 % interval) are in tokens a second, `accepted` is a share of 0 to 1, `against_off`
    the speed divided by that with MTP off. `origin` says from how many starts the rate is known, that it was predicted,
    or that the setting failed, and then `fault` says why. `best` marks the winner.
    """

    setting: str
    rate: float | None
    spread: float | None = None
    accepted: float | None = None
    tokens_per_step: float | None = None
    vram_mib: int | None = None
    against_off: float | None = None
    origin: str = ""
    fault: str = ""
    best: bool = False
    predicted: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """The rate at one setting, in tokens a second, with half its 95 % interval; `measured` or predicted.

    `starts` is the number of starts as text, if they are too few for an interval.
    """

    setting: str
    rate: float
    spread: float | None = None
    measured: bool = True
    starts: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadCurve:
    """The points of one workload. `role` is its colour in the theme."""

    name: str
    role: str
    points: tuple[Point, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of a step and its time in milliseconds."""

    name: str
    ms: float
