"""From a tune's trials to what the page shows: rows, curves, the parts of a step. Pure, and made anew at each trial.

Rows and curves are in tokens a second, whatever the goal is: the verdict's sentence has the goal's own figures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, linear_regression
from typing import Any

from launcher.bench import DRAFTING
from launcher.gui.sentences import say
from launcher.gui.tune.told import Curve, Part, Point, TrialRow
from launcher.gui.words import ntr, tr
from launcher.monitor.meter import total
from launcher.tuning.goal import Aim, Goal
from launcher.tuning.records import Run, Settings
from launcher.tuning.space import DRAFT, Key, draft_of, key
from launcher.tuning.tuner_state import Stage, Trial
from launcher.tuning.verdict import Forecast, Tried, tried

_SPEED = Goal()
_FEWEST = 3
"""Starts from which an interval means something: Student's t over two reaches 12.7 standard errors to each side."""


@dataclass(frozen=True, slots=True)
class TuneShown:
    """What is known of a tune, running or ended. `verdict` is as Verdict.as_json has it; `home` is the baseline.

    `forecasts` are of every draft length beside the other settings of `beside`.
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
        """Every reply that was measured."""
        return [run for trial in self.trials for run in trial.runs]

    @property
    def seconds(self) -> float:
        """The time that was spent."""
        return sum(trial.seconds for trial in self.trials)


def forecasts_of(verdict: Mapping[str, Any]) -> tuple[Forecast, ...]:
    """Return what a kept verdict foresees; nothing when it is of another version."""
    told = verdict.get("forecasts", ())
    return tuple(Forecast(each["draft"], each["value"], each["low"], each["high"]) for each in told)


def trials_of(runs: Sequence[Run]) -> tuple[Trial, ...]:
    """Return the trials that runs of the history came from; two in a row with the same settings are taken for one."""
    groups: list[list[Run]] = []
    for run in runs:
        if not groups or key(groups[-1][0].settings) != key(run.settings):
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


def setting_words(settings: Settings, home: Settings) -> str:
    """Return settings in a few words: the draft length, and what else is not as in the baseline."""
    draft = draft_of(settings)
    return " · ".join([tr("draft {draft}", draft=draft) if draft else tr("off"), *_others(settings, home)])


def _others(settings: Settings, home: Settings) -> list[str]:
    """Return what beside the draft length is not as in the baseline, in words."""
    return [
        tr("sampled drafts") if value == "probabilistic" else f"{name.replace('_', '-')} {value}"
        for name, value in settings.items()
        if name != DRAFT and value != home.get(name)
    ]


def rows(shown: TuneShown) -> list[TrialRow]:
    """Return a row for each setting that was tried, and for each draft length that was only predicted."""
    found = {key(each.settings): each for each in tried(shown.trials, _SPEED)}
    home = _complete(shown.home)
    off = found.get(key(home))
    best = key(shown.verdict["settings"]) if shown.verdict else None
    listed = [_measured(shown, each, off, best=key(each.settings) == best) for each in found.values()]
    order = [(draft_of(each.settings), list(key(each.settings)) != list(key(home))) for each in found.values()]
    for forecast in _foreseen(shown):
        settings = dict(_place(home, shown.beside, forecast.draft))
        if key(settings) not in found:
            ratio = forecast.value / off.value if off is not None and off.value else None
            listed.append(
                TrialRow(
                    setting_words(settings, shown.home),
                    forecast.value,
                    _half(forecast.low, forecast.high),
                    vram_mib=shown.needs(settings),
                    against_off=ratio,
                    how=tr("predicted"),
                    predicted=True,
                )
            )
            order.append((forecast.draft, True))
    return [row for _, row in sorted(zip(order, listed, strict=True), key=lambda pair: pair[0])]


def curves(shown: TuneShown) -> tuple[Curve, ...]:
    """Return the speed by draft length: measured where it was, else predicted. Its name says beside which settings."""
    home = _complete(shown.home)
    found = {key(each.settings): each for each in tried(shown.trials, _SPEED) if each.value is not None}
    foreseen = {each.draft: each for each in _foreseen(shown)}
    drafts = sorted({*foreseen, *(draft_of(dict(each)) for each in found if _is_beside(dict(each), shown))})
    points = []
    for draft in drafts:
        words = tr("draft {draft}", draft=draft) if draft else tr("off")
        at = found.get(_place(home, shown.beside, draft))
        if at is not None and at.value is not None:
            spread = _spread(at)
            starts = ntr("1 start", "{n} starts", at.starts) if spread is None else ""
            points.append(Point(words, at.value, spread, starts=starts))
        elif draft in foreseen:
            one = foreseen[draft]
            points.append(Point(words, one.value, _half(one.low, one.high), measured=False))
    name = " · ".join([shown.work, *_others(shown.beside, shown.home)])
    return (Curve(name, "rate", tuple(points)),) if points else ()


def parts(shown: TuneShown) -> tuple[tuple[Part, ...], str, str]:
    """Return where a verification step's time goes, what step that is, and what follows; nothing until it is known.

    What a pass over one token takes is the step without MTP. What a drafted token adds is the slope of the line through
    the measured steps of several draft lengths, and what is left of this step the head adds once. Where that leaves
    less than nothing, they are told together.
    """
    steps = _steps(shown)
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
    divided = [Part(tr("one token, as without MTP"), min(bare_ms, step_ms))]
    if apart:
        verified = ntr("draft and verify 1 token", "draft and verify {n} tokens", draft)
        divided += [Part(tr("the MTP head, once"), over_ms - drafted_ms), Part(verified, drafted_ms)]
    elif over_ms > 0:
        divided.append(Part(tr("the MTP head and drafts, together"), over_ms))
    adds = (
        tr("A drafted token adds {slope:.2f} ms.", slope=slope)
        if apart
        else tr("What a drafted token adds is not known yet.")
    )
    about = tr("draft {draft}, {work}, {ms:.1f} ms per step", draft=draft, work=shown.work, ms=step_ms)
    note = " ".join(
        (
            tr("{kept:.2f} tokens kept per step.", kept=kept),
            adds,
            tr("Without MTP a token takes {bare:.2f} ms.", bare=bare_ms),
        )
    )
    return tuple(divided), about, note


def during(shown: TuneShown) -> str:
    """Return what the machine did meanwhile: temperature, clock, replies that were spoilt. Empty without any sensor."""
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
        counted = ntr("1 reply was asked again", "{n} replies were asked again", len(spoilt))
        said.append(f"{counted}: {say(spoilt[-1])}")
    return " · ".join(said)


def _measured(shown: TuneShown, each: Tried, off: Tried | None, *, best: bool) -> TrialRow:
    same = [trial for trial in shown.trials if key(trial.settings) == key(each.settings)]
    runs = [run for trial in same for run in trial.runs if run.counts]
    drafts = total([run.acceptance for run in runs if run.acceptance is not None])
    how = ntr("measured, 1 start", "measured, {n} starts", each.starts)
    return TrialRow(
        setting_words(each.settings, shown.home),
        each.value,
        _spread(each),
        accepted=drafts.rate,
        tokens_per_step=drafts.mean_length,
        vram_mib=shown.needs(each.settings),
        against_off=each.value / off.value if each.value and off is not None and off.value else None,
        how=say(each.error) if each.error else how,
        best=best,
    )


def _foreseen(shown: TuneShown) -> tuple[Forecast, ...]:
    return shown.forecasts if shown.goal.aim is Aim.SPEED else ()


def _steps(shown: TuneShown) -> dict[int, tuple[float, float]]:
    """Return milliseconds and tokens of a step by draft length, the other settings being those that are shown."""
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


def _is_beside(settings: Settings, shown: TuneShown) -> bool:
    return key(settings) == _place(_complete(shown.home), shown.beside, draft_of(settings))


def _place(home: Settings, beside: Settings, draft: int) -> Key:
    """Return the settings of a draft length: with MTP off, what is about drafts stays as in the baseline."""
    others = beside if draft else {name: value for name, value in beside.items() if name not in DRAFTING}
    return key({**home, **others, DRAFT: draft})


def _complete(home: Settings) -> dict[str, Any]:
    return {**home, DRAFT: 0}


def _spread(each: Tried) -> float | None:
    return _half(each.low, each.high) if each.starts >= _FEWEST else None


def _half(low: float | None, high: float | None) -> float | None:
    return None if low is None or high is None else (high - low) / 2
