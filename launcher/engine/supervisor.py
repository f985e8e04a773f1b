"""One server under supervision: a state machine with one entry, `become`."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from launcher.base.errors import LauncherError, ServerNotFound, SettingsFailed, Superseded, Unreachable
from launcher.base.text import one_line
from launcher.base.words import part
from launcher.engine.broken import explain_break
from launcher.engine.client import ChatRequest, Delta, EngineClient
from launcher.engine.diagnosis import explain
from launcher.engine.diagnosis_actions import advise
from launcher.engine.diagnosis_log import STARTED
from launcher.engine.drain import drain
from launcher.engine.endpoint import Endpoint
from launcher.engine.guard import Clock, Guard, Limits, SystemClock
from launcher.engine.in_use_files import FilesInUse
from launcher.engine.launch import Launch, ServeOptions, plan
from launcher.engine.listener import check_port
from launcher.engine.logs import LogBook
from launcher.engine.process import EngineProcess, Exit, Stream, start
from launcher.engine.restarts import Crashes, RestartPolicy
from launcher.engine.startup import (
    LOADING_LINE,
    answer_first_request,
    loading_percent,
    unless_ended,
    until_healthy,
)
from launcher.engine.state import SERVING, EngineStarted, Event, Listener, LogAdded, Notice, State, Status
from launcher.engine.streams import Streams

_LEAVE_S = 1.0
_HUNG_PATIENCE_S = (0.5, 0.5)


@dataclass
class _PlanFailed(Exception):
    """Nothing was started, because the checks before it failed."""

    reason: LauncherError


class Supervisor:
    """Runs one server at one endpoint. Port and key stay the same however often it is restarted.

    All methods belong to one asyncio loop. `listener` is called there too, and must not block.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        log: LogBook,
        listener: Listener | None = None,
        *,
        restarts: RestartPolicy | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.log = log
        self.launch: Launch | None = None
        self._listener = listener
        self._clock = clock or SystemClock()
        self._limits = limits or Limits()
        self._crashes = Crashes(restarts or RestartPolicy(), self._clock.monotonic)
        self._status = Status()
        self._status_changed = asyncio.Event()
        self._options: ServeOptions | None = None
        self._process: EngineProcess | None = None
        self._client: EngineClient | None = None
        self._watching: asyncio.Task[None] | None = None
        self._change: asyncio.Task[None] | None = None
        self._turning = asyncio.Lock()
        self._abandoned = False
        self._streams = Streams(self._clock.monotonic, self._show_business)
        self._others = 0
        self._lines = 0
        self._heard_s = 0.0

    @property
    def status(self) -> Status:
        """What the server is doing now."""
        return self._status

    @property
    def options(self) -> ServeOptions | None:
        """What is served, as it was asked for; None before the first start."""
        return self._options

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

    def _said(self) -> list[str]:
        return self.log.last(self._lines)

    @property
    def changing(self) -> bool:
        """Whether a call of `become` is under way."""
        return self._change is not None and not self._change.done()

    @property
    def client(self) -> EngineClient:
        """The engine's HTTP. Raises ServerNotFound unless it is ready."""
        if self._status.state is State.DRAINING:
            raise ServerNotFound("The server ends what it has begun and takes nothing new.", "Try again in a moment.")
        if self._client is None or self._status.state not in SERVING:
            raise ServerNotFound("The server is not ready.", "Start it first.")
        return self._client

    async def become(self, options: ServeOptions | None, *, again: bool = False, drain_s: float = 0.0) -> None:
        """Serve `options`, or stop with None; returns when it is so.

        What is served as asked already stays as it is, unless `again` says to restart it. What runs may end the
        requests it has for up to `drain_s` seconds.

        A newer call takes the place of one that is under way, which then raises Superseded. Raises the
        LauncherError that says why serving failed: when the checks before the start failed, what ran before goes
        on running; SettingsFailed when what ran before was started again, else the server is in FAILED and nothing
        runs. Cancelling the call stops the server.
        """
        self._crashes.forget()
        change = asyncio.ensure_future(self._turn(options, self._change, again=again, drain_s=drain_s))
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
        try:
            async with self._streams.read(self.client, request) as deltas:
                yield deltas
        except Unreachable as error:
            raise await explain_break(self, error) from error

    def note_requests(self, processing: int) -> None:
        """Take note of how many requests the engine works on, other clients' included."""
        self._others = max(0, processing - len(self._streams))
        self._show_business()

    async def _turn(
        self,
        options: ServeOptions | None,
        earlier: asyncio.Task[None] | None,
        *,
        again: bool = False,
        drain_s: float = 0.0,
        pause_s: float | None = None,
    ) -> None:
        if earlier is not None:
            earlier.cancel()
        async with self._turning:  # what was cancelled puts everything away before anything new begins
            if options is not None and options == self._options and self._status.state in SERVING and not again:
                return
            try:
                if options is not None and pause_s is not None:
                    await self._begin_again(options, pause_s)
                elif options is None:
                    await self._drain(drain_s)
                    await self._end(State.STOPPING)
                    self._show(State.STOPPED)
                else:
                    await self._begin_or_go_back(options, drain_s)
            except asyncio.CancelledError:
                if not self._abandoned:
                    await self._end(State.STOPPING)
                    self._show(State.STOPPED)
                raise
            except _PlanFailed as failed:
                if self._process is None:
                    self._show(State.FAILED, error=failed.reason)
                raise failed.reason from None
            except SettingsFailed:
                raise
            except BaseException as error:
                await self._end(None)
                self._show(State.FAILED, error=error if isinstance(error, LauncherError) else None)
                raise

    async def _begin_or_go_back(self, options: ServeOptions, drain_s: float) -> None:
        """Serve `options`; when they fail, serve what was served before, and raise SettingsFailed."""
        before = self._options if self._status.state in SERVING else None
        try:
            await self._begin(options, drain_s)
        except LauncherError as reason:
            if before is None or before == options:
                raise
            await self._end(None)
            self._show(State.RESTARTING, error=reason)
            try:
                await self._begin(before, 0.0)
            except (LauncherError, _PlanFailed):
                raise reason from None
            raise SettingsFailed(reason) from reason

    async def _begin_again(self, options: ServeOptions, pause_s: float) -> None:
        """Serve `options` after a crash; that it fails counts as another crash, where the cause may pass."""
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._begin(options, 0.0)
            except (LauncherError, _PlanFailed) as failed:
                error = failed.reason if isinstance(failed, _PlanFailed) else failed
            else:
                return
            await self._end(None)
            verdict = self._crashes.judge(error)
            if isinstance(verdict, LauncherError):
                raise verdict
            self._tell_crash(error, verdict)
            pause_s = verdict

    async def _begin(self, options: ServeOptions, drain_s: float) -> None:
        if self._process is None and self._status.state is not State.RESTARTING:
            self._show(State.PREPARING)
        try:
            launch = await plan(options, self.endpoint)
        except LauncherError as error:  # what runs goes on running
            advise(error, options)
            raise _PlanFailed(error) from None
        await self._drain(drain_s)
        await self._end(State.RESTARTING)
        self._lines = 0
        self._options, self.launch = options, launch
        self._show(State.LOADING)
        try:
            await self._run(launch)
        except LauncherError as error:
            await self._advise(error)
            raise

    async def _run(self, launch: Launch) -> None:
        """Start an engine, see that it answers, and have it watched."""
        files = await asyncio.to_thread(FilesInUse.of, launch)
        self.log.add(f"{STARTED} {one_line(f'{launch.build.name} {launch.build.version}', 200)}")
        self._process = process = await start(launch.command, self._on_line)
        self._tell(EngineStarted(*process.identity))
        self._client = client = EngineClient(self.endpoint.url, self.endpoint.api_key)
        self._heard_s = time.monotonic()
        loaded = until_healthy(client, lambda: self._heard_s, self._limits.loading_s, self._hint)
        await unless_ended(process, loaded, self._explained(part("loading the model")))
        await asyncio.to_thread(check_port, process.identity.pid, self.endpoint.port)
        self._show(State.WARMING_UP)
        answered = answer_first_request(client, launch.options, self._limits.first_reply_s, self._hint, self._said)
        await unless_ended(process, answered, self._explained(part("answering its first request")))
        self._others = 0
        self._crashes.ready()
        self._show(State.READY)
        guard = Guard(
            process.identity.pid,
            client,
            files,
            tell=self._tell,
            quiet_since=lambda: self._streams.quiet_since,
            log_problem=lambda: self.log.problem,
            clock=self._clock,
            limits=self._limits,
        )
        self._watching = asyncio.create_task(self._watch(process, guard, files))

    async def _advise(self, error: LauncherError) -> None:
        """Let an error carry what can be done about it; the memory formula may have to be asked many times."""
        if self.launch is not None:
            await asyncio.to_thread(advise, error, self.launch.options, self.launch, self._said())

    async def _drain(self, limit_s: float) -> None:
        """Let the requests that run come to their end, for up to `limit_s` seconds, and take no new ones of ours."""
        if limit_s and self._client is not None and self._status.state in SERVING:
            self._show(State.DRAINING)
            await drain(self._client, self._streams.left, limit_s)

    def _explained(self, while_doing: str) -> Callable[[Exit], LauncherError]:
        """Return what turns the engine's end into its reason."""
        return lambda ended: explain(ended, self._said(), while_doing=while_doing, hint=self._hint)

    async def _watch(self, process: EngineProcess, guard: Guard, files: FilesInUse) -> None:
        """Wait for the end of an engine that should not end, or has to be ended, and begin again."""
        guarding = asyncio.create_task(guard.watch())
        either: set[asyncio.Future[Any]] = {process.exited, guarding}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            guarding.cancel()
        if process.exited.done():
            error = files.cause() or self._explained("serving")(process.exited.result())
        else:
            error = guarding.result()
            await process.stop(_HUNG_PATIENCE_S)
        await self._advise(error)
        self._process = None
        self._watching = None
        verdict = self._crashes.judge(error)
        if isinstance(verdict, LauncherError) or self.changing:
            self._show(State.FAILED, error=verdict if isinstance(verdict, LauncherError) else error)
        else:
            self._tell_crash(error, verdict)
            self._change = asyncio.create_task(self._turn(self._options, None, pause_s=verdict))
            self._change.add_done_callback(lambda change: change.cancelled() or change.exception())  # the state tells
        await self._close_client()

    def _tell_crash(self, error: LauncherError, pause_s: float) -> None:
        self._show(State.RESTARTING, error=error)
        turn = f"{self._crashes.in_a_row} of {self._crashes.allowed}"
        self._tell(Notice("crashed", f"{error.title} It is started again in {pause_s:g} s ({turn})."))

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
        self._streams.cut()
        await self._close_client()
        if self._process is not None:
            await self._process.stop()
            self._process = None

    async def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._streams.left.wait(), _LEAVE_S)
            await client.close()

    def _on_line(self, stream: Stream, text: str) -> None:
        self._heard_s = time.monotonic()
        if stream == "stdout" and text.startswith(LOADING_LINE):
            percent = loading_percent(text.removeprefix(LOADING_LINE))
            if percent is not None and self._status.state is State.LOADING:
                self._show(State.LOADING, percent=percent)
            return
        self._lines += 1
        self.log.add(text)
        self._tell(LogAdded(text))

    def _show_business(self) -> None:
        if self._status.state in SERVING:
            self._show(State.BUSY if self._streams or self._others else State.READY)

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
