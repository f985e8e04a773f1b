"""The GPU memory of a running engine, measured and estimated, and recorded for later plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from launcher.engine.engine_estimate import backend_of_log
from launcher.machine.cards import match_card
from launcher.machine.gpus import find_gpus, read_gpu_states
from launcher.models.geometry import read_geometry
from launcher.models.load_history import record_load
from launcher.models.memory import estimate_memory
from launcher.models.weights import read_weights

if TYPE_CHECKING:
    from launcher.engine.server.launch import Launch
    from launcher.models.compute_buffers import Backend

_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class LoadMemory:
    """GPU memory of a loaded model, in MiB: its buffers by the estimate, and all of it as the driver counts it."""

    gpu_id: str
    backend: Backend
    buffers_mib: int
    measured_mib: int


def measure_load_memory(
    launch: Launch, engine_pid: int, log: Sequence[str], *, has_read_prompt: bool
) -> LoadMemory | None:
    """Return the measured and the estimated GPU memory of a running engine, None if they cannot be compared.

    They can if the driver reports memory by process (NVML on Linux), a single GPU holds everything, the engine's `log`
    names its backend, and the engine has no extra arguments, draft model or vision encoder. CUDA's pool is counted if
    the engine `has_read_prompt` of a full ubatch.
    """

    options, backend = launch.options, backend_of_log(log)
    if options.extra or options.used_draft_file or options.mmproj or backend == "cpu":
        return None
    gpus = find_gpus().gpus
    used_bytes = {
        gpu_id: process.used_bytes
        for gpu_id, (_, activity) in read_gpu_states(gpus).items()
        for process in activity.processes or ()
        if process.pid == engine_pid and process.used_bytes
    }
    used_gpus = [gpu for gpu in gpus if gpu.id in used_bytes]
    if len(used_gpus) != 1:
        return None
    geometry = read_geometry(launch.header)
    weights = read_weights(launch.header, geometry)
    gpu = used_gpus[0]
    card = match_card(gpu.name, (gpu.memory_bytes or 0) / _GIB)
    settings = replace(launch.plan_settings(backend), cards=(card,) if card else ())
    parts = estimate_memory(geometry, weights, settings).parts
    buffers = parts.total - parts.overhead - (0 if has_read_prompt else parts.pool)
    return LoadMemory(gpu.id, backend, buffers // _MIB, used_bytes[gpu.id] // _MIB)


def record_load_memory(
    launch: Launch, engine_pid: int, log: Sequence[str], *, has_read_prompt: bool = False, replaces_last: bool = False
) -> bool:
    """Record the measured and the estimated GPU memory of a running engine, for later plans; return whether they are.

    See measure_load_memory and record_load.
    """

    load = measure_load_memory(launch, engine_pid, log, has_read_prompt=has_read_prompt)
    return load is not None and record_load(
        load.gpu_id,
        load.backend,
        buffers_mib=load.buffers_mib,
        measured_mib=load.measured_mib,
        replaces_last=replaces_last,
    )
