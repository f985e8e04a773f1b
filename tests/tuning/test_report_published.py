"""Published tables of runs: our report computes the same averages, spreads and speed-ups as their authors."""

from collections.abc import Mapping

import pytest

from launcher.base.errors import ResultMissing
from launcher.tuning.records import Run
from launcher.tuning.report import build_report, speedup_of_runs
from launcher.tuning.report_published import KIND, PublishedTable, StatedStatistic, published_table, published_tables
from launcher.tuning.statistics import Figure

ALL = [(table, stated) for table in published_tables() for stated in table.stated]


def holds(settings: Mapping[str, object], part: Mapping[str, object]) -> bool:
    return all(settings.get(name) == value for name, value in part.items())


def compute_statistic(table: PublishedTable, stated: StatedStatistic) -> float:
    runs = [run for run in table.session.runs if not stated.prompt or run.prompt == stated.prompt]
    chosen = [run for run in runs if holds(run.settings, stated.of)]
    (row,) = build_report(chosen).rows
    figure = row.decode
    assert isinstance(figure, Figure)
    assert figure.n == len(chosen)
    if stated.what == "speedup":
        baseline = next(run.settings for run in runs if holds(run.settings, stated.over))
        result = build_report(runs, baseline)
        (row,) = (each for each in result.rows if holds(each.settings, stated.of))
        assert row.speedup is not None
        return row.speedup.estimate
    if stated.what == "acceptance":
        assert row.acceptance is not None
        assert row.acceptance.rate is not None
        return row.acceptance.rate
    value = {"mean": figure.mean, "stdev": figure.stdev, "span": figure.span}[stated.what]
    assert value is not None
    return value


@pytest.mark.parametrize(("table", "stated"), ALL, ids=[f"{t.session.id}-{s.what}-{s.value}" for t, s in ALL])
def test_stated_figures_of_the_source_are_computed(table: PublishedTable, stated: StatedStatistic) -> None:
    digits = len(stated.value.partition(".")[2])
    assert f"{compute_statistic(table, stated):.{digits}f}" == stated.value


def test_both_sources_are_there_and_named() -> None:
    assert len(ALL) >= 13
    assert len({table.source for table in published_tables()}) == 2
    assert {stated.what for _, stated in ALL} == {"mean", "stdev", "span", "acceptance", "speedup"}


def test_ten_runs_have_an_interval_and_one_has_none() -> None:
    (row,) = build_report(published_table("olares-one/ten-runs").session.runs).rows
    assert row.decode is not None
    assert row.decode.low == pytest.approx(247.15, abs=0.02)  # 249.303 -+ 2.262 * 2.997 / sqrt(10)
    assert row.decode.high == pytest.approx(251.45, abs=0.02)
    peaks = build_report(published_table("published:rtx-5060-ti/moe-peak").session.runs)
    assert all(each.decode and each.decode.stdev is None for each in peaks.rows)
    assert peaks.baseline is peaks.rows[0]


def test_a_curve_of_fills_is_paired_by_fill() -> None:
    runs = published_table("rtx-5060-ti/moe-fill").session.runs

    def runs_with(part: Mapping[str, object]) -> list[Run]:
        return [run for run in runs if holds(run.settings, part)]

    found = speedup_of_runs(runs_with({"draft": 0, "kv": "q4_0"}), runs_with({"draft": 2, "kv": "q4_0"}))
    assert found.paired
    assert found.ratio.n == 4  # 80K was not measured with MTP
    assert found.ratio.estimate == pytest.approx((144 / 94 * 123 / 84 * 94 / 69 * 82 / 62) ** 0.25)


def test_a_table_that_is_not_there_is_reported() -> None:
    assert published_table("published:olares-one/stacks").session.kind == KIND
    with pytest.raises(ResultMissing, match="no published table nothing"):
        published_table("published:nothing")
