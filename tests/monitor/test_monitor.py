"""Periods of the monitor's samples and of its health checks."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.base.errors import ServerNotFound
from launcher.engine.server.client import EngineClient, Timings
from launcher.engine.server.launch import Launch
from launcher.engine.server.logs import LogBook
from launcher.engine.server.state import FailedReplies, ReplyProgress, ServerState, ServerStatus
from launcher.monitor.health_watch import CheckInput, HealthWatch
from launcher.monitor.monitor import Monitor, MonitorPeriods, MonitorSnapshot
from launcher.monitor.series import Series

NEVER_S = 3_600.0
QUICK = MonitorPeriods(generating_s=0.002)


class Server:
    """A server; it offers no counters before `counters` is set. `engine_pid` is this test's own."""

    held_requests = 0
    failed_replies = None
    kept_problem = ""

    def __init__(self, log: LogBook, engine_pid: int | None) -> None:
        self.counters: EngineClient | None = None
        self.reply_progress: ReplyProgress | None = None
        self.engine_pid = engine_pid
        self.log = log
        self.launch: Launch | None = None
        self.status = ServerStatus(ServerState.READY)

    @property
    def client(self) -> EngineClient:
        if self.counters is None:
            raise ServerNotFound("It offers no counters.", "Ask another.")
        return self.counters

    def note_requests(self, processing: int) -> None:
        """Send an event as the supervisor does."""
        self.status = ServerStatus(ServerState.BUSY if processing else ServerState.READY)


class Watching:
    """A monitor and its samples."""

    def __init__(self, server: Server, periods: MonitorPeriods) -> None:
        self.times: list[float] = []
        self._came = asyncio.Event()
        self.monitor = Monitor(self._take, periods=periods)
        self.server = server

    def _take(self, sample: MonitorSnapshot) -> None:
        self.times.append(sample.time_s)
        self._came.set()

    async def until(self, count: int) -> None:
        """Wait for `count` samples in all."""
        async with asyncio.timeout(60):
            while len(self.times) < count:
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def watch_samples(
    folder: Path,
    *,
    engine: bool = False,
    **periods_s: float,
) -> AsyncIterator[Watching]:
    log = LogBook(folder / "engine.log")
    log.add("a line")
    watched = Watching(Server(log, os.getpid() if engine else None), replace(QUICK, **periods_s))
    watched.monitor.watch_server(watched.server)
    try:
        yield watched
    finally:
        await watched.monitor.end()
        log.close()


async def test_an_idle_server_is_sampled_rarely(tmp_path: Path) -> None:
    async with watch_samples(tmp_path, visible_s=0.05) as watched:
        await watched.until(5)
    assert min(later - before for before, later in pairwise(watched.times)) > 0.049


async def test_a_hidden_window_samples_more_rarely(tmp_path: Path) -> None:
    async with watch_samples(tmp_path, visible_s=0.02, hidden_s=NEVER_S) as watched:
        await watched.until(2)
        watched.monitor.set_visible(False)
        await watched.until(3)  # the sample that was already due
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await watched.until(4)
        watched.monitor.set_visible(True)
        await watched.until(6)


async def test_a_reply_starts_fast_sampling(tmp_path: Path) -> None:
    async with watch_samples(tmp_path, visible_s=NEVER_S) as watched:
        await watched.until(1)
        watched.monitor.start_reply_meter()
        await watched.until(20)


async def test_fast_sampling_ends_when_the_last_reply_is_no_longer_valid(tmp_path: Path) -> None:
    async with watch_samples(tmp_path, reply_valid_s=0.05, visible_s=0.2) as watched:
        await watched.until(1)
        meter = watched.monitor.start_reply_meter()
        await watched.until(5)
        watched.monitor.end_reply_meter(meter)
        while watched.times[-1] - watched.times[-2] < 0.19:
            await watched.until(len(watched.times) + 1)


@pytest.mark.parametrize("engine_pid", [None, os.getpid()], ids=["same engine", "first reply of an engine"])
async def test_a_reply_between_two_samples_is_in_the_next_one(tmp_path: Path, engine_pid: int | None) -> None:
    # a busy computer may take no sample for a second
    async with watch_samples(tmp_path, reply_valid_s=-1.0) as watched:
        await watched.until(1)
        watched.server.engine_pid = engine_pid
        meter = watched.monitor.start_reply_meter()
        meter.add(
            Timings(
                3, 0, 5.0, predicted_n=8, predicted_ms=100.0, predicted_per_second=80.0, draft_n=6, draft_n_accepted=4
            )
        )
        watched.monitor.end_reply_meter(meter)
        await watched.until(len(watched.times) + 2)
        assert 80.0 in [sample.value for sample in watched.monitor.series["tokens_per_second"]]


