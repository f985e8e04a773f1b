"""Faults of an engine: killed, suspended, silent, crashing, flooding its log."""

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace

import psutil

from launcher.base.errors import LauncherError, SettingsFailed
from launcher.engine.server.guard import GuardLimits, SystemClock
from launcher.engine.server.state import EngineStarted, Notice, ServerEvent, ServerState
from launcher.engine.server.supervisor import Supervisor
from tools.serve_faults.world import (
    SHORT_LIMITS,
    Observation,
    World,
    describe_restart,
    describe_survival,
    is_answering,
    make_request,
    wait_until,
)

_GUARD_OFF = GuardLimits()


async def _read_reply(
    supervisor: Supervisor, tokens: int = 4_000, begun: asyncio.Event | None = None
) -> tuple[str, str]:
    """Stream a reply to its end or to an error; return the texts of the reply and of the error. `begun` is set at the
    first word.
    """
    text = ""
    try:
        async with supervisor.chat(make_request(tokens)) as deltas:
            async for delta in deltas:
                text += delta.content + delta.reasoning
                if text and begun is not None:
                    begun.set()
    except LauncherError as error:
        return text, str(error)
    return text, ""


async def _begin_reply(supervisor: Supervisor) -> "asyncio.Task[tuple[str, str]]":
    begun = asyncio.Event()
    reading = asyncio.create_task(_read_reply(supervisor, begun=begun))
    await begun.wait()
    return reading


async def kill_idle_engine(world: World) -> Observation:
    """Kill the engine while there is no request."""
    async with world.run_supervisor() as supervisor:
        await supervisor.become(world.built_in_options)
        pid = supervisor.engine_pid
        os.kill(pid or 0, signal.SIGKILL)
        happened = await describe_restart(supervisor, pid)
        return Observation(happened, world.find_notice("crashed") or "")


async def kill_loading_engine(world: World) -> Observation:
    """Kill the engine as soon as its process exists."""

    def kill(event: ServerEvent) -> None:
        if isinstance(event, EngineStarted):
            os.kill(event.pid, signal.SIGKILL)

    async with world.run_supervisor(on_event=kill) as supervisor:
        try:
            await supervisor.become(world.built_in_options)
        except LauncherError as error:
            return Observation(f"{supervisor.status.state}; nothing runs", str(error))
        return Observation("IT STARTED", "")


async def kill_streaming_engine(world: World) -> Observation:
    """Kill the engine while it streams a reply of ours."""
    async with world.run_supervisor() as supervisor:
        await supervisor.become(world.built_in_options)
        pid = supervisor.engine_pid
        reading = await _begin_reply(supervisor)
        os.kill(pid or 0, signal.SIGKILL)
        text, error = await reading
        happened = await describe_restart(supervisor, pid)
        notice = world.find_notice("crashed") or ""
        return Observation(
            happened, f"In the chat: {error} Then: {notice}", "" if not text else "the rest of the reply"
        )


async def kill_keeper(world: World) -> Observation:
    """Kill the keeper process."""
    async with world.run_supervisor() as supervisor:
        await supervisor.become(world.built_in_options)
        pid = supervisor.engine_pid
        for child in psutil.Process().children():
            if any("keeper.py" in word for word in child.cmdline()):
                child.kill()
        happened = await describe_restart(supervisor, pid)
        return Observation(happened, world.find_notice("crashed") or "")


async def suspend_engine(world: World) -> Observation:
    """Suspend the engine, and resume it after the notice."""
    async with world.run_supervisor() as supervisor:
        await supervisor.become(world.built_in_options)
        pid = supervisor.engine_pid
        os.kill(pid or 0, signal.SIGSTOP)
        result = await world.wait_for_notice("paused")
        os.kill(pid or 0, signal.SIGCONT)
        again = await world.wait_for_notice("answers_again")
        happened = await describe_survival(supervisor, pid)
        return Observation(f"told, not ended; after SIGCONT {happened}", f"{result} Then: {again}")


