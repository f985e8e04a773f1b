"""Speed curves: speed over the filled context, over the context's size, or over the number of parallel streams."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean
from typing import ClassVar

from launcher.base.codec import JsonView
from launcher.base.errors import LauncherError, Superseded
from launcher.base.messages import Message, as_message, enumerate_texts, fill_template, join_messages, mark, message
from launcher.models.drafters import choice_in
from launcher.monitor.meter import Acceptance, sum_acceptance
from launcher.tuning.goal import describe_speed_change
from launcher.tuning.measuring_loop import REPEATS, after_rounds, order_of_round, serve_settings, visit_rounds
from launcher.tuning.records import Bench, Prompt, Run, RunSettings
from launcher.tuning.space import DRAFT
from launcher.tuning.statistics import Interval, Pair, mean_of_known, paired_speedup, rate_interval

# A place is a value on the curve's axis: a number of tokens in the context, a context size, or a number of streams.

PromptsAt = Callable[[int], Awaitable[Sequence[Prompt]]]
"""Returns the prompts to send at the same time at a place. It may use the running server to count tokens."""


@dataclass(frozen=True, slots=True)
class CurveStart:
    """Server settings of one start, the name of their series, and the places to measure with them."""

    series: str
    settings: RunSettings
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RoundPoint:
    """One series at one place in one round: the replies that were requested at the same time.

    `number` counts the points in the order of measurement. `span_s` is the time in seconds from the first request to
    the last end. `discarded` holds disturbed replies that were repeated. `error` is the reason if there are no replies.
    """

    number: int
    round: int
    series: str
    place: int
    runs: tuple[Run, ...] = ()
    span_s: float = 0.0
    discarded: tuple[Run, ...] = ()
    error: str | None = None

    @property
    def is_counted(self) -> bool:
        """Whether the point is usable: no error, and no reply failed or was disturbed."""
        return self.error is None and bool(self.runs) and all(run.is_counted for run in self.runs)


@dataclass(frozen=True, slots=True)
class CurveProgress:
    """The point that is about to be measured, and the estimated seconds left (None if unknown)."""

    done: int
    total: int
    series: str
    place: int
    left_s: float | None


OnRoundPoint = Callable[[RoundPoint], None]
OnCurveProgress = Callable[[CurveProgress], None]


@dataclass(slots=True)
class _StartTimes:
    """A start, and the seconds that starting the server and measuring its points took so far.

    `failed` is the reason why its settings cannot be served, and `failed_in` the round that revealed it.
    """

    start: CurveStart
    points_left: int
    starts: list[float] = field(default_factory=list)
    points: list[float] = field(default_factory=list)
    failed: str | None = None
    failed_in: int | None = None


@dataclass(slots=True)
class _CurveMeasurement:
    bench: Bench
    starts: Sequence[_StartTimes]
    prompts_at: PromptsAt
    warm_up: Prompt
    rounds: int
    on_point: OnRoundPoint
    on_step: OnCurveProgress
    seed: int
    number: int = 0

    async def measure_start(self, times: _StartTimes, number: int) -> None:
        """Serve a start's settings and measure its places, in the direction of round `number`.

        If the server ended meanwhile, it is started again before the next place.
        """
        start, round_index = times.start, number - 1
        for index, place in enumerate(order_of_round(start.places, number)):
            if times.failed is None:
                self._report_progress(start, place)
                spent_s = await self._serve_start(times, round_index)
                if not index:
                    times.starts.append(spent_s)
            if times.failed is not None:
                if times.failed_in in (None, round_index):
                    times.failed_in = round_index
                    self._record_point(RoundPoint(self.number, round_index, start.series, place, error=times.failed))
                continue
            self._report_progress(start, place)
            began_s = self.bench.now_s()
            self._record_point(await self._measure_point(start, place, round_index))
            times.points.append(self.bench.now_s() - began_s)
            times.points_left -= 1

    async def _serve_start(self, times: _StartTimes, round_index: int) -> float:
        """Serve a start's settings unless they are already in use, and return the seconds that took.

        A failure is recorded in `times`.
        """
        began_s = self.bench.now_s()
        try:
            await serve_settings(self.bench, times.start.settings, self.warm_up, self.seed + round_index)
        except Superseded:
            raise
        except LauncherError as error:
            times.failed, times.points_left = error.title, 0
        return self.bench.now_s() - began_s

    async def _measure_point(self, start: CurveStart, place: int, round_index: int) -> RoundPoint:
        discarded: tuple[Run, ...] = ()
        try:
            prompts = await self.prompts_at(place)
        except Superseded:
            raise
        except LauncherError as error:
            return RoundPoint(self.number, round_index, start.series, place, error=error.title)
        first_seed = self.seed + round_index
        for repeats_left in reversed(range(1 + REPEATS)):
            requests = [self.bench.run(prompt, seed=first_seed + index) for index, prompt in enumerate(prompts)]
            runs = tuple(await asyncio.gather(*requests))
            span_s = max(run.began_s + run.wall_s for run in runs) - min(run.began_s for run in runs)
            if not repeats_left or not any(run.spoilt for run in runs):
                break
            discarded += runs
        failure = next((run.error for run in runs if run.error is not None), None)
        return RoundPoint(self.number, round_index, start.series, place, runs, span_s, discarded, failure)

    def _record_point(self, point: RoundPoint) -> None:
        self.number += 1
        self.on_point(point)

    def _report_progress(self, start: CurveStart, place: int) -> None:
        left = sum(times.points_left for times in self.starts)
        self.on_step(CurveProgress(self.number, self.number + left, start.series, place, self._left_s()))

    def _left_s(self) -> float | None:
        """Return the estimated seconds left, from earlier starts and points. None until each was measured once."""
        seconds = 0.0
        for times in self.starts:
            if times.failed is not None:
                continue
            if len(times.points) < len(times.start.places):
                return None
            seconds += fmean(times.starts) * (self.rounds - len(times.starts))
            seconds += fmean(times.points) * times.points_left
        return seconds


async def measure_curve(
    bench: Bench,
    starts: Sequence[CurveStart],
    prompts_at: PromptsAt,
    warm_up: Prompt,
    *,
    rounds: int,
    on_point: OnRoundPoint,
    on_step: OnCurveProgress = lambda _: None,
    seed: int = 0,
) -> None:
    """Measure every place of every start once a round. Every second round goes backwards.

    After each start `warm_up` is sent with a short reply, which is discarded. Disturbed points are repeated, twice at
    most. All series of a round use the same seeds. Settings that cannot be served are reported as failed points and not
    tried again. `on_point` gets each point as soon as it is measured, so that nothing is lost on cancellation. Raises
    Superseded when another operation takes the server.
    """
    timed_starts = [_StartTimes(start, rounds * len(start.places)) for start in starts]
    curve = _CurveMeasurement(bench, timed_starts, prompts_at, warm_up, rounds, on_point, on_step, seed)
    for number, times in visit_rounds(timed_starts, after_rounds(rounds)):
        await curve.measure_start(times, number)


NO_MTP = mark("no MTP")
"""Name of the series without MTP."""
PUBLISHED_FILLS = (0, 10_000, 40_000, 55_000, 80_000, 120_000, 200_000)
"""Default tokens in the context before the reply: those of the published curve, and two larger ones."""
_SPARE_TOKENS = 64
"""Tokens of the context that stay free, because an engine stops a little before its end."""


class CurveAxis(StrEnum):
    """Axis of a curve: filled context, context size, or parallel streams."""

    FILL = "fill"
    CONTEXT = "context"
    STREAMS = "streams"


def make_start(settings: RunSettings, places: Sequence[int]) -> CurveStart:
    """Return a start of the series with the drafts in `settings`."""
    return CurveStart(f"{choice_in(settings).label(off=NO_MTP)}", settings, tuple(places))


def default_fills(context: int, reply_tokens: int) -> tuple[int, ...]:
    """Return the published fills that fit into a context, or quarters of a context in which fewer than four fit."""
    most = context - reply_tokens - _SPARE_TOKENS
    fits = tuple(fill for fill in PUBLISHED_FILLS if fill <= most)
    return fits if len(fits) >= 4 else tuple(max(0, most) * quarter // 4 for quarter in range(5))


def context_for_fill(fill: int, reply_tokens: int) -> int:
    """Return the smallest context for a fill and a reply, rounded up to 256 tokens as engines do."""
    return -(-(fill + reply_tokens + _SPARE_TOKENS) // 256) * 256


def fill_starts(
    settings: RunSettings, drafts: Sequence[int], fills: Sequence[int], reply_tokens: int
) -> tuple[tuple[CurveStart, ...], tuple[RoundPoint, ...]]:
    """Return the starts of a fill curve, and a failed point for each fill that exceeds the context of `settings`."""
    context = int(settings["ctx"] or 0)
    fits = tuple(fill for fill in fills if context_for_fill(fill, reply_tokens) <= context or fill == 0)
    why = message("It does not fit into a context of {context:,} tokens.", context=context)
    starts = tuple(make_start({**settings, DRAFT: draft}, fits) for draft in drafts)
    gaps = (RoundPoint(-1, 0, start.series, fill, error=why) for start in starts for fill in fills if fill not in fits)
    return starts, tuple(gaps)


def context_starts(settings: RunSettings, drafts: Sequence[int], contexts: Sequence[int]) -> tuple[CurveStart, ...]:
    """Return the starts of a sweep over the context size. The context is allocated but hardly filled."""
    return tuple(
        make_start({**settings, DRAFT: draft, "ctx": context}, (context,)) for context in contexts for draft in drafts
    )


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Measured values of one series at one place. Rates are in tokens/s, intervals over rounds; None is unknown.

    `rate` is the decode rate; with several streams, the total from the first request to the end of the last reply,
    while `rate_per_stream` is the mean rate of one stream by the engine's timings. `tokens` is the number of tokens in
    the context when a reply began, None if it differed between replies. `why` is the reason if there is no rate.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "series at=place context_tokens=tokens tokens_per_second=rate tokens_per_second_each=rate_per_stream "
        "prefill_per_second=prefill first_token_s acceptance=acceptance.rate "
        "acceptance_by_position=acceptance.rates_by_position power_w replies spoilt why"
    )
    series: str
    place: int
    tokens: int | None
    rate: Interval | None
    rate_per_stream: float | None
    prefill: float | None
    first_token_s: float | None
    acceptance: Acceptance | None
    power_w: float | None
    replies: int
    spoilt: int
    why: str | None


@dataclass(frozen=True, slots=True)
class CurveRatio:
    """Speed ratio of a series at a place: to the first series there, or to the same series at its first place.

    Each round gives one pair of the comparison.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "series at=place estimate=interval.estimate n=interval.n low high=interval.high"
    )
    series: str
    place: int
    interval: Interval

    @property
    def low(self) -> float | None:
        """The lower limit, None from a single round: it would be exp(-inf), a misleading 0."""
        return None if self.interval.n < 2 else self.interval.low

    @property
    def is_faster(self) -> bool | None:
        """Whether it is faster: True or False with 95 % confidence, None when undecided."""
        if self.interval.low > 1:
            return True
        return False if self.interval.high < 1 else None


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve with its series in order; the first series is the baseline of `ratios`.

    `trends` compares the last place of each series with its first one, among the places that have a rate.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView("axis series points ratios along=trends")
    axis: CurveAxis
    series: tuple[str, ...]
    places: tuple[int, ...]
    points: tuple[CurvePoint, ...]
    ratios: tuple[CurveRatio, ...]
    trends: tuple[CurveRatio, ...]

    def point_at(self, series: str, place: int) -> CurvePoint | None:
        """Return the point of a series at a place. None if there is none."""
        return next((each for each in self.points if (each.series, each.place) == (series, place)), None)

    def ratio_at(self, series: str, place: int) -> CurveRatio | None:
        """Return the ratio of a series at a place. None if there is none."""
        return next((each for each in self.ratios if (each.series, each.place) == (series, place)), None)


