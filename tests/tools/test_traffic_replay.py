"""The replay of weeks: its traffic has the published acceptance, and its figures are held against the goals."""

import pytest

from launcher.tuning.predict import tokens_per_step
from tools.traffic_replay import Week, describe_weeks, find_first_rate, read_workloads, replay_week


def test_acceptance_is_that_of_the_published_runs() -> None:
    found = read_workloads()
    assert len(found) >= 4
    draft, tokens = found[0]["coding"]
    rate = find_first_rate(draft, tokens, 0.95)
    assert tokens_per_step([rate * 0.95**i for i in range(draft)], draft) == pytest.approx(tokens, rel=1e-6)


def test_a_week_is_the_same_each_time_and_no_faster_than_the_oracle() -> None:
    week = replay_week(60_003)
    assert week is not None
    assert week == replay_week(60_003)
    least_s = week.oracle_s * (1 - 1e-9)
    assert min(week.fixed_s, week.tuned_s, week.auto_s) >= least_s
    assert week.tuned_s >= week.fixed_s * (1 - 1e-9)


def test_a_missed_goal_is_said() -> None:
    week = Week("dense", 3, 100.0, 100.0, 99.5, (1.0, 0.99), 2, 1, 0, 1.0, 101.0)
    assert describe_weeks([week])[1]
    text, kept = describe_weeks([week, Week("dense", 3, 102.0, 100.0, 99.0, (0.97,), 0, 0, 0, 0.0, 102.0)])
    assert not kept
    assert "| weeks more than 1 % below the best fixed length | 0 | 1 of 2 | missed |" in text
