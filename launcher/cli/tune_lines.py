"""What `mtp-launcher tune` prints: its plan, a line for each trial, the verdict; and the same for programs."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.cli.layout import filled, print_table
from launcher.cli.output import print_json, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.tuner_space import Prepared
    from launcher.tuning.goal import Goal
    from launcher.tuning.records import Settings
    from launcher.tuning.tuner_events import TuneEvent
    from launcher.tuning.tuner_state import Trial
    from launcher.tuning.verdict import Verdict

_STAGES = {"probe": "first look", "explore": "explore", "verify": "compare", "confirm": "compare"}
_UNKNOWN = "–"  # noqa: RUF001 -- the sign for an unknown value


def time_words(prepared: Prepared) -> str:
    """Return in words how long a tune takes."""
    from launcher.tuning.plan_of_trials import grace_s

    plan = prepared.plan
    how = "as measured here" if prepared.measured else "a guess"
    start = f"{prepared.restart_s:.0f}" if prepared.restart_s >= 0.95 else "less than 1"
    return (
        f"about {minutes(plan.seconds)}, {minutes(prepared.budget_s)} at most (a trial under way may take "
        f"{minutes(grace_s(prepared.budget_s))} more): {plan.starts} starts of "
        f"{start} s ({how}), {plan.runs} replies, {prepared.tokens:,} tokens, at {three_digits(prepared.rate)} tokens/s"
    )


def three_digits(value: float) -> str:
    """Return a figure with three digits that count, in full: 1,200, not 1.2e+03."""
    return f"{float(f'{value:.3g}'):,g}" if value < 1e6 else f"{value:,.0f}"


class Lines:
    """What a person sees: a line for each trial, then the verdict."""

    def __init__(self, prepared: Prepared, done: int) -> None:
        self._prepared = prepared
        self._left_s = prepared.budget_s
        self._trials = 0
        self._planned = bool(done)

    def take(self, event: TuneEvent) -> None:
        """Print a trial that was made."""
        from launcher.tuning.tuner_events import TrialFailed, TrialMeasured, TrialPlanned

        if isinstance(event, TrialPlanned):
            self._left_s = event.left_s
        if isinstance(event, TrialMeasured | TrialFailed):
            self._trials = len(event.state.trials)
            trial, goal = event.trial, self._prepared.goal
            told = trial_json(trial, goal)
            figure = trial.error or f"{_figure(told['value'])} {goal.unit}"
            share = "" if told["acceptance"] is None else f", {100 * told['acceptance']:.0f} % accepted"
            left_s = max(0.0, self._left_s - trial.seconds)
            words = settings_words(trial.settings, self._prepared.space.baseline)
            line = f"{self._trials:>3}  {_STAGES[trial.stage.value]:<10}  {words:<24}  {one_line(figure, 300)}{share}"
            print(f"{line}  ({minutes(left_s)} left)", flush=True)
            if not self._planned and trial.error is None:
                self._planned = True
                print(filled(time_words(self._prepared.measured_by([trial])), "  time      "), flush=True)

    def paused(self) -> None:
        """Print that it was paused."""
        kept = f"{self._trials} trials are kept" if self._trials else "nothing was measured yet"
        go_on = " Go on with `mtp-launcher tune --continue`." if self._trials else ""
        print(f"Paused: {kept}.{go_on}", file=sys.stderr, flush=True)

    def end(self, verdict: Verdict, *, applied: bool) -> None:
        """Print the verdict."""
        from launcher.tuner import is_decided
        from launcher.tuning.verdict import tried

        goal, home = self._prepared.goal, self._prepared.space.baseline
        rows = [("setting", goal.unit, "95 %", "starts", "replies", "")]
        for each in tried(verdict.trials, goal):
            known = (
                each.low is not None and each.high is not None and each.starts > 2
            )  # two starts tell hardly anything
            reach = f"± {_figure(((each.high or 0) - (each.low or 0)) / 2)}" if known else _UNKNOWN
            words = settings_words(each.settings, home)
            figure = _figure(each.value)
            rows.append((words, figure, reach, str(each.starts), str(each.runs), one_line(each.error or "", 200)))
        print()
        print_table(rows, right={1, 2, 3, 4})
        print()
        print(filled(verdict.sentence))
        print_level(verdict.as_json())
        if verdict.because:
            print(filled(f"Why: {verdict.because}"))
        model = self._prepared.model
        print(next_words(model, applied=applied) if is_decided(verdict.as_json()) else more_words(model))


class JsonLines:
    """What programs get: an object for the plan, for each trial, and one with all at the end."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._trials = 0

    def take(self, event: TuneEvent) -> None:
        """Print a trial that was made."""
        from launcher.tuning.tuner_events import TrialFailed, TrialMeasured

        if isinstance(event, TrialMeasured | TrialFailed):
            self._trials = len(event.state.trials)
            print_json({"event": "trial", **trial_json(event.trial, self._prepared.goal)})

    def paused(self) -> None:
        """Print that it was paused."""
        print_json({"event": "paused", "trials": self._trials})

    def end(self, verdict: Verdict, *, applied: bool) -> None:
        """Print the verdict."""
        trials = [trial_json(trial, self._prepared.goal) for trial in verdict.trials]
        print_json({"verdict": verdict.as_json(), "trials": trials, "applied": applied})