def build_curve(axis: CurveAxis, measured: Sequence[RoundPoint]) -> Curve:
    """Return the curve of the points measured so far. Series keep the order of their first appearance."""
    ordered = sorted(measured, key=lambda each: (each.round, each.number))
    series = tuple(dict.fromkeys(each.series for each in ordered))
    places = tuple(sorted({each.place for each in measured}))
    by_point = {
        (name, place): [each for each in measured if (each.series, each.place) == (name, place)]
        for name in series
        for place in places
    }
    points = [_summarize_point(axis, rounds, name, place) for (name, place), rounds in by_point.items() if rounds]
    ratios = [
        _compare_rounds(axis, name, place, by_point[series[0], place], by_point[name, place])
        for place in places
        for name in series[1:]
    ]
    trends = []
    for name in series:
        known = [point.place for point in points if point.series == name and point.rate is not None]
        if len(known) > 1:
            first, last = by_point[name, min(known)], by_point[name, max(known)]
            trends.append(_compare_rounds(axis, name, max(known), first, last))
    return Curve(axis, series, places, tuple(points), _without_none(ratios), _without_none(trends))


def rate_of_point(axis: CurveAxis, point: RoundPoint) -> float | None:
    """Return the rate of a point in one round, in tokens/s. None when it does not count."""
    if not point.is_counted:
        return None
    if axis is CurveAxis.STREAMS:
        return sum(run.reply_tokens for run in point.runs) / point.span_s if point.span_s else None
    return fmean(run.decode_rate or 0.0 for run in point.runs)


