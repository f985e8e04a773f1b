"""All GPUs of this computer: detection across vendors, and sensors of one GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.base.messages import message
from launcher.machine.amd import AmdGpus
from launcher.machine.engine_devices import EngineDevice, merge_engine_gpus
from launcher.machine.gpu import Gpu, GpuActivity, GpuSource, Reading, Vendor, unknown_readings
from launcher.machine.gpu_counters import ProcessGpuMemory
from launcher.machine.intel import IntelGpus
from launcher.machine.nvidia import Nvml
from launcher.machine.surroundings import container_name
from launcher.machine.sysfs import ROOT, PciGpu, list_pci_gpus

_VENDORS: tuple[Vendor, ...] = ("nvidia", "amd", "intel")
DRIVERS: dict[Vendor, tuple[str, ...]] = {"nvidia": ("nvidia",), "amd": ("amdgpu",), "intel": ("i915", "xe")}
_WITHHELD = message("This container was not given its device below /dev/dri.")
_NOT_WOKEN = message("Not read while no engine is running, so that the GPU can sleep.")


@dataclass(frozen=True, slots=True)
class UnusableCard:
    """A graphics card in the kernel's list that no engine can use: its driver is missing or does not work."""

    vendor: Vendor
    name: str
    bus_id: str
    kernel_driver: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class DetectedGpus:
    """The detected GPUs, those with memory of their own first.

    `absent` has the reason by vendor for each vendor without a GPU. `failures` are sentences about GPUs that exist and
    do not answer.
    """

    gpus: tuple[Gpu, ...]
    absent: Mapping[Vendor, str]
    failures: tuple[str, ...]
    unusable_cards: tuple[UnusableCard, ...]

    @property
    def no_gpu_reason(self) -> str | None:
        """The reason why there is no GPU, or None if there is one."""
        if self.gpus:
            return None
        for card in self.unusable_cards:
            if card.kernel_driver in DRIVERS[card.vendor]:  # its driver says why
                return card.reason
            return message("The {name} cannot be used: {reason}", name=card.name, reason=card.reason)
        return self.absent["nvidia"]


def find_gpus(devices: Sequence[EngineDevice] = (), *, root: Path = ROOT, wake: bool = False) -> DetectedGpus:
    """Read the GPUs of every vendor and close the drivers again. A sleeping GPU is listed by name only, unless `wake`.

    `devices` is an engine's --list-devices: it adds GPUs of which this program knows no driver, and memory that a
    driver does not report. `root` is the root of the Linux file systems (for tests).
    """
    cards = list_pci_gpus(root)
    withheld = _find_withheld_cards(cards, root)
    available = [card for card in cards if card not in withheld]
    sources = [_open_source(vendor, available, wake=wake, root=root) for vendor in _VENDORS]
    try:
        found = [gpu for source in sources for gpu in source.read_gpus()]
    finally:
        for source in sources:
            source.close()
    absent = {vendor: why for vendor, source in zip(_VENDORS, sources, strict=True) if (why := source.no_gpu_reason)}
    absent |= {card.vendor: _WITHHELD for card in withheld if card.vendor in absent}
    failures = tuple(failure for source in sources for failure in source.failures)
    ordered = sorted(merge_engine_gpus(found, devices), key=lambda gpu: gpu.unified is True)
    unusable_cards = (*_find_unusable_cards(available, absent), *(_unusable_card(card, _WITHHELD) for card in withheld))
    return DetectedGpus(tuple(ordered), absent, failures, unusable_cards)


def read_gpu_states(
    gpus: Sequence[Gpu], *, root: Path = ROOT, wake: bool = False
) -> dict[str, tuple[dict[str, Reading], GpuActivity]]:
    """Return the readings and the activity of each GPU by ID. Sleeping GPUs are not queried, unless `wake`.

    A GPU that only an engine lists is left out, because no driver here can read it.
    """
    cards = list_pci_gpus(root)
    states: dict[str, tuple[dict[str, Reading], GpuActivity]] = {}
    for vendor in _VENDORS:
        own = [gpu for gpu in gpus if gpu.vendor == vendor and gpu.driver is not None]
        if own:
            source = _open_source(vendor, cards, wake=wake, root=root)
            try:
                states |= {gpu.id: (source.sample(gpu), source.read_activity(gpu)) for gpu in own}
            finally:
                source.close()
    return states


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """The GPU that an engine would use, with its activity and readings. `is_only_gpu`: this computer has no other."""

    gpu: Gpu | None
    is_only_gpu: bool
    activity: GpuActivity
    readings: Mapping[str, Reading]