async def test_during_a_handover_a_reply_has_no_rate(tmp_path: Path) -> None:
    async with watch_samples(tmp_path) as watched:
        meter = watched.monitor.start_reply_meter()
        meter.add(
            Timings(
                3, 0, 5.0, predicted_n=8, predicted_ms=100.0, predicted_per_second=80.0, draft_n=6, draft_n_accepted=4
            )
        )
        rates = watched.monitor.series
        await watched.until(len(watched.times) + 2)
        assert list(rates["tokens_per_second"])[-1].value == 80.0
        watched.server.status = ServerStatus(ServerState.LOADING)
        await watched.until(len(watched.times) + 2)
        assert list(rates["tokens_per_second"])[-1].value is None
        watched.server.status = ServerStatus(ServerState.READY)
        await watched.until(len(watched.times) + 2)
        assert list(rates["tokens_per_second"])[-1].value == 80.0


async def test_requests_of_others_start_fast_sampling(tmp_path: Path) -> None:
    requested = asyncio.Event()

    class Busy(EngineClient):
        async def read_metrics(self) -> str:
            return f"llamacpp:requests_processing {int(requested.is_set())}\n"

    async with (
        Busy("http://127.0.0.1:9", None) as client,
        watch_samples(tmp_path, visible_s=NEVER_S, metrics_s=0.01, metrics_rest_s=0.01) as watched,
    ):
        watched.server.counters = client
        await watched.until(1)
        requested.set()
        await watched.until(20)


class Counting(EngineClient):
    """Counts the requests for its counters, and writes a log line for each, as an engine does."""

    def __init__(self, log: LogBook) -> None:
        super().__init__("http://127.0.0.1:9", None)
        self._log = log
        self.requested = asyncio.Queue[None]()

    async def read_metrics(self) -> str:
        self.requested.put_nowait(None)
        self._log.add("0.25.921.376 I srv  update_slots: all slots are idle")
        return "llamacpp:requests_processing 0\n"


@pytest.mark.parametrize("log_line", ["0.26.000.000 I slot launch_slot_: id  0 | task 7 | processing task", None])
async def test_counters_are_read_rarely_while_the_log_shows_no_work(tmp_path: Path, log_line: str | None) -> None:
    periods_s = {"metrics_s": 0.01, "metrics_rest_s": NEVER_S if log_line else 0.2}
    async with watch_samples(tmp_path, **periods_s) as watched, Counting(watched.server.log) as client:
        watched.server.counters = client
        async with asyncio.timeout(60):
            await client.requested.get()
            began_s = time.monotonic()
            if log_line:
                watched.server.log.add(log_line)
            await client.requested.get()
    assert log_line or time.monotonic() - began_s > 0.19


async def test_behind_a_gateway_counters_are_read_when_replies_have_ended(tmp_path: Path) -> None:
    async with (
        watch_samples(tmp_path, metrics_s=0.01, visible_s=0.01) as watched,
        Counting(watched.server.log) as client,
    ):
        server = watched.server
        server.counters, server.reply_progress = client, ReplyProgress()
        async with asyncio.timeout(60):
            await client.requested.get()
            await client.requested.get()  # the second request has the same counters, so they have settled
            server.reply_progress = ReplyProgress(parts=1, running=1)
            watched.monitor.note_requests()
            while server.status.state is not ServerState.BUSY:
                await watched.until(len(watched.times) + 1)
            server.log.add("0.26.000.000 I slot launch_slot_: id  0 | task 7 | processing task")
            # The start is in the future, so that no progress is outdated, however long this takes.
            began_s = time.monotonic() + 3_600
            for parts in range(2, 30):
                server.reply_progress = ReplyProgress(parts, running=1, time_s=began_s + parts / 20)
                await watched.until(len(watched.times) + 1)
            assert client.requested.empty()
            assert watched.monitor.series["tokens_per_second"].last == pytest.approx(20)
            server.reply_progress = ReplyProgress(parts=29, running=0, ended=1)
            await client.requested.get()
            while server.status.state is not ServerState.READY:
                await watched.until(len(watched.times) + 1)


class NotingWatch(HealthWatch):
    """A HealthWatch that records the times of its checks."""

    def __init__(self) -> None:
        super().__init__()
        self.check_times_s: list[float] = []

    def run_detectors(
        self,
        now_s: float,
        machine: CheckInput | None,
        series: Mapping[str, Series],
        *,
        held_requests: int = 0,
        failed_replies: FailedReplies | None = None,
        kept_problem: str = "",
    ) -> None:
        self.check_times_s.append(now_s)
        super().run_detectors(
            now_s,
            machine,
            series,
            held_requests=held_requests,
            failed_replies=failed_replies,
            kept_problem=kept_problem,
        )


async def test_detectors_keep_their_period_when_samples_are_rare(tmp_path: Path) -> None:
    async with watch_samples(tmp_path, engine=True, visible_s=NEVER_S) as watched:
        watch = watched.monitor.health_watch = NotingWatch()
        watch.period_s = 0.05
        async with asyncio.timeout(60):
            while len(watch.check_times_s) < 6:
                await watched.until(len(watched.times) + 1)
    gaps = [later - before for before, later in pairwise(watch.check_times_s)]
    assert min(gaps) >= 0.0499
    assert len(watched.times) <= len(watch.check_times_s) + 3
