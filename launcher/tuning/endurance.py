"""Sustained load: ask without a pause for minutes, and say whether the speed holds.

What is judged is verification steps a second, which the text has no part in: tokens a second also change with how many
drafts are accepted.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from launcher.base.errors import NothingMeasured
from launcher.tuning.endurance_changes import Level, levels
from launcher.tuning.endurance_why import because
from launcher.tuning.records import Bench, Prompt, Run, Settings
from launcher.tuning.statistics import CONFIDENCE, Interval, exponential, t_quantile

MATTERS = 0.02
"""A smaller share of the speed is no fall."""
_TELLS = 0.05
"""How near the last third must be known to lie to the first before it is said to hold."""
FEWEST = 20
"""Replies: of fewer, a step by one and a half standard deviations is hardly ever found."""
_ERRORS_IN_A_ROW = 3
_SURE_S = 180.0
"""A shorter load tells little: heat builds up over minutes, and a moment's other load weighs much."""
_REPLY_S = 3.0
_TOKENS = (64, 1_024)
_BLOCKS = 10

Answer = Literal["holds", "falls", "undecided", "ended"]
OnRun = Callable[[Run], None]


def steps_rate(run: Run) -> float | None:
    """Return verification steps a second; None for a reply that was not measured. A spoilt run has a speed, too."""
    if run.error is not None or not run.decode_rate or not run.steps:
        return None
    return run.decode_rate * run.steps / run.reply_tokens


