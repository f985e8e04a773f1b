"""Predictions against arithmetic, and against published measurements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.monitor.meter import Acceptance
from launcher.tuning.predict import Positions, added, positions, predict, rates, step_time, tokens_per_step
from launcher.tuning.records import Run


def reply(draft: int, steps: int, accepted: tuple[int, ...], seconds: float) -> Run:
    tokens = steps + sum(accepted)
    drafts = Acceptance(steps * draft, sum(accepted), (steps,) * draft, accepted) if draft else None
    return Run(
        "p", {"draft": draft}, 0.0, seconds, reply_tokens=tokens, decode_rate=tokens / seconds, acceptance=drafts
    )


def test_a_step_yields_what_its_accepted_drafts_add() -> None:
    assert tokens_per_step((0.9, 0.8, 0.5), 0) == 1
    assert tokens_per_step((0.9, 0.8, 0.5), 1) == pytest.approx(1.9)
    assert tokens_per_step((0.9, 0.8, 0.5), 3) == pytest.approx(1 + 0.9 + 0.72 + 0.36)


def test_acceptance_of_a_long_draft_tells_the_yield_of_every_shorter_one() -> None:
    long = positions(1_000, Acceptance(4_000, 1_800, (1_000,) * 4, (800, 500, 300, 200)))
    assert rates(long, 4) == pytest.approx((0.8, 0.625, 0.6, 2 / 3))
    assert tokens_per_step(rates(long, 4), 2) == pytest.approx(1 + 0.8 + 0.5)
    assert tokens_per_step(rates(long, 4), 4) == pytest.approx(1 + 1.8)


def test_runs_of_different_lengths_add_up_by_position() -> None:
    short = Positions((100,), (90,))
    long = Positions((100, 80, 60), (80, 60, 30))
    assert added([short, long]) == Positions((200, 80, 60), (170, 60, 30))


def test_a_position_that_was_hardly_drafted_is_taken_for_the_one_before() -> None:
    assert rates(Positions((1_000, 700, 4), (700, 420, 0)), 4) == pytest.approx((0.7, 0.6, 0.6, 0.6))
    assert rates(Positions((), ()), 2) == ()


def test_step_times_lie_on_the_line_between_their_neighbours_and_off_is_apart() -> None:
    known = {0: 10.0, 1: 12.0, 3: 16.0, 6: 25.0}
    assert [step_time(known, draft) for draft in (0, 1, 2, 4, 7)] == pytest.approx([10, 12, 14, 19, 28])
    with pytest.raises(ValueError, match="no step time for draft 0"):
        step_time({1: 12.0, 3: 16.0}, 0)
    with pytest.raises(ValueError, match="no step time for draft 2"):
        step_time({0: 10.0, 1: 12.0}, 2)


@given(st.lists(st.floats(0.1, 1.0), min_size=6, max_size=6), st.floats(0.005, 0.05), st.floats(0.0005, 0.01))
def test_every_length_follows_from_three_where_time_is_a_line(chain: list[float], first: float, more: float) -> None:
    def run(draft: int) -> Run:
        alive, accepted = 1_000_000.0, []
        for rate in chain[:draft]:
            alive *= rate
            accepted.append(round(alive))
        return reply(draft, 1_000_000, tuple(accepted), 1_000_000 * (first + more * draft if draft else first / 2))

    found = predict([run(0), run(1), run(6)], range(7))
    for draft in range(7):
        seconds = first + more * draft if draft else first / 2
        assert found[draft] == pytest.approx(tokens_per_step(chain, draft) / seconds, rel=1e-3)


def test_without_drafts_nothing_is_said_of_drafts() -> None:
    assert predict([reply(0, 100, (), 1.0)], (0, 1, 2)) == pytest.approx({0: 100.0})
    assert predict([], (0, 1)) == {}


def test_a_published_sweep_is_met_from_three_of_its_lengths() -> None:
    """Two RTX 3090, Qwen3.6-35B-A3B, code: 163.5, 175.2, 179.5, 177.3 tokens/s at draft 1 to 4 (club-3090).

    Acceptance is known there for draft 1 (93 %) and 3 (79 % of all drafted); the positions of a chain between them are
    0.93, 0.79 and 0.65 of all steps. From draft 1 and 3 alone follows draft 2 within 3 %, and 4 within 5 %.
    """
    steps = 10_000
    chain = (0.93, 0.79, 0.65)
    runs = []
    for draft, rate in ((1, 163.5), (3, 179.5)):
        accepted = tuple(round(steps * share) for share in chain[:draft])
        runs.append(reply(draft, steps, accepted, (steps + sum(accepted)) / rate))
    found = predict(runs, (1, 2, 3, 4))
    assert found[2] == pytest.approx(175.2, rel=0.03)
    assert found[4] == pytest.approx(177.3, rel=0.05)