async def stop_suspended_engine(world: World) -> Observation:
    """Stop a server whose engine is suspended."""
    async with world.run_supervisor(limits=_GUARD_OFF) as supervisor:
        await supervisor.become(world.built_in_options)
        os.kill(supervisor.engine_pid or 0, signal.SIGSTOP)
        began_s = time.monotonic()
        await supervisor.become(None)
        in_time = time.monotonic() - began_s < 9
        return Observation(
            f"ended by SIGKILL {'within 9 s' if in_time else 'TOO LATE'}; {supervisor.status.state}", "Stopped"
        )


async def stop_unwilling_engine(world: World) -> Observation:
    """Stop a server whose engine ignores every request to end."""
    async with world.run_supervisor() as supervisor:
        await supervisor.become(world.fake_options("ignores-term"))
        began_s = time.monotonic()
        await supervisor.become(None)
        in_time = time.monotonic() - began_s < 9
        return Observation(
            f"ended by SIGKILL {'within 9 s' if in_time else 'TOO LATE'}; {supervisor.status.state}", "Stopped"
        )


async def _fails_to_start(world: World, *faults: str, **variables: str) -> Observation:
    async with world.run_supervisor() as supervisor:
        try:
            await supervisor.become(world.fake_options(*faults, **variables))
        except LauncherError as error:
            return Observation(f"{supervisor.status.state}; nothing runs", str(error))
        return Observation("IT STARTED", "")


async def start_silent_engine(world: World) -> Observation:
    """Start an engine that says nothing and never listens."""
    return await _fails_to_start(world, "silent-start")


async def start_mute_engine(world: World) -> Observation:
    """Start an engine that takes the first request and never answers."""
    return await _fails_to_start(world, "mute")


async def start_engine_without_drafts(world: World) -> Observation:
    """Start an engine that drafts nothing although MTP is on."""
    return await _fails_to_start(world, "no-drafts")


async def stall_reply(world: World) -> Observation:
    """Send a request to an engine whose reply stops in the middle."""
    async with world.run_supervisor() as supervisor:
        await supervisor.become(world.fake_options("stalls"))
        pid = supervisor.engine_pid
        text, error = await _read_reply(supervisor)
        happened = await _wait_for_new_engine(supervisor, pid)
        notice = world.find_notice("crashed") or ""
        return Observation(happened, f"In the chat: {error} Then: {notice}", "the rest of the reply" if text else "")


async def _wait_for_new_engine(supervisor: Supervisor, old_pid: int | None) -> str:
    """Wait until another engine serves. Only its first reply completes, so no more can be expected."""

    def another() -> bool:
        return supervisor.status.state is ServerState.READY and supervisor.engine_pid not in (None, old_pid)

    await wait_until(another, "another engine")
    return "the engine was ended and started again, ready at the same address"


async def crash_repeatedly(world: World) -> Observation:
    """Serve with an engine that ends soon after each start."""
    async with world.run_supervisor() as supervisor:
        await supervisor.become(world.fake_options("dies-soon"))
        status = await supervisor.wait_for_state(ServerState.FAILED)
        restarts = sum(isinstance(event, EngineStarted) for event in world.events) - 1
        return Observation(f"{restarts} restarts, then failed; it is not started again", str(status.error))


class _Clocks(SystemClock):
    """This computer's clocks, plus an offset."""

    ahead_s = 0.0

    def wall(self) -> float:
        return time.time() + self.ahead_s


async def set_clock_forward(world: World) -> Observation:
    """Set the clock ahead."""
    clock = _Clocks()
    async with world.run_supervisor(clock=clock) as supervisor:
        await supervisor.become(world.built_in_options)
        clock.ahead_s = 3 * 3_600
        result = await world.wait_for_notice("slept")
        return Observation(await describe_survival(supervisor, supervisor.engine_pid), result)


