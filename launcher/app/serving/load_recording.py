"""Records how long the loads of models take, and how much GPU memory, for later plans and forecasts."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from launcher.engine.builds.build import BUILT_IN
from launcher.engine.server.last_start import save_last_use
from launcher.engine.server.launch import Launch
from launcher.engine.server.load_times import save_load_time
from launcher.engine.server.supervisor import Supervisor


@dataclass(slots=True)
class LoadReading:
    """The GPU memory of one load: read when it is loaded, and again once the engine has read a full ubatch."""

    supervisor: Supervisor
    launch: Launch
    pid: int
    is_recorded: bool = False

    def is_due(self, prompt_tokens: int) -> bool:
        """Return whether its engine still runs, and a prompt of this many tokens has filled a ubatch."""
        return self.supervisor.engine_pid == self.pid and prompt_tokens >= self.launch.plan_settings("cpu").ubatch

    async def record(self, *, has_read_prompt: bool = False) -> None:
        """Record the memory for later plans, in place of what was recorded of this load before."""
        await asyncio.to_thread(self._record, self.supervisor.log.last_lines(), has_read_prompt)

    def _record(self, lines: list[str], has_read_prompt: bool) -> None:
        # Imported here, because the import takes as long as the start of a small model, and would delay that.
        from launcher.app.planning.planner import record_load_memory

        with suppress(Exception):
            self.is_recorded = record_load_memory(
                self.launch, self.pid, lines, has_read_prompt=has_read_prompt, replaces_last=self.is_recorded
            )


async def record_load(supervisor: Supervisor, seconds: float | None) -> LoadReading | None:
    """Record a load that took `seconds` (None: unknown), and its model's use.

    Return its reading, to be recorded again after the first full ubatch; None if it has no GPU memory.
    """
    launch, pid = supervisor.launch, supervisor.engine_pid
    if launch is None:
        return None
    if seconds is not None:
        await asyncio.to_thread(save_load_time, launch, seconds)
    await asyncio.to_thread(save_last_use, launch.options.model)
    if pid is None or launch.build.name == BUILT_IN:
        return None
    reading = LoadReading(supervisor, launch, pid)
    await reading.record()
    return reading
