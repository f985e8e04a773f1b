"""This computer as a plan needs it: the host and its GPUs, read once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.machine.engine_view import EngineDevice
from launcher.machine.gpu import Gpu, Vendor
from launcher.machine.gpus import Undriven, find_gpus
from launcher.machine.host import Host, read_host
from launcher.machine.sysfs import ROOT


@dataclass(frozen=True, slots=True)
class Machine:
    """The host; its GPUs, those with memory of their own first; why a vendor has none; what cannot be used, and why.

    `no_gpu_because` is None when there is a GPU. `failures` are sentences about GPUs that are there and do not answer.
    """

    host: Host
    gpus: tuple[Gpu, ...]
    no_gpu_because: str | None
    absent: Mapping[Vendor, str]
    failures: tuple[str, ...]
    undriven: tuple[Undriven, ...]


def read_machine(devices: Sequence[EngineDevice] = (), *, root: Path = ROOT, wake: bool = False) -> Machine:
    """Read the host and all GPUs as they are now. Nothing here raises; what is unknown says why.

    A GPU that sleeps is named only, unless `wake`. `devices` is what an engine's --list-devices says, for GPUs that no
    driver here is asked for. `root` is where the file systems of Linux are looked for.
    """
    found = find_gpus(devices, root=root, wake=wake)
    return Machine(read_host(root), found.gpus, found.none_because, found.absent, found.failures, found.undriven)
