"""AMD GPUs, read from the amdgpu driver's files in /sys (kernel documentation: gpu/amdgpu/thermal and driver-misc)."""

import re
from collections.abc import Sequence
from pathlib import Path

from launcher.base.messages import message
from launcher.machine.gpu import ASLEEP, GONE, Gpu, GpuActivity, Reading, unknown_readings
from launcher.machine.sysfs import PciGpu, read_number, read_scaled, read_text

_MIB = 2**20
_NOT_REPORTED = message("The amdgpu driver does not report it.")
_SHARES_ALL = re.compile(r"\bMI300A\b|\b0x74a0\b")
"""An APU without a carve-out, whose metrics have the format of a card. GTT is what it may use (ollama #13463)."""
_APU_REVISION = 2
"""Format revision of gpu_metrics: 1 on cards, 2 or more on APUs (kgd_pp_interface.h)."""


class AmdGpus:
    """The AMD GPUs that amdgpu drives. A sleeping GPU is listed by name only, unless `wake`."""

    def __init__(self, cards: Sequence[PciGpu], *, wake: bool = False) -> None:
        self._cards = {card.address: card for card in cards if card.kernel_driver == "amdgpu"}
        self._wake = wake
        self.no_gpu_reason = None if self._cards else message("The kernel lists no AMD GPU with the amdgpu driver.")
        self.failures: tuple[str, ...] = ()

    def read_gpus(self) -> tuple[Gpu, ...]:
        """Read the GPUs again and return them; of sleeping ones only the name is known."""
        return tuple(self._read_gpu(index, card) for index, card in enumerate(self._cards.values()))

    def sample(self, gpu: Gpu) -> dict[str, Reading]:
        """Return the readings of a GPU by name; the name ends in the unit."""
        card = self._cards.get(gpu.id)
        if card is None or self._sleeps(card):
            return unknown_readings(ASLEEP if card else GONE)
        sensors = card.sensors_folder or card.folder / "hwmon"
        power = sensors / "power1_average"
        if not power.exists():
            power = sensors / "power1_input"
        return unknown_readings(_NOT_REPORTED) | {
            "gpu_temperature_c": read_scaled(sensors / "temp1_input", 1e-3, _NOT_REPORTED),
            "gpu_power_w": read_scaled(power, 1e-6, _NOT_REPORTED),
            "gpu_power_limit_w": read_scaled(sensors / "power1_cap", 1e-6, _NOT_REPORTED),
            "gpu_clock_mhz": read_scaled(sensors / "freq1_input", 1e-6, _NOT_REPORTED),
            "gpu_memory_clock_mhz": read_scaled(sensors / "freq2_input", 1e-6, _NOT_REPORTED),
            "vram_used_mib": read_scaled(card.folder / "mem_info_vram_used", 1 / _MIB, _NOT_REPORTED),
            "gpu_use_percent": read_scaled(card.folder / "gpu_busy_percent", 1.0, _NOT_REPORTED),
        }

    def sample_slow_readings(self, gpu: Gpu) -> dict[str, Reading]:
        """Return the host memory that the GPU uses, over all programs."""
        card = self._cards.get(gpu.id)
        if card is None or gpu.unified or self._sleeps(card):
            return {}
        return {"gtt_used_mib": read_scaled(card.folder / "mem_info_gtt_used", 1 / _MIB, _NOT_REPORTED)}

    def read_activity(self, gpu: Gpu) -> GpuActivity:  # noqa: ARG002 -- the result is the same for each
        """Return an unknown activity: amdgpu has no files for it in /sys."""
        return GpuActivity.unknown(_NOT_REPORTED)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _sleeps(self, card: PciGpu) -> bool:
        return not self._wake and card.is_asleep()

    def _read_gpu(self, index: int, card: PciGpu) -> Gpu:
        if self._sleeps(card):
            return card.as_sleeping_gpu(index)
        apu, shares_all = _is_apu(card), _SHARES_ALL.search(card.name) is not None
        kinds = ("vram", "gtt") if apu else ("vram",)
        total, used = _read_memory(card.folder, *(("gtt",) if shares_all else kinds))
        own_total, own_used = _read_memory(card.folder, "vram")
        carve_out_free = 0 if shares_all or own_total is None or own_used is None else own_total - own_used
        return Gpu(
            vendor="amd",
            index=index,
            name=_product_name(card),
            id=card.address,
            memory_bytes=total,
            used_bytes=used,
            free_bytes=None if total is None or used is None else total - used,
            driver="amdgpu",
            bus_id=card.address,
            unified=apu,
            carve_out_free_bytes=carve_out_free if apu else 0,
            asleep=False,
            display_active=card.display_active,
            small_bar=not apu and card.has_small_bar,
        ).with_reasons(_NOT_REPORTED)


def _read_memory(folder: Path, *kinds: str) -> tuple[int | None, int | None]:
    """Return total and used bytes. vram is a card's memory or an APU's carve-out, gtt the host memory it may use."""
    totals = [read_number(folder / f"mem_info_{kind}_total") for kind in kinds]
    used = [read_number(folder / f"mem_info_{kind}_used") for kind in kinds]
    return _sum_if_all_known(totals), _sum_if_all_known(used)


def _sum_if_all_known(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _is_apu(card: PciGpu) -> bool | None:
    """Return True for an APU, by the revision of its metrics; on old kernels by its second voltage. None if unknown."""
    if _SHARES_ALL.search(card.name):
        return True
    try:
        with (card.folder / "gpu_metrics").open("rb") as metrics:
            header = metrics.read(4)
    except OSError:
        header = b""
    if len(header) == 4:
        return header[2] >= _APU_REVISION
    return None if card.sensors_folder is None else read_text(card.sensors_folder / "in1_label") == "vddnb"


def _product_name(card: PciGpu) -> str:
    """Return the product name stored in the card, which only some have, else the name in the PCI ID database."""
    stored = read_text(card.folder / "product_name")
    if not stored:
        return card.name
    return stored if stored.startswith("AMD") else f"AMD {stored}"
