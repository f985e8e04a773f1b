"""Faults around an engine: its port, its files, its GPU."""

import asyncio
import os
import socket
import time
from contextlib import ExitStack
from dataclasses import replace

from launcher.app.serving.serving import serve
from launcher.base.errors import LauncherError
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.state import ServerEvent, ServerState, ServerStatus
from launcher.monitor.health_event import HealthEvent
from tools.serve_faults.world import (
    Observation,
    World,
    describe_restart,
    describe_survival,
    is_answering,
    make_request,
    wait_until,
)


async def _take_port(world: World, port: int | None) -> tuple[str, int | None]:
    """Take the port as soon as it was found to be free; return the message to the user, and the new port.

    The server has no gateway, which would hold the port from that moment.
    """
    with ExitStack() as stack:

        def take_port_on_event(event: ServerEvent) -> None:
            if isinstance(event, ServerStatus) and event.state is ServerState.PREPARING and not taken:
                taken.append(stack.enter_context(socket.create_server(("127.0.0.1", world.endpoint.port))))

        taken: list[socket.socket] = []
        try:
            async with serve(world.built_in_options, port=port, direct=True, on_event=take_port_on_event) as session:
                await session.send_request(make_request(4))
                return "", session.supervisor.endpoint.port
        except LauncherError as error:
            return str(error), None


async def take_port(world: World) -> Observation:
    """Take the port of a server that may move."""
    read, port = await _take_port(world, None)
    moved = port is not None and port != world.endpoint.port
    happened = "ready at another port, until the usual one is free again" if moved else f"NOT READY {port}"
    return Observation(happened, read or "The other address, where it says that it is ready")


async def take_requested_port(world: World) -> Observation:
    """Take the port of a server that may not move."""
    read, port = await _take_port(world, world.endpoint.port)
    return Observation("failed; nothing runs" if port is None else "IT STARTED", read)


def _copy_model(world: World) -> ServeOptions:
    path = world.home / "model.gguf"
    path.write_bytes(world.model.read_bytes())
    return replace(world.built_in_options, model=path)


async def remove_model(world: World) -> Observation:
    """Delete the file that is served, and try a restart."""
    options = _copy_model(world)
    async with world.run_supervisor() as supervisor:
        await supervisor.become(options)
        pid = supervisor.engine_pid
        options.model.unlink()
        result = await world.wait_for_notice("model_removed")
        happened = await describe_survival(supervisor, pid)
        try:
            await supervisor.become(options, again=True)
        except LauncherError as error:
            result += f" At a restart: {error}"
        return Observation(
            f"{happened}, also when a restart was refused: {await describe_survival(supervisor, pid)}", result, ""
        )


async def shrink_model(world: World) -> Observation:
    """Truncate the file that is served, and send a request."""
    options = _copy_model(world)
    async with world.run_supervisor() as supervisor:
        await supervisor.become(options)
        os.truncate(options.model, 100_000)
        result = await world.wait_for_notice("model_cut_short")
        asked = await is_answering(supervisor)
        failed = asyncio.ensure_future(supervisor.wait_for_state(ServerState.FAILED))
        await asyncio.wait([failed], timeout=0.1 if asked else 10)
        status = failed.result() if failed.done() else None
        failed.cancel()
    read = f"{result} Then: {status.error}" if status else result
    return Observation("failed; it is not started again" if status else "the server goes on", read)


async def replace_engine(world: World) -> Observation:
    """Replace the engine's program by another one, and restart."""
    program = world.write_built_in_engine()
    async with world.run_supervisor() as supervisor:
        await supervisor.become(replace(world.built_in_options, built_in=False, engine=program))
        pid = supervisor.engine_pid
        other = world.home / "new"
        other.write_bytes(program.read_bytes())
        other.chmod(0o755)
        other.replace(program)
        result = await world.wait_for_notice("engine_replaced")
        happened = await describe_survival(supervisor, pid)
        await supervisor.become(supervisor.options, again=True)
        return Observation(f"{happened}; after a restart: {await describe_restart(supervisor, pid)}", result)


async def remove_engine(world: World) -> Observation:
    """Delete the program that runs."""
    program = world.write_built_in_engine()
    async with world.run_supervisor() as supervisor:
        await supervisor.become(replace(world.built_in_options, built_in=False, engine=program))
        pid = supervisor.engine_pid
        program.unlink()
        result = await world.wait_for_notice("engine_removed")
        return Observation(await describe_survival(supervisor, pid), result)


async def hide_gpu(world: World) -> Observation:
    """Serve with a build that has a GPU backend and puts nothing on a GPU."""
    words = world.home / "says"
    words.write_text(
        "0.01.000.000 I srv  llama_server: initializing\n"
        "0.01.000.100 I common_param:   - CPU : Some processor (16000 MiB, 16000 MiB free)\n"
        "0.02.000.000 I load_tensors:   CPU model buffer size =  100.00 MiB\n"
    )
    options = world.fake_options("says", FAKE_SAYS=str(words))
    (world.home / "fake" / "libggml-cuda.so").touch()  # a build that was made for a GPU
    raised: list[HealthEvent] = []
    async with serve(options, on_health=raised.append) as session:
        began_s = time.monotonic()
        await wait_until(lambda: bool(raised), "a finding about the GPU")
        soon = time.monotonic() - began_s < 10
        happened = await describe_survival(session.supervisor, session.supervisor.engine_pid)
        finding = raised[0].finding
        when = "told within 10 s" if soon else "TOLD LATE"
        label = finding.action.label if finding.action else ""
        return Observation(f"{happened}; {when}", f"{finding.sentence} {label}")
