"""Samples host, GPU and engine into series on one clock: 10 times a second while generating, else once or less."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from launcher.base.errors import LauncherError
from launcher.base.messages import message
from launcher.engine.server.client import Delta, EngineClient
from launcher.engine.server.launch import Launch
from launcher.engine.server.logs import POLLING_LINE, LogBook
from launcher.engine.server.state import SERVING, FailedReplies, ReplyProgress, ServerState, ServerStatus
from launcher.machine.gpu import GpuActivity, Reading
from launcher.machine.gpus import GpuSensors
from launcher.machine.sensors import HostSensors
from launcher.monitor.health_event import HealthEvent
from launcher.monitor.health_watch import CheckInput, HealthWatch
from launcher.monitor.meter import Acceptance, ReplyMeter, TrafficMeter
from launcher.monitor.reply import OnDelta, Reply, read_reply
from launcher.monitor.series import Series
from launcher.monitor.traffic import Counters, Traffic, measure_traffic, parse_counters


class MonitoredServer(Protocol):
    """A server to monitor: our own, or one that others started, of which only state and counters are known."""

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine while it runs on this computer and is ours, else None."""
        return None

    @property
    def status(self) -> ServerStatus:
        """Current state of the server."""

    @property
    def launch(self) -> Launch | None:
        """The launch, None if others started the server."""
        return None

    @property
    def log(self) -> LogBook | None:
        """The log, None if we do not keep it."""
        return None

    @property
    def held_requests(self) -> int:
        """The number of requests that wait before the engine, in our gateway."""
        return 0

    @property
    def reply_progress(self) -> ReplyProgress | None:
        """The progress of the clients' replies; None if requests do not pass through a gateway of ours."""
        return None

    @property
    def failed_replies(self) -> FailedReplies | None:
        """The clients' requests that the engine has failed one after another; None without a gateway of ours."""
        return None

    @property
    def kept_problem(self) -> str:
        """Why no conversation can be kept on disk; empty if they can, or without a gateway of ours."""
        return ""

    @property
    def client(self) -> EngineClient:
        """HTTP client of the server. Raises ServerNotFound unless it is ready."""

    def note_requests(self, processing: int) -> None:
        """Set the number of requests that it is processing, as read from its counters."""


@dataclass(frozen=True, slots=True)
class MonitorPeriods:
    """Periods of a monitor in seconds."""

    generating_s: float = 0.1
    """Between two samples while tokens are generated."""
    visible_s: float = 1.0
    """Between two samples of an idle server whose figures the user sees."""
    hidden_s: float = 2.0
    """Between two samples of an idle server whose figures nobody sees."""
    metrics_s: float = 2.0
    """Between two requests of /metrics. Each one wakes the engine's queue: more than one a second would keep a
    request whose client has disconnected running to its end (observed with llama.cpp b11669)."""
    metrics_rest_s: float = 10.0
    """Between two requests of /metrics while the log, if we have it, shows no work. Behind a gateway it is asked only
    after replies have ended: the counters grow then, and the gateway knows all else."""
    reply_valid_s: float = 1.0
    """Time for which the figures of a reply that has ended still count as current."""


UNSEEN = MonitorPeriods(generating_s=1.0, visible_s=2.0)
"""Periods where nobody sees the samples, as with `serve` in a terminal: health checks need no more."""
_NO_REPLY = message("No reply is being generated.")
_NO_DRAFTS = message("No tokens were drafted.")
_FEW_DRAFTS = message("Too few drafts yet.")
_LEAST_DRAFTED = 24
"""Drafted tokens of a running reply from which its acceptance is shown: that of the first few jumps from 0 to 100 %."""
_DRAFTS_AT_END = message("Other clients' drafts are known when their reply ends.")
_ENGINE_STARTS = (ServerState.RESTARTING, ServerState.LOADING, ServerState.WARMING_UP)
"""States in which no token of a reply can come, though the reply may go on later."""


@dataclass(frozen=True, slots=True)
class MonitorSnapshot:
    """One set of readings, taken at `time_s` of the monitor's clock.

    `activity` and the readings of GPU memory by program are from the last health check, at most 2 s old.
    """

    time_s: float
    readings: Mapping[str, Reading]
    acceptance: Acceptance | None
    activity: GpuActivity | None = None


