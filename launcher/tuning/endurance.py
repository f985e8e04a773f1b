"""Sustained load: send requests without a pause for minutes, and judge whether the speed holds.

The speed is judged in verification steps per second. Unlike tokens per second, which vary with the text through draft
acceptance, they do not depend on the text.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from launcher.base.codec import JsonView
from launcher.base.errors import NothingMeasured
from launcher.base.messages import Message, join_messages, message
from launcher.tuning.goal import describe_speed_change
from launcher.tuning.measuring_loop import after_seconds, visit_rounds, warm_up
from launcher.tuning.records import Bench, Prompt, Run, RunSettings
from launcher.tuning.statistics import CONFIDENCE, Interval, mean_of_known, ratio_of_logs, t_quantile

# Change points of a series: circular binary segmentation on ranks, with a permutation test.

ALPHA = 0.01
"""Significance level: a change counts when chance alone would produce it with at most this probability."""
SHORTEST = 5
"""The least number of values in a stretch."""
_MOST_VALUES = 120
"""Longer series are averaged down to this many values, which lowers autocorrelation and bounds the work."""
_PERMUTATIONS = 999
_MOST_CORRELATION = 0.95
"""Upper limit for the correlation of neighbours, so that its correction stays finite."""

_Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Level:
    """A stretch of a series without a change: the values from index `first` to `last`, inclusive, and their mean."""

    first: int
    last: int
    mean: float


@dataclass(frozen=True, slots=True)
class ChangedStretch:
    """The stretch from `begin` to `end` (exclusive) that differs most from the rest of the series.

    `chance` is the probability that a random order of the values has a difference as large.
    """

    begin: int
    end: int
    chance: float


def find_levels(values: Sequence[float], alpha: float = ALPHA) -> list[Level]:
    """Cut a series at its changes of level and return the stretches in order. One stretch if there is no change."""
    size = max(1, math.ceil(len(values) / _MOST_VALUES))
    array = np.asarray(values, dtype=float)
    means = np.array([array[begin : begin + size].mean() for begin in range(0, len(array), size)])
    cuts = [0, *(cut * size for cut in sorted(_find_cuts(means, 0, alpha))), len(values)]
    return [
        Level(begin, end - 1, float(array[begin:end].mean())) for begin, end in itertools.pairwise(cuts) if end > begin
    ]


def _find_cuts(values: _Values, offset: int, alpha: float) -> Iterator[int]:
    """Yield the indices at which the level changes.

    First the cuts of `values` as a whole, then, recursively, those inside the pieces; each plus `offset`.
    """
    found = find_change(values)
    if found is None or found.chance > alpha:
        return
    inner = [cut for cut in (found.begin, found.end) if 0 < cut < len(values)]
    yield from (offset + cut for cut in inner)
    for begin, end in zip((0, *inner), (*inner, len(values)), strict=True):
        yield from _find_cuts(values[begin:end], offset + begin, alpha)


def find_change(values: Sequence[float] | _Values) -> ChangedStretch | None:
    """Return the stretch that differs most from everything before and after it. None with too few values.

    Circular binary segmentation (A. B. Olshen, E. S. Venkatraman et al., Biostatistics 5, 2004): of all stretches, take
    the one with the largest sum of squares between inside and outside. It may begin or end with the series, so a
    lasting change is found as well as a dip. Ranks replace values, so that a few outliers do not matter. The chance is
    from a permutation test: how many of 999 random orders have a sum as large anywhere.

    If slow drift makes neighbours similar, not all orders are equally likely. So the sum of squares is first divided by
    (1 + r) / (1 - r), the factor by which the variance of a mean grows, with r the correlation of neighbours. False
    alarms, simulated: 1 % of series of independent values, 5 to 10 % where r is 0.3 to 0.6. A change of three standard
    deviations is found in 60 % of series of 20 values, 90 % of 40 and 98 % of 100.
    """
    array = np.asarray(values, dtype=float)
    n = len(array)
    if n < 2 * SHORTEST:
        return None
    ranks = _ranks(array)
    lengths = range(SHORTEST, n - SHORTEST + 1)
    squares = {length: _squares_between(np.cumsum(ranks)[None, :], length)[0] for length in lengths}
    best_length = max(lengths, key=lambda length: float(squares[length].max()))
    best = int(np.argmax(squares[best_length]))
    begin = 0 if best == 0 else best + SHORTEST - 1
    correlation = _neighbour_correlation(array)
    between = float(squares[best_length][best]) * (1 - correlation) / (1 + correlation)
    orders = np.random.default_rng(n).permuted(np.tile(ranks, (_PERMUTATIONS, 1)), axis=1)
    sums = np.cumsum(orders, axis=1)
    largest = np.zeros(_PERMUTATIONS)
    for length in lengths:
        np.maximum(largest, _squares_between(sums, length).max(axis=1), out=largest)
    as_large = int(np.count_nonzero(largest >= between * (1 - 1e-12)))
    return ChangedStretch(begin, begin + best_length, (1 + as_large) / (1 + _PERMUTATIONS))


def _squares_between(sums: _Values, length: int) -> _Values:
    """Return the sums of squares between each stretch of a length and the rest, given cumulated ranks in rows.

    The first column is the stretch at the beginning; the others have at least SHORTEST values on both sides. Stretches
    at the end are left out: they divide the series just as one at the beginning does.
    """
    n = sums.shape[1]
    first = sums[:, length - 1 : length]
    others = sums[:, SHORTEST + length - 1 : n - SHORTEST] - sums[:, SHORTEST - 1 : n - SHORTEST - length]
    differs = np.concatenate((first, others), axis=1) - length * (n + 1) / 2
    squares: _Values = differs * differs / (length * (1 - length / n))
    return squares


def _ranks(values: _Values) -> _Values:
    """Return the rank of each value, from 1. Equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: _Values = (last - (counts - 1) / 2)[inverse]
    return ranks


