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
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from launcher import __version__
from launcher.app.serving import verbs
from launcher.app.serving.owner_stream import OwnerStream
from launcher.app.serving.server_process import ProcessEntry, entry_file
from launcher.app.serving.session import ServerSession
from launcher.app.serving.use_counting import UseCounting
from launcher.base.codec import encode_json
from launcher.base.files import make_private_folder, write_atomically
from launcher.base.identity import ProcessId
from launcher.base.paths import runtime_dir
from launcher.base.running_mark import mark_running
from launcher.engine.server.state import LogAdded, ServerEvent, ServerState
from launcher.gateway.request_log import RequestRecord
from launcher.monitor.monitor import UNSEEN

_FIRST_OWNER_S = 60.0
"""Seconds that a new process waits for its owner."""
_log = logging.getLogger(__name__)


class SessionHost:
    """The session of the server process.

    Its control socket also answers the owner's verbs. The host ends by itself after `idle_limit_s` seconds without an
    owner and without a request. If `idle_limit_s` is None, it ends by itself only when its server has failed and it has
    no owner. Requests can name other models, as they can with `serve`.
    """

    def __init__(self, idle_limit_s: float | None) -> None:
        self.session = ServerSession(on_event=self._handle_event, takes_models=True)
        self.session.monitor.periods = UNSEEN
        self.session.request_log.add_listener(self._handle_request_record)
        self._counting = UseCounting(self.session)
        self._idle_limit_s = idle_limit_s
        control = self.session.control
        control.answer_owner = self._answer_owner
        control.mark = self._mark
        control.on_work = self._note_activity
        self._entry: ProcessEntry | None = None
        self._owner: OwnerStream | None = None
        self._had_owner = False
        self._quits = False
        self._changed = asyncio.Event()
        self._active_s = asyncio.get_running_loop().time()

    async def listen(self) -> ProcessEntry:
        """Begin to listen, and write the entry by which windows find this process. Raises OSError."""
        address = await self.session.control.listen(f"session-{os.getpid()}")
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
            write_atomically(entry_file(), encode_json(self._entry))
        except OSError as error:
            _log.warning("%s cannot be written, so no other window finds this server: %s", entry_file(), error)
        return self._entry

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
        if self._owner is not None or self.session.control.is_working:
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
                if entry_file().read_bytes() == encode_json(self._entry):
                    entry_file().unlink()
        await self.session.stop()
        await self._counting.close()
        await self.session.control.close()

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

    def _mark(self) -> int:
        return self._owner.mark() if self._owner is not None else 0

    def _note_activity(self) -> None:
        self._active_s = asyncio.get_running_loop().time()
        self._changed.set()

    async def _answer_owner(self, verb: object) -> AsyncGenerator[Any]:
        """Answer a verb of the owner. See verbs.py."""
        match verb:
            case verbs.Own():
                async with aclosing(self._serve_owner()) as messages:
                    async for each in messages:
                        yield each
            case verbs.NoteRequests(processing):
                if not self.session.is_idle:
                    self.session.supervisor.note_requests(processing)
            case verbs.NoteReplies(quiet_since):
                if not self.session.is_idle:
                    self.session.supervisor.note_owner_replies(quiet_since)
            case verbs.NoteFindings(findings):
                self.session.publish_findings(findings)
            case verbs.Quit():
                await self.session.stop()
                if self._owner is not None:  # the owner gets the last status before the end
                    await self._owner.wait_until_sent()
                self._quits = True
                self._changed.set()

    async def _serve_owner(self) -> AsyncGenerator[dict[str, Any]]:
        if self._owner is not None:
            self._owner.end()
        owner = self._owner = OwnerStream(self.session)
        self._had_owner = True
        self.session.control.begin_ownership()
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
                self.session.control.run_to_end(self.session.set_watched(True))


async def host_session(idle_limit_s: float) -> None:
    """Host a session until nobody needs it. Prints the process's entry once it listens."""
    host = SessionHost(idle_limit_s)
    waiting = asyncio.ensure_future(host.wait_until_unused())
    if sys.platform != "win32":
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, waiting.cancel)
    entry = await host.listen()
    try:
        sys.stdout.write(encode_json(entry).decode() + "\n")
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
