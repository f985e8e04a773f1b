"""What is sampled of the host and of one process, by psutil."""

import psutil

from launcher.machine.reading import Reading

_MIB = 2**20


class HostSensors:
    """Processor and memory of the whole host, and the memory of one process."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # the first call has nothing to compare with
        self._process: psutil.Process | None = None

    def watch(self, pid: int | None) -> None:
        """Sample the memory of process `pid` from now on; None stops it."""
        try:
            self._process = None if pid is None else psutil.Process(pid)
        except psutil.Error:
            self._process = None

    def sample(self) -> dict[str, Reading]:
        """Return the readings by name; the name ends in the unit."""
        memory = psutil.virtual_memory()
        return {
            "host_cpu_percent": Reading(psutil.cpu_percent()),
            "host_memory_used_mib": Reading((memory.total - memory.available) / _MIB),
            "engine_memory_mib": self._engine_memory(),
        }

    def _engine_memory(self) -> Reading:
        if self._process is None:
            return Reading.unknown("No engine is running.")
        try:
            resident = self._process.memory_info().rss
        except psutil.Error:
            resident = 0
        if not resident:  # a zombie's is 0
            return Reading.unknown("The engine has ended.")
        return Reading(resident / _MIB)
