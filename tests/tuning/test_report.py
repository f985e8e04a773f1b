"""Runs as figures: which ones count, which settings are compared, and ratios checked against scipy's tests."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from launcher.base.codec import to_json
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.report import (
    build_report,
    common_settings,
    describe_speedup,
    figures_by_prompt,
    group_runs,
    report_data,
    settings_line,
    speedup_of_runs,
    welch_ratio,
)
from launcher.tuning.report_export import interval_text
from launcher.tuning.statistics import Figure, Interval, rate_interval
from tests.tuning.measured import OFF, ON, run

BASE, FAST = (50.0, 52.0, 51.0, 49.5), (70.0, 69.0, 72.5, 71.0)


def test_a_figure_has_mean_interval_and_spread() -> None:
    found = Figure.from_values([*BASE, None])
    assert found is not None
    assert (found.n, found.least, found.most, found.span) == (4, 49.5, 52.0, 2.5)
    assert found.stdev == pytest.approx(statistics.stdev(BASE))
    low, high = scipy.stats.t.interval(0.95, 3, statistics.fmean(BASE), scipy.stats.sem(BASE))
    assert [found.low, found.high] == pytest.approx([low, high])
    assert Figure.from_values([None]) is None
    one = Figure.from_values([5.0])
    assert one is not None
    assert (one.mean, one.stdev, one.low, one.high, one.n) == (5.0, None, None, None, 1)


def test_rows_are_in_the_order_of_settings_and_compared_with_mtp_off() -> None:
    result = build_report([run(FAST[0], ON), *(run(rate) for rate in BASE), *(run(rate, ON) for rate in FAST[1:])])
    assert [row.draft for row in result.rows] == [2, 0]
    on, off = result.rows
    assert result.baseline is off
    assert off.speedup is None
    assert on.speedup is not None
    expected = math.exp(statistics.fmean(math.log(b / a) for a, b in zip(BASE, FAST, strict=True)))
    assert on.speedup.estimate == pytest.approx(expected)
    assert result.common == {"kv": "q8_0"}
    assert [result.row_label(row) for row in result.rows] == ["draft 2", "MTP off"]


def test_only_counted_runs_are_in_the_figures() -> None:
    runs = [run(50.0), run(5.0, spoilt="It was too hot."), run(None, error="It ended."), run(60.0)]
    (row,) = build_report(runs).rows
    assert row.decode is not None
    assert (row.decode.mean, row.runs, row.failed, row.why) == (55.0, 2, 2, "It ended.")
    (row,) = build_report(runs[1:3]).rows
    assert (row.decode, row.runs, row.failed) == (None, 0, 2)


def test_drafts_energy_and_heat_are_summed() -> None:
    first = run(70.0, ON, temperature_c=60.0, energy_j=50.0, power_w=200.0)
    (row,) = build_report([first, replace(first, temperature_c=64.0)]).rows
    assert row.acceptance is not None
    assert (row.acceptance.drafted, row.acceptance.accepted) == (400, 300)
    assert row.acceptance.rates_by_position == (0.9, 0.6)
    assert row.energy_j == pytest.approx(100 / 500)
    assert row.temperature_c == 64.0
    (row,) = build_report([run(50.0)]).rows
    assert (row.acceptance, row.energy_j, row.power_w, row.temperature_c) == (None, None, None, None)


def test_settings_in_another_order_are_the_same() -> None:
    swapped = dict(reversed(list(ON.items())))
    assert [len(each) for each in group_runs([run(1.0, ON), run(2.0, swapped), run(3.0)])] == [2, 1]


def test_the_baseline_may_be_chosen_and_may_be_missing() -> None:
    runs = [run(70.0, ON), run(80.0, {"draft": 3, "kv": "q8_0"})]
    assert build_report(runs).baseline is None
    assert all(row.speedup is None for row in build_report(runs).rows)
    result = build_report(runs, ON)
    assert result.baseline is result.rows[0]
    assert result.rows[1].speedup is not None
    assert result.rows[1].speedup.estimate == pytest.approx(80 / 70)
    assert to_json(result.rows[1].speedup)["low"] == 0.0  # with one run of each there are no limits
    assert to_json(result.rows[1].speedup)["high"] is None


def test_an_uncounted_baseline_is_compared_with_nothing() -> None:
    result = build_report([run(None, error="It ended."), run(70.0, ON)])
    assert result.rows[1].speedup is None
    assert report_data(result)[0]["tokens_per_second"] is None


def test_prompts_have_their_own_table() -> None:
    runs = [run(50.0), run(52.0), run(40.0, prompt="prose"), run(70.0, ON), run(9.0, ON, prompt="prose", spoilt="Hot.")]
    (code, figures), (prose, others) = figures_by_prompt(runs)
    assert (code, prose) == ("code", "prose")
    assert [each.mean if each else None for each in figures] == [51.0, 70.0]
    assert [each.mean if each else None for each in others] == [40.0, None]


def test_settings_are_written_in_words() -> None:
    assert settings_line({"ubatch": 512, "draft": 3, "n_cpu_moe": 4, "kv": None}) == "draft 3, n-cpu-moe 4, ubatch 512"
    assert settings_line({"draft": 0}) == "MTP off"
    assert settings_line({"draft": 4, "drafter": "draft-dflash", "kv": "f16"}) == "draft 4 by DFlash, kv f16"
    assert settings_line({"drafter": "draft-eagle3", "kv": "f16"}) == "EAGLE-3, kv f16"
    assert settings_line({"draft": 0, "drafter": "draft-eagle3"}) == "MTP off"
    assert settings_line({}) == ""
    assert common_settings([{"kv": None, "draft": 1}, {"kv": None, "draft": 1}]) == {"kv": None}
    assert common_settings([{"kv": "f16"}]) == {}


@given(
    st.lists(st.floats(1, 1_000), min_size=2, max_size=12),
    st.lists(st.floats(1, 1_000), min_size=2, max_size=12),
)
def test_runs_of_different_computers_are_compared_as_by_scipy(one: list[float], other: list[float]) -> None:
    found = welch_ratio(one, other)
    logs = [list(map(math.log, each)) for each in (other, one)]
    if min(map(statistics.pstdev, logs)) < 1e-6:  # scipy warns of what it cannot compute precisely
        return
    theirs = cast("Any", scipy.stats.ttest_ind(*logs, equal_var=False))
    limits = theirs.confidence_interval(0.95)
    assert math.log(found.estimate) == pytest.approx(statistics.fmean(logs[0]) - statistics.fmean(logs[1]))
    # Scipy's degrees of freedom are not whole; rounded down, our interval is never narrower.
    assert math.log(found.low) <= limits.low + 1e-9
    assert math.log(found.high) >= limits.high - 1e-9
    if theirs.df >= 10:
        assert found.low == pytest.approx(math.exp(limits.low), rel=0.05)


def test_welch_without_spread_or_with_one_value() -> None:
    found = welch_ratio([10.0, 10.0], [20.0, 20.0])
    assert [found.estimate, found.low, found.high] == pytest.approx([2, 2, 2])
    found = welch_ratio([10.0], [20.0, 21.0])
    assert (found.low, found.high) == (0.0, math.inf)


def test_runs_of_the_same_prompts_are_compared_in_pairs() -> None:
    prompts = {"a": 100.0, "b": 50.0, "c": 20.0}
    before = [run(rate, prompt=name) for name, rate in prompts.items()]
    factors = (1.4, 1.41, 1.42)
    after = [run(rate * by, ON, prompt=name) for by, (name, rate) in zip(factors, prompts.items(), strict=True)]
    found = speedup_of_runs(before, after, together=False)
    assert found.paired
    assert found.distinguishable
    assert found.ratio.n == 3
    assert found.ratio.estimate == pytest.approx((1.4 * 1.41 * 1.42) ** (1 / 3))
    assert found.ratio.low > 1.38  # by Welch's test the prompts' own spread would hide it
    assert welch_ratio(list(prompts.values()), [each.decode_rate or 0 for each in after]).low < 1


def test_rounds_and_not_replies_are_counted() -> None:
    runs = [run(rate * by, prompt=name) for by in (1.0, 1.1, 1.2) for name, rate in (("a", 100.0), ("b", 50.0))]
    (row,) = build_report(runs).rows
    assert row.decode is not None
    theirs = rate_interval([75.0, 82.5, 90.0])
    assert (row.decode.low, row.decode.high) == pytest.approx((theirs.low, theirs.high))
    after = [replace(each, settings=ON, decode_rate=(each.decode_rate or 0) * 1.5) for each in reversed(runs)]
    found = speedup_of_runs(runs, after, together=False)
    assert not found.paired
    assert found.ratio.n == 6
    # It would be 1.37 if all 12 replies counted as independent.
    assert found.ratio.high / found.ratio.estimate == pytest.approx(1.229, abs=0.001)


def test_limits_of_a_rate_are_not_negative() -> None:
    (row,) = build_report([run(10.0), run(2_000.0)]).rows
    assert row.decode is not None
    assert row.decode.low is not None
    assert row.decode.low > 0
    assert interval_text(row.decode) == "1005 (too few runs for limits)"


def test_limits_of_an_amount_are_not_negative() -> None:
    few = Figure.from_values([0.02, 0.4])
    assert few
    assert few.low == 0.0
    assert few.high
    assert few.high > 2


def test_few_starts_of_a_tune_have_no_limits() -> None:
    """However many replies a start has, they do not show how starts differ."""
    runs = [run(rate, settings) for settings in (OFF, ON) for rate in (20.0, 20.2, 19.9)]
    assert build_report(runs).rows[1].speedup != build_report(runs, by_start=True).rows[1].speedup
    result = build_report(runs, by_start=True).rows[1]
    assert result.starts == 1
    assert result.speedup
    assert (result.speedup.low, result.speedup.high) == (0.0, math.inf)
    often = build_report(runs * 3, by_start=True).rows[1]
    assert often.starts == 3
    assert often.speedup
    assert often.speedup.high < math.inf


def test_one_prompt_is_paired_only_where_the_settings_took_turns() -> None:
    before, after = [run(rate) for rate in BASE], [run(rate, ON) for rate in FAST]
    assert speedup_of_runs(before, after, together=True).paired
    assert not speedup_of_runs(before, after, together=False).paired
    assert not speedup_of_runs(before, after[:3], together=True).paired
    assert speedup_of_runs(before, after, together=False).ratio == welch_ratio(BASE, FAST)


def test_empty_measurements_are_not_compared() -> None:
    no_run: list[Run] = [run(None, error="It ended.")]
    with pytest.raises(ValueError, match="no speed-up"):
        speedup_of_runs(no_run, [run(1.0)])


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (Interval(1.41, 1.38, 1.44, 8), "41.0 % faster (38.0 to 44.0 %)"),
        (Interval(0.763, 0.75, 0.78, 8), "23.7 % slower (22.0 to 25.0 %)"),
        (Interval(1.01, 0.98, 1.04, 8), "not distinguishable (-2 to +4 %)"),
        (Interval(1.001, 0.998, 1.004, 8), "not distinguishable (-0.2 to +0.4 %)"),
        (Interval(1.0, 1.0, 1.0, 8), "equally fast (within 0.1 %)"),
        (Interval(1.469, 0.0, math.inf, 2), "1.47 times as fast (too few runs for limits)"),
    ],
)
def test_a_ratio_is_described_in_words(ratio: Interval, expected: str) -> None:
    assert describe_speedup(ratio) == expected


def repeat_runs(rates: Sequence[tuple[RunSettings, float]]) -> list[Run]:
    """Return four nearly equal runs for each start, so that almost all differences are between starts."""
    return [run(rate * wobble, settings) for settings, rate in rates for wobble in (0.999, 1.0, 1.0, 1.001)]


def test_starts_are_counted_and_not_their_runs() -> None:
    rates = [(OFF, 50.0), (OFF, 60.0), (ON, 62.0), (OFF, 40.0), (ON, 52.0), (OFF, 55.0), (ON, 45.0)]
    off, on = build_report(repeat_runs(rates)).rows
    assert off.decode is not None
    assert on.decode is not None
    assert off.decode.n == 16
    one = math.sqrt(50.0 * 60.0)  # trials with the same settings in a row share one start
    low, high = scipy.stats.t.interval(0.95, 2, 0.0, scipy.stats.sem(list(map(math.log, [one, 40.0, 55.0]))))
    low, high = (off.decode.mean * math.exp(end) for end in (low, high))
    assert off.decode.high - off.decode.low == pytest.approx(high - low, rel=0.001)  # type: ignore[operator]
    assert on.speedup is not None
    assert on.speedup.low < 1 < on.speedup.high  # the runs alone would be sure of it


def test_neighbouring_starts_are_compared_in_pairs_so_that_drift_cancels() -> None:
    rates: list[tuple[RunSettings, float]] = []
    for heat, noise in zip((1.0, 0.9, 0.8, 0.7, 0.6, 0.5), (1.01, 0.99) * 3, strict=True):
        rates += [(OFF, 100.0 * heat), (ON, 110.0 * heat * noise)]
    on = build_report(repeat_runs(rates)).rows[1]
    assert on.speedup is not None
    assert on.speedup.estimate == pytest.approx(1.10, rel=0.01)
    assert 1.05 < on.speedup.low < on.speedup.high < 1.15
    unpaired = welch_ratio([rate for its, rate in rates if its is OFF], [rate for its, rate in rates if its is ON])
    assert unpaired.low < 1


def test_uncounted_starts_are_left_out() -> None:
    runs = [*repeat_runs([(OFF, 50.0), (ON, 60.0), (OFF, 51.0), (ON, 61.0)]), run(None, OFF, error="It ended.")]
    off, on = build_report(runs).rows
    assert off.failed == 1
    assert on.speedup is not None
    assert on.speedup.low > 1  # two starts each: the runs are compared
