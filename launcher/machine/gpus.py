"""All GPUs of this computer: found once by all vendors' drivers, or one of them watched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.machine.amd import AmdGpus
from launcher.machine.engine_view import EngineDevice, merge
from launcher.machine.gpu import Activity, Gpu, GpuSource, Vendor, unknown_readings
from launcher.machine.gpu_counters import ProcessGpuMemory
from launcher.machine.intel import IntelGpus
from launcher.machine.nvidia import Nvml
from launcher.machine.reading import Reading
from launcher.machine.surroundings import container_name
from launcher.machine.sysfs import ROOT, PciGpu, pci_gpus

_WITHHELD = "This container was not given its device below /dev/dri."
_LEFT_ALONE = "Not read while no engine runs, so that the GPU can sleep."


@dataclass(frozen=True, slots=True)
class Undriven:
    """A graphics card that the kernel lists and no engine can use: its driver is missing or does not work."""

    vendor: Vendor
    name: str
    bus_id: str
    kernel_driver: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class GpusFound:
    """The GPUs, those with memory of their own first; why a vendor has none; and what is there but cannot be used."""

    gpus: tuple[Gpu, ...]
    absent: Mapping[Vendor, str]
    failures: tuple[str, ...]
    undriven: tuple[Undriven, ...]

    @property
    def none_because(self) -> str | None:
        """Why there is no GPU, or None when there is one."""
        if self.gpus:
            return None
        return next((card.reason for card in self.undriven), None) or self.absent["nvidia"]


def find_gpus(devices: Sequence[EngineDevice] = (), *, root: Path = ROOT, wake: bool = False) -> GpusFound:
    """Ask every driver for its GPUs, and let go of them again. A GPU that sleeps is named only, unless `wake`.

    `devices` is what an engine's --list-devices says: it adds GPUs that no driver here is asked for, and memory that
    a driver does not tell. `root` is where the file systems of Linux are looked for.
    """
    cards = pci_gpus(root)
    withheld = _withheld(cards, root)
    given = [card for card in cards if card not in withheld]
    sources = [_source(vendor, given, wake=wake, root=root) for vendor in _SOURCES]
    try:
        found = [gpu for source in sources for gpu in source.gpus()]
    finally:
        for source in sources:
            source.close()
    absent = {vendor: why for vendor, source in zip(_SOURCES, sources, strict=True) if (why := source.absent)}
    absent |= {card.vendor: _WITHHELD for card in withheld if card.vendor in absent}
    failures = tuple(failure for source in sources for failure in source.failures)
    ordered = sorted(merge(found, devices), key=lambda gpu: gpu.unified is True)
    undriven = (*_undriven(given, absent), *(_undriven_card(card, _WITHHELD) for card in withheld))
    return GpusFound(tuple(ordered), absent, failures, undriven)


def inspect_gpus(
    gpus: Sequence[Gpu], *, root: Path = ROOT, wake: bool = False
) -> dict[str, tuple[dict[str, Reading], Activity]]:
    """Return the readings and the activity of each GPU by its id; of one that sleeps nothing is asked, unless `wake`.

    A GPU that only an engine names is left out: no driver here knows it.
    """
    cards = pci_gpus(root)
    told: dict[str, tuple[dict[str, Reading], Activity]] = {}
    for vendor in _SOURCES:
        own = [gpu for gpu in gpus if gpu.vendor == vendor and gpu.driver is not None]
        if own:
            source = _source(vendor, cards, wake=wake, root=root)
            try:
                told |= {gpu.id: (source.sample(gpu), source.activity(gpu)) for gpu in own}
            finally:
                source.close()
    return told


@dataclass(frozen=True, slots=True)
class GpuLook:
    """What is asked of the watched GPU now and then. `alone` is whether it is the only one of this computer."""

    gpu: Gpu | None
    alone: bool
    activity: Activity
    readings: Mapping[str, Reading]


class GpuSensors:
    """Watches the GPU that an engine would use: the first that `find_gpus` lists.

    A GPU that may sleep is left alone while no engine runs: as long as NVML is open it keeps its GPUs awake, and so
    does each read of a file of the GPU's own driver.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._source: GpuSource | None = None
        self._may_sleep = False
        found = find_gpus(root=root)
        self._why = found.none_because or ""
        self._gpu = found.gpus[0] if found.gpus else None
        self._alone = len(found.gpus) == 1
        self._counters: ProcessGpuMemory | None = None
        if self._gpu is not None:
            cards = [card for card in pci_gpus(root) if card.vendor == self._gpu.vendor]
            self._may_sleep = any(card.may_sleep for card in cards) and not self._gpu.display_active

    def sample(self, *, engine_runs: bool) -> dict[str, Reading]:
        """Return the watched GPU's readings by name; without one, each is unknown with the reason."""
        if self._gpu is None:
            return unknown_readings(self._why)
        if self._may_sleep and not engine_runs:
            self.close()
            return unknown_readings(_LEFT_ALONE)
        if self._source is None:
            self._source = _source(self._gpu.vendor, pci_gpus(self._root), wake=True, root=self._root)
            listed = self._source.gpus()  # one that slept is known by another id once it is awake
            self._gpu = next((gpu for gpu in listed if gpu.bus_id == self._gpu.bus_id), self._gpu)
        return self._source.sample(self._gpu)

    def look(self, engine_pid: int) -> GpuLook:
        """Return what the watched GPU does while an engine runs. Takes 40 ms on an NVIDIA GPU, idle ones."""
        if self._counters is None or self._counters.pid != engine_pid:
            self._let_counters_go()
            self._counters = ProcessGpuMemory(engine_pid)
        counted = self._counters.sample()
        if self._gpu is None or self._source is None:
            return GpuLook(self._gpu, self._alone, Activity.unknown(self._why or "No engine ran yet."), counted)
        readings = counted | self._source.sample_slowly(self._gpu)
        return GpuLook(self._gpu, self._alone, self._source.activity(self._gpu), readings)

    def _let_counters_go(self) -> None:
        if self._counters is not None:
            self._counters.close()
            self._counters = None

    def close(self) -> None:
        """Let the driver go."""
        self._let_counters_go()
        if self._source is not None:
            self._source.close()
            self._source = None


