"""Orders of trials, and how long a tune takes."""

from collections import Counter

import pytest

from launcher.tuning.plan_of_trials import (
    balanced_orders,
    best_passes,
    count_starts,
    first_ways,
    plan_trials,
    probe_lengths,
)
from launcher.tuning.records import Prompt
from launcher.tuning.space import Space, SpaceAxis


@pytest.mark.parametrize("candidates", [1, 2, 3, 4])
@pytest.mark.parametrize("pairs", [4, 6, 10])
def test_the_order_of_trials_is_balanced(pairs: int, candidates: int) -> None:
    orders = balanced_orders(pairs, candidates)
    assert len(orders) == pairs
    assert all(sorted(order) == list(range(candidates + 1)) for order in orders)
    for candidate in range(1, candidates + 1):
        after = [order.index(candidate) > order.index(0) for order in orders]
        assert Counter(after) == {True: pairs // 2, False: pairs // 2}
    if candidates > 1:
        earlier = sum(order.index(1) < order.index(2) for order in orders)
        assert abs(earlier - pairs / 2) <= 1
    assert count_starts(orders) == pairs * (candidates + 1)


def test_probes_are_the_ends_and_the_middle_of_the_draft_lengths() -> None:
    assert probe_lengths((1, 2, 3, 4, 5, 6)) == (6, 1, 3)
    assert probe_lengths((2,)) == (2,)


def test_expensive_starts_and_noisy_runs_ask_for_more_runs_on_a_start() -> None:
    assert best_passes(start_s=1, run_s=3, noise=0.01, start_noise=0.01, prompts=4) == 1
    # The best number of runs is sqrt(start_s / run_s) * noise / start_noise = 7.5, so two passes over four prompts.
    assert best_passes(start_s=10, run_s=2, noise=0.03, start_noise=0.009, prompts=4) == 2
    assert best_passes(start_s=60, run_s=1, noise=0.08, start_noise=0.005, prompts=4) == 2


def test_a_default_tune_of_a_35b_mixture_of_experts_at_100_tokens_a_second_takes_ten_minutes() -> None:
    space = Space({"kv": "q8_0"}, (1, 2, 3, 4, 5, 6), (SpaceAxis("kv", ("q8_0", "f16"), memory=True),))
    prompts = [Prompt(f"{n}", (("user", "x"),), 200) for n in range(4)]
    found = plan_trials(space, prompts, 600, rate=100, restart_s=9)
    assert 500 < found.seconds <= 600
    assert found.starts == found.probe + found.explore + found.verify + found.confirm
    assert (found.probe, found.explore, found.verify) == (4, 8, count_starts(balanced_orders(4, 2)))
    assert found.confirm > 0
    assert found.runs == 4 * found.starts
    assert found.starting_s == pytest.approx(found.starts * (9 + 0.24 + 0.5))
    assert found.least_s == pytest.approx(4 * found.seconds / found.starts)


def test_more_time_is_used_to_confirm_and_no_plan_is_longer_than_its_budget() -> None:
    space = Space({"kv": "q8_0"}, (1, 2, 3), (SpaceAxis("kv", ("q8_0", "f16")),))
    prompts = [Prompt("one", (("user", "x"),), 100)]
    assert plan_trials(space, prompts, 3_600, rate=100, restart_s=5).confirm == count_starts(balanced_orders(4, 2))
    for budget_s in (0, 5, 40, 100, 300, 700, 5_000):
        found = plan_trials(space, prompts, budget_s, rate=100, restart_s=5)
        assert found.seconds <= budget_s
        assert min(found.probe, found.explore, found.verify, found.confirm) >= 0


def test_the_first_trials_try_each_of_several_drafters_once() -> None:
    own = Space({"kv": "q8_0"}, (1, 2, 3, 4, 5, 6, 7, 8))
    assert first_ways(own) == ((None, 7), (None, 1), (None, 4))
    kinds = ("draft-dflash", "ngram-simple", "draft-mtp")
    several = Space({"drafter": "draft-mtp"}, own.drafts, (SpaceAxis("drafter", kinds, drafting=True),))
    assert first_ways(several) == (("draft-dflash", 7), ("ngram-simple", 1), ("draft-mtp", 4))
    one_length = Space({"drafter": "draft-mtp"}, (2,), several.axes)
    assert first_ways(one_length) == (("draft-dflash", 2), ("ngram-simple", 2), ("draft-mtp", 2))
