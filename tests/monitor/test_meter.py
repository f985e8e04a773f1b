"""Tokens/s and draft acceptance, from replies recorded from llama-server and from made-up ones."""

import json
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.engine.server.client import Timings
from launcher.monitor.meter import Acceptance, ReplyMeter, TrafficMeter, sum_acceptance

DATA = Path(__file__).parent / "data"
FIRST_TOKEN_MS = 0.001
"""Milliseconds that the engine reports for the first token, which follows from the prompt."""


class Step(NamedTuple):
    """One verification step: drafts, how many of them were accepted, and its time."""

    drafted: int
    accepted: int
    milliseconds: float = 20.0


STEPS = st.lists(
    st.integers(0, 8).flatmap(
        lambda drafted: st.builds(Step, st.just(drafted), st.integers(0, drafted), st.floats(0.5, 3_000))
    ),
    max_size=40,
)


def read_recording(name: str) -> list[Timings]:
    return [Timings.parse(json.loads(line)) for line in (DATA / name).read_text().splitlines()]


def timings(n: int, ms: float, draft_n: int | None = None, accepted: int | None = None) -> Timings:
    rate = 1_000 * (n - 1) / ms if n > 1 else 0.0
    return Timings(0, 0, 0.0, n, ms, rate, draft_n, accepted)


def reply(steps: Iterable[Step]) -> Iterator[Timings]:
    """The events of a reply: the first token, then one event for each token of each step."""
    n, ms, drafted, accepted = 1, FIRST_TOKEN_MS, 0, 0
    yield timings(n, ms)
    for step in steps:
        ms, drafted, accepted = ms + step.milliseconds, drafted + step.drafted, accepted + step.accepted
        for _ in range(step.accepted + 1):
            n += 1
            yield timings(n, ms, drafted or None, accepted if drafted else None)


def meter_reply(events: Iterable[Timings]) -> ReplyMeter:
    meter = ReplyMeter()
    for event in events:
        meter.add(event)
    return meter


def stored_bytes(meter: ReplyMeter) -> int:
    return len(pickle.dumps(meter))


class TestRecordedReplies:
    def test_drafts_are_counted_by_position(self) -> None:
        acceptance = meter_reply(read_recording("long_reply.jsonl")).acceptance
        assert acceptance == Acceptance(46, 35, (23, 23), (22, 13))
        assert acceptance.rate == 35 / 46
        assert acceptance.rates_by_position == (22 / 23, 13 / 23)
        assert acceptance.mean_length == 1 + 35 / 23

    def test_events_before_the_first_and_after_the_last_token_do_not_count(self) -> None:
        events = read_recording("short_reply.jsonl")
        assert [event.predicted_n for event in events][:3] == [0, 0, 1]
        assert events[-1] == events[-2]
        assert meter_reply(events).acceptance == Acceptance(10, 8, (5, 5), (4, 4))

    @pytest.mark.parametrize("name", ["short_reply.jsonl", "long_reply.jsonl"])
    def test_in_the_first_second_the_rate_is_that_of_the_engine(self, name: str) -> None:
        meter = ReplyMeter()
        for event in read_recording(name):
            meter.add(event)
            if event.predicted_n >= 5:
                assert meter.tokens_per_second == pytest.approx(event.predicted_per_second, rel=1e-3)

    @pytest.mark.parametrize("name", ["short_reply.jsonl", "long_reply.jsonl"])
    def test_no_rate_is_given_before_five_tokens(self, name: str) -> None:
        meter = ReplyMeter()
        assert meter.tokens_per_second is None
        for event in read_recording(name):
            meter.add(event)
            assert (meter.tokens_per_second is None) == (event.predicted_n < 5)

    def test_the_last_timings_are_kept(self) -> None:
        events = read_recording("long_reply.jsonl")
        assert meter_reply(events).last == events[-1]


