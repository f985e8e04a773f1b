"""One server under supervision: a state machine with one entry, `become`."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from launcher.base.errors import DraftsInert, EngineFailed, LauncherError, ServerNotFound, Superseded, Unreachable
from launcher.engine.client import ChatRequest, Delta, EngineClient, Timings
from launcher.engine.diagnosis import explain
from launcher.engine.endpoint import Endpoint
from launcher.engine.launch import Launch, ServeOptions, plan
from launcher.engine.logs import LogBook
from launcher.engine.process import EngineProcess, Stream, start
from launcher.engine.state import Event, Listener, LogAdded, State, Status

_FIRST_POLL_S, _LAST_POLL_S = 0.02, 0.25
_SILENCE_S = 600.0
"""A load that reports nothing for this long has hung. A cold 40 GB file on a slow disk reports all the while."""
_LEAVE_S = 1.0
_LOADING_LINE = "cmd_child_to_router:state:"
_SELF_TEST = ChatRequest(
    [{"role": "user", "content": "Hello."}], max_tokens=8, temperature=0.0, extra={"ignore_eos": True}
)
_T = TypeVar("_T")


class _PlanFailed(Exception):
    """Nothing was started, because the checks before it failed."""

    def __init__(self, reason: LauncherError) -> None:
        super().__init__(reason)
        self.reason = reason


class Supervisor:
    """Runs one server at one endpoint. Port and key stay the same however often it is restarted.

    All methods belong to one asyncio loop. `listener` is called there too, and must not block.
    """

    def __init__(self, endpoint: Endpoint, log: LogBook, listener: Listener | None = None) -> None:
        self.endpoint = endpoint
        self.log = log
        self.launch: Launch | None = None
        self._listener = listener
        self._status = Status()
        self._status_changed = asyncio.Event()
        self._options: ServeOptions | None = None
        self._process: EngineProcess | None = None
        self._client: EngineClient | None = None
        self._watching: asyncio.Task[None] | None = None
        self._change: asyncio.Task[None] | None = None
        self._turning = asyncio.Lock()
        self._abandoned = False
        self._streams: set[asyncio.Timeout] = set()
        self._streams_left = asyncio.Event()
        self._streams_left.set()
        self._others = 0
        self._lines = 0
        self._heard_s = 0.0

    @property
    def status(self) -> Status:
        """What the server is doing now."""
        return self._status

    @property
    def engine_pid(self) -> int | None:
        """The engine's pid while it runs."""
        return self._process.identity.pid if self._process else None

    @property
    def process(self) -> EngineProcess | None:
        """The engine's process while it runs."""
        return self._process

    @property
    def _hint(self) -> str:
        return f"See its log: {self.log.path}"

    @property
    def changing(self) -> bool:
        """Whether a call of `become` is under way."""
        return self._change is not None and not self._change.done()

    @property
    def client(self) -> EngineClient:
        """The engine's HTTP. Raises ServerNotFound unless it is ready."""
        if self._client is None or self._status.state not in (State.READY, State.BUSY):
            raise ServerNotFound("The server is not ready.", "Start it first.")
        return self._client

    async def become(self, options: ServeOptions | None) -> None:
        """Serve `options`, or stop with None; returns when it is so.

        A newer call takes the place of one that is under way, which then raises Superseded. Raises the
        LauncherError that says why serving failed: when the checks before the start failed, what ran before goes
        on running, else the server is in FAILED and nothing runs. Cancelling the call stops the server.
        """
        change = asyncio.ensure_future(self._turn(options, self._change))
        self._change = change
        try:
            await asyncio.shield(change)
        except asyncio.CancelledError:
            if change.cancelled():
                raise Superseded("A newer request to this server took the place of this one.") from None
            change.cancel()
            await asyncio.wait([change])
            raise

    async def wait_for(self, *states: State) -> Status:
        """Return the status as soon as its state is one of `states`."""
        while self._status.state not in states:
            await self.wait_for_change()
        return self._status

    async def wait_for_change(self) -> Status:
        """Return the next status."""
        await self._status_changed.wait()
        return self._status

    @asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        """Stream a reply: see EngineClient.chat. Stopping the server ends the stream with Unreachable."""
        client = self.client
        scope = asyncio.timeout(None)
        self._streams.add(scope)
        self._streams_left.clear()
        self._show_business()
        try:
            async with scope, client.chat(request) as deltas:
                yield deltas
        except TimeoutError:
            raise Unreachable("The server was stopped while it answered.") from None
        finally:
            self._streams.discard(scope)
            if not self._streams:
                self._streams_left.set()
            self._show_business()

    def note_requests(self, processing: int) -> None:
        """Take note of how many requests the engine works on, other clients' included."""
        self._others = max(0, processing - len(self._streams))
        self._show_business()

    async def _turn(self, options: ServeOptions | None, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            earlier.cancel()
        async with self._turning:  # what was cancelled puts everything away before anything new begins
            if options is not None and options == self._options and self._status.state in (State.READY, State.BUSY):
                return
            try:
                if options is None:
                    await self._end(State.STOPPING)
                    self._show(State.STOPPED)
                else:
                    await self._begin(options)
            except asyncio.CancelledError:
                if not self._abandoned:
                    await self._end(State.STOPPING)
                    self._show(State.STOPPED)
                raise
            except _PlanFailed as failed:
                if self._process is None:
                    self._show(State.FAILED, error=failed.reason)
                raise failed.reason from None
            except BaseException as error:
                await self._end(None)
                self._show(State.FAILED, error=error if isinstance(error, LauncherError) else None)
                raise

    async def _begin(self, options: ServeOptions) -> None:
        if self._process is None:
            self._show(State.PREPARING)
        try:
            launch = await plan(options, self.endpoint)
        except LauncherError as error:  # what runs goes on running
            raise _PlanFailed(error) from None
        await self._end(State.RESTARTING)
        self._lines = 0
        self._options, self.launch = options, launch
        self._show(State.LOADING)
        self._process = process = await start(launch.command, self._on_line)
        self._client = client = EngineClient(self.endpoint.url, self.endpoint.api_key)
        await self._unless_ended(process, self._until_healthy(client), "loading the model")
        self._show(State.WARMING_UP)
        await self._unless_ended(process, self._self_test(client, options), "answering its first request")
        self._others = 0
        self._show(State.READY)
        self._watching = asyncio.create_task(self._watch(process))

    async def _until_healthy(self, client: EngineClient) -> None:
        self._heard_s = time.monotonic()
        pause_s = _FIRST_POLL_S
        while not await client.healthy():
            if time.monotonic() - self._heard_s > _SILENCE_S:
                raise EngineFailed(
                    f"The engine said nothing for {_SILENCE_S:.0f} s while loading the model.", self._hint
                )
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LAST_POLL_S)

    async def _self_test(self, client: EngineClient, options: ServeOptions) -> None:
        """Answer one short request and see that drafts are made when they were asked for."""
        timings: Timings | None = None
        async with client.chat(_SELF_TEST) as deltas:
            async for delta in deltas:
                timings = delta.timings or timings
        if not options.draft:
            return
        speculative = await client.speculative()
        if not speculative or timings is None or not timings.draft_n:
            raise DraftsInert(
                "The engine runs, but its MTP drafts nothing.",
                "Start it with --draft 0, or use another build or another file of the model.",
                speculative=speculative,
            )

    async def _unless_ended(self, process: EngineProcess, work: Awaitable[_T], while_doing: str) -> _T:
        """Await `work`, but raise the engine's own reason when it ends first."""
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, process.exited}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            failed = task.done() and isinstance(task.exception(), Unreachable)
            if failed:  # the engine may have broken off because it is ending
                await asyncio.wait([process.exited], timeout=2.0)
            if process.exited.done() and (failed or not task.done()):
                raise explain(
                    process.exited.result(), self.log.last(self._lines), while_doing=while_doing, hint=self._hint
                )
            return await task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _watch(self, process: EngineProcess) -> None:
        ended = await asyncio.shield(process.exited)
        error = explain(ended, self.log.last(self._lines), while_doing="serving", hint=self._hint)
        self._process = None
        self._watching = None
        self._show(State.FAILED, error=error)
        await self._close_client()

    async def _end(self, meanwhile: State | None) -> None:
        """End the engine, showing `meanwhile`, if there is one. Cancelling it does not leave it half done."""
        ending = asyncio.ensure_future(self._end_process(meanwhile))
        cancelled = False
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                if ending.cancelled():  # the loop is torn down while we wait: the keeper ends the engine
                    self._abandoned = True
                    raise
                cancelled = True
        ending.result()
        if cancelled:
            raise asyncio.CancelledError

    async def _end_process(self, meanwhile: State | None) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self._process is not None and meanwhile is not None:
            self._show(meanwhile)
        for scope in self._streams:
            with suppress(RuntimeError):  # it is being left already
                scope.reschedule(0)
        await self._close_client()
        if self._process is not None:
            await self._process.stop()
            self._process = None

    async def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._streams_left.wait(), _LEAVE_S)
            await client.close()

    def _on_line(self, stream: Stream, text: str) -> None:
        self._heard_s = time.monotonic()
        if stream == "stdout" and text.startswith(_LOADING_LINE):
            percent = loading_percent(text.removeprefix(_LOADING_LINE))
            if percent is not None and self._status.state is State.LOADING:
                self._show(State.LOADING, percent=percent)
            return
        self._lines += 1
        self.log.add(text)
        self._tell(LogAdded(text))

    def _show_business(self) -> None:
        if self._status.state in (State.READY, State.BUSY):
            busy = bool(self._streams) or self._others > 0
            self._show(State.BUSY if busy else State.READY)

    def _show(self, state: State, *, percent: float | None = None, error: LauncherError | None = None) -> None:
        status = Status(state, percent, error)
        if status == self._status:
            return
        self._status = status
        changed, self._status_changed = self._status_changed, asyncio.Event()
        changed.set()
        self._tell(status)

    def _tell(self, event: Event) -> None:
        if self._listener is not None:
            self._listener(event)


def loading_percent(payload: str) -> float | None:
    """Return how far an engine has loaded, 0 to 100, from its parent protocol's JSON; None if it is not said."""
    try:
        report = json.loads(payload)
        if report["state"] != "loading":
            return None
        loading = report["payload"]
        stages = loading["stages"]
        done = stages.index(loading["current"]) + float(loading["value"])
        return float(100.0 * done / len(stages))
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return None
