"""Report of runs: one row for each measured set of settings, with means, spread, acceptance and speed-up.

The interval of a mean is Student's t at 95 % over the runs. That of tokens/s is over logarithms of server starts if
there were several, else of rounds, because replies of one start and of one round are similar. The speed-up is the ratio
of typical speeds (`speedup_of_starts`). Figures include only usable runs; the number of other runs is reported.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar

from launcher.base.codec import JsonView, to_json
from launcher.base.errors import BadOption
from launcher.base.messages import Message, fill_template, mark, message
from launcher.models.drafters import choice_in, find_drafter
from launcher.models.server_settings import Value
from launcher.monitor.meter import Acceptance, sum_acceptance
from launcher.tuning.history_records import Session
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.space import DRAFT, DRAFTER, Key, draft_length, settings_key
from launcher.tuning.statistics import (
    CONFIDENCE,
    Figure,
    Interval,
    Pair,
    paired_speedup,
    rate_interval,
    ratio_of_logs,
    t_quantile,
)

# Speed-up between two groups of runs.
#
# Runs of one server start are more similar than those of two. So if both sides were started several times, starts are
# compared, each by the typical speed of its runs: neighbours in pairs, so that drift cancels. With fewer starts, rounds
# are compared, each by the typical speed over the prompts that both sides have: replies of one round are similar, and
# differences between prompts are not noise. Rounds that took turns are pairs. If there is only one round, its prompts
# are the pairs. Everything else is compared by Welch's t test on the logarithms of the speeds, which does not need
# equal spread (B. L. Welch, Biometrika 34, 1947).

_FASTER = mark("{percent:.1f} % faster ({low:.1f} to {high:.1f} %)")
_SLOWER = mark("{percent:.1f} % slower ({low:.1f} to {high:.1f} %)")
FEWEST_STARTS = 3
"""The fewest starts on each side for comparing starts rather than rounds."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """Typical ratio of speeds, from a `paired` comparison or not. With too few runs its interval is 0 to infinity."""

    ratio: Interval
    paired: bool

    @property
    def distinguishable(self) -> bool:
        """Whether one side is faster, at the confidence of the interval."""
        return not self.ratio.low <= 1 <= self.ratio.high


@dataclass(frozen=True, slots=True)
class ServerStart:
    """Consecutive runs with the same settings, which count as one server start. `number` is its position in time."""

    number: int
    runs: tuple[Run, ...]

    @property
    def rate(self) -> float | None:
        """Typical speed in tokens/s: the geometric mean over usable runs. None without any."""
        logs = [math.log(run.decode_rate) for run in self.runs if run.is_counted and run.decode_rate]
        return math.exp(math.fsum(logs) / len(logs)) if logs else None

    @property
    def rounds(self) -> tuple[float, ...]:
        """Mean speed of each round, in which every prompt was answered once, as in `bench`."""
        return tuple(statistics.fmean(each.values()) for each in _split_rounds(_rates_by_prompt(self.runs)))


def speedup_of_starts(
    baseline: Sequence[ServerStart],
    candidate: Sequence[ServerStart],
    *,
    together: bool = True,
    by_start: bool = False,
    confidence: float = CONFIDENCE,
) -> Speedup:
    """Return the speed-up of the candidate over the baseline. `together`: both sides took turns in one session.

    With `by_start`, the interval is infinite if a side has fewer than FEWEST_STARTS, because replies of one start do
    not show how starts differ. Raises ValueError when one side has no usable run.
    """
    before = {start.number: rate for start in baseline if (rate := start.rate)}
    after = {start.number: rate for start in candidate if (rate := start.rate)}
    if min(len(before), len(after)) < FEWEST_STARTS:
        runs = [[run for start in each for run in start.runs] for each in (baseline, candidate)]
        speedup = speedup_of_runs(*runs, together=together, confidence=confidence)
        return replace(speedup, ratio=replace(speedup.ratio, low=0.0, high=math.inf)) if by_start else speedup
    pairs = _pair_neighbours(before, after) if together else []
    if len(pairs) >= FEWEST_STARTS and 2 * len(pairs) >= min(len(before), len(after)):
        return Speedup(paired_speedup(pairs, confidence), paired=True)
    return Speedup(welch_ratio(list(before.values()), list(after.values()), confidence), paired=False)


def _pair_neighbours(before: Mapping[int, float], after: Mapping[int, float]) -> list[Pair]:
    """Return pairs of consecutive starts of the two sides, given speeds by start number. No start is in two pairs."""
    order = sorted([*before, *after])
    pairs: list[Pair] = []
    index = 0
    while index < len(order) - 1:
        one, other = order[index], order[index + 1]
        if (one in before) == (other in before):
            index += 1
            continue
        if one in before:
            pairs.append(Pair(before[one], after[other], baseline_first=True))
        else:
            pairs.append(Pair(before[other], after[one], baseline_first=False))
        index += 2
    return pairs


def speedup_of_runs(
    baseline: Sequence[Run], candidate: Sequence[Run], *, together: bool = True, confidence: float = CONFIDENCE
) -> Speedup:
    """Return the speed-up of the candidate's rounds. `together`: both sides took turns.

    Raises ValueError when one side has no usable run.
    """
    before, after = _rates_by_prompt(baseline), _rates_by_prompt(candidate)
    if not before or not after:
        raise ValueError("no speed-up without runs on both sides")
    shared = [prompt for prompt in before if prompt in after]
    if shared:
        before, after = ({prompt: each[prompt] for prompt in shared} for each in (before, after))
    rounds_before, rounds_after = (
        [_geometric_mean(round_.values()) for round_ in _split_rounds(each)] for each in (before, after)
    )
    if min(len(rounds_before), len(rounds_after)) < 2 and len(shared) > 1:
        by_prompt = [(_geometric_mean(before[prompt]), _geometric_mean(after[prompt])) for prompt in shared]
        return Speedup(paired_speedup(by_prompt, confidence), paired=True)
    if together and shared and len(rounds_before) == len(rounds_after) > 1:
        by_round = list(zip(rounds_before, rounds_after, strict=True))
        return Speedup(paired_speedup(by_round, confidence), paired=True)
    return Speedup(welch_ratio(rounds_before, rounds_after, confidence), paired=False)


def _geometric_mean(rates: Collection[float]) -> float:
    return math.exp(math.fsum(map(math.log, rates)) / len(rates))


def _split_rounds(rates: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Return the complete rounds: the first rate of every prompt, the second of every prompt, and so on."""
    return [dict(zip(rates, each, strict=True)) for each in zip(*rates.values(), strict=False)]


