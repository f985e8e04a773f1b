"""What a plan has to fit into: the memory of a machine that is here, or of one that is described."""

from dataclasses import dataclass

from launcher.base.errors import BadOption
from launcher.machine.gpu import Gpu
from launcher.machine.machine import Machine
from launcher.models.compute import Backend
from launcher.models.learned import excess_mib

_MIB, _GIB = 2**20, 2**30
HEADLESS_MARGIN_MIB, DESKTOP_MARGIN_MIB = 512, 1_024
"""What is left free beside the estimate: on Linux without a display, and elsewhere."""
_LEAST_MARGIN_MIB = 256
_ASLEEP = "The {} sleeps and is left out; --wake wakes it."
_SILENT = "What the {} has free is not told: it is taken to be {:.1f} % of its memory."
_USABLE = 0.967
"""Share of a card's nominal memory that a program gets: 15,840 MiB of an RTX 5060 Ti 16 GB, 0.98 of others."""
_HOST_RESERVE = 0.25
"""Share of the host's memory that the system and other programs are taken to need, where its free memory is unknown."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A machine, as far as plans depend on it; memory in MiB, bandwidth in 10^9 bytes per second.

    `nominal_gb` is the size that the GPU is sold by. `host_mib` is what is available on the host now, None when not
    known. `gpus` counts GPUs that a model is split over. `headless` when no display takes any of their memory,
    `described` when nobody asked the machine itself. `notes` are sentences on how the memory is known.
    """

    backend: Backend
    nominal_gb: float
    free_mib: int
    margin_mib: int
    host_mib: int | None = None
    bandwidth_gb_s: float | None = None
    gpu_name: str | None = None
    gpus: int = 1
    unified: bool = False
    headless: bool = False
    described: bool = False
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
        return _processor(host_gib, _available_mib(host_gib) if free_mib is None else free_mib, described=True)
    _check_free(free_mib, gpu_memory_gib, "The GPU")
    notes: tuple[str, ...] = ()
    if free_mib is None:
        free_mib = _usable_mib(gpu_memory_gib)
        notes = (f"Of {gpu_memory_gib:g} GiB a program gets about {free_mib:,} MiB, as on cards that were measured.",)
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


def _usable_mib(gpu_memory_gib: float) -> int:
    return int(gpu_memory_gib * 1_024 * _USABLE)


def _processor(memory_gib: float, free_mib: int, *, described: bool = False, notes: tuple[str, ...] = ()) -> Situation:
    """A model that runs on the processor, in the host's memory."""
    return Situation(
        backend="cpu",
        nominal_gb=memory_gib,
        free_mib=free_mib,
        margin_mib=DESKTOP_MARGIN_MIB,
        host_mib=free_mib,
        described=described,
        notes=notes,
    )


def situation_of(
    machine: Machine,
    *,
    free_mib: int | None = None,
    headless: bool = False,
    host_gib: float | None = None,
    backend: Backend | None = None,
) -> Situation:
    """Return the situation of this machine, with its memory as it is now; what is given replaces what was read.

    Without a usable GPU the model runs on the processor, in the host's memory. The margin grows and shrinks with what
    earlier loads on this GPU took beyond their estimates. Raises BadOption for a GPU's backend without a GPU.
    """
    host = machine.host
    host_mib = host.available_bytes // _MIB if host_gib is None else _available_mib(host_gib)
    alone = headless or (host.kind == "linux" and host.wsl is None and host.display is None)
    gpus = _usable(machine.gpus)
    notes = (*machine.failures, *(_ASLEEP.format(gpu.name) for gpu in machine.gpus if gpu.asleep and gpus))
    if not gpus and backend not in (None, "cpu"):
        raise BadOption(f"--backend {backend} needs a GPU, and none can be used here.", "Describe one: --gpu-memory.")
    if not gpus or backend == "cpu":
        told = tuple(filter(None, [machine.no_gpu_because, *notes])) if backend != "cpu" else ()
        return _processor(host.memory_bytes / _GIB, host_mib if free_mib is None else free_mib, notes=told)
    first = gpus[0]
    backend = backend or backend_of(first)
    total_gib = sum(gpu.memory_bytes or 0 for gpu in gpus) / _GIB
    if free_mib is None:
        silent = [gpu.name for gpu in gpus if gpu.free_bytes is None]
        notes += tuple(_SILENT.format(name, 100 * _USABLE) for name in silent)
        free_mib = sum(_free_mib(gpu) for gpu in gpus)
    margin_mib = (HEADLESS_MARGIN_MIB if alone else DESKTOP_MARGIN_MIB) * len(gpus)
    excess = excess_mib(first.id, backend) if len(gpus) == 1 else None
    if excess is not None:
        notes += (f"Earlier loads on this GPU took up to {excess:+,} MiB of what was estimated; the margin follows.",)
    return Situation(
        backend=backend,
        nominal_gb=total_gib,
        free_mib=free_mib,
        margin_mib=max(_LEAST_MARGIN_MIB, margin_mib + (excess or 0)),
        host_mib=host_mib,
        bandwidth_gb_s=first.memory_bandwidth_gb_s if len(gpus) == 1 else None,
        gpu_name=first.name,
        gpus=len(gpus),
        unified=bool(first.unified),
        headless=alone,
        notes=notes,
    )


def _free_mib(gpu: Gpu) -> int:
    return gpu.free_bytes // _MIB if gpu.free_bytes is not None else _usable_mib((gpu.memory_bytes or 0) / _GIB)


def _usable(gpus: tuple[Gpu, ...]) -> list[Gpu]:
    """The GPUs that a model is split over: all of the first one's vendor, or one without memory of its own."""
    known = [gpu for gpu in gpus if gpu.memory_bytes]
    own = [gpu for gpu in known if not gpu.unified]
    return [gpu for gpu in own if gpu.vendor == own[0].vendor] or known[:1]


def backend_of(gpu: Gpu) -> Backend:
    """Return the backend that an engine uses on a GPU: CUDA on NVIDIA's, Vulkan on all others."""
    return "cuda" if gpu.vendor == "nvidia" else "vulkan"
