"""What a plan has to fit into: the memory of a machine that is here, or of one that is described."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from launcher.base.errors import BadOption
from launcher.machine.backend import choose_backend
from launcher.machine.gpu import Gpu
from launcher.machine.machine import Machine
from launcher.machine.visibility import hidden_by
from launcher.models.compute import Backend
from launcher.models.learned import excess_mib

_MIB, _GIB = 2**20, 2**30
HEADLESS_MARGIN_MIB, DESKTOP_MARGIN_MIB = 512, 1_024
"""What is left free beside the estimate: on Linux without a display, and elsewhere."""
_LEAST_MARGIN_MIB = 256
_ASLEEP = "The {} sleeps and is left out; --wake wakes it."
_UNTOLD = "The {} is left out, because its memory is not known: {}"
_HIDDEN = "The {} is left out: {}={} hides it."
_TOO_OLD = "{} It is left out."
_OTHER_MAKER = "The {} is left out: a model is split over GPUs of one maker."
_SHARED = "The {} shares the host's memory: what a plan takes of one is gone from the other."
_SILENT = "What the {} has free is not told: it is taken to be {:.1f} % of its memory."
_USABLE = 0.967
"""Share of a card's nominal memory that a program gets: 15,840 MiB of an RTX 5060 Ti 16 GB, 0.98 of others."""
_HOST_COUNTED = "Of {:g} GiB of host memory {:,} MiB are counted on: a quarter is left to the system."
_ENGINES_NAMES: Mapping[str, Backend] = {"CUDA": "cuda", "ROCm": "rocm", "MTL": "metal", "Vulkan": "vulkan"}
"""How an engine begins a device's name, by backend."""
_COUNTED = (
    "Of the RPC workers {} these devices are counted, as the engine lists them: {}. The network limits their speed."
)
_UNCOUNTED = "The RPC workers {} are not counted: the engine lists no device of theirs beside a GPU of its own."
_HOST_RESERVE = 0.25
"""Share of the host's memory that the system and other programs are taken to need, where its free memory is unknown."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A machine, as far as plans depend on it; memory in MiB, bandwidth in 10^9 bytes per second.

    `nominal_gb` is the size that the GPU is sold by. `host_mib` is what is available on the host now, beside
    `free_mib` when a GPU shares it, None when not known. `gpus` counts GPUs that a model is split over, `gpu_free_mib`
    has what each of them has free. `headless` when
    no display takes any of their memory, `described` when nobody asked the machine itself, `no_gpu` when it was asked
    and has none that can be used. `notes` are sentences on how the memory is known.
    """

    backend: Backend
    nominal_gb: float
    free_mib: int
    margin_mib: int
    host_mib: int | None = None
    bandwidth_gb_s: float | None = None
    gpu_name: str | None = None
    gpus: int = 1
    gpu_free_mib: tuple[int, ...] = ()
    unified: bool = False
    headless: bool = False
    described: bool = False
    no_gpu: bool = False
    notes: tuple[str, ...] = ()


def described(
    gpu_memory_gib: float,
    *,
    free_mib: int | None = None,
    headless: bool = False,
    host_gib: float | None = None,
    backend: Backend | None = None,
) -> Situation:
    """Return the situation of a machine that is only described; its backend is cuda unless named.

    Raises BadOption for memory that no GPU has, and for a processor whose host memory is not told.
    """
    if not 0.5 <= gpu_memory_gib <= 4_096:
        raise BadOption(f"--gpu-memory {gpu_memory_gib:g} is out of range.", "It goes from 0.5 to 4096 GiB.")
    if backend == "cpu":
        if host_gib is None:
            raise BadOption(
                "--backend cpu computes in the host's memory, and that is not described.",
                "Add --host-memory, or leave --gpu-memory out to mean this machine.",
            )
        _check_free(free_mib, host_gib, "The host")
        notes = () if free_mib is not None else _counted(host_gib)
        free_mib = _available_mib(host_gib) if free_mib is None else free_mib
        return _processor(host_gib, free_mib, described=True, notes=notes)
    _check_free(free_mib, gpu_memory_gib, "The GPU")
    notes = _counted(host_gib)
    if free_mib is None:
        free_mib = _usable_mib(gpu_memory_gib)
        notes = (
            f"Of {gpu_memory_gib:g} GiB a program gets about {free_mib:,} MiB, as on cards that were measured.",
            *notes,
        )
    return Situation(
        backend=backend or "cuda",
        nominal_gb=gpu_memory_gib,
        free_mib=free_mib,
        margin_mib=HEADLESS_MARGIN_MIB if headless else DESKTOP_MARGIN_MIB,
        host_mib=None if host_gib is None else _available_mib(host_gib),
        headless=headless,
        described=True,
        notes=notes,
    )


