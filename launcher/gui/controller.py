"""What the window asks of the core, and what comes back: runs on the GUI's thread, never waits."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal, Slot

from launcher import settings, settings_file
from launcher.base.errors import LauncherError, ServerNotFound, Superseded
from launcher.engine.state import EngineStarted, LogAdded, Notice, State, Status
from launcher.gui.bridge import Bridge, Ended, unforeseen
from launcher.gui.told import Came, Health, Launched, Link, Replied, Wish
from launcher.gui.viewmodel import Inputs, View, ViewModel, derive
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.app import Reply, Session
    from launcher.engine.action import Action
    from launcher.engine.client import Delta
    from launcher.engine.launch import Launch, ServeOptions
    from launcher.engine.settings import Value
    from launcher.engine.state import Event
    from launcher.monitor.health_event import Finding, HealthEvent
    from launcher.runtime import Handle

DEMO = "demo"
_REQUEST = ("max_tokens", "temperature", "seed", "thinking")
"""The sampling values that ChatRequest has fields for."""


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
    applied = Signal(object)
    """LauncherError | None: `apply` has ended; after an error the settings before run again, if they can"""
    page_asked = Signal(str)
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
        self._session: Session | None = None
        self._told: Launch | None = None
        self._wish: Wish | None = None
        self._asking: Handle[object] | None = None
        self._reply = 0
        self._closing = False

    @property
    def view(self) -> View:
        """What the controls show now."""
        return self._model.view

    @property
    def session(self) -> "Session | None":
        """The core's session, None before the first start. To be used in work for the bridge, on the core's thread."""
        return self._session

    @property
    def inputs(self) -> Inputs:
        """What the view is derived from."""
        return self._model.inputs

    def start(
        self, model: str | None = None, *, draft: int | None = None, options: "ServeOptions | None" = None
    ) -> None:
        """Serve a model: "demo", a path, ID[:QUANT]; None is the last one again, as it was.

        What `options` and `draft` leave open is as the user chose it for this model the last time.
        """
        if model is not None:
            self._wish = Wish(model, draft, options)
        elif self._wish is not None and (draft is not None or options is not None):
            self._wish = Wish(self._wish.model, draft, options)
        wish = self._wish
        if wish is None:
            return
        if self._model.view.resting:
            name = "Demo model" if wish.model == DEMO else Path(wish.model).stem
            self._model.update(model=name, settings="", address="", status=Status(State.PREPARING))
        self._model.update(problem=None)
        self.bridge.submit("start", lambda: self._start(wish))

    def stop(self) -> None:
        """Stop the server."""
        self.bridge.submit("stop", self._stop)

    def apply(self, changes: "Mapping[str, Value]", *, drain_s: float, extra: Sequence[str] | None = None) -> None:
        """Restart with other settings (names of launcher.engine.settings, and arguments of one's own).

        Replies may end for up to `drain_s` seconds. `applied` tells how it ended.
        """
        self._model.update(problem=None)
        changed = dict(changes)
        self.bridge.run(
            lambda _tell: self._apply(changed, drain_s, extra),
            done=self.applied.emit,
            failed=self.applied.emit,
        )

    def share(self, shared: bool, ended: Callable[[LauncherError | None], object]) -> None:
        """Share what runs with the network, or not any more, by a restart; off again whenever the server stops.

        `ended` gets the error that it failed with.
        """
        self._model.update(problem=None)
        self.bridge.run(lambda _tell: self._share(shared), done=ended, failed=ended)

    def fix(self, action: "Action") -> None:
        """Do what a diagnosis or a finding proposes."""
        self._model.update(problem=None)
        self.bridge.submit("fix", lambda: self._fix(action))

    def ask(self, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any] | None = None) -> None:
        """Ask for a reply to a conversation; it comes by `deltas` and ends with `replied`."""
        self._reply += 1
        number, chosen = self._reply, dict(self.sampling if sampling is None else sampling)
        self._model.update(replying=True, problem=None)
        self._asking = self.bridge.submit(f"ask {number}", lambda: self._ask(number, messages, chosen))

    def stop_reply(self) -> None:
        """Cancel the reply that is under way."""
        if self._asking is not None:
            self._asking.cancel()

    def close(self) -> None:
        """Stop everything; `closed` comes when nothing runs any more."""
        self._closing = True
        self.bridge.submit("close", self._stop)

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

    def show_page(self, name: str) -> None:
        """Show another page of the window."""
        self.page_asked.emit(name)

    def notify(self, title: str, text: str) -> None:
        """Tell the user by the system's own means, if they want that, while the window is not in front."""
        self.told_user.emit(title, text)

    def choose_file(self) -> None:
        """Let the user choose a file to serve."""
        self.file_asked.emit()

    def show_problem(self, error: LauncherError) -> None:
        """Show an error that belongs to no server."""
        self._model.update(problem=error)

    async def _start(self, wish: "Wish") -> None:
        """Serve as the command line does: what was chosen for this model the last time holds again."""
        from launcher import app
        from launcher.engine.last import keep_last
        from launcher.engine.launch import ServeOptions
        from launcher.engine.settings import remembered, with_settings

        session = self._session
        if session is None:
            session = self._session = app.Session(
                on_event=self._hear, on_sample=self.bridge.post, on_health=self._hear_health
            )
        options, chosen = wish.options, None
        if options is None:
            options = app.options_for(wish.model, lambda path: ServeOptions(model=path), draft=wish.draft)
            asked = {} if wish.draft is None else {"draft": wish.draft}
            chosen = remembered(options.model) | asked
            options = with_settings(options, chosen)
        before = self._told
        if session.rests:
            await session.share(False)  # each time anew
        await session.start(options, chosen=chosen, named=wish.model)
        self.bridge.post(session.supervisor.status)  # it may have been so before
        if self._told is before:  # it ran already
            self._tell_launched(session, wish.model)
        await asyncio.to_thread(keep_last, wish.model)

    async def _apply(self, changes: "Mapping[str, Value]", drain_s: float, extra: Sequence[str] | None) -> None:
        from launcher.engine.settings import with_settings

        session = self._running()
        launch = session.supervisor.launch
        if launch is None:
            raise ServerNotFound("The server has never run, so there is nothing to change.", "Start it first.")
        options = with_settings(session.supervisor.options or launch.options, changes)
        if extra is not None:
            options = replace(options, extra=tuple(extra))
        await session.start(options, again=True, drain_s=drain_s, chosen=changes)

    async def _share(self, shared: bool) -> None:
        drain_s = await asyncio.to_thread(settings.drain_s)
        await self._running().share(shared, drain_s=drain_s)

    async def _fix(self, action: "Action") -> None:
        """Start again, changed as the action says, or open its address."""
        session = self._running()
        link = session.way(action).link
        if link is not None:
            self.bridge.post(Link(link))
        else:
            await session.fix(action)

    def _running(self) -> "Session":
        if self._session is None:
            raise ServerNotFound("The server is not running.", "Start it first.")
        return self._session

    def _hear(self, event: "Event") -> None:
        """Pass on what the core tells; a server may also be restarted with other settings from the command line."""
        self.bridge.post(event)
        session, ready = self._session, isinstance(event, Status) and event.state is State.READY
        if ready and session is not None and self._wish and session.supervisor.launch is not self._told:
            self._tell_launched(session, self._wish.model)

    def _hear_health(self, _event: "HealthEvent") -> None:
        if self._session is not None:
            self.bridge.post(Health(tuple(self._session.monitor.watch.standing)))

    def _tell_launched(self, session: "Session", what: str) -> None:
        from launcher.engine.demo import demo_preset

        launch = session.supervisor.launch
        self._told = launch
        if launch is not None:
            draft = launch.options.draft
            context = f"{launch.context // 1024}K" if launch.context % 1024 == 0 else f"{launch.context:,}"
            settings = (
                tr("{context} context · draft {draft} · MTP on", context=context, draft=draft)
                if draft
                else tr("{context} context · MTP off", context=context)
            )
            settings += tr(" · shared with the network") if session.shared else ""
            note = demo_preset().speed_note if what == DEMO else ""
            address = session.supervisor.endpoint.url.removeprefix("http://")
            self.bridge.post(Launched(launch, launch.header.name, settings, address, note, session.shared))

    async def _stop(self) -> None:
        if self._session is not None:
            await self._session.stop()
            await self._session.share(False)

    async def _ask(self, number: int, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any]) -> None:
        from launcher.engine.client import ChatRequest

        named = {name: value for name, value in sampling.items() if name in _REQUEST}
        others = {name: value for name, value in sampling.items() if name not in _REQUEST}
        request = ChatRequest(messages, **named, extra=others)
        reply = await self._running().ask(request, lambda delta: self.bridge.post(Came(delta)))
        self.bridge.post(Replied(number, reply))

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
                case Came(delta):
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
                case EngineStarted():
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
            self._wish = replace(self._wish, options=event.launch.options)
        self.launched.emit(event.launch)

    def _show_health(self, standing: "tuple[Finding, ...]") -> None:
        if standing != self.health:
            self.health = standing
            self.health_changed.emit(standing)

    def _end(self, end: "Ended | Replied") -> None:
        if isinstance(end, Replied):
            self._finish_reply(end.number, end.reply, end.reply.line)
        elif end.what == "close":
            self.bridge.close()
            self.closed.emit()
        elif end.what.startswith("ask "):
            number = int(end.what.removeprefix("ask "))
            self._finish_reply(number, None, "Stopped by you." if end.error is None else str(end.error))
        elif end.error is not None and not isinstance(end.error, Superseded):
            self._fail(end.error if isinstance(end.error, LauncherError) else unforeseen(end.error))

    def _fail(self, error: LauncherError) -> None:
        """Show why something could not be; what runs goes on."""
        if self.inputs.status.state is State.PREPARING:
            self._model.update(status=Status(State.FAILED, error=error))
        elif self.inputs.status.error is not error:
            self._model.update(problem=error)

    def _finish_reply(self, number: int, reply: "Reply | None", footer: str) -> None:
        """End reply `number`; its work ends once more after it was whole, and then this has been done."""
        if self.inputs.replying and number == self._reply:
            self._asking = None
            self.replied.emit(reply, footer)
            self._model.update(replying=False)