def _compare_rounds(
    axis: CurveAxis, series: str, place: int, base: Sequence[RoundPoint], other: Sequence[RoundPoint]
) -> CurveRatio | None:
    """Return the speed ratio of `other` to `base` over the rounds in which both have a rate. None without any."""
    base_by_round = {each.round: each for each in base}
    pairs = []
    for each in other:
        partner = base_by_round.get(each.round)
        if partner is None:
            continue
        base_rate, rate = rate_of_point(axis, partner), rate_of_point(axis, each)
        if base_rate and rate:
            pairs.append(Pair(base_rate, rate, partner.number < each.number))
    return CurveRatio(series, place, paired_speedup(pairs)) if pairs else None


def _without_none(ratios: Sequence[CurveRatio | None]) -> tuple[CurveRatio, ...]:
    return tuple(each for each in ratios if each is not None)


def _summarize_point(axis: CurveAxis, measured: Sequence[RoundPoint], series: str, place: int) -> CurvePoint:
    """Return the values of one point over all its rounds."""
    rates = [rate for each in measured if (rate := rate_of_point(axis, each)) is not None]
    runs = [run for each in measured if each.is_counted for run in each.runs]
    spoilt = sum(run.spoilt is not None for each in measured for run in (*each.discarded, *each.runs))
    acceptance = [run.acceptance for run in runs if run.acceptance is not None]
    errors = [each.error for each in measured if each.error]
    errors += [run.spoilt for each in measured for run in each.runs if run.spoilt]
    why = errors[0] if errors else message("The replies were too short to be measured.")
    return CurvePoint(
        series=series,
        place=place,
        tokens=_common_value([run.prompt_tokens + run.cached_tokens for run in runs]),
        rate=rate_interval(rates) if rates else None,
        rate_per_stream=mean_of_known([run.decode_rate for run in runs]),
        prefill=mean_of_known([run.prefill_rate for run in runs]),
        first_token_s=mean_of_known([run.first_token_s for run in runs]),
        acceptance=sum_acceptance(acceptance) if acceptance else None,
        power_w=mean_of_known([run.power_w for run in runs]),
        replies=len(runs),
        spoilt=spoilt,
        why=None if rates else why,
    )


