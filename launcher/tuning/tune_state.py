"""State of a tune: its trials, and the JSON data from which it can be continued."""

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
    """Everything that a tune has measured. `as_json` and `from_json` preserve it completely.

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

    @property
    def used_s(self) -> float:
        """Seconds spent so far."""
        return sum(trial.seconds for trial in self.trials)

    def with_trial(self, trial: Trial) -> Self:
        """Return the state with one more trial."""
        return replace(self, trials=(*self.trials, trial))

    def as_json(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        trials = add_message_data([asdict(trial) for trial in self.trials])
        return {"version": _VERSION, **asdict(replace(self, trials=())), "trials": trials}

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
                data["about"],
                int(data["seed"]),
                budgets,
                tuple(map(_parse_trial, restore_messages(list(data["trials"])))),
                int(data.get("known", 0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TuneMismatch(message("Cannot read the state of the tune."), message("Start a new tune.")) from error


def tune_identity(space: Space, workload: str, prompts: Sequence[Prompt], goal: Goal) -> dict[str, Any]:
    """Return the space, prompts and goal of a tune as JSON data. They must be the same when it is continued."""
    prompts_json = json.dumps([asdict(prompt) for prompt in prompts], sort_keys=True)
    return {
        "space": space.as_json(),
        "workload": workload,
        "prompts": hashlib.sha256(prompts_json.encode()).hexdigest(),
        "goal": {**asdict(goal), "aim": goal.aim.value},
    }


def _parse_trial(data: Mapping[str, Any]) -> Trial:
    runs = tuple(_parse_run(run) for run in data["runs"])
    return Trial(**{**data, "stage": Stage(data["stage"]), "runs": runs, "fault": Fault(data["fault"])})


def _parse_run(data: Mapping[str, Any]) -> Run:
    drafts = data["acceptance"]
    if not drafts:
        return Run(**data)
    counts: dict[str, Any] = {name: value if isinstance(value, int) else tuple(value) for name, value in drafts.items()}
    return Run(**{**data, "acceptance": Acceptance(**counts)})
