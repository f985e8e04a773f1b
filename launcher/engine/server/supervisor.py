"""Supervisor of one server: starts, watches, restarts and stops its engine. Its main entry is `Supervisor.become`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from launcher.base.errors import (
    BadOption,
    CpuUnsupported,
    CrashLoop,
    DraftsInert,
    EngineFailed,
    EngineMissing,
    EngineUnsuitable,
    LauncherError,
    LibraryMissing,
    ModelBroken,
    ModelHasNoHead,
    ModelMissing,
    Refused,
    SettingsFailed,
    Superseded,
    Unreachable,
)
from launcher.base.messages import as_message, message
from launcher.base.text import one_line
from launcher.engine.diagnosis.explain import explain_exit, explain_refusal
from launcher.engine.diagnosis.fixes import attach_fixes
from launcher.engine.diagnosis.log_reading import STARTED
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.chat_server import ChatServer
from launcher.engine.server.client import ChatRequest, EngineClient, Timings
from launcher.engine.server.endpoint import Endpoint, make_private_endpoint
from launcher.engine.server.guard import Clock, Guard, GuardLimits, SystemClock
from launcher.engine.server.in_use import FilesInUse
from launcher.engine.server.launch import Launch, prepare_launch
from launcher.engine.server.listener import check_port_owner
from launcher.engine.server.logs import LogBook
from launcher.engine.server.own_memory import read_replaced_memory
from launcher.engine.server.process import (
    EngineProcess,
    PreparedProcess,
    ProcessExit,
    Stream,
    prepare_process,
    start_prepared,
)
from launcher.engine.server.state import (
    SERVING,
    EngineStarted,
    FailedReplies,
    Listener,
    LogAdded,
    Notice,
    OpenReply,
    ReplyProgress,
    ServerEvent,
    ServerState,
    ServerStatus,
)
from launcher.models.server_settings import name_setting

# Draining: open requests may finish before a stop or restart.

_POLL_SLOTS_S = 1.5
"""Seconds between two requests for /slots: polled more often than once a second, the engine does not notice clients
that disconnected."""


async def drain_requests(client: EngineClient, own_streams_ended: asyncio.Event, limit_s: float) -> None:
    """Wait until our own streams have ended and no slot is processing, for at most `limit_s` seconds.

    llama-server has no request that makes it refuse new work, so this also waits for requests that other clients send
    meanwhile.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await own_streams_ended.wait()
            while await _is_working(client):  # noqa: ASYNC110 -- the engine has no event to wait for
                await asyncio.sleep(_POLL_SLOTS_S)


async def _is_working(client: EngineClient) -> bool:
    try:
        return await client.count_working_slots() > 0
    except LauncherError:
        return False  # an engine that does not answer will not finish its requests


# Restarts after crashes.

_RECURRING_ERRORS = (
    BadOption,
    CpuUnsupported,
    DraftsInert,
    EngineMissing,
    EngineUnsuitable,
    LibraryMissing,
    ModelBroken,
    ModelHasNoHead,
    ModelMissing,
)
"""Errors that a restart would meet again, so that none is tried."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Rules for restarts after consecutive crashes.

    `pauses_s` are the pauses in seconds before each restart; after one more crash the server has failed. A restart that
    fails counts as a crash, because a lack of memory or a busy port may be temporary; errors that would recur
    (`_RECURRING_ERRORS`) end the restarts at once. If the engine served for `steady_s` seconds before a crash, that
    crash counts as the first one.
    """

    pauses_s: tuple[float, ...] = (0.5, 2.0, 8.0)
    steady_s: float = 300.0