class TestRate:
    def test_the_rate_is_that_of_the_last_second(self) -> None:
        slow, fast = [Step(0, 0, 100.0)] * 30, [Step(0, 0, 10.0)] * 101
        meter = meter_reply(reply(slow))
        assert meter.tokens_per_second == pytest.approx(10)
        meter = meter_reply(reply(slow + fast))
        assert meter.tokens_per_second == pytest.approx(100)
        assert meter.last is not None
        assert meter.last.predicted_per_second < 35

    def test_accepted_drafts_count_as_tokens(self) -> None:
        assert meter_reply(reply([Step(3, 3, 40.0)] * 100)).tokens_per_second == pytest.approx(100)

    def test_a_step_longer_than_a_second_still_has_a_rate(self) -> None:
        assert meter_reply(reply([Step(0, 0, 2_000.0)] * 10)).tokens_per_second == pytest.approx(0.5)

    def test_the_window_does_not_grow_with_the_reply(self) -> None:
        assert stored_bytes(meter_reply(reply([Step(1, 1, 10.0)] * 1_000))) < 1.1 * stored_bytes(
            meter_reply(reply([Step(1, 1, 10.0)] * 200))
        )

    def test_after_a_handover_the_rate_is_that_of_the_new_engine(self) -> None:
        slow, fast = reply([Step(2, 1, 100.0)] * 100), list(reply([Step(2, 2, 10.0)] * 201))
        meter = meter_reply(slow)
        tokens_before = meter.last.predicted_n if meter.last else 0
        for event in fast:
            meter.add(replace(event, predicted_n=event.predicted_n + tokens_before))
        assert meter.tokens_per_second == pytest.approx(300)
        assert stored_bytes(meter) < 1.1 * stored_bytes(meter_reply(fast))
        assert meter.acceptance.accepted_by_position == (301, 201)

    @pytest.mark.parametrize("n", [5, 6])
    def test_a_clock_that_stops_gives_the_rate_of_the_engine(self, n: int) -> None:
        still = [Timings(0, 0, 0.0, n, 0.0, 123.0, None, None) for n in range(n + 1)]
        assert meter_reply(still).tokens_per_second == 123.0

    @settings(deadline=None)
    @given(STEPS)
    def test_the_rate_is_between_those_of_the_slowest_and_fastest_step(self, steps: list[Step]) -> None:
        rate = meter_reply(reply(steps)).tokens_per_second
        rates = [1_000 * (step.accepted + 1) / step.milliseconds for step in steps]
        if 1 + sum(step.accepted + 1 for step in steps) < 5:
            assert rate is None
        else:
            assert rate is not None
            assert min(rates) * 0.999 <= rate <= max(rates) * 1.001


class TestAcceptance:
    def test_acceptance_is_unknown_before_a_draft(self) -> None:
        acceptance = meter_reply(reply([Step(0, 0)] * 10)).acceptance
        assert acceptance == Acceptance(0, 0, (), ())
        assert (acceptance.rate, acceptance.rates_by_position, acceptance.mean_length) == (None, (), None)

    def test_a_meter_without_events_has_no_acceptance(self) -> None:
        assert ReplyMeter().acceptance == Acceptance(0, 0, (), ())

    def test_rejected_drafts_are_counted(self) -> None:
        acceptance = meter_reply(reply([Step(3, 0)] * 4)).acceptance
        assert acceptance == Acceptance(12, 0, (4, 4, 4), (0, 0, 0))
        assert (acceptance.rate, acceptance.mean_length) == (0, 1)

    def test_a_short_draft_does_not_count_at_later_positions(self) -> None:
        acceptance = meter_reply(reply([Step(3, 3), Step(1, 1), Step(0, 0), Step(2, 0)])).acceptance
        assert acceptance.drafted_by_position == (3, 2, 1)
        assert acceptance.accepted_by_position == (2, 1, 1)

    @settings(deadline=None)
    @given(STEPS)
    def test_counts_by_position_add_up_to_the_totals_of_the_engine(self, steps: list[Step]) -> None:
        acceptance = meter_reply(reply(steps)).acceptance
        longest = max((step.drafted for step in steps), default=0)
        assert acceptance.drafted == sum(acceptance.drafted_by_position) == sum(step.drafted for step in steps)
        assert acceptance.accepted == sum(acceptance.accepted_by_position) == sum(step.accepted for step in steps)
        assert acceptance.accepted_by_position == tuple(
            sum(step.accepted > position for step in steps) for position in range(longest)
        )

    @settings(deadline=None)
    @given(STEPS)
    def test_every_rate_lies_between_0_and_1(self, steps: list[Step]) -> None:
        acceptance = meter_reply(reply(steps)).acceptance
        assert all(0 <= rate <= 1 for rate in acceptance.rates_by_position)
        assert acceptance.rate is None or 0 <= acceptance.rate <= 1
        drafting = [step for step in steps if step.drafted]
        if drafting:
            mean = sum(step.accepted + 1 for step in drafting) / len(drafting)
            assert acceptance.mean_length == pytest.approx(mean)
        else:
            assert acceptance.mean_length is None


