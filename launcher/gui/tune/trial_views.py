"""Display data of a tune's trials: rows, curves, parts of a step. Made anew after each trial.

Rows and curves are in tokens a second for every goal; the verdict's sentence has the goal's own figures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, linear_regression
from typing import Any

from launcher.gui.setting_text import setting_text
from launcher.gui.translation import join_sentences, ntr, render, tr
from launcher.gui.tune.view_data import Point, StepPart, TrialRow, WorkloadCurve
from launcher.models.drafters import choice_in, is_drafting
from launcher.models.server_settings import ROWS
from launcher.monitor.meter import sum_acceptance
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.space import DRAFT, DRAFTER, Key, draft_length, settings_key
from launcher.tuning.tune_state import Stage, Trial
from launcher.tuning.verdict import Forecast, TriedSettings, tabulate_trials

_SPEED = Goal()
_CURVE_ROLES = ("acceptance", "temperature", "power", "others")
"""Colours of the theme for the curves of several workloads: the first ones have a curve each."""
_FEWEST_STARTS = 3
"""The least number of starts for a meaningful interval: Student's t for two starts reaches 12.7 standard errors to each
side."""


@dataclass(frozen=True, slots=True)
class TuneView:
    """A tune's state, running or finished. `verdict` has the format of a Verdict as JSON.

    `baseline` are the settings before the tune. `forecasts` are for several draft lengths; `other_settings` are all
    settings but the draft length, the same for each of these forecasts and for the curve. `estimate_mib` returns the
    memory for some settings in MiB, None if unknown. `waited_s` are the seconds for which it waited for clients.
    """

    model: str
    workload: str
    goal: Goal
    baseline: RunSettings
    trials: tuple[Trial, ...] = ()
    forecasts: tuple[Forecast, ...] = ()
    other_settings: RunSettings = field(default_factory=dict)
    verdict: Mapping[str, Any] | None = None
    estimate_mib: Callable[[RunSettings], int | None] = lambda _: None
    waited_s: float = 0.0

    @property
    def runs(self) -> list[Run]:
        """All measured replies."""
        return [run for trial in self.trials for run in trial.runs]

    @property
    def seconds(self) -> float:
        """Time spent, in seconds."""
        return sum(trial.seconds for trial in self.trials)


def read_forecasts(verdict: Mapping[str, Any]) -> tuple[Forecast, ...]:
    """Return the forecasts of a stored verdict; empty if an earlier version, which had none, stored it."""
    stored = verdict.get("forecasts", ())
    return tuple(Forecast(each["draft"], each["value"], each["low"], each["high"]) for each in stored)


def group_trials(runs: Sequence[Run]) -> tuple[Trial, ...]:
    """Group runs of the history into trials.

    Runs in a row with the same settings are one trial. Two trials in a row have the same settings only if the first was
    aborted, and then none of its runs counts.
    """
    groups: list[list[Run]] = []
    for run in runs:
        if not groups or settings_key(groups[-1][0].settings) != settings_key(run.settings):
            groups.append([])
        groups[-1].append(run)
    return tuple(
        Trial(
            number,
            Stage.VERIFY,
            dict(group[0].settings),
            group[0].began_s,
            sum(run.wall_s for run in group),
            0.0,
            tuple(group),
            error=next((run.error for run in group if run.error), None),
        )
        for number, group in enumerate(groups)
    )


def describe_settings(settings: RunSettings, baseline: RunSettings) -> str:
    """Return settings in a few words: the draft length, and differences from the baseline."""
    return " · ".join([_draft_text(settings), *_other_differences(settings, baseline)])


def _draft_text(settings: RunSettings) -> str:
    return render(choice_in(settings).label(off="off"))


def _other_differences(settings: RunSettings, baseline: RunSettings) -> list[str]:
    """Return differences from the baseline other than the draft length, as text."""
    return [
        setting_text(name, value)
        for name, value in settings.items()
        if name not in (DRAFT, DRAFTER) and value != baseline.get(name)
    ]


def trial_rows(view: TuneView) -> list[TrialRow]:
    """Return a row for each tried setting and for each draft length that was only predicted."""
    by_key = {settings_key(tried.settings): tried for tried in tabulate_trials(view.trials, _SPEED)}
    baseline = _with_mtp_off(view.baseline)
    off = by_key.get(settings_key(baseline))
    best = settings_key(view.verdict["settings"]) if view.verdict else None
    # Rows with what they are sorted by: the draft length, then the baseline before other settings of that length.
    rows: list[tuple[int, bool, TrialRow]] = []
    for key, tried in by_key.items():
        row = _measured_row(view, tried, off, best=key == best)
        rows.append((draft_length(tried.settings), key != settings_key(baseline), row))
    for forecast in _speed_forecasts(view):
        settings = dict(_key_for_draft(baseline, view.other_settings, forecast.draft))
        if settings_key(settings) not in by_key:
            row = TrialRow(
                describe_settings(settings, view.baseline),
                forecast.value,
                _half_interval(forecast.low, forecast.high),
                vram_mib=view.estimate_mib(settings),
                against_off=forecast.value / off.value if off is not None and off.value else None,
                origin=tr("predicted"),
                predicted=True,
            )
            rows.append((forecast.draft, True, row))
    return [row for _, _, row in sorted(rows, key=lambda each: each[:2])]


def rate_curves(view: TuneView) -> tuple[WorkloadCurve, ...]:
    """Return the speed by draft length, measured where available, else predicted; also that of each workload, measured.

    A curve's name has the other settings.
    """
    names = list(dict.fromkeys(run.prompt.partition(": ")[0] for run in view.runs if ": " in run.prompt))
    if len(names) < 2 or ", " not in view.workload:
        return _rate_curve(view, "rate")
    found = [*_rate_curve(replace(view, workload=tr("all")), "rate")]
    for name, role in zip(names, _CURVE_ROLES, strict=False):
        part = [
            replace(trial, runs=tuple(run for run in trial.runs if run.prompt.startswith(f"{name}: ")))
            for trial in view.trials
        ]
        found += _rate_curve(replace(view, workload=name, trials=tuple(part), forecasts=()), role)
    return tuple(found)


def _rate_curve(view: TuneView, role: str) -> tuple[WorkloadCurve, ...]:
    """Return the curve of a tune in a colour of the theme; none without points."""
    baseline = _with_mtp_off(view.baseline)
    by_key = {
        settings_key(tried.settings): tried for tried in tabulate_trials(view.trials, _SPEED) if tried.value is not None
    }
    forecasts_by_draft = {each.draft: each for each in _speed_forecasts(view)}
    drafts = sorted(
        {*forecasts_by_draft, *(draft_length(dict(key)) for key in by_key if _matches_other_settings(dict(key), view))}
    )
    points = []
    for draft in drafts:
        key = _key_for_draft(baseline, view.other_settings, draft)
        label, measured = _draft_text(dict(key)), by_key.get(key)
        if measured is not None and measured.value is not None:
            spread = _measured_half_interval(measured)
            starts = ntr("1 start", "{n} starts", measured.starts) if spread is None else ""
            points.append(Point(label, measured.value, spread, starts=starts))
        elif draft in forecasts_by_draft:
            forecast = forecasts_by_draft[draft]
            points.append(Point(label, forecast.value, _half_interval(forecast.low, forecast.high), measured=False))
    name = " · ".join([view.workload, *_other_differences(view.other_settings, view.baseline)])
    return (WorkloadCurve(name, role, tuple(points)),) if points else ()


def step_parts(view: TuneView) -> tuple[tuple[StepPart, ...], str, str]:
    """Return the times of a verification step's parts, a line on the step, and a conclusion; empty until known.

    The time of one token is that of a step without MTP. The cost of a drafted token is the slope of a line through the
    step times of several draft lengths. What is left of a step with drafts is the head's fixed cost. If nothing is
    left, the head and the drafted tokens are shown together.
    """
    steps = _step_times(view)
    draft_lengths = sorted(filter(None, steps))
    if 0 not in steps or len(draft_lengths) < 2:
        return (), "", ""
    base_ms = steps[0][0]
    slope = linear_regression(draft_lengths, [steps[draft][0] for draft in draft_lengths]).slope
    chosen = draft_length(view.verdict["settings"]) if view.verdict else 0
    fastest = max(draft_lengths, key=lambda each: steps[each][1] / steps[each][0])
    draft = chosen if chosen in draft_lengths else fastest
    step_ms, tokens = steps[draft]
    extra_ms = step_ms - base_ms
    drafted_ms = slope * draft
    separable = 0 < drafted_ms <= extra_ms
    parts = [StepPart(tr("one token, as without MTP"), min(base_ms, step_ms))]
    if separable:
        verified = ntr("draft and verify 1 token", "draft and verify {n} tokens", draft)
        parts += [StepPart(tr("MTP head, once per step"), extra_ms - drafted_ms), StepPart(verified, drafted_ms)]
    elif extra_ms > 0:
        parts.append(StepPart(tr("MTP head and drafts together"), extra_ms))
    if separable:
        slope_text = tr("Each drafted token adds {slope:.2f} ms.", slope=slope)
    else:
        slope_text = tr("Time per drafted token: unknown yet.")
    named = render(choice_in({**view.other_settings, DRAFT: draft}).number)
    about = tr("draft {draft}, {work}, {ms:.1f} ms per step", draft=named, work=view.workload, ms=step_ms)
    note = join_sentences(
        tr("{kept:.2f} tokens per step.", kept=tokens),
        slope_text,
        tr("With MTP off a token takes {bare:.2f} ms.", bare=base_ms),
    )
    return tuple(parts), about, note


def machine_text(view: TuneView) -> str:
    """Return the machine's state during the tune: temperature, clock, other programs, repeated replies; or empty."""
    runs = view.runs
    parts = []
    temperatures = [run.temperature_c for run in runs if run.temperature_c is not None]
    clocks = [run.clock_mhz for run in runs if run.clock_mhz is not None]
    if temperatures:
        parts.append(tr("{low:.0f} to {high:.0f} °C", low=min(temperatures), high=max(temperatures)))
    if clocks:
        parts.append(tr("clock {low:,.0f} to {high:,.0f} MHz", low=min(clocks), high=max(clocks)))
    taken = [trial.others for trial in view.trials if trial.others is not None]
    if taken:
        parts.append(tr("other programs: {percent:.0f} % of the processor", percent=100 * taken[-1]))
    spoilt_reasons = [run.spoilt for run in runs if run.spoilt]
    if spoilt_reasons:
        counted = ntr("1 reply was repeated", "{n} replies were repeated", len(spoilt_reasons))
        parts.append(f"{counted}: {render(spoilt_reasons[-1])}")
    return "\n".join(parts)


