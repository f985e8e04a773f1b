"""One clock, 10 samples a second: the host, the GPU, and the engine's own numbers as series."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from launcher.base.errors import LauncherError
from launcher.engine.state import State
from launcher.engine.supervisor import Supervisor
from launcher.machine.nvidia import Nvml
from launcher.machine.reading import Reading
from launcher.machine.sensors import HostSensors
from launcher.monitor.meter import Acceptance, ReplyMeter
from launcher.monitor.series import Series
from launcher.monitor.traffic import Counters, Traffic, between, read_counters

PERIOD_S = 0.1
METRICS_PERIOD_S = 2.0
"""Each answer of /metrics wakes the engine's queue; asked more often than once a second, it would keep a
request whose client has gone running to its end (observed with llama.cpp b11669)."""

_STANDS_S = 1.0
_NO_REPLY = "No reply is being generated."
_NO_DRAFTS = "Nothing was drafted."


@dataclass(frozen=True, slots=True)
class Sampled:
    """One set of readings, all taken at `time_s` of the monitor's clock."""

    time_s: float
    readings: Mapping[str, Reading]
    acceptance: Acceptance | None


class Monitor:
    """Samples while it runs; the series stay. Belongs to the loop of its supervisor."""

    def __init__(
        self, listener: Callable[[Sampled], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.series: dict[str, Series] = {}
        self.samples = 0
        self.traffic: Traffic | None = None
        self._listener = listener
        self._clock = clock
        self._host = HostSensors()
        self._nvml: Nvml | None = None
        self._meter: ReplyMeter | None = None
        self._earlier: tuple[ReplyMeter, float] | None = None
        self._counters: Counters | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, supervisor: Supervisor) -> None:
        """Start sampling `supervisor` and the machine, unless that is being done."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(supervisor))

    async def end(self) -> None:
        """Stop sampling."""
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def reply_started(self) -> ReplyMeter:
        """Return a meter for a reply of ours; until it ends the engine's numbers are taken from it."""
        self._meter = ReplyMeter()
        return self._meter

    def reply_ended(self, meter: ReplyMeter) -> None:
        """Let go of a meter. Its figures are of its last second, and stand for one second more."""
        if self._meter is meter:
            self._meter = None
            self._earlier = meter, self._clock()

    async def _run(self, supervisor: Supervisor) -> None:
        self._nvml = await asyncio.to_thread(Nvml)
        next_s = self._clock()
        next_metrics_s = next_s
        try:
            while True:
                self._host.watch(supervisor.engine_pid)
                readings = await asyncio.to_thread(self._read_machine)
                meter = self._figures()
                self._add(Sampled(next_s, readings | self._engine_readings(meter), meter.acceptance if meter else None))
                if self._clock() >= next_metrics_s:
                    next_metrics_s = self._clock() + METRICS_PERIOD_S
                    await self._read_metrics(supervisor)
                next_s = max(next_s + PERIOD_S, self._clock())
                await asyncio.sleep(max(0.0, next_s - self._clock()))
        finally:
            self._nvml.close()

    def _read_machine(self) -> dict[str, Reading]:
        readings = self._host.sample()
        assert self._nvml is not None  # noqa: S101 -- _run opened it
        if self._nvml.absent is not None:
            names = ("gpu_temperature_c", "gpu_power_w", "gpu_clock_mhz", "vram_used_mib", "gpu_use_percent")
            return readings | dict.fromkeys(names, Reading.unknown(self._nvml.absent))
        return readings | self._nvml.sample(self._nvml.gpus[0].index)

    def _figures(self) -> ReplyMeter | None:
        """Return the meter whose figures hold now."""
        if self._meter is not None and self._meter.tokens_per_second is not None:
            return self._meter
        if self._earlier is not None and self._clock() - self._earlier[1] <= _STANDS_S:
            return self._earlier[0]
        return self._meter

    def _engine_readings(self, meter: ReplyMeter | None) -> dict[str, Reading]:
        if meter is None or meter.last is None:
            silent = Reading.unknown(_NO_REPLY)
            return {"tokens_per_second": silent, "acceptance_percent": silent}
        acceptance = meter.last.acceptance
        return {
            "tokens_per_second": Reading(meter.tokens_per_second, "Too few tokens to tell."),
            "acceptance_percent": Reading(None if acceptance is None else 100 * acceptance, _NO_DRAFTS),
        }

    def _add(self, sample: Sampled) -> None:
        self.samples += 1
        for name, reading in sample.readings.items():
            self.series.setdefault(name, Series(name)).add(sample.time_s, reading)
        if self._listener is not None:
            self._listener(sample)

    async def _read_metrics(self, supervisor: Supervisor) -> None:
        if supervisor.status.state not in (State.READY, State.BUSY):
            self._counters = None
            return
        try:
            counters = read_counters(await supervisor.client.metrics())
        except (LauncherError, ValueError):
            return  # the supervisor learns of a dead engine by itself
        supervisor.note_requests(counters.processing)
        if self._counters is not None:
            self.traffic = between(self._counters, counters) or self.traffic
        self._counters = counters