def _common_value(values: Sequence[int]) -> int | None:
    """Return the value that all have in common. None if they differ."""
    return values[0] if values and len(set(values)) == 1 else None


def list_runs(measured: Sequence[RoundPoint]) -> list[Run]:
    """Return all runs in order, including disturbed ones."""
    return [run for each in measured for run in (*each.discarded, *each.runs)]


# Summary of a curve in a few sentences.

_AT_PLACES = {
    CurveAxis.FILL: mark("with {places} tokens in the context"),
    CurveAxis.CONTEXT: mark("with a context of {places}"),
    CurveAxis.STREAMS: mark("with {places} streams"),
}
_AT_ONE_STREAM = message("with 1 stream")
_AT_EVERY_PLACE = {
    CurveAxis.FILL: message("at every fill"),
    CurveAxis.CONTEXT: message("at every context"),
    CurveAxis.STREAMS: message("at any number of streams"),
}
_OVER_RANGE = {
    CurveAxis.FILL: mark("from {there} to {here} tokens"),
    CurveAxis.CONTEXT: mark("from a context of {there} to one of {here}"),
    CurveAxis.STREAMS: mark("from {there} to {here} streams"),
}
_COMPARED = {
    True: mark("faster than {base} {where}[ ({figures})][: {listed}]"),
    False: mark("slower than {base} {where}[ ({figures})][: {listed}]"),
    None: mark("not distinguishable from {base} {where}[ ({figures})][: {listed}]"),
}
_WIDEST = 1.5
"""Largest ratio of an interval's upper end to its lower end at which the estimate is reported."""


def summarize_curve(curve: Curve) -> list[str]:
    """Return sentences about a curve: MTP against none at each place, then each series from first to last place.

    Only differences with 95 % confidence are called faster or slower.
    """
    sentences = [_comparison_sentence(curve, name) for name in curve.series[1:]]
    sentences += [_trend_sentence(curve, each) for each in curve.trends]
    return [each for each in sentences if each]


