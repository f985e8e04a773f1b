"""Shows, stops and restarts the running servers of this user, whichever program started them."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from launcher.app.serving import verbs
from launcher.app.serving.verbs import ask, send_verb
from launcher.base.codec import to_json
from launcher.base.control import ControlAddress
from launcher.base.errors import EngineFailed, LauncherError, ServerNotFound, Unreachable
from launcher.base.identity import ProcessId
from launcher.base.messages import command_name, join_messages, mark, message
from launcher.base.validation import ValidationError
from launcher.engine.server import registry
from launcher.engine.server.client import EngineClient
from launcher.engine.server.endpoint import preferred_port
from launcher.engine.server.logs import LogLine, logs_dir, read_last_lines
from launcher.engine.server.registry import ServerEntry
from launcher.engine.server.state import SERVING
from launcher.engine.settings import parse_settings

if TYPE_CHECKING:
    from launcher.gateway.request_log import RequestRecord

_STOP_TIMEOUT_S = 12.0
_ANSWER_TIMEOUT_S = 10.0
_STATUS_TIMEOUT_S, _RETRY_S = 2.0, 0.1
_JOIN_TIMEOUT_S = 5.0
_KILL = "taskkill /F /PID {}" if sys.platform == "win32" else "kill -9 {}"
_SILENT = "not answering"
_SERVING_STATES = tuple(state.value for state in SERVING)

OnState = Callable[[str, float | None], None]
"""Gets a server's state, and its loading progress in percent (None while it does not load)."""


@dataclass(frozen=True, slots=True)
class RegisteredServer:
    """A server in the registry, and its current state. `percent` is its loading progress, None while it does not load.

    `error` is why it failed or is being restarted, or None. `problem` is why it does not answer or why nothing
    supervises it, with a remedy; None if all is well. Since its start `restored_tokens` of prompts came from disk, and
    reading them would have taken `spared_s` seconds; None if that is unknown.
    """

    entry: ServerEntry
    state: str
    percent: float | None = None
    error: str | None = None
    problem: str | None = None
    restored_tokens: int | None = None
    spared_s: float | None = None


async def read_running_servers(url: str | None = None) -> tuple[RegisteredServer, ...]:
    """Return the running servers, or only the one at `url`. Raises ServerNotFound if none runs at `url`."""
    if url is None:
        entries = await asyncio.to_thread(registry.list_entries)
    else:
        entries = (await asyncio.to_thread(registry.find_server, url),)
    return tuple(await asyncio.gather(*map(_read_status, entries)))


async def _read_status(entry: ServerEntry) -> RegisteredServer:
    reply: Mapping[str, Any] = {}
    suspended = await asyncio.to_thread(entry.launcher.is_suspended)
    if entry.control_address is not None and not suspended:
        with suppress(LauncherError, TimeoutError):
            async with asyncio.timeout(_STATUS_TIMEOUT_S):
                reply = await ask(entry.control_address, verbs.GetStatus())
    entry = _with_reported_values(entry, reply)
    state = str(reply.get("state") or entry.first.state)
    if state in _SERVING_STATES:
        async with EngineClient(entry.url, None) as client:  # /health needs no key
            state = state if await client.is_healthy() else _SILENT
    problems: list[str] = []
    if suspended:
        problems.append(
            message(
                "The launcher (process {pid}) is suspended, for example by Ctrl-Z, so nothing supervises the server.",
                pid=entry.pid,
            )
        )
        problems.append(
            message(
                "{go_on}; {command} ends it.", go_on=_resume_hint(entry.pid), command=command_name("stop", mark("Stop"))
            )
        )
    if why := await asyncio.to_thread(suspended_engine_error, entry):
        problems.append(why.message)
    elif state == _SILENT:
        problems.append(
            message(
                "See {logs}, or restart it[ with {command}].",
                logs=command_name("logs", mark("Logs")),
                command=command_name("restart"),
            )
        )
    return RegisteredServer(
        entry,
        state,
        reply.get("percent"),
        reply.get("error"),
        join_messages(*problems) or None,
        reply.get("restored_tokens"),
        reply.get("spared_s"),
    )


