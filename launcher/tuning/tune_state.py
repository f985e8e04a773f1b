"""State of a tune: its trials, and the JSON form from which it can be continued."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

from launcher.base.errors import TuneMismatch
from launcher.base.messages import add_message_data, message, restore_messages
from launcher.monitor.meter import Acceptance
from launcher.tuning.goal import Goal
from launcher.tuning.records import Prompt, Run, Settings
from launcher.tuning.space import Space

_VERSION = 1


class Stage(StrEnum):
    """Stage of a tune. Claims rest only on VERIFY, the first look at pairs, and CONFIRM, the later looks."""

    PROBE = "probe"
    EXPLORE = "explore"
    VERIFY = "verify"
    CONFIRM = "confirm"


class Fault(StrEnum):
    """Reason why a trial is not used.

    MEMORY excludes settings that need as much; TIME: it was ended with the budget.
    """

    NONE = ""
    MEMORY = "memory"
    FAILED = "failed"
    SPOILT = "spoilt"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Trial:
    """One start with some settings and its runs. Seconds are by the bench's clock.

    `start_s` is the time of the start. With a `fault`, explained in `error`, nothing of the trial is used.
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
    """Everything that a tune has measured. Survives JSON unchanged.

    A tune is a function of its seed, its budget and its measurements, so it is continued by replaying it with the
    trials so far. `budgets` are pairs of the number of trials from which a budget holds, and its seconds.
    """

    about: Mapping[str, Any]
    seed: int
    budgets: tuple[tuple[int, float], ...]
    trials: tuple[Trial, ...] = ()

    @property
    def used_s(self) -> float:
        """Seconds spent so far."""
        return sum(trial.seconds for trial in self.trials)

    def with_trial(self, trial: Trial) -> Self:
        """Return the state with one more trial."""
        return replace(self, trials=(*self.trials, trial))

    def as_json(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        described = add_message_data([asdict(trial) for trial in self.trials])
        return {"version": _VERSION, **asdict(replace(self, trials=())), "trials": described}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the data of `as_json`. Raises TuneMismatch for anything else."""
        try:
            if data["version"] != _VERSION:
                raise TuneMismatch(
                    message("This tune was started by another version of this program."), message("Start a new tune.")
                )
            budgets = tuple((int(count), float(seconds)) for count, seconds in data["budgets"])
            return cls(
                data["about"], int(data["seed"]), budgets, tuple(map(_trial, restore_messages(list(data["trials"]))))
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TuneMismatch(message("Cannot read the state of the tune."), message("Start a new tune.")) from error


def tune_identity(space: Space, workload: str, prompts: Sequence[Prompt], goal: Goal) -> dict[str, Any]:
    """Return what must stay the same when a tune is continued, as JSON data."""
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
