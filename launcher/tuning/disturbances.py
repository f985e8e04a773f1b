"""Sensor values during a reply: power, clock and temperature, and whether a disturbance makes the reply unusable."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from launcher.base.messages import message
from launcher.machine.gpu import GpuActivity, GpuProcess
from launcher.monitor.health import HARDWARE, HOT
from launcher.monitor.health_event import Code, Finding
from launcher.monitor.monitor import Monitor
from launcher.tuning.records import Run
from launcher.tuning.statistics import mean_of_known

# Disturbances: a GPU that is throttled, a spill into host memory, other programs on the GPU.

_COSTS = 0.92
"""Below this share of its usual clock, a throttled GPU is slower than its settings allow."""
_FEWEST, _KEPT = 5, 40
_TAKEN_MIB = 128.0
_USES_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class MachineSnapshot:
    """Snapshot of the machine: open health findings, GPU activity, and other programs' GPU memory in MiB."""

    standing: Sequence[Finding] = ()
    activity: GpuActivity | None = None
    others_mib: float | None = None
    engine_pid: int | None = None


class DisturbanceJudge:
    """Judges whether a reply was disturbed, from snapshots before and after it and the GPU clocks of earlier replies.

    Constant throttling does not count: that is how this machine is. Only a difference from its usual state counts,
    because that would favour or harm the settings that are measured at that moment.
    """

    def __init__(self) -> None:
        self._clocks = deque[float](maxlen=_KEPT)

    def find_disturbance(self, before: MachineSnapshot, after: MachineSnapshot, clock_mhz: float | None) -> str | None:
        """Return why a reply must not be counted. None if it counts.

        `clock_mhz` is the mean GPU clock during the reply.
        """
        usual = median(self._clocks) if len(self._clocks) >= _FEWEST else None
        if clock_mhz is not None:
            self._clocks.append(clock_mhz)
        return _find_spill(after) or _find_throttling(after, clock_mhz, usual) or _find_other_programs(before, after)


def _find_spill(after: MachineSnapshot) -> str | None:
    return next((found.sentence for found in after.standing if found.code is Code.SPILL), None)


def _find_throttling(after: MachineSnapshot, clock_mhz: float | None, usual_mhz: float | None) -> str | None:
    reasons = frozenset(after.activity.throttled_by or ()) & (HOT | HARDWARE) if after.activity else frozenset()
    if not reasons or clock_mhz is None or usual_mhz is None or clock_mhz >= _COSTS * usual_mhz:
        return None
    why = ", ".join(sorted(reasons))
    return message(
        "The GPU was throttled ({why}): {clock_mhz:.0f} MHz instead of the usual {usual_mhz:.0f} MHz.",
        why=why,
        clock_mhz=clock_mhz,
        usual_mhz=usual_mhz,
    )


def _find_other_programs(before: MachineSnapshot, after: MachineSnapshot) -> str | None:
    """Return a sentence if another program came onto the GPU or others took more GPU memory, else None."""
    known, now = _other_programs(before), _other_programs(after)
    if known is not None and now is not None:
        seen = {each.pid for each in known}
        came = [each for each in now if each.pid not in seen and (each.used_bytes or 0) >= _USES_BYTES]
        if came:
            return message("Another program started on the GPU: {name}.", name=came[0].name)
    if before.others_mib is not None and after.others_mib is not None:
        taken = after.others_mib - before.others_mib
        if taken >= _TAKEN_MIB:
            return message("Other programs took {taken:.0f} MiB of the GPU's memory.", taken=taken)
    return None


def _other_programs(look: MachineSnapshot) -> list[GpuProcess] | None:
    """Return the other programs on the GPU that are known by name. None while unknown.

    In a container the names of processes are unknown.
    """
    if look.activity is None or look.activity.processes is None:
        return None
    return [each for each in look.activity.processes if each.pid != look.engine_pid and each.name is not None]


class RunSensors:
    """Adds a monitor's sensor values to runs.

    `engine_pid` returns the process id of the engine, whose GPU memory does not count as that of others; None if
    unknown.
    """

    def __init__(self, monitor: Monitor, engine_pid: Callable[[], int | None]) -> None:
        self._monitor, self._engine_pid = monitor, engine_pid
        self._marks = DisturbanceJudge()

    def take_snapshot(self) -> MachineSnapshot:
        """Return the monitor's latest snapshot of the machine. Take one before each request."""
        watch = self._monitor.watch
        return MachineSnapshot(
            watch.standing, watch.activity, watch.memory["others_vram_mib"].value, self._engine_pid()
        )

    def add_sensor_values(self, run: Run, before: MachineSnapshot) -> Run:
        """Return a run that has just ended, with the sensor means since its beginning. `spoilt` is set if disturbed.

        Energy is the mean power times the whole time of the request, prompt processing included.
        """
        power_w, clock_mhz = self._mean("gpu_power_w", run.began_s), self._mean("gpu_clock_mhz", run.began_s)
        return replace(
            run,
            power_w=power_w,
            energy_j=None if power_w is None else power_w * run.wall_s,
            temperature_c=self._mean("gpu_temperature_c", run.began_s),
            clock_mhz=clock_mhz,
            spoilt=self._marks.find_disturbance(before, self.take_snapshot(), clock_mhz),
        )

    def _mean(self, name: str, since_s: float) -> float | None:
        """Return the mean of a sensor since `since_s`. None where it is unknown."""
        series = self._monitor.series.get(name)
        return mean_of_known(at.value for at in series.since(since_s)) if series is not None else None
