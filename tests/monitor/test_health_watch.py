"""The detectors' input, and the events that they raise."""

import asyncio
from pathlib import Path

import pytest

from launcher.app.serving.running_servers import read_running_servers
from launcher.app.serving.serving import serve
from launcher.base.codec import to_json
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest, Timings
from launcher.engine.server.reread import Reread, RereadCause
from launcher.machine.gpu import GpuActivity, Reading
from launcher.machine.gpus import GpuSnapshot
from launcher.monitor import health_watch
from launcher.monitor.health import Health
from launcher.monitor.health_event import Finding, FindingCode, HealthEvent, Moment, ServerSetup
from launcher.monitor.health_watch import CheckInput, HealthWatch
from launcher.monitor.meter import ReplyMeter
from launcher.monitor.monitor import MonitorPeriods
from launcher.monitor.series import Series
from launcher.monitor.traffic import Counters

NOTHING = Counters(0, 0, 0, 0, 0, (), 0)
LOOK = GpuSnapshot(None, False, GpuActivity.unknown("No GPU."), {"pcie_received_mib_s": Reading(5.0)})


class Seen(Health):
    """Health that records its input."""

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self.moments: list[Moment] = []

    def check(self, moment: Moment) -> tuple[HealthEvent, ...]:
        self.moments.append(moment)
        return super().check(moment)


