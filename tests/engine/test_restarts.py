"""The decision to restart after a crash, with a clock that the test moves."""

import pytest

from launcher.base.errors import CpuUnsupported, CrashLoop, EngineFailed, ModelBroken
from launcher.engine.server.supervisor import CrashCounter, RestartPolicy

CRASH = EngineFailed("It broke.", "Do this.", exit_code=3)


class MovableClock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_pauses_grow_and_restarts_end_with_the_reason() -> None:
    clock = MovableClock()
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


def test_a_crash_after_a_long_service_counts_as_the_first() -> None:
    clock = MovableClock()
    crashes = CrashCounter(RestartPolicy((1.0, 2.0), steady_s=60.0), clock)
    for _ in range(10):
        crashes.record_ready()
        clock.now += 60
        assert crashes.judge_crash(CRASH) == 1.0


def test_a_service_without_a_reply_is_none() -> None:
    clock = MovableClock()
    crashes = CrashCounter(RestartPolicy((1.0, 2.0), steady_s=60.0), clock)
    for pause in (1.0, 2.0):
        crashes.record_ready()
        clock.now += 3_600
        assert crashes.judge_crash(CRASH, has_served=False) == pause
    crashes.record_ready()
    clock.now += 3_600
    assert isinstance(crashes.judge_crash(CRASH, has_served=False), CrashLoop)


def test_the_time_of_a_failed_restart_does_not_count_as_service() -> None:
    clock = MovableClock()
    crashes = CrashCounter(RestartPolicy((1.0, 2.0), steady_s=60.0), clock)
    crashes.record_ready()
    clock.now += 3_600
    assert crashes.judge_crash(CRASH) == 1.0
    clock.now += 3_600
    assert crashes.judge_crash(CRASH) == 2.0
    assert isinstance(crashes.judge_crash(CRASH), CrashLoop)


def test_another_start_resets_the_count() -> None:
    crashes = CrashCounter(RestartPolicy((1.0,)), MovableClock())
    assert crashes.judge_crash(CRASH) == 1.0
    crashes.reset()
    assert crashes.judge_crash(CRASH) == 1.0
    assert isinstance(crashes.judge_crash(CRASH), CrashLoop)


@pytest.mark.parametrize("error", [ModelBroken("Broken."), CpuUnsupported("No AVX2.")])
def test_permanent_errors_are_not_retried(error: EngineFailed) -> None:
    assert CrashCounter(RestartPolicy(), MovableClock()).judge_crash(error) is error


def test_restarts_can_be_turned_off() -> None:
    assert CrashCounter(RestartPolicy(()), MovableClock()).judge_crash(CRASH) is CRASH
