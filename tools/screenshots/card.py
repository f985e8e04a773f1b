"""A simulated graphics card with 24 GB: a small NVIDIA library whose readings follow the demo's work."""

import shutil
import subprocess
from pathlib import Path

from PySide6.QtCore import QElapsedTimer, QObject, QTimer

from launcher.gui.window import Window

_SOURCE = Path(__file__).parents[2] / "tests" / "fakes" / "nvml_stub.c"
_NAME, _USED_MIB, _ENGINE_MIB = "NVIDIA GeForce RTX 4090", 1_120, 14_200
_WRITE_MS = 500
_IDLE, _AT_WORK = (44.0, 58.0, 1_650.0, 4.0), (67.0, 312.0, 2_625.0, 91.0)
"""Temperature in °C, power in W, clock in MHz and load in percent that the readings approach."""
_STEP = (0.03, 0.5, 0.6, 0.7)
"""Share of the distance by which each reading approaches them in one step."""


def build_driver(folder: Path) -> dict[str, str]:
    """Compile the library into a folder; return the environment in which programs find it.

    Raises RuntimeError without a C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("The simulated card needs a C compiler, such as gcc.")
    command = [compiler, "-std=c11", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(_SOURCE)]
    subprocess.run(command, check=True)
    return {"LD_LIBRARY_PATH": str(folder), "STUB_NAME": _NAME, "STUB_USED_MIB": str(_USED_MIB)}


class Card(QObject):
    """Writes the readings of the card while a window is open."""

    def __init__(self, window: Window, readings: Path, programs: Path) -> None:
        super().__init__(window)
        self._window, self._readings, self._programs = window, readings, programs
        self._now: tuple[float, ...] = _IDLE
        self._clock = QElapsedTimer()
        self._clock.start()
        timer = QTimer(self, interval=_WRITE_MS)
        timer.timeout.connect(self.write_readings)
        timer.start()
        self.write_readings()

    def write_readings(self) -> None:
        """Write the next readings, and the memory of the engine while one runs."""
        session = self._window.controller.session
        pid = None if session is None or session.is_idle else session.supervisor.engine_pid
        works = self._window.controller.inputs.status.state.value in ("busy", "draining")
        aim = _AT_WORK if works else _IDLE
        self._now = tuple(now + step * (to - now) for now, to, step in zip(self._now, aim, _STEP, strict=True))
        ripple = self._clock.elapsed() // _WRITE_MS % 7 - 3
        temperature, power, clock, load = self._now
        values = (temperature, power + 2 * ripple, clock + 5 * ripple, load)
        _replace_text(self._readings, " ".join(str(max(round(each), 0)) for each in values))
        _replace_text(self._programs, f"{pid} {_ENGINE_MIB}\n" if pid else "")


def _replace_text(path: Path, text: str) -> None:
    """Write a file that is never seen in part."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
