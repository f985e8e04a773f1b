"""What the detectors look at, gathered from the monitor's samples, our own replies and the server's counters."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from launcher.engine.launch import Launch
from launcher.engine.logs import LogBook
from launcher.machine.gpu import READINGS, Activity
from launcher.machine.gpus import GpuLook, GpuSensors
from launcher.machine.others import OtherPrograms
from launcher.machine.reading import Reading
from launcher.machine.surroundings import battery_in_use
from launcher.monitor import gpu_memory
from launcher.monitor.health import Health
from launcher.monitor.health_event import Finding, Finished, HealthEvent, Moment, Setup
from launcher.monitor.health_setup import setup_of
from launcher.monitor.meter import ReplyMeter
from launcher.monitor.series import Series
from launcher.monitor.traffic import Counters

PERIOD_S = 2.0
_SMALL_FILL, _LONG_S = 4_096, 2.0
"""Of requests that ended between two looks at the counters only the sum is known. It stands for the context in use
where it is small, or where one request must have been most of it."""


@dataclass(frozen=True, slots=True)
class Sensed:
    """What a look asked of the machine."""

    look: GpuLook
    others_percent: float | None
    on_battery: bool | None
    setup: Setup | None


@dataclass(slots=True)
class _Own:
    """A reply of ours that runs: since when, how many streams there were at most, and its tokens at the last look."""

    began_s: float
    streams: int
    seen_n: int = 0


class HealthWatch:
    """Feeds Health. `sense` may be called on a thread; all else belongs to the monitor's loop."""

    def __init__(self, listener: Callable[[HealthEvent], None] | None = None) -> None:
        self.health: Health | None = None
        self.activity: Activity | None = None
        """What the watched GPU did at the last look; None before the first."""
        self.memory = gpu_memory.not_asked()
        """Whose the GPU's memory was at the last look, as readings."""
        self._listener = listener
        self._others = OtherPrograms()
        self._engine_pid: int | None = None
        self._next_s = 0.0
        self._last_s = 0.0
        self._counters: Counters | None = None
        self._own: dict[ReplyMeter, _Own] = {}
        self._own_ended_s = float("-inf")
        self._finished: list[tuple[float, Finished]] = []
        self._taken_by_others: deque[tuple[float, float | None]] = deque(maxlen=300)

    @property
    def standing(self) -> tuple[Finding, ...]:
        """What was raised about the server that runs, and is not over."""
        return self.health.standing if self.health else ()

    def due(self, now_s: float) -> bool:
        """Whether it is time for a look."""
        return now_s >= self._next_s

    def sense(self, gpu: GpuSensors, engine_pid: int, launch: Launch | None, log: LogBook | None) -> Sensed:
        """Ask the machine; the first time for an engine, read its log, too, where it was started here."""
        look = gpu.look(engine_pid)
        setup = None
        if engine_pid != self._engine_pid:
            setup = setup_of(launch, engine_pid, log.last(), look) if launch and log else Setup(engine_pid=engine_pid)
        limited = "power limit" in (look.activity.throttled_by or ())
        return Sensed(look, self._others.percent(engine_pid), battery_in_use()[0] if limited else None, setup)

    def look(self, now_s: float, sensed: Sensed | None, series: Mapping[str, Series]) -> None:
        """Let the detectors look, and tell what they say; None when no server is ready."""
        since_s, self._last_s, self._next_s = self._last_s, now_s, now_s + PERIOD_S
        if sensed is None:
            return
        if sensed.setup is not None:
            self.health, self._engine_pid = Health(sensed.setup), sensed.setup.engine_pid
            self._finished.clear()
        if self.health is None:
            return
        self._taken_by_others.append((now_s, sensed.others_percent))
        processing = self._counters.processing if self._counters else None
        readings = {name: _mean(series[name], since_s) for name in READINGS if name in series}
        self.activity = sensed.look.activity
        used = readings.get("vram_used_mib") or Reading.unknown("Not sampled yet.")
        self.memory = gpu_memory.whose(sensed.look, self._engine_pid, used)
        moment = Moment(
            time_s=now_s,
            readings=readings | dict(sensed.look.readings),
            activity=sensed.look.activity,
            generating=self._generating(processing),
            waiting=self._counters.waiting if self._counters else None,
            finished=tuple(self._with_others(began_s, reply) for began_s, reply in self._finished),
            on_battery=sensed.on_battery,
        )
        self._finished.clear()
        for event in self.health.look(moment):
            if self._listener is not None:
                self._listener(event)

    def forget(self) -> None:
        """The server is gone: what stood about it stands no more."""
        self.health = self._engine_pid = self._counters = self.activity = None
        self.memory = gpu_memory.not_asked()
        self._finished.clear()

    def reply_started(self, meter: ReplyMeter, now_s: float) -> None:
        """A reply of ours was asked for."""
        self._own[meter] = _Own(now_s, 0)
        self._count_streams()

    def reply_ended(self, meter: ReplyMeter, now_s: float) -> None:
        """A reply of ours ended, whole or not."""
        own = self._own.pop(meter)
        self._own_ended_s = now_s
        timings = meter.last
        if timings is None:
            return
        drafts = meter.acceptance
        fill = timings.cache_n + timings.prompt_n + timings.predicted_n / 2
        reply = Finished(
            timings.predicted_n, timings.predicted_ms / 1_000, drafts.drafted, drafts.accepted, fill, own.streams
        )
        self._finished.append((own.began_s, reply))

    def note_counters(self, before: Counters | None, now: Counters, before_s: float) -> None:
        """Take in a reading of the counters, and the one before it, which was read at `before_s`."""
        self._counters = now
        self._count_streams()
        if before is None or self._own or self._own_ended_s >= before_s:
            return
        tokens, seconds = int(now.predicted_n - before.predicted_n), now.predicted_s - before.predicted_s
        if tokens <= 0 or seconds <= 0 or now.drafted < before.drafted or now.accepted < before.accepted:
            return
        streams = max(before.processing, now.processing, 1)
        fill = now.prompt_n - before.prompt_n + tokens / 2
        told = fill <= _SMALL_FILL or (streams == 1 and seconds >= _LONG_S)
        counts = now.counts_drafts
        reply = Finished(
            predicted_n=tokens,
            predicted_s=seconds,
            drafted=now.drafted - before.drafted if counts else None,
            accepted=now.accepted - before.accepted if counts else None,
            fill=fill if told else None,
            streams=streams,
        )
        self._finished.append((before_s, reply))

    def _count_streams(self) -> None:
        streams = max(len(self._own), self._counters.processing if self._counters else 0)
        for own in self._own.values():
            own.streams = max(own.streams, streams)

    def _generating(self, processing: int | None) -> bool | None:
        """Return whether tokens came since the last look. Of other clients' requests it is known only that they run."""
        if not self._own:
            return None if processing is None else processing > 0
        came = False
        for meter, own in self._own.items():
            tokens = meter.last.predicted_n if meter.last else 0
            came |= tokens > own.seen_n
            own.seen_n = tokens
        return came

    def _with_others(self, began_s: float, reply: Finished) -> Finished:
        """Return a reply with what other programs took while it was made."""
        shares = [share for time_s, share in self._taken_by_others if time_s > began_s and share is not None]
        return Finished(
            reply.predicted_n,
            reply.predicted_s,
            reply.drafted,
            reply.accepted,
            reply.fill,
            reply.streams,
            fmean(shares) if shares else None,
        )


def _mean(series: Series, since_s: float) -> Reading:
    """Return the mean of the samples since the last look."""
    values = [sample.value for sample in series.since(since_s) if sample.value is not None]
    return Reading(fmean(values)) if values else Reading.unknown(series.absent or "Not sampled yet.")
