"""Collects the health detectors' input: from the monitor's samples, our own replies and the server's counters."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from launcher.base.messages import message
from launcher.engine.builds.build import BUILT_IN, EngineBuild
from launcher.engine.server.launch import Launch
from launcher.engine.server.logs import LogBook
from launcher.engine.server.reread import Reread
from launcher.engine.server.state import FailedReplies
from launcher.machine.busy_programs import BusyPrograms
from launcher.machine.gpu import READINGS, GpuActivity, Reading
from launcher.machine.gpus import GpuSensors, GpuSnapshot
from launcher.machine.host_load import OtherProgramsLoad
from launcher.machine.surroundings import read_on_battery
from launcher.machine.sysfs import ROOT
from launcher.models.catalogue_load import load_catalogue
from launcher.models.evidence import accepted_shares
from launcher.models.memory import effective_value
from launcher.monitor.health import Health
from launcher.monitor.health_event import Finding, FinishedReply, HealthEvent, Moment, ServerSetup
from launcher.monitor.host_memory import EngineCaches, read_host_memory
from launcher.monitor.meter import ReplyMeter
from launcher.monitor.processor import BUSY_PERCENT
from launcher.monitor.series import Series
from launcher.monitor.traffic import Counters

# GPU memory by program: the engine's, other programs', and the total of the monitored GPU.

MEMORY_READINGS = ("engine_vram_mib", "others_vram_mib", "vram_total_mib")
_MIB = 2**20
_NOT_CHECKED = message("Not checked yet. The engine is checked every 2 s once it is ready.")
_UNIFIED = message("This GPU has no memory of its own and shares host memory.")
_SEVERAL_GPUS = message("Windows reports a program's memory only as a total of all GPUs.")
_NOT_LISTED = message("The driver does not list the engine as a GPU program.")
_NOT_REPORTED = message("The driver does not report the memory of single programs.")


def unknown_memory() -> dict[str, Reading]:
    """Return unknown readings for MEMORY_READINGS, for the time before the first check."""
    return dict.fromkeys(MEMORY_READINGS, Reading.unknown(_NOT_CHECKED))


def memory_by_program(snapshot: GpuSnapshot, engine_pid: int | None, used: Reading) -> dict[str, Reading]:
    """Return the MEMORY_READINGS, in MiB. `used` is the memory of all programs on the GPU.

    Drivers report the memory of single programs on Linux only; on Windows the system's counters do, but not per GPU. In
    a container, process ids are the host's, so the engine cannot be identified.
    """
    engine = _engine_memory(snapshot, engine_pid)
    if engine.value is None or used.value is None:
        others = Reading.unknown((engine.absent if engine.value is None else used.absent) or _NOT_REPORTED)
    else:
        others = Reading(max(0.0, used.value - engine.value))
    return {"engine_vram_mib": engine, "others_vram_mib": others, "vram_total_mib": _total_memory(snapshot)}


def _engine_memory(snapshot: GpuSnapshot, engine_pid: int | None) -> Reading:
    counted = snapshot.readings.get("engine_vram_mib")
    if counted is not None and (counted.value is None or snapshot.is_only_gpu):
        return counted
    if counted is not None:
        return Reading.unknown(_SEVERAL_GPUS)
    processes = snapshot.activity.processes
    if processes is None:
        return Reading.unknown(snapshot.activity.absent.get("processes") or _NOT_REPORTED)
    entry = next((each for each in processes if each.pid == engine_pid and each.name is not None), None)
    if entry is None:
        return Reading.unknown(_NOT_LISTED)
    return Reading.unknown(_NOT_REPORTED) if entry.used_bytes is None else Reading(entry.used_bytes / _MIB)


def _total_memory(snapshot: GpuSnapshot) -> Reading:
    gpu = snapshot.gpu
    if gpu is None:
        return Reading.unknown(snapshot.activity.absent.get("processes") or message("There is no GPU."))
    if gpu.unified:
        return Reading.unknown(_UNIFIED)
    if gpu.memory_bytes is None:
        return Reading.unknown(gpu.absent.get("memory_bytes") or message("The driver does not report its size."))
    return Reading(gpu.memory_bytes / _MIB)


# Facts of a server from its start: settings, engine build, log, published measurements.

_BUFFER = re.compile(r"(\w+) +(?:model|KV|RS|output|compute) buffer size = +([\d.]+) MiB")
_WEIGHTS = re.compile(r"load_tensors: +(\w+) model buffer size = +([\d.]+) MiB")
_DEVICE = re.compile(r"common_param: +- (\w+) +: ")
_GPU_LIBRARY = re.compile(r"(?:lib)?ggml-(?:cuda|vulkan|hip|sycl|musa|opencl)\b.*\.(?:so|dll)")
_START_LINE = "llama_server: initializing"
"""Part of the first line that llama-server logs when it starts."""
_OFFLOAD_FLAGS = ("-dev", "--device", "-ngl", "--gpu-layers", "--n-gpu-layers")


def read_setup(launch: Launch, engine_pid: int, log: Iterable[str], snapshot: GpuSnapshot) -> ServerSetup:
    """Return the setup of a server that has just become ready. `log` has its lines, including those of earlier starts.

    If the user chose devices or layers by a flag of llama-server, an unused GPU is no surprise.
    """
    lines = lines_since_start(list(log))
    weights = _sum_buffers(_WEIGHTS, lines)
    on_gpus = {name: mib for name, mib in weights.items() if not _is_host(name)}
    devices = {found[1] for line in lines if (found := _DEVICE.search(line))}
    gpu = snapshot.gpu
    has_own_memory = gpu is not None and gpu.unified is False
    one_gpu = has_own_memory and snapshot.is_only_gpu and len(on_gpus) == 1
    offload_chosen = any(word.split("=")[0] in _OFFLOAD_FLAGS for word in launch.options.extra)
    return ServerSetup(
        draft=launch.options.draft if accepted_shares(launch.options.drafter) else 0,
        slots=launch.options.slots,
        cache_mib=effective_value("cache_ram", launch.options.cache_ram),
        engine_pid=engine_pid,
        on_gpu=bool(on_gpus) if weights else None,
        expects_gpu=False if offload_chosen else has_gpu_backend(launch.build),
        sees_gpu=any(not _is_host(name) for name in devices) if devices else None,
        weights_mib=sum(on_gpus.values()) if one_gpu else None,
        host_mib=sum(mib for name, mib in _sum_buffers(_BUFFER, lines).items() if _is_host(name)) if weights else None,
        vram_total_mib=gpu.memory_bytes / _MIB if gpu is not None and has_own_memory and gpu.memory_bytes else None,
        published_acceptance=published_acceptance(launch.options.model) if launch.options.drafter.drafts else None,
    )


def has_gpu_backend(build: EngineBuild) -> bool | None:
    """Return whether an engine build has a GPU backend, by the libraries in its folder.

    None for a statically linked build, which has no such libraries.
    """
    if build.name == BUILT_IN:
        return False
    try:
        names = [path.name for path in build.program.resolve().parent.iterdir()]
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


def lines_since_start(lines: list[str]) -> list[str]:
    """Return the lines of a log since the last start of an engine."""
    starts = [index for index, line in enumerate(lines) if _START_LINE in line]
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


_SMALL_CONTEXT_USED, _LONG_S = 4_096, 2.0
"""Limits in tokens and seconds. If several requests ended between two readings of the counters, only their sums are
known. The sum of tokens counts as the context in use if it is small, or if it must be mostly that of one long request.
"""


_MOST_PROMPTS = 64


@dataclass(frozen=True, slots=True)
class CheckInput:
    """Values read from the machine for one health check."""

    snapshot: GpuSnapshot
    others_percent: float | None
    on_battery: bool | None
    setup: ServerSetup | None
    host_memory: Mapping[str, Reading] = field(default_factory=dict)
    busy_programs: tuple[str, ...] = ()


@dataclass(slots=True)
class _RunningReply:
    """A reply that we are reading: its start, the most streams at the same time, and its tokens at the last check."""

    began_s: float
    streams: int
    checked_n: int = 0


class HealthWatch:
    """Collects the input of Health and runs it.

    `read_machine` may be called from another thread, all else only from the monitor's loop.
    """

    def __init__(self, listener: Callable[[HealthEvent], None] | None = None) -> None:
        self.period_s = 2.0
        """Seconds between two checks."""
        self.root = ROOT
        """The folder below which the kernel's files about memory limits are read."""
        self.health: Health | None = None
        self.advice: Finding | None = None
        """What the counts of use advise now."""
        self.activity: GpuActivity | None = None
        """GPU activity at the last check; None before the first one."""
        self.memory = unknown_memory()
        """Readings of GPU memory by program, at the last check."""
        self._listener = listener
        self._others = OtherProgramsLoad()
        self._busy_programs = BusyPrograms()
        self._engine_pid: int | None = None
        self._caches = EngineCaches()
        self._log_lines_read = 0
        self._next_check_s = 0.0
        self._last_check_s = 0.0
        self._counters: Counters | None = None
        self._running: int | None = None
        """Clients' requests that the gateway forwards now; None without a gateway."""
        self._most_running = 0
        """The most of them at once since the last reading of the counters."""
        self._own_replies: dict[ReplyMeter, _RunningReply] = {}
        self._own_reply_ended_s = float("-inf")
        self._finished: list[tuple[float, FinishedReply]] = []
        """Replies that ended since the last check, with the times at which they began."""
        self._prompts: deque[Reread | None] = deque(maxlen=_MOST_PROMPTS)
        """The re-read part of each request that ended since the last check, or of the last ones if no check runs."""
        self._others_shares: deque[tuple[float, float | None]] = deque(maxlen=300)
        """Processor share of other programs at the last checks, with their times."""

    @property
    def open_findings(self) -> tuple[Finding, ...]:
        """Findings about the running server that were raised and are not cleared."""
        return self.health.open_findings if self.health else ()

    def is_due(self, now_s: float) -> bool:
        """Return whether the next health check is due."""
        return now_s >= self._next_check_s

    def read_machine(self, gpu: GpuSensors, engine_pid: int, launch: Launch | None, log: LogBook | None) -> CheckInput:
        """Read the machine's values for a check, and the setup of a new engine (from its log, if we started it)."""
        snapshot = gpu.read_snapshot(engine_pid)
        setup = None
        if engine_pid != self._engine_pid:
            setup = ServerSetup(engine_pid=engine_pid)
            self._caches, self._log_lines_read = EngineCaches(), log.line_count if log else 0
            if launch and log:
                lines = log.last_lines()
                setup = read_setup(launch, engine_pid, lines, snapshot)
                self._caches.add_lines(lines_since_start(lines))
        elif log:
            count = log.line_count
            self._caches.add_lines(line.text for line in log.lines_since(self._log_lines_read))
            self._log_lines_read = count
        slots = launch.options.slots if launch else 1
        host_memory = read_host_memory(engine_pid, self.root) | self._caches.make_readings(slots)
        power_limited = "power limit" in (snapshot.activity.throttled_by or ())
        on_battery = read_on_battery()[0] if power_limited else None
        others_percent = self._others.read_percent(engine_pid)
        busy_programs = self._list_busy_programs(others_percent, engine_pid)
        return CheckInput(snapshot, others_percent, on_battery, setup, host_memory, busy_programs)

    def _list_busy_programs(self, others_percent: float | None, engine_pid: int) -> tuple[str, ...]:
        """Return the busiest other programs while they take the processor from an engine that needs it, else ().

        All processes of the computer must be read for this, which takes time.
        """
        needs_processor = self.health is not None and self.health.setup.on_gpu is False
        if not needs_processor or others_percent is None or others_percent < BUSY_PERCENT:
            self._busy_programs.forget()
            return ()
        return self._busy_programs.list_busiest({engine_pid, os.getpid()})

    def _count_waiting(self, held_requests: int) -> int | None:
        """Return how many requests wait for a slot; None if the engine does not count those in it."""
        if self._counters is None or self._counters.waiting is None:
            return held_requests or None
        return held_requests + self._counters.waiting

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
        """Run the detectors, and pass their events to the listener. `machine` is None if no server is ready.

        `held_requests` is how many requests wait for a slot in the gateway, not yet in the engine. `failed_replies` are
        those that the engine has failed one after another, None if that is unknown. `kept_problem` is why no
        conversation can be kept on disk.
        """
        since_s, self._last_check_s = self._last_check_s, now_s
        self._next_check_s = now_s + self.period_s
        if machine is None:
            return
        if machine.setup is not None:
            self._drop_findings()
            self.health, self._engine_pid = Health(machine.setup), machine.setup.engine_pid
            self._finished.clear()
        if self.health is None:
            return
        self._others_shares.append((now_s, machine.others_percent))
        readings = {name: _mean(series[name], since_s) for name in READINGS if name in series}
        self.activity = machine.snapshot.activity
        used = readings.get("vram_used_mib") or Reading.unknown(message("Not measured yet."))
        self.memory = memory_by_program(machine.snapshot, self._engine_pid, used)
        moment = Moment(
            time_s=now_s,
            readings={**readings, **machine.snapshot.readings, **machine.host_memory},
            activity=machine.snapshot.activity,
            generating=self._is_generating(self._processing),
            waiting=self._count_waiting(held_requests),
            finished=tuple(self._add_others_share(began_s, reply) for began_s, reply in self._finished),
            on_battery=machine.on_battery,
            others_percent=machine.others_percent,
            busy_programs=machine.busy_programs,
            prompts=tuple(self._prompts),
            failed_replies=failed_replies,
            kept_problem=kept_problem,
            advice=self.advice,
        )
        self._finished.clear()
        self._prompts.clear()
        for event in self.health.check(moment):
            if self._listener is not None:
                self._listener(event)

    def reset(self) -> None:
        """Drop all state of a server that has ended, with its findings."""
        self._drop_findings()
        self._engine_pid = self._counters = self._running = self.activity = None
        self.memory = unknown_memory()
        self._finished.clear()
        self._prompts.clear()

    def _drop_findings(self) -> None:
        """Drop the findings about an engine that is gone, and tell the listener that they are over."""
        findings, self.health, self.advice = self.open_findings, None, None
        for finding in findings:
            if self._listener is not None:
                self._listener(HealthEvent(self._last_check_s, finding, cleared=True))

    def note_prompt(self, reread: Reread | None) -> None:
        """Register a client's request that has ended, and the part of its prompt that was read again."""
        self._prompts.append(reread)

    def reply_started(self, meter: ReplyMeter, now_s: float) -> None:
        """Register a reply that we have requested."""
        self._own_replies[meter] = _RunningReply(now_s, 0)
        self._count_streams()

    def reply_ended(self, meter: ReplyMeter, now_s: float) -> None:
        """Register the end of our reply, whether it is complete or not."""
        own = self._own_replies.pop(meter)
        self._own_reply_ended_s = now_s
        timings = meter.last
        if timings is None:
            return
        drafts = meter.acceptance
        context_used = timings.cache_n + timings.prompt_n + timings.predicted_n / 2
        reply = FinishedReply(
            timings.predicted_n,
            timings.predicted_ms / 1_000,
            drafts.drafted,
            drafts.accepted,
            context_used,
            own.streams,
        )
        self._finished.append((own.began_s, reply))

    def note_running(self, requests: int) -> None:
        """Register how many requests of clients the gateway forwards now."""
        self._running = requests
        self._most_running = max(self._most_running, requests)
        self._count_streams()

    @property
    def _processing(self) -> int | None:
        """Number of requests that the engine works on; None if unknown."""
        if self._running is not None:
            return self._running
        return self._counters.processing if self._counters else None

    def add_counters(self, before: Counters | None, now: Counters, before_s: float) -> None:
        """Add a reading of the counters. `before` is the previous one, read at `before_s`.

        Their growth counts as one finished reply of other clients, unless replies of ours contributed to it.
        """
        self._counters = now
        self._count_streams()
        most_running, self._most_running = self._most_running, self._running or 0
        if before is None or self._own_replies or self._own_reply_ended_s >= before_s:
            return
        tokens, seconds = int(now.predicted_n - before.predicted_n), now.predicted_s - before.predicted_s
        if tokens <= 0 or seconds <= 0 or now.drafted < before.drafted or now.accepted < before.accepted:
            return
        streams = max(before.processing, now.processing, most_running, 1)
        context_used = now.prompt_n - before.prompt_n + tokens / 2
        context_known = context_used <= _SMALL_CONTEXT_USED or (streams == 1 and seconds >= _LONG_S)
        counts = now.counts_drafts
        reply = FinishedReply(
            predicted_n=tokens,
            predicted_s=seconds,
            drafted=now.drafted - before.drafted if counts else None,
            accepted=now.accepted - before.accepted if counts else None,
            context_used=context_used if context_known else None,
            streams=streams,
        )
        self._finished.append((before_s, reply))

    def _count_streams(self) -> None:
        streams = max(len(self._own_replies), self._processing or 0)
        for own in self._own_replies.values():
            own.streams = max(own.streams, streams)

    def _is_generating(self, processing: int | None) -> bool | None:
        """Return whether tokens were generated since the last check, or None if unknown.

        The engine does not report how many tokens requests of other clients have, only that it processes some.
        """
        if not self._own_replies:
            return None if processing is None else processing > 0
        generated = False
        for meter, own in self._own_replies.items():
            tokens = meter.last.predicted_n if meter.last else 0
            generated |= tokens > own.checked_n
            own.checked_n = tokens
        return generated

    def _add_others_share(self, began_s: float, reply: FinishedReply) -> FinishedReply:
        """Return `reply` with the processor share of other programs while it was generated."""
        shares = [share for time_s, share in self._others_shares if time_s > began_s and share is not None]
        return replace(reply, others_percent=fmean(shares) if shares else None)


def _mean(series: Series, since_s: float) -> Reading:
    """Return the mean of the samples since `since_s`."""
    values = [sample.value for sample in series.since(since_s) if sample.value is not None]
    return Reading(fmean(values)) if values else Reading.unknown(series.absent or message("Not measured yet."))
