"""A small, fixed part of the simulation behind docs/tuning.md, and the tables that it is told in."""

import re
import statistics
from pathlib import Path

import pytest

from launcher.tuning.goal import Goal
from tools.tuner_simulation.__main__ import BEGIN
from tools.tuner_simulation.report import grid_table, kept_table, kinds_table, lengths_table, promises, results_table
from tools.tuner_simulation.run import Outcome, exhaustives, tunes

HOUR_S, TEN_MINUTES_S = 3_600.0, 600.0


@pytest.fixture(scope="module")
def an_hour() -> list[Outcome]:
    return tunes(range(8), Goal(), HOUR_S)


def near(some: list[Outcome]) -> int:
    return sum(outcome.to_best >= 0.98 for outcome in some)


def test_an_hour_finds_the_best_by_a_part_of_the_measurements(an_hour: list[Outcome]) -> None:
    assert near(an_hour) >= 7
    assert min(outcome.to_best for outcome in an_hour) > 0.94
    assert min(outcome.to_baseline for outcome in an_hour) >= 1 - 1e-9
    assert sum(o.starts for o in an_hour) < 0.4 * sum(o.grid for o in an_hour)


def test_every_draft_length_is_foreseen(an_hour: list[Outcome]) -> None:
    errors = [abs(error) for outcome in an_hour for error in outcome.errors.values()]
    assert len(errors) > 40
    assert statistics.fmean(error < 0.05 for error in errors) > 0.95
    assert statistics.fmean(errors) < 0.02


def test_ten_minutes_are_enough_for_the_small_grid_most_of_the_time() -> None:
    found = tunes(range(24), Goal(), TEN_MINUTES_S, small=True)
    assert near(found) >= 18
    assert min(outcome.to_baseline for outcome in found) >= 1 - 1e-9


def test_where_nothing_matters_little_is_claimed() -> None:
    found = tunes(range(8, 16), Goal(), TEN_MINUTES_S, tied=True)  # 0 to 7: tests/tuning/test_tuner.py
    assert sum(outcome.answer == "on" or outcome.covered is not None for outcome in found) <= 1


def test_measuring_everything_is_counted_whole() -> None:
    for visits in (1, 2):
        searched = exhaustives(range(4), Goal(), visits)
        assert near(searched) >= 2
        assert all(outcome.starts == visits * outcome.grid for outcome in searched)
        assert all(outcome.replies == 4 * outcome.starts for outcome in searched)


def test_the_tables_say_what_was_missed(an_hour: list[Outcome]) -> None:
    kept = promises(an_hour, an_hour[:4])  # these four are far from claiming nothing
    table = kept_table(kept)
    assert [each.kept for each in kept if "nothing" in each.what or "no setting matters" in each.what] == [False]
    assert "| MISSED |" in table
    assert table.count("\n") == 2 + len(kept)
    assert "| all | 8 |" in kinds_table(an_hour)
    assert lengths_table(an_hour).count("\n") == 2 + 7
    assert "| draft length | 0 (MTP off), 1, 2, 3, 4, 5, 6 | all |" in grid_table()
    assert results_table([("these", an_hour)]).splitlines()[-1].startswith("| these | 8 |")


def test_the_document_has_these_tables_and_says_what_their_columns_mean(an_hour: list[Outcome]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text("utf-8")
    above, tables = text.split(BEGIN)
    for each in promises(an_hour, an_hour[:4]):
        assert f"| {each.what} | {each.limit} |" in tables
    head = results_table([("all", an_hour)]).splitlines()[0]
    assert head in tables
    explained = " ".join(above.split()).lower()
    columns = ("slower", "on / off / undecided", "mtp on, but slower", "intervals that hold", "of one for each setting")
    for column in columns:
        assert column in head.lower()
        assert f"*{column}*" in explained
    for name in ("small", "large"):
        found = re.search(rf"\| 10 minutes, {name} grid \| 200 \| ([\d.]+ %)", tables)
        assert found is not None
        assert found[1] in above  # the default's figures stand directly above the first table
