"""Collects the input of the health detectors from the monitor's samples, our own replies and the server's counters."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from launcher.base.messages import message
from launcher.engine.builds.build import BUILT_IN, EngineBuild
from launcher.engine.server.launch import Launch
from launcher.engine.server.logs import LogBook
from launcher.machine.gpu import READINGS, GpuActivity, Reading
from launcher.machine.gpus import GpuSensors, GpuSnapshot
from launcher.machine.others import OtherProgramsLoad
from launcher.machine.surroundings import is_on_battery
from launcher.models.catalogue_load import load_catalogue
from launcher.monitor.health import Health
from launcher.monitor.health_event import Finding, FinishedReply, HealthEvent, Moment, ServerSetup
from launcher.monitor.meter import ReplyMeter
from launcher.monitor.series import Series
from launcher.monitor.traffic import Counters

# GPU memory by program: the engine's, other programs', and the total of the watched GPU.

NAMES = ("engine_vram_mib", "others_vram_mib", "vram_total_mib")
_MIB = 2**20
_NOT_ASKED = message("Not checked yet. The engine is checked every 2 s once it is ready.")
_SHARED = message("This GPU has no memory of its own and shares host memory.")
_SEVERAL = message("Windows reports a program's memory only as a total of all GPUs.")
_NOT_LISTED = message("The driver does not list the engine as a GPU program.")
_NOT_TOLD = message("The driver does not report the memory of single programs.")


def unknown_memory() -> dict[str, Reading]:
    """Return unknown readings for NAMES, for the time before the first check."""
    return dict.fromkeys(NAMES, Reading.unknown(_NOT_ASKED))


def memory_by_program(look: GpuSnapshot, engine_pid: int | None, used: Reading) -> dict[str, Reading]:
    """Return the readings of NAMES, in MiB. `used` is the memory of all programs on the GPU.

    Drivers report the memory of single programs on Linux only; on Windows the system's counters do, but not per GPU. In
    a container, process ids are the host's, so the engine cannot be identified.
    """
    ours = _engine_memory(look, engine_pid)
    if ours.value is None or used.value is None:
        others = Reading.unknown((ours.absent if ours.value is None else used.absent) or _NOT_TOLD)
    else:
        others = Reading(max(0.0, used.value - ours.value))
    return {"engine_vram_mib": ours, "others_vram_mib": others, "vram_total_mib": _total_memory(look)}


def _engine_memory(look: GpuSnapshot, engine_pid: int | None) -> Reading:
    counted = look.readings.get("engine_vram_mib")
    if counted is not None and (counted.value is None or look.alone):
        return counted
    if counted is not None:
        return Reading.unknown(_SEVERAL)
    processes = look.activity.processes
    if processes is None:
        return Reading.unknown(look.activity.absent.get("processes") or _NOT_TOLD)
    entry = next((each for each in processes if each.pid == engine_pid and each.name is not None), None)
    if entry is None:
        return Reading.unknown(_NOT_LISTED)
    return Reading.unknown(_NOT_TOLD) if entry.used_bytes is None else Reading(entry.used_bytes / _MIB)


def _total_memory(look: GpuSnapshot) -> Reading:
    gpu = look.gpu
    if gpu is None:
        return Reading.unknown(look.activity.absent.get("processes") or message("There is no GPU."))
    if gpu.unified:
        return Reading.unknown(_SHARED)
    if gpu.memory_bytes is None:
        return Reading.unknown(gpu.absent.get("memory_bytes") or message("The driver does not report its size."))
    return Reading(gpu.memory_bytes / _MIB)


# Facts of a server from its start: settings, engine build, log, published measurements.

_BUFFER = re.compile(r"(\w+) +(?:model|KV|RS|output|compute) buffer size = +([\d.]+) MiB")
_WEIGHTS = re.compile(r"load_tensors: +(\w+) model buffer size = +([\d.]+) MiB")
_DEVICE = re.compile(r"common_param: +- (\w+) +: ")
_GPU_LIBRARY = re.compile(r"(?:lib)?ggml-(?:cuda|vulkan|hip|sycl|musa|opencl)\b.*\.(?:so|dll)")
_STARTS = "llama_server: initializing"
_ON_PROCESSOR = ("-dev", "--device", "-ngl", "--gpu-layers", "--n-gpu-layers")


def read_setup(launch: Launch, engine_pid: int, log: Iterable[str], look: GpuSnapshot) -> ServerSetup:
    """Return the setup of a server that has just become ready. `log` has its lines, also of earlier starts."""
    lines = _lines_since_start(list(log))
    weights = _sum_buffers(_WEIGHTS, lines)
    on_gpus = {name: mib for name, mib in weights.items() if not _is_host(name)}
    devices = {found[1] for line in lines if (found := _DEVICE.search(line))}
    gpu = look.gpu
    of_its_own = gpu is not None and gpu.unified is False
    one_gpu = of_its_own and look.alone and len(on_gpus) == 1
    on_purpose = any(word.split("=")[0] in _ON_PROCESSOR for word in launch.options.extra)
    return ServerSetup(
        draft=launch.options.draft,
        slots=launch.options.slots,
        engine_pid=engine_pid,
        on_gpu=bool(on_gpus) if weights else None,
        expects_gpu=False if on_purpose else has_gpu_backend(launch.build),
        sees_gpu=any(not _is_host(name) for name in devices) if devices else None,
        weights_mib=sum(on_gpus.values()) if one_gpu else None,
        host_mib=sum(mib for name, mib in _sum_buffers(_BUFFER, lines).items() if _is_host(name)) if weights else None,
        vram_total_mib=gpu.memory_bytes / _MIB if gpu is not None and of_its_own and gpu.memory_bytes else None,
        usual_acceptance=published_acceptance(launch.options.model) if launch.options.draft else None,
    )


def has_gpu_backend(build: EngineBuild) -> bool | None:
    """Return whether an engine build has a GPU backend, by the libraries beside its program; None if unknown.

    It is unknown for a statically linked build, which has no such libraries.
    """
    if build.name == BUILT_IN:
        return False
    try:
        names = [path.name for path in Path(build.command[0]).resolve().parent.iterdir()]
    except OSError:
        return None
    if any(map(_GPU_LIBRARY.match, names)):
        return True
    return False if any("ggml-cpu" in name for name in names) else None


def published_acceptance(model: Path) -> float | None:
    """Return the lowest published draft acceptance (0 to 1) for the model of this file, or None."""
    for entry in load_catalogue().models:
        files = [part.file for file in entry.files for part in file.parts] + [file.file for file in entry.files]
        if model.name in {Path(file).name for file in files}:
            shares = [each.acceptance for each in entry.measurements if each.acceptance and each.trust != "low"]
            return min(shares, default=None)
    return None


def _lines_since_start(lines: list[str]) -> list[str]:
    starts = [index for index, line in enumerate(lines) if _STARTS in line]
    return lines[starts[-1] :] if starts else lines


def _sum_buffers(pattern: re.Pattern[str], lines: Iterable[str]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for line in lines:
        if found := pattern.search(line):
            sums[found[1]] = sums.get(found[1], 0.0) + float(found[2])
    return sums


def _is_host(name: str) -> bool:
    """Return whether a buffer type is in host memory: CPU, CPU_Mapped, CPU_REPACK, CUDA_Host, Vulkan_Host, BLAS."""
    return name.startswith(("CPU", "BLAS", "AMX")) or name.endswith("_Host")


_SMALL_FILL, _LONG_S = 4_096, 2.0
"""Limits in tokens and seconds. For requests that ended between two readings of the counters only sums are known. The
sum of tokens is used as the context in use if it is small, or if a single long request must account for most of it."""


@dataclass(frozen=True, slots=True)
class CheckInput:
    """Values read from the machine for one health check."""

    look: GpuSnapshot
    others_percent: float | None
    on_battery: bool | None
    setup: ServerSetup | None


@dataclass(slots=True)
class _RunningReply:
    """A running reply of ours: its start, the most streams at the same time, and its tokens at the last check."""

    began_s: float
    streams: int
    seen_n: int = 0


class HealthWatch:
    """Feeds Health. `read_machine` may be called from another thread; all else only from the monitor's loop."""

    def __init__(self, listener: Callable[[HealthEvent], None] | None = None) -> None:
        self.period_s = 2.0
        """Seconds between two checks."""
        self.health: Health | None = None
        self.activity: GpuActivity | None = None
        """GPU activity at the last check; None before the first one."""
        self.memory = unknown_memory()
        """Readings of GPU memory by program, at the last check."""
        self._listener = listener
        self._others = OtherProgramsLoad()
        self._engine_pid: int | None = None
        self._next_s = 0.0
        self._last_s = 0.0
        self._counters: Counters | None = None
        self._own: dict[ReplyMeter, _RunningReply] = {}
        self._own_ended_s = float("-inf")
        self._finished: list[tuple[float, FinishedReply]] = []
        self._taken_by_others: deque[tuple[float, float | None]] = deque(maxlen=300)

    @property
    def standing(self) -> tuple[Finding, ...]:
        """Findings about the running server that were raised and are not cleared."""
        return self.health.standing if self.health else ()

    def is_due(self, now_s: float) -> bool:
        """Return whether the next health check is due."""
        return now_s >= self._next_s

    def read_machine(self, gpu: GpuSensors, engine_pid: int, launch: Launch | None, log: LogBook | None) -> CheckInput:
        """Read the machine's values for a check, and the setup of a new engine (from its log, if we started it)."""
        look = gpu.read_snapshot(engine_pid)
        setup = None
        if engine_pid != self._engine_pid:
            setup = (
                read_setup(launch, engine_pid, log.last(), look)
                if launch and log
                else ServerSetup(engine_pid=engine_pid)
            )
        limited = "power limit" in (look.activity.throttled_by or ())
        return CheckInput(look, self._others.read_percent(engine_pid), is_on_battery()[0] if limited else None, setup)

    def check(self, now_s: float, sensed: CheckInput | None, series: Mapping[str, Series]) -> None:
        """Run the detectors, and pass their events to the listener. `sensed` is None if no server is ready."""
        since_s, self._last_s, self._next_s = self._last_s, now_s, now_s + self.period_s
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
        used = readings.get("vram_used_mib") or Reading.unknown(message("Not measured yet."))
        self.memory = memory_by_program(sensed.look, self._engine_pid, used)
        moment = Moment(
            time_s=now_s,
            readings=readings | dict(sensed.look.readings),
            activity=sensed.look.activity,
            generating=self._is_generating(processing),
            waiting=self._counters.waiting if self._counters else None,
            finished=tuple(self._add_others_share(began_s, reply) for began_s, reply in self._finished),
            on_battery=sensed.on_battery,
        )
        self._finished.clear()
        for event in self.health.check(moment):
            if self._listener is not None:
                self._listener(event)

    def reset(self) -> None:
        """Drop all state of a server that has ended, with its findings."""
        self.health = self._engine_pid = self._counters = self.activity = None
        self.memory = unknown_memory()
        self._finished.clear()

    def reply_started(self, meter: ReplyMeter, now_s: float) -> None:
        """Register a reply of ours that was requested."""
        self._own[meter] = _RunningReply(now_s, 0)
        self._count_streams()

    def reply_ended(self, meter: ReplyMeter, now_s: float) -> None:
        """Register the end of a reply of ours, complete or not."""
        own = self._own.pop(meter)
        self._own_ended_s = now_s
        timings = meter.last
        if timings is None:
            return
        drafts = meter.acceptance
        fill = timings.cache_n + timings.prompt_n + timings.predicted_n / 2
        reply = FinishedReply(
            timings.predicted_n, timings.predicted_ms / 1_000, drafts.drafted, drafts.accepted, fill, own.streams
        )
        self._finished.append((own.began_s, reply))

    def note_counters(self, before: Counters | None, now: Counters, before_s: float) -> None:
        """Add a reading of the counters. `before` is the previous one, read at `before_s`."""
        self._counters = now
        self._count_streams()
        if before is None or self._own or self._own_ended_s >= before_s:
            return
        tokens, seconds = int(now.predicted_n - before.predicted_n), now.predicted_s - before.predicted_s
        if tokens <= 0 or seconds <= 0 or now.drafted < before.drafted or now.accepted < before.accepted:
            return
        streams = max(before.processing, now.processing, 1)
        fill = now.prompt_n - before.prompt_n + tokens / 2
        fill_known = fill <= _SMALL_FILL or (streams == 1 and seconds >= _LONG_S)
        counts = now.counts_drafts
        reply = FinishedReply(
            predicted_n=tokens,
            predicted_s=seconds,
            drafted=now.drafted - before.drafted if counts else None,
            accepted=now.accepted - before.accepted if counts else None,
            fill=fill if fill_known else None,
            streams=streams,
        )
        self._finished.append((before_s, reply))

    def _count_streams(self) -> None:
        streams = max(len(self._own), self._counters.processing if self._counters else 0)
        for own in self._own.values():
            own.streams = max(own.streams, streams)

    def _is_generating(self, processing: int | None) -> bool | None:
        """Return whether tokens were generated since the last check, or None if unknown.

        Of other clients' requests it is known only that they are being processed.
        """
        if not self._own:
            return None if processing is None else processing > 0
        came = False
        for meter, own in self._own.items():
            tokens = meter.last.predicted_n if meter.last else 0
            came |= tokens > own.seen_n
            own.seen_n = tokens
        return came

    def _add_others_share(self, began_s: float, reply: FinishedReply) -> FinishedReply:
        """Return `reply` with the processor share of other programs while it was generated."""
        shares = [share for time_s, share in self._taken_by_others if time_s > began_s and share is not None]
        return FinishedReply(
            reply.predicted_n,
            reply.predicted_s,
            reply.drafted,
            reply.accepted,
            reply.fill,
            reply.streams,
            fmean(shares) if shares else None,
        )


def _mean(series: Series, since_s: float) -> Reading:
    """Return the mean of the samples since `since_s`."""
    values = [sample.value for sample in series.since(since_s) if sample.value is not None]
    return Reading(fmean(values)) if values else Reading.unknown(series.absent or message("Not measured yet."))
