"""Intel GPUs, read from the files of i915 and xe in /sys (kernel documentation: ABI/testing/sysfs-driver-intel-*)."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.base.messages import message
from launcher.machine.gpu import ASLEEP, GONE, TOO_SHORT, Gpu, GpuActivity, Reading, unknown_readings
from launcher.machine.sysfs import PciGpu, read_number, read_scaled, read_text

_BUILT_IN_SLOT = ":00:02.0"
"""The integrated GPU always has this address on the root bus."""
_SHORTEST_S = 0.05
"""Fewest seconds between two samples of the energy counter that give a mean power."""
_TOTALS = ("drm/card*/lmem_total_bytes", "tile*/physical_vram_size_bytes")
_AVAILABLE = "drm/card*/lmem_avail_bytes"
_CLOCKS = ("tile0/gt0/freq0/act_freq", "drm/card*/gt_act_freq_mhz")
_SHARED = message("It shares system memory.")


class _Energy(NamedTuple):
    at_s: float
    joules: float


class IntelGpus:
    """The Intel GPUs that i915 or xe drives. A sleeping GPU is listed by name only, unless `wake`."""

    def __init__(
        self, cards: Sequence[PciGpu], *, wake: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cards = {card.address: card for card in cards if card.kernel_driver in {"i915", "xe"}}
        self._wake = wake
        self._clock = clock
        self._energy: dict[str, _Energy] = {}
        self.no_gpu_reason = (
            None if self._cards else message("The kernel lists no Intel GPU with the i915 or xe driver.")
        )
        self.failures: tuple[str, ...] = ()

    def read_gpus(self) -> tuple[Gpu, ...]:
        """Read the GPUs again and return them; of sleeping ones only the name is known."""
        return tuple(self._read_gpu(index, card) for index, card in enumerate(self._cards.values()))

    def sample(self, gpu: Gpu) -> dict[str, Reading]:
        """Return the readings of a GPU by name; the name ends in the unit."""
        card = self._cards.get(gpu.id)
        if card is None or self._sleeps(card):
            return unknown_readings(ASLEEP if card else GONE)
        why = message("The {kernel_driver} driver does not report it.", kernel_driver=card.kernel_driver)
        sensors = card.sensors_folder or card.folder / "hwmon"
        used = _used_memory(card.folder)
        no_memory = Reading.unknown(_SHARED if gpu.unified else why)
        return unknown_readings(why) | {
            "gpu_temperature_c": read_scaled(_find_input(sensors, "temp", "pkg"), 1e-3, why),
            "gpu_power_w": self._read_power(gpu.id, _find_input(sensors, "energy", "card"), why),
            "gpu_power_limit_w": read_scaled(sensors / "power1_max", 1e-6, why),
            "gpu_clock_mhz": read_scaled(_first_match(card.folder, *_CLOCKS), 1.0, why),
            "vram_used_mib": no_memory if used is None else Reading(used / 2**20),
        }

    def sample_slow_readings(self, gpu: Gpu) -> dict[str, Reading]:  # noqa: ARG002 -- the result is the same for each
        """Return nothing: i915 and xe have no files for these readings in /sys."""
        return {}

    def read_activity(self, gpu: Gpu) -> GpuActivity:
        """Return an unknown activity: the drivers have no files for it in /sys."""
        return GpuActivity.unknown(message("The {driver} driver does not report it.", driver=gpu.driver))

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _sleeps(self, card: PciGpu) -> bool:
        return not self._wake and card.is_asleep()

    def _read_gpu(self, index: int, card: PciGpu) -> Gpu:
        if self._sleeps(card):
            return card.as_sleeping_gpu(index)
        built_in = card.address.endswith(_BUILT_IN_SLOT)
        total, used = _total_memory(card.folder), _used_memory(card.folder)
        return Gpu(
            vendor="intel",
            index=index,
            name=card.name,
            id=card.address,
            memory_bytes=total,
            used_bytes=used,
            free_bytes=None if total is None or used is None else total - used,
            driver=card.kernel_driver,
            bus_id=card.address,
            unified=built_in,
            asleep=False,
            display_active=card.display_active,
            small_bar=not built_in and card.has_small_bar,
            absent=dict.fromkeys(("memory_bytes", "used_bytes", "free_bytes"), _SHARED) if built_in else {},
        ).with_reasons(message("The {kernel_driver} driver does not report it.", kernel_driver=card.kernel_driver))

    def _read_power(self, id_: str, path: Path, reason: str) -> Reading:
        """Return the mean power in watts since the last sample, from the energy counter."""
        counter = read_number(path)
        if counter is None:
            return Reading.unknown(reason)
        now, before = _Energy(self._clock(), counter * 1e-6), self._energy.get(id_)
        if before is not None and now.at_s - before.at_s < _SHORTEST_S:
            return Reading.unknown(TOO_SHORT)
        self._energy[id_] = now
        if before is None or now.joules < before.joules:  # the first sample, or the counter was reset
            return Reading.unknown(TOO_SHORT)
        return Reading((now.joules - before.joules) / (now.at_s - before.at_s))


def _total_memory(folder: Path) -> int | None:
    """Return the size of the card's memory in bytes over all its tiles, None if the driver does not report it."""
    sizes = [read_number(path) for pattern in _TOTALS for path in folder.glob(pattern)]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _used_memory(folder: Path) -> int | None:
    """Return the used part of the card's memory in bytes, None if the driver does not report it."""
    total, available = _total_memory(folder), read_number(_first_match(folder, _AVAILABLE))
    return None if total is None or available is None else total - available


def _first_match(folder: Path, *patterns: str) -> Path:
    """Return the first matching file, or a path that does not exist."""
    return next((path for pattern in patterns for path in sorted(folder.glob(pattern))), folder / patterns[0])


def _find_input(sensors: Path, kind: str, label: str) -> Path:
    """Return the input of `kind` with `label`, else the first of its kind."""
    inputs = sorted(sensors.glob(f"{kind}*_input"))
    named = [path for path in inputs if read_text(path.with_name(path.name.replace("_input", "_label"))) == label]
    return next(iter(named or inputs), sensors / f"{kind}1_input")
