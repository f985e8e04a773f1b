"""State of a tune: its trials, and the JSON data from which it can be continued."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from launcher.base.codec import to_json
from launcher.tuning.goal import Goal
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.space import Space

_VERSION = 1


class Stage(StrEnum):
    """Stage of a tune. The verdict rests only on the pairs of VERIFY, the first comparison, and CONFIRM, later ones."""

    PROBE = "probe"
    EXPLORE = "explore"
    VERIFY = "verify"
    CONFIRM = "confirm"


class Fault(StrEnum):
    """Reason why a trial is not used."""

    NONE = ""
    MEMORY = "memory"
    """The settings did not start for lack of memory, so all that need as much are excluded."""
    FAILED = "failed"
    SPOILT = "spoilt"
    """Too many of its replies were disturbed."""
    TIME = "time"
    """It was ended because the budget was used up."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One start with some settings, and its runs. Seconds are by the bench's clock.

    `start_s` is the duration of the start. With a `fault`, which `error` explains, nothing of the trial is used.
    `others` is the mean share of the processor that others took during its replies, None if unknown.
    """

    number: int
    stage: Stage
    settings: RunSettings
    began_s: float
    seconds: float
    start_s: float
    runs: tuple[Run, ...] = ()
    error: str | None = None
    fault: Fault = Fault.NONE
    others: float | None = None


@dataclass(frozen=True, slots=True)
class TuneState:
    """Everything that a tune has measured. It survives JSON completely.

    A tune depends only on its seed, its budget and its measurements, so it is continued by replaying it with the trials
    so far. `about` is its `tune_identity`. `budgets` has a pair for each time that it was started or continued: the
    number of trials at that moment, and the budget in seconds from then on. The first `known` trials are not replayed,
    because with this version of the program, or the memory of now, the tune would have taken another course: the search
    learns from them, but no comparison uses them.
    """

    about: Mapping[str, Any]
    seed: int
    budgets: tuple[tuple[int, float], ...]
    trials: tuple[Trial, ...] = ()
    known: int = 0
    version: int = _VERSION

    @property
    def used_s(self) -> float:
        """Seconds spent so far."""
        return sum(trial.seconds for trial in self.trials)

    def with_trial(self, trial: Trial) -> Self:
        """Return the state with one more trial."""
        return replace(self, trials=(*self.trials, trial))

    def __post_init__(self) -> None:
        """Raise ValueError for the state of another version of this program."""
        if self.version != _VERSION:
            raise ValueError("it is of another version")


def tune_identity(space: Space, workload: str, prompts: Sequence[Prompt], goal: Goal) -> dict[str, Any]:
    """Return the space, prompts and goal of a tune as JSON data. They must be the same when it is continued."""
    prompts_json = json.dumps(to_json(prompts), sort_keys=True)
    return {
        "space": space.identity(),
        "workload": workload,
        "prompts": hashlib.sha256(prompts_json.encode()).hexdigest(),
        "goal": to_json(goal),
    }
