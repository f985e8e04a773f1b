"""What the widgets of this page are shown: plain figures, whoever measured them. Unknown is None."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Told:
    """A verdict. `kicker` is the line above the sentence, such as how long was measured; `meaning` "good", "attention"
    or "information"; `buttons` words with what they do, the first of them the main one."""

    sentence: str
    kicker: str = ""
    detail: str = ""
    meaning: str = "good"
    buttons: Sequence[tuple[str, Callable[[], object]]] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user wants measured: a workload by name or a file of prompts, a goal by Aim's name, minutes at most."""

    workload: str = "code"
    file: str = ""
    aim: str = "speed"
    minutes: float = 10


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A setting that was tried. `rate` and `spread` (half the 95 % interval) are tokens a second, `accepted` a share of
    0 to 1, `tokens_per_step` tokens, `against_off` a factor. `how` says whether it was measured; `best` marks a row."""

    setting: str
    rate: float | None
    spread: float | None = None
    accepted: float | None = None
    tokens_per_step: float | None = None
    vram_mib: int | None = None
    against_off: float | None = None
    how: str = ""
    best: bool = False
    predicted: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """The rate at one setting, in tokens a second, with half its 95 % interval; `measured` or predicted.

    `starts` says of how few starts it is where they are too few for an interval.
    """

    setting: str
    rate: float
    spread: float | None = None
    measured: bool = True
    starts: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one workload; `role` is its colour in the theme."""

    name: str
    role: str
    points: tuple[Point, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Part:
    """Where a part of a step's time goes, in milliseconds."""

    name: str
    ms: float
