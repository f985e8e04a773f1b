"""Display data of a tune's trials: rows, curves, parts of a step. Pure functions, called again after each trial.

Rows and curves are in tokens a second for every goal; the verdict's sentence has the goal's own figures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, linear_regression
from typing import Any

from launcher.gui.translation import ntr, render, tr
from launcher.gui.tune.view_data import Curve, Point, StepPart, TrialRow
from launcher.models.server_settings import ROWS
from launcher.monitor.meter import sum_acceptance
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.records import Run, Settings
from launcher.tuning.space import DRAFT, Key, draft_of, settings_key
from launcher.tuning.tune_state import Stage, Trial
from launcher.tuning.verdict import Forecast, TriedSettings, tabulate_trials

_SPEED = Goal()
_FEWEST_STARTS = 3
"""Least number of starts for a meaningful interval: Student's t for two starts reaches 12.7 standard errors to each
side."""


@dataclass(frozen=True, slots=True)
class TuneView:
    """A tune's state, running or finished. `verdict` has the format of Verdict.as_json; `home` is the baseline.

    `forecasts` are for each draft length combined with the other settings in `beside`.
    """

    model: str
    work: str
    goal: Goal
    home: Settings
    trials: tuple[Trial, ...] = ()
    forecasts: tuple[Forecast, ...] = ()
    beside: Settings = field(default_factory=dict)
    verdict: Mapping[str, Any] | None = None
    needs: Callable[[Settings], int | None] = lambda _: None

    @property
    def runs(self) -> list[Run]:
        """All measured replies."""
        return [run for trial in self.trials for run in trial.runs]

    @property
    def seconds(self) -> float:
        """Time spent, in seconds."""
        return sum(trial.seconds for trial in self.trials)


def read_forecasts(verdict: Mapping[str, Any]) -> tuple[Forecast, ...]:
    """Return the forecasts of a stored verdict; empty if it has another version."""
    told = verdict.get("forecasts", ())
    return tuple(Forecast(each["draft"], each["value"], each["low"], each["high"]) for each in told)


def group_trials(runs: Sequence[Run]) -> tuple[Trial, ...]:
    """Group runs of the history into trials.

    Two trials in a row have the same settings only if the first was aborted, and none of its runs counts.
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


def settings_text(settings: Settings, home: Settings) -> str:
    """Return settings in a few words: the draft length, and differences from the baseline."""
    draft = draft_of(settings)
    return " · ".join([tr("draft {draft}", draft=draft) if draft else tr("off"), *_other_differences(settings, home)])


def _other_differences(settings: Settings, home: Settings) -> list[str]:
    """Return differences from the baseline other than the draft length, as text."""
    return [
        tr("sampled drafts") if value == "probabilistic" else f"{name.replace('_', '-')} {value}"
        for name, value in settings.items()
        if name != DRAFT and value != home.get(name)
    ]


def trial_rows(shown: TuneView) -> list[TrialRow]:
    """Return a row for each tried setting and for each draft length that was only predicted."""
    found = {settings_key(each.settings): each for each in tabulate_trials(shown.trials, _SPEED)}
    home = _with_mtp_off(shown.home)
    off = found.get(settings_key(home))
    best = settings_key(shown.verdict["settings"]) if shown.verdict else None
    listed = [_measured_row(shown, each, off, best=settings_key(each.settings) == best) for each in found.values()]
    order = [
        (draft_of(each.settings), list(settings_key(each.settings)) != list(settings_key(home)))
        for each in found.values()
    ]
    for forecast in _speed_forecasts(shown):
        settings = dict(_settings_key(home, shown.beside, forecast.draft))
        if settings_key(settings) not in found:
            ratio = forecast.value / off.value if off is not None and off.value else None
            listed.append(
                TrialRow(
                    settings_text(settings, shown.home),
                    forecast.value,
                    _half_interval(forecast.low, forecast.high),
                    vram_mib=shown.needs(settings),
                    against_off=ratio,
                    how=tr("predicted"),
                    predicted=True,
                )
            )
            order.append((forecast.draft, True))
    return [row for _, row in sorted(zip(order, listed, strict=True), key=lambda pair: pair[0])]


def rate_curves(shown: TuneView) -> tuple[Curve, ...]:
    """Return the speed by draft length, measured where available, else predicted.

    The curve's name has the other settings.
    """
    home = _with_mtp_off(shown.home)
    found = {
        settings_key(each.settings): each for each in tabulate_trials(shown.trials, _SPEED) if each.value is not None
    }
    foreseen = {each.draft: each for each in _speed_forecasts(shown)}
    drafts = sorted({*foreseen, *(draft_of(dict(each)) for each in found if _is_beside(dict(each), shown))})
    points = []
    for draft in drafts:
        words = tr("draft {draft}", draft=draft) if draft else tr("off")
        at = found.get(_settings_key(home, shown.beside, draft))
        if at is not None and at.value is not None:
            spread = _spread(at)
            starts = ntr("1 start", "{n} starts", at.starts) if spread is None else ""
            points.append(Point(words, at.value, spread, starts=starts))
        elif draft in foreseen:
            one = foreseen[draft]
            points.append(Point(words, one.value, _half_interval(one.low, one.high), measured=False))
    name = " · ".join([shown.work, *_other_differences(shown.beside, shown.home)])
    return (Curve(name, "rate", tuple(points)),) if points else ()


