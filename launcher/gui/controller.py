"""Passes requests of the window to the core, and events of the core to the window. Never blocks the GUI thread."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from PySide6.QtCore import QObject, Signal, Slot

from launcher.app import settings, settings_file
from launcher.base.errors import LauncherError, Superseded
from launcher.engine.server.state import (
    EngineStarted,
    LogAdded,
    ModelsChanged,
    Notice,
    PromptRead,
    ServerState,
    ServerStatus,
    StreamsContinued,
)
from launcher.gui.bridge import Bridge, Ended, ReportProgress, wrap_unexpected_error
from launcher.gui.chat.footer import format_footer
from launcher.gui.core_events import (
    DeltaReceived,
    DrainAnswer,
    DrainAsked,
    HealthChanged,
    Launched,
    LinkRequested,
    ModelRequest,
    ReplyFinished,
    SharingChanged,
)
from launcher.gui.late import start_settings
from launcher.gui.service import DEMO, ServerService, name_model
from launcher.gui.translation import render, tr
from launcher.gui.viewmodel import Inputs, View, ViewModel

if TYPE_CHECKING:
    from launcher.app.planning.start_settings import ResolvedStart
    from launcher.app.serving.serving_session import ServingSession
    from launcher.base.action import Action
    from launcher.engine.server.client import Delta
    from launcher.engine.server.launch import Launch
    from launcher.models.server_settings import Value
    from launcher.monitor.health_event import Finding
    from launcher.monitor.reply import Reply
    from launcher.runtime import WorkHandle

_T = TypeVar("_T")


class Controller(QObject):
    """Connects the window with its server session. Signals are emitted on the GUI thread, at most 30 times a second."""

    view_changed = Signal(object)
    """View."""
    sampled = Signal(object)
    """list[Sampled]."""
    logged = Signal(object)
    """list[str]: the engine's log lines as they come, with notices and errors of this program."""
    noticed = Signal(object)
    """Notice."""
    deltas = Signal(object)
    """list[Delta]: parts of the reply in progress."""
    replied = Signal(object, str)
    """Reply | None, and its footer: the figures or the end reason."""
    tuned_saved = Signal()
    """The result of a tune was stored for the next starts of its model."""
    launched = Signal(object)
    """Launch | None: the server that runs now. None comes when its engine has ended, before its address is free."""
    stopped = Signal()
    """`stop` is done: the server has ended, and its address is free."""
    health_changed = Signal(object)
    """tuple[Finding, ...]: the open health findings."""
    refused = Signal(object)
    """LauncherError: the last request to change the server failed."""
    applied = Signal(object)
    """LauncherError | None: `apply_settings` has ended. After an error the earlier settings run again, if they can."""
    drain_asked = Signal(int)
    """The number of replies for which a restart waits because they cannot go on after it; the user may decide. 0: it no
    longer waits.
    """
    fixing = Signal(object)
    """Action: a suggested fix is being applied."""
    page_requested = Signal(str)
    chat_requested = Signal()
    models_changed = Signal()
    """The models at the server's address have changed, or `joining`."""
    joined = Signal(str, object)
    """`load_beside` has ended: the model as it was named, and None or the LauncherError."""
    plan_requested = Signal(str)
    """A model's name or the path of its file."""
    plans_requested = Signal(str)
    """The priority that plans are to have, such as "agents"."""
    link_requested = Signal(str)
    handed_over = Signal(float)
    """Streams go on after a restart; the argument is the longest pause in seconds."""
    prompt_read = Signal(object)
    """PromptRead: a client's request has ended."""
    notification_requested = Signal(str, str)
    """Title and text for a desktop notification."""
    file_requested = Signal()
    sampling_changed = Signal()
    """`sampling` has changed."""
    setting_changed = Signal(str, object)
    """Name and value of an app setting that was changed in this window."""
    closed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.bridge = Bridge(self)
        self.bridge.drained.connect(self._dispatch_events)
        self.launch: Launch | None = None
        self.joining: dict[str, str] = {}
        """The models that are being loaded beside the running one, and the keys that the caller gave them."""
        self.note = ""
        """Remark to show beside the speed of the running server."""
        self.shared = False
        """Whether the running server is shared with the network."""
        self.encrypted = False
        """Whether other computers must use TLS for it."""
        self.sampling: Mapping[str, Any] = settings.chat_sampling()
        """Sampling values of the next request: fields of ChatRequest, and others by llama-server's names."""
        self.health: tuple[Finding, ...] = ()
        self._view_model = ViewModel(self)
        self._view_model.changed.connect(self.view_changed)
        self._service = ServerService(self.bridge.post)
        self._model_request: ModelRequest | None = None
        self._reply_work: WorkHandle[object] | None = None
        self._request_number = self._reply_number = 0
        self._stop_number = -1
        """Number of the newest request to stop."""
        """Numbers of the newest request for another state of the server, and of the newest reply."""

    @property
    def view(self) -> View:
        """The view that the controls show."""
        return self._view_model.view

    @property
    def session(self) -> "ServingSession | None":
        """The server session, or None before the first start. Use it only on the core's thread."""
        return self._service.session

    @property
    def served_name(self) -> str:
        """The served model as the user named it; empty before the first start."""
        return self._service.served_name

    @property
    def start_name(self) -> str:
        """The model that `start` starts again, as the user named it; empty before the first start."""
        return self._model_request.model if self._model_request is not None else ""

    @property
    def inputs(self) -> Inputs:
        """The inputs from which the view is derived."""
        return self._view_model.inputs

    def start(
        self,
        model: str | None = None,
        *,
        draft: int | None = None,
        start: "ResolvedStart | None" = None,
    ) -> None:
        """Start a model: "demo", a path, or ID[:QUANT]. None starts the last one again.

        `start` gives the exact settings. Without it they come from launcher.app.planning.start_settings.resolve_start,
        with `draft` as the draft length if it is given.
        """
        if model is not None:
            self._model_request = ModelRequest(model, draft, start)
        elif self._model_request is not None and (draft is not None or start is not None):
            self._model_request = ModelRequest(self._model_request.model, draft, start)
        request = self._model_request
        if request is None:
            return
        name = tr("Demo model") if request.model == DEMO else name_model(request.model)
        changes: dict[str, object] = {"problem": None, "starting": name}
        if self._view_model.view.resting:
            changes |= {"model": name, "settings": "", "address": "", "status": ServerStatus(ServerState.PREPARING)}
        self._view_model.update(**changes)
        self._request_state(partial(self._service.start, request))

    def note_last_model(self, name: str) -> None:
        """Record the name of the model that an earlier window has served last."""
        self._view_model.update(last_model=name)

    def attach_running(self) -> None:
        """Take over the server that an earlier window has left when it crashed, if there is one."""
        self._run(self._service.attach, failed=lambda _: None)

    def watch_updates(self, check_s: float = 60.0) -> None:
        """Compare updated engines with those before them while nothing is served, checking every `check_s`."""
        self._run(self._service.watch_updates, check_s, failed=lambda _: None)

    def set_visible(self, visible: bool) -> None:
        """Tell the core whether the user can see the window."""
        self._run(self._service.set_visible, visible)

    def stop(self) -> None:
        """Stop the server."""
        self._request_state(self._service.stop, self._record_stop)
        self._stop_number = self._request_number

    @property
    def is_stop_newest(self) -> bool:
        """Whether the newest request is to stop the server, which may still run."""
        return self._stop_number == self._request_number

    def load_beside(self, model: str, key: str) -> None:
        """Load a model at the server's address, beside the running one. `joining` has it until `joined` is emitted."""
        self.joining[model] = key
        self.models_changed.emit()
        self._run(
            self._service.load_beside,
            model,
            done=lambda _none: self._end_joining(model, None),
            failed=lambda error: self._end_joining(model, error),
        )

    def _end_joining(self, model: str, error: LauncherError | None) -> None:
        self.joining.pop(model, None)
        self.models_changed.emit()
        self.joined.emit(model, error)

    def stop_model(self, name: str) -> None:
        """Unload one of the models at the server's address."""
        self._run(self._service.stop_model, name, failed=self.show_problem)

    def apply_settings(
        self, changes: "Mapping[str, Value]", *, drain_s: float, extra: Sequence[str] | None = None
    ) -> None:
        """Restart with other server settings, by their names in ROWS, and extra arguments (None: unchanged).

        Running replies that cannot go on may finish, unless `drain_s` is 0: see `drain_asked`. `applied` is emitted at
        the end.
        """
        self._request_number += 1
        self._view_model.update(problem=None)
        self._run(
            self._service.apply_settings,
            dict(changes),
            drain_s,
            extra,
            done=self.applied.emit,
            failed=self.applied.emit,
        )

    def answer_drain(self, answer: DrainAnswer) -> None:
        """Answer `drain_asked`."""

        async def pass_answer() -> None:
            self._service.answer_drain(answer)

        self._run(pass_answer)

    def set_shared(
        self, shared: bool, ended: Callable[[LauncherError | None], object], *, encrypted: bool = True
    ) -> None:
        """Share the running server with the network, or stop sharing. Sharing ends when the server stops.

        If `encrypted`, other computers must use TLS. `ended` is called with the error, or None.
        """
        self._view_model.update(problem=None)
        self._run(
            partial(self._service.set_shared, shared, encrypted=encrypted),
            done=ended,
            failed=ended,
            cancelled=lambda: None,
        )

    def apply_fix(self, action: "Action") -> None:
        """Apply the fix that a diagnosis or a health finding suggests."""
        self.fixing.emit(action)
        self._view_model.update(problem=None)
        self._request_state(partial(self._service.apply_fix, action))

    def run_measurement(
        self,
        work: "Callable[[ServingSession, str, Callable[[object], None]], Awaitable[_T]]",
        *,
        reported: Callable[[Any], object] = lambda _progress: None,
        done: Callable[[_T], object],
        failed: Callable[[LauncherError], object],
        cancelled: Callable[[], object],
    ) -> "WorkHandle[None]":
        """Run `work(session, served_name, report_progress)`, a measurement that changes the server's settings.

        `served_name` is empty if no model is served. Superseded is raised in the measurement if the user changes the
        server's settings meanwhile. The other arguments are those of Bridge.run.
        """
        self._request_number += 1
        self._view_model.update(problem=None)

        async def measure(report: ReportProgress) -> _T:
            return await work(self._service.open_session(), self._service.served_name, report)

        return self._run(
            measure,
            reported=reported,
            done=done,
            failed=failed,
            cancelled=cancelled,
        )

    def request_reply(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any] | None = None,
        kept_as: str | None = None,
    ) -> None:
        """Request a reply to a conversation. Its parts are emitted by `deltas`, its end by `replied`.

        See ChatRequest for `kept_as`.
        """
        self._reply_number += 1
        number, values = self._reply_number, dict(self.sampling if sampling is None else sampling)
        self._view_model.update(replying=True, problem=None)
        self._reply_work = self.bridge.submit(
            f"reply {number}", lambda: self._service.request_reply(number, messages, values, kept_as)
        )

    def stop_reply(self) -> None:
        """Cancel the reply in progress."""
        if self._reply_work is not None:
            self._reply_work.cancel()

    def close(self) -> None:
        """Stop everything. `closed` is emitted when nothing runs any more."""
        self.bridge.submit("close", self._service.close)

    def change_setting(self, name: str, value: "settings_file.AppSettingValue") -> None:
        """Store another value for an app setting."""
        self._run(
            settings.change_setting,
            name,
            value,
            done=lambda stored: self.apply_setting(stored.setting.name, stored.value),
            failed=self.show_problem,
        )

    def apply_setting(self, name: str, value: "settings_file.AppSettingValue") -> None:
        """Apply a stored value of an app setting and emit `setting_changed`."""
        if name in settings.SAMPLING:
            self.set_sampling_value(settings.SAMPLING[name], settings.request_value(value))
        self.setting_changed.emit(name, value)

    def set_sampling_value(self, field: str, value: float | bool | None) -> None:
        """Set a sampling value of the next request. None leaves it to the server."""
        others = {name: other for name, other in self.sampling.items() if name != field}
        self.sampling = others if value is None else others | {field: value}
        self.sampling_changed.emit()

    def count_tokens(self, text: str, done: Callable[[int], object]) -> None:
        """Count a text's tokens for the running model and pass their number to `done`, unless that fails."""
        self.bridge.run(self._service.count_tokens, text, done=done, failed=lambda _error: None)

    def read_api_key(self, done: Callable[[str], object]) -> None:
        """Read the API key of the running server and pass it to `done`."""
        self.bridge.run(self._service.read_api_key, done=done)

    def show_page(self, name: str) -> None:
        """Show another page of the window."""
        self.page_requested.emit(name)

    def show_plan(self, model: str) -> None:
        """Show the plan of a model, by its name or the path of its file."""
        self.plan_requested.emit(model)

    def show_plans(self, intent: str) -> None:
        """Show the plans for a priority, such as "agents"."""
        self.plans_requested.emit(intent)

    def open_chat(self) -> None:
        """Show the chat with the prompt focused."""
        self.page_requested.emit("cockpit")
        self.chat_requested.emit()

    def notify(self, title: str, text: str) -> None:
        """Send a desktop notification, if the user wants them and the window is not in front."""
        self.notification_requested.emit(title, text)

    def choose_file(self) -> None:
        """Let the user choose a model file to serve."""
        self.file_requested.emit()

    def show_problem(self, error: LauncherError) -> None:
        """Show an error that belongs to no server."""
        self._view_model.update(problem=error)

    def _run(self, function: Callable[..., Any], *args: Any, **callbacks: Any) -> "WorkHandle[None]":  # noqa: ANN401
        """Call a function, as Bridge.run does, in work that does not end with the pages."""
        return self.bridge.run(function, *args, outlives_pages=True, **callbacks)

    def refresh_view(self) -> None:
        """Derive the view anew, in the present language."""
        self._view_model.update()

    def _request_state(self, work: Callable[[], Awaitable[_T]], done: Callable[[_T], object] | None = None) -> None:
        """Request another state of the server. The outcome is reported only if no newer request was made."""
        self._request_number += 1
        number = self._request_number

        def if_newest(callback: Callable[[Any], object]) -> Callable[[Any], object]:
            return lambda result: callback(result) if number == self._request_number else None

        self._run(work, done=None if done is None else if_newest(done), failed=if_newest(self._show_failure))

    def _record_stop(self, stopped: bool) -> None:
        """Report the end of a stop. If the server had not started, it reports no status, so report that first."""
        if stopped and not self.view.resting:
            self._handle_status(ServerStatus())
        self.stopped.emit()

    @Slot(object)
    def _dispatch_events(self, batch: list[object]) -> None:
        """Dispatch a batch of events: the newest status, and all reply parts, log lines and samples."""
        deltas: list[Delta] = []
        lines: list[str] = []
        samples: list[object] = []
        ends: list[Ended | ReplyFinished] = []
        for event in batch:
            match event:
                case LogAdded(line):
                    lines.append(line)
                case DeltaReceived(number, delta) if number == self._reply_number:
                    deltas.append(delta)
                case Notice(_, text):
                    lines.append(text)
                    self.noticed.emit(event)
                case ServerStatus():
                    self._handle_status(event)
                    if event.error is not None:
                        lines.append(str(event.error))
                case ModelsChanged():
                    self._handle_models(event)
                case SharingChanged():
                    self._handle_sharing(event)
                case Launched():
                    self._handle_launched(event)
                case HealthChanged(findings):
                    self._update_health(findings)
                case DrainAsked(replies):
                    self.drain_asked.emit(replies)
                case StreamsContinued(gap_s):
                    self.handed_over.emit(gap_s)
                case PromptRead():
                    self.prompt_read.emit(event)
                case LinkRequested(url):
                    self.link_requested.emit(url)
                case Ended() | ReplyFinished():
                    ends.append(event)
                case EngineStarted() | DeltaReceived():
                    pass
                case _:
                    samples.append(event)
        if lines:
            self.logged.emit(lines)
        if deltas:
            self.deltas.emit(deltas)
        if samples:
            self.sampled.emit(samples)
        for end in ends:
            self._handle_end(end)

    def _handle_status(self, status: ServerStatus) -> None:
        self._view_model.update(status=status)
        self._forget_stopped_server()

    def _handle_models(self, models: ModelsChanged) -> None:
        self._view_model.update(models=models)
        self.models_changed.emit()
        self._forget_stopped_server()

    def _forget_stopped_server(self) -> None:
        """Forget what was known of a server that has stopped. One whose model is only unloaded keeps its address."""
        if self.inputs.status.state not in (ServerState.STOPPED, ServerState.FAILED):
            return
        self._update_health(())
        was_shared = self.shared
        self.shared = self.shared and self.view.unloaded
        if self.launch is not None or self.shared is not was_shared:
            self.launch = None
            self.launched.emit(None)

    def _handle_sharing(self, event: SharingChanged) -> None:
        self.shared, self.encrypted = event.shared, event.encrypted
        self.launched.emit(self.launch)

    def _handle_launched(self, event: Launched) -> None:
        self._view_model.update(
            model=event.model,
            starting="",
            settings=event.settings,
            address=event.address,
            served=True,
            texts_path=event.launch.options.texts_path,
        )
        self.launch, self.note = event.launch, event.note
        self.shared, self.encrypted = event.shared, event.encrypted
        if model := self._model_request.model if self._model_request else self._service.served_name:
            # The next start without arguments repeats the settings that run now.
            self._model_request = ModelRequest(model, start=start_settings.ResolvedStart(model, event.launch.options))
        self.launched.emit(event.launch)
        if event.note:  # a measurement on this machine may disagree
            launch = event.launch
            self._run(
                self._service.read_tuning_note,
                launch,
                done=lambda note: self._handle_note(launch, note),
            )

    def _handle_note(self, launch: "Launch", note: str) -> None:
        if note and self.launch is launch:
            self.note = note
            self.view_changed.emit(self.view)

    def _update_health(self, findings: "tuple[Finding, ...]") -> None:
        if findings != self.health:
            self.health = findings
            self.health_changed.emit(findings)

    def _handle_end(self, end: "Ended | ReplyFinished") -> None:
        if isinstance(end, ReplyFinished):
            self._finish_reply(end.number, end.reply, format_footer(end.reply))
        elif end.name == "close":
            self.bridge.close()
            self.closed.emit()
        elif end.name.startswith("reply "):
            number = int(end.name.removeprefix("reply "))
            self._finish_reply(number, None, tr("Stopped by you.") if end.error is None else render(str(end.error)))
        elif end.error is not None and not isinstance(end.error, Superseded):
            self.show_problem(end.error if isinstance(end.error, LauncherError) else wrap_unexpected_error(end.error))

    def _show_failure(self, error: LauncherError) -> None:
        """Show why a request failed. The running server is not affected."""
        if isinstance(error, Superseded):
            return
        self._view_model.update(starting="")
        if self.inputs.status.state is ServerState.PREPARING:
            self._view_model.update(status=ServerStatus(ServerState.FAILED, error=error))
        elif self.inputs.status.error is not error:  # unless the status shows the error already
            self._view_model.update(problem=error)
        self.refused.emit(error)

    def _finish_reply(self, number: int, reply: "Reply | None", footer: str) -> None:
        """Finish reply `number`. The Ended event that follows a complete reply is ignored."""
        if self.inputs.replying and number == self._reply_number:
            self._reply_work = None
            self.replied.emit(reply, footer)
            self._view_model.update(replying=False)