def _comparison_sentence(curve: Curve, name: str) -> str:
    """Return how a series compares with the first one: places where it is faster, slower, or not distinguishable."""
    ratios = [each for each in curve.ratios if each.series == name]
    if not ratios:
        return ""
    clauses = []
    for is_faster, template in _COMPARED.items():
        matching = [each for each in ratios if each.is_faster is is_faster]
        if not matching:
            continue
        facts: dict[str, str] = {"base": as_message(curve.series[0])}
        if len(matching) == len(ratios) > 1:
            facts |= {"where": _AT_EVERY_PLACE[curve.axis], "listed": _ratio_list(matching)}
        else:
            figures = join_messages(*map(_ratio_text, matching), separator=", ")
            facts |= {"where": _places_text(curve, [each.place for each in matching]), "figures": figures}
        clauses.append(fill_template(template, facts))
    return message(
        "{subject} is {clauses}.", subject=_capitalized(name), clauses=join_messages(*clauses, separator="; ")
    )


def _trend_sentence(curve: Curve, ratio: CurveRatio) -> str:
    """Return how the speed of a series changes from its first place to its last."""
    first = next(each for each in curve.points if each.series == ratio.series and each.rate is not None)
    here, there = f"{ratio.place:,}", f"{first.place:,}"
    low, high = ratio.interval.low, ratio.interval.high
    if high > _WIDEST * low:
        what = fill_template(_OVER_RANGE[curve.axis], {"there": there, "here": here})
        return message(
            "{series}: its speed {what} is too uncertain. Use more --rounds.",
            series=_capitalized(ratio.series),
            what=what,
        )
    uncertainty: Message | str = ""
    if ratio.is_faster is None:
        uncertainty = message(
            " (no difference is shown: {low:+.0f} to {high:+.0f} %)", low=100 * (low - 1), high=100 * (high - 1)
        )
    times = ratio.interval.estimate
    match curve.axis:
        case CurveAxis.FILL:
            return message(
                "{series} keeps {times:.0f} % of its speed from {there} to {here} tokens{open}.",
                series=_capitalized(ratio.series),
                times=100 * times,
                there=there,
                here=here,
                open=uncertainty,
            )
        case CurveAxis.CONTEXT:
            change = describe_speed_change(times)
            return message(
                "{series}: a context of {here} is {change} than one of {there}{open}.",
                series=_capitalized(ratio.series),
                here=here,
                change=change,
                there=there,
                open=uncertainty,
            )
        case CurveAxis.STREAMS:
            one = message("one") if first.place == 1 else there
            return message(
                "{series}: {here} streams together are {times:.2f} times as fast as {one}{open}.",
                series=_capitalized(ratio.series),
                here=here,
                times=times,
                one=one,
                open=uncertainty,
            )


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def _places_text(curve: Curve, places: Sequence[int]) -> Message:
    if curve.axis is CurveAxis.STREAMS and list(places) == [1]:
        return _AT_ONE_STREAM
    return fill_template(_AT_PLACES[curve.axis], {"places": enumerate_texts([f"{place:,}" for place in places])})


def _ratio_list(ratios: Sequence[CurveRatio]) -> Message:
    listed = (
        message("{times:.2f} times at {place:,}", times=each.interval.estimate, place=each.place) for each in ratios
    )
    return join_messages(*listed, separator=", ")


def _ratio_text(ratio: CurveRatio) -> Message:
    return message("{times:.2f} times", times=ratio.interval.estimate)


# Parallel streams: throughput of all together, and speed of each.


def stream_starts(settings: RunSettings, drafts: Sequence[int], streams: Sequence[int]) -> tuple[CurveStart, ...]:
    """Return the starts of a sweep over streams. All places use one server, with a slot for each of the most streams.

    So places differ only in load, and not in the memory of their slots.
    """
    slots = max(streams)
    return tuple(make_start({**settings, "slots": slots, DRAFT: draft}, streams) for draft in drafts)


def prompts_for_streams(prompts: Sequence[Prompt]) -> PromptsAt:
    """Return a function that makes the prompts for a number of streams, taking `prompts` in turn.

    A stream that ends early would leave more of the GPU to the others, so `ignore_eos` makes all replies equally long.
    """

    async def prompts_at(streams: int) -> Sequence[Prompt]:
        chosen = [prompts[number % len(prompts)] for number in range(streams)]
        return [
            replace(prompt, name=f"{prompt.name} {number}", sampling={**prompt.sampling, "ignore_eos": True})
            for number, prompt in enumerate(chosen, 1)
        ]

    return prompts_at
