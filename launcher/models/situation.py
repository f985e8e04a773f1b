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
_USABLE = 0.967
"""Share of a card's nominal memory that a program gets: 15,840 MiB of an RTX 5060 Ti 16 GB, 0.98 of others."""
_HOST_RESERVE = 0.25
"""Share of the host's memory that the system and other programs are taken to need, where its free memory is unknown."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A machine, as far as plans depend on it; memory in MiB, bandwidth in 10^9 bytes per second.

    `nominal_gb` is the size that the GPU is sold by. `host_mib` is what is available on the host now, None when not
    known. `gpus` counts GPUs that a model is split over. `described` when nobody asked the machine itself.
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

    Raises BadOption for memory that no GPU has.
    """
    if not 0.5 <= gpu_memory_gib <= 4_096:
        raise BadOption(f"--gpu-memory {gpu_memory_gib:g} is out of range.", "It goes from 0.5 to 4096 GiB.")
    total_mib = int(gpu_memory_gib * 1_024)
    notes = []
    if free_mib is None:
        free_mib = int(total_mib * _USABLE)
        notes.append(f"Of {gpu_memory_gib:g} GiB some {free_mib:,} MiB are usable, as on cards that were measured.")
    elif not 0 <= free_mib <= total_mib:
        raise BadOption(f"--free-memory {free_mib} is out of range.", f"The GPU has {total_mib:,} MiB.")
    return Situation(
        backend=backend or "cuda",
        nominal_gb=gpu_memory_gib,
        free_mib=free_mib,
        margin_mib=HEADLESS_MARGIN_MIB if headless else DESKTOP_MARGIN_MIB,
        host_mib=None if host_gib is None else int(host_gib * 1_024 * (1 - _HOST_RESERVE)),
        described=True,
        notes=tuple(notes),
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
    earlier loads on this GPU took beyond their estimates.
    """
    host = machine.host
    host_mib = host.available_bytes // _MIB if host_gib is None else int(host_gib * 1_024 * (1 - _HOST_RESERVE))
    alone = headless or (host.kind == "linux" and host.wsl is None and host.display is None)
    margin_mib = HEADLESS_MARGIN_MIB if alone else DESKTOP_MARGIN_MIB
    gpus = _usable(machine.gpus)
    if not gpus or backend == "cpu":
        return Situation(
            backend="cpu",
            nominal_gb=host.memory_bytes / _GIB,
            free_mib=host_mib if free_mib is None else free_mib,
            margin_mib=DESKTOP_MARGIN_MIB,
            host_mib=host_mib,
            notes=tuple(filter(None, [machine.no_gpu_because, *machine.failures])),
        )
    free = sum(gpu.free_bytes or 0 for gpu in gpus) // _MIB
    first = gpus[0]
    backend = backend or backend_of(first)
    excess = excess_mib(first.id, backend) if len(gpus) == 1 else None
    learned = () if excess is None else (f"Earlier loads on this GPU took up to {excess:+,} MiB of their estimates.",)
    return Situation(
        backend=backend,
        nominal_gb=sum(gpu.memory_bytes or 0 for gpu in gpus) / _GIB,
        free_mib=free if free_mib is None else free_mib,
        margin_mib=max(_LEAST_MARGIN_MIB, margin_mib * len(gpus) + (excess or 0)),
        host_mib=host_mib,
        bandwidth_gb_s=first.memory_bandwidth_gb_s if len(gpus) == 1 else None,
        gpu_name=first.name,
        gpus=len(gpus),
        unified=bool(first.unified),
        notes=(*machine.failures, *learned),
    )


def _usable(gpus: tuple[Gpu, ...]) -> list[Gpu]:
    """The GPUs that a model would be split over: all of the first one's vendor that say what they have free."""
    known = [gpu for gpu in gpus if gpu.memory_bytes and gpu.free_bytes is not None and not gpu.unified]
    known = known or [gpu for gpu in gpus if gpu.memory_bytes and gpu.free_bytes is not None][:1]
    return [gpu for gpu in known if gpu.vendor == known[0].vendor]


def backend_of(gpu: Gpu) -> Backend:
    """Return the backend that an engine uses on a GPU: CUDA on NVIDIA's, Vulkan on all others."""
    return "cuda" if gpu.vendor == "nvidia" else "vulkan"