def _neighbour_correlation(values: _Values) -> float:
    """Return the correlation r of neighbours, 0 to 0.95, independent of changes of level.

    In a first-order autoregression, differences at lag 1 have the variance 2 s² (1 - r), those at lag 2 have 2 s²
    (1 - r²), so their ratio is 1 + r. The range from the first to the last decile replaces the variance, because only
    few differences span a change of level. The result is lowered by 1 / sqrt(number of values), about its standard
    error, so that it is rarely above 0 without correlation.
    """
    one, two = (np.subtract(*np.quantile(values[lag:] - values[:-lag], (0.9, 0.1))) for lag in (1, 2))
    if not one:
        return 0.0
    return float(min(max((two / one) ** 2 - 1 - 1 / math.sqrt(len(values)), 0.0), _MOST_CORRELATION))


# Causes of a slowdown, as far as sensors show them.

_LEAST_POWER_FALL = 0.1
"""Smallest fall of the power, as a share, that is named as a cause."""
_LEAST_HEATING_C = 3.0
"""Smallest rise of the temperature that is mentioned."""


def explain_slowdown(before: Sequence[Run], after: Sequence[Run], fall: float) -> Message:
    """Return "because ..." from the differences between earlier and later runs.

    `fall` is the share of the speed that was lost. The first of these that applies is the cause: a clock that fell by
    at least half of that share (disturbances are added in brackets), disturbances that became frequent, and power that
    fell although the clock did not.
    """
    disturbances = _new_disturbances(before, after) or None
    heat = _heat_text(before, after)
    clocks = _medians(before, after, lambda run: run.clock_mhz)
    powers = _medians(before, after, lambda run: run.power_w)
    if clocks is not None and 1 - clocks[1] / clocks[0] >= fall / 2:
        return message(
            "because the GPU's clock fell from {before:,.0f} to {after:,.0f} MHz[ {heat}][ ({disturbances})]",
            before=clocks[0],
            after=clocks[1],
            heat=heat,
            disturbances=disturbances,
        )
    if disturbances:
        return message("because of disturbances: {disturbances}", disturbances=disturbances)
    if powers is not None and 1 - powers[1] / powers[0] >= _LEAST_POWER_FALL:
        return message(
            "because the GPU waits for host memory or the processor (the GPU drew {after:.0f} W, not {before:.0f}"
            "[, {same}])",
            before=powers[0],
            after=powers[1],
            same=message("at the same clock") if clocks is not None else None,
        )
    if clocks is None and powers is None:
        return message("for an unknown reason: no sensor reports clock or power[; the GPU was {heat}]", heat=heat)
    return message("for an unknown reason: clock and power are about the same[ {heat}]", heat=heat)


def _new_disturbances(before: Sequence[Run], after: Sequence[Run]) -> str:
    """Return the disturbances of at least half of the later runs that are at least twice as frequent as before."""
    earlier, later = (Counter(run.spoilt for run in runs if run.spoilt) for runs in (before, after))
    often = [
        disturbance.rstrip(".")
        for disturbance, count in later.most_common()
        if 2 * count >= len(after) and count / len(after) >= 2 * earlier[disturbance] / len(before)
    ]
    return "; ".join(often)


