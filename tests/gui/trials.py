"""A tune's results: trials with settings of this computer, and a view of them all."""

from launcher.gui.tune.trial_views import TuneView
from launcher.monitor.meter import Acceptance
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.tune_state import Stage, Trial
from launcher.tuning.verdict import Forecast

HOME = {"n_cpu_moe": 22}
OFF = {**HOME, "draft": 0}


def with_draft(draft: int) -> dict[str, int]:
    return {**HOME, "draft": draft}


def run(settings: RunSettings, step_ms: float, kept: float = 1.0, **more: object) -> Run:
    """A reply of 100 steps that yield `kept` tokens each."""
    tokens = round(100 * kept)
    draft = int(settings["draft"] or 0)
    accepted = tokens - 100
    drafts = Acceptance(100 * draft, accepted, (100,) * draft, (accepted, *(0,) * (draft - 1))) if draft else None
    return Run("p", settings, 0.0, 1.0, 10, 0, tokens, 500.0, 1_000 * kept / step_ms, 0.1, drafts, **more)  # type: ignore[arg-type]


def trial(number: int, settings: RunSettings, step_ms: float, kept: float = 1.0, **more: object) -> Trial:
    return Trial(number, Stage.VERIFY, settings, 0.0, 10.0, 2.0, (run(settings, step_ms, kept, **more),))


def tune_view(verdict: dict[str, object] | None = None, *, aim: Aim = Aim.SPEED) -> TuneView:
    made = [
        (OFF, 10.0, 1.0), (with_draft(1), 12.0, 1.8), (with_draft(3), 14.0, 2.4), (OFF, 10.0, 1.0),
        (with_draft(3), 14.0, 2.4), (OFF, 10.2, 1.0), ({**HOME, "draft": 3, "n_cpu_moe": 20}, 13.0, 2.4),
    ]  # fmt: skip
    trials = tuple(trial(number, *each) for number, each in enumerate(made))
    forecasts = (Forecast(0, 100.0, 99.0, 101.0), Forecast(2, 165.0, 160.0, 170.0), Forecast(3, 170.0, 165.0, 176.0))
    return TuneView("m/qwen.gguf", "Code", Goal(aim), HOME, trials, forecasts, HOME, verdict)
