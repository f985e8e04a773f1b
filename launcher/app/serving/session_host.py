"""The server process: holds a session for its owner, a window that drives it over a control socket.

A window is the owner as long as it reads the stream of the verb "own"; a new one takes its place. Without an owner the
server goes on, and other commands reach it as they do any server. The process ends when the owner says so, when it has
neither an owner nor a server, or after some minutes without an owner and without a request. However it ends, its engine
ends with it: see engine/server/keeper.py.
"""

import asyncio
import logging
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

from launcher import __version__
from launcher.app.serving.server_process import ProcessEntry, entry_file
from launcher.app.serving.session import ServerSession
from launcher.app.serving.session_json import (
    Json,
    action_from_json,
    endpoint_to_json,
    error_to_json,
    event_to_json,
    launch_to_json,
    models_to_json,
    options_to_json,
)
from launcher.app.serving.use_counting import UseCounting
from launcher.base.codec import from_json
from launcher.base.control import ControlAddress, ControlServer
from launcher.base.errors import BadOption, LauncherError, Superseded
from launcher.base.files import make_private_folder, write_atomically
from launcher.base.identity import ProcessId
from launcher.base.messages import add_message_data, message, restore_messages
from launcher.base.paths import runtime_dir
from launcher.base.running_mark import mark_running
from launcher.engine.server.launch import Launch
from launcher.engine.server.logs import LogLine
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import LogAdded, ReplyProgress, ServerEvent, ServerState
from launcher.engine.server.supervisor import Supervisor
from launcher.gateway.request_log import RequestRecord
from launcher.monitor.monitor import UNSEEN

_FIRST_OWNER_S = 60.0
"""Seconds that a new process waits for its owner."""
_PERIOD_S = 0.02
"""The fewest seconds between two messages to the owner."""
_PROGRESS_S = 0.2
"""Seconds between two reports of how far the replies are."""
_SEND_S = 1.0
"""Seconds that the end of the process waits for its owner to get the last messages."""
_MOST_EVENTS = 1_000
"""Events that wait for an owner who does not read."""
_CHARACTERS_AT_ONCE = 60_000
r"""Characters of log lines in one message: less than the 1 MiB that base/control.py allows, even written as \uXXXX."""
_log = logging.getLogger(__name__)


