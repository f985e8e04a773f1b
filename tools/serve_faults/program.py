"""Faults of the program itself and of its folders, provoked while a command runs."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from launcher.base.errors import LauncherError
from launcher.engine.server.client import EngineClient
from tools.serve_faults.world import Observation, StartCommand, World, make_request

_SERVE = ("serve", "--model", "demo", "--json")
_ENDS_S = 20.0


@contextmanager
def _run_server(start: StartCommand) -> Iterator[tuple[Any, Any]]:
    """Start a server, yield its process and the JSON of its start, and stop it at the end."""
    with start(*_SERVE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        try:
            line = program.stdout.readline()
            yield program, json.loads(line) if line else {}
        finally:
            with suppress(ProcessLookupError):
                program.terminate()
            program.wait(_ENDS_S)


def _end_program(program: Any) -> str:  # noqa: ANN401 -- what StartCommand returns
    """End the program, and return its messages on standard error."""
    program.terminate()
    return str(program.stderr.read()).strip()


async def _receives_reply(ready: Any, tokens: int = 4) -> bool:  # noqa: ANN401 -- parsed JSON
    try:
        async with EngineClient(ready["url"], ready["api_key"]) as client, client.chat(make_request(tokens)) as deltas:
            return bool([delta async for delta in deltas])
    except LauncherError:
        return False


async def kill_program(world: World) -> Observation:
    """Kill the program alone."""
    return await _kill_during_reply(world, with_keeper=False)


async def kill_program_and_keeper(world: World) -> Observation:
    """Kill the program and the keeper that would have ended its engine."""
    return await _kill_during_reply(world, with_keeper=True)


async def _kill_during_reply(world: World, *, with_keeper: bool) -> Observation:
    with _run_server(world.start) as (program, ready):
        asking = asyncio.create_task(_receives_reply(ready, 4_000))
        await asyncio.sleep(0.2)
        victims = [psutil.Process(program.pid)]
        if with_keeper:
            victims += [each for each in victims[0].children() if "keeper.py" in " ".join(each.cmdline())]
        for victim in victims:
            victim.kill()
        program.wait(_ENDS_S)
        await asking
        left = await world.end_left_processes()
    with _run_server(world.start) as (program, again):
        same = (again.get("url"), again.get("api_key")) == (ready["url"], ready["api_key"])
        output = _end_program(program)
    gone = "the engine ended with it, in less than 2 s" if not left else f"LEFT RUNNING: {left}"
    happened = f"{gone}; the next start has {'the same address and key' if same else 'ANOTHER ADDRESS'}"
    return Observation(happened, output or "Nothing", "the rest of the reply")


async def run_two_programs(world: World) -> Observation:
    """Serve twice in one home: the second start joins the first one's server."""
    with _run_server(world.start) as (_, first):
        assert first["url"] == world.endpoint.url
        with _run_server(world.start) as (_, second):
            answers = [await _receives_reply(ready) for ready in (first, second)]
            result, _ = await _run(world, "status", "--json")
            seen = {server["url"] for server in json.loads(result)}
        answers.append(await _receives_reply(first))
    joined = first["url"] == second["url"] and first["api_key"] == second["api_key"]
    happened = "the second one joins the first, which goes on after it" if joined and all(answers) else "THEY DISTURB"
    return Observation(happened, "`status` shows one server" if seen == {first["url"]} else f"STATUS: {seen}")


async def make_folders_read_only(world: World) -> Observation:
    """Serve with read-only folders of settings and state."""
    (world.home / "config").mkdir(exist_ok=True)
    return await _serve_read_only(world, "config", "state")


async def make_home_read_only(world: World) -> Observation:
    """Serve with a read-only home folder."""
    return await _serve_read_only(world, ".")