class CrashCounter:
    """Counts consecutive crashes and decides on restarts. `clock` returns monotonic seconds."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._first_crash_s = clock()
        self._ready_s: float | None = None
        self.crashes = 0

    @property
    def most_restarts(self) -> int:
        """Number of consecutive crashes that are followed by a restart."""
        return len(self._policy.pauses_s)

    def reset(self) -> None:
        """Reset the count, because the user has requested a start."""
        self.crashes = 0

    def record_ready(self) -> None:
        """Record that the engine has become ready."""
        self._ready_s = self._clock()

    def judge_crash(self, error: LauncherError, *, has_served: bool = True) -> float | LauncherError:
        """Count a crash; return the pause before the restart in seconds, or the error with which the server fails.

        If the engine has not `has_served` since it was ready, its crash does not count as the first one.
        """
        now_s = self._clock()
        if has_served and self._ready_s is not None and now_s - self._ready_s >= self._policy.steady_s:
            self.crashes = 0
        self._ready_s = None  # a restart that fails before it is ready has not served at all
        if not self.crashes:
            self._first_crash_s = now_s
        self.crashes += 1
        if not self._policy.pauses_s or isinstance(error, _RECURRING_ERRORS):
            return error
        if self.crashes <= self.most_restarts:
            return self._policy.pauses_s[self.crashes - 1]
        return CrashLoop(self.crashes, now_s - self._first_crash_s, error)


# Readiness checks from start to first reply.

_FIRST_POLL_S, _LAST_POLL_S = 0.02, 0.25
_POLL_SHARE = 0.05
"""Pause between two polls as a share of the time so far, so that a pause adds little to a load, short or long."""
LOADING_LINE = "cmd_child_to_router:state:"
"""Prefix of the progress lines that an engine prints as a child of llama.cpp's router."""
_FIRST_TEXT = "Hello."
_FIRST_REQUEST = ChatRequest(
    [{"role": "user", "content": _FIRST_TEXT}], max_tokens=8, temperature=0.0, extra={"ignore_eos": True}
)
_T = TypeVar("_T")


async def wait_until_healthy(
    client: EngineClient,
    last_output_s: Callable[[], float],
    limit_s: float,
    hint: str,
    check_owner: Callable[[], None],
) -> None:
    """Wait until /health reports that the model is loaded.

    `last_output_s` returns the monotonic time of the engine's last output line. `check_owner` is called once, in a
    thread, as soon as the engine's port answers: engines do so while they load, so the check delays nothing. Raises
    EngineFailed if the engine printed nothing for `limit_s` seconds, and what `check_owner` raises.
    """
    began_s, is_checked = time.monotonic(), False
    while (status := await client.read_health()) != 200 or not is_checked:
        if status is not None and not is_checked:
            await asyncio.to_thread(check_owner)
            is_checked = True
            continue
        if time.monotonic() - last_output_s() > limit_s:
            raise EngineFailed(
                message("The engine printed no output for {limit_s:.0f} s while loading the model.", limit_s=limit_s),
                hint,
            )
        elapsed_s = time.monotonic() - began_s
        await asyncio.sleep(min(max(_FIRST_POLL_S, _POLL_SHARE * elapsed_s), _LAST_POLL_S))


async def check_first_reply(
    client: EngineClient, options: ServeOptions, limit_s: float, hint: str, log_lines: Callable[[], list[str]]
) -> None:
    """Send a request for 8 tokens and check that tokens are drafted if `options` asks for drafts.

    An embedding model gets a text to turn into a vector instead, a reranker one to rank. Raises DraftsInert if no
    tokens are drafted, EngineFailed if the reply takes longer than `limit_s` seconds. If the request is refused, raises
    the cause that the engine's log names (`log_lines` returns it), or else Refused.
    """
    timings: Timings | None = None
    try:
        async with asyncio.timeout(limit_s):
            if options.reranking:
                await client.rank_texts(_FIRST_TEXT, [_FIRST_TEXT])
                return
            if options.embeddings:
                await client.embed_text(_FIRST_TEXT)
                return
            async with client.chat(_FIRST_REQUEST) as deltas:
                async for delta in deltas:
                    timings = delta.timings or timings
    except Refused as refused:
        raise explain_refusal(refused, log_lines()) from None
    except TimeoutError:
        title = message(
            "The engine is ready, but its first reply of 8 tokens took longer than {limit_s:.0f} s.", limit_s=limit_s
        )
        if options.reranking:
            title = message(
                "The engine is ready, but its first ranking took longer than {limit_s:.0f} s.", limit_s=limit_s
            )
        elif options.embeddings:
            title = message(
                "The engine is ready, but its first vector took longer than {limit_s:.0f} s.", limit_s=limit_s
            )
        raise EngineFailed(title, hint) from None
    if not options.drafter.drafts:
        return
    speculative = await client.drafts_tokens()
    finds_none = options.drafter.source == "text"  # a short reply repeats nothing
    if not speculative or timings is None or not (timings.draft_n or finds_none):
        raise DraftsInert(
            message("The engine runs, but {drafter} drafts no tokens.", drafter=as_message(options.drafter.title)),
            message(
                "Start it with {mtp_off}, or use another build or another file of the model.",
                mtp_off=name_setting("draft", 0),
            ),
            speculative=speculative,
        )


