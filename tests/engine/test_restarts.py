"""The decision to restart after a crash, by a clock that the test moves."""

import pytest

from launcher.base.errors import CpuUnsupported, CrashLoop, EngineFailed, ModelBroken
from launcher.engine.server.supervisor import CrashCounter, RestartPolicy

CRASH = EngineFailed("It broke.", "Do this.", exit_code=3)


class Hands:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_pauses_grow_and_end_with_the_reason() -> None:
    clock = Hands()
    crashes = CrashCounter(RestartPolicy((1.0, 2.0), steady_s=60.0), clock)
    for pause in (1.0, 2.0):
        assert crashes.judge_crash(CRASH) == pause
        clock.now += 10
        crashes.record_ready()
    end = crashes.judge_crash(CRASH)
    assert isinstance(end, CrashLoop)
    assert end.title.startswith("The engine crashed 3 times within 20 s, so it was not restarted.")
    assert "It broke." in end.title
    assert (end.hint, end.reason, end.facts["exit_code"], end.facts["reason"]) == (
        "Do this.",
        CRASH,
        3,
        "engine_failed",
    )


def test_an_engine_that_served_for_long_begins_a_new_row() -> None:
    clock = Hands()
    crashes = CrashCounter(RestartPolicy((1.0, 2.0), steady_s=60.0), clock)
    for _ in range(10):
        crashes.record_ready()
        clock.now += 60
        assert crashes.judge_crash(CRASH) == 1.0


def test_a_restart_that_fails_has_served_for_no_time() -> None:
    clock = Hands()
    crashes = CrashCounter(RestartPolicy((1.0, 2.0), steady_s=60.0), clock)
    crashes.record_ready()
    clock.now += 3_600
    assert crashes.judge_crash(CRASH) == 1.0
    clock.now += 3_600
    assert crashes.judge_crash(CRASH) == 2.0
    assert isinstance(crashes.judge_crash(CRASH), CrashLoop)


def test_another_start_begins_a_new_row() -> None:
    crashes = CrashCounter(RestartPolicy((1.0,)), Hands())
    assert crashes.judge_crash(CRASH) == 1.0
    crashes.reset()
    assert crashes.judge_crash(CRASH) == 1.0
    assert isinstance(crashes.judge_crash(CRASH), CrashLoop)


@pytest.mark.parametrize("error", [ModelBroken("Broken."), CpuUnsupported("No AVX2.")])
def test_what_a_restart_would_meet_again_is_not_tried(error: EngineFailed) -> None:
    assert CrashCounter(RestartPolicy(), Hands()).judge_crash(error) is error


def test_never_means_never() -> None:
    assert CrashCounter(RestartPolicy(()), Hands()).judge_crash(CRASH) is CRASH
