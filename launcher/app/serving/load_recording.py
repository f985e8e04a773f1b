"""Records how long the loads of models take, and how much GPU memory, for later plans and forecasts."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from launcher.engine.builds.build import BUILT_IN
from launcher.engine.server.last_start import save_last_use
from launcher.engine.server.launch import Launch
from launcher.engine.server.load_times import save_load_time
from launcher.engine.server.logs import LogBook
from launcher.engine.server.supervisor import Supervisor


class LoadRecorder:
    """Records the loads of a server's models. Memory is read again once the engine has read a full ubatch.

    Of several loads only the newest is read again, because a reading takes the place of the last one.
    """

    def __init__(self) -> None:
        self._recording = asyncio.Lock()
        self._reading: _LoadReading | None = None

    @property
    def awaits_prompt(self) -> bool:
        """Whether there is a load whose memory is to be read again."""
        return self._reading is not None

    async def record_load(self, supervisor: Supervisor, seconds: float | None) -> None:
        """Record a load that took `seconds` (None: unknown), and the use of its model."""
        launch, pid = supervisor.launch, supervisor.engine_pid
        if launch is None:
            return
        if seconds is not None:
            await asyncio.to_thread(save_load_time, launch, seconds)
        await asyncio.to_thread(save_last_use, launch.options.model)
        if pid is not None and launch.build.name != BUILT_IN:
            async with self._recording:
                self._reading = None
                reading = _LoadReading(supervisor, launch, pid)
                await reading.record()
                self._reading = reading

    async def note_prompt(self, log: LogBook, tokens: int) -> None:
        """Read the memory again if the engine with this log has read `tokens`, and these fill a ubatch."""
        async with self._recording:
            reading = self._reading
            if reading is not None and reading.supervisor.log is log and reading.is_due(tokens):
                self._reading = None
                await reading.record(has_read_prompt=True)


@dataclass(slots=True)
class _LoadReading:
    """The GPU memory of one load."""

    supervisor: Supervisor
    launch: Launch
    pid: int
    is_recorded: bool = False

    def is_due(self, tokens: int) -> bool:
        """Return whether its engine still runs, and a prompt of this many tokens fills a ubatch."""
        return self.supervisor.engine_pid == self.pid and tokens >= self.launch.plan_settings("cpu").ubatch

    async def record(self, *, has_read_prompt: bool = False) -> None:
        """Record the memory for later plans, in place of what was recorded of this load before."""
        await asyncio.to_thread(self._record, self.supervisor.log.last_lines(), has_read_prompt)

    def _record(self, lines: list[str], has_read_prompt: bool) -> None:
        # Imported here, because the import takes as long as the start of a small model, and would delay that.
        from launcher.app.planning.load_memory import record_load_memory

        with suppress(Exception):
            self.is_recorded = record_load_memory(
                self.launch, self.pid, lines, has_read_prompt=has_read_prompt, replaces_last=self.is_recorded
            )
