"""A session on a running server that clients go on using: measurements wait while a client asks.

See session_control.py for the other end.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from launcher.app.measuring.session_bench import superseded_error
from launcher.app.serving import verbs
from launcher.app.serving.attach import AttachedServer, ServerFeatures
from launcher.app.serving.running_servers import find_control_address
from launcher.app.serving.serving_session import MeasuredSession
from launcher.base.codec import from_json
from launcher.base.control import ControlAddress, ControlLost
from launcher.base.errors import BadOption, GaveWay, LauncherError, Superseded
from launcher.base.messages import FaceName, mark, message, restore_messages
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.address import parse_address
from launcher.engine.server.client import ChatRequest, EngineClient
from launcher.engine.server.launch import api_model_name
from launcher.engine.server.logs import read_last_lines
from launcher.engine.server.registry import ServerEntry
from launcher.engine.server.start_request import StartRequest
from launcher.monitor.monitor import Monitor
from launcher.monitor.reply import OnDelta, Reply


@dataclass(frozen=True, slots=True)
class IdleRules:
    """When a server counts as idle, and how often a wait is reported; in seconds."""

    quiet_s: float = 2.0
    """Time without a client's request before a measurement begins or goes on."""
    report_s: float = 10.0
    """Time of a wait until its first report; each further one comes after twice the time."""


_LOG_LINES = 200
_T = TypeVar("_T")
OnWait = Callable[[float, bool], object]
"""Gets the seconds that a session has waited for clients so far, and whether this wait is over."""


class BorrowedSession(MeasuredSession):
    """A session on a running server that clients go on using.

    Starts wait until no client has sent a request for a while; clients' streams continue across them. A request ends
    with GaveWay as soon as a client sends one. Stopping does nothing: the server goes on. Belongs to one asyncio loop.
    `lent` is the server's answer to the verb `lend`.
    """

    def __init__(self, address: ControlAddress, lent: Mapping[str, Any], rules: IdleRules) -> None:
        self.monitor = Monitor()
        self.options: ServeOptions = from_json(ServeOptions, lent["options"])
        """The settings that the server had before."""
        self.model_name: str = lent["model_name"]
        self._log_path = Path(lent["log"])
        self._change_count = 0
        self.on_wait: OnWait = lambda _waited_s, _is_over: None
        self.gave_way = False
        """Whether a request gave way to a client since this was last reset."""
        self._server = _BorrowedServer(lent, api_model_name(self.options), self.wait_until_idle)
        self._address, self._rules = address, rules
        self._clients = 0
        self._quiet_since_s = time.monotonic()
        self._changed = asyncio.Event()
        self._is_lost = False
        self._waited_s = 0.0
        self._wait_began_s: float | None = None

    @property
    def supervisor(self) -> "_BorrowedServer":
        """The server."""
        return self._server

    @property
    def change_count(self) -> int:
        """See MeasuredSession."""
        return self._change_count

    @property
    def has_uncounted_changes(self) -> bool:
        """Whether somebody else has changed or stopped the server, which ends the loan."""
        return self._is_lost

    @property
    def waited_s(self) -> float:
        """See MeasuredSession. The seconds of the present wait are included."""
        present_s = 0.0 if self._wait_began_s is None else time.monotonic() - self._wait_began_s
        return self._waited_s + present_s

    def check_model(self, options: ServeOptions) -> None:
        """Raise BadOption unless the server has the model of `options`."""
        if options.model.absolute() != self.options.model:
            raise BadOption(
                message(
                    "The running server serves {model}, not {other}.", model=self.model_name, other=options.model.name
                ),
                message(
                    "Start that model first, or leave out {option}.",
                    option=FaceName("--when-idle", mark("the wait for clients")),
                ),
            )

    def read_log(self) -> list[str]:
        """Return the last lines of the engine's log. Blocks."""
        return read_last_lines(self._log_path, _LOG_LINES)

    async def measure(self, run: Callable[[], Awaitable[_T]]) -> _T:
        """See MeasuredSession. A reply that gave way to a client does not count: its time is time of waiting."""
        while True:
            await self.wait_until_idle()
            began_s, self.gave_way = time.monotonic(), False
            found = await run()
            if not self.gave_way:
                return found
            self._waited_s += time.monotonic() - began_s
            self.note_client()

    async def start(self, request: StartRequest) -> None:
        """Restart the server with other settings, once it is idle. Raises what a start raises."""
        self._change_count += 1
        await self.wait_until_idle()
        await self._restart(request.options)

    async def _restart(self, options: ServeOptions) -> None:
        try:
            answer = await verbs.ask(self._address, verbs.RestartLent(options.with_absolute_paths()))
        except (ControlLost, Superseded) as error:
            raise superseded_error() from error
        self._server.note_engine(answer["engine_pid"])

    async def stop(self) -> None:
        """See MeasuredSession. The server goes on for its clients."""
        self._change_count += 1

    async def send_request(
        self, request: ChatRequest, on_delta: OnDelta | None = None, *, measured: bool = False
    ) -> Reply:
        """Send a request and return the whole reply. Raises GaveWay when a client sends one meanwhile."""
        try:
            return await super().send_request(request, on_delta, measured=measured)
        except GaveWay:
            self.gave_way = True
            raise

    async def wait_until_idle(self) -> None:
        """Wait until no client has sent a request for a while. Raises Superseded when the loan has ended."""
        self._wait_began_s = began_s = time.monotonic()
        report_s = self._rules.report_s
        try:
            while True:
                if self._is_lost:
                    raise superseded_error()
                now_s = time.monotonic()
                left_s = None if self._clients else self._quiet_since_s + self._rules.quiet_s - now_s
                if left_s is not None and left_s <= 0:
                    if report_s > self._rules.report_s:
                        self.on_wait(self.waited_s, True)
                    return
                if now_s - began_s >= report_s:
                    report_s *= 2
                    self.on_wait(self.waited_s, False)
                until_report_s = began_s + report_s - now_s
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(until_report_s if left_s is None else min(left_s, until_report_s)):
                        await self._changed.wait()
        finally:
            self._waited_s, self._wait_began_s = self.waited_s, None

    def note_client(self) -> None:
        """Record that a client uses the server now; `follow_clients` may get that message later."""
        self._quiet_since_s = time.monotonic()

    async def follow_clients(self, messages: AsyncIterator[Any]) -> None:
        """Read the number of clients' requests from the loan's messages until they end."""
        with suppress(LauncherError):
            async for each in messages:
                self._clients = each["clients"]
                self.note_client()
                self._changed.set()
        self._is_lost = True
        self._changed.set()

    async def keep_settings(self, options: ServeOptions) -> None:
        """Restart the server with settings that it keeps, and end the loan. Raises what a start raises."""
        await self._restart(options)
        await self.give_back(keep=True)

    async def give_back(self, *, keep: bool = False) -> None:
        """End the loan. The server gets its previous settings again, unless `keep`."""
        with suppress(LauncherError):
            await verbs.ask(self._address, verbs.GiveBack(keep))

    async def close(self) -> None:
        """Close all connections."""
        await self.monitor.end()
        await self._server.close()