class TestTraffic:
    def test_the_rate_is_that_of_the_last_second_without_pauses(self) -> None:
        meter = TrafficMeter()
        for at_s in (0.0, 0.5, 60.0):  # the count does not grow
            meter.add(at_s, 7)
            assert meter.rate_at(at_s) is None
        for tenth in range(1, 31):
            meter.add(60 + tenth / 10, 7 + 5 * tenth)
            assert meter.rate_at(60 + tenth / 10) == (None if tenth == 1 else pytest.approx(50))
        for tenth in range(31, 51):
            meter.add(60 + tenth / 10, 157 + 2 * (tenth - 30))
        assert meter.rate_at(65) == pytest.approx(20)

    def test_a_stream_without_tokens_for_a_second_has_no_rate(self) -> None:
        meter = TrafficMeter()
        for at_s, parts in ((0.0, 0), (0.5, 50), (0.9, 50)):
            meter.add(at_s, parts)
        assert meter.rate_at(0.9) == meter.rate_at(1.4) == pytest.approx(100)
        assert meter.rate_at(1.6) is None
        meter.add(1.6, 50)
        meter.add(1.9, 53)
        assert meter.rate_at(1.9) == pytest.approx(10)

    def test_delayed_counts_have_the_rate_of_their_own_times(self) -> None:
        meter = TrafficMeter()
        for tenth in range(5):
            meter.add(tenth / 10, 10 * tenth)
        assert meter.rate_at(1.0) == pytest.approx(100)

    def test_another_engine_resets_the_rate(self) -> None:
        meter = TrafficMeter()
        meter.add(0.0, 0)
        meter.add(0.5, 10)
        meter.reset()
        meter.add(0.8, 20)
        assert meter.rate_at(0.8) is None


class TestTotal:
    def test_without_replies_the_mean_is_unknown(self) -> None:
        assert sum_acceptance([]) == Acceptance(0, 0, (), ())

    def test_replies_with_different_draft_lengths_are_summed(self) -> None:
        parts: Sequence[Acceptance] = [
            Acceptance(5, 3, (2, 2, 1), (2, 1, 0)),
            Acceptance(4, 2, (4,), (2,)),
            Acceptance(0, 0, (), ()),
        ]
        assert sum_acceptance(parts) == Acceptance(9, 5, (6, 2, 1), (4, 1, 0))

    @settings(deadline=None)
    @given(STEPS, STEPS)
    def test_two_replies_count_like_one_with_the_steps_of_both(self, first: list[Step], second: list[Step]) -> None:
        both = sum_acceptance([meter_reply(reply(first)).acceptance, meter_reply(reply(second)).acceptance])
        assert both == meter_reply(reply(first + second)).acceptance