async def await_unless_ended(
    process: EngineProcess, work: Awaitable[_T], explain: Callable[[ProcessExit], LauncherError]
) -> _T:
    """Await `work`; if the engine's process ends first, raise the error that `explain` returns for its exit."""
    task = asyncio.ensure_future(work)
    task_or_exit: set[asyncio.Future[Any]] = {task, process.exited}
    try:
        await asyncio.wait(task_or_exit, return_when=asyncio.FIRST_COMPLETED)
        failed = task.done() and isinstance(task.exception(), Unreachable)
        if failed:  # the connection may have failed because the engine is ending
            await asyncio.wait([process.exited], timeout=2.0)
        if process.exited.done() and (failed or not task.done()):
            raise explain(process.exited.result())
        return await task
    finally:
        task.cancel()
        await asyncio.wait([task])


def parse_loading_percent(payload: str) -> float | None:
    """Return the loading progress, 0 to 100, from a router protocol line's JSON; None if it contains none."""
    try:
        report = json.loads(payload)
        if report["state"] != "loading":
            return None
        loading = report["payload"]
        stages = loading["stages"]
        done = stages.index(loading["current"]) + float(loading["value"])
        return float(100.0 * done / len(stages))
    except (ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError):
        return None


_STREAMS_END_S = 1.0
"""Seconds that streams have to end by themselves before their connections are closed."""
_HUNG_PATIENCE_S = (0.5, 0.5)


class ClientSide(Protocol):
    """Protocol of the gateway, which takes the clients' requests in the engine's place and passes them on.

    `slot_folder` is where engines save their slots for it; None if there is no such folder.
    """

    slot_folder: Path | None

    @property
    def waiting_requests(self) -> int:
        """The number of requests that wait for a slot of the engine."""

    @property
    def reply_progress(self) -> ReplyProgress:
        """The progress of the clients' replies."""

    @property
    def open_replies(self) -> list[OpenReply]:
        """The clients' replies that the engine owes now."""

    @property
    def failed_replies(self) -> FailedReplies:
        """The clients' requests that the present engine has failed one after another."""

    @property
    def kept_problem(self) -> str:
        """Why no conversation can be kept on disk; empty if they can."""

    def engine_starts(self) -> None:
        """Called as soon as an engine's process has been started."""

    async def pause_requests(self, drain_s: float, *, same_model: bool = True) -> None:
        """Hold all requests, because the engine will be replaced. Replies that cannot go on get `drain_s` seconds.

        No reply can go on with another model.
        """

    async def resume_requests(self, endpoint: Endpoint, launch: Launch) -> None:
        """Send requests to the engine at `endpoint`, which is ready."""

    def lose_engine(self, reason: str) -> None:
        """Hold requests, because the engine has ended and may be restarted. `reason` is why, for clients."""

    async def end_requests(self, drain_s: float, reason: str = "") -> None:
        """Refuse requests, because the engine will be stopped. Running ones get up to `drain_s` seconds to end.

        `reason` is why, for clients, if nobody has stopped it.
        """


@dataclass
class _PreparationFailed(Exception):
    """Wraps an error of the preparation of a start. No engine was started or stopped yet."""

    reason: LauncherError


