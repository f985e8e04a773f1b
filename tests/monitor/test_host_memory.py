"""Host memory: growth that is a finding or none, the causes, and figures from logs and control groups."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.base.action import ActionKind
from launcher.machine.surroundings import read_memory_limit
from launcher.monitor.health import Health
from launcher.monitor.health_event import FindingCode, FindingLevel, HealthEvent, Moment, ServerSetup
from launcher.monitor.host_memory import EngineCaches, read_host_memory
from tests.monitor.series import PERIOD_S, list_changes, moment, run

GIB = 1_024.0
LIMIT = "srv    load_model: prompt cache is enabled, size limit: {}"
STATE = "srv        update:  - cache state: {} prompts, {:.3f} MiB (limits: 8192.000 MiB, 16384 tokens, 16384 est)"
CHECKPOINT = (
    "slot create_check: id  {} | task 8 | created context checkpoint {} of 32 (pos_min = 7, pos_max = 7, n_tokens = 8,"
    " size = 62.845 MiB)"
)
RAISED = (FindingCode.HOST_MEMORY, True)

Course = Callable[[float], float]
"""MiB at a time in seconds."""


def memory_course(
    seconds: float,
    taken: Course,
    room: float = 16 * GIB,
    *,
    others: Course = lambda _s: 0.0,
    prompts: Course | None = None,
    to_come: Course = lambda _s: 0.0,
) -> Iterator[Moment]:
    """Moments in which an engine takes memory, with `room` left for it; its log mentions prompt caches if `prompts`."""
    for number in range(int(seconds / PERIOD_S)):
        now = number * PERIOD_S
        caches = {}
        if prompts is not None:
            caches = {"prompt_cache_mib": prompts(now), "checkpoints_mib": 0.0, "caches_to_come_mib": to_come(now)}
        left = room - taken(now) - others(now)
        yield moment(now, engine_private_mib=2 * GIB + taken(now), host_memory_left_mib=left, **caches)


def watch(moments: Iterator[Moment]) -> list[HealthEvent]:
    return run(Health(ServerSetup()), moments)


def test_growth_of_two_gib_a_minute_is_reported_in_time_and_restarted_before_the_end() -> None:
    """2.3 GB a minute were reported (lmstudio#1764)."""
    events = watch(memory_course(400, lambda s: 2.3 * GIB * s / 60))
    assert list_changes(events) == [RAISED] * len(events)
    first, *_, last = [event.finding for event in events]
    assert first.level is FindingLevel.INFORMATION
    assert 300 < first.evidence["left_s"] <= 400
    assert "min; " in first.sentence
    urgent = next(event.finding for event in events if event.finding.level is FindingLevel.WARNING)
    assert 60 < float(urgent.evidence["left_s"]) <= 120
    assert urgent.evidence["mib_per_min"] == pytest.approx(2.3 * GIB, rel=0.01)
    assert urgent.action is not None
    assert urgent.action.kind is ActionKind.RESTART
    assert float(last.evidence["left_s"]) < 40


def test_a_finding_is_raised_again_when_free_memory_has_halved() -> None:
    rests = [
        float(event.finding.evidence["left_s"]) for event in watch(memory_course(400, lambda s: 2.3 * GIB * s / 60))
    ]
    halvings = [later / earlier for earlier, later in pairwise(rests)]
    assert len(rests) < 12
    assert all(share < 0.9 for share in halvings)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("nothing", lambda _s: 0.0),
        ("an hour's slow growth", lambda s: GIB * s / 3_600),
        ("buffers of the first long prompt", lambda s: 3 * GIB if s >= 40 else 0.0),
        ("one long prompt", lambda s: 3 * GIB * min(1.0, max(0.0, (s - 40) / 20))),
        ("memory that comes and goes", lambda s: 2 * GIB * (s % 20 < 10)),
        ("memory that is given back", lambda s: 8 * GIB - GIB * s / 60),
    ],
)
def test_growth_that_stops_is_no_finding(name: str, taken: Course) -> None:
    assert watch(memory_course(300, taken)) == [], name