def _with_reported_values(entry: ServerEntry, reply: Mapping[str, Any]) -> ServerEntry:
    """Return an entry with newer values from its server's launcher, which cannot write them if the disk is full."""
    entry_fields = reply.get("note")
    if not isinstance(entry_fields, dict):  # the launcher is an older version
        return entry
    try:
        return ServerEntry.model_validate(entry.model_dump() | entry_fields)
    except ValidationError:
        return entry


async def find_server_to_join() -> ServerEntry | None:
    """Return the server of this user at the default address, if other starts can load their models there.

    One whose program does not answer is left alone: a start beside it gets another address.
    """
    entry = await asyncio.to_thread(_find_default_server)
    if entry is None or entry.control_address is None:
        return None
    with suppress(LauncherError, TimeoutError):
        async with asyncio.timeout(_JOIN_TIMEOUT_S):
            await ask(entry.control_address, verbs.GetStatus())
        return entry
    return None


def _find_default_server() -> ServerEntry | None:
    with suppress(LauncherError, OSError):
        port = preferred_port()
        return next((each for each in registry.list_entries() if each.port == port and each.takes_models), None)
    return None


def suspended_engine_error(entry: ServerEntry) -> Unreachable | None:
    """Return an error if a server's engine is suspended, else None."""
    engine = entry.first.engine_process
    if engine is None or not engine.is_suspended():
        return None
    return Unreachable(
        message(
            "The engine of {url} (process {engine_pid}) is suspended by SIGSTOP or a debugger, so it does not respond.",
            url=entry.url,
            engine_pid=engine.pid,
        ),
        message(
            "{go_on}; {command} restarts the engine.",
            go_on=_resume_hint(engine.pid),
            command=command_name("restart", mark("Restart")),
        ),
    )


def _resume_hint(pid: int) -> str:
    if sys.platform == "win32":
        return message("Resume process {pid} in Resource Monitor", pid=pid)
    return message("`kill -CONT {pid}` resumes it", pid=pid)


async def explain_broken_reply(entry: ServerEntry, error: Unreachable) -> Unreachable:
    """Return an error with the reason why a server's reply broke off; `error` itself if its launcher does not know."""
    if suspended := await asyncio.to_thread(suspended_engine_error, entry):
        return suspended
    if entry.control_address is None:
        return error
    with suppress(LauncherError, TimeoutError):
        async with asyncio.timeout(_STATUS_TIMEOUT_S):
            status = await ask(entry.control_address, verbs.GetStatus())
            while str(status.get("state")) in _SERVING_STATES:  # the engine's end may not have been noticed yet
                await asyncio.sleep(_RETRY_S)
                status = await ask(entry.control_address, verbs.GetStatus())
            if why := status.get("error"):
                return Unreachable(join_messages(message("The engine ended in the middle of the reply."), why))
    return error


async def reload_keys(entry: ServerEntry) -> bool:
    """Have a running server use the saved API keys of its port; return whether it does.

    A server without the gateway, or of an older version, keeps its key until it is started again.
    """
    if entry.control_address is None:
        return False
    with suppress(LauncherError, TimeoutError):
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return bool((await ask(entry.control_address, verbs.ReloadKeys())).get("reloaded"))
    return False


async def prepare_for(entry: ServerEntry, client: str) -> None:
    """Have a running server ready for a client. See ServerSession.prepare_for; one that cannot goes on as it is."""
    if entry.control_address is not None:
        with suppress(LauncherError, TimeoutError):
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await ask(entry.control_address, verbs.PrepareFor(client))


