"""AMD GPUs by what the amdgpu driver shows below /sys (kernel documentation: gpu/amdgpu/thermal and driver-misc)."""

from collections.abc import Sequence
from pathlib import Path

from launcher.machine.gpu import ASLEEP, GONE, Activity, Gpu, unknown_readings
from launcher.machine.reading import Reading
from launcher.machine.sysfs import PciGpu, number, scaled, text

_MIB = 2**20
_NOT_SAID = "The amdgpu driver does not say."
_APU_REVISION = 2
"""Since gpu_metrics exists, its format revision is 1 on cards and 2 or more on APUs (kgd_pp_interface.h)."""


class AmdGpus:
    """The AMD cards that the kernel lists and amdgpu drives. One that sleeps is named only, unless `wake`."""

    def __init__(self, cards: Sequence[PciGpu], *, wake: bool = False) -> None:
        self._cards = {card.address: card for card in cards if card.kernel_driver == "amdgpu"}
        self._wake = wake
        self.absent = None if self._cards else "The kernel lists no AMD GPU with the amdgpu driver."
        self.failures: tuple[str, ...] = ()

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs, asked anew; those that sleep are named only."""
        return tuple(self._gpu(index, card) for index, card in enumerate(self._cards.values()))

    def sample(self, gpu: Gpu) -> dict[str, Reading]:
        """Return the readings of one GPU by name; the name ends in the unit."""
        card = self._cards.get(gpu.id)
        if card is None or self._sleeps(card):
            return unknown_readings(ASLEEP if card else GONE)
        sensors = card.hwmon or card.folder / "hwmon"
        power = next((path for name in ("power1_average", "power1_input") if (path := sensors / name).exists()), None)
        return {
            "gpu_temperature_c": scaled(sensors / "temp1_input", 1e-3, _NOT_SAID),
            "gpu_power_w": scaled(power or sensors / "power1_average", 1e-6, _NOT_SAID),
            "gpu_power_limit_w": scaled(sensors / "power1_cap", 1e-6, _NOT_SAID),
            "gpu_clock_mhz": scaled(sensors / "freq1_input", 1e-6, _NOT_SAID),
            "gpu_memory_clock_mhz": scaled(sensors / "freq2_input", 1e-6, _NOT_SAID),
            "vram_used_mib": scaled(card.folder / "mem_info_vram_used", 1 / _MIB, _NOT_SAID),
            "gpu_use_percent": scaled(card.folder / "gpu_busy_percent", 1.0, _NOT_SAID),
        }

    def sample_slowly(self, gpu: Gpu) -> dict[str, Reading]:
        """Return the host memory that the GPU uses for all programs together."""
        card = self._cards.get(gpu.id)
        if card is None or gpu.unified or self._sleeps(card):
            return {}
        return {"gtt_used_mib": scaled(card.folder / "mem_info_gtt_used", 1 / _MIB, _NOT_SAID)}

    def activity(self, gpu: Gpu) -> Activity:  # noqa: ARG002 -- the answer is the same for each
        """Return that nothing is known: amdgpu lists neither below /sys."""
        return Activity.unknown(_NOT_SAID)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _sleeps(self, card: PciGpu) -> bool:
        return not self._wake and card.sleeps_now()

    def _gpu(self, index: int, card: PciGpu) -> Gpu:
        if self._sleeps(card):
            return card.sleeper(index)
        apu = _is_apu(card)
        total, used = _memory(card.folder, "vram", "gtt") if apu else _memory(card.folder, "vram")
        own, own_used = _memory(card.folder, "vram")
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
            carve_out_free_bytes=own - own_used if apu and own is not None and own_used is not None else 0,
            asleep=False,
            display_active=card.display_active,
        ).explained(_NOT_SAID)


def _memory(folder: Path, *kinds: str) -> tuple[int | None, int | None]:
    """Return total and used bytes: vram is a card's own or an APU's carve-out, gtt what it may take of the host's."""
    totals = [number(folder / f"mem_info_{kind}_total") for kind in kinds]
    used = [number(folder / f"mem_info_{kind}_used") for kind in kinds]
    return _sum(totals), _sum(used)


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _is_apu(card: PciGpu) -> bool | None:
    """Return whether the GPU sits in a processor: by the form of its metrics, before them by its second voltage."""
    try:
        with (card.folder / "gpu_metrics").open("rb") as metrics:
            header = metrics.read(4)
    except OSError:
        header = b""
    if len(header) == 4:
        return header[2] >= _APU_REVISION
    return None if card.hwmon is None else text(card.hwmon / "in1_label") == "vddnb"


def _product_name(card: PciGpu) -> str:
    """Return the name that the card itself stores, which only some have, else the PCI ID database's."""
    stored = text(card.folder / "product_name")
    if not stored:
        return card.name
    return stored if stored.startswith("AMD") else f"AMD {stored}"