_SOURCES: tuple[Vendor, ...] = ("nvidia", "amd", "intel")


def _source(vendor: Vendor, cards: Sequence[PciGpu], *, wake: bool, root: Path) -> GpuSource:
    own = [card for card in cards if card.vendor == vendor]
    match vendor:
        case "nvidia":
            return Nvml(own, wake=wake, root=root)
        case "amd":
            return AmdGpus(own, wake=wake)
        case _:
            return IntelGpus(own, wake=wake)


def _undriven(cards: Sequence[PciGpu], absent: Mapping[Vendor, str]) -> tuple[Undriven, ...]:
    """Return the cards without a working driver.

    Of NVIDIA's, one that has its driver counts only when NVML fails altogether: a container sees all cards of its
    host below /sys, and NVML lists those that it was given.
    """
    found = []
    for card in cards:
        if card.kernel_driver in _DRIVERS[card.vendor]:
            why = absent.get("nvidia") if card.vendor == "nvidia" else None
        elif card.kernel_driver is None:
            why = "No driver is loaded for it."
        else:
            why = f"The driver {card.kernel_driver} runs it, and no engine can use that."
        if why is not None:
            found.append(_undriven_card(card, why))
    return tuple(found)


def _undriven_card(card: PciGpu, why: str) -> Undriven:
    return Undriven(card.vendor, card.name, card.address, card.kernel_driver, why)


def _withheld(cards: Sequence[PciGpu], root: Path) -> list[PciGpu]:
    """Return the AMD and Intel cards that this container sees below /sys, as all do, and was not given."""
    if container_name(root) is None:
        return []
    devices = root / "dev/dri"
    driven = [card for card in cards if card.vendor != "nvidia" and card.kernel_driver in _DRIVERS[card.vendor]]
    return [
        card for card in driven if not any((devices / node.name).exists() for node in card.folder.glob("drm/renderD*"))
    ]


_DRIVERS: dict[Vendor, tuple[str, ...]] = {"nvidia": ("nvidia",), "amd": ("amdgpu",), "intel": ("i915", "xe")}