async def endure(
    bench: Bench, settings: Settings, prompt: Prompt, seconds: float, *, seed: int = 0, on_run: OnRun
) -> None:
    """Serve with `settings` and ask the same again and again for `seconds` of the bench's time; `on_run` gets each run.

    The first reply warms up and is not told; by its speed, the others are made as long as 3 s take, or a fortieth of
    the time, within the prompt's own number of tokens. Three errors in a row end it; a server that ended is
    started again after one. Raises NothingMeasured when the first is not answered, and what Bench.become raises.
    """
    await bench.become(settings)
    warm = await bench.run(replace(prompt, tokens=min(prompt.tokens, _TOKENS[0])), seed=seed)
    if warm.error is not None:
        raise NothingMeasured(f"The server does not answer: {warm.error}", "See its log.")
    tokens = (warm.decode_rate or 0.0) * min(_REPLY_S, seconds / (2 * FEWEST))
    asked = replace(prompt, tokens=min(prompt.tokens, max(_TOKENS[0], min(_TOKENS[1], round(tokens)))))
    began_s, errors = bench.now_s(), 0
    while bench.now_s() - began_s < seconds and errors < _ERRORS_IN_A_ROW:
        run = await bench.run(asked, seed=seed)
        on_run(run)
        errors = errors + 1 if run.error is not None else 0
        if 0 < errors < _ERRORS_IN_A_ROW:
            await bench.become(settings)  # which starts a server again that ended


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time without a change of the speed, in seconds from the beginning; `rate` in steps a second."""

    from_s: float
    to_s: float
    rate: float


@dataclass(frozen=True, slots=True)
class Row:
    """Means over a part of the time, None where nothing tells; `marks` say what was noticed meanwhile."""

    from_s: float
    to_s: float
    tokens_rate: float | None
    steps_rate: float | None
    temperature_c: float | None
    clock_mhz: float | None
    power_w: float | None
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Endured:
    """The verdict. `fall` is the share of the speed that was lost, `because` why as far as was seen. `after_s` is when
    it fell, None where it did little by little.

    `thirds` is how many times as fast the last third is as the first. All seconds count from the first reply.
    """

    answer: Answer
    sentence: str
    seconds: float
    replies: int
    fall: float | None = None
    after_s: float | None = None
    because: str | None = None
    thirds: Interval | None = None
    stretches: tuple[Stretch, ...] = ()
    rows: tuple[Row, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "answer": self.answer,
            "sentence": self.sentence,
            "seconds": self.seconds,
            "replies": self.replies,
            "fall": self.fall,
            "after_s": self.after_s,
            "because": self.because,
            "last_third_to_first": self.thirds.as_json() if self.thirds else None,
            "stretches": [{"from_s": s.from_s, "to_s": s.to_s, "steps_per_second": s.rate} for s in self.stretches],
            "rows": [
                {
                    "from_s": row.from_s,
                    "to_s": row.to_s,
                    "tokens_per_second": row.tokens_rate,
                    "steps_per_second": row.steps_rate,
                    "temperature_c": row.temperature_c,
                    "clock_mhz": row.clock_mhz,
                    "power_w": row.power_w,
                    "marks": list(row.marks),
                }
                for row in self.rows
            ],
        }


def judge(runs: Sequence[Run]) -> Endured:
    """Return the verdict on replies in the order in which they were asked for.

    Changes are found by a permutation test (see endurance_changes). It falls when the last stretch is at least 2 %
    slower than the fastest before it, or, without a change that could be found, when the last third is slower than the
    first by 2 % with 95 % confidence; it holds when not, and the last third is known not to be slower by 5 %.
    """
    used = [(run, rate) for run in runs if (rate := steps_rate(run)) is not None]
    origin_s = runs[0].began_s if runs else 0.0
    seconds = runs[-1].began_s + runs[-1].wall_s - origin_s if runs else 0.0
    found = levels([rate for _, rate in used])
    stretches = tuple(
        Stretch(first.began_s - origin_s, last.began_s + last.wall_s - origin_s, each.mean)
        for each in found
        for first, last in ((used[each.first][0], used[each.last][0]),)
    )
    told = Endured("undecided", "", seconds, len(used), stretches=stretches, rows=_rows(runs, origin_s, seconds))
    told = _judged(told, used, found)
    if told.answer != "undecided" and seconds < _SURE_S:
        short = f"That was {_minutes(seconds)} of load; less than 3 minutes are too short to be sure."
        told = replace(told, sentence=f"{told.sentence} {short}")
    lost = [run.error for run in runs[-_ERRORS_IN_A_ROW:]]
    if lost and lost[-1] is not None and None not in lost:
        when = f"The server stopped answering after {_minutes(runs[-len(lost)].began_s - origin_s)}"
        return replace(told, answer="ended", sentence=f"{when}: {lost[-1].rstrip('.')}. Until then: {told.sentence}")
    return told


def _judged(told: Endured, used: Sequence[tuple[Run, float]], found: Sequence[Level]) -> Endured:
    if len(used) < FEWEST:
        few = f"Undecided: {len(used)} replies are too few to tell; {FEWEST} are the least."
        return replace(told, sentence=few)
    thirds = _thirds([rate for _, rate in used])
    told = replace(told, thirds=thirds)
    best = max(range(len(found)), key=lambda number: found[number].mean)
    fall, after_s = 1 - found[-1].mean / found[best].mean, told.stretches[best].to_s
    if fall >= MATTERS:
        why = because(_runs_of(used, found[best]), _runs_of(used, found[-1]), fall)
        said = f"Falls by {_percent(fall)} after {_minutes(after_s)}, {why}."
        return replace(told, answer="falls", sentence=said, fall=fall, after_s=after_s, because=why)
    if thirds.high < 1 - MATTERS:
        third, fall = len(used) // 3, 1 - thirds.estimate
        why = because([run for run, _ in used[:third]], [run for run, _ in used[-third:]], fall)
        said = f"Falls by {_percent(fall)} from the first third to the last, {why}."
        return replace(told, answer="falls", sentence=said, fall=fall, because=why)
    if thirds.low < 1 - _TELLS:
        return replace(told, sentence=f"Undecided: the speed varies too much to tell ({_between(thirds)}).")
    said = f"Holds over {_minutes(told.seconds)}: {_between(thirds)}.{_dip(found, told.stretches)}"
    return replace(told, answer="holds", sentence=said)


def _runs_of(used: Sequence[tuple[Run, float]], level: Level) -> list[Run]:
    return [run for run, _ in used[level.first : level.last + 1]]


def _thirds(rates: Sequence[float]) -> Interval:
    """Compare the last third with the first: Welch's t over means of up to ten blocks, which are less alike than runs.

    In logarithms (see statistics); the degrees of freedom by Welch and Satterthwaite, rounded down.
    """
    third = len(rates) // 3
    early, late = (_blocks([math.log(rate) for rate in part]) for part in (rates[:third], rates[-third:]))
    difference = statistics.fmean(late) - statistics.fmean(early)
    parts = [statistics.variance(each) / len(each) for each in (early, late)]
    error = math.sqrt(sum(parts))
    freedom = sum(p * p / (len(e) - 1) for p, e in zip(parts, (early, late), strict=True))
    reach = t_quantile((1 + CONFIDENCE) / 2, max(1, int(sum(parts) ** 2 / freedom))) * error if freedom else 0.0
    return exponential(Interval(difference, difference - reach, difference + reach, len(early) + len(late)))


def _blocks(values: Sequence[float]) -> list[float]:
    count = min(_BLOCKS, len(values))
    cuts = [round(number * len(values) / count) for number in range(count + 1)]
    return [statistics.fmean(values[begin:end]) for begin, end in pairwise(cuts)]


def _dip(found: Sequence[Level], stretches: Sequence[Stretch]) -> str:
    """Return a sentence on the slowest stretch in between, if it was slower by what matters."""
    slowest = min(range(len(found)), key=lambda i: found[i].mean)
    loss = 1 - found[slowest].mean / max(each.mean for each in found)
    if loss < MATTERS:
        return ""
    begin, end = stretches[slowest].from_s, stretches[slowest].to_s
    when = f"Between {_minutes(begin)} and {_minutes(end)}" if slowest else f"For the first {_minutes(end)}"
    return f" {when} it was {_percent(loss)} slower."


def _rows(runs: Sequence[Run], origin_s: float, seconds: float) -> tuple[Row, ...]:
    """Return 15 rows at most, of whole minutes, or of 10 s or 1 s for a short load."""
    unit = 60.0 if seconds > 300 else 10.0 if seconds > 30 else 1.0
    row_s = unit * max(1, math.ceil(seconds / unit / 15))
    by_row: dict[int, list[Run]] = {}
    for run in runs:
        by_row.setdefault(int((run.began_s - origin_s) / row_s), []).append(run)
    return tuple(
        Row(
            number * row_s,
            min((number + 1) * row_s, seconds),
            _mean([run.decode_rate for run in some if run.error is None]),
            _mean([steps_rate(run) for run in some]),
            _mean([run.temperature_c for run in some]),
            _mean([run.clock_mhz for run in some]),
            _mean([run.power_w for run in some]),
            tuple(dict.fromkeys(word for run in some if (word := run.error or run.spoilt))),
        )
        for number, some in sorted(by_row.items())
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _between(ratio: Interval) -> str:
    sides = " to ".join(
        f"{100 * abs(end - 1):.1f} % {'faster' if end >= 1 else 'slower'}" for end in (ratio.low, ratio.high)
    )
    return f"with 95 % confidence the last third is {sides} than the first"


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.095 else 1}f} %"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.{0 if seconds >= 600 else 1}f} min" if seconds >= 60 else f"{seconds:.0f} s"
