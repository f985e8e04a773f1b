"""Runs as figures: one row for each setting that was measured, with means, spread, acceptance and speed-up.

A mean's interval is Student's t at 95 %, over the runs; that of tokens/s, over logarithms, over the starts of the
server where there were several, else over rounds, as the replies of one start and of one round are more alike. The
speed-up is the ratio of typical speeds (`report_compare`). Only runs that count are in the figures; how many there were
beside them is told.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from launcher.monitor.meter import Acceptance, total
from launcher.tuning.records import Run, Settings, Value
from launcher.tuning.report_compare import Start, speedup_of_starts
from launcher.tuning.space import DRAFT, draft_of, key
from launcher.tuning.statistics import CONFIDENCE, Interval, rate_interval, t_quantile


@dataclass(frozen=True, slots=True)
class Figure:
    """The mean of `n` values and how they spread: standard deviation and interval are None for a single value."""

    mean: float
    stdev: float | None
    low: float | None
    high: float | None
    least: float
    most: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Figure | None":
        """Return the figure of the values that are known, none below 0; None without any."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        n = len(known)
        mean = math.fsum(known) / n
        if n < 2:
            return cls(mean, None, None, None, mean, mean, 1)
        stdev = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (n - 1))  # 20 times as fast as fractions
        reach = t_quantile((1 + CONFIDENCE) / 2, n - 1) * stdev / math.sqrt(n)
        return cls(mean, stdev, max(0.0, mean - reach), mean + reach, min(known), max(known), n)

    @property
    def span(self) -> float:
        """From the least value to the most."""
        return self.most - self.least


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. Rates are tokens a second, energy is joules a token; None where nothing was measured of it.

    `failed` counts runs that do not count, `why` says the last reason. `speedup` is over the baseline, None for itself;
    `starts` are those of the server that have a run that counts.
    """

    settings: Settings
    runs: int
    failed: int
    why: str | None
    decode: Figure | None
    prefill: Figure | None
    first_token_s: Figure | None
    acceptance: Acceptance | None
    power_w: Figure | None
    energy_j: float | None
    temperature_c: float | None
    speedup: Interval | None
    starts: int

    @property
    def draft(self) -> int:
        """Its draft length."""
        return draft_of(self.settings)


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, in the order in which their settings came first; the others are compared with `baseline`.

    `by_start` is as in `report`.
    """

    rows: tuple[Row, ...]
    baseline: Row | None
    common: Mapping[str, Value]
    by_start: bool = False

    def label(self, row: Row) -> str:
        """Return what tells a row's settings from the others'."""
        return words({name: value for name, value in row.settings.items() if name not in self.common})


def report(runs: Sequence[Run], baseline: Settings | None = None, *, by_start: bool = False) -> Report:
    """Return the figures of runs by their settings.

    `by_start` gives no limits to the speed-up of settings with few starts: of a tune, whose runs are but a few of each.

    The baseline is the settings named, else the first without drafts; where there are none, nothing is compared.
    """
    groups = started(runs)
    settings = [each[0].runs[0].settings for each in groups]
    if baseline is None:
        baseline = next((each for each in settings if not draft_of(each)), None)
    wanted = None if baseline is None else key(baseline)
    base = next((each for each, its in zip(groups, settings, strict=True) if key(its) == wanted), [])
    rows = tuple(_row(each, base if each is not base else [], by_start=by_start) for each in groups)
    first = next((row for row, each in zip(rows, groups, strict=True) if each is base), None)
    return Report(rows, first, common([row.settings for row in rows]), by_start)


def grouped(runs: Iterable[Run]) -> list[list[Run]]:
    """Return the runs by their settings, in the order of the first of each."""
    return [[run for start in starts for run in start.runs] for starts in started(runs)]


def started(runs: Iterable[Run]) -> list[list[Start]]:
    """Return the starts by their settings, in the order of the first of each."""
    known: dict[int, object] = {}  # many runs share one mapping of settings

    def settings_of(run: Run) -> object:
        found = known.get(id(run.settings))
        if found is None:
            found = known[id(run.settings)] = key(run.settings)
        return found

    groups: dict[object, list[Start]] = {}
    for number, (settings, same) in enumerate(groupby(runs, settings_of)):
        groups.setdefault(settings, []).append(Start(number, tuple(same)))
    return list(groups.values())


