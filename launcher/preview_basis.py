"""What a preview starts from: the running server or a command that is ready, and this machine's memory now."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from launcher.base.errors import GeometryUnknown, GpuAsleep, LauncherError
from launcher.engine.ask import backend_of_log
from launcher.engine.build import BUILT_IN
from launcher.engine.launch import Launch
from launcher.engine.load_times import load_time
from launcher.machine.gpus import find_gpus, inspect_gpus
from launcher.models.compute import Backend
from launcher.models.geometry import Geometry, geometry_of
from launcher.models.gguf import read_model
from launcher.models.memory import KV_TYPES, DraftModel, estimate
from launcher.models.situation import Situation
from launcher.models.weights import Weights, weights_of
from launcher.planner import MachineWish, situation
from launcher.preview import Basis

_MIB = 2**20


async def basis_of(launch: Launch, *, engine_pid: int | None = None, log: Sequence[str] = ()) -> Basis:
    """Return the basis for a server that runs as `engine_pid`, or for one that does not run yet.

    Its `log` tells which backend has the model. Memory of a GPU that sleeps is unknown: it is not woken for this.
    """
    backend: Backend | None = "cpu" if launch.build.name == BUILT_IN else None
    if backend is None and log:
        backend = backend_of_log(log)
    try:
        here = await situation(MachineWish(backend=backend))
    except GpuAsleep as error:
        return replace(await asyncio.to_thread(_basis, launch, None, engine_pid), notes=(error.title,))
    except LauncherError:  # the log names a backend that no driver here knows
        here = await situation(MachineWish())
    return await asyncio.to_thread(_basis, launch, here, engine_pid)


def _basis(launch: Launch, here: Situation | None, engine_pid: int | None) -> Basis:
    options, header = launch.options, launch.header
    backend: Backend = here.backend if here else "cuda"
    geometry: Geometry | None = None
    weights: Weights | None = None
    unknown = ""
    try:
        geometry = geometry_of(header)
        weights = weights_of(header, geometry)
    except GeometryUnknown as error:
        geometry, unknown = None, error.title
    draft_bytes = _size(options.draft_file)
    setting = replace(
        launch.setting(backend),
        gpus=here.gpus if here else 1,
        draft_model_bytes=draft_bytes if options.draft else 0,
        ngrams=options.spec_type.startswith("ngram"),
    )
    known = tuple(kind for kind in KV_TYPES if kind in launch.build.kv_types) or tuple(KV_TYPES)
    basis = Basis(
        options=options,
        setting=setting,
        geometry=geometry,
        weights=weights,
        unknown=unknown,
        draft_model=_draft_model(options.draft_file),
        draft_bytes=draft_bytes,
        trained_context=header.trained_context,
        can_draft=header.has_mtp_head or options.draft_file is not None or setting.ngrams,
        expert_layers=weights.expert_layers(mtp=setting.draft > 0) if weights and backend != "cpu" else 0,
        kv_types=known,
        load=load_time(launch),
    )
    return _with_memory(basis, here, engine_pid) if here else basis


def _with_memory(basis: Basis, here: Situation, engine_pid: int | None) -> Basis:
    """Return the basis with the machine's memory; what the server has itself it may have again."""
    own, measured, by_gpu = 0, False, here.gpu_free_mib
    if engine_pid is not None:
        found = _own_mib(engine_pid, here)
        expected = None
        if basis.geometry and basis.weights:
            expected = estimate(basis.geometry, basis.weights, basis.setting, basis.draft_model)
        measured = found is not None
        own = found if found is not None else expected.parts.total // _MIB if expected else 0
        if by_gpu and expected:
            shares = [share * own // max(1, expected.parts.total // _MIB) // _MIB for share in expected.by_gpu]
            by_gpu = tuple(free + share for free, share in zip(by_gpu, shares, strict=True))
    total = round(here.nominal_gb * 1_024)
    available = min(total, here.free_mib + own)
    return replace(
        basis,
        setting=replace(basis.setting, gpu_free_mib=by_gpu),
        place=here.gpu_name if here.gpu_name and here.backend != "cpu" else "host memory",
        total_mib=total,
        others_mib=max(0, total - available),
        available_mib=available,
        margin_mib=here.margin_mib,
        own_measured=measured,
        notes=here.notes,
    )


def _own_mib(engine_pid: int, here: Situation) -> int | None:
    """What an engine has of the memory that is meant, as the driver or the system tells it; None where neither does."""
    if here.backend == "cpu":
        with suppress(psutil.Error):
            memory = psutil.Process(engine_pid).memory_info()
            mapped = getattr(memory, "shared", 0)  # the model's file: the system counts it as available
            return int(getattr(memory, "private", memory.rss - mapped)) // _MIB
        return None
    taken = [
        process.used_bytes
        for _, activity in inspect_gpus(find_gpus().gpus).values()
        for process in activity.processes or ()
        if process.pid == engine_pid and process.used_bytes
    ]
    return sum(taken) // _MIB if taken else None


def _draft_model(path: Path | None) -> DraftModel | None:
    if path is None:
        return None
    try:
        header = read_model(path)
        geometry = geometry_of(header)
        return DraftModel(geometry, weights_of(header, geometry))
    except LauncherError:
        return None


def _size(path: Path | None) -> int:
    try:
        return path.stat().st_size if path else 0
    except OSError:
        return 0