async def set_clock_back(world: World) -> Observation:
    """Set the clock back."""
    clock = _Clocks()
    async with world.run_supervisor(clock=clock) as supervisor:
        await supervisor.become(world.built_in_options)
        pid = supervisor.engine_pid
        clock.ahead_s = -86_400
        await asyncio.sleep(3 * SHORT_LIMITS.period_s)
        notices = [event.code for event in world.events if isinstance(event, Notice)]
        return Observation(await describe_survival(supervisor, pid), "Nothing" if not notices else f"ALARMS: {notices}")


async def flood_log(world: World) -> Observation:
    """Let the engine print faster than its output is read."""
    lines = 500_000
    async with world.run_supervisor() as supervisor:
        await supervisor.become(world.fake_options("flood-later", FAKE_LINES=str(lines)))
        pid = supervisor.engine_pid
        answered = [await is_answering(supervisor) for _ in range(5)]
        await wait_until(lambda: supervisor.log.line_count >= lines, "the flood's end")
        happened = await describe_survival(supervisor, pid)
        kept = len(supervisor.log.last_lines())
    files = sum(path.stat().st_size for path in supervisor.log.path.parent.glob("engine-*")) / 2**20
    while_it_ran = "all requests meanwhile were answered" if all(answered) else "REQUESTS FAILED"
    bounded = f"{kept:,} lines in memory, {'under 9 MiB' if files < 9 else 'TOO MUCH'} on the disk"
    read = "The lines; in the file, where some are missing, how many"
    return Observation(f"{happened}; {while_it_ran}; {bounded}", read, "the oldest lines of the log")


async def print_half_lines(world: World) -> Observation:
    """Let the engine print incomplete lines and bytes that are not text."""
    async with world.run_supervisor() as supervisor:
        await supervisor.become(world.fake_options("half-lines"))
        shown = [await _wait_for_line(supervisor, part) for part in ("second half", "no end")]
        return Observation(
            await describe_survival(supervisor, supervisor.engine_pid), f"In the log: {'; '.join(shown)}"
        )


async def _wait_for_line(supervisor: Supervisor, part: str) -> str:
    """Wait for a line of the log."""

    def find_line() -> str | None:
        return next((line for line in supervisor.log.last_lines() if part in line), None)

    await wait_until(lambda: find_line() is not None, f"a line with {part}")
    return find_line() or ""


async def fail_new_settings(world: World) -> Observation:
    """Restart with settings that the engine refuses."""
    async with world.run_supervisor() as supervisor:
        await supervisor.become(world.built_in_options)
        read = ""
        with suppress(SettingsFailed):
            try:
                await supervisor.become(replace(world.built_in_options, extra=("--cache-ram", "nonsense")))
            except SettingsFailed as error:
                read = str(error)
                raise
        back = supervisor.options == world.built_in_options and await is_answering(supervisor)
        return Observation("the old settings are back, ready at the same address" if back else "NOT BACK", read)


async def pass_unknown_flag(world: World) -> Observation:
    """Start with a flag that does not exist."""
    async with world.run_supervisor() as supervisor:
        try:
            await supervisor.become(replace(world.built_in_options, extra=("--no-such-flag",)))
        except LauncherError as error:
            return Observation(f"{supervisor.status.state}; nothing runs", str(error))
        return Observation("IT STARTED", "")


async def run_out_of_memory(world: World) -> Observation:
    """Start an engine that ends with the error of a full GPU."""
    words = world.home / "says"
    words.write_text(
        "0.06.520.077 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2908.50 MiB on device 0: cudaMalloc"
        " failed: out of memory\n"
        "0.06.520.084 E alloc_tensor_range: failed to allocate CUDA0 buffer of size 3049783296\n"
        "0.06.520.090 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv"
        " cache\n"
        "0.06.520.096 E srv  llama_server: exiting due to model loading error\n"
    )
    return await _fails_to_start(world, "says", "ends", FAKE_SAYS=str(words))
