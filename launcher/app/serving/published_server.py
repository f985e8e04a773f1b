"""Publishes a running server to the user's other commands: a registry entry and a control socket."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from launcher.app.serving.session_json import error_to_json, options_from_json
from launcher.base.action import Action
from launcher.base.control import ControlAddress, ControlServer
from launcher.base.errors import ActionImpossible, BadOption, LauncherError
from launcher.base.messages import add_message_data, message, restore_messages
from launcher.base.paths import runtime_dir
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.demo import DEMO
from launcher.engine.diagnosis.actions import apply_action, changes_settings
from launcher.engine.diagnosis.fix_command import FixCommand
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import Launch, api_model_name
from launcher.engine.server.own_memory import make_formula_inputs
from launcher.engine.server.registry import Registration, ServedModel, hash_command
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import SERVING, EngineStarted, ServerEvent, ServerState, ServerStatus
from launcher.engine.server.supervisor import Supervisor
from launcher.engine.settings import Settings, change_settings, changes_between, launched_settings, parse_settings
from launcher.gateway.exchange import HandoverOutlook
from launcher.gateway.request_log import RequestLog, RequestRecord
from launcher.models.server_settings import ROWS, Value

if TYPE_CHECKING:
    from launcher.app.serving.model_pool import ModelPool
    from launcher.app.serving.server_loan import ServerLoan
    from launcher.gateway.gate import HandoverReport

_LOG_LINES = 200
_LINES_AT_ONCE = 4
r"""Log lines in one message. Even a message of the longest lines, with every character escaped as \uXXXX\uXXXX, is
smaller than the 1 MiB that base/control.py allows.
"""
_LOG_PERIOD_S = 0.2
_RECORDS_AT_ONCE = 50
_CURRENT_S = 1.0
"""Time between two reports of requests in progress."""
_T = TypeVar("_T")


class ControllableSession(Protocol):
    """The methods of a session that its control socket needs."""

    @property
    def supervisor(self) -> Supervisor:
        """Supervisor of the session's server."""

    @property
    def request_log(self) -> RequestLog:
        """The clients' requests."""

    @property
    def last_handover(self) -> "HandoverReport | None":
        """The report of the last handover. See ServerSession.last_handover."""

    async def foresee_handover(self) -> HandoverOutlook | None:
        """The outlook for a restart now. See ServerSession.foresee_handover."""

    async def start(self, request: StartRequest) -> None:
        """Start a server. See ServerSession.start."""

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Stop the server. See ServerSession.stop."""

    @property
    def pool(self) -> "ModelPool | None":
        """The models behind the server's gateway; None if it can serve only one model."""

    async def stop_model(self, name: str, *, drain_s: float = 0.0) -> str:
        """Unload one model. See ServerSession.stop_model."""

    async def reload_keys(self) -> bool:
        """Use the saved API keys. See ServerSession.reload_keys."""

    @property
    def requested_options(self) -> ServeOptions | None:
        """The options of the newest start. See ServerSession.requested_options."""

    @property
    def served_options(self) -> ServeOptions | None:
        """The options of the last start that succeeded. See ServerSession.served_options."""

    @property
    def loan(self) -> "ServerLoan | None":
        """The loan of the server to a measurement; None while it is not lent."""

    def lend_server(self) -> "ServerLoan":
        """Lend the server to a measurement. See ServerSession.lend_server."""

    def command_for_action(self, action: Action) -> FixCommand:
        """Return the command or link for an action. See ServerSession.command_for_action."""