def _heat_text(before: Sequence[Run], after: Sequence[Run]) -> Message | None:
    temperatures = _medians(before, after, lambda run: run.temperature_c)
    if temperatures is None or temperatures[1] - temperatures[0] < _LEAST_HEATING_C:
        return None
    return message("at {after:.0f} °C (before: {before:.0f} °C)", after=temperatures[1], before=temperatures[0])


def _medians(
    before: Sequence[Run], after: Sequence[Run], figure: Callable[[Run], float | None]
) -> tuple[float, float] | None:
    """Return the medians of a figure before and after. None if it is unknown or was 0 before."""
    medians = []
    for runs in (before, after):
        known = [value for run in runs if (value := figure(run)) is not None]
        if not known:
            return None
        medians.append(statistics.median(known))
    return (medians[0], medians[1]) if medians[0] > 0 else None


LEAST_FALL = 0.02
"""Smallest loss of speed, as a share, that counts as a fall."""
_HOLDS_WITHIN = 0.05
"""The speed holds if the last third is slower than the first by at most this share, with 95 % confidence."""
FEWEST_REPLIES = 20
"""The least number of replies for a verdict; among fewer, a change of 1.5 standard deviations is hardly ever found."""
_ERRORS_IN_A_ROW = 3
_FIRM_VERDICT_S = 180.0
"""Shortest load, in seconds, for a firm verdict: heat builds up over minutes, and in a shorter load brief disturbances
weigh more.
"""
_REPLY_S = 3.0
"""Seconds that a reply should take."""
_MIN_TOKENS, _MAX_TOKENS = 64, 1_024
"""Limits of the reply length."""
_BLOCKS = 10
"""Largest number of blocks into which a third of the runs is divided."""

Answer = Literal["holds", "falls", "undecided", "ended"]
OnRun = Callable[[Run], None]


def steps_rate(run: Run) -> float | None:
    """Return verification steps per second, also of a disturbed run. None if unknown."""
    if run.error is not None or not run.decode_rate or not run.steps:
        return None
    return run.decode_rate * run.steps / run.reply_tokens


async def sustain_load(
    bench: Bench, settings: RunSettings, prompt: Prompt, seconds: float, *, seed: int = 0, on_run: OnRun
) -> None:
    """Serve `settings` and send the same prompt again and again for `seconds` by the bench's clock.

    `on_run` gets each run except the first, which warms up. Its speed determines the length of the others: as many
    tokens as take 3 s or a fortieth of the time, whichever is less, but 64 to 1,024, and no more than the prompt's own
    limit. After an error the server is started again if it ended; three errors in a row end the load. Raises
    NothingMeasured when the first request fails, and what Bench.become raises.
    """
    await bench.become(settings)
    warm = await warm_up(bench, prompt, seed, _MIN_TOKENS)
    if warm.error is not None:
        raise NothingMeasured(
            message("The server does not respond: {error}", error=warm.error), message("See its log.")
        )
    tokens = (warm.decode_rate or 0.0) * min(_REPLY_S, seconds / (2 * FEWEST_REPLIES))
    measured = replace(prompt, tokens=min(prompt.tokens, max(_MIN_TOKENS, min(_MAX_TOKENS, round(tokens)))))
    errors = 0
    for _ in visit_rounds([measured], after_seconds(bench, seconds)):
        run = await bench.run(measured, seed=seed)
        on_run(run)
        errors = errors + 1 if run.error is not None else 0
        if errors == _ERRORS_IN_A_ROW:
            break
        if errors:
            await bench.become(settings)  # restarts the server if it ended


@dataclass(frozen=True, slots=True)
class SpeedStretch:
    """A period of constant speed, in seconds from the beginning. `rate` is in verification steps per second."""

    JSON_VIEW: ClassVar[JsonView] = JsonView("from_s to_s steps_per_second=rate")
    from_s: float
    to_s: float
    rate: float


