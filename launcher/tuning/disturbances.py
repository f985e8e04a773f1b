"""Adds sensor values to measured replies, and detects disturbances that make a reply unusable."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from launcher.base.messages import message
from launcher.machine.gpu import GpuActivity, GpuProcess
from launcher.machine.host_load import HostCounters
from launcher.monitor.health import HARDWARE, HOT
from launcher.monitor.health_event import Finding, FindingCode
from launcher.monitor.monitor import Monitor
from launcher.tuning.host_watch import HostWatch
from launcher.tuning.records import Run
from launcher.tuning.statistics import mean_of_known

# Disturbances: a GPU that is throttled, a spill into host memory, other programs on the GPU.

_THROTTLED_SHARE = 0.92
"""Throttling counts as a disturbance below this share of the usual clock."""
_FEWEST_CLOCKS, _MOST_CLOCKS = 5, 40
"""The fewest and the most of the last replies over which the median, the usual clock, is taken."""
_TAKEN_MIB = 128.0
"""Growth of other programs' GPU memory during a reply that counts as a disturbance."""
_LEAST_PROGRAM_BYTES = 64 * 2**20
"""GPU memory from which a new program on the GPU counts as a disturbance."""


@dataclass(frozen=True, slots=True)
class MachineSnapshot:
    """Snapshot of the machine: open health findings, GPU activity, other programs' GPU memory in MiB, the processor."""

    open_findings: Sequence[Finding] = ()
    activity: GpuActivity | None = None
    others_mib: float | None = None
    engine_pid: int | None = None
    host: HostCounters | None = None


class DisturbanceJudge:
    """Judges whether a reply was disturbed, from snapshots before and after it and the GPU clocks of earlier replies.

    Constant throttling does not count, because it affects all settings alike. Only a difference from the usual state
    counts, because it would favour or harm the settings that are measured at that moment.
    """

    def __init__(self) -> None:
        self._clocks = deque[float](maxlen=_MOST_CLOCKS)

    def find_disturbance(self, before: MachineSnapshot, after: MachineSnapshot, clock_mhz: float | None) -> str | None:
        """Return why a reply must not be counted. None if it counts.

        `clock_mhz` is the mean GPU clock during the reply, None if unknown.
        """
        usual = median(self._clocks) if len(self._clocks) >= _FEWEST_CLOCKS else None
        if clock_mhz is not None:
            self._clocks.append(clock_mhz)
        return _find_spill(after) or _find_throttling(after, clock_mhz, usual) or _find_other_programs(before, after)


def _find_spill(after: MachineSnapshot) -> str | None:
    return next((found.sentence for found in after.open_findings if found.code is FindingCode.SPILL), None)


def _find_throttling(after: MachineSnapshot, clock_mhz: float | None, usual_mhz: float | None) -> str | None:
    reasons = frozenset(after.activity.throttled_by or ()) & (HOT | HARDWARE) if after.activity else frozenset()
    if not reasons or clock_mhz is None or usual_mhz is None or clock_mhz >= _THROTTLED_SHARE * usual_mhz:
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
    earlier, now = _other_programs(before), _other_programs(after)
    if earlier is not None and now is not None:
        known = {each.pid for each in earlier}
        for each in now:
            if each.pid not in known and (each.used_bytes or 0) >= _LEAST_PROGRAM_BYTES:
                return message("Another program started on the GPU: {name}.", name=each.name)
    if before.others_mib is not None and after.others_mib is not None:
        taken = after.others_mib - before.others_mib
        if taken >= _TAKEN_MIB:
            return message("Other programs took {taken:.0f} MiB of the GPU's memory.", taken=taken)
    return None


def _other_programs(snapshot: MachineSnapshot) -> list[GpuProcess] | None:
    """Return the other programs on the GPU that have a name, which they lack in a container. None if unknown."""
    if snapshot.activity is None or snapshot.activity.processes is None:
        return None
    return [each for each in snapshot.activity.processes if each.pid != snapshot.engine_pid and each.name is not None]


class RunSensors:
    """Adds a monitor's sensor values to runs.

    `engine_pid` returns the process id of the engine, so that it does not count as another program; None if unknown.
    """

    def __init__(self, monitor: Monitor, engine_pid: Callable[[], int | None], host_watch: HostWatch) -> None:
        self._monitor, self._engine_pid, self._host_watch = monitor, engine_pid, host_watch
        self._judge = DisturbanceJudge()

    def take_snapshot(self) -> MachineSnapshot:
        """Return the machine's state as of the monitor's last check. Take one before each request."""
        watch = self._monitor.health_watch
        return MachineSnapshot(
            watch.open_findings,
            watch.activity,
            watch.memory["others_vram_mib"].value,
            self._engine_pid(),
            self._host_watch.read(),
        )

    def add_sensor_values(self, run: Run, before: MachineSnapshot) -> Run:
        """Return a run that has just ended, with sensor means since its beginning, and `spoilt` if it was disturbed.

        Energy is the mean power times the whole time of the request, including prompt processing.
        """
        power_w = self._sensor_mean("gpu_power_w", run.began_s)
        clock_mhz = self._sensor_mean("gpu_clock_mhz", run.began_s)
        after = self.take_snapshot()
        by_host = self._host_watch.find_disturbance(before.host, after.host)
        return replace(
            run,
            power_w=power_w,
            energy_j=None if power_w is None else power_w * run.wall_s,
            temperature_c=self._sensor_mean("gpu_temperature_c", run.began_s),
            clock_mhz=clock_mhz,
            spoilt=self._judge.find_disturbance(before, after, clock_mhz) or by_host,
        )

    def _sensor_mean(self, name: str, since_s: float) -> float | None:
        """Return the mean of a sensor since `since_s`. None if unknown."""
        series = self._monitor.series.get(name)
        return mean_of_known(sample.value for sample in series.since(since_s)) if series is not None else None