def welch_ratio(baseline: Sequence[float], candidate: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the ratio of the geometric means and its interval. `n` is the number of values on both sides.

    The degrees of freedom (Welch and Satterthwaite) are rounded down, which never makes the interval too narrow. Values
    must be above 0. A single value on a side has no spread: the interval is then infinite.
    """
    sides = [[math.log(value) for value in each] for each in (baseline, candidate)]
    means = [statistics.fmean(each) for each in sides]
    effect, n = means[1] - means[0], len(baseline) + len(candidate)
    if min(map(len, sides)) < 2:
        return ratio_of_logs(Interval(effect, -math.inf, math.inf, n))
    errors = [statistics.variance(each, mean) / len(each) for each, mean in zip(sides, means, strict=True)]
    if not sum(errors):
        return ratio_of_logs(Interval(effect, effect, effect, n))
    freedom = sum(errors) ** 2 / sum(error**2 / (len(each) - 1) for error, each in zip(errors, sides, strict=True))
    reach = t_quantile((1 + confidence) / 2, max(1, math.floor(freedom))) * math.sqrt(sum(errors))
    return ratio_of_logs(Interval(effect, effect - reach, effect + reach, n))


def describe_speedup(ratio: Interval) -> Message:
    """Return a ratio in words: "41.0 % faster (38.2 to 43.9 %)", "not distinguishable (-3 to +4 %)"."""
    if not math.isfinite(ratio.high):
        return message("{times:.2f} times as fast (too few runs for limits)", times=ratio.estimate)
    if ratio.low <= 1 <= ratio.high:
        ends = [100 * (end - 1) for end in (ratio.low, ratio.high)]
        digits = 0 if max(map(abs, ends)) >= 0.95 else 1
        if max(map(abs, ends)) < 0.05:
            return message("equally fast (within 0.1 %)")
        low, high = (f"{end:+.{digits}f}" for end in ends)
        return message("not distinguishable ({low} to {high} %)", low=low, high=high)
    low_percent, high_percent = sorted(abs(100 * (end - 1)) for end in (ratio.low, ratio.high))
    return fill_template(
        _FASTER if ratio.estimate > 1 else _SLOWER,
        {"percent": 100 * abs(ratio.estimate - 1), "low": low_percent, "high": high_percent},
    )


def _rates_by_prompt(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return the speeds by prompt."""
    rates: dict[str, list[float]] = {}
    for run in runs:
        if run.is_counted and run.decode_rate:
            rates.setdefault(run.prompt, []).append(run.decode_rate)
    return rates


@dataclass(frozen=True, slots=True)
class ReportRow:
    """Figures of one set of settings, None if unknown. Rates are in tokens/s, energy in joules per token.

    `failed` is the number of unusable runs, `why` the reason for the last one. `speedup` is over the baseline, None for
    the baseline itself. `starts` is the number of server starts with a usable run.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "settings runs failed why tokens_per_second=decode prefill_tokens_per_second=prefill first_token_s "
        "acceptance=acceptance.rate acceptance_by_position=acceptance.rates_by_position* power_w "
        "energy_j_per_token=energy_j temperature_c speedup"
    )
    settings: RunSettings
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
        """Draft length of the row."""
        return draft_length(self.settings)


@dataclass(frozen=True, slots=True)
class Report:
    """All rows in the order of their first run, and the `baseline` that the others are compared with.

    `common` are the settings that all rows share. For `by_start` see `build_report`.
    """

    rows: tuple[ReportRow, ...]
    baseline: ReportRow | None
    common: Mapping[str, Value]
    by_start: bool = False

    def row_label(self, row: ReportRow) -> str:
        """Return the settings in which a row differs from the others, as text."""
        return settings_line({name: value for name, value in row.settings.items() if name not in self.common})


def build_report(runs: Sequence[Run], baseline: RunSettings | None = None, *, by_start: bool = False) -> Report:
    """Return the figures of runs by their settings.

    The baseline is the given settings, else the first ones without drafts; without either, nothing is compared.
    `by_start` omits the limits of a speed-up between few starts, as for a tune, which has few runs of each start.
    """
    groups = group_starts(runs)
    settings = [starts[0].runs[0].settings for starts in groups]
    if baseline is None:
        baseline = next((each for each in settings if not draft_length(each)), None)
    index = None
    if baseline is not None:
        keys = [settings_key(each) for each in settings]
        index = keys.index(settings_key(baseline)) if settings_key(baseline) in keys else None
    base = [] if index is None else groups[index]
    rows = tuple(_build_row(starts, base if starts is not base else [], by_start=by_start) for starts in groups)
    return Report(rows, None if index is None else rows[index], common_settings(settings), by_start)


def group_runs(runs: Iterable[Run]) -> list[list[Run]]:
    """Group the runs by settings, in order of the first run of each."""
    return [[run for start in starts for run in start.runs] for starts in group_starts(runs)]


def group_starts(runs: Iterable[Run]) -> list[list[ServerStart]]:
    """Group the runs by settings into starts, in order of the first run of each."""
    keys_by_id: dict[int, Key] = {}  # many runs share one mapping of settings

    def find_key(run: Run) -> Key:
        key = keys_by_id.get(id(run.settings))
        if key is None:
            key = keys_by_id[id(run.settings)] = settings_key(run.settings)
        return key

    groups: dict[Key, list[ServerStart]] = {}
    for number, (settings, same) in enumerate(groupby(runs, find_key)):
        groups.setdefault(settings, []).append(ServerStart(number, tuple(same)))
    return list(groups.values())


def figures_by_prompt(runs: Sequence[Run]) -> tuple[tuple[str, tuple[Figure | None, ...]], ...]:
    """Return the tokens/s of each prompt by settings, in the order of `build_report`'s rows."""
    groups = group_runs(runs)
    prompts = dict.fromkeys(run.prompt for run in runs)
    cells: list[dict[str, list[float | None]]] = [{} for _ in groups]
    for cell, group in zip(cells, groups, strict=True):
        for run in group:
            if run.is_counted:
                cell.setdefault(run.prompt, []).append(run.decode_rate)
    return tuple((prompt, tuple(Figure.from_values(cell.get(prompt, [])) for cell in cells)) for prompt in prompts)


def common_settings(settings: Sequence[RunSettings]) -> dict[str, Value]:
    """Return the settings that are the same in all. Empty for a single one, which is then shown in full."""
    if len(settings) < 2:
        return {}
    first, *others = settings
    return {
        name: value
        for name, value in first.items()
        if name != DRAFT and all(name in each and each[name] == value for each in others)
    }


def settings_line(settings: RunSettings) -> str:
    """Return settings as one line, how to draft first: "draft 4 by DFlash, kv q8_0". Unset values are left out."""
    ways: list[str] = []
    if DRAFT in settings:
        ways = [choice_in(settings).label()]
    elif DRAFTER in settings:
        ways = [find_drafter(settings[DRAFTER]).title]
    others = {name: value for name, value in settings.items() if value is not None and name not in (DRAFT, DRAFTER)}
    return ", ".join([*ways, *(f"{name.replace('_', '-')} {value}" for name, value in sorted(others.items()))])


def report_data(report: Report) -> list[dict[str, Any]]:
    """Return the rows as JSON data."""
    return [to_json(row) | {"baseline": row is report.baseline} for row in report.rows]


def _build_row(starts: Sequence[ServerStart], base: Sequence[ServerStart], *, by_start: bool) -> ReportRow:
    runs = [run for start in starts for run in start.runs]
    counted = [run for run in runs if run.is_counted]
    others = [run.error or run.spoilt or message("the speed is unknown") for run in runs if not run.is_counted]
    drafts = [run.acceptance for run in counted if run.acceptance is not None and run.acceptance.drafted]

    def figure(value: Callable[[Run], float | None]) -> Figure | None:
        return Figure.from_values(map(value, counted))

    energy_j = None
    if measured := [run for run in counted if run.energy_j is not None and run.reply_tokens]:
        energy_j = math.fsum(run.energy_j or 0 for run in measured) / sum(run.reply_tokens for run in measured)
    temperatures = [run.temperature_c for run in counted if run.temperature_c is not None]
    comparable = counted and any(start.rate for start in base)
    speedup = speedup_of_starts(base, starts, by_start=by_start) if comparable else None
    return ReportRow(
        settings=runs[0].settings,
        runs=len(counted),
        failed=len(others),
        why=others[-1] if others else None,
        decode=_with_limits(figure(lambda run: run.decode_rate), starts),
        prefill=figure(lambda run: run.prefill_rate),
        first_token_s=figure(lambda run: run.first_token_s),
        acceptance=sum_acceptance(drafts) if drafts else None,
        power_w=figure(lambda run: run.power_w),
        energy_j=energy_j,
        temperature_c=max(temperatures, default=None),
        speedup=speedup.ratio if speedup else None,
        starts=sum(start.rate is not None for start in starts),
    )


def _with_limits(runs: Figure | None, starts: Sequence[ServerStart]) -> Figure | None:
    """Return the figure of all runs with an interval over starts, or over rounds if there was a single start."""
    if runs is None:
        return None
    rates = [rate for start in starts if (rate := start.rate)]
    if len(rates) == 1:
        rates = [rate for start in starts for rate in start.rounds]
    if len(rates) < 2:
        return replace(runs, low=None, high=None)
    interval = rate_interval(rates)
    factor = interval.high / interval.estimate
    return replace(runs, low=runs.mean / factor, high=runs.mean * factor)


# Comparison of two sessions: their differences, and the speed-up of the second.


@dataclass(frozen=True, slots=True)
class SettingsComparison:
    """Figures of settings in the first session and in the second, and the speed-up of the second.

    `speedup` is None if one of them has no usable run; its limits need FEWEST_STARTS starts of each.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "first second ratio=speedup.ratio paired=speedup.paired told_apart=speedup.distinguishable sentence"
    )
    first: ReportRow
    second: ReportRow
    speedup: Speedup | None

    @property
    def has_limits(self) -> bool:
        """Whether the speed-up has limits."""
        return self.speedup is not None and math.isfinite(self.speedup.ratio.high)

    @property
    def sentence(self) -> str | None:
        """The speed-up in words."""
        if self.speedup is None:
            return None
        if self.has_limits:
            return describe_speedup(self.speedup.ratio)
        return message("{times:.2f} times as fast (too few starts for limits)", times=self.speedup.ratio.estimate)

    @property
    def label(self) -> str:
        """The settings in one line; once if they are the same."""
        labels = [settings_line(row.settings) or "as served" for row in (self.first, self.second)]
        if labels[0] == labels[1]:
            return labels[0]
        first, second = self.first.settings, self.second.settings
        shared = {name for name, value in first.items() if second.get(name) == value and name != DRAFT}
        different = [
            settings_line({name: value for name, value in settings.items() if name not in shared})
            for settings in (first, second)
        ]
        return " -> ".join(text or "as served" for text in different)


def tune_note(session: Session) -> str:
    """Return why a tune's verdict differs from a table of all its starts. Empty for other sessions."""
    if session.kind != "tune" or not session.result.get("sentence"):
        return ""
    return message(
        "These figures include every start, also those of the search. The verdict of the tune uses only its "
        "final comparison, so its figures differ. Use the verdict."
    )


@dataclass(frozen=True, slots=True)
class SessionComparison:
    """Comparison of two sessions. `differences` in prompts, hardware, driver, engine and model are sentences."""

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "first.id first.kind first.workload first.began_s first.environment "
        "second.id second.kind second.workload second.began_s second.environment differences rows notes"
    )
    first: Session
    second: Session
    differences: tuple[str, ...]
    rows: tuple[SettingsComparison, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the method of the comparison."""
        methods = {row.speedup.paired for row in self.rows if row.speedup and row.has_limits}
        notes = []
        if self.first.id == self.second.id and (note := tune_note(self.first)):
            notes.append(message("{note} It says: {sentence}", note=note, sentence=self.first.result["sentence"]))
        if True in methods:
            notes.append(
                message(
                    "Compared in pairs of consecutive starts or of the same prompts, so that shared effects cancel out."
                )
            )
        if False in methods:
            notes.append(message("Compared as two groups (Welch's t test on the logarithms of the speeds)."))
        if any(row.speedup and not row.has_limits for row in self.rows):
            notes.append(
                message(
                    "Limits need {fewest_starts} starts of each, because one start does not show how starts "
                    "differ. `tune` repeats starts in turn.",
                    fewest_starts=FEWEST_STARTS,
                )
            )
        if self.first.id != self.second.id and any(row.speedup for row in self.rows):
            notes.append(message("They were measured at different times, so changes in between affect the difference."))
        return tuple(notes)


def compare_sessions(
    first: Session,
    second: Session,
    first_choice: Mapping[str, str] | None = None,
    second_choice: Mapping[str, str] | None = None,
) -> SessionComparison:
    """Compare two sessions, or two settings of one. The choices select settings, as users write them.

    Settings that both sessions have are compared with each other, or else those that differ only in chosen ones. If
    each side has a single set of settings, these are compared. Raises BadOption when there is nothing to compare.
    """
    first_choice, second_choice = first_choice or {}, second_choice or {}
    first_groups, second_groups = _choose_groups(first, first_choice), _choose_groups(second, second_choice)
    chosen = {_setting_name(name) for name in (*first_choice, *second_choice)}
    pairs = _matching_pairs(first_groups, second_groups, set()) or _matching_pairs(first_groups, second_groups, chosen)
    if len(first_groups) == len(second_groups) == 1:
        pairs = [(first_groups[0], second_groups[0])]
    if not pairs:
        raise BadOption(
            message("The two measurements have no settings in common."),
            message(
                "Choose one of each, as in `ID:draft=2`: {settings}",
                settings="; ".join(settings_line(group.row.settings) for group in (*first_groups, *second_groups)),
            ),
        )
    together = first.id == second.id
    return SessionComparison(
        first,
        second,
        (*_prompt_differences(first, second), *first.environment.differences(second.environment)),
        tuple(_compare_groups(one, other, together=together) for one, other in pairs),
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """One set of settings of a session: its figures, and the starts that they come from."""

    row: ReportRow
    starts: Sequence[ServerStart]


def _prompt_differences(first: Session, second: Session) -> tuple[str, ...]:
    """Return a sentence if the two sessions used different prompts, whose texts alone make speeds differ."""
    if first.workload != second.workload:
        before, after = first.workload or "no workload", second.workload or "no workload"
        return (message("The prompts were those of {before} and are those of {after}.", before=before, after=after),)
    if {run.prompt for run in first.runs} & {run.prompt for run in second.runs}:
        return ()
    return (message("The prompts of {workload} have changed since then.", workload=first.workload),)


def _compare_groups(one: _Group, other: _Group, *, together: bool) -> SettingsComparison:
    if not one.row.runs or not other.row.runs:
        return SettingsComparison(one.row, other.row, None)
    speedup = speedup_of_starts(one.starts, other.starts, together=together, by_start=True)
    return SettingsComparison(one.row, other.row, speedup)


def _matching_pairs(
    first: Sequence[_Group], second: Sequence[_Group], ignored: set[str]
) -> list[tuple[_Group, _Group]]:
    """Return pairs of groups with the same settings. Settings whose name is in `ignored` may differ."""

    def key(group: _Group) -> Key:
        return settings_key({name: value for name, value in group.row.settings.items() if name not in ignored})

    by_key = {key(group): group for group in second}
    return [(group, by_key[key(group)]) for group in first if key(group) in by_key]


def _choose_groups(session: Session, wanted: Mapping[str, str]) -> list[_Group]:
    """Return the session's settings that have the wanted values. Raises BadOption if there are none."""
    groups = [_Group(*each) for each in zip(build_report(session.runs).rows, group_starts(session.runs), strict=True)]
    chosen = [
        group for group in groups if all(_has_value(group.row.settings, name, text) for name, text in wanted.items())
    ]
    if not chosen:
        what = settings_line(dict(wanted)) if wanted else "anything"
        listed = "; ".join(settings_line(group.row.settings) or "as served" for group in groups)
        raise BadOption(
            message("{id} has not measured {what}.", id=session.id, what=what),
            message("Available: {listed}.", listed=listed) if listed else "",
        )
    return chosen


def _has_value(settings: RunSettings, name: str, text: str) -> bool:
    """Return whether a setting has a value as users write it; "default" is an unset one."""
    key = _setting_name(name)
    value = settings.get(key, 0 if key == DRAFT else None)
    return text.strip().lower() == ("default" if value is None else str(value).lower())


def _setting_name(text: str) -> str:
    return text.strip().lower().replace("-", "_")