@dataclass(frozen=True, slots=True)
class EnduranceRow:
    """Means over a part of the time, None if unknown. `marks` are the disturbances and errors in it."""

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "from_s to_s tokens_per_second=tokens_rate steps_per_second=steps_rate temperature_c clock_mhz power_w marks"
    )
    from_s: float
    to_s: float
    tokens_rate: float | None
    steps_rate: float | None
    temperature_c: float | None
    clock_mhz: float | None
    power_w: float | None
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EnduranceVerdict:
    """Verdict of a sustained load. Times are in seconds from the beginning of the first measured request.

    `fall` is the share of the speed that was lost, `because` the cause in words, and `after_s` the time at which the
    fastest stretch ended, None if the speed fell gradually. `thirds` is the speed ratio of the last third to the first.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "answer sentence seconds replies fall after_s because last_third_to_first=thirds stretches rows"
    )
    answer: Answer
    sentence: str
    seconds: float
    replies: int
    fall: float | None = None
    after_s: float | None = None
    because: str | None = None
    thirds: Interval | None = None
    stretches: tuple[SpeedStretch, ...] = ()
    rows: tuple[EnduranceRow, ...] = ()


def judge_endurance(runs: Sequence[Run]) -> EnduranceVerdict:
    """Return the verdict on runs, given in the order of their requests.

    Changes are found by the permutation test of `find_change`. The speed falls when the last stretch is at least 2 %
    slower than the fastest before it, or, if no change is found, when the last third is slower than the first by 2 %
    with 95 % confidence. Otherwise it holds if, with 95 % confidence, the last third is less than 5 % slower, else it
    is undecided.
    """
    used = [(run, rate) for run in runs if (rate := steps_rate(run)) is not None]
    origin_s = runs[0].began_s if runs else 0.0
    seconds = runs[-1].began_s + runs[-1].wall_s - origin_s if runs else 0.0
    levels = find_levels([rate for _, rate in used])
    stretches = []
    for level in levels:
        first, last = used[level.first][0], used[level.last][0]
        stretches.append(SpeedStretch(first.began_s - origin_s, last.began_s + last.wall_s - origin_s, level.mean))
    rows = _table_rows(runs, origin_s, seconds)
    verdict = EnduranceVerdict("undecided", "", seconds, len(used), stretches=tuple(stretches), rows=rows)
    verdict = _decide_answer(verdict, used, levels)
    if verdict.answer != "undecided" and seconds < _FIRM_VERDICT_S:
        short = message(
            "The load ran for {minutes}; at least 3 minutes are needed for a reliable result.",
            minutes=_duration_text(seconds),
        )
        verdict = replace(verdict, sentence=join_messages(verdict.sentence, short))
    last_errors = [run.error for run in runs[-_ERRORS_IN_A_ROW:]]
    if last_errors and last_errors[-1] is not None and None not in last_errors:
        ended = message(
            "The server stopped responding after {minutes}: {error} Until then: {sentence}",
            minutes=_duration_text(runs[-len(last_errors)].began_s - origin_s),
            error=last_errors[-1] if last_errors[-1].endswith(".") else f"{last_errors[-1]}.",
            sentence=verdict.sentence,
        )
        return replace(verdict, answer="ended", sentence=ended)
    return verdict


def _decide_answer(
    verdict: EnduranceVerdict, used: Sequence[tuple[Run, float]], levels: Sequence[Level]
) -> EnduranceVerdict:
    """Return the verdict with its answer and sentence. `used` are runs with their rates."""
    if len(used) < FEWEST_REPLIES:
        few = message(
            "Undecided: {used} replies are too few; at least {fewest} are needed.",
            used=len(used),
            fewest=FEWEST_REPLIES,
        )
        return replace(verdict, sentence=few)
    thirds = _compare_thirds([rate for _, rate in used])
    verdict = replace(verdict, thirds=thirds)
    fastest = max(range(len(levels)), key=lambda index: levels[index].mean)
    fall, after_s = 1 - levels[-1].mean / levels[fastest].mean, verdict.stretches[fastest].to_s
    if fall >= LEAST_FALL:
        why = explain_slowdown(_runs_of_level(used, levels[fastest]), _runs_of_level(used, levels[-1]), fall)
        sentence = message(
            "Falls by {fall} after {minutes}, {why}.",
            fall=_percent_text(fall),
            minutes=_duration_text(after_s),
            why=why,
        )
        return replace(verdict, answer="falls", sentence=sentence, fall=fall, after_s=after_s, because=why)
    if thirds.high < 1 - LEAST_FALL:
        third, fall = len(used) // 3, 1 - thirds.estimate
        why = explain_slowdown([run for run, _ in used[:third]], [run for run, _ in used[-third:]], fall)
        sentence = message(
            "Falls by {fall} from the first third to the last, {why}.", fall=_percent_text(fall), why=why
        )
        return replace(verdict, answer="falls", sentence=sentence, fall=fall, because=why)
    if thirds.low < 1 - _HOLDS_WITHIN:
        return replace(
            verdict,
            sentence=message("Undecided: the speed varies too much ({between}).", between=_interval_text(thirds)),
        )
    sentence = message(
        "Holds over {minutes}: {between}.", minutes=_duration_text(verdict.seconds), between=_interval_text(thirds)
    )
    return replace(verdict, answer="holds", sentence=join_messages(sentence, _dip_sentence(levels, verdict.stretches)))


def _runs_of_level(used: Sequence[tuple[Run, float]], level: Level) -> list[Run]:
    return [run for run, _ in used[level.first : level.last + 1]]


def _compare_thirds(rates: Sequence[float]) -> Interval:
    """Return the speed ratio of the last third to the first, by Welch's t over means of up to ten blocks.

    Blocks are less correlated than single runs. Computed on logarithms (see statistics); degrees of freedom by Welch
    and Satterthwaite, rounded down.
    """
    third = len(rates) // 3
    early, late = (_block_means([math.log(rate) for rate in part]) for part in (rates[:third], rates[-third:]))
    difference = statistics.fmean(late) - statistics.fmean(early)
    parts = [statistics.variance(each) / len(each) for each in (early, late)]
    error = math.sqrt(sum(parts))
    freedom = sum(p * p / (len(e) - 1) for p, e in zip(parts, (early, late), strict=True))
    reach = t_quantile((1 + CONFIDENCE) / 2, max(1, int(sum(parts) ** 2 / freedom))) * error if freedom else 0.0
    return ratio_of_logs(Interval(difference, difference - reach, difference + reach, len(early) + len(late)))


def _block_means(values: Sequence[float]) -> list[float]:
    count = min(_BLOCKS, len(values))
    cuts = [round(number * len(values) / count) for number in range(count + 1)]
    return [statistics.fmean(values[begin:end]) for begin, end in pairwise(cuts)]


def _dip_sentence(levels: Sequence[Level], stretches: Sequence[SpeedStretch]) -> Message:
    """Return a sentence about the slowest stretch, if it was slower by at least LEAST_FALL. Empty otherwise."""
    slowest = min(range(len(levels)), key=lambda index: levels[index].mean)
    loss = 1 - levels[slowest].mean / max(each.mean for each in levels)
    if loss < LEAST_FALL:
        return Message()
    begin, end = stretches[slowest].from_s, stretches[slowest].to_s
    if slowest:
        return message(
            "Between {begin} and {end} it was {loss} slower.",
            begin=_duration_text(begin),
            end=_duration_text(end),
            loss=_percent_text(loss),
        )
    return message("For the first {end} it was {loss} slower.", end=_duration_text(end), loss=_percent_text(loss))


def _table_rows(runs: Sequence[Run], origin_s: float, seconds: float) -> tuple[EnduranceRow, ...]:
    """Return at most 15 rows, each a multiple of 1 minute long, or of 10 s or 1 s for a short load."""
    unit = 60.0
    if seconds <= 300:
        unit = 10.0 if seconds > 30 else 1.0
    row_s = unit * max(1, math.ceil(seconds / unit / 15))
    by_row: dict[int, list[Run]] = {}
    for run in runs:
        by_row.setdefault(int((run.began_s - origin_s) / row_s), []).append(run)
    return tuple(
        EnduranceRow(
            number * row_s,
            min((number + 1) * row_s, seconds),
            mean_of_known([run.decode_rate for run in row if run.error is None]),
            mean_of_known([steps_rate(run) for run in row]),
            mean_of_known([run.temperature_c for run in row]),
            mean_of_known([run.clock_mhz for run in row]),
            mean_of_known([run.power_w for run in row]),
            tuple(dict.fromkeys(mark for run in row if (mark := run.error or run.spoilt))),
        )
        for number, row in sorted(by_row.items())
    )


def _interval_text(ratio: Interval) -> Message:
    return message(
        "with 95 % confidence the last third is {low} to {high} than the first",
        low=describe_speed_change(ratio.low),
        high=describe_speed_change(ratio.high),
    )


def _percent_text(share: float) -> str:
    digits = 0 if share >= 0.095 else 1
    return f"{100 * share:.{digits}f} %"


def _duration_text(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    digits = 0 if seconds >= 600 else 1
    return f"{seconds / 60:.{digits}f} min"
