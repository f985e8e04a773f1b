"""What a tune prints, in words for people who do not know it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.cli.tune_lines import time_words


@pytest.mark.parametrize(("restart_s", "said"), [(0.2, "6 starts of less than 1 s"), (8.7, "6 starts of 9 s")])
def test_a_start_never_takes_no_time(restart_s: float, said: str) -> None:
    plan = SimpleNamespace(seconds=100.0, starts=6, runs=24)
    prepared = SimpleNamespace(
        plan=plan, budget_s=600.0, restart_s=restart_s, measured=True, tokens=4_800, rate=100.0, prompts=()
    )
    assert said in time_words(cast("Any", prepared))
