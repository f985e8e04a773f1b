"""The control socket of a session: answers the verbs of the user's other programs, and of the owner."""

import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from launcher.app.serving import verbs
from launcher.base.action import Action
from launcher.base.codec import to_json
from launcher.base.control import ControlAddress, ControlServer
from launcher.base.errors import ActionImpossible, BadOption, LauncherError, ServerNotFound, Superseded
from launcher.base.messages import add_message_data, message
from launcher.base.paths import runtime_dir
from launcher.engine.demo import DEMO
from launcher.engine.diagnosis.actions import apply_action, changes_settings
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import Launch
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import SERVING, Notice, ServerEvent, ServerState, ServerStatus
from launcher.engine.server.supervisor import Supervisor
from launcher.engine.settings import (
    Settings,
    change_settings,
    changes_between,
    keep_choices,
    launched_settings,
    parse_settings,
)
from launcher.gateway.request_log import RequestRecord
from launcher.models.server_settings import ROWS, Value, format_settings

if TYPE_CHECKING:  # planning is imported where it is needed: most servers never need it
    from launcher.app.planning.start_settings import ResolvedStart
    from launcher.app.serving.model_pool import PooledModel
    from launcher.app.serving.session import ServerSession
    from launcher.gateway.gate import HandoverReport

_LINES_AT_ONCE = 4
r"""Log lines in one message. Even a message of the longest lines, with every character escaped as \uXXXX\uXXXX, is
smaller than the 1 MiB that base/control.py allows.
"""
_LOG_PERIOD_S = 0.2
_RECORDS_AT_ONCE = 50
_CURRENT_S = 1.0
"""Time between two reports of requests in progress."""
_LOAN_DRAIN_S = 30.0
"""Seconds that a measurement's restart waits for clients' replies that cannot go on after it. There are few, because it
begins while no client asks."""
_T = TypeVar("_T")


