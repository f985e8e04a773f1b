"""What the window asks of the core, and what comes back: runs on the GUI's thread, never waits."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PySide6.QtCore import QObject, Signal, Slot

from launcher import settings, settings_file
from launcher.base.errors import LauncherError, Superseded
from launcher.engine.state import EngineStarted, LogAdded, Notice, State, Status
from launcher.gui.bridge import Bridge, Ended, unforeseen
from launcher.gui.chat.footer import footer_of
from launcher.gui.sentences import say
from launcher.gui.service import DEMO, Service
from launcher.gui.told import Came, Health, Launched, Link, Replied, Wish
from launcher.gui.viewmodel import Inputs, View, ViewModel, derive
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.app import Reply, Session
    from launcher.engine.action import Action
    from launcher.engine.client import Delta
    from launcher.engine.launch import Launch, ServeOptions
    from launcher.engine.settings import Value
    from launcher.monitor.health_event import Finding
    from launcher.runtime import Handle

_T = TypeVar("_T")


class Controller(QObject):
    """The session behind the window. What is emitted comes on the GUI's thread, 30 times a second at most."""

    view_changed = Signal(object)
    """View"""
    sampled = Signal(object)
    """list[Sampled]"""
    logged = Signal(object)
    """list[str], all lines of the engine's log as they come, and what the program has to say of it"""
    noticed = Signal(object)
    """Notice"""
    deltas = Signal(object)
    """list[Delta]: parts of the reply that is under way"""
    replied = Signal(object, str)
    """Reply | None, and the line under it: its figures, or why it ended"""
    launched = Signal(object)
    """Launch | None: what runs now"""
    health_changed = Signal(object)
    """tuple[Finding, ...]: what stands"""
    refused = Signal(object)
    """LauncherError: what was asked of the server last cannot be"""
    applied = Signal(object)
    """LauncherError | None: `apply` has ended; after an error the settings before run again, if they can"""
    fixing = Signal(object)
    """Action: what was proposed is being done"""
    page_asked = Signal(str)
    chat_asked = Signal()
    link_asked = Signal(str)
    told_user = Signal(str, str)
    """Title and text of something that is worth a notification of the system"""
    file_asked = Signal()
    setting_changed = Signal(str, object)
    """Name and value of a setting that was changed in this window"""
    closed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.bridge = Bridge(self)
        self.bridge.drained.connect(self._take)
        self.launch: Launch | None = None
        self.note = ""
        """What must be said beside the speed of what runs."""
        self.shared = False
        """Whether what runs is shared with the network."""
        self.sampling: Mapping[str, Any] = settings.sampling()
        """What applies to the next question: fields of ChatRequest, and others by llama-server's names."""
        self.health: tuple[Finding, ...] = ()
        self._model = ViewModel[Inputs, View](Inputs(), derive, self)
        self._model.changed.connect(self.view_changed)
        self._service = Service(self.bridge.post)
        self._wish: Wish | None = None
        self._asking: Handle[object] | None = None
        self._request = self._reply = 0

    @property
    def view(self) -> View:
        """What the controls show now."""
        return self._model.view

    @property
    def session(self) -> "Session | None":
        """The core's session, None before the first start. To be used in work for the bridge, on the core's thread."""
        return self._service.session

    @property
    def named(self) -> str:
        """What is served, as the user named it; empty before the first start."""
        return self._service.named

    @property
    def inputs(self) -> Inputs:
        """What the view is derived from."""
        return self._model.inputs

    def start(
        self,
        model: str | None = None,
        *,
        draft: int | None = None,
        options: "ServeOptions | None" = None,
        chosen: "Mapping[str, Value] | None" = None,
    ) -> None:
        """Serve a model: "demo", a path, ID[:QUANT]; None is the last one again, as it was.

        What `options` and `draft` leave open is as the user chose it for this model the last time; of `options`,
        `chosen` is kept as that.
        """
        if model is not None:
            self._wish = Wish(model, draft, options, chosen)
        elif self._wish is not None and (draft is not None or options is not None):
            self._wish = Wish(self._wish.model, draft, options, chosen)
        wish = self._wish
        if wish is None:
            return
        changes: dict[str, object] = {"problem": None}
        if self._model.view.resting:
            name = "Demo model" if wish.model == DEMO else Path(wish.model).stem
            changes |= {"model": name, "settings": "", "address": "", "status": Status(State.PREPARING)}
        self._model.update(**changes)
        self._ask_for(lambda: self._service.start(wish))

    def seen(self, seen: bool) -> None:
        """Take note of whether anybody sees the window."""
        self.bridge.run(lambda _tell: self._service.seen(seen))

    def stop(self) -> None:
        """Stop the server."""
        self._ask_for(self._service.stop, self._rest)

    def apply(self, changes: "Mapping[str, Value]", *, drain_s: float, extra: Sequence[str] | None = None) -> None:
        """Restart with other settings (names of launcher.engine.settings, and arguments of one's own).

        Replies may end for up to `drain_s` seconds. `applied` tells how it ended.
        """
        changed = dict(changes)
        self._request += 1
        self._model.update(problem=None)
        self.bridge.run(
            lambda _tell: self._service.apply(changed, drain_s, extra),
            done=self.applied.emit,
            failed=self.applied.emit,
        )

    def share(self, shared: bool, ended: Callable[[LauncherError | None], object]) -> None:
        """Share what runs with the network, or not any more, by a restart; off again whenever the server stops.

        `ended` gets the error that it failed with.
        """
        self._request += 1
        self._model.update(problem=None)
        self.bridge.run(lambda _tell: self._service.share(shared), done=ended, failed=ended)

    def fix(self, action: "Action") -> None:
        """Do what a diagnosis or a finding proposes."""
        self.fixing.emit(action)
        self._model.update(problem=None)
        self._ask_for(lambda: self._service.fix(action))

    def measure(
        self,
        work: "Callable[[Session, str, Callable[[object], None]], Awaitable[_T]]",
        *,
        told: Callable[[Any], object],
        done: Callable[[_T], object],
        failed: Callable[[LauncherError], object],
        cancelled: Callable[[], object],
    ) -> "Handle[None]":
        """Lend the session to a measurement, with the name of the model that it serves, empty if none was served.

        It gives other settings to the server, and is told by Superseded when the user does so meanwhile. The other
        arguments are those of Bridge.run.
        """
        self._request += 1
        self._model.update(problem=None)
        return self.bridge.run(
            lambda tell: work(self._service.opened(), self._service.named, tell),
            told=told,
            done=done,
            failed=failed,
            cancelled=cancelled,
        )

    def ask(self, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any] | None = None) -> None:
        """Ask for a reply to a conversation; it comes by `deltas` and ends with `replied`."""
        self._reply += 1
        number, chosen = self._reply, dict(self.sampling if sampling is None else sampling)
        self._model.update(replying=True, problem=None)
        self._asking = self.bridge.submit(f"ask {number}", lambda: self._service.ask(number, messages, chosen))

    def stop_reply(self) -> None:
        """Cancel the reply that is under way."""
        if self._asking is not None:
            self._asking.cancel()

    def close(self) -> None:
        """Stop everything; `closed` comes when nothing runs any more."""
        self.bridge.submit("close", self._service.stop)

    def change_setting(self, name: str, value: "settings_file.Value") -> None:
        """Keep another value for a setting."""
        self.bridge.run(
            lambda _tell: asyncio.to_thread(settings.change, name, value),
            done=lambda standing: self.take_setting(standing.setting.name, standing.value),
            failed=self.show_problem,
        )

    def take_setting(self, name: str, value: "settings_file.Value") -> None:
        """Go by another value of a setting, which is kept, and tell the others."""
        if name in settings.SAMPLING:
            field, meant = settings.SAMPLING[name], settings.sampled(value)
            others = {each: given for each, given in self.sampling.items() if each != field}
            self.sampling = others if meant is None else others | {field: meant}
        self.setting_changed.emit(name, value)

    def ask_api_key(self, done: Callable[[str], object]) -> None:
        """Ask for the key of what runs."""
        self.bridge.run(lambda _tell: self._service.api_key(), done=done)

    def show_page(self, name: str) -> None:
        """Show another page of the window."""
        self.page_asked.emit(name)

    def open_chat(self) -> None:
        """Show the chat, ready for a question."""
        self.page_asked.emit("cockpit")
        self.chat_asked.emit()

    def notify(self, title: str, text: str) -> None:
        """Tell the user by the system's own means, if they want that, while the window is not in front."""
        self.told_user.emit(title, text)

    def choose_file(self) -> None:
        """Let the user choose a file to serve."""
        self.file_asked.emit()

    def show_problem(self, error: LauncherError) -> None:
        """Show an error that belongs to no server."""
        self._model.update(problem=error)

    def _ask_for(self, work: Callable[[], Awaitable[_T]], done: Callable[[_T], object] | None = None) -> None:
        """Ask for another state of the server; how it comes out is told as long as nothing newer was asked for."""
        self._request += 1
        number = self._request

        def if_newest(tell: Callable[[Any], object]) -> Callable[[Any], object]:
            return lambda result: tell(result) if number == self._request else None

        self.bridge.run(
            lambda _tell: work(), done=None if done is None else if_newest(done), failed=if_newest(self._fail)
        )

    def _rest(self, rests: bool) -> None:
        """Take note of a stop that the server does not tell itself, since it had not begun."""
        if rests and not self.view.resting:
            self._take_status(Status())

    @Slot(object)
    def _take(self, batch: list[object]) -> None:
        """Sort a batch of events: the newest status, all parts of the reply, all log lines, all samples."""
        came: list[Delta] = []
        lines: list[str] = []
        samples: list[object] = []
        ends: list[Ended | Replied] = []
        for event in batch:
            match event:
                case LogAdded(line):
                    lines.append(line)
                case Came(number, delta) if number == self._reply:
                    came.append(delta)
                case Notice(_, said):
                    lines.append(said)
                    self.noticed.emit(event)
                case Status():
                    self._take_status(event)
                    if event.error is not None:
                        lines.append(str(event.error))
                case Launched():
                    self._take_launched(event)
                case Health(standing):
                    self._show_health(standing)
                case Link(url):
                    self.link_asked.emit(url)
                case Ended() | Replied():
                    ends.append(event)
                case EngineStarted() | Came():
                    pass
                case _:
                    samples.append(event)
        if lines:
            self.logged.emit(lines)
        if came:
            self.deltas.emit(came)
        if samples:
            self.sampled.emit(samples)
        for end in ends:
            self._end(end)

    def _take_status(self, status: Status) -> None:
        self._model.update(status=status)
        if status.state in (State.STOPPED, State.FAILED):
            self._show_health(())
            self.shared = False
            if self.launch is not None:
                self.launch = None
                self.launched.emit(None)

    def _take_launched(self, event: Launched) -> None:
        self._model.update(model=event.model, settings=event.settings, address=event.address, served=True)
        self.launch, self.note, self.shared = event.launch, event.note, event.shared
        if self._wish is not None:
            self._wish = replace(self._wish, options=event.launch.options, chosen=None)
        self.launched.emit(event.launch)

    def _show_health(self, standing: "tuple[Finding, ...]") -> None:
        if standing != self.health:
            self.health = standing
            self.health_changed.emit(standing)

    def _end(self, end: "Ended | Replied") -> None:
        if isinstance(end, Replied):
            self._finish_reply(end.number, end.reply, footer_of(end.reply))
        elif end.what == "close":
            self.bridge.close()
            self.closed.emit()
        elif end.what.startswith("ask "):
            number = int(end.what.removeprefix("ask "))
            self._finish_reply(number, None, tr("Stopped by you.") if end.error is None else say(str(end.error)))
        elif end.error is not None and not isinstance(end.error, Superseded):
            self.show_problem(end.error if isinstance(end.error, LauncherError) else unforeseen(end.error))

    def _fail(self, error: LauncherError) -> None:
        """Show why something could not be; what runs goes on."""
        if isinstance(error, Superseded):
            return
        if self.inputs.status.state is State.PREPARING:
            self._model.update(status=Status(State.FAILED, error=error))
        elif self.inputs.status.error is not error:
            self._model.update(problem=error)
        self.refused.emit(error)

    def _finish_reply(self, number: int, reply: "Reply | None", footer: str) -> None:
        """End reply `number`; its work ends once more after it was whole, and then this has been done."""
        if self.inputs.replying and number == self._reply:
            self._asking = None
            self.replied.emit(reply, footer)
            self._model.update(replying=False)
