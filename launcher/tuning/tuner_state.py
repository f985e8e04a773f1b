"""What a tune has measured, and how it is kept, so that it can be continued."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

from launcher.base.errors import TuneMismatch
from launcher.monitor.meter import Acceptance
from launcher.tuning.goal import Goal
from launcher.tuning.records import Prompt, Run, Settings
from launcher.tuning.space import Space

_VERSION = 1


class Stage(StrEnum):
    """The part of a tune that a trial belongs to. Claims rest on VERIFY and CONFIRM alone: the first look at pairs and
    those after it.
    """

    PROBE = "probe"
    EXPLORE = "explore"
    VERIFY = "verify"
    CONFIRM = "confirm"


class Fault(StrEnum):
    """Why a trial gives nothing: it does not say more of the settings than that memory was too small for them.

    With TIME it was ended, as the budget was over.
    """

    NONE = ""
    MEMORY = "memory"
    FAILED = "failed"
    SPOILT = "spoilt"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Trial:
    """One start with some settings and what was measured on it. Seconds are by the bench's clock.

    `start_s` is what the start took. With a `fault`, and `error` in words, nothing of it is used.
    """

    number: int
    stage: Stage
    settings: Settings
    began_s: float
    seconds: float
    start_s: float
    runs: tuple[Run, ...] = ()
    error: str | None = None
    fault: Fault = Fault.NONE


@dataclass(frozen=True, slots=True)
class TuneState:
    """Everything that a tune has learned. It goes through JSON unchanged.

    A tune is a function of its seed, its budget and what it measures, so it is continued by being gone through again
    with the trials that there are. `budgets` says from which number of trials on a budget held, in seconds.
    """

    about: Mapping[str, Any]
    seed: int
    budgets: tuple[tuple[int, float], ...]
    trials: tuple[Trial, ...] = ()

    @property
    def used_s(self) -> float:
        """The time spent so far."""
        return sum(trial.seconds for trial in self.trials)

    def with_trial(self, trial: Trial) -> Self:
        """Return it with one more trial."""
        return replace(self, trials=(*self.trials, trial))

    def as_json(self) -> dict[str, Any]:
        """Return it for a file."""
        return {"version": _VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what `as_json` gave. Raises TuneMismatch for anything else."""
        try:
            if data["version"] != _VERSION:
                raise TuneMismatch("This tune was begun by another version of the program.", "Begin it anew.")
            budgets = tuple((int(count), float(seconds)) for count, seconds in data["budgets"])
            return cls(data["about"], int(data["seed"]), budgets, tuple(map(_trial, data["trials"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TuneMismatch("The state of the tune cannot be read.", "Begin it anew.") from error


def about(space: Space, workload: str, prompts: Sequence[Prompt], goal: Goal) -> dict[str, Any]:
    """Return what must be the same when a tune is continued, as it reads in JSON."""
    asked = json.dumps([asdict(prompt) for prompt in prompts], sort_keys=True)
    return {
        "space": space.as_json(),
        "workload": workload,
        "prompts": hashlib.sha256(asked.encode()).hexdigest(),
        "goal": {**asdict(goal), "aim": goal.aim.value},
    }


def _trial(data: Mapping[str, Any]) -> Trial:
    runs = tuple(_run(run) for run in data["runs"])
    return Trial(**{**data, "stage": Stage(data["stage"]), "runs": runs, "fault": Fault(data["fault"])})


def _run(data: Mapping[str, Any]) -> Run:
    drafts = data["acceptance"]
    return Run(**{**data, "acceptance": Acceptance(**{k: _whole(v) for k, v in drafts.items()}) if drafts else None})


def _whole(value: int | Sequence[int]) -> Any:  # noqa: ANN401 -- a count, or counts by position
    return value if isinstance(value, int) else tuple(value)