class OwnerStream:
    """Messages for the owner: changed parts of the session's state, new log lines, events, and the prompts of requests
    that ended."""

    def __init__(self, session: ServerSession) -> None:
        self._session = session
        self._events: deque[Json] = deque(maxlen=_MOST_EVENTS)
        self._prompts: deque[Json | None] = deque(maxlen=_MOST_EVENTS)
        self._wake = asyncio.Event()
        self._wake.set()
        self._all_sent = asyncio.Event()
        self._ended = False
        self._number = 0
        self._sent: Json = {}
        self._supervisor: Supervisor | None = None
        self._server_number = 0
        self._seen_lines = 0
        self._launch: Launch | None = None
        self._launch_json: Json | None = None
        self._progress: ReplyProgress | None = None

    def add_event(self, event: ServerEvent) -> None:
        """Pass an event on. Log lines are read from the log, so that a flood of them does not wait here."""
        data = event_to_json(event)
        if data is not None:
            self._events.append(data)
        self._wake.set()

    def add_request(self, record: RequestRecord) -> None:
        """Pass on how much of an ended request's prompt was read again, for the owner's health checks."""
        if record.has_ended and record.reused_tokens is not None:
            self._prompts.append(record.reread.as_json() if record.reread else None)
        self._wake.set()

    def mark(self) -> int:
        """Return a number that the owner gets once all that has happened until now has been sent."""
        self._number += 1
        self._wake.set()
        return self._number

    async def wait_until_sent(self) -> None:
        """Wait until the owner was sent all that has happened until now, unless it does not read."""
        self._all_sent.clear()
        self.mark()
        with suppress(TimeoutError):
            async with asyncio.timeout(_SEND_S):
                await self._all_sent.wait()

    def end(self) -> None:
        """End the stream, because another owner took its place."""
        self._ended = True
        self._wake.set()

    async def send_messages(self) -> AsyncGenerator[Json]:
        """Yield messages until the stream is ended."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROGRESS_S if self._is_replying else None):
                    await self._wake.wait()
            self._wake.clear()
            if self._ended:
                yield {"taken": True}
                return
            number, events, prompts = self._number, list(self._events), list(self._prompts)
            self._events.clear()
            self._prompts.clear()
            for lines in self._take_lines():  # also the last ones of a server that is no more
                yield {"state": {}, "lines": lines}
            state = self._read_state()
            if state["server"] != self._sent.get("server"):
                self._sent = {}  # another server: all of its state is sent, also equal values
            changed = {name: value for name, value in state.items() if self._sent.get(name, self) != value}
            self._sent = state
            for lines in self._take_lines():
                yield {"state": cast("Json", add_message_data(changed)), "lines": lines}
                changed = {}
            yield {
                "state": add_message_data(changed),
                "events": add_message_data(events),
                "prompts": prompts,
                "number": number,
            }
            if number == self._number and not self._wake.is_set():
                self._all_sent.set()
            await asyncio.sleep(_PERIOD_S)

    @property
    def _is_replying(self) -> bool:
        progress = self._supervisor.reply_progress if self._supervisor is not None else None
        return progress is not None and progress.running > 0

    def _read_state(self) -> Json:
        session = self._session
        supervisor = None if session.is_idle else session.supervisor
        if supervisor is not self._supervisor:
            self._supervisor, self._seen_lines = supervisor, 0
            self._server_number += 1
        state: Json = {
            "change_count": session.change_count,
            "shared": session.shared,
            "encrypted": session.encrypted,
            "model_name": session.model_name,
            "models": models_to_json(session.model_statuses),
            "server": self._server_number if supervisor else None,
        }
        if supervisor is None:
            return state
        if supervisor.launch is not self._launch:
            self._launch = supervisor.launch
            self._launch_json = launch_to_json(supervisor.launch) if supervisor.launch else None
        progress = supervisor.reply_progress
        if progress is None or self._progress is None or progress.counts != self._progress.counts:
            self._progress = progress
        return state | {
            "status": event_to_json(supervisor.status),
            "options": options_to_json(supervisor.options) if supervisor.options else None,
            "endpoint": endpoint_to_json(supervisor.endpoint),
            "engine_endpoint": endpoint_to_json(supervisor.engine_endpoint),
            "engine_pid": supervisor.engine_pid,
            "held_requests": supervisor.held_requests,
            "reply_progress": self._progress,
            "failed_replies": supervisor.failed_replies,
            "log": str(supervisor.log.path),
            "launch": self._launch_json,
        }

    def _take_lines(self) -> Iterator[list[LogLine]]:
        if self._supervisor is None:
            return
        log = self._supervisor.log
        waiting = log.lines_since(self._seen_lines)
        self._seen_lines = log.line_count
        batch: list[LogLine] = []
        characters = 0
        for line in waiting:
            batch.append(line)
            characters += len(line.text)
            if characters >= _CHARACTERS_AT_ONCE:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch


class SessionHost:
    """The session of the server process, and its control socket.

    It answers these verbs: own; start, stop, share, fix (number, and the arguments of the session's methods); cancel;
    unload (model); foresee; note (processing, quiet_since, findings); quit. `number` counts the owner's requests: an
    older one that comes late does nothing. The host ends by itself after `idle_limit_s` seconds without an owner and
    without a request. If `idle_limit_s` is None, it ends by itself only when its server has failed and it has no owner.
    Requests can name other models, as they can with `serve`.
    """

    def __init__(self, idle_limit_s: float | None) -> None:
        self.session = ServerSession(on_event=self._handle_event, takes_models=True)
        self.session.monitor.periods = UNSEEN
        self.session.request_log.add_listener(self._handle_request_record)
        self._counting = UseCounting(self.session)
        self._idle_limit_s = idle_limit_s
        self._server = ControlServer(self._handle_request)
        self._entry: ProcessEntry | None = None
        self._owner: OwnerStream | None = None
        self._had_owner = False
        self._newest_request = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self._quits = False
        self._changed = asyncio.Event()
        self._active_s = asyncio.get_running_loop().time()

    async def listen(self) -> ProcessEntry:
        """Begin to listen, and write the entry by which windows find this process. Raises OSError."""
        address = await self._open_socket()
        own = ProcessId.from_pid(os.getpid()) or ProcessId(os.getpid(), 0.0)
        self._entry = ProcessEntry(
            pid=own.pid,
            created_s=own.created_s,
            version=__version__,
            control=address.path,
            control_token=address.token,
        )
        try:
            make_private_folder(runtime_dir())
            write_atomically(entry_file(), self._entry.to_json().encode())
        except OSError as error:
            _log.warning("%s cannot be written, so no other window finds this server: %s", entry_file(), error)
        return self._entry

    async def _open_socket(self) -> ControlAddress:
        name = f"session-{os.getpid()}"
        try:
            return await self._server.listen(runtime_dir(), name)
        except OSError:  # the home cannot be written; a server runs without it, too
            return await self._server.listen(Path(tempfile.mkdtemp(prefix="mtp-launcher-")), name)

    async def wait_until_unused(self) -> None:
        """Return when the owner wants the process to end, or nobody needs it any more."""
        while not self._quits:
            left_s = self._seconds_left()
            if left_s is not None and left_s <= 0:
                return
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()

    def _seconds_left(self) -> float | None:
        """Return the seconds until the process ends if nothing happens; None while it is in use."""
        if self._owner is not None or self._tasks:
            return None
        is_idle = self.session.is_idle or self.session.supervisor.status.state is ServerState.STOPPED
        if self.session.pool is not None and self.session.pool.is_main_unloaded:
            is_idle = False  # other models are served, and this one can come back
        if not is_idle and self.session.request_log.count_states().total():
            return None
        limit_s = (0.0 if self._had_owner else _FIRST_OWNER_S) if is_idle else self._idle_limit_s
        if limit_s is None:
            return 0.0 if self.session.supervisor.status.state is ServerState.FAILED else None
        return self._active_s + limit_s - asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Remove the entry, and stop the server."""
        if self._entry is not None:
            with suppress(OSError):
                if entry_file().read_text() == self._entry.to_json():
                    entry_file().unlink()
        await self.session.stop()
        await self._counting.close()
        await self._server.close()

    def _handle_event(self, event: ServerEvent) -> None:
        if self._owner is not None:
            self._owner.add_event(event)
        if not isinstance(event, LogAdded):
            self._changed.set()

    def _handle_request_record(self, record: RequestRecord) -> None:
        if record.key_name:  # else anybody could keep the server running
            self._note_activity()
        if self._owner is not None:
            self._owner.add_request(record)

    def _note_activity(self) -> None:
        self._active_s = asyncio.get_running_loop().time()
        self._changed.set()

    async def _handle_request(self, verb: str, fields: Mapping[str, Any]) -> AsyncGenerator[Any]:
        fields = restore_messages(fields)
        match verb:
            case "own":
                async with aclosing(self._serve_owner()) as messages:
                    async for each in messages:
                        yield each
            case "start" | "stop" | "share" | "fix":
                yield await self._perform(verb, fields)
            case "cancel":
                starts = tuple(self._starts)
                for task in starts:
                    task.cancel()
                if starts:
                    await asyncio.wait(starts)
                yield {}
            case "unload":
                yield await self._unload_model(fields["model"])
            case "foresee":
                outlook = await self.session.foresee_handover()
                yield asdict(outlook) if outlook else {}
            case "note":
                self._note_from_owner(fields)
                yield {}
            case "quit":
                await self.session.stop()
                if self._owner is not None:  # the owner gets the last status before the end
                    await self._owner.wait_until_sent()
                self._quits = True
                self._changed.set()
                yield {}
            case _:
                raise BadOption(message("The server process does not support {verb}.", verb=verb), verb=verb)

    async def _serve_owner(self) -> AsyncGenerator[Json]:
        if self._owner is not None:
            self._owner.end()
        owner = self._owner = OwnerStream(self.session)
        self._had_owner = True
        self._newest_request = 0
        try:
            await self.session.set_watched(False)  # the owner samples the machine and the engine itself
            async with aclosing(owner.send_messages()) as messages:
                async for each in messages:
                    yield each
        finally:
            if self._owner is owner:
                self._owner = None
                if not self.session.is_idle:
                    self.session.supervisor.note_owner_replies(None)
                self._note_activity()
                self._run_to_end(self.session.set_watched(True))

    async def _perform(self, verb: str, fields: Mapping[str, Any]) -> Json:
        """Carry out a request to its end, even if the owner leaves, and return its error, or None.

        The number tells the owner when it has got all events that came before the end.
        """
        if fields["number"] < self._newest_request:
            return {"failed": error_to_json(Superseded(message("A newer request replaced this one.")))}
        self._newest_request = fields["number"]
        task = self._run_to_end(self._make_work(verb, fields)())
        if verb != "stop":
            self._starts.add(task)
            task.add_done_callback(self._starts.discard)
        failed = None
        try:
            await asyncio.shield(task)
        except LauncherError as error:
            failed = error
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            failed = Superseded(message("A newer request replaced this one."))
        number = self._owner.mark() if self._owner is not None else 0
        return {"failed": add_message_data(error_to_json(failed)) if failed else None, "number": number}

    async def _unload_model(self, name: str) -> Json:
        """Unload one model, even if the owner leaves meanwhile, and return the error, or None."""
        failed = None
        try:
            await asyncio.shield(self._run_to_end(self._stop_model(name)))
        except LauncherError as error:
            failed = error
        return {"failed": add_message_data(error_to_json(failed)) if failed else None}

    async def _stop_model(self, name: str) -> None:
        await self.session.stop_model(name)

    def _make_work(self, verb: str, fields: Mapping[str, Any]) -> Callable[[], Coroutine[Any, Any, None]]:
        session, drain_s = self.session, float(fields["drain_s"])
        match verb:
            case "start":
                return partial(session.start, from_json(StartRequest, fields["start"]))
            case "share":
                encrypted = bool(fields["encrypted"])
                return partial(session.set_shared, bool(fields["shared"]), encrypted=encrypted, drain_s=drain_s)
            case "fix":
                return partial(session.apply_fix, action_from_json(fields["action"]), drain_s=drain_s)
            case _:
                return partial(session.stop, drain_s=drain_s)

    def _run_to_end(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._note_activity()
        if not task.cancelled():
            task.exception()  # retrieved, because otherwise asyncio logs that it never was

    def _note_from_owner(self, fields: Mapping[str, Any]) -> None:
        """Take over what the owner knows: how many requests are processed, its own replies, and health findings."""
        if not self.session.is_idle:
            if (processing := fields.get("processing")) is not None:
                self.session.supervisor.note_requests(int(processing))
            if "quiet_since" in fields:
                self.session.supervisor.note_owner_replies(fields["quiet_since"])
        if (findings := fields.get("findings")) is not None:
            self.session.publish_findings(findings)


async def host_session(idle_limit_s: float) -> None:
    """Host a session until nobody needs it. Prints the process's entry once it listens."""
    host = SessionHost(idle_limit_s)
    waiting = asyncio.ensure_future(host.wait_until_unused())
    if sys.platform != "win32":
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, waiting.cancel)
    entry = await host.listen()
    try:
        sys.stdout.write(entry.to_json() + "\n")
        sys.stdout.flush()
        # The window reads only this line and closes the pipe, so printing anything more would fail.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
        with suppress(asyncio.CancelledError):
            await waiting
    finally:
        await host.close()


def main(idle_limit_s: str) -> None:
    """Run the server process."""
    mark_running()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    with suppress(KeyboardInterrupt):  # the setup program of Windows asks for the end
        asyncio.run(host_session(float(idle_limit_s)))
