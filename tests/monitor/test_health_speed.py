"""The finding that a server has become slower, which compares only similar requests."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from launcher.monitor.health import Health
from launcher.monitor.health_event import FindingCode, FinishedReply, Moment, ServerSetup
from tests.monitor.series import PERIOD_S, activity, list_changes, moment, reply, run


def repeat_replies(rate: Callable[[float], FinishedReply], seconds: float, start_s: float = 0.0) -> list[Moment]:
    """A reply every ten seconds."""
    count = round(seconds / PERIOD_S)
    return [
        moment(start_s + PERIOD_S * i, finished=(rate(start_s + PERIOD_S * i),) if i % 5 == 0 else ())
        for i in range(count)
    ]


def rtx_5060_ti(fill: float) -> float:
    """Tokens/s by context in use: 144 short, 123 at 10K, 94 at 40K, 82 at 55K (35B-A3B, IQ3_S, draft 2)."""
    known = [(0, 144.0), (10_000, 123.0), (40_000, 94.0), (55_000, 82.0)]
    for (a, at_a), (b, at_b) in pairwise(known):
        if fill <= b:
            return at_a + (at_b - at_a) * (fill - a) / (b - a)
    return 82.0


class TestFalling:
    def test_a_drop_to_half_is_raised_within_two_minutes_and_cleared(self) -> None:
        slow = repeat_replies(lambda _: reply(70), 300, 600)
        fine = repeat_replies(lambda _: reply(144), 300, 900)
        events = run(Health(ServerSetup(draft=2)), repeat_replies(lambda _: reply(144), 600) + slow + fine)
        assert list_changes(events) == [(FindingCode.SPEED_FALLING, True), (FindingCode.SPEED_FALLING, False)]
        assert events[0].time_s - 600 <= 120
        assert events[1].time_s - 900 <= 120
        found = events[0].finding
        assert "Replies are 2.1 times slower" in found.sentence
        assert found.evidence["replies"] >= 5

    def test_a_slow_decline_over_hours_is_found(self) -> None:
        hours = repeat_replies(lambda time_s: reply(144 * (1 - 0.4 * time_s / 10_800)), 10_800)
        assert list_changes(run(Health(ServerSetup(draft=2)), hours)) == [(FindingCode.SPEED_FALLING, True)]

    def test_slow_down_by_a_filling_context_is_no_finding(self) -> None:
        def reply_with_growing_context(time_s: float) -> FinishedReply:
            fill = 1_000 + 54_000 * (time_s % 3_600) / 3_600
            return reply(rtx_5060_ti(fill), context_used=fill)

        assert run(Health(ServerSetup(draft=2)), repeat_replies(reply_with_growing_context, 4 * 3_600)) == []

    def test_prose_after_code_is_no_finding(self) -> None:
        """Fewer drafts accepted: 144 t/s at 90 % is the same step rate as 77 t/s at 25 %."""
        code = repeat_replies(lambda _: reply(144, acceptance=0.9), 600)
        prose = repeat_replies(lambda _: reply(144 * 1.5 / 2.8, acceptance=0.25), 600, 600)
        assert FindingCode.SPEED_FALLING not in [
            code for code, _ in list_changes(run(Health(ServerSetup(draft=2)), code + prose))
        ]

    def test_parallel_streams_are_compared_with_parallel_streams(self) -> None:
        alone = repeat_replies(lambda _: reply(144), 600)
        four = repeat_replies(lambda _: reply(71, streams=4), 600, 600)
        assert run(Health(ServerSetup(draft=2, slots=4)), alone + four) == []

    def test_speeds_are_not_compared_while_other_programs_use_the_processor(self) -> None:
        busy = repeat_replies(lambda _: reply(50, others_percent=60.0), 600, 600)
        assert run(Health(ServerSetup(draft=2)), repeat_replies(lambda _: reply(144), 600) + busy) == []

    def test_a_few_slow_replies_are_no_finding(self) -> None:
        health = Health(ServerSetup(draft=2))
        hiccup = [moment(600 + i, finished=(reply(30),)) for i in range(5)]
        assert (
            run(
                health,
                repeat_replies(lambda _: reply(144), 600) + hiccup + repeat_replies(lambda _: reply(144), 600, 606),
            )
            == []
        )

    @pytest.mark.thorough
    def test_noise_of_20_percent_raises_nothing_in_a_day(self) -> None:
        noise = random.Random(11)
        day = repeat_replies(
            lambda _: reply(144 * noise.uniform(0.8, 1.2), acceptance=noise.uniform(0.4, 0.95)), 86_400
        )
        assert run(Health(ServerSetup(draft=2)), day) == []

    def test_short_replies_and_unknown_contexts_are_not_compared(self) -> None:
        short = repeat_replies(lambda _: reply(10, tokens=20), 600, 600)
        unknown = repeat_replies(lambda _: reply(10, context_used=None), 600, 1_200)
        assert run(Health(ServerSetup(draft=2)), repeat_replies(lambda _: reply(144), 600) + short + unknown) == []

    def test_replies_that_end_within_a_draft_are_not_compared(self) -> None:
        cut = reply(144, predicted_n=32, drafted=32, accepted=32)
        assert run(Health(ServerSetup(draft=16)), repeat_replies(lambda _: cut, 600)) == []

    def test_a_known_cause_is_the_only_finding(self) -> None:
        def hot_moment(time_s: float) -> Moment:
            finished = (reply(60),) if time_s % 10 == 0 else ()
            reasons = activity(("temperature (hardware)",))
            return moment(time_s, finished=finished, generating=True, activity=reasons, gpu_clock_mhz=900.0)

        moments = repeat_replies(lambda _: reply(144), 600) + [hot_moment(600.0 + 2 * i) for i in range(150)]
        assert list_changes(run(Health(ServerSetup(draft=2)), moments)) == [(FindingCode.THROTTLED_HOT, True)]
