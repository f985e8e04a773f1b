"""What a tune prints, in words for people who do not know it."""

import shlex
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cli.tune import describe_duration, describe_more_time, describe_saving


@pytest.mark.parametrize(("restart_s", "said"), [(0.2, "6 starts of less than 1 s"), (8.7, "6 starts of 9 s")])
def test_a_start_never_takes_no_time(restart_s: float, said: str) -> None:
    assert said in describe_duration(prepared_at(100.0, restart_s))


def test_a_rate_is_written_in_full() -> None:
    said = [
        describe_duration(prepared_at(rate, 1.0)).rpartition(" at ")[2] for rate in (1_199.6, 96.44, 8.125, 123_456.0)
    ]
    assert said == [f"{rate} tokens/s" for rate in ("1,200", "96.4", "8.12", "123,000")]


def test_what_is_to_be_typed_next_is_one_word_a_shell() -> None:
    path = "/home/jane/My models/a.gguf"
    for said in (
        describe_more_time(path),
        describe_saving(path, applied=False),
        describe_saving(path, applied=True),
    ):
        verb = shlex.split(said.split("`")[1])
        assert path in verb
    assert describe_saving("demo", applied=True) == "Saved: `mtp-launcher serve demo` uses these settings."


def prepared_at(rate: float, restart_s: float) -> Any:  # noqa: ANN401 -- as much of Prepared as is told
    plan = SimpleNamespace(seconds=100.0, starts=6, runs=24)
    return SimpleNamespace(
        plan=plan, budget_s=600.0, restart_s=restart_s, measured=True, tokens=4_800, rate=rate, prompts=()
    )
