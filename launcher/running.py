"""The verbs on servers that run already, in whatever program of this user."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from launcher.base.control import Address, ask
from launcher.base.errors import EngineFailed, LauncherError, ServerNotFound, Unreachable
from launcher.base.identity import ProcessId
from launcher.engine import registry
from launcher.engine.client import EngineClient
from launcher.engine.logs import LogLine, logs_dir, read_last
from launcher.engine.registry import Entry
from launcher.engine.settings import parse_settings
from launcher.engine.state import SERVING

_STOP_S = 12.0
_ANSWER_S = 10.0
_LOOK_S, _AGAIN_S = 2.0, 0.1
_KILL = "taskkill /F /PID {}" if sys.platform == "win32" else "kill -9 {}"
_END = f"end it with `{_KILL}`: its engine ends with it"
_SILENT = "not answering"
_ANSWERED = tuple(state.value for state in SERVING)

OnState = Callable[[str, float | None], None]
"""Gets a server's state, and how far it has loaded in percent, None while it does not."""


@dataclass(frozen=True, slots=True)
class Running:
    """A registered server and what it is doing now; `error` is why it failed or is being restarted, or None.

    `problem` says why it does not answer or why nothing looks after it, and what to do; None where all is well.
    """

    entry: Entry
    state: str
    percent: float | None = None
    error: str | None = None
    problem: str | None = None


async def status(url: str | None = None) -> tuple[Running, ...]:
    """Return the servers that run now, or only the one at `url`; ServerNotFound when that does not run."""
    if url is None:
        entries = await asyncio.to_thread(registry.running)
    else:
        entries = (await asyncio.to_thread(registry.find, url),)
    return tuple(await asyncio.gather(*map(_look, entries)))


