"""Figures of NVIDIA GPUs as nvidia-smi prints them, compared with those that are read through NVML."""

import csv
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.machine.gpu import Gpu, GpuActivity, Reading
from launcher.machine.gpus import read_gpu_states
from launcher.machine.sysfs import ROOT

_WSL_PROGRAM = "usr/lib/wsl/lib/nvidia-smi"
_FIELDS = ("uuid", "name", "driver_version", "memory.total", "memory.used", "temperature.gpu", "power.draw")
_MIB = 2**20
_TIMEOUT_S = 30.0
"""Seconds; it takes some when the driver has to be loaded first."""


@dataclass(frozen=True, slots=True)
class SmiFigures:
    """One GPU as nvidia-smi prints it: sizes in MiB, °C and W. What it does not know is None."""

    name: str
    driver: str
    total_mib: float | None
    used_mib: float | None
    temperature_c: float | None
    power_w: float | None


def find_nvidia_smi(root: Path = ROOT) -> str | None:
    """Return the path of nvidia-smi, None if it is not installed. WSL has it outside PATH."""
    in_wsl = root / _WSL_PROGRAM
    return shutil.which("nvidia-smi") or (str(in_wsl) if in_wsl.is_file() else None)


def read_nvidia_smi(program: str) -> dict[str, SmiFigures]:
    """Return the figures of each GPU by its UUID; {} if nvidia-smi fails or prints something else."""
    command = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if len(row) == len(_FIELDS)]
    return {uuid: SmiFigures(name, driver, *map(_parse_figure, figures)) for uuid, name, driver, *figures in rows}


def _parse_figure(text: str) -> float | None:
    """Return a number; None for "[N/A]" and the like."""
    try:
        return float(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of one card: as nvidia-smi prints it, and as it was read before and after that; None is unknown.

    `tolerance` is in the unit, or with `is_share` a share of the printed figure.
    """

    printed: float | str | None
    before: float | str | None
    after: float | str | None
    unit: str = ""
    tolerance: float = 0.0
    is_share: bool = False

    @property
    def is_known(self) -> bool:
        """Whether both sides know the figure."""
        return None not in (self.printed, self.before, self.after)

    @property
    def agrees(self) -> bool:
        """Whether the printed figure is among the readings around it, but for the tolerance."""
        printed, readings = self.printed, [each for each in (self.before, self.after) if isinstance(each, int | float)]
        if not isinstance(printed, float) or not readings:
            return printed == self.before
        reach = self.tolerance * (printed if self.is_share else 1.0)
        return min(readings) - reach <= printed <= max(readings) + reach

    @property
    def printed_text(self) -> str:
        """The printed figure with its unit."""
        return self._format_value(self.printed)

    @property
    def read_text(self) -> str:
        """The last reading with its unit."""
        return self._format_value(self.after)

    def _format_value(self, value: float | str | None) -> str:
        return f"{value:,.0f} {self.unit}" if isinstance(value, int | float) else str(value)


_States = Mapping[str, tuple[Mapping[str, Reading], GpuActivity]]


def compare_with_nvidia_smi(gpus: Sequence[Gpu], program: str) -> dict[str, list[ComparedFigure]]:
    """Read NVIDIA GPUs, run nvidia-smi, and read them again; return the figures of all cards by name."""
    before = read_gpu_states(gpus, wake=True)
    printed = read_nvidia_smi(program)
    after = read_gpu_states(gpus, wake=True)
    compared: dict[str, list[ComparedFigure]] = {
        name: [] for name in ("driver", "name", "total", "used", "temperature", "power")
    }
    for gpu in gpus:
        smi = printed.get(gpu.id)
        if smi is None:
            continue
        total_mib = None if gpu.memory_bytes is None else gpu.memory_bytes / _MIB
        used, heat, power = (
            (_find_value(before, gpu, name), _find_value(after, gpu, name))
            for name in ("vram_used_mib", "gpu_temperature_c", "gpu_power_w")
        )
        compared["driver"].append(ComparedFigure(smi.driver, gpu.driver, gpu.driver))
        compared["name"].append(ComparedFigure(smi.name, gpu.name, gpu.name))
        compared["total"].append(ComparedFigure(smi.total_mib, total_mib, total_mib, "MiB", 1.0))
        compared["used"].append(ComparedFigure(smi.used_mib, *used, "MiB", 1.0))
        compared["temperature"].append(ComparedFigure(smi.temperature_c, *heat, "°C", 1.0))
        compared["power"].append(ComparedFigure(smi.power_w, *power, "W", 0.1, is_share=True))
    return compared


def _find_value(states: _States, gpu: Gpu, name: str) -> float | None:
    reading = states[gpu.id][0].get(name) if gpu.id in states else None
    return reading.value if reading else None