class GpuSensors:
    """Sensors of the watched GPU, which is the one that an engine would use: the first that `find_gpus` returns.

    A GPU that may sleep is not read while no engine runs: an open NVML keeps its GPUs awake, and so does each read of a
    file of the GPU's driver.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._source: GpuSource | None = None
        self._may_sleep = False
        found = find_gpus(root=root)
        self._no_gpu_reason = found.no_gpu_reason or ""
        self._gpu = found.gpus[0] if found.gpus else None
        self._is_only_gpu = len(found.gpus) == 1
        self._counters: ProcessGpuMemory | None = None
        if self._gpu is not None:
            cards = [card for card in list_pci_gpus(root) if card.vendor == self._gpu.vendor]
            self._may_sleep = any(card.may_sleep for card in cards) and not self._gpu.display_active

    def sample(self, *, engine_runs: bool) -> dict[str, Reading]:
        """Return the watched GPU's readings by name; without a GPU all are unknown, with the reason."""
        if self._gpu is None:
            return unknown_readings(self._no_gpu_reason)
        if self._may_sleep and not engine_runs:
            self.close()
            return unknown_readings(_NOT_WOKEN)
        if self._source is None:
            self._source = _open_source(self._gpu.vendor, list_pci_gpus(self._root), wake=True, root=self._root)
            listed = self._source.read_gpus()  # a GPU that was asleep has another ID once it is awake
            self._gpu = next((gpu for gpu in listed if gpu.bus_id == self._gpu.bus_id), self._gpu)
        return self._source.sample(self._gpu)

    def read_snapshot(self, engine_pid: int) -> GpuSnapshot:
        """Return a snapshot of the watched GPU while the engine with this pid runs. Takes 40 ms for an NVIDIA GPU."""
        if self._counters is None or self._counters.pid != engine_pid:
            self._close_counters()
            self._counters = ProcessGpuMemory(engine_pid)
        counted = self._counters.sample()
        if self._gpu is None or self._source is None:
            return GpuSnapshot(
                self._gpu,
                self._is_only_gpu,
                GpuActivity.unknown(self._no_gpu_reason or message("No engine has run yet.")),
                counted,
            )
        readings = counted | self._source.sample_slow_readings(self._gpu)
        return GpuSnapshot(self._gpu, self._is_only_gpu, self._source.read_activity(self._gpu), readings)

    def _close_counters(self) -> None:
        if self._counters is not None:
            self._counters.close()
            self._counters = None

    def close(self) -> None:
        """Close the driver and the counters."""
        self._close_counters()
        if self._source is not None:
            self._source.close()
            self._source = None


def _open_source(vendor: Vendor, cards: Sequence[PciGpu], *, wake: bool, root: Path) -> GpuSource:
    own = [card for card in cards if card.vendor == vendor]
    match vendor:
        case "nvidia":
            return Nvml(own, wake=wake, root=root)
        case "amd":
            return AmdGpus(own, wake=wake)
        case _:
            return IntelGpus(own, wake=wake)


def _find_unusable_cards(cards: Sequence[PciGpu], absent: Mapping[Vendor, str]) -> tuple[UnusableCard, ...]:
    """Return the cards without a working driver.

    An NVIDIA card that has its driver is unusable only if NVML lists no GPU at all: a container sees all cards of its
    host in /sys, but NVML lists only those that the container was given.
    """
    found = []
    for card in cards:
        if card.kernel_driver in DRIVERS[card.vendor]:
            why = absent.get("nvidia") if card.vendor == "nvidia" else None
        elif card.kernel_driver is None:
            why = message("No driver is loaded for it.")
        else:
            why = message(
                "It uses the driver {kernel_driver}, which no engine supports.", kernel_driver=card.kernel_driver
            )
        if why is not None:
            found.append(_unusable_card(card, why))
    return tuple(found)


def _unusable_card(card: PciGpu, reason: str) -> UnusableCard:
    return UnusableCard(card.vendor, card.name, card.address, card.kernel_driver, reason)


def _find_withheld_cards(cards: Sequence[PciGpu], root: Path) -> list[PciGpu]:
    """Return the AMD and Intel cards that this container was not given; /sys lists all cards of the host."""
    if container_name(root) is None:
        return []
    devices = root / "dev/dri"
    driven = [card for card in cards if card.vendor != "nvidia" and card.kernel_driver in DRIVERS[card.vendor]]
    return [
        card for card in driven if not any((devices / node.name).exists() for node in card.folder.glob("drm/renderD*"))
    ]