def step_parts(shown: TuneView) -> tuple[tuple[StepPart, ...], str, str]:
    """Return the times of a verification step's parts, a line on the step, and a conclusion; empty until known.

    The pass over one token is the step without MTP. The cost of a drafted token is the slope of the line through the
    measured steps of several draft lengths; the rest of this step is the head's fixed cost. If the rest is negative,
    the two are shown together.
    """
    steps = _step_times(shown)
    drafts = sorted(draft for draft in steps if draft)
    if 0 not in steps or len(drafts) < 2:
        return (), "", ""
    bare_ms = steps[0][0]
    slope = linear_regression(drafts, [steps[draft][0] for draft in drafts]).slope
    chosen = draft_of(shown.verdict["settings"]) if shown.verdict else 0
    draft = chosen if chosen in steps and chosen else max(drafts, key=lambda each: steps[each][1] / steps[each][0])
    step_ms, kept = steps[draft]
    over_ms = step_ms - bare_ms
    drafted_ms = slope * draft
    apart = 0 < drafted_ms <= over_ms
    divided = [StepPart(tr("one token, as without MTP"), min(bare_ms, step_ms))]
    if apart:
        verified = ntr("draft and verify 1 token", "draft and verify {n} tokens", draft)
        divided += [StepPart(tr("MTP head, once per step"), over_ms - drafted_ms), StepPart(verified, drafted_ms)]
    elif over_ms > 0:
        divided.append(StepPart(tr("MTP head and drafts together"), over_ms))
    adds = (
        tr("Each drafted token adds {slope:.2f} ms.", slope=slope)
        if apart
        else tr("Time per drafted token: unknown yet.")
    )
    about = tr("draft {draft}, {work}, {ms:.1f} ms per step", draft=draft, work=shown.work, ms=step_ms)
    note = " ".join(
        (
            tr("{kept:.2f} tokens per step.", kept=kept),
            adds,
            tr("With MTP off a token takes {bare:.2f} ms.", bare=bare_ms),
        )
    )
    return tuple(divided), about, note


def machine_text(shown: TuneView) -> str:
    """Return the machine's state during the tune: temperature, clock, discarded replies. Empty without sensors."""
    runs = shown.runs
    said = []
    warm = [run.temperature_c for run in runs if run.temperature_c is not None]
    clocks = [run.clock_mhz for run in runs if run.clock_mhz is not None]
    if warm:
        said.append(tr("{low:.0f} to {high:.0f} °C", low=min(warm), high=max(warm)))
    if clocks:
        said.append(tr("clock {low:,.0f} to {high:,.0f} MHz", low=min(clocks), high=max(clocks)))
    spoilt = [run.spoilt for run in runs if run.spoilt]
    if spoilt:
        counted = ntr("1 reply was repeated", "{n} replies were repeated", len(spoilt))
        said.append(f"{counted}: {render(spoilt[-1])}")
    return " · ".join(said)


def _measured_row(shown: TuneView, each: TriedSettings, off: TriedSettings | None, *, best: bool) -> TrialRow:
    same = [trial for trial in shown.trials if settings_key(trial.settings) == settings_key(each.settings)]
    runs = [run for trial in same for run in trial.runs if run.counts]
    drafts = sum_acceptance([run.acceptance for run in runs if run.acceptance is not None])
    how = ntr("measured, 1 start", "measured, {n} starts", each.starts)
    return TrialRow(
        settings_text(each.settings, shown.home),
        each.value,
        _spread(each),
        accepted=drafts.rate,
        tokens_per_step=drafts.mean_length,
        vram_mib=shown.needs(each.settings),
        against_off=each.value / off.value if each.value and off is not None and off.value else None,
        how=render(each.error) if each.error else how,
        best=best,
    )


def _speed_forecasts(shown: TuneView) -> tuple[Forecast, ...]:
    return shown.forecasts if shown.goal.aim is Aim.SPEED else ()


def _step_times(shown: TuneView) -> dict[int, tuple[float, float]]:
    """Return milliseconds and tokens per step by draft length, for the shown other settings."""
    found: dict[int, list[tuple[float, float]]] = {}
    for trial in shown.trials:
        if trial.error is None and _is_beside(trial.settings, shown):
            for run in trial.runs:
                if run.counts and run.steps and run.decode_rate:
                    ms = 1_000 * run.reply_tokens / run.decode_rate / run.steps
                    found.setdefault(draft_of(trial.settings), []).append((ms, run.reply_tokens / run.steps))
    return {
        draft: (math.exp(fmean(math.log(ms) for ms, _ in each)), fmean(kept for _, kept in each))
        for draft, each in found.items()
    }


def _is_beside(settings: Settings, shown: TuneView) -> bool:
    return settings_key(settings) == _settings_key(_with_mtp_off(shown.home), shown.beside, draft_of(settings))


def _settings_key(home: Settings, beside: Settings, draft: int) -> Key:
    """Return the settings for a draft length. With MTP off, drafting settings stay as in the baseline."""
    drafting = {name for name, row in ROWS.items() if row.drafting}
    others = beside if draft else {name: value for name, value in beside.items() if name not in drafting}
    return settings_key({**home, **others, DRAFT: draft})


def _with_mtp_off(home: Settings) -> dict[str, Any]:
    return {**home, DRAFT: 0}


def _spread(each: TriedSettings) -> float | None:
    return _half_interval(each.low, each.high) if each.starts >= _FEWEST_STARTS else None


def _half_interval(low: float | None, high: float | None) -> float | None:
    return None if low is None or high is None else (high - low) / 2
