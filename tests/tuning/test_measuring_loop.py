"""The loop of all measurements: the order of the rounds, stop rules, warm-ups, time limits."""

import asyncio

import pytest

from launcher.tuning.measuring_loop import after_rounds, after_seconds, limit_time, serve_settings, visit_rounds
from launcher.tuning.records import Prompt
from tests.tuning.clocked import START_S, Speed, VirtualBench

PROMPT = Prompt("a", (("user", "a"),), tokens=100)


def test_every_second_round_is_in_reverse_order_unless_the_order_is_fixed() -> None:
    assert list(visit_rounds("ab", after_rounds(3))) == [(1, "a"), (1, "b"), (2, "b"), (2, "a"), (3, "a"), (3, "b")]
    assert [each for _, each in visit_rounds("ab", after_rounds(2), there_and_back=False)] == ["a", "b", "a", "b"]
    assert list(visit_rounds("ab", after_rounds(0))) == []


async def test_the_time_is_checked_between_rounds() -> None:
    bench = VirtualBench(lambda _: Speed(100.0))
    await bench.become({})
    visited = []
    for number, prompt in visit_rounds([PROMPT, PROMPT], after_seconds(bench, 1.5)):
        visited.append(number)
        await bench.run(prompt, seed=0)  # takes a little over 1 s
    assert visited == [1, 1]


async def test_only_a_new_start_is_warmed_up() -> None:
    bench = VirtualBench(lambda _: Speed(100.0))
    assert await serve_settings(bench, {"draft": 2}, PROMPT, seed=0) == START_S
    assert await serve_settings(bench, {"draft": 2}, PROMPT, seed=0) == 0
    assert [prompt.tokens for prompt in bench.prompts] == [24]


async def test_a_time_limit_does_not_count_waiting() -> None:
    checks, checked_again = 0, asyncio.Event()

    def waited_s() -> float:
        nonlocal checks
        checks += 1
        if checks > 2:
            checked_again.set()
        return (checks - 1) * 0.01

    async with limit_time(0.005, waited_s):
        await checked_again.wait()  # long after the limit
    with pytest.raises(TimeoutError):
        async with limit_time(0.005, lambda: 1.0):
            await asyncio.Event().wait()