class Supervisor(ChatServer):
    """Runs one server at one endpoint. Port and API key stay the same across restarts.

    All methods must be called in one asyncio event loop. `listener` is called in it with each event and must not block.
    With a `client_side`, `endpoint` is its address; each engine gets an address and a key of its own. `restarts`,
    `limits` and `clock` replace the default rules for restarts, time limits and clocks.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        log: LogBook,
        listener: Listener | None = None,
        *,
        client_side: ClientSide | None = None,
        restarts: RestartPolicy | None = None,
        limits: GuardLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        super().__init__(endpoint, self._clock.monotonic, has_gateway=client_side is not None)
        self._client_side = client_side
        self._engine_endpoint = endpoint
        self.log = log
        self._listener = listener
        self._limits = limits or GuardLimits()
        self._crash_counter = CrashCounter(restarts or RestartPolicy(), self._clock.monotonic)
        self._options: ServeOptions | None = None
        self._process: EngineProcess | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._change_task: asyncio.Task[None] | None = None
        self._change_lock = asyncio.Lock()
        self._next_drain_s: float | None = None
        """The seconds that replies get from a start that waits for a cancelled change; None if none waits."""
        self._served_options: ServeOptions | None = None
        self._loop_closing = False
        self._owner_quiet_since: float | None = None
        self._engine_line_count = 0
        self._last_output_s = 0.0

    @property
    def options(self) -> ServeOptions | None:
        """The requested options of the last start; None before the first one."""
        return self._options

    @property
    def engine_endpoint(self) -> Endpoint:
        """The engine's endpoint: the server's own, or one behind the gateway."""
        return self._engine_endpoint

    @property
    def held_requests(self) -> int:
        """The number of requests that wait in the gateway for a slot of the engine."""
        return self._client_side.waiting_requests if self._client_side else 0

    @property
    def reply_progress(self) -> ReplyProgress | None:
        """The progress of the clients' replies; None without a gateway, which counts them."""
        return self._client_side.reply_progress if self._client_side else None

    @property
    def failed_replies(self) -> FailedReplies | None:
        """The clients' requests that the engine failed one after another; None without a gateway, which counts them."""
        return self._client_side.failed_replies if self._client_side else None

    @property
    def kept_problem(self) -> str:
        """Why no conversation can be kept on disk; empty if they can, or without a gateway."""
        return self._client_side.kept_problem if self._client_side else ""

    @property
    def engine_pid(self) -> int | None:
        """The engine's pid while it runs, otherwise None."""
        return self._process.identity.pid if self._process else None

    @property
    def process(self) -> EngineProcess | None:
        """The engine's process while it runs, otherwise None."""
        return self._process

    @property
    def _log_hint(self) -> str:
        return message("See its log: {path}", path=self.log.path)

    def _engine_lines(self) -> list[str]:
        return self.log.last_lines(self._engine_line_count)

    @property
    def is_changing(self) -> bool:
        """Whether a call of `become` is in progress."""
        return self._change_task is not None and not self._change_task.done()

    async def become(self, options: ServeOptions | None, *, again: bool = False, drain_s: float = 0.0) -> None:
        """Serve `options`, or stop if None; returns when the server is ready or stopped.

        If the server already serves `options`, nothing happens, unless `again` is set. Open requests of the running
        server get up to `drain_s` seconds to finish.

        A newer call replaces one in progress, which then raises Superseded. If the start fails, raises a LauncherError
        with the reason:

        - the checks before the start failed: a server that ran before continues to run;
        - SettingsFailed: the engine failed, and the previous options were started again;
        - any other: the state is FAILED and nothing runs.

        Cancelling the call stops the server.
        """
        self._crash_counter.reset()
        change = asyncio.ensure_future(self._change_to(options, self._change_task, again=again, drain_s=drain_s))
        self._change_task = change
        try:
            await asyncio.shield(change)
        except asyncio.CancelledError:
            if change.cancelled():
                raise Superseded(message("A newer request replaced this one.")) from None
            change.cancel()
            await asyncio.wait([change])
            raise

    @property
    def open_replies(self) -> list[OpenReply]:
        """The replies that the engine owes: those that this program and the owner read, and the gateway's clients'."""
        times = [each for each in (self._replies.quiet_since, self._owner_quiet_since) if each is not None]
        return [*map(OpenReply, times), *(self._client_side.open_replies if self._client_side else ())]

    def note_owner_replies(self, quiet_since: float | None) -> None:
        """Record the earliest last-token time of the replies that the server process's owner reads, None for none."""
        self._owner_quiet_since = quiet_since

    async def _change_to(
        self,
        options: ServeOptions | None,
        earlier: asyncio.Task[None] | None,
        *,
        again: bool = False,
        drain_s: float = 0.0,
        pause_s: float | None = None,
    ) -> None:
        """Cancel `earlier`, then do what `become` describes, or with `pause_s` restart after a crash."""
        if earlier is not None:
            self._next_drain_s = None if options is None else drain_s
            earlier.cancel()
        async with self._change_lock:  # the cancelled call cleans up under this lock before a new one begins
            if options is not None and options == self._options and self._status.state in SERVING and not again:
                return
            try:
                if options is not None and pause_s is not None:
                    await self._restart_after_crash(options, pause_s)
                elif options is None:
                    await self._drain_server(drain_s)
                    if self._client_side is not None:
                        await self._client_side.end_requests(drain_s)
                    await self._stop_engine(ServerState.STOPPING)
                    self._served_options = None
                    self._set_status(ServerStatus(ServerState.STOPPED))
                else:
                    await self._start_or_restore(options, drain_s)
            except asyncio.CancelledError:
                if not self._loop_closing:
                    await self._end_cancelled_change()
                raise
            except _PreparationFailed as failed:
                if self._process is None:
                    self._set_status(ServerStatus(ServerState.FAILED, error=failed.reason))
                raise failed.reason from None
            except SettingsFailed:
                raise
            except BaseException as error:
                await self._stop_engine(None)
                reason = error if isinstance(error, LauncherError) else None
                self._set_status(ServerStatus(ServerState.FAILED, error=reason))
                await self._refuse_requests(reason)
                raise

    async def _end_cancelled_change(self) -> None:
        """Stop the engine after a change was cancelled. If another start waits, the clients' requests go on with it."""
        if self._client_side is not None and self._next_drain_s is not None:
            await self._client_side.pause_requests(self._next_drain_s)
            await self._stop_engine(ServerState.RESTARTING)
        else:
            await self._stop_engine(ServerState.STOPPING)
        self._set_status(ServerStatus(ServerState.STOPPED))

    async def _start_or_restore(self, options: ServeOptions, drain_s: float) -> None:
        """Serve `options`; if that fails, serve the previous options again and raise SettingsFailed."""
        previous = self._options if self._status.state in SERVING else self._served_options
        try:
            await self._start_server(options, drain_s)
        except LauncherError as reason:
            if previous is None or previous == options:
                raise
            await self._stop_engine(None)
            self._set_status(ServerStatus(ServerState.RESTARTING, error=reason))
            try:
                await self._start_server(previous, 0.0)
            except (LauncherError, _PreparationFailed):
                raise reason from None
            raise SettingsFailed(reason) from reason

    async def _restart_after_crash(self, options: ServeOptions, pause_s: float) -> None:
        """Serve `options` again after a crash; a failed start counts as another crash."""
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._start_server(options, 0.0)
            except (LauncherError, _PreparationFailed) as failed:
                error = failed.reason if isinstance(failed, _PreparationFailed) else failed
            else:
                return
            await self._stop_engine(None)
            decision = self._crash_counter.judge_crash(error)
            if isinstance(decision, LauncherError):
                raise decision
            self._announce_restart(error, decision)
            pause_s = decision

    async def _start_server(self, options: ServeOptions, drain_s: float) -> None:
        """Prepare the start, stop the running engine, and start the new one. Raises _PreparationFailed."""
        if self._process is None and self._status.state is not ServerState.RESTARTING:
            self._set_status(ServerStatus(ServerState.PREPARING))
        try:
            pid = self.engine_pid
            replaced = None if pid is None or self.launch is None else partial(read_replaced_memory, self.launch, pid)
            if self._client_side is not None:
                self._engine_endpoint = make_private_endpoint()
            slot_folder = self._client_side.slot_folder if self._client_side else None
            launch = await prepare_launch(options, self._engine_endpoint, replaced=replaced, slot_folder=slot_folder)
            prepared = prepare_process(launch.command)
        except LauncherError as error:  # the running engine is not touched
            attach_fixes(error, options)
            raise _PreparationFailed(error) from None
        try:
            await self._end_previous_engine(options, drain_s)
            self._engine_line_count = 0
            self._options, self.launch = options, launch
            self._set_status(ServerStatus(ServerState.LOADING))
            await self._run_engine(launch, prepared)
        except LauncherError as error:
            await self._attach_fixes(error)
            raise
        finally:
            prepared.discard()

    async def _end_previous_engine(self, options: ServeOptions, drain_s: float) -> None:
        """Save what its clients need in an engine with `options`, and stop the running engine."""
        await self._drain_server(drain_s)
        if self._client_side is not None and self._client is not None:
            same_model = self._options is not None and options.model == self._options.model
            await self._client_side.pause_requests(drain_s, same_model=same_model)
        await self._stop_engine(ServerState.RESTARTING)

    async def _run_engine(self, launch: Launch, prepared: PreparedProcess) -> None:
        """Start an engine, wait until it has answered a first request, and start its watchdog."""
        files = await asyncio.to_thread(FilesInUse.from_launch, launch)
        self.log.add(f"{STARTED} {one_line(f'{launch.build.name} {launch.build.version}', 200)}")
        self._process = process = await start_prepared(prepared, self._on_line)
        self._notify_listener(EngineStarted(*process.identity))
        if self._client_side is not None:
            self._client_side.engine_starts()
        endpoint = self._engine_endpoint
        self._client = client = EngineClient(endpoint.url, endpoint.api_key)
        self._last_output_s = time.monotonic()
        loaded = wait_until_healthy(
            client,
            lambda: self._last_output_s,
            self._limits.loading_s,
            self._log_hint,
            partial(check_port_owner, process.identity.pid, endpoint.port),
        )
        await await_unless_ended(process, loaded, self._exit_explainer(message("loading the model")))
        self._set_status(ServerStatus(ServerState.WARMING_UP))
        answered = check_first_reply(
            client, launch.options, self._limits.first_reply_s, self._log_hint, self._engine_lines
        )
        await await_unless_ended(process, answered, self._exit_explainer(message("warming up")))
        if self._client_side is not None:
            await await_unless_ended(
                process,
                self._client_side.resume_requests(endpoint, launch),
                self._exit_explainer(message("warming up")),
            )
        self._other_requests = 0
        self._crash_counter.record_ready()
        self._served_options = launch.options
        self._set_status(ServerStatus(ServerState.READY))
        guard = Guard(
            process.identity.pid,
            client,
            files,
            notify=self._notify_listener,
            open_replies=lambda: self.open_replies,
            log_problem=lambda: self.log.problem,
            failed_replies=lambda: self.failed_replies,
            clock=self._clock,
            limits=self._limits,
        )
        self._watch_task = asyncio.create_task(self._watch_engine(process, guard, files))

    async def _attach_fixes(self, error: LauncherError) -> None:
        """Attach suggested fixes to an error, in a thread because many memory estimates may be needed."""
        if self.launch is not None:
            await asyncio.to_thread(attach_fixes, error, self.launch.options, self.launch, self._engine_lines())

    async def _drain_server(self, limit_s: float) -> None:
        """Let open requests finish, for up to `limit_s` seconds, and refuse new ones from this program.

        The client side, if there is one, lets them finish: then only the state is changed here.
        """
        if limit_s and self._client is not None and self._status.state in SERVING:
            self._set_status(ServerStatus(ServerState.DRAINING))
            if self._client_side is not None:
                return
            await drain_requests(self._client, self._replies.none_open, limit_s)

    def _exit_explainer(self, while_doing: str) -> Callable[[ProcessExit], LauncherError]:
        """Return a function that returns an error with the cause of the engine's exit."""
        return lambda ended: explain_exit(ended, self._engine_lines(), while_doing=while_doing, hint=self._log_hint)

    async def _watch_engine(self, process: EngineProcess, guard: Guard, files: FilesInUse) -> None:
        """Wait until a serving engine ends or the watchdog wants it ended, then restart it or fail."""
        guarding = asyncio.create_task(guard.watch())
        exit_or_guard: set[asyncio.Future[Any]] = {process.exited, guarding}
        try:
            await asyncio.wait(exit_or_guard, return_when=asyncio.FIRST_COMPLETED)
        finally:
            guarding.cancel()
        failed = self.failed_replies
        if process.exited.done():
            error = files.find_exit_cause() or self._exit_explainer(message("serving"))(process.exited.result())
        else:
            error = guarding.result()
        if self._client_side is not None:
            self._client_side.lose_engine(error.title)
        if not process.exited.done():
            await process.stop(_HUNG_PATIENCE_S)
        await self._attach_fixes(error)
        self._process = None
        self._watch_task = None
        has_served = failed is None or not failed.total or failed.has_replied
        decision = self._crash_counter.judge_crash(error, has_served=has_served)
        if isinstance(decision, LauncherError):
            self._set_status(ServerStatus(ServerState.FAILED, error=decision))
            await self._refuse_requests(decision)
        elif self.is_changing:  # a call of `become` decides what runs next
            self._set_status(ServerStatus(ServerState.FAILED, error=error))
        else:
            self._announce_restart(error, decision)
            self._change_task = asyncio.create_task(self._change_to(self._options, None, pause_s=decision))
            # Retrieve the exception so that asyncio does not log it: listeners learn of it by the FAILED status.
            self._change_task.add_done_callback(lambda change: change.cancelled() or change.exception())
        goes_on = self._client_side is not None and self._status.state is ServerState.RESTARTING
        await self._close_client(replies_go_on=goes_on)

    async def _refuse_requests(self, error: LauncherError | None) -> None:
        """End the requests that the clients' side holds, because no engine will serve them."""
        if self._client_side is not None:
            await self._client_side.end_requests(0.0, error.title if error is not None else "")

    def _announce_restart(self, error: LauncherError, pause_s: float) -> None:
        self._set_status(ServerStatus(ServerState.RESTARTING, error=error))
        turn = f"{self._crash_counter.crashes} of {self._crash_counter.most_restarts}"
        self._notify_listener(
            Notice(
                "crashed",
                message(
                    "{title} Restarting in {pause_s:g} s ({turn}).",
                    title=error.title,
                    pause_s=pause_s,
                    turn=turn,
                ),
            )
        )

    async def _stop_engine(self, meanwhile: ServerState | None) -> None:
        """Stop the engine if one runs. The state is `meanwhile` until then, unchanged if None.

        A cancelled call still completes the stop.
        """
        stopping = asyncio.ensure_future(self._stop_process(meanwhile))
        cancelled = False
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                if stopping.cancelled():  # the event loop is shutting down: the keeper will end the engine
                    self._loop_closing = True
                    raise
                cancelled = True
        stopping.result()
        if cancelled:
            raise asyncio.CancelledError

    async def _stop_process(self, meanwhile: ServerState | None) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()
            self._watch_task = None
        if self._process is not None and meanwhile is not None:
            self._set_status(ServerStatus(meanwhile))
        replies_go_on = self._client_side is not None and meanwhile is not ServerState.STOPPING
        if not replies_go_on:
            self._replies.end_all()
        await self._close_client(replies_go_on=replies_go_on)
        if self._process is not None:
            await self._process.stop()
            self._process = None

    async def _close_client(self, *, replies_go_on: bool = False) -> None:
        client, self._client = self._client, None
        if client is not None and not replies_go_on:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._replies.none_open.wait(), _STREAMS_END_S)
        if client is not None:
            await client.close()
        if not replies_go_on:
            await self._close_chat_client()

    def _on_line(self, stream: Stream, text: str) -> None:
        self._last_output_s = time.monotonic()
        if stream == "stdout" and text.startswith(LOADING_LINE):
            percent = parse_loading_percent(text.removeprefix(LOADING_LINE))
            if percent is not None and self._status.state is ServerState.LOADING:
                self._set_status(ServerStatus(ServerState.LOADING, percent=percent))
            return
        self._engine_line_count += 1
        self.log.add(text)
        self._notify_listener(LogAdded(text))

    def _announce_status(self, status: ServerStatus) -> None:
        self._notify_listener(status)

    def _notify_listener(self, event: ServerEvent) -> None:
        if self._listener is not None:
            self._listener(event)