def _measured_row(view: TuneView, tried: TriedSettings, off: TriedSettings | None, *, best: bool) -> TrialRow:
    trials = [trial for trial in view.trials if settings_key(trial.settings) == settings_key(tried.settings)]
    runs = [run for trial in trials for run in trial.runs if run.is_counted]
    drafts = sum_acceptance([run.acceptance for run in runs if run.acceptance is not None])
    starts = ntr("1 start", "{n} starts", tried.starts)
    return TrialRow(
        describe_settings(tried.settings, view.baseline),
        tried.value,
        _measured_half_interval(tried),
        accepted=drafts.rate,
        tokens_per_step=drafts.mean_length,
        vram_mib=view.estimate_mib(tried.settings),
        against_off=tried.value / off.value if tried.value and off is not None and off.value else None,
        origin=tr("failed") if tried.error else starts,
        fault=render(tried.error) if tried.error else "",
        best=best,
    )


def _speed_forecasts(view: TuneView) -> tuple[Forecast, ...]:
    return view.forecasts if view.goal.aim is Aim.SPEED else ()


def _step_times(view: TuneView) -> dict[int, tuple[float, float]]:
    """Return milliseconds and tokens per step by draft length, from the trials with the view's other settings."""
    by_draft: dict[int, list[tuple[float, float]]] = {}
    for trial in view.trials:
        if trial.error is None and _matches_other_settings(trial.settings, view):
            for run in trial.runs:
                if run.is_counted and run.steps and run.decode_rate:
                    ms = 1_000 * run.reply_tokens / run.decode_rate / run.steps
                    by_draft.setdefault(draft_length(trial.settings), []).append((ms, run.reply_tokens / run.steps))
    return {
        draft: (math.exp(fmean(math.log(ms) for ms, _ in steps)), fmean(tokens for _, tokens in steps))
        for draft, steps in by_draft.items()
    }


def _matches_other_settings(settings: RunSettings, view: TuneView) -> bool:
    """Return True if settings equal the view's other settings, whatever their draft length."""
    return settings_key(settings) == _key_for_draft(
        _with_mtp_off(view.baseline), view.other_settings, draft_length(settings)
    )


def _key_for_draft(baseline: RunSettings, other_settings: RunSettings, draft: int) -> Key:
    """Return the key of the settings with a draft length. With MTP off, drafting settings stay as in the baseline."""
    drafting = {name for name, row in ROWS.items() if row.drafting}
    used = {name: value for name, value in other_settings.items() if is_drafting(draft) or name not in drafting}
    return settings_key({**baseline, **used, DRAFT: draft})


def _with_mtp_off(baseline: RunSettings) -> dict[str, Any]:
    return {**baseline, DRAFT: 0}


def _measured_half_interval(tried: TriedSettings) -> float | None:
    return _half_interval(tried.low, tried.high) if tried.starts >= _FEWEST_STARTS else None


def _half_interval(low: float | None, high: float | None) -> float | None:
    return None if low is None or high is None else (high - low) / 2
