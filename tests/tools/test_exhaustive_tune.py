"""The measurement that a tune's verdict is held against: its grid, its engines and its regret."""

import math
import sys
from pathlib import Path

import pytest

from tests.conftest import BUILT_IN
from tools.exhaustive_tune import (
    compute_held_out_regret,
    compute_regret,
    list_combinations,
    make_arguments,
    measure_round,
    name_settings,
)

SPACE = {
    "baseline": {"draft": 0, "threads": 2, "draft_sampling": "greedy"},
    "drafts": [1, 2],
    "axes": [["threads", [1, 2], False, False], ["draft_sampling", ["greedy", "probabilistic"], False, True]],
}


def test_the_grid_is_that_of_the_tune() -> None:
    found = list_combinations(SPACE)
    assert len(found) == 2 + 2 * 2 * 2
    names = [name_settings(each, SPACE["baseline"]) for each in found]
    assert names[:2] == ["MTP off, threads 1", "MTP off"]
    assert names[-1] == "draft 2, draft_sampling probabilistic"
    assert make_arguments(found[0]) == ["--threads", "1"]
    assert " ".join(make_arguments(found[-1])) == (
        "--spec-type draft-mtp --spec-draft-n-max 2 --threads 2 --spec-draft-sampling probabilistic"
    )


def test_the_regret_is_the_share_of_the_best_speed_that_the_choice_lacks() -> None:
    speeds = [[math.log(100 + noise), math.log(80 + noise)] for noise in (0, 1, -1, 0)]
    regret, half_width = compute_regret(speeds, 1, 0)
    assert regret == pytest.approx(0.2, abs=0.001)
    assert 0 < half_width < 0.02
    assert compute_regret(speeds, 0, 0) == (0.0, 0.0)
    assert compute_held_out_regret(speeds, 1) == pytest.approx(0.2, abs=0.001)
    assert compute_held_out_regret(speeds[:1], 1) is None


@pytest.mark.parametrize("processor_time", [False, True] if sys.platform == "linux" else [False])
def test_a_round_measures_a_real_engine(demo_model: Path, processor_time: bool) -> None:
    workload = {"prompts": [{"text": "Tell me of a boat.", "tokens": 24}], "tokens": 24, "sampling": {"temperature": 0}}
    command = [sys.executable, "-P", str(BUILT_IN), "--model", str(demo_model), "--ctx-size", "1024", "--threads", "1"]
    combinations = [{"draft": 0}, {"draft": 2}]
    speeds = measure_round(combinations, command, workload, 0, processor_time=processor_time)
    assert all(speed > 0 for speed in speeds)
