"""A small, fixed part of the simulation behind docs/tuning.md, and its tables."""

import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.tuning.goal import Goal
from tools.tuner_simulation.__main__ import BEGIN, USUAL
from tools.tuner_simulation.bench import PROMPT_TOKENS
from tools.tuner_simulation.machine import Surroundings, compute_true_scores, draw_machine, read_spreads
from tools.tuner_simulation.report import (
    check_drafter_promises,
    check_promises,
    compute_figures,
    figures_table,
    grid_table,
    kept_table,
    kinds_table,
    lengths_table,
    results_table,
)
from tools.tuner_simulation.run import Outcome, simulate_exhaustive_searches, simulate_tunes

TEN_MINUTES_S = 600.0


@pytest.fixture(scope="module")
def ten_minutes() -> list[Outcome]:
    return simulate_tunes(range(24), Goal(), TEN_MINUTES_S, USUAL)


def count_near_best(outcomes: list[Outcome]) -> int:
    return sum(outcome.to_best >= 0.98 for outcome in outcomes)


def test_ten_minutes_are_enough_in_most_simulations(ten_minutes: list[Outcome]) -> None:
    figures = compute_figures(ten_minutes)
    assert figures.within_2 >= 0.8
    assert figures.mean_regret < 0.015
    assert figures.slower_than_off == 0
    assert figures.first_answer_s < 150
    assert max(outcome.seconds for outcome in ten_minutes) < TEN_MINUTES_S + 60


def test_machines_with_several_drafters_differ_as_published_runs_do() -> None:
    """Each has two to four, one of which is that of the machine without the others."""
    between, within = read_spreads()
    assert 0.2 < between < 0.5
    assert 0.02 < within < between
    for number in range(8):
        own, machine = draw_machine(number, USUAL), draw_machine(number, replace(USUAL, several=True))
        assert machine.drafters is not None
        assert 2 <= len(machine.drafters) <= 4
        scores, those = (compute_true_scores(each, Goal(), PROMPT_TOKENS) for each in (own, machine))
        with_head = {key: score for key, score in those.items() if dict(key)["drafter"] == "draft-mtp"}
        without_name = {tuple(pair for pair in key if pair[0] != "drafter"): score for key, score in with_head.items()}
        assert all(scores[key] == pytest.approx(score) for key, score in without_name.items())


def test_ten_minutes_are_enough_to_find_the_best_of_several_drafters() -> None:
    figures = compute_figures(simulate_tunes(range(16), Goal(), TEN_MINUTES_S, replace(USUAL, several=True)))
    assert figures.within_2 >= 0.7
    assert figures.mean_regret < 0.02
    assert figures.slower_than_off == 0
    assert figures.first_answer_s < 180


@pytest.mark.thorough
def test_an_hour_finds_the_best_of_a_large_grid_with_few_measurements() -> None:
    found = simulate_tunes(range(4), Goal(), 6 * TEN_MINUTES_S, Surroundings(load_s=20.0))
    assert count_near_best(found) >= 3
    assert sum(outcome.starts for outcome in found) < 0.4 * sum(outcome.grid for outcome in found)


def test_every_draft_length_is_forecast(ten_minutes: list[Outcome]) -> None:
    errors = [abs(error) for outcome in ten_minutes for error in outcome.errors.values()]
    assert len(errors) > 100
    assert statistics.fmean(error < 0.1 for error in errors) > 0.95


@pytest.mark.thorough
def test_without_differences_few_are_claimed() -> None:
    # Simulations 0 to 7 are in tests/tuning/test_tuner.py.
    found = simulate_tunes(range(8, 16), Goal(), TEN_MINUTES_S, Surroundings(tied=True))
    claims = [o for o in found if not o.likely and (o.answer == "on" or o.covered is not None)]
    assert len(claims) <= 1


def test_surroundings_are_the_same_for_all_machines() -> None:
    machines = [draw_machine(number, Surroundings(load_s=20.0, noise=0.4, throttling=True)) for number in range(4)]
    assert {(each.restart_s, each.run_noise, each.episodes_per_s) for each in machines} == {(20.0, 0.4, 1 / 300)}
    assert len({draw_machine(number).restart_s for number in range(4)}) == 4


def test_the_figures_of_one_simulation_are_json() -> None:
    command = "--first 3 --tunes 2 --load-s 9 --budget 4 --noise 5 --json"
    done = subprocess.run(
        [sys.executable, "-m", "tools.tuner_simulation", *command.split()], capture_output=True, text=True, check=True
    )
    figures = json.loads(done.stdout)
    assert figures["machines"] == 2
    for share in ("mean_regret", "within_2", "undecided", "worst"):
        assert 0 <= figures[share] <= 1
    assert figures["slower_than_off"] == 0
    assert 0 < figures["first_answer_s"] <= 4 * 60


def test_the_cost_of_measuring_everything_is_counted() -> None:
    for visits in (1, 2):
        searched = simulate_exhaustive_searches(range(4), Goal(), visits)
        assert count_near_best(searched) >= 2
        assert all(outcome.starts == visits * outcome.grid for outcome in searched)
        assert all(outcome.replies == 4 * outcome.starts for outcome in searched)


def test_tables_show_the_regret(ten_minutes: list[Outcome]) -> None:
    bad = simulate_tunes(range(1), Goal(), 30.0, USUAL)  # undecided, though MTP would help
    table = kept_table(check_promises(bad, bad, bad))
    assert "| mean regret | <= 0.5 % |" in table
    assert "| MISSED |" in table
    assert "| all | 24 |" in kinds_table(ten_minutes)
    assert lengths_table(ten_minutes).count("\n") == 1 + 9
    assert "| draft length | 0 (MTP off), 1, 2, 3, 4, 5, 6, 7, 8 | all |" in grid_table()
    assert results_table([("these", ten_minutes)]).splitlines()[-1].startswith("| these | 24 |")


def test_the_document_has_these_tables_and_explains_their_columns(ten_minutes: list[Outcome]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text("utf-8")
    above, tables = text.split(BEGIN)
    for each in (*check_promises(ten_minutes, ten_minutes, ten_minutes), *check_drafter_promises(ten_minutes)):
        assert f"| {each.what} | {each.limit} |" in tables
    explained = " ".join(above.split()).lower()
    for head in (results_table([("all", ten_minutes)]), figures_table([("all", ten_minutes)])):
        columns = head.splitlines()[0]
        assert columns in tables
        for column in columns.strip("| ").split(" | ")[2:]:
            assert f"*{column.lower()}*" in explained
