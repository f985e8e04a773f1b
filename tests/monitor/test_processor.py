"""Other programs that take the processor from a model without a GPU."""

import pytest

from launcher.base.action import ActionKind
from launcher.monitor.health import Health
from launcher.monitor.health_event import FindingCode, FindingLevel, Moment, ServerSetup
from tests.monitor.series import list_changes, repeat_moment, run

ON_PROCESSOR = ServerSetup(on_gpu=False)


def busy_moments(
    count: int, start_s: float = 0.0, *, others: float | None = 78.0, generating: bool = True
) -> list[Moment]:
    return repeat_moment(count, start_s, others_percent=others, generating=generating)


def test_the_finding_is_raised_after_ten_seconds_and_cleared_when_other_programs_end() -> None:
    health = Health(ON_PROCESSOR)
    events = run(
        health,
        busy_moments(10)
        + busy_moments(5, 20.0, generating=False)
        + busy_moments(5, 30.0, others=3.0, generating=False),
    )
    assert list_changes(events) == [(FindingCode.PROCESSOR_BUSY, True), (FindingCode.PROCESSOR_BUSY, False)]
    finding = events[0].finding
    assert events[0].time_s == 10.0
    assert events[1].time_s >= 30.0, "it stays while they only wait for the next reply"
    assert finding.sentence == (
        "Replies are slower because other programs use 78 % of the processor, on which this model runs."
    )
    assert finding.level is FindingLevel.INFORMATION
    assert finding.action is not None
    assert finding.action.kind is ActionKind.FREE_PROCESSOR


@pytest.mark.parametrize(
    ("programs", "named"),
    [
        ((), "runs."),
        (("ffmpeg",), "runs; the busiest is ffmpeg."),
        (("ffmpeg", "chrome"), "runs; the busiest is ffmpeg, then chrome."),
    ],
)
def test_the_busiest_programs_are_named(programs: tuple[str, ...], named: str) -> None:
    moments = repeat_moment(10, 0.0, others_percent=78.0, generating=True, busy_programs=programs)
    (event,) = run(Health(ON_PROCESSOR), moments)
    assert event.finding.sentence.endswith(named)
    assert event.finding.evidence.get("programs") == (", ".join(programs) or None)


def test_a_burst_is_no_finding() -> None:
    bursts = [
        each for start in range(0, 200, 20) for each in busy_moments(4, start) + busy_moments(6, start + 8, others=5.0)
    ]
    assert run(Health(ON_PROCESSOR), bursts) == []


def test_the_time_asleep_does_not_count() -> None:
    assert run(Health(ON_PROCESSOR), busy_moments(2) + busy_moments(2, 4_000.0)) == []


@pytest.mark.parametrize("on_gpu", [True, None])
def test_a_model_that_needs_no_processor_is_not_slowed(on_gpu: bool | None) -> None:
    assert run(Health(ServerSetup(on_gpu=on_gpu)), busy_moments(50)) == []


@pytest.mark.parametrize(("others", "generating"), [(None, True), (78.0, False), (40.0, True)])
def test_unknown_idle_or_light_use_is_no_finding(others: float | None, generating: bool) -> None:
    assert run(Health(ON_PROCESSOR), busy_moments(50, others=others, generating=generating)) == []