class _BorrowedServer(AttachedServer):
    """The gateway of a lent server, with the key of the measurement."""

    def __init__(self, lent: Mapping[str, Any], model: str, wait: Callable[[], Any]) -> None:
        url, api_key = str(lent["url"]), str(lent["api_key"])
        client = _PatientClient(url, api_key, wait)
        super().__init__(parse_address(url), api_key, engine_pid=lent["engine_pid"], client=client)
        self.features = ServerFeatures(url, (model,), has_counters=True)
        self.note_requests(0)

    def note_engine(self, pid: int | None) -> None:
        """Record the process id of a new engine."""
        self._engine_pid = pid


class _PatientClient(EngineClient):
    """A client whose requests for whole replies wait until the server is idle, and are repeated if they gave way."""

    def __init__(self, url: str, api_key: str, wait: Callable[[], Any]) -> None:
        super().__init__(url, api_key)
        self._wait_until_idle = wait

    async def request_json(self, path: str, body: Mapping[str, Any] | None = None, *, unlimited: bool = False) -> Any:  # noqa: ANN401 -- see EngineClient
        """See EngineClient."""
        while unlimited:
            await self._wait_until_idle()
            with suppress(GaveWay):
                return await super().request_json(path, body, unlimited=True)
        return await super().request_json(path, body)


@asynccontextmanager
async def borrow_server(entry: ServerEntry, rules: IdleRules = IdleRules()) -> AsyncGenerator[BorrowedSession]:
    """Borrow a running server for the block; then restore its settings, unless somebody else has changed them.

    Raises ActionImpossible or BadOption if it cannot be lent, and Unreachable if its launcher does not answer.
    """
    address = await find_control_address(entry)
    async with aclosing(verbs.send_verb(address, verbs.Lend())) as messages:
        session = BorrowedSession(address, restore_messages(await anext(messages)), rules)
        session.monitor.watch_server(session.supervisor)
        following = asyncio.create_task(session.follow_clients(messages))
        try:
            yield session
        finally:
            ending = asyncio.ensure_future(_end_loan(session, following))
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                await asyncio.wait([ending])
                raise


async def _end_loan(session: BorrowedSession, following: "asyncio.Task[None]") -> None:
    await session.give_back()
    following.cancel()
    await asyncio.wait([following])
    await session.close()