async def stop_server(url: str | None, *, drain_s: float = 0.0) -> ServerEntry:
    """Stop the only running server, or the one at `url`, and return its entry.

    The server's launcher is asked over the control socket; if it is a window, it stays open. A suspended launcher is
    resumed first, so that it can clean up. A launcher that does not answer gets SIGTERM (on Windows it is terminated,
    which ends the engine's job). Requests in progress may finish for up to `drain_s` seconds. Raises ServerNotFound,
    SeveralServers, or EngineFailed if a debugger holds the launcher or the server still runs after 12 s.
    """
    entry = await asyncio.to_thread(registry.find_server, url)
    if entry.launcher.is_suspended():
        with suppress(psutil.Error):
            psutil.Process(entry.pid).resume()
        if entry.launcher.is_suspended():
            raise EngineFailed(
                message(
                    "The launcher of the server at {url} (process {pid}) is suspended by a debugger.",
                    url=entry.url,
                    pid=entry.pid,
                ),
                message(
                    "Resume it in the debugger, or end it and its engine with `{kill}`.",
                    kill=_KILL.format(entry.pid),
                ),
            )
    engine = entry.first.engine_process
    stopped = False
    if entry.control_address is not None:
        with suppress(Unreachable, TimeoutError):
            async with asyncio.timeout(drain_s + _STOP_TIMEOUT_S):
                reply = await ask(entry.control_address, verbs.Stop(drain_s=drain_s))
                stopped = bool(reply.get("stopped"))
    if not stopped and entry.launcher.is_running():  # its pid may belong to another process by now
        with suppress(psutil.NoSuchProcess):
            psutil.Process(entry.pid).terminate()
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while await asyncio.to_thread(_still_runs, entry, engine):
        if time.monotonic() > deadline_s:
            raise EngineFailed(
                message(
                    "The server at {url} (process {pid}) did not end within {stop_s:.0f} s.",
                    url=entry.url,
                    pid=entry.pid,
                    stop_s=_STOP_TIMEOUT_S,
                ),
                message("Try again, or end it and its engine with `{kill}`.", kill=_KILL.format(entry.pid)),
            )
        await asyncio.sleep(0.05)
    return entry


async def stop_model(model: str, url: str | None, *, drain_s: float = 0.0) -> tuple[ServerEntry, str]:
    """Unload one model of a running server; return the server's entry and the model's name.

    Without `url` the server that has loaded it is asked. The server ends with its last model. Raises ModelMissing if
    it is not loaded, ServerNotFound, SeveralServers, or Unreachable when its launcher does not answer.
    """
    entries = await asyncio.to_thread(registry.list_entries)
    holding = [each for each in entries if model in [other.model for other in each.models]]
    if url is None and len(holding) == 1:
        url = holding[0].url
    entry = await asyncio.to_thread(registry.find_server, url)
    async with asyncio.timeout(drain_s + _STOP_TIMEOUT_S):
        reply = await ask(await find_control_address(entry), verbs.Stop(model, drain_s))
    return entry, str(reply.get("stopped"))


def _still_runs(entry: ServerEntry, engine: ProcessId | None) -> bool:
    if engine is not None and engine.is_running():
        return True
    return any((each.port, each.pid) == (entry.port, entry.pid) for each in registry.list_entries())


async def restart_server(
    url: str | None, changes: Mapping[str, str], *, drain_s: float = 0.0, on_state: OnState | None = None
) -> Mapping[str, Any]:
    """Restart the only running server, or the one at `url`, with other settings, and return its status.

    `changes` are settings as users write them. Raises BadOption for an invalid one, SettingsFailed when the server runs
    with the old ones again, ServerNotFound, SeveralServers, or Unreachable when its launcher does not answer.
    """
    parse_settings(changes)  # raise for wrong settings before contacting the server
    entry = await asyncio.to_thread(registry.find_server, url)
    address = await find_control_address(entry)
    status: Mapping[str, Any] = {}
    async for status in send_verb(address, verbs.Restart(changes, drain_s)):
        if on_state is not None:
            on_state(str(status.get("state")), status.get("percent"))
    return status