class Monitor:
    """Samples the machine and a server from `watch_server` to `end`, in the periods of `periods`.

    A reply of ours wakes it immediately, and so does a client's request to our gateway (`note_requests`). Without a
    gateway, a client's request wakes it at the next reading of /metrics: within `metrics_s` if the log shows the
    request, else within `metrics_rest_s`. The series are kept after `end`. A monitor
    belongs to the event loop of the server's supervisor.
    """

    def __init__(
        self,
        listener: Callable[[MonitorSnapshot], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_health: Callable[[HealthEvent], None] | None = None,
        periods: MonitorPeriods | None = None,
    ) -> None:
        self.periods = periods or MonitorPeriods()
        self.health_watch = HealthWatch(on_health)
        self.series: dict[str, Series] = {}
        self.snapshot_count = 0
        self.on_traffic: Callable[[Traffic], None] | None = None
        """Called with the traffic of all requests, our own and others', except during `pause_traffic_reports`."""
        self._traffic_pauses = 0
        self.traffic: Traffic | None = None
        self._traffic_s = 0.0
        self._listener = listener
        self._clock = clock
        self._host = HostSensors()
        self._meter: ReplyMeter | None = None
        self._client_meter = TrafficMeter()
        self._ended_own_replies = 0
        self._own_tokens = 0
        """Tokens of our replies that have ended and that the engine's counters do not have yet."""
        self._ended_reply: tuple[ReplyMeter, float] | None = None
        """Meter of the last reply that ended, and the time of its end."""
        self._unsampled = False
        """Whether that reply has not been sampled since its end."""
        self._counters: Counters | None = None
        self._counters_s = 0.0
        self._engine_pid: int | None = None
        self._server: MonitoredServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._visible = True

    @contextmanager
    def pause_traffic_reports(self) -> Iterator[None]:
        """Do not call `on_traffic` while the block runs, because requests of a measurement are not usage."""
        self._traffic_pauses += 1
        try:
            yield
        finally:
            self._traffic_pauses -= 1

    def watch_server(self, server: MonitoredServer) -> None:
        """Start sampling `server` and the machine, unless already started."""
        if not self._tasks:
            self._server = server
            self._tasks = [
                asyncio.create_task(self._run_sampling(server)),
                asyncio.create_task(self._poll_metrics(server)),
            ]
            for task in self._tasks:
                task.add_done_callback(_report_failure)

    def note_requests(self) -> None:
        """Take a sample now, because clients' requests have begun, gone on or ended."""
        self._wake.set()

    async def end(self) -> None:
        """Stop sampling."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def set_visible(self, visible: bool) -> None:
        """Set whether the user sees the samples; if so, one is taken immediately."""
        self._visible = visible
        if visible:
            self._wake.set()

    async def read_reply(
        self, stream: AbstractAsyncContextManager[AsyncIterator[Delta]], on_delta: OnDelta | None = None
    ) -> Reply:
        """Request a reply, and return it whole. It is observed meanwhile. See monitor.reply.read_reply."""
        meter = self.start_reply_meter()
        try:
            return await read_reply(stream, meter, on_delta)
        finally:
            self.end_reply_meter(meter)

    def start_reply_meter(self) -> ReplyMeter:
        """Return a meter for a reply that we request. Until it ends, the engine's figures come from the meter."""
        if self._server is not None:  # else a later sample that finds a new engine would drop the reply's figures
            self._reset_for_new_engine(self._server.engine_pid)
        self._meter = ReplyMeter()
        self.health_watch.reply_started(self._meter, self._clock())
        self._wake.set()
        return self._meter

    def end_reply_meter(self, meter: ReplyMeter) -> None:
        """Register the end of a reply of ours. Its figures stay valid for `reply_valid_s`, and until they were sampled,
        because a short reply may begin and end between two samples.
        """
        self.health_watch.reply_ended(meter, self._clock())
        self._ended_own_replies += 1
        self._own_tokens += meter.last.predicted_n if meter.last is not None else 0
        if self._meter is meter:
            self._meter = None
            self._ended_reply, self._unsampled = (meter, self._clock()), True
            # The client meter has counted this reply, too, and would show its rate a moment longer.
            self._client_meter.reset()

    async def _run_sampling(self, server: MonitoredServer) -> None:
        gpu = await asyncio.to_thread(GpuSensors)
        next_s, next_check_s = self._clock(), 0.0
        try:
            while True:
                self._wake.clear()
                self._host.watch_process(server.engine_pid)
                serving = server.status.state in SERVING
                pid = server.engine_pid if serving and self.health_watch.is_due(next_s) else None
                read_check = (
                    partial(self.health_watch.read_machine, gpu, pid, server.launch, server.log) if pid else None
                )
                machine, check_input = await asyncio.to_thread(
                    self._read_machine, gpu, server.engine_pid is not None, read_check
                )
                self._reset_for_new_engine(server.engine_pid)
                self._take_progress(server)
                engine, acceptance = self._engine_readings(server.status.state)
                self._store_snapshot(
                    MonitorSnapshot(
                        next_s, machine | engine | self.health_watch.memory, acceptance, self.health_watch.activity
                    )
                )
                if read_check is not None:
                    self.health_watch.run_detectors(
                        next_s,
                        check_input,
                        self.series,
                        held_requests=server.held_requests,
                        failed_replies=server.failed_replies,
                        kept_problem=server.kept_problem,
                    )
                    next_check_s = next_s + self.health_watch.period_s
                elif not serving:
                    self.health_watch.reset()
                next_s = await self._wait_for_next(next_s, next_check_s, server)
        finally:
            gpu.close()

    async def _wait_for_next(self, before_s: float, next_check_s: float, server: MonitoredServer) -> float:
        """Wait until the next sample or health check is due, and return its time."""
        sampled_s = self._clock()
        if not self._is_generating(server):
            later_s = before_s + (self.periods.visible_s if self._visible else self.periods.hidden_s)
            if before_s < next_check_s < later_s:  # checks keep their period, because detectors count them
                later_s = next_check_s
            try:
                async with asyncio.timeout(later_s - sampled_s):
                    await self._wake.wait()
            except TimeoutError:
                return max(later_s, sampled_s)
        soon_s = max(before_s + self.periods.generating_s, self._clock())
        await asyncio.sleep(soon_s - self._clock())
        return soon_s

    def _is_generating(self, server: MonitoredServer) -> bool:
        """Return whether tokens are being generated, or were so recently that the figures still count."""
        return self._meter is not None or self._last_reply_is_valid or server.status.state is ServerState.BUSY

    @property
    def _last_reply_is_valid(self) -> bool:
        """Whether the figures of the last reply are still valid."""
        return self._ended_reply is not None and (
            self._unsampled or self._clock() - self._ended_reply[1] <= self.periods.reply_valid_s
        )

    async def _poll_metrics(self, server: MonitoredServer) -> None:
        """Read /metrics periodically, in a task of its own because the engine may be slow to reply."""
        while True:
            log, until_s = server.log, self._clock() + self.periods.metrics_rest_s
            ended, before = self._count_ended(server), self._counters
            # Counted before the request, so that no line logged meanwhile is missed.
            lines = log.line_count if log is not None else 0
            await self._read_metrics(server)
            idle = True
            while idle:
                await asyncio.sleep(self.periods.metrics_s)
                if ended is not None:
                    idle = ended == self._count_ended(server) and self._has_settled(server, before)
                else:
                    idle = self._clock() < until_s and _is_idle(server, log, lines)

    def _has_settled(self, server: MonitoredServer, before: Counters | None) -> bool:
        """Return whether an engine behind a gateway has counted all that has ended: its counters are as `before`.

        It goes on with a request for a moment after its client has left.
        """
        progress, counters = server.reply_progress, self._counters
        forwarded = progress.running if progress is not None else 0
        return counters == before and (counters is None or counters.processing <= forwarded)

    def _count_ended(self, server: MonitoredServer) -> tuple[object, ...] | None:
        """Return a value that changes whenever the counters of an engine behind a gateway may have grown; None without
        a gateway."""
        progress = server.reply_progress
        if progress is None:
            return None
        return progress.ended, self._ended_own_replies, server.engine_pid, server.status.state in SERVING

    def _take_progress(self, server: MonitoredServer) -> None:
        """Take from the gateway, if there is one, how many requests run and how many tokens have come."""
        progress = server.reply_progress
        if progress is not None and server.status.state in SERVING:
            server.note_requests(progress.running)
            self.health_watch.note_running(progress.running)
            self._client_meter.add(progress.time_s, progress.parts)

    def _read_machine(
        self, gpu: GpuSensors, engine_runs: bool, read_check: Callable[[], CheckInput] | None
    ) -> tuple[dict[str, Reading], CheckInput | None]:
        """Sample host and GPU, and call `read_check` if there is one: on the same thread, since both use the driver."""
        return self._host.sample() | gpu.sample(engine_runs=engine_runs), read_check() if read_check else None

    def _reset_for_new_engine(self, pid: int | None) -> None:
        """Drop the figures of a previous engine: they stay valid for seconds, but a restart may take less than one."""
        if pid is not None and pid != self._engine_pid:
            self._engine_pid = pid
            self._ended_reply = self.traffic = self._counters = None
            self._client_meter.reset()
            self._own_tokens = 0
            self._unsampled = False

    def _engine_readings(self, state: ServerState) -> tuple[dict[str, Reading], Acceptance | None]:
        """Return the engine's figures: of our own reply, else of other clients' requests; unknown while an engine
        starts. Drafts of other clients' replies are known when these have ended.
        """
        meter = None if state in _ENGINE_STARTS else self._valid_meter()
        passing = None if state in _ENGINE_STARTS else self._client_meter.rate_at(self._clock())
        if meter is not None and meter.last is not None:
            is_running = meter is self._meter
            # Of a reply that has ended the rate of all of it, as below its text.
            speed = meter.tokens_per_second if is_running else meter.last.tokens_per_second
            rate = Reading(speed, message("Too few tokens."))
            if is_running and 0 < meter.acceptance.drafted < _LEAST_DRAFTED:
                return {"tokens_per_second": rate, "acceptance_percent": Reading.unknown(_FEW_DRAFTS)}, None
            share, acceptance = meter.last.acceptance, meter.acceptance
        elif self.traffic is not None and self._traffic_is_valid:
            share = self.traffic.acceptance.rate
            rate, acceptance = Reading(passing or self.traffic.tokens_per_second, _NO_REPLY), self.traffic.acceptance
        elif passing is not None:
            return {
                "tokens_per_second": Reading(passing),
                "acceptance_percent": Reading.unknown(_DRAFTS_AT_END),
            }, None
        else:
            unknown = Reading.unknown(_NO_REPLY)
            return {"tokens_per_second": unknown, "acceptance_percent": unknown}, None
        accepted = Reading(None if share is None else 100 * share, _NO_DRAFTS)
        return {"tokens_per_second": rate, "acceptance_percent": accepted}, acceptance

    @property
    def _traffic_is_valid(self) -> bool:
        """Whether the traffic between the last two readings of /metrics still counts as current."""
        return self._clock() - self._traffic_s <= self.periods.metrics_s + self.periods.reply_valid_s

    def _valid_meter(self) -> ReplyMeter | None:
        """Return the meter of the running reply if it has a rate, else that of the last one if it is still valid."""
        if self._meter is not None and self._meter.tokens_per_second is not None:
            return self._meter
        if self._ended_reply is not None and self._last_reply_is_valid:
            self._unsampled = False
            return self._ended_reply[0]
        return self._meter

    def _store_snapshot(self, snapshot: MonitorSnapshot) -> None:
        self.snapshot_count += 1
        for name, reading in snapshot.readings.items():
            self.series.setdefault(name, Series(name)).add(snapshot.time_s, reading)
        if self._listener is not None:
            self._listener(snapshot)

    async def _read_metrics(self, server: MonitoredServer) -> None:
        if server.status.state not in SERVING:
            self._counters = None
            return
        # Sampling resets as well, but its first sample of a new engine may come after this first reading.
        self._reset_for_new_engine(server.engine_pid)
        try:
            counters = parse_counters(await server.client.read_metrics())
        except (LauncherError, ValueError):
            return  # the supervisor notices a dead engine itself
        if server.reply_progress is None:
            server.note_requests(counters.processing)
        if counters.processing:
            self._wake.set()
        before_s, self._counters_s = self._counters_s, self._clock()
        self.health_watch.add_counters(self._counters, counters, before_s)
        if self._counters is not None:
            traffic = measure_traffic(self._counters, counters)
            if counters == self._counters and (self._ended_reply is None or self._ended_reply[1] < before_s):
                self._own_tokens = 0  # of a reply that was cut off, which the engine does not count
            if traffic is not None:
                ours = min(self._own_tokens, traffic.predicted_n)
                self._own_tokens -= ours
                if ours < traffic.predicted_n:  # else our replies are all of it, and have figures of their own
                    self.traffic, self._traffic_s = traffic, self._clock()
                self._wake.set()
                if self.on_traffic is not None and not self._traffic_pauses:
                    self.on_traffic(traffic)
        self._counters = counters


def _is_idle(server: MonitoredServer, log: LogBook | None, lines: int) -> bool:
    """Return whether the engine is idle, and its log shows no request after the first `lines` lines."""
    if log is None or server.log is not log or server.status.state is not ServerState.READY:
        return False
    return all(POLLING_LINE.search(line.text) for line in log.lines_since(lines))


def _report_failure(task: asyncio.Task[None]) -> None:
    """Report a failed task to the loop's exception handler, so that it does not end silently."""
    if not task.cancelled() and task.exception() is not None:
        task.get_loop().call_exception_handler(
            {"message": message("The monitor failed."), "exception": task.exception()}
        )
