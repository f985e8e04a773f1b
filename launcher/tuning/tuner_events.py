"""What a tune tells while it works."""

from collections.abc import Callable
from dataclasses import dataclass

from launcher.tuning.records import Run, Settings
from launcher.tuning.tuner_state import Stage, Trial, TuneState
from launcher.tuning.verdict import Forecast, Verdict


@dataclass(frozen=True, slots=True)
class TrialPlanned:
    """A trial begins: it will take about `expected_s` of the `left_s` that the budget still has."""

    number: int
    stage: Stage
    settings: Settings
    expected_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class TrialMeasured:
    """A trial is done. `state` is what a tune can be continued from, now."""

    trial: Trial
    state: TuneState

    @property
    def runs(self) -> tuple[Run, ...]:
        """What was measured."""
        return self.trial.runs


@dataclass(frozen=True, slots=True)
class TrialFailed:
    """Settings could not be served, or the server ended while it was asked; the tune goes on."""

    trial: Trial
    error: str
    state: TuneState


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the goal's value would be at every draft length, the other settings being `settings`."""

    settings: Settings
    forecasts: tuple[Forecast, ...]


@dataclass(frozen=True, slots=True)
class VerdictReached:
    """The tune is over."""

    verdict: Verdict
    state: TuneState


@dataclass(frozen=True, slots=True)
class Paused:
    """The tune was cancelled, and can be continued from `state`; of a trial that was under way nothing is kept."""

    state: TuneState


TuneEvent = TrialPlanned | TrialMeasured | TrialFailed | Predicted | VerdictReached | Paused
OnEvent = Callable[[TuneEvent], None]