class RemoteControl:
    """Control socket of one server session.

    It answers these verbs: status; stop (model, drain_s); join (start: see model_joining.py); restart (set, drain_s);
    preview (set); logs (lines, follow); requests (count, follow, current); reload-keys; lend, which lasts until the
    connection ends, lent-start (options), lent-end (keep).
    """

    def __init__(self, session: ControllableSession, entry_fields: Callable[[], Mapping[str, object]] = dict) -> None:
        """`entry_fields` returns the changing fields of the registry entry.

        "status" sends them too, because on a full disk the entry's file may be out of date.
        """
        self._session = session
        self._entry_fields = entry_fields
        self._server = ControlServer(self._handle_request)
        self._tasks: set[asyncio.Future[Any]] = set()

    async def listen(self, port: int) -> ControlAddress:
        """Begin to listen for the server on `port`. Raises OSError."""
        return await self._server.listen(runtime_dir(), f"control-{port}")

    async def close(self) -> None:
        """Stop listening."""
        await self._server.close()

    async def _handle_request(self, verb: str, fields: Mapping[str, Any]) -> AsyncGenerator[Any]:
        match verb:
            case "status":
                # The entry's fields are called "note" because older versions of the program read that name.
                yield status_data(self._session.supervisor) | {"note": self._entry_fields()}
            case "stop" if isinstance(name := fields.get("model"), str):
                yield {"stopped": await self._session.stop_model(name, drain_s=_parse_drain_s(fields))}
            case "join" if self._session.pool is not None:
                from launcher.app.serving.model_joining import serve_joined_model

                async for each in serve_joined_model(self._session.pool, fields):
                    yield each
            case "stop":
                async for each in self._run_and_report(partial(self._session.stop, drain_s=_parse_drain_s(fields))):
                    yield each
                yield {"stopped": True}
            case "restart":
                async for each in self._restart_server(fields):
                    yield each
            case "preview":
                yield await self._preview_restart(fields)
            case "lend":
                async for each in self._lend_server():
                    yield each
            case "lent-start" if (loan := self._session.loan) is not None:
                yield await self._start_lent(loan, options_from_json(restore_messages(fields)["options"]))
            case "lent-end":
                if (loan := self._session.loan) is not None:
                    await asyncio.shield(self._run_to_end(loan.end(keep=bool(fields.get("keep")))))
                yield {}
            case "reload-keys":
                yield {"reloaded": await self._session.reload_keys()}
            case "logs":
                async for each in self._send_logs(fields):
                    yield each
            case "requests":
                async for each in self._send_requests(fields):
                    yield each
            case _:
                raise BadOption(
                    message("The program that runs this server does not support {verb}.", verb=verb),
                    message("Is it an older version?"),
                    verb=verb,
                )

    async def _preview_restart(self, fields: Mapping[str, Any]) -> Mapping[str, object]:
        """Return the effects of a restart with other settings, without changing anything."""
        # Imported late, because most servers never need planning.
        from launcher.app.planning.preview import Previewer, read_basis
        from launcher.app.serving.pause_estimate import estimate_pause

        supervisor, chosen = self._session.supervisor, _parse_changes(fields)
        launch = _require_launch(supervisor)
        changes = await _resolve_context(supervisor.options or launch.options, chosen, supervisor.engine_pid)
        basis = await read_basis(launch, engine_pid=supervisor.engine_pid, log=supervisor.log.last_lines())
        preview = await asyncio.to_thread(lambda: Previewer(basis).preview(changes))
        outlook = await self._session.foresee_handover()
        replies, reasons, pause = None, None, None
        if outlook is not None:
            replies = {"go_on": outlook.going_on, "uncertain": outlook.uncertain, "end_first": outlook.ending}
            reasons = list(outlook.reason_sentences)
            if outlook.going_on or outlook.uncertain:
                pause = estimate_pause(preview, outlook).as_json()
        state = supervisor.status.state.value
        return preview.as_json() | {"state": state, "replies": replies, "reasons": reasons, "pause": pause}

    async def _restart_server(self, fields: Mapping[str, Any]) -> AsyncIterator[Any]:
        supervisor, chosen = self._session.supervisor, _parse_changes(fields)
        launch = _require_launch(supervisor)
        options = self._session.requested_options or launch.options
        served = self._session.served_options or options
        # Changes that were requested but are not served yet, which this restart replaces.
        pending = parse_settings(changes_between(served, options) or {})
        chosen = {**pending, **chosen}
        options = change_settings(options, await _resolve_context(options, chosen, supervisor.engine_pid))
        drain_s = _parse_drain_s(fields)
        starting = partial(self._session.start, StartRequest(options, again=True, drain_s=drain_s, chosen=chosen))
        try:
            async for each in self._run_and_report(starting):
                yield each
        except LauncherError as error:
            fixes = [self._describe_fix(action, options, supervisor) for action in error.actions]
            error.facts = {**error.facts, "actions": fixes}
            raise
        yield status_data(self._session.supervisor) | await _handover_data(self._session.last_handover)

    def _describe_fix(self, action: Action, tried: ServeOptions, supervisor: Supervisor) -> dict[str, object]:
        """Return a fix for failed settings as JSON data.

        If the server still runs and the fix changes settings, `set` has the settings for another restart ({}: the
        server already has them). Otherwise `command` or `link` applies the fix. All three are None if the fix cannot be
        applied to these settings.
        """
        running, launch = supervisor.options, supervisor.launch
        is_serving = supervisor.status.state in SERVING
        if not is_serving or running is None or launch is None or not changes_settings(action):
            fix = self._session.command_for_action(action)
            return action.as_json() | {"set": None, "command": fix.command, "link": fix.link}
        changes = None
        with suppress(ActionImpossible):
            changes = changes_between(running, apply_action(action, tried, context=launch.context))
        return action.as_json() | {"set": changes, "command": None, "link": None}

    async def _run_and_report(self, work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[Any]:
        """Run `work` to its end, even if the client disconnects, and yield each change of the server's state."""
        supervisor = self._session.supervisor
        task = self._run_to_end(work())
        while not task.done():
            change = asyncio.ensure_future(supervisor.wait_for_change())
            waited_for: set[asyncio.Future[Any]] = {task, change}
            try:
                await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            finally:
                change.cancel()
            if not task.done():
                yield {"state": supervisor.status.state.value, "percent": supervisor.status.percent}
        await task

    async def _lend_server(self) -> AsyncGenerator[Any]:
        """Lend the server to the client until it disconnects, even by being killed."""
        loan = self._session.lend_server()
        try:
            async with aclosing(loan.send_messages()) as messages:
                async for each in messages:
                    yield add_message_data(each)
        finally:
            self._run_to_end(loan.end())

    async def _start_lent(self, loan: "ServerLoan", options: ServeOptions) -> Mapping[str, Any]:
        """Restart a lent server, and return the engine's process id, or the error as JSON data."""
        starting = self._run_to_end(loan.start(options))
        try:
            engine_pid = await asyncio.shield(starting)
        except LauncherError as error:
            return {"failed": add_message_data(error_to_json(error))}
        return {"failed": None, "engine_pid": engine_pid}

    def _run_to_end(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Run work that goes on if the client disconnects."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, because otherwise asyncio logs that it never was

    async def _send_logs(self, fields: Mapping[str, Any]) -> AsyncIterator[Any]:
        log = self._session.supervisor.log
        lines = fields.get("lines", _LOG_LINES)
        seen = log.line_count - max(0, lines if isinstance(lines, int) else _LOG_LINES)
        while True:
            new = log.lines_since(seen)
            seen = log.line_count
            for begin in range(0, len(new), _LINES_AT_ONCE):
                yield {"lines": [[line.time_s, line.text] for line in new[begin : begin + _LINES_AT_ONCE]]}
            if not fields.get("follow"):
                return
            await asyncio.sleep(_LOG_PERIOD_S)

    async def _send_requests(self, fields: Mapping[str, Any]) -> AsyncIterator[Any]:
        """Send the last requests, and with `follow` each one that ends from now on.

        With `current` those in progress are sent, too, whenever they change and once a second.
        """
        log, count, current = self._session.request_log, fields.get("count"), bool(fields.get("current"))
        if not fields.get("follow"):
            for batch in _split_records(_last_records(log.records, count)):
                yield batch
            return
        changed: asyncio.Queue[RequestRecord] = asyncio.Queue()
        with log.listening(changed.put_nowait):
            known = [each for each in log.records if current or each.has_ended]
            for batch in _split_records(_last_records(known, count)):
                yield batch
            while True:
                try:
                    async with asyncio.timeout(_CURRENT_S if current and log.count_states() else None):
                        record = await changed.get()
                except TimeoutError:
                    for batch in _split_records([each for each in log.records if not each.has_ended]):
                        yield batch
                    continue
                if current or record.has_ended:
                    yield {"requests": [record.as_json()]}


def _last_records(records: list[RequestRecord], count: object) -> list[RequestRecord]:
    return records[-count:] if isinstance(count, int) and count > 0 else []


def _split_records(records: list[RequestRecord]) -> Iterator[dict[str, object]]:
    """Yield messages with some records each, so that none reaches the 1 MiB that base/control.py allows."""
    for begin in range(0, len(records), _RECORDS_AT_ONCE):
        yield {"requests": [record.as_json() for record in records[begin : begin + _RECORDS_AT_ONCE]]}


def status_data(supervisor: Supervisor) -> dict[str, object]:
    """Return the current state of a server, for the control socket."""
    status: ServerStatus = supervisor.status
    launch = supervisor.launch
    return {
        "state": status.state.value,
        "percent": status.percent,
        "error": str(status.error) if status.error else None,
        "pid": supervisor.engine_pid,  # the name that `serve --json` and `status --json` use for it
        "launcher_pid": os.getpid(),
        "engine_pid": supervisor.engine_pid,
        "url": supervisor.endpoint.url,
        "settings": launched_settings(launch) if launch else {},
        "log": str(supervisor.log.path),
    }


async def _handover_data(report: "HandoverReport | None") -> dict[str, object]:
    """Return what a restart meant for clients, once their streams go on. Unknown without the gateway."""
    if report is None:
        return dict.fromkeys(("handover", "gap_s", "streams", "continued", "uncertain", "drained", "cut"))
    await report.wait_for_streams()
    gap_s = None if report.gap_s is None else round(report.gap_s, 3)
    streams = len(report.continued) + report.drained + report.cut + report.again
    return {
        "handover": report.outcome,
        "gap_s": gap_s,
        "streams": streams,
        "continued": len(report.continued),
        "uncertain": report.uncertain,
        "drained": report.drained,
        "cut": report.cut,
    }


def _parse_changes(fields: Mapping[str, Any]) -> dict[str, Value]:
    written = fields.get("set")
    if not isinstance(written, dict):
        return {}
    return parse_settings({str(name): str(value) for name, value in written.items()})


async def _resolve_context(options: ServeOptions, chosen: Settings, engine_pid: int | None) -> Settings:
    """Return `chosen`; a context that is reset to the default gets the value that a new start would choose."""
    if "ctx" not in chosen or chosen["ctx"] is not None:
        return chosen
    from launcher.app.planning.start_settings import resolve_start  # imported late, like previews above

    options = change_settings(options, chosen)
    # resolve_start recommends a value for each setting that is None. So settings for which llama-server's default is
    # in use get that default, and only those that the launcher chooses at each start stay None.
    asked: dict[str, Value] = {}
    for name, row in ROWS.items():
        asked[name] = row.value_in(options)
        if asked[name] is None and not row.resolved:
            asked[name] = row.usual
    model = DEMO if options.alias == DEMO else str(options.model)
    ending = () if engine_pid is None else (engine_pid,)
    start = await resolve_start(
        model, asked, lambda path: replace(options, model=path), use_kept=False, use_tuned=False, ending=ending
    )
    return {**chosen, "ctx": start.options.context}


def _require_launch(supervisor: Supervisor) -> Launch:
    if supervisor.launch is None:
        raise BadOption(message("The server was never started, so it cannot be restarted."), message("Start it."))
    return supervisor.launch


def _parse_drain_s(fields: Mapping[str, Any]) -> float:
    seconds = fields.get("drain_s", 0.0)
    return max(0.0, float(seconds)) if isinstance(seconds, int | float) else 0.0


_CHECK_PERIOD_S = 2.0
"""Seconds between two checks that the registry entry and the control socket still exist."""
_CLOSE_TIMEOUT_S = 5.0
"""Seconds to wait for a check in progress, which a slow disk may delay."""


class PublishedServer:
    """Registry entry and control socket of a server, updated by the server's events until `withdraw`."""

    def __init__(
        self, endpoint: Endpoint, registration: Registration, options: ServeOptions, session: ControllableSession
    ) -> None:
        self.endpoint, self.registration = endpoint, registration
        self._options = options
        self._remote = RemoteControl(session, self._entry_fields)
        self._withdrawn = asyncio.Event()
        self._watch_task = asyncio.create_task(self._watch_entry())

    @classmethod
    async def publish(
        cls, session: ControllableSession, port: int | None, options: ServeOptions, *, shared: bool
    ) -> Self:
        """Claim an address (see registry.register_server), publish the server, and listen.

        If cancelled, nothing stays published.
        """
        registering = asyncio.ensure_future(
            asyncio.to_thread(
                registry.register_server,
                port,
                ServedModel(model=api_model_name(options), engine=_engine_name(options), draft=options.draft),
                shared=shared,
            )
        )
        try:
            endpoint, registration = await asyncio.shield(registering)
        except asyncio.CancelledError:
            with suppress(LauncherError, OSError):
                _, registration = await registering
                await asyncio.to_thread(registration.remove)
            raise
        return cls(endpoint, registration, options, session)

    def update_entry(self, event: ServerEvent, supervisor: Supervisor) -> None:
        """Update the registry entry from an event."""
        entry, is_status = self.registration.entry, isinstance(event, ServerStatus)
        if isinstance(event, EngineStarted) or is_status:
            first = describe_model(supervisor, self._options)
            if is_status and first.state == entry.first.state:
                return
            self.registration.update(models=(first, *entry.models[1:]), health=() if is_status else entry.health)

    def update_others(self, models: Sequence[ServedModel]) -> None:
        """Update the models besides the first one."""
        self.registration.update(models=(self.registration.entry.first, *models))

    async def withdraw(self) -> None:
        """Remove the registry entry and close the control socket."""
        self._withdrawn.set()
        await asyncio.wait([self._watch_task], timeout=_CLOSE_TIMEOUT_S)
        await asyncio.to_thread(self.registration.remove)
        await self._remote.close()

    async def _watch_entry(self) -> None:
        """Open the control socket, and again whenever that failed or the socket or registry entry has been deleted."""
        await self._open_socket()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_PERIOD_S):
                    await self._withdrawn.wait()
            if self._withdrawn.is_set():
                return
            if await asyncio.to_thread(self._must_open_socket):
                await self._open_socket()

    async def _open_socket(self) -> None:
        """Open the control socket and publish it. Until that succeeds, other programs can only send signals."""
        path = token = None
        with suppress(OSError, LauncherError):
            address = await self._remote.listen(self.registration.entry.port)
            path, token = address.path, address.token
        if path != self.registration.entry.control or self.registration.was_deleted():
            self.registration.update(control=path, control_token=token)

    def _must_open_socket(self) -> bool:
        path = self.registration.entry.control
        if path is None or self.registration.was_deleted():
            return True
        try:
            return sys.platform != "win32" and not Path(path).exists()
        except OSError:
            return False

    def _entry_fields(self) -> Mapping[str, object]:
        return self.registration.entry.model_dump(mode="json", include=registry.LIVE_FIELDS)


def describe_model(
    supervisor: Supervisor, options: ServeOptions | None, *, name: str | None = None, by_request: bool = False
) -> ServedModel:
    """Return a model as the registry lists it. `options` are those of a start that has not got to its engine yet."""
    launch, process, state = supervisor.launch, supervisor.process, supervisor.status.state
    options = launch.options if launch else options
    pid = process.identity.pid if process else None
    return ServedModel(
        model=name or (api_model_name(options) if options else ""),
        # Requests alone do not change the entry: it says READY also while the server is BUSY.
        state=(ServerState.READY if state is ServerState.BUSY else state).value,
        by_request=by_request,
        engine=launch.build.name if launch else _engine_name(options) if options else "",
        draft=options.draft if options else 0,
        embeddings=bool(options and options.embeddings),
        reranking=bool(options and options.reranking),
        engine_pid=pid,
        engine_created_s=process.identity.created_s if process else None,
        engine_port=supervisor.engine_endpoint.port,
        # A process that was just started may still have the command line of the one that started it.
        command_hash=hash_command(pid) if pid and state is not ServerState.LOADING else None,
        settings=launched_settings(launch) if launch else {},
        formula_inputs=make_formula_inputs(launch) if launch else {},
    )


def _engine_name(options: ServeOptions) -> str:
    return BUILT_IN if options.engine is None else options.engine.name
