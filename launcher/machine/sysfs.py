"""GPUs in the Linux kernel's list in /sys, read without waking one that is asleep.

The kernel answers `vendor`, `device`, `class` and `power/*` from memory. Files of the GPU's driver (memory, sensors)
wake it, and so does `config` (Documentation/power/runtime_pm.rst and the drivers' show functions).
"""

import re
from dataclasses import dataclass
from pathlib import Path

from launcher.machine.gpu import ASLEEP, Gpu, Reading, Vendor

ROOT = Path("/")
_AMD = 0x1002
_VENDORS: dict[int, Vendor] = {0x10DE: "nvidia", _AMD: "amd", 0x8086: "intel"}
_MAKERS: dict[Vendor, str] = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
_SMALL_BAR = 256 * 2**20
"""Size in bytes of the region that maps a card's memory while Resizable BAR is off."""
_DISPLAY_CONTROLLER, _ACCELERATOR = 0x03, 0x12
"""PCI base classes. AMD's Instinct cards are accelerators; no GPU of the other vendors is in that class."""
_PCI_IDS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A graphics card on the PCI bus. `folder` is its folder in /sys, `kernel_driver` the kernel module bound to it."""

    folder: Path
    address: str
    vendor: Vendor
    device_id: int
    kernel_driver: str | None
    may_sleep: bool
    name: str

    @property
    def drm_folder(self) -> Path | None:
        """The folder of its DRM card."""
        return next(iter(sorted(self.folder.glob("drm/card[0-9]*"))), None)

    @property
    def sensors_folder(self) -> Path | None:
        """The folder of its sensors."""
        return next(iter(sorted(self.folder.glob("hwmon/hwmon*"))), None)

    def is_asleep(self) -> bool:
        """Return True if the GPU is asleep now."""
        return read_text(self.folder / "power/runtime_status") in {"suspended", "suspending"}

    def as_sleeping_gpu(self, index: int, driver: str | None = None) -> Gpu:
        """Return the facts that are known while the GPU sleeps. `driver` is the driver's version, for NVIDIA's GPUs
        only.
        """
        return Gpu(
            vendor=self.vendor,
            index=index,
            name=self.name,
            id=self.address,
            driver=driver if self.vendor == "nvidia" else self.kernel_driver,
            bus_id=self.address,
            asleep=True,
            display_active=self.display_active,
        ).with_reasons(ASLEEP)

    @property
    def has_small_bar(self) -> bool:
        """Whether Resizable BAR is known to be off: the processor reaches only 256 MiB of the card's memory at once.

        The kernel answers `resource` from memory: first address, last address and flags of each region, the ROM last.
        """
        regions = [line.split() for line in (read_text(self.folder / "resource") or "").splitlines()[:6]]
        try:
            largest = max(int(last, 16) - int(first, 16) + 1 for first, last, _ in regions)
        except ValueError:
            return False
        # Older NVIDIA cards have a fixed region. The kernel lists one whose size can be changed (since Linux 5.19).
        changeable = self.vendor != "nvidia" or any(self.folder.glob("resource[0-5]_resize"))
        return largest <= _SMALL_BAR and changeable

    @property
    def display_active(self) -> bool | None:
        """True if a display on this card is active; None if the kernel lists none of its outputs."""
        outputs = [read_text(path) for path in (self.drm_folder or self.folder).glob("card*-*/enabled")]
        return "enabled" in outputs if outputs else None


def read_text(path: Path) -> str | None:
    """Return a file's text without surrounding space, or None if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the decimal or 0x number in a file, or None if there is none."""
    try:
        return int(read_text(path) or "", 0)
    except ValueError:
        return None


def read_scaled(path: Path, scale: float, reason: str) -> Reading:
    """Return the number in a file times `scale`, or an unknown reading with the `reason`."""
    value = read_number(path)
    return Reading.unknown(reason) if value is None else Reading(value * scale)


def list_pci_gpus(root: Path = ROOT) -> tuple[PciGpu, ...]:
    """Return the graphics cards of NVIDIA, AMD and Intel in `root`/sys, by address. Empty except on Linux."""
    folders = [folder for folder in _list_devices(root) if _is_gpu(folder)]
    database = _read_pci_ids(root) if folders else b""
    return tuple(_read_card(folder, database) for folder in folders)


def has_amd_gpu(root: Path = ROOT) -> bool:
    """Return whether a graphics card of AMD is in `root`/sys."""
    return any(_is_gpu(folder) and read_number(folder / "vendor") == _AMD for folder in _list_devices(root))


def has_small_bar(root: Path = ROOT) -> bool:
    """Return whether the processor reaches only a small part of the memory of a graphics card of AMD in `root`/sys."""
    cards = (_read_card(folder, b"") for folder in _list_devices(root) if _is_gpu(folder))
    return any(card.vendor == "amd" and card.has_small_bar for card in cards)


def _list_devices(root: Path) -> list[Path]:
    try:
        return sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return []


def _is_gpu(folder: Path) -> bool:
    kind, vendor = read_number(folder / "class"), read_number(folder / "vendor")
    if kind is None or vendor not in _VENDORS or read_number(folder / "device") is None:
        return False
    base = kind >> 16
    return base == _DISPLAY_CONTROLLER or (base == _ACCELERATOR and _VENDORS[vendor] == "amd")


def _read_card(folder: Path, database: bytes) -> PciGpu:
    vendor_id, device_id = read_number(folder / "vendor") or 0, read_number(folder / "device") or 0
    vendor = _VENDORS[vendor_id]
    driver = folder / "driver"
    name = _database_name(database, vendor_id, device_id) or f"GPU 0x{device_id:04x}"
    return PciGpu(
        folder=folder,
        address=folder.name.lower(),
        vendor=vendor,
        device_id=device_id,
        kernel_driver=driver.resolve().name if driver.exists() else None,
        may_sleep=read_text(folder / "power/control") == "auto",
        name=f"{_MAKERS[vendor]} {name}",
    )


def _read_pci_ids(root: Path) -> bytes:
    for place in _PCI_IDS:
        try:
            return (root / place).read_bytes()
        except OSError:
            continue
    return b""


def _database_name(database: bytes, vendor_id: int, device_id: int) -> str | None:
    """Return a device's name in the PCI ID database: of "Navi 31 [Radeon RX 7900 XTX]" the part in brackets."""
    section = re.search(rb"^%04x  .*\n((?:[\t#].*\n)*)" % vendor_id, database, re.MULTILINE)
    entry = section and re.search(rb"^\t%04x  (.+)$" % device_id, section[1], re.MULTILINE)
    if not entry:
        return None
    name = entry[1].decode("utf-8", "replace").strip()
    marketed = re.search(r"\[(.+)\]$", name)
    return marketed[1] if marketed else name