@pytest.fixture
def created_health(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """The Health objects that are created."""
    made: list[Seen] = []

    def make(setup: ServerSetup) -> Seen:
        made.append(Seen(setup))
        return made[-1]

    monkeypatch.setattr(health_watch, "Health", make)
    return made


def check_input(others: float | None = 0.0, *, pid: int | None = None) -> CheckInput:
    return CheckInput(LOOK, others, None, ServerSetup(engine_pid=pid, draft=2) if pid else None)


def timings(tokens: int, *, cached: int = 0, prompt: int = 100) -> Timings:
    return Timings(prompt, cached, 50.0, tokens, 10.0 * tokens, 100.0, 2 * tokens // 2, tokens // 2)


class TestOwnReplies:
    def test_a_reply_is_recorded_with_its_context_and_other_load(self, created_health: list[Seen]) -> None:
        watch = HealthWatch()
        watch.run_detectors(0.0, check_input(pid=1), {})
        meter = ReplyMeter()
        watch.reply_started(meter, 1.0)
        watch.run_detectors(2.0, check_input(10.0), {})
        meter.add(timings(50, cached=1_000))
        watch.run_detectors(4.0, check_input(30.0), {})
        meter.add(timings(200, cached=1_000))
        watch.reply_ended(meter, 5.0)
        watch.run_detectors(6.0, check_input(50.0), {})
        watch.run_detectors(8.0, check_input(0.0), {})
        (health,) = created_health
        assert [one.generating for one in health.moments] == [None, False, True, None, None]
        assert [len(one.finished) for one in health.moments] == [0, 0, 0, 1, 0]
        (reply,) = health.moments[3].finished
        assert (reply.predicted_n, reply.predicted_s, reply.context_used, reply.streams) == (200, 2.0, 1_200.0, 1)
        assert (reply.drafted, reply.accepted) == (200, 100)
        assert reply.others_percent == 30.0

    def test_parallel_replies_are_counted_for_all_clients(self, created_health: list[Seen]) -> None:
        watch = HealthWatch()
        watch.run_detectors(0.0, check_input(pid=1), {})
        meters = [ReplyMeter(), ReplyMeter()]
        for meter in meters:
            watch.reply_started(meter, 1.0)
            meter.add(timings(200))
        watch.add_counters(None, Counters(0, 0, 0, 0, 0, (), processing=3), 0.0)
        for meter in meters:
            watch.reply_ended(meter, 5.0)
        watch.run_detectors(6.0, check_input(), {})
        assert [reply.streams for reply in created_health[0].moments[-1].finished] == [3, 3]

    def test_a_reply_without_tokens_is_not_recorded(self, created_health: list[Seen]) -> None:
        watch = HealthWatch()
        watch.run_detectors(0.0, check_input(pid=1), {})
        meter = ReplyMeter()
        watch.reply_started(meter, 1.0)
        watch.reply_ended(meter, 2.0)
        watch.run_detectors(2.0, check_input(), {})
        assert created_health[0].moments[-1].finished == ()


class TestOtherClients:
    def after(self, *, tokens: int, seconds: float, prompt: int, processing: int = 0, counts: bool = True) -> Counters:
        return Counters(tokens, seconds, 100, 60, 50, (), processing, float(prompt), 0, counts)

    @pytest.mark.parametrize(
        ("tokens", "seconds", "prompt", "context_used"),
        [(300, 1.0, 2_000, 2_150.0), (300, 3.0, 50_000, 50_150.0), (300, 1.0, 50_000, None)],
    )
    def test_replies_that_end_between_two_readings_are_one_record(
        self, created_health: list[Seen], tokens: int, seconds: float, prompt: int, context_used: float | None
    ) -> None:
        watch = HealthWatch()
        watch.run_detectors(0.0, check_input(pid=1), {})
        watch.add_counters(NOTHING, self.after(tokens=tokens, seconds=seconds, prompt=prompt), 0.0)
        watch.run_detectors(2.0, check_input(), {})
        (reply,) = created_health[0].moments[-1].finished
        assert (reply.predicted_n, reply.context_used, reply.drafted, reply.accepted) == (tokens, context_used, 100, 60)

    def test_uncounted_drafts_are_unknown(self, created_health: list[Seen]) -> None:
        watch = HealthWatch()
        watch.run_detectors(0.0, check_input(pid=1), {})
        watch.add_counters(NOTHING, self.after(tokens=300, seconds=1, prompt=9, counts=False), 0.0)
        watch.run_detectors(2.0, check_input(), {})
        (reply,) = created_health[0].moments[-1].finished
        assert (reply.drafted, reply.accepted) == (None, None)

    def test_our_own_replies_are_not_counted_twice(self, created_health: list[Seen]) -> None:
        watch = HealthWatch()
        watch.run_detectors(0.0, check_input(pid=1), {})
        meter = ReplyMeter()
        watch.reply_started(meter, 0.5)
        meter.add(timings(200))
        watch.reply_ended(meter, 1.5)
        watch.add_counters(NOTHING, self.after(tokens=200, seconds=2, prompt=9), 0.0)
        watch.run_detectors(2.0, check_input(), {})
        assert len(created_health[0].moments[-1].finished) == 1


def test_readings_are_means_since_the_last_check(created_health: list[Seen]) -> None:
    watch = HealthWatch()
    power, gone = Series("gpu_power_w"), Series("gpu_temperature_c")
    watch.run_detectors(0.0, check_input(pid=1), {})
    for time_s, watts in ((0.5, 100.0), (1.0, 300.0), (1.5, None)):
        power.add(time_s, Reading(watts, None if watts else "No answer."))
        gone.add(time_s, Reading.unknown("The driver does not say."))
    watch.run_detectors(
        2.0, check_input(), {"gpu_power_w": power, "gpu_temperature_c": gone, "host_cpu_percent": power}
    )
    assert created_health[0].moments[-1].readings == {
        "gpu_power_w": Reading(200.0),
        "gpu_temperature_c": Reading.unknown("The driver does not say."),
        "pcie_received_mib_s": Reading(5.0),
    }


def test_a_restarted_server_resets_the_checks(created_health: list[Seen]) -> None:
    watch = HealthWatch()
    watch.run_detectors(0.0, check_input(pid=1), {})
    watch.advice = Finding(FindingCode.OTHER_DRAFTS, "Draft 4 is faster.", {})
    watch.reset()
    assert watch.advice is None
    assert watch.health is None
    assert watch.open_findings == ()
    watch.run_detectors(4.0, check_input(pid=2), {})
    assert [health.setup.engine_pid for health in created_health] == [1, 2]


@pytest.mark.parametrize("ends_first", [True, False])
def test_findings_of_a_replaced_engine_are_cleared(ends_first: bool) -> None:
    received: list[tuple[bool, int]] = []
    watch = HealthWatch(lambda event: received.append((event.cleared, len(watch.open_findings))))
    watch.run_detectors(0.0, check_input(pid=1), {})
    watch.note_prompt(Reread(9_000, 3.0, RereadCause.RESTART))
    watch.run_detectors(2.0, check_input(), {})
    assert received == [(False, 1)]
    if ends_first:
        watch.reset()
    watch.run_detectors(4.0, check_input(pid=2), {})
    assert received == [(False, 1), (True, 0)]


ENDLESS = ChatRequest([{"role": "user", "content": "What is quantisation?"}], extra={"ignore_eos": True})


async def test_a_queue_at_a_real_engine_is_raised_and_cleared(demo_model: Path) -> None:
    received: asyncio.Queue[HealthEvent] = asyncio.Queue()
    options = ServeOptions(model=demo_model, built_in=True, threads=1)
    async with serve(options, on_health=received.put_nowait) as session, asyncio.timeout(300):
        session.monitor.periods, session.monitor.health_watch.period_s = MonitorPeriods(metrics_s=0.05), 0.05
        requests = [asyncio.create_task(session.send_request(ENDLESS)) for _ in range(2)]
        raised = await received.get()
        assert (raised.finding.code, raised.cleared) == (FindingCode.REQUESTS_WAIT, False)
        assert raised.finding in session.monitor.health_watch.open_findings
        while [server.entry.health for server in await read_running_servers()] != [(to_json(raised.finding),)]:
            await asyncio.sleep(0.05)
        for each in requests:  # the engine notices that a waiting request was cancelled only when its turn comes
            each.cancel()
        over = await received.get()
        assert (over.finding.code, over.cleared) == (FindingCode.REQUESTS_WAIT, True)
