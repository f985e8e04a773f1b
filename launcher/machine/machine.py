"""The host and its GPUs, read together at one moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.machine.engine_devices import EngineDevice
from launcher.machine.gpu import Gpu, Vendor
from launcher.machine.gpus import UnusableCard, find_gpus
from launcher.machine.host import Host, read_host
from launcher.machine.sysfs import ROOT


@dataclass(frozen=True, slots=True)
class Machine:
    """The host and its GPUs, those with memory of their own first.

    `no_gpu_reason` is None if there is a GPU; `absent` has the reason by vendor for each vendor without a GPU.
    `failures` are sentences about GPUs that exist and do not answer.
    """

    host: Host
    gpus: tuple[Gpu, ...]
    no_gpu_reason: str | None
    absent: Mapping[Vendor, str]
    failures: tuple[str, ...]
    unusable_cards: tuple[UnusableCard, ...]


def read_machine(devices: Sequence[EngineDevice] = (), *, root: Path = ROOT, wake: bool = False) -> Machine:
    """Read the host and all GPUs. Raises nothing; unknown values have a reason.

    A sleeping GPU is listed by name only, unless `wake`. `devices` is an engine's --list-devices: it adds GPUs of which
    this program knows no driver. `root` is the root of the Linux file systems (for tests).
    """
    found = find_gpus(devices, root=root, wake=wake)
    return Machine(read_host(root), found.gpus, found.no_gpu_reason, found.absent, found.failures, found.unusable_cards)