async def _serve_read_only(world: World, *names: str) -> Observation:
    tops = [world.home / name for name in names]
    folders = [folder for top in tops for folder in (top, *(path for path in top.rglob("*") if path.is_dir()))]
    for folder in folders:
        folder.chmod(0o500)
    # root may write anywhere unless it drops its capabilities
    before = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []

    def start(*words: str, stdout: int, stderr: int) -> "subprocess.Popen[str]":
        command = [*before, sys.executable, "-m", "launcher", *words]
        return subprocess.Popen(command, stdout=stdout, stderr=stderr, text=True)

    try:
        with _run_server(start) as (program, ready):
            answered = "url" in ready and await _receives_reply(ready)
            result = _end_program(program)
    finally:
        for folder in folders:
            folder.chmod(0o700)
    if error := ready.get("error"):
        result = f"{result} {error['message']} {error['hint']}"
    return Observation("ready, answers" if answered else "not started; nothing runs", result)


async def damage_settings(world: World) -> Observation:
    """Damage the file of settings."""
    return await _damage_file(world, "model-settings.json")


async def damage_endpoints(world: World) -> Observation:
    """Damage the file of ports and keys."""
    return await _damage_file(world, "endpoints.json")


async def damage_last_start(world: World) -> Observation:
    """Damage the record of the last start, which failed, and ask why it did."""
    _, failed = await _run(world, "serve", "demo", "--", "--warp", "9")
    path = world.home / "state" / "last-start.json"
    path.write_bytes(path.read_bytes()[:-20] + b"\0\0")
    world.expects_bad = True
    found, result = await _run(world, "diagnose")
    commands = [_first_command(each) for each in (failed, found)]
    same = commands[0] and commands[0] == commands[1]
    kept = path.with_name("last-start.json.bad").exists()
    happened = f"`diagnose` {'names the same command as the start did' if same else 'DOES NOT KNOW THE START'}"
    return Observation(f"{happened}; the file is {'kept as .bad' if kept else 'LOST'}", _strip_prefixes(result))


async def cut_model(world: World) -> Observation:
    """Serve a file that is cut short, and ask why it failed."""
    model = world.home / "cut.gguf"
    model.write_bytes(world.model.read_bytes()[:-1_000])
    _, failed = await _run(world, "serve", str(model))
    found, _ = await _run(world, "diagnose")
    named = "cut.gguf is incomplete" in found
    happened = f"refused before an engine is run; `diagnose` {'says the same' if named else 'DOES NOT KNOW IT'}"
    return Observation(happened, _strip_prefixes(failed))


async def _run(world: World, *words: str) -> tuple[str, str]:
    """Run a command to its end; return its standard output and standard error."""

    def run() -> tuple[str, str]:
        with world.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
            out, err = program.communicate()
            return out, err

    return await asyncio.to_thread(run)


def _first_command(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip().startswith("mtp-launcher")), "")


def _strip_prefixes(text: str) -> str:
    return text.removeprefix("Error: ").partition("To do: ")[0]


async def _damage_file(world: World, name: str) -> Observation:
    path = world.home / "state" / name
    content = path.read_bytes()[:-20] + b"\0\0"
    path.write_bytes(content)
    world.expects_bad = True
    with _run_server(world.start) as (program, ready):
        answered = await _receives_reply(ready)
        output = _end_program(program)
    bad = path.with_name(f"{name}.bad")
    kept = bad.exists() and bad.read_bytes() == content
    happened = f"{'ready' if answered else 'NOT READY'}; the file is {'kept as .bad' if kept else 'LOST'}"
    return Observation(happened, output)


async def fill_disk(world: World) -> Observation:
    """Run `full_disk.py` on a disk of its own, which requires root or user namespaces."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    folder = world.home / "disk"
    folder.mkdir()
    script = 'mount -t tmpfs -o size=12m none "$1" && exec "$2" -m tools.serve_faults.full_disk "$1"'
    unshare = shutil.which("unshare") or "unshare"
    result = await asyncio.to_thread(
        subprocess.run,
        [unshare, *as_root, "--mount", "sh", "-c", script, "sh", str(folder), sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"The disk could not be filled: {result.stderr}")
    return Observation(**json.loads(result.stdout.splitlines()[-1]))