async def _look(entry: Entry) -> Running:
    told: Mapping[str, Any] = {}
    held = await asyncio.to_thread(entry.launcher.held)
    if entry.line is not None and not held:
        with suppress(LauncherError, TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                told = await _last(entry.line, "status")
    state = str(told.get("state") or entry.state)
    if state in _ANSWERED:
        async with EngineClient(entry.url, None) as client:  # /health needs no key
            state = state if await client.healthy() else _SILENT
    problems = []
    if held:
        problems.append(f"Its program (process {entry.pid}) is held, by Ctrl-Z say: nothing looks after the server.")
        problems.append(f"{_go_on(entry.pid)}, `mtp-launcher stop` ends it.")
    if why := await asyncio.to_thread(held_engine, entry):
        problems.append(str(why))
    elif state == _SILENT:
        problems.append("`mtp-launcher logs` shows what it does, `mtp-launcher restart` begins anew.")
    return Running(entry, state, told.get("percent"), told.get("error"), " ".join(problems) or None)


def held_engine(entry: Entry) -> Unreachable | None:
    """Return the error that a server's engine is held, None while it is not."""
    if entry.engine_pid is None or entry.engine_created_s is None:
        return None
    if not ProcessId(entry.engine_pid, entry.engine_created_s).held():
        return None
    return Unreachable(
        f"The engine of {entry.url} (process {entry.engine_pid}) is held, by SIGSTOP or a debugger, so it is silent.",
        f"{_go_on(entry.engine_pid)}, `mtp-launcher restart` begins anew.",
    )


def _go_on(pid: int) -> str:
    if sys.platform == "win32":
        return f"The Resource Monitor lets process {pid} go on"
    return f"`kill -CONT {pid}` lets it go on"


async def explain_break(entry: Entry, error: Unreachable) -> Unreachable:
    """Return why a reply of a server broke off, as its program tells it; the error as it is when it tells nothing."""
    if held := await asyncio.to_thread(held_engine, entry):
        return held
    if entry.line is None:
        return error
    with suppress(LauncherError, TimeoutError):
        async with asyncio.timeout(_LOOK_S):
            while str((told := await _last(entry.line, "status")).get("state")) in _ANSWERED:  # noqa: ASYNC110 -- nothing tells
                await asyncio.sleep(_AGAIN_S)
            if why := told.get("error"):
                return Unreachable(f"The engine ended in the middle of the reply. {why}")
    return error


async def stop(url: str | None, *, drain_s: float = 0.0) -> Entry:
    """Stop the only running server, or the one at `url`, and return what it was.

    Its program is asked; a window stays open. One that is held goes on first, for it could put nothing away. One that
    does not answer is asked to end by a signal (on Windows it is ended, which ends the engine's job). The requests it
    has may end for up to `drain_s` seconds. Raises ServerNotFound, SeveralServers, or EngineFailed when a debugger
    holds it, or it still runs 12 s later.
    """
    entry = await asyncio.to_thread(registry.find, url)
    if entry.launcher.held():
        with suppress(psutil.Error):
            psutil.Process(entry.pid).resume()
        if entry.launcher.held():
            raise EngineFailed(
                f"The program that runs the server at {entry.url} (process {entry.pid}) is held by a debugger.",
                f"Let it go on there, or {_END.format(entry.pid)}.",
            )
    engine = ProcessId.of(entry.engine_pid) if entry.engine_pid else None
    asked = False
    if entry.line is not None:
        with suppress(Unreachable, TimeoutError):
            async with asyncio.timeout(drain_s + _STOP_S):
                asked = bool((await _last(entry.line, "stop", drain_s=drain_s)).get("stopped"))
    if not asked and entry.launcher.running():  # its number may be another process's by now
        with suppress(psutil.NoSuchProcess):
            psutil.Process(entry.pid).terminate()
    deadline_s = time.monotonic() + _STOP_S
    while await asyncio.to_thread(_runs, entry, engine):
        if time.monotonic() > deadline_s:
            raise EngineFailed(
                f"The server at {entry.url} (process {entry.pid}) did not end within {_STOP_S:.0f} s.",
                f"Try again, or {_END.format(entry.pid)}.",
            )
        await asyncio.sleep(0.05)
    return entry


def _runs(entry: Entry, engine: ProcessId | None) -> bool:
    if engine is not None and engine.running():
        return True
    return any((each.port, each.pid) == (entry.port, entry.pid) for each in registry.running())


async def restart(
    url: str | None, changes: Mapping[str, str], *, drain_s: float = 0.0, on_state: OnState | None = None
) -> Mapping[str, Any]:
    """Restart the only running server, or the one at `url`, with other settings, and return its status.

    `changes` are settings as a user writes them. Raises BadOption for one that is none, SettingsFailed when the server
    runs with the old ones again, ServerNotFound, SeveralServers, or Unreachable when its program does not answer.
    """
    parse_settings(changes)  # before anything is asked
    entry = await asyncio.to_thread(registry.find, url)
    line = await _line_of(entry)
    told: Mapping[str, Any] = {}
    async for told in ask(line, "restart", set=dict(changes), drain_s=drain_s):
        if on_state is not None:
            on_state(str(told.get("state")), told.get("percent"))
    return told


async def preview(url: str | None, changes: Mapping[str, str]) -> Mapping[str, Any]:
    """Return what `restart` with `changes` would make of a server, as preview.Preview.as_json; nothing is changed.

    Raises what `restart` raises before it begins, and ModelHasNoHead for drafts of a model without a head.
    """
    parse_settings(changes)
    entry = await asyncio.to_thread(registry.find, url)
    return await _last(await _line_of(entry), "preview", set=dict(changes))


async def logs(url: str | None, *, lines: int, follow: bool) -> AsyncIterator[str]:
    """Yield the last `lines` lines of the running server's log, or of the one that ran last, each with its time.

    With `follow` it goes on with what comes, until the server's program ends. Raises SeveralServers, and ServerNotFound
    when `url` does not run, or none does and there is no log or `follow` is asked for, or Unreachable when the server's
    program does not answer.
    """
    try:
        entry = await asyncio.to_thread(registry.find, url)
    except ServerNotFound:
        if url is not None or follow:
            raise
        for text in await asyncio.to_thread(_last_log, lines):
            yield text
        return
    line = await _line_of(entry)
    with suppress(Unreachable):  # the program has ended, and the log with it
        async for told in ask(line, "logs", lines=lines, follow=follow):
            for time_s, text in told["lines"]:
                yield str(LogLine(float(time_s), str(text)))


def _last_log(lines: int) -> list[str]:
    found = [path for path in logs_dir().glob("engine-*.log") if path.stem.removeprefix("engine-").isdecimal()]
    if not found:
        raise ServerNotFound("No server has run yet, so there is no log.", "Start one with `mtp-launcher serve`.")
    newest: Path = max(found, key=lambda path: path.stat().st_mtime)
    return read_last(newest, lines)


async def _line_of(entry: Entry) -> Address:
    """Return the line to a server's program. Raises Unreachable when there is none, or nobody answers on it."""
    if entry.line is None:
        raise Unreachable(
            f"The program that runs the server at {entry.url} cannot be spoken to.", "Stop it and start it again."
        )
    try:
        async with asyncio.timeout(_ANSWER_S):
            await _last(entry.line, "status")
    except TimeoutError:
        raise Unreachable(
            f"The program that runs the server at {entry.url} (process {entry.pid}) does not answer.",
            "Is it held, by Ctrl-Z say? Let it go on, or end it with `mtp-launcher stop`.",
        ) from None
    return entry.line


async def _last(address: Address, verb: str, **fields: object) -> Mapping[str, Any]:
    """Ask, and return the last value of the answer; {} when there is none."""
    values = [value async for value in ask(address, verb, **fields)]
    return dict(values[-1]) if values else {}
