"""One clock: host, GPU and the engine's own numbers as series, 10 samples a second while it matters, else 1 or less."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from launcher.base.errors import LauncherError
from launcher.engine.logs import POLLING, LogBook
from launcher.engine.state import State
from launcher.machine.gpu import Activity
from launcher.machine.gpus import GpuSensors
from launcher.machine.reading import Reading
from launcher.machine.sensors import HostSensors
from launcher.monitor import health_watch
from launcher.monitor.health_event import HealthEvent
from launcher.monitor.health_watch import HealthWatch, Sensed
from launcher.monitor.meter import Acceptance, ReplyMeter
from launcher.monitor.series import Series
from launcher.monitor.traffic import Counters, Traffic, between, read_counters
from launcher.monitor.watched import Watched

PERIOD_S, REST_S, UNSEEN_S = 0.1, 1.0, 2.0
"""Between two samples: while tokens come, else, and else while nobody sees them."""
METRICS_PERIOD_S, METRICS_REST_S = 2.0, 10.0
"""Between two questions for /metrics, and while a log that we keep tells of no work. Each answer wakes the engine's
queue; asked more often than once a second, it would keep a request whose client has gone running to its end (observed
with llama.cpp b11669)."""

_STANDS_S = 1.0
_NO_REPLY = "No reply is being generated."
_NO_DRAFTS = "Nothing was drafted."


@dataclass(frozen=True, slots=True)
class Sampled:
    """One set of readings, all taken at `time_s` of the monitor's clock.

    `activity`, and whose the GPU's memory is, are of the last look, which is 2 s old at most.
    """

    time_s: float
    readings: Mapping[str, Reading]
    acceptance: Acceptance | None
    activity: Activity | None = None


class Monitor:
    """Samples while it runs; the series stay. Belongs to the loop of its supervisor.

    It samples every PERIOD_S while the engine works on a request, otherwise every REST_S or UNSEEN_S.
    A reply of ours wakes it at once, a request of others when /metrics next tells of it: within METRICS_PERIOD_S where
    the log told of it, else within METRICS_REST_S.
    """

    def __init__(
        self,
        listener: Callable[[Sampled], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_health: Callable[[HealthEvent], None] | None = None,
    ) -> None:
        self.watch = HealthWatch(on_health)
        self.series: dict[str, Series] = {}
        self.samples = 0
        self.on_traffic: Callable[[Traffic], None] | None = None
        """Told of what requests did, our own and others', but not of what is measured (`uncounted`)."""
        self._uncounted = 0
        self.traffic: Traffic | None = None
        self._traffic_s = 0.0
        self._listener = listener
        self._clock = clock
        self._host = HostSensors()
        self._meter: ReplyMeter | None = None
        self._earlier: tuple[ReplyMeter, float] | None = None
        self._counters: Counters | None = None
        self._counters_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._seen = True

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Tell nobody of traffic for as long as the block lasts: it is measuring, and no use."""
        self._uncounted += 1
        try:
            yield
        finally:
            self._uncounted -= 1

    def begin(self, supervisor: Watched) -> None:
        """Start sampling `supervisor` and the machine, unless that is being done."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._sample(supervisor)), asyncio.create_task(self._follow(supervisor))]
            for task in self._tasks:
                task.add_done_callback(_tell_failure)

    async def end(self) -> None:
        """Stop sampling."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def seen(self, seen: bool) -> None:
        """Take note of whether anybody sees the samples; one is taken at once for who comes back to them."""
        self._seen = seen
        if seen:
            self._wake.set()

    def reply_started(self) -> ReplyMeter:
        """Return a meter for a reply of ours; until it ends the engine's numbers are taken from it."""
        self._meter = ReplyMeter()
        self.watch.reply_started(self._meter, self._clock())
        self._wake.set()
        return self._meter

    def reply_ended(self, meter: ReplyMeter) -> None:
        """Let go of a meter. Its figures are of its last second, and stand for one second more."""
        self.watch.reply_ended(meter, self._clock())
        if self._meter is meter:
            self._meter = None
            self._earlier = meter, self._clock()

    async def _sample(self, supervisor: Watched) -> None:
        gpu = await asyncio.to_thread(GpuSensors)
        next_s, look_s = self._clock(), 0.0
        try:
            while True:
                self._wake.clear()
                self._host.watch(supervisor.engine_pid)
                serving = supervisor.status.state in (State.READY, State.BUSY)
                pid = supervisor.engine_pid if serving and self.watch.due(next_s) else None
                ask = partial(self.watch.sense, gpu, pid, supervisor.launch, supervisor.log) if pid else None
                machine, sensed = await asyncio.to_thread(self._machine, gpu, supervisor.engine_pid is not None, ask)
                engine, acceptance = self._engine()
                self._add(Sampled(next_s, machine | engine | self.watch.memory, acceptance, self.watch.activity))
                if ask is not None:
                    self.watch.look(next_s, sensed, self.series)
                    look_s = next_s + health_watch.PERIOD_S  # kept while resting, too: windows are counted in looks
                elif not serving:
                    self.watch.forget()
                next_s = await self._next(next_s, look_s, supervisor)
        finally:
            gpu.close()

    async def _next(self, before_s: float, look_s: float, supervisor: Watched) -> float:
        """Wait for the time of the next sample, and return it."""
        sampled_s = self._clock()
        if not self._must_be_quick(supervisor):
            later_s = before_s + (REST_S if self._seen else UNSEEN_S)
            if before_s < look_s < later_s:
                later_s = look_s
            try:
                async with asyncio.timeout(later_s - sampled_s):
                    await self._wake.wait()
            except TimeoutError:
                return max(later_s, sampled_s)
        soon_s = max(before_s + PERIOD_S, self._clock())
        await asyncio.sleep(soon_s - self._clock())
        return soon_s

    def _must_be_quick(self, supervisor: Watched) -> bool:
        """Whether tokens come or have just ceased to."""
        ceased_s = self._earlier[1] if self._earlier is not None else float("-inf")
        replying = self._meter is not None or self._clock() - ceased_s <= _STANDS_S
        return replying or supervisor.status.state is State.BUSY

    async def _follow(self, supervisor: Watched) -> None:
        """Read /metrics now and then; the engine may take its time to answer."""
        while True:
            log, until_s = supervisor.log, self._clock() + METRICS_REST_S
            read = log.added if log is not None else 0  # before the answer, which may miss what is logged meanwhile
            await self._read_metrics(supervisor)
            rests = True
            while rests:
                await asyncio.sleep(METRICS_PERIOD_S)
                rests = self._clock() < until_s and _rests(supervisor, log, read)

    def _machine(
        self, gpu: GpuSensors, engine_runs: bool, ask: Callable[[], Sensed] | None
    ) -> tuple[dict[str, Reading], Sensed | None]:
        """Sample, and let the detectors' figures be asked for: both on one thread, because they share the driver."""
        return self._host.sample() | gpu.sample(engine_runs=engine_runs), ask() if ask else None

    def _engine(self) -> tuple[dict[str, Reading], Acceptance | None]:
        """Return the engine's figures: of our own reply, else of what other clients' requests did."""
        meter = self._meter_that_holds()
        if meter is not None and meter.last is not None:
            share = meter.last.acceptance
            rate, acceptance = Reading(meter.tokens_per_second, "Too few tokens to tell."), meter.acceptance
        elif self.traffic is not None and self._clock() - self._traffic_s <= METRICS_PERIOD_S + _STANDS_S:
            share = self.traffic.acceptance.rate
            rate, acceptance = Reading(self.traffic.tokens_per_second, _NO_REPLY), self.traffic.acceptance
        else:
            silent = Reading.unknown(_NO_REPLY)
            return {"tokens_per_second": silent, "acceptance_percent": silent}, None
        drafts = Reading(None if share is None else 100 * share, _NO_DRAFTS)
        return {"tokens_per_second": rate, "acceptance_percent": drafts}, acceptance

    def _meter_that_holds(self) -> ReplyMeter | None:
        if self._meter is not None and self._meter.tokens_per_second is not None:
            return self._meter
        if self._earlier is not None and self._clock() - self._earlier[1] <= _STANDS_S:
            return self._earlier[0]
        return self._meter

    def _add(self, sample: Sampled) -> None:
        self.samples += 1
        for name, reading in sample.readings.items():
            self.series.setdefault(name, Series(name)).add(sample.time_s, reading)
        if self._listener is not None:
            self._listener(sample)

    async def _read_metrics(self, supervisor: Watched) -> None:
        if supervisor.status.state not in (State.READY, State.BUSY):
            self._counters = None
            return
        try:
            counters = read_counters(await supervisor.client.metrics())
        except (LauncherError, ValueError):
            return  # the supervisor learns of a dead engine by itself
        supervisor.note_requests(counters.processing)
        if counters.processing:
            self._wake.set()
        self.watch.note_counters(self._counters, counters, self._counters_s)
        self._counters_s = self._clock()
        if self._counters is not None:
            traffic = between(self._counters, counters)
            if traffic is not None:
                self.traffic, self._traffic_s = traffic, self._clock()
                if self.on_traffic is not None and not self._uncounted:
                    self.on_traffic(traffic)
        self._counters = counters


def _rests(supervisor: Watched, log: LogBook | None, read: int) -> bool:
    """Whether the engine waits for requests, and its log has told of none since its first `read` lines."""
    if log is None or supervisor.log is not log or supervisor.status.state is not State.READY:
        return False
    return all(POLLING.search(line.text) for line in log.since(read))


def _tell_failure(task: asyncio.Task[None]) -> None:
    """A loop that failed must not end without a word."""
    if not task.cancelled() and task.exception() is not None:
        task.get_loop().call_exception_handler({"message": "The monitor failed.", "exception": task.exception()})