def by_prompt(runs: Sequence[Run]) -> tuple[tuple[str, tuple[Figure | None, ...]], ...]:
    """Return for each prompt its tokens a second by setting, in the order of `report`'s rows."""
    groups = grouped(runs)
    prompts = dict.fromkeys(run.prompt for run in runs)
    cells: list[dict[str, list[float | None]]] = [{} for _ in groups]
    for cell, group in zip(cells, groups, strict=True):
        for run in group:
            if run.counts:
                cell.setdefault(run.prompt, []).append(run.decode_rate)
    return tuple((prompt, tuple(Figure.of(cell.get(prompt, [])) for cell in cells)) for prompt in prompts)


def common(settings: Sequence[Settings]) -> dict[str, Value]:
    """Return the settings that are the same in all; none for a single one, which is told whole."""
    if len(settings) < 2:
        return {}
    first, *others = settings
    return {
        name: value
        for name, value in first.items()
        if name != DRAFT and all(name in each and each[name] == value for each in others)
    }


def words(settings: Settings) -> str:
    """Return settings in a line, the draft length first: "draft 2, kv q8_0"; a value left open is not named."""
    told = {name: value for name, value in settings.items() if value is not None and name != DRAFT}
    draft = [] if DRAFT not in settings else [f"draft {draft_of(settings)}" if draft_of(settings) else "MTP off"]
    return ", ".join([*draft, *(f"{name.replace('_', '-')} {value}" for name, value in sorted(told.items()))])


def as_data(told: Report) -> list[dict[str, Any]]:
    """Return the rows for JSON."""
    return [row_data(row) | {"baseline": row is told.baseline} for row in told.rows]


def row_data(row: Row) -> dict[str, Any]:
    """Return a row for JSON."""
    return {
        "settings": dict(row.settings),
        "runs": row.runs,
        "failed": row.failed,
        "why": row.why,
        "tokens_per_second": figure_data(row.decode),
        "prefill_tokens_per_second": figure_data(row.prefill),
        "first_token_s": figure_data(row.first_token_s),
        "acceptance": row.acceptance.rate if row.acceptance else None,
        "acceptance_by_position": list(row.acceptance.rates_by_position) if row.acceptance else [],
        "power_w": figure_data(row.power_w),
        "energy_j_per_token": row.energy_j,
        "temperature_c": row.temperature_c,
        "speedup": row.speedup.as_json() if row.speedup else None,
    }


def figure_data(figure: Figure | None) -> dict[str, float | int | None] | None:
    """Return a figure for JSON."""
    if figure is None:
        return None
    return {"mean": figure.mean, "stdev": figure.stdev, "low": figure.low, "high": figure.high, "n": figure.n}


def _row(starts: Sequence[Start], base: Sequence[Start], *, by_start: bool) -> Row:
    runs = [run for start in starts for run in start.runs]
    counted = [run for run in runs if run.counts]
    others = [run.error or run.spoilt or "no rate was told" for run in runs if not run.counts]
    drafts = [run.acceptance for run in counted if run.acceptance is not None and run.acceptance.drafted]

    def figure(value: Callable[[Run], float | None]) -> Figure | None:
        return Figure.of(map(value, counted))

    measured = [run for run in counted if run.energy_j is not None and run.reply_tokens]
    hot = [run.temperature_c for run in counted if run.temperature_c is not None]
    able = counted and any(start.rate for start in base)
    speedup = speedup_of_starts(base, starts, by_start=by_start) if able else None
    return Row(
        settings=runs[0].settings,
        runs=len(counted),
        failed=len(others),
        why=others[-1] if others else None,
        decode=_with_limits(figure(lambda run: run.decode_rate), starts),
        prefill=figure(lambda run: run.prefill_rate),
        first_token_s=figure(lambda run: run.first_token_s),
        acceptance=total(drafts) if drafts else None,
        power_w=figure(lambda run: run.power_w),
        energy_j=math.fsum(run.energy_j or 0 for run in measured) / sum(run.reply_tokens for run in measured)
        if measured
        else None,
        temperature_c=max(hot, default=None),
        speedup=speedup.ratio if speedup else None,
        starts=sum(start.rate is not None for start in starts),
    )


def _with_limits(runs: Figure | None, starts: Sequence[Start]) -> Figure | None:
    """Return the figure of all runs with the interval of several starts around it, of a single start's rounds else."""
    if runs is None:
        return None
    rates = [rate for start in starts if (rate := start.rate)]
    if len(rates) == 1:
        rates = [rate for start in starts for rate in start.rounds]
    if len(rates) < 2:
        return replace(runs, low=None, high=None)
    found = rate_interval(rates)
    factor = found.high / found.estimate
    return replace(runs, low=runs.mean / factor, high=runs.mean * factor)
