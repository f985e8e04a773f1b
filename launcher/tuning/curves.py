"""Speed over an axis: how full the context is, how large it is, how many streams are served at once."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from launcher.monitor.meter import Acceptance, total
from launcher.tuning.curves_rounds import Start, Taken
from launcher.tuning.records import Run, Settings
from launcher.tuning.space import DRAFT
from launcher.tuning.statistics import Interval, Pair, paired_speedup, rate_interval

OFF = "no MTP"
"""The series without MTP."""
PUBLISHED_FILLS = (0, 10_000, 40_000, 55_000, 80_000, 120_000, 200_000)
"""Tokens in the context before the reply: the places of the published curve, and two beyond its end."""
_SPARE = 64
"""Tokens of the context that are left free: an engine stops a little before its end."""


class Axis(StrEnum):
    """What a curve goes over."""

    FILL = "fill"
    CONTEXT = "context"
    STREAMS = "streams"


def series_of(draft: int) -> str:
    """Return the name of the series with a draft length."""
    return f"draft {draft}" if draft else OFF


def fills_for(context: int, reply_tokens: int) -> tuple[int, ...]:
    """Return the places of a fill curve that has room in a context: those published, or quarters of a small one."""
    most = context - reply_tokens - _SPARE
    fits = tuple(fill for fill in PUBLISHED_FILLS if fill <= most)
    return fits if len(fits) >= 4 else tuple(max(0, most) * quarter // 4 for quarter in range(5))


def context_for(fill: int, reply_tokens: int) -> int:
    """Return the least context for a fill and a reply, in whole steps of 256 tokens, by which engines round."""
    return -(-(fill + reply_tokens + _SPARE) // 256) * 256


def fill_starts(
    settings: Settings, drafts: Sequence[int], fills: Sequence[int], reply_tokens: int
) -> tuple[tuple[Start, ...], tuple[Taken, ...]]:
    """Return the starts of a fill curve, and what has no room in the context of `settings`, with the reason."""
    context = int(settings["ctx"] or 0)
    fits = tuple(fill for fill in fills if context_for(fill, reply_tokens) <= context or fill == 0)
    why = f"It does not fit into the context of {context:,} tokens."
    starts = tuple(Start(series_of(draft), {**settings, DRAFT: draft}, fits) for draft in drafts)
    gaps = [Taken(-1, 0, series_of(draft), fill, error=why) for draft in drafts for fill in fills if fill not in fits]
    return starts, tuple(gaps)


def context_starts(settings: Settings, drafts: Sequence[int], contexts: Sequence[int]) -> tuple[Start, ...]:
    """Return the starts of a sweep over the context's size; it is allocated, and hardly filled."""
    return tuple(
        Start(series_of(draft), {**settings, DRAFT: draft, "ctx": context}, (context,))
        for context in contexts
        for draft in drafts
    )


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one place for one series. Rates are tokens/s, intervals over rounds; unknown is None.

    `rate` is of writing; with several streams it is that of all together, from the first request to the last reply's
    end, and `each` that of one of them as the engine tells it. `tokens` is how many were in the context when a reply
    began, None where that differed. `why` says why there is no rate.
    """

    series: str
    place: int
    tokens: int | None
    rate: Interval | None
    each: float | None
    prefill: float | None
    first_token_s: float | None
    acceptance: Acceptance | None
    power_w: float | None
    replies: int
    spoilt: int
    why: str | None

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "series": self.series,
            "at": self.place,
            "context_tokens": self.tokens,
            "tokens_per_second": self.rate.as_json() if self.rate else None,
            "tokens_per_second_each": self.each,
            "prefill_per_second": self.prefill,
            "first_token_s": self.first_token_s,
            "acceptance": self.acceptance.rate if self.acceptance else None,
            "acceptance_by_position": list(self.acceptance.rates_by_position) if self.acceptance else None,
            "power_w": self.power_w,
            "replies": self.replies,
            "spoilt": self.spoilt,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast a series is at a place: as the first series there, or as itself at its first place.

    Rounds are the pairs.
    """

    series: str
    place: int
    interval: Interval

    @property
    def clear(self) -> bool | None:
        """Whether it is faster: True or False with 95 % confidence, None when that stays open."""
        return True if self.interval.low > 1 else False if self.interval.high < 1 else None


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve: its series in their order, the first being what the others are compared with.

    `along` compares each series' last place that has a rate with its first one.
    """

    axis: Axis
    series: tuple[str, ...]
    places: tuple[int, ...]
    points: tuple[Point, ...]
    ratios: tuple[Ratio, ...]
    along: tuple[Ratio, ...]

    def point(self, series: str, place: int) -> Point | None:
        """Return the point of a series at a place."""
        return next((each for each in self.points if (each.series, each.place) == (series, place)), None)

    def ratio(self, series: str, place: int) -> Ratio | None:
        """Return the comparison of a series at a place."""
        return next((each for each in self.ratios if (each.series, each.place) == (series, place)), None)

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "axis": self.axis.value,
            "series": list(self.series),
            "points": [point.as_json() for point in self.points],
            "ratios": [_ratio_json(each) for each in self.ratios],
            "along": [_ratio_json(each) for each in self.along],
        }


def curve_of(axis: Axis, taken: Sequence[Taken]) -> Curve:
    """Return the curve of what was taken so far; series stand in the order in which they were first met."""
    series = tuple(dict.fromkeys(each.series for each in sorted(taken, key=lambda t: (t.round, t.number))))
    places = tuple(sorted({each.place for each in taken}))
    by_point = {
        (name, place): [t for t in taken if (t.series, t.place) == (name, place)] for name in series for place in places
    }
    points = [_point(axis, some, name, place) for (name, place), some in by_point.items() if some]
    ratios = [
        _ratio(axis, name, place, by_point[series[0], place], by_point[name, place])
        for place in places
        for name in series[1:]
    ]
    along = []
    for name in series:
        known = [point.place for point in points if point.series == name and point.rate is not None]
        if len(known) > 1:
            along.append(_ratio(axis, name, max(known), by_point[name, min(known)], by_point[name, max(known)]))
    return Curve(axis, series, places, tuple(points), _known(ratios), _known(along))


def rate_of(axis: Axis, taken: Taken) -> float | None:
    """Return the rate that a point has in one round; None when it does not count."""
    if not taken.counts:
        return None
    if axis is Axis.STREAMS:
        return sum(run.reply_tokens for run in taken.runs) / taken.span_s if taken.span_s else None
    return statistics.fmean(run.decode_rate or 0.0 for run in taken.runs)


def _ratio(axis: Axis, series: str, place: int, base: Sequence[Taken], other: Sequence[Taken]) -> Ratio | None:
    """Compare two points by the rounds that have a rate of both; None without one."""
    rounds = {each.round: each for each in base}
    pairs = []
    for each in other:
        first = rounds.get(each.round)
        rates = rate_of(axis, first) if first else None, rate_of(axis, each)
        if first and rates[0] and rates[1]:
            pairs.append(Pair(rates[0], rates[1], first.number < each.number))
    return Ratio(series, place, paired_speedup(pairs)) if pairs else None


def _known(ratios: Sequence[Ratio | None]) -> tuple[Ratio, ...]:
    return tuple(each for each in ratios if each is not None)


def _ratio_json(ratio: Ratio) -> dict[str, Any]:
    unknown = {"low": None} if ratio.interval.n < 2 else {}  # the exponential of minus infinity
    return {"series": ratio.series, "at": ratio.place, **ratio.interval.as_json(), **unknown}


def _point(axis: Axis, taken: Sequence[Taken], series: str, place: int) -> Point:
    rates = [rate for each in taken if (rate := rate_of(axis, each)) is not None]
    runs = [run for each in taken if each.counts for run in each.runs]
    spoilt = sum(run.spoilt is not None for each in taken for run in (*each.again, *each.runs))
    found = [run.acceptance for run in runs if run.acceptance is not None]
    why = next((each.error for each in taken if each.error), None) or next(
        (run.spoilt for each in taken for run in each.runs if run.spoilt), None
    )
    return Point(
        series=series,
        place=place,
        tokens=_same([run.prompt_tokens + run.cached_tokens for run in runs]),
        rate=rate_interval(rates) if rates else None,
        each=_mean([run.decode_rate for run in runs]),
        prefill=_mean([run.prefill_rate for run in runs]),
        first_token_s=_mean([run.first_token_s for run in runs]),
        acceptance=total(found) if found else None,
        power_w=_mean([run.power_w for run in runs]),
        replies=len(runs),
        spoilt=spoilt,
        why=None if rates else why or "The replies were too short to be measured.",
    )


def _same(values: Sequence[int]) -> int | None:
    return values[0] if values and len(set(values)) == 1 else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def runs_of(taken: Sequence[Taken]) -> list[Run]:
    """Return all runs, spoilt ones too, in their order."""
    return [run for each in taken for run in (*each.again, *each.runs)]