def trial_json(trial: Trial, goal: Goal) -> dict[str, Any]:
    """Return a trial for programs. `value` is the goal's mean over replies that count; drafts are of all."""
    from statistics import fmean

    from launcher.monitor.meter import total

    scores = [score for run in trial.runs if (score := goal.score(run)) is not None]
    drafts = total([run.acceptance for run in trial.runs if run.acceptance is not None])
    return {
        "number": trial.number,
        "stage": trial.stage.value,
        "settings": dict(trial.settings),
        "value": rounded(goal.value_of(fmean(scores)), 3) if scores else None,
        "unit": goal.unit,
        "seconds": rounded(trial.seconds, 2),
        "start_s": rounded(trial.start_s, 2),
        "runs": len(trial.runs),
        "counted": len(scores),
        "draft_n": drafts.drafted,
        "draft_n_accepted": drafts.accepted,
        "acceptance": rounded(drafts.rate, 4),
        "acceptance_by_position": [rounded(share, 4) for share in drafts.rates_by_position],
        "error": trial.error,
    }


def settings_words(settings: Settings, home: Mapping[str, object]) -> str:
    """Return settings in a few words: the draft length, and what else differs from the baseline."""
    from launcher.tuning.space import DRAFT, draft_of

    draft = draft_of(settings)
    others = [
        f"{name_words(name)} {value}" for name, value in settings.items() if name != DRAFT and value != home.get(name)
    ]
    return ", ".join([f"draft {draft}" if draft else "off", *others])


def minutes(seconds: float) -> str:
    """Return a time in words: 40 s, 3 min, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3_600} h" + (f" {whole % 3_600 // 60} min" if whole % 3_600 // 60 else "")


def print_level(verdict: Mapping[str, Any]) -> None:
    """Say how sure the intervals in a verdict's sentence are: surer than the table's, which are not for claims."""
    if verdict["speedup"] is not None or verdict["gain"] is not None:
        print(filled("(These ranges hold with 95 % confidence, all of them together.)"))


AIM_WORDS = {"speed": "tokens/s", "answer": "time to the whole answer", "energy": "tokens per joule"}


def more_words(model: str) -> str:
    """Return how a tune that came to no decision is given more time."""
    return f"More time: `mtp-launcher tune {shell_word(model)} --continue --budget MIN`, counted from its beginning."


def next_words(model: str, *, applied: bool) -> str:
    """Return what can be done with a verdict."""
    if applied:
        return f"It is kept: `mtp-launcher serve {shell_word(model)}` starts the model so."
    return f"Keep it for the model's next start: `mtp-launcher tune {shell_word(model)} --continue --apply`."


def shell_word(model: str) -> str:
    """Return a model's name or path as it is typed in a shell: one with a space is quoted."""
    return shlex.quote(one_line(model))


def name_words(name: str) -> str:
    """Return a setting's name as the command line has it."""
    return name.replace("_", "-")


def listed(values: tuple[object, ...]) -> str:
    """Return values in a row."""
    return "/".join(map(str, values))


def _figure(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"