def _check_free(free_mib: int | None, size_gib: float, owner: str) -> None:
    most = int(size_gib * 1_024)
    if free_mib is not None and not 0 <= free_mib <= most:
        raise BadOption(f"--free-memory {free_mib} is out of range.", f"{owner} has {most:,} MiB.")


def _available_mib(host_gib: float) -> int:
    return int(host_gib * 1_024 * (1 - _HOST_RESERVE))


def _counted(host_gib: float | None) -> tuple[str, ...]:
    """How host memory that the user has named is counted."""
    return () if host_gib is None else (_HOST_COUNTED.format(host_gib, _available_mib(host_gib)),)


def _usable_mib(gpu_memory_gib: float) -> int:
    return int(gpu_memory_gib * 1_024 * _USABLE)


def _processor(
    memory_gib: float, free_mib: int, *, described: bool = False, no_gpu: bool = False, notes: tuple[str, ...] = ()
) -> Situation:
    """A model that runs on the processor, in the host's memory."""
    return Situation(
        backend="cpu",
        nominal_gb=memory_gib,
        free_mib=free_mib,
        margin_mib=DESKTOP_MARGIN_MIB,
        host_mib=free_mib,
        described=described,
        no_gpu=no_gpu,
        notes=notes,
    )


def situation_of(
    machine: Machine,
    *,
    free_mib: int | None = None,
    headless: bool = False,
    host_gib: float | None = None,
    backend: Backend | None = None,
    environ: Mapping[str, str] | None = None,
) -> Situation:
    """Return the situation of this machine, with its memory as it is now; what is given replaces what was read.

    Without a usable GPU the model runs on the processor, in the host's memory. The margin grows and shrinks with what
    earlier loads on this GPU took beyond their estimates. `environ` (else this process's) may hide GPUs. Raises
    BadOption for a GPU's backend without a GPU.
    """
    host = machine.host
    host_mib = host.available_bytes // _MIB if host_gib is None else _available_mib(host_gib)
    memory_gib, host_free_mib = host.memory_bytes / _GIB, host_mib if free_mib is None else free_mib
    if backend == "cpu":
        return _processor(memory_gib, host_free_mib, notes=_counted(host_gib) if free_mib is None else ())
    gpus, left_out = _choose(machine.gpus, backend, os.environ if environ is None else environ)
    notes = (*machine.failures, *left_out, *_counted(host_gib))
    if not gpus and backend is not None:
        raise BadOption(f"--backend {backend} needs a GPU, and none can be used here.", "Describe one: --gpu-memory.")
    if not gpus:
        told = tuple(filter(None, [machine.no_gpu_because, *notes]))
        return _processor(memory_gib, host_free_mib, no_gpu=True, notes=told)
    first = gpus[0]
    backend = backend or backend_of(first)
    notes += tuple(_ASLEEP.format(gpu.name) for gpu in machine.gpus if gpu.asleep)
    if free_mib is None:
        silent = [gpu.name for gpu in gpus if gpu.free_bytes is None]
        notes += tuple(_SILENT.format(name, 100 * _USABLE) for name in silent)
    by_gpu = [_free_mib(gpu, host_mib) for gpu in gpus]
    if free_mib is None:
        free_mib = sum(by_gpu)
    elif sum(by_gpu):
        by_gpu = [free * free_mib // sum(by_gpu) for free in by_gpu]
    if first.unified:
        host_mib = max(0, host_mib - max(0, free_mib - first.carve_out_free_bytes // _MIB))
        notes += (_SHARED.format(first.name),)
    alone = headless or (host.kind == "linux" and host.wsl is None and host.display is None)
    margin_mib = (HEADLESS_MARGIN_MIB if alone else DESKTOP_MARGIN_MIB) * len(gpus)
    excess = (excess_mib(first.id, backend) if len(gpus) == 1 else None) or 0
    if excess:
        notes += (_learned(excess),)
    return Situation(
        backend=backend,
        nominal_gb=sum(gpu.memory_bytes or 0 for gpu in gpus) / _GIB,
        free_mib=free_mib,
        margin_mib=max(_LEAST_MARGIN_MIB, margin_mib + excess),
        host_mib=host_mib,
        bandwidth_gb_s=first.memory_bandwidth_gb_s if len(gpus) == 1 else None,
        gpu_name=first.name,
        gpus=len(gpus),
        gpu_free_mib=tuple(by_gpu) if len(gpus) > 1 else (),
        unified=bool(first.unified),
        headless=alone,
        notes=notes,
    )


def _learned(excess_mib: int) -> str:
    if excess_mib > 0:
        return f"Earlier loads on this GPU took up to {excess_mib:,} MiB beyond their estimates; the margin follows."
    return f"Earlier loads on this GPU took at least {-excess_mib:,} MiB less than estimated; the margin follows."


def _free_mib(gpu: Gpu, host_mib: int) -> int:
    """What a GPU has free; of the host's memory it cannot take more than is available there."""
    free = gpu.free_bytes // _MIB if gpu.free_bytes is not None else _usable_mib((gpu.memory_bytes or 0) / _GIB)
    return min(free, gpu.carve_out_free_bytes // _MIB + host_mib) if gpu.unified else free


def _choose(
    gpus: Sequence[Gpu], backend: Backend | None, environ: Mapping[str, str]
) -> tuple[list[Gpu], tuple[str, ...]]:
    """Return the GPUs that a model is split over, and a sentence for each that is left out.

    They are all of one maker that one backend uses, or one without memory of its own.
    """
    notes, usable = [], []
    for gpu in gpus:
        variable = _hidden_by(gpu, gpus, backend or backend_of(gpu), environ)
        if variable is not None:
            notes.append(_HIDDEN.format(gpu.name, variable, environ[variable]))
        elif gpu.memory_bytes:
            usable.append(gpu)
    own = sorted((gpu for gpu in usable if not gpu.unified), key=_too_old_for_cuda)
    chosen = own or usable[:1]
    if own:
        family = backend or backend_of(own[0])
        ours = [gpu for gpu in own if gpu.vendor == own[0].vendor]
        notes += [_OTHER_MAKER.format(gpu.name) for gpu in own if gpu not in ours]
        fresh = [gpu for gpu in ours if not _too_old_for_cuda(gpu)]
        if family == "cuda" and fresh:
            notes += [_TOO_OLD.format(choose_backend([gpu], "Linux").reason) for gpu in ours if gpu not in fresh]
            ours = fresh
        chosen = ours
    untold = [gpu for gpu in gpus if not gpu.memory_bytes and not gpu.asleep and not (gpu.unified and chosen)]
    return chosen, (*notes, *(_UNTOLD.format(gpu.name, gpu.absent.get("memory_bytes", "")).rstrip() for gpu in untold))


def _hidden_by(gpu: Gpu, gpus: Sequence[Gpu], backend: Backend, environ: Mapping[str, str]) -> str | None:
    """Return the variable that hides a GPU from a backend; one that only the engine names is not hidden from it."""
    told_by_drivers = [each for each in gpus if _engines_backend(each) is None]
    return hidden_by(told_by_drivers, backend, environ).get(gpu.id)


def _too_old_for_cuda(gpu: Gpu) -> bool:
    known = gpu.vendor == "nvidia" and gpu.compute_capability is not None and gpu.driver is not None
    return known and choose_backend([gpu], "Linux").backend == "vulkan"


def _engines_backend(gpu: Gpu) -> Backend | None:
    return next((backend for name, backend in _ENGINES_NAMES.items() if gpu.id.startswith(name)), None)


def backend_of(gpu: Gpu) -> Backend:
    """Return the backend that an engine uses on a GPU.

    It is CUDA on NVIDIA's that are not too old for it, Vulkan on all others; on one that only the engine's device list
    names, that list's.
    """
    cuda = gpu.vendor == "nvidia" and not _too_old_for_cuda(gpu)
    return _engines_backend(gpu) or ("cuda" if cuda else "vulkan")


def with_workers(situation: Situation, free_mib: Mapping[str, int], workers: Collection[str]) -> Situation:
    """Return a situation with the devices that an engine lists for RPC workers: their names and free MiB.

    None is counted that it does not list; a note says so. The margin is kept free on each.
    """
    names = ", ".join(workers)
    if not free_mib or situation.backend == "cpu":
        return replace(situation, notes=(*situation.notes, _UNCOUNTED.format(names)))
    own = situation.gpu_free_mib or (situation.free_mib,)
    count = situation.gpus + len(free_mib)
    devices = ", ".join(f"{name} with {free:,} MiB free" for name, free in free_mib.items())
    return replace(
        situation,
        gpus=count,
        gpu_free_mib=(*own, *free_mib.values()),
        free_mib=situation.free_mib + sum(free_mib.values()),
        margin_mib=situation.margin_mib * count // situation.gpus,
        bandwidth_gb_s=None,
        notes=(*situation.notes, _COUNTED.format(names, devices)),
    )