async def preview_restart(url: str | None, changes: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the effects of `restart_server` with `changes`, as a Preview in JSON. Changes nothing.

    Raises what `restart_server` raises before it begins, and ModelHasNoHead for drafts of a model without a head.
    """
    parse_settings(changes)
    entry = await asyncio.to_thread(registry.find_server, url)
    return await ask(await find_control_address(entry), verbs.PreviewRestart(changes))


async def follow_log(url: str | None, *, lines: int, follow: bool) -> AsyncIterator[str]:
    """Yield the last `lines` lines of a running server's log, or of the last server's if none runs, with their times.

    With `follow` it continues with new lines until the server's launcher ends. Raises SeveralServers, Unreachable if
    the server's launcher does not answer, and ServerNotFound if no server runs and a `url` or `follow` was given, or if
    no server runs and no log exists either.
    """
    try:
        entry = await asyncio.to_thread(registry.find_server, url)
    except ServerNotFound:
        if url is not None or follow:
            raise
        for text in await asyncio.to_thread(_read_last_log, lines):
            yield text
        return
    address = await find_control_address(entry)
    with suppress(Unreachable):  # the launcher has ended, so the log has, too
        async for reply in send_verb(address, verbs.ReadLog(lines, follow)):
            for time_s, text in reply["lines"]:
                yield str(LogLine(float(time_s), str(text)))


async def read_requests(
    url: str | None, *, count: int, follow: bool, current: bool = False
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the last `count` requests of a running server as JSON data, or those that were kept if none runs.

    With `follow` it continues with those that end from now on, until the server's launcher ends; with `current` those
    in progress are yielded, too, once a second and whenever something happens to them. Raises what `follow_log` raises,
    and HistoryUnusable.
    """
    try:
        entry = await asyncio.to_thread(registry.find_server, url)
    except ServerNotFound:
        if url is not None or follow:
            raise
        for record in await asyncio.to_thread(_load_requests, count):
            yield to_json(record)
        return
    address = await find_control_address(entry)
    # With `follow`, the end of the launcher ends the iteration.
    ended = suppress(Unreachable) if follow else nullcontext()
    with ended:
        async for reply in send_verb(address, verbs.ReadRequests(count, follow, current)):
            for record in reply["requests"]:
                yield record


def _load_requests(count: int) -> "list[RequestRecord]":
    from launcher.tuning.history import History, history_file  # imported late: `status` and `stop` must be quick

    if not history_file().exists():
        return []
    with History() as history:
        return history.load_requests(count)


def _read_last_log(lines: int) -> list[str]:
    paths = [path for path in logs_dir().glob("engine-*.log") if path.stem.removeprefix("engine-").isdecimal()]
    if not paths:
        raise ServerNotFound(
            message("No server has run yet, so there is no log."),
            message("Start one[ with {command}].", command=command_name("serve")),
        )
    newest: Path = max(paths, key=lambda path: path.stat().st_mtime)
    return read_last_lines(newest, lines)


async def find_control_address(entry: ServerEntry) -> ControlAddress:
    """Return the address of the control socket of a server's launcher. Raises Unreachable unless it answers."""
    if entry.control_address is None:
        raise Unreachable(
            message("The launcher of the server at {url} cannot be reached.", url=entry.url),
            message("Stop it and start it again."),
        )
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            await ask(entry.control_address, verbs.GetStatus())
    except TimeoutError:
        raise Unreachable(
            message(
                "The launcher of the server at {url} (process {pid}) does not respond.",
                url=entry.url,
                pid=entry.pid,
            ),
            message(
                "It may be suspended, for example by Ctrl-Z. Resume it, or end it[ with {command}].",
                command=command_name("stop"),
            ),
        ) from None
    return entry.control_address
