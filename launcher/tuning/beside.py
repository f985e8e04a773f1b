"""What the machine did beside a reply: power, clock, temperature, and whether something spoilt it."""

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from launcher.monitor.monitor import Monitor
from launcher.tuning.marks import Look, Marks
from launcher.tuning.records import Run


class Beside:
    """Adds a monitor's figures to runs. `engine_pid` tells whose GPU memory is not that of others, None if unknown."""

    def __init__(self, monitor: Monitor, engine_pid: Callable[[], int | None]) -> None:
        self._monitor, self._engine_pid = monitor, engine_pid
        self._marks = Marks()

    def look(self) -> Look:
        """Return a look at the machine as the monitor last saw it; take one before each request."""
        watch = self._monitor.watch
        return Look(watch.standing, watch.activity, watch.memory["others_vram_mib"].value, self._engine_pid())

    def told(self, run: Run, before: Look) -> Run:
        """Return a run that has just ended with the means of what was sensed since it began, and its mark.

        Energy is mean power over the whole time of the request, reading and writing.
        """
        power_w, clock_mhz = self._mean("gpu_power_w", run.began_s), self._mean("gpu_clock_mhz", run.began_s)
        return replace(
            run,
            power_w=power_w,
            energy_j=None if power_w is None else power_w * run.wall_s,
            temperature_c=self._mean("gpu_temperature_c", run.began_s),
            clock_mhz=clock_mhz,
            spoilt=self._marks.judge(before, self.look(), clock_mhz),
        )

    def _mean(self, name: str, since_s: float) -> float | None:
        """Return the mean of a sensor since then, None where it was unknown."""
        series = self._monitor.series.get(name)
        values = [at.value for at in series.since(since_s) if at.value is not None] if series is not None else []
        return fmean(values) if values else None