@dataclass(slots=True)
class _Loan:
    """A running server that is lent to a measurement, which uses it only while no client does.

    `previous` are the settings that it gets again. `change_count` is the session's with the measurement's own changes:
    any other change ends the loan. See borrowed_session.py for the other end.
    """

    previous: ServeOptions | None
    change_count: int
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class SessionControl:
    """The control socket of one session. See verbs.py for what it answers.

    `entry_fields` returns the changing fields of the registry entry: "status" sends them, too, because on a full disk
    the entry's file may be out of date. The server process sets the rest: `answer_owner` answers its owner's verbs,
    `mark` returns the number that the owner gets once it was sent all that has happened until now, and `on_work` is
    called when a change has ended.
    """

    def __init__(self, session: "ServerSession") -> None:
        self._session = session
        self._server = ControlServer(self._handle_request)
        self._place: tuple[Path, str] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starts: set[asyncio.Task[Any]] = set()
        self._newest_number = 0
        self._loan: _Loan | None = None
        self._followers: set[asyncio.Queue[RequestRecord | None]] = set()
        self.address: ControlAddress | None = None
        """None while it does not listen."""
        self.entry_fields: Callable[[], Mapping[str, object]] = dict
        self.answer_owner: Callable[[object], AsyncGenerator[Any]] | None = None
        self.mark: Callable[[], int] = int
        self.on_work: Callable[[], None] = lambda: None

    async def listen(self, name: str) -> ControlAddress:
        """Listen in the runtime folder, or where it did before. Raises OSError.

        If that folder cannot be written, the server process listens in a temporary one: its owner needs the socket.
        """
        folder, name = self._place or (runtime_dir(), name)
        try:
            self.address = await self._server.listen(folder, name)
        except OSError:
            if self.answer_owner is None:
                raise
            folder = Path(tempfile.mkdtemp(prefix="mtp-launcher-"))
            self.address = await self._server.listen(folder, name)
        self._place = folder, name
        return self.address

    def can_be_reached(self) -> bool:
        """Return whether it listens, and nobody has deleted its socket. Blocks."""
        return self.address is not None and (sys.platform == "win32" or Path(self.address.path).exists())

    async def end_server(self) -> None:
        """End what other programs follow of a server that has ended, and stop listening unless an owner may come."""
        for each in self._followers:
            each.put_nowait(None)
        if self.answer_owner is None:
            await self.close()

    async def close(self) -> None:
        """Stop listening."""
        self.address = self._place = None
        await self._server.close()

    @property
    def is_working(self) -> bool:
        """Whether a change is in progress."""
        return bool(self._tasks)

    def begin_ownership(self) -> None:
        """Count the changes of a new owner from the beginning."""
        self._newest_number = 0

    async def _handle_request(self, name: str, fields: Mapping[str, Any]) -> AsyncGenerator[Any]:
        number = fields.get("number")
        answer = self._answer_verb(verbs.read_verb(name, fields), number if isinstance(number, int) else 0)
        async with aclosing(answer) as values:
            async for each in values:
                yield each

    def _answer_verb(self, verb: object, number: int) -> AsyncGenerator[Any]:
        session = self._session
        match verb:
            case verbs.GetStatus():
                return self._send_status()
            case verbs.ReadLog():
                return self._send_log(verb)
            case verbs.ReadRequests():
                return self._send_requests(verb)
            case StartRequest():
                return self._change_server(partial(session.start, verb), number)
            case verbs.Share(shared, encrypted, drain_s):
                sharing = partial(session.set_shared, shared, encrypted=encrypted, drain_s=drain_s)
                return self._change_server(sharing, number)
            case verbs.ApplyFix(action, drain_s):
                return self._change_server(partial(session.apply_fix, action, drain_s=drain_s), number)
            case verbs.Stop(None, drain_s):
                return self._change_server(partial(session.stop, drain_s=drain_s), number, stops=True)
            case verbs.Stop():
                return self._unload_model(verb)
            case verbs.Restart():
                return self._restart_server(verb)
            case verbs.PreviewRestart():
                return self._preview_restart(verb)
            case verbs.ForeseeHandover():
                return self._send_outlook()
            case verbs.PrepareFor(client):
                return self._prepare_for(client)
            case verbs.ReloadKeys():
                return self._reload_keys()
            case verbs.Join():
                return self._hold_model(verb)
            case verbs.Lend():
                return self._lend_server()
            case verbs.RestartLent(options):
                return self._restart_lent(options)
            case verbs.GiveBack(keep):
                return self._give_back(keep=keep)
            case verbs.CancelStarts():
                return self._cancel_starts()
            case _ if self.answer_owner is not None:
                return self.answer_owner(verb)
            case _:
                raise BadOption(message("Only a window's server process has an owner."))

    async def _send_status(self) -> AsyncGenerator[Any]:
        # The entry's fields are called "note" because older versions of the program read that name.
        restored = self._session.count_restored()
        yield status_data(self._session.supervisor) | restored | {"note": self.entry_fields()}

    async def _send_outlook(self) -> AsyncGenerator[Any]:
        outlook = await self._session.foresee_handover()
        yield to_json(outlook) if outlook else {}

    async def _prepare_for(self, client: str) -> AsyncGenerator[Any]:
        self._session.prepare_for(client)
        yield {}

    async def _reload_keys(self) -> AsyncGenerator[Any]:
        yield {"reloaded": await self._session.reload_keys()}

    # Changes, which go on if the program that asked for them leaves.

    async def _change_server(
        self, work: Callable[[], Coroutine[Any, Any, None]], number: int, *, stops: bool = False
    ) -> AsyncGenerator[Any]:
        """Do `work`, and yield the states of the server meanwhile. A change of the owner has a `number`."""
        if number:
            if number < self._newest_number:
                raise _superseded_error()
            self._newest_number = number
        task = self.run_to_end(work())
        if number and not stops:
            self._starts.add(task)
            task.add_done_callback(self._starts.discard)
        async for each in _report_states(task, None if self._session.is_idle else self._session.supervisor):
            yield each
        if number:
            yield {"number": self.mark()}
        if task.cancelled():
            raise _superseded_error()
        task.result()
        yield {"stopped": stops}

    async def _cancel_starts(self) -> AsyncGenerator[Any]:
        starts = tuple(self._starts)
        for task in starts:
            task.cancel()
        if starts:
            await asyncio.wait(starts)
        yield {}

    async def _unload_model(self, verb: verbs.Stop) -> AsyncGenerator[Any]:
        unloading = self.run_to_end(self._session.stop_model(str(verb.model), drain_s=verb.drain_s))
        yield {"stopped": await asyncio.shield(unloading)}

    async def _restart_server(self, verb: verbs.Restart) -> AsyncGenerator[Any]:
        supervisor, chosen = self._session.supervisor, parse_settings(verb.set)
        launch = _require_launch(supervisor)
        options = self._session.requested_options or launch.options
        served = self._session.served_options or options
        # Changes that were requested but are not served yet, which this restart replaces.
        pending = parse_settings(changes_between(served, options) or {})
        chosen = {**pending, **chosen}
        from launcher.app.planning.start_settings import with_drafts_here  # imported late, like previews above

        options = await asyncio.to_thread(with_drafts_here, options)
        options = change_settings(options, await _resolve_context(options, chosen, supervisor.engine_pid))
        task = self.run_to_end(
            self._session.start(StartRequest(options, again=True, drain_s=verb.drain_s, chosen=chosen))
        )
        async for each in _report_states(task, supervisor):
            yield each
        try:
            await task
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
            return {**to_json(action), "set": None, "command": fix.command, "link": fix.link}
        changes = None
        with suppress(ActionImpossible):
            changes = changes_between(running, apply_action(action, tried, context=launch.context))
        return {**to_json(action), "set": changes, "command": None, "link": None}

    async def _preview_restart(self, verb: verbs.PreviewRestart) -> AsyncGenerator[Any]:
        """Yield the effects of a restart with other settings, without changing anything."""
        from launcher.app.planning.preview import Previewer, read_basis
        from launcher.app.serving.pause_estimate import estimate_pause

        supervisor, chosen = self._session.supervisor, parse_settings(verb.set)
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
                pause = to_json(estimate_pause(preview, outlook))
        state = supervisor.status.state.value
        yield to_json(preview) | {"state": state, "replies": replies, "reasons": reasons, "pause": pause}

    # A measurement's loan of the server.

    @property
    def is_lent(self) -> bool:
        """Whether the server is lent to a measurement."""
        return self._current_loan is not None

    @property
    def _current_loan(self) -> _Loan | None:
        """The loan of the server; None while it is not lent, or once somebody else has changed or stopped it."""
        loan = self._loan
        return loan if loan is not None and loan.change_count == self._session.change_count else None

    async def _lend_server(self) -> AsyncGenerator[Any]:
        """Lend the server to the client until it disconnects, even by being killed.

        The first message describes the server, each later one has the number of clients' requests that wait or run.
        """
        session = self._session
        if self.is_lent or session.is_idle or session.supervisor.status.state not in SERVING:
            raise ActionImpossible(
                message("The server is being measured already, or not ready."), message("Try again when it is ready.")
            )
        key, supervisor, log = secrets.token_urlsafe(32), session.supervisor, session.request_log
        session.set_measurement_key(key)
        self._loan = loan = _Loan(supervisor.options, session.change_count)

        def note_change(_: ServerEvent) -> None:
            if self._current_loan is not loan:
                loan.changed.set()

        try:
            with (
                log.listening(lambda _: loan.changed.set()),
                session.listening(note_change),
                session.monitor.pause_traffic_reports(),
            ):
                yield add_message_data(
                    {
                        "url": supervisor.endpoint.url,
                        "api_key": key,
                        "model_name": session.model_name,
                        "options": to_json(loan.previous.with_absolute_paths() if loan.previous else None),
                        "engine_pid": supervisor.engine_pid,
                        "log": str(supervisor.log.path),
                    }
                )
                while self._current_loan is loan:
                    yield {"clients": log.count_states().total()}
                    await loan.changed.wait()
                    loan.changed.clear()
        finally:
            self.run_to_end(self._end_loan(loan))

    async def _restart_lent(self, options: ServeOptions) -> AsyncGenerator[Any]:
        loan = self._current_loan
        if loan is None:
            raise _superseded_error()

        async def restart() -> None:
            loan.change_count += 1  # together with the session's own count
            await self._session.start(StartRequest(options, again=True, drain_s=_LOAN_DRAIN_S))

        await asyncio.shield(self.run_to_end(restart()))
        yield {"engine_pid": self._session.supervisor.engine_pid}

    async def _give_back(self, *, keep: bool) -> AsyncGenerator[Any]:
        if (loan := self._current_loan) is not None:
            await asyncio.shield(self.run_to_end(self._end_loan(loan, keep=keep)))
        yield {}

    async def _end_loan(self, loan: _Loan, *, keep: bool = False) -> None:
        """End a loan, and restore the previous settings unless `keep`, or somebody else has changed the server."""
        session, is_undisturbed = self._session, self._current_loan is loan
        if self._loan is loan:
            self._loan = None
            session.set_measurement_key(None)
            loan.changed.set()
        if keep or loan.previous is None or session.is_idle or not is_undisturbed:
            return
        supervisor = session.supervisor
        is_same = supervisor.options == loan.previous and supervisor.status.state in SERVING
        if supervisor.is_changing or not is_same:
            with suppress(LauncherError):  # the server's status shows the error
                await session.start(StartRequest(loan.previous, drain_s=_LOAN_DRAIN_S))

    # A model that another start brings.

    async def _hold_model(self, verb: verbs.Join) -> AsyncGenerator[Any]:
        """Load a model, and hold it until it is unloaded or the client disconnects.

        Yield the states of the model, then a description of its server, then its end.
        """
        pool = self._session.pool
        if pool is None:
            raise ServerNotFound(message("The server is being stopped."), message("Start it again."))
        model, start = await pool.join_model(verb)
        is_loaded = model.is_loaded
        ended = asyncio.ensure_future(model.ended.wait())
        loading = asyncio.ensure_future(pool.load_model(model, keeps_others=verb.keeps_others))
        try:
            async for each in _report_states(loading, model.supervisor):
                if each["state"] != ServerState.STOPPED:  # it was, before another model left room
                    yield each
            await loading
            if is_loaded and verb.settings:
                text = message("{model} is loaded already, and keeps its settings.", model=model.name)
                start = replace(start, notices=(*start.notices, Notice("model_shared", text)))
            elif not is_loaded and start.chosen is not None:
                chosen = {**start.set_aside, **start.chosen}
                await asyncio.to_thread(keep_choices, start.options, chosen)
            yield {"ready": _describe_joined(model, start)}
            await ended
            error = model.supervisor.status.error
            yield {"ended": True, "error": str(error) if error else None}
        finally:
            ended.cancel()
            pool.leave_model(model)

    def run_to_end(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Run work that goes on if the program that asked for it leaves."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        self.on_work()
        if not task.cancelled():
            task.exception()  # retrieved, because otherwise asyncio logs that it never was

    # What happens, for as long as somebody follows it.

    async def _send_log(self, verb: verbs.ReadLog) -> AsyncGenerator[Any]:
        supervisor = self._session.supervisor
        log = supervisor.log
        seen = log.line_count - max(0, verb.lines)
        while True:
            has_ended = self._session.is_idle or self._session.supervisor is not supervisor
            new = log.lines_since(seen)
            seen = log.line_count
            for begin in range(0, len(new), _LINES_AT_ONCE):
                yield {"lines": [[line.time_s, line.text] for line in new[begin : begin + _LINES_AT_ONCE]]}
            if has_ended or not verb.follow:
                return
            await asyncio.sleep(_LOG_PERIOD_S)

    async def _send_requests(self, verb: verbs.ReadRequests) -> AsyncGenerator[Any]:
        log = self._session.request_log
        if not verb.follow:
            for batch in _split_records(_last_records(log.records, verb.count)):
                yield batch
            return
        changed: asyncio.Queue[RequestRecord | None] = asyncio.Queue()
        self._followers.add(changed)
        try:
            with log.listening(changed.put_nowait):
                known = [each for each in log.records if verb.current or each.has_ended]
                for batch in _split_records(_last_records(known, verb.count)):
                    yield batch
                while True:
                    try:
                        async with asyncio.timeout(_CURRENT_S if verb.current and log.count_states() else None):
                            record = await changed.get()
                    except TimeoutError:
                        for batch in _split_records([each for each in log.records if not each.has_ended]):
                            yield batch
                        continue
                    if record is None:
                        return
                    if verb.current or record.has_ended:
                        yield {"requests": [to_json(record)]}
        finally:
            self._followers.discard(changed)


async def _report_states(task: "asyncio.Future[None]", supervisor: Supervisor | None) -> AsyncGenerator[Any]:
    """Yield each change of a server's state until a task has ended. It goes on if nobody listens any more."""
    while not task.done():
        change = asyncio.ensure_future(supervisor.wait_for_change()) if supervisor is not None else None
        waited_for: set[asyncio.Future[Any]] = {task} if change is None else {task, change}
        try:
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if change is not None:
                change.cancel()
        if supervisor is not None and not task.done():
            yield {"state": supervisor.status.state.value, "percent": supervisor.status.percent}


def _superseded_error() -> Superseded:
    return Superseded(message("A newer request replaced this one."))


def _last_records(records: list[RequestRecord], count: int) -> list[RequestRecord]:
    return records[-count:] if count > 0 else []


def _split_records(records: list[RequestRecord]) -> Iterator[dict[str, object]]:
    """Yield messages with some records each, so that none reaches the 1 MiB that base/control.py allows."""
    for begin in range(0, len(records), _RECORDS_AT_ONCE):
        yield {"requests": to_json(records[begin : begin + _RECORDS_AT_ONCE])}


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


def _describe_joined(model: "PooledModel", start: "ResolvedStart") -> dict[str, Any]:
    """Return what the other program prints of a model that is ready."""
    from launcher.app.planning.start_settings import SettingOrigin

    launch, supervisor = model.supervisor.launch, model.supervisor
    return {
        "model": model.name,
        "url": supervisor.endpoint.url,
        "api_key": supervisor.endpoint.api_key,
        "pid": supervisor.engine_pid,
        "server_pid": os.getpid(),
        "name": launch.header.name if launch else model.name,
        "engine": f"{launch.build.name} engine {launch.build.version}" if launch else "",
        "settings": launched_settings(launch) if launch else {},
        "embeddings": bool(launch and launch.options.embeddings),
        "reranking": bool(launch and launch.options.reranking),
        "limits": format_settings(launch.limits) if launch else "",
        "kept": format_settings(start.settings_from(SettingOrigin.KEPT)),
        "tuned": start.tuned_line,
        "note": launch.note if launch else "",
        "notices": [each.text for each in start.notices],
        "log": str(supervisor.log.path),
    }


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