def test_growth_in_steps_counts_as_growth() -> None:
    events = watch(memory_course(400, lambda s: GIB * (s // 20)))
    assert list_changes(events)[0] == RAISED
    assert events[-1].finding.level is FindingLevel.WARNING


def test_sudden_fast_growth_is_urgent_at_once() -> None:
    events = watch(memory_course(7_260, lambda s: 300.0 * max(0.0, s - 7_200)))
    assert events[0].finding.level is FindingLevel.WARNING
    assert events[0].time_s <= 7_200 + 16 * GIB / 300 * 0.6


def test_caches_that_reach_their_limit_are_no_finding_and_those_beyond_it_are() -> None:
    def stored_bytes(s: float) -> float:
        return GIB * s / 30

    assert (
        watch(
            memory_course(
                200, stored_bytes, prompts=stored_bytes, to_come=lambda s: max(1.0, 8 * GIB - stored_bytes(s))
            )
        )
        == []
    )
    events = watch(
        memory_course(400, stored_bytes, prompts=stored_bytes, to_come=lambda s: max(0.0, 8 * GIB - stored_bytes(s)))
    )
    assert list_changes(events)[0] == RAISED
    assert events[0].finding.evidence["prompt_cache_mib"] >= 8 * GIB


def test_growth_is_not_urgent_if_a_restart_would_free_little() -> None:
    """A model that is too large, for example, would be restarted again and again."""
    events = watch(memory_course(16, lambda s: 40.0 * s, room=2 * GIB))
    assert [event for event in events if event.finding.level is FindingLevel.WARNING] == []


@pytest.mark.parametrize(
    ("cause", "moments", "words"),
    [
        (
            "prompt_cache",
            memory_course(200, lambda s: 60.0 * s, prompts=lambda s: 58.0 * s),
            "MiB of earlier prompts.",
        ),
        ("leak", memory_course(200, lambda s: 60.0 * s, prompts=lambda _s: 100.0), "probably a leak."),
        ("engine", memory_course(200, lambda s: 60.0 * s), "MiB since it was ready."),
        ("other_programs", memory_course(250, lambda _s: 0.0, others=lambda s: 60.0 * s), "Other programs take it."),
    ],
)
def test_each_cause_is_reported(cause: str, moments: Iterator[Moment], words: str) -> None:
    finding = watch(moments)[-1].finding
    assert finding.evidence["cause"] == cause
    assert finding.sentence.endswith(words)
    assert finding.action is not None
    expected = ActionKind.FREE_MEMORY if cause == "other_programs" else ActionKind.RESTART
    assert finding.action.kind is expected


def test_the_finding_clears_when_memory_is_free() -> None:
    def taken_mib(s: float) -> float:
        return min(s, 200.0) * 60

    events = watch(memory_course(600, taken_mib))
    assert list_changes(events)[-1] == (FindingCode.HOST_MEMORY, False)


class TestEngineCaches:
    def read(self, *lines: str, slots: int = 1) -> dict[str, float | None]:
        caches = EngineCaches()
        caches.add_lines(lines)
        return {name: reading.value for name, reading in caches.make_readings(slots).items()}

    def test_a_log_without_cache_lines_gives_no_sizes(self) -> None:
        assert set(self.read("srv  log_server_r: done request").values()) == {None}

    def test_cache_sizes_and_their_remaining_growth_are_read(self) -> None:
        sizes = self.read(
            LIMIT.format("8192 MiB"), CHECKPOINT.format(0, 2), CHECKPOINT.format(1, 1), STATE.format(3, 92)
        )
        assert sizes["prompt_cache_mib"] == 92
        assert sizes["checkpoints_mib"] == pytest.approx(3 * 62.845)
        assert sizes["caches_to_come_mib"] == pytest.approx(8_192 + 32 * 62.845 - 92 - 3 * 62.845)

    def test_without_a_limit_remaining_growth_is_unknown(self) -> None:
        assert self.read(LIMIT.format("no limit"), STATE.format(3, 92))["caches_to_come_mib"] is None

    def test_a_cache_over_its_limit_has_no_remaining_growth(self) -> None:
        assert self.read(LIMIT.format("64 MiB"), STATE.format(3, 92))["caches_to_come_mib"] == 0


def test_cgroups_of_the_engine_count_and_not_ours(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/engines"
    group.mkdir(parents=True)
    (tmp_path / "proc/4711").mkdir(parents=True)
    (tmp_path / "proc/4711/cgroup").write_text("0::/engines\n")
    for name, text in (
        ("memory.max", 600 << 20),
        ("memory.current", 500 << 20),
        ("memory.stat", "inactive_file 1048576"),
    ):
        (group / name).write_text(f"{text}\n")
    limit = read_memory_limit(tmp_path, 4711)
    assert limit is not None
    assert limit.left_bytes == 101 << 20
    assert read_memory_limit(tmp_path, 4712) is None
    readings = read_host_memory(4711, tmp_path)
    assert readings["host_memory_left_mib"].value == 101
