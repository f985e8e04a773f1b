"""The loop of all measurements: rounds there and back, stop rules, warm-ups."""

from launcher.tuning.measuring_loop import after_rounds, after_seconds, serve_settings, visit_rounds
from launcher.tuning.records import Prompt
from tests.tuning.clocked import START_S, Clocked, Speed

PROMPT = Prompt("a", (("user", "a"),), tokens=100)


def test_every_second_round_goes_backwards_unless_the_order_is_fixed() -> None:
    assert list(visit_rounds("ab", after_rounds(3))) == [(1, "a"), (1, "b"), (2, "b"), (2, "a"), (3, "a"), (3, "b")]
    assert [each for _, each in visit_rounds("ab", after_rounds(2), there_and_back=False)] == ["a", "b", "a", "b"]
    assert list(visit_rounds("ab", after_rounds(0))) == []


async def test_the_time_is_looked_at_between_rounds() -> None:
    bench = Clocked(lambda _: Speed(100.0))
    await bench.become({})
    visited = []
    for number, prompt in visit_rounds([PROMPT, PROMPT], after_seconds(bench, 1.5)):
        visited.append(number)
        await bench.run(prompt, seed=0)  # takes a little over 1 s
    assert visited == [1, 1]


async def test_only_a_new_start_is_warmed_up() -> None:
    bench = Clocked(lambda _: Speed(100.0))
    assert await serve_settings(bench, {"draft": 2}, PROMPT, seed=0) == START_S
    assert await serve_settings(bench, {"draft": 2}, PROMPT, seed=0) == 0
    assert [prompt.tokens for prompt in bench.asked] == [24]
