"""What the window asks of the core, and what comes back: runs on the GUI's thread, never waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal, Slot

from launcher.base.errors import LauncherError, Superseded
from launcher.engine.state import LogAdded, Notice, State, Status
from launcher.gui.bridge import Bridge, Ended
from launcher.gui.viewmodel import Inputs, View, ViewModel, derive

if TYPE_CHECKING:
    from launcher.app import Session
    from launcher.engine.client import Delta
    from launcher.engine.launch import Launch
    from launcher.engine.state import Event
    from launcher.runtime import Handle

DEMO = "demo"
_POLLING = "update_slots: all slots are idle"
"""What the engine prints whenever it is asked for its figures; the log file has it."""
_MOST_LINES = 200
"""Of the log in one batch: 6,000 a second, more than anybody can read. In a flood the widget takes no more."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A server is ready: what it serves, and where."""

    model: str
    settings: str
    address: str
    note: str
    engine: str


@dataclass(frozen=True, slots=True)
class Came:
    """A part of the reply came."""

    delta: "Delta"


@dataclass(frozen=True, slots=True)
class Replied:
    """A reply is whole; `footer` are its figures."""

    number: int
    footer: str


class Controller(QObject):
    """The session behind the window."""

    view_changed = Signal(object)
    sampled = Signal(list)
    logged = Signal(list)
    came = Signal(str, str)
    replied = Signal(str)
    serving = Signal(object)
    closed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.bridge = Bridge(self)
        self.bridge.drained.connect(self._take)
        self._model = ViewModel[Inputs, View](Inputs(), derive, self)
        self._model.changed.connect(self.view_changed)
        self._session: Session | None = None
        self._told: Launch | None = None
        self._what: str | None = None
        self._draft: int | None = None
        self._asking: Handle[object] | None = None
        self._reply = 0

    @property
    def view(self) -> View:
        """What the controls show now."""
        return self._model.view

    @property
    def inputs(self) -> Inputs:
        """What the view is derived from."""
        return self._model.inputs

    def start(self, model: str | None = None, *, draft: int | None = None) -> None:
        """Serve a model: "demo", a path, or the last one again as it was.

        `draft` None takes the usual draft length, or that of the last time.
        """
        if model is not None:
            self._what, self._draft = model, None
        if draft is not None:
            self._draft = draft
        if self._what is None:
            return
        what, chosen = self._what, self._draft
        if self._model.view.resting:
            name = "Demo model" if what == DEMO else Path(what).stem
            self._model.update(model=name, settings="", address="", status=Status(State.PREPARING))
        self._model.update(problem=None)
        self.bridge.submit("start", lambda: self._start(what, chosen))

    def stop(self) -> None:
        """Stop the server."""
        self.bridge.submit("stop", self._stop)

    def ask(self, messages: Sequence[dict[str, str]]) -> None:
        """Ask for a reply to a conversation; it comes by `came` and ends with `replied`."""
        self._reply += 1
        number = self._reply
        self._model.update(replying=True, problem=None)
        self._asking = self.bridge.submit(f"ask {number}", lambda: self._ask(number, messages))

    def stop_reply(self) -> None:
        """Cancel the reply that is under way."""
        if self._asking is not None:
            self._asking.cancel()

    def close(self) -> None:
        """Stop everything; `closed` comes when nothing runs any more."""
        self.bridge.submit("close", self._stop)

    async def _start(self, what: str, draft: int | None) -> None:
        from launcher import app
        from launcher.engine.launch import ServeOptions

        session = self._session
        if session is None:
            session = self._session = app.Session(on_event=self._hear, on_sample=self.bridge.post)
        options = app.options_for(what, lambda path: ServeOptions(model=path), draft=draft)
        await session.start(options)
        self.bridge.post(session.supervisor.status)  # it may have been so before
        self._tell_serving(session, what)

    def _hear(self, event: "Event") -> None:
        """Pass on what the core tells; a server may also be restarted with other settings from the command line."""
        self.bridge.post(event)
        session, ready = self._session, isinstance(event, Status) and event.state is State.READY
        if ready and session is not None and self._what and session.supervisor.launch is not self._told:
            self._tell_serving(session, self._what)

    def _tell_serving(self, session: "Session", what: str) -> None:
        from launcher.engine.demo import demo_preset

        launch = session.supervisor.launch
        self._told = launch
        if launch is not None:
            draft = launch.options.draft
            context = f"{launch.context // 1024}K" if launch.context % 1024 == 0 else f"{launch.context:,}"
            settings = f"{context} context · " + (f"draft {draft} · MTP on" if draft else "MTP off")
            note = demo_preset().speed_note if what == DEMO else ""
            engine = f"{launch.build.name} engine\n{launch.build.version}"
            address = session.supervisor.endpoint.url.removeprefix("http://")
            self.bridge.post(Serving(launch.header.name, settings, address, note, engine))

    async def _stop(self) -> None:
        if self._session is not None:
            await self._session.stop()

    async def _ask(self, number: int, messages: Sequence[dict[str, str]]) -> None:
        from launcher.engine.client import ChatRequest

        if self._session is None:
            return
        reply = await self._session.ask(ChatRequest(messages), lambda delta: self.bridge.post(Came(delta)))
        self.bridge.post(Replied(number, reply.line))

    @Slot(list)
    def _take(self, batch: list[object]) -> None:
        """Sort a batch of events: the newest status, joined texts, joined log lines, all samples."""
        text, reasoning, lines, samples = [], [], [], []
        ends: list[Ended | Replied] = []
        for event in batch:
            match event:
                case Came(delta):
                    text.append(delta.content)
                    reasoning.append(delta.reasoning)
                case LogAdded(line):
                    if _POLLING not in line:
                        lines.append(line)
                case Notice(_, said):
                    lines.append(said)
                case Status():
                    self._model.update(status=event)
                    if event.error is not None:
                        lines.append(str(event.error))
                case Serving():
                    self._model.update(model=event.model, settings=event.settings, address=event.address, served=True)
                    self.serving.emit(event)
                case Ended() | Replied():
                    ends.append(event)
                case _:
                    samples.append(event)
        if len(lines) > _MOST_LINES:
            left_out = len(lines) - _MOST_LINES
            lines = [f"... {left_out:,} lines are not shown here, but in the log file ...", *lines[-_MOST_LINES:]]
        if lines:
            self.logged.emit(lines)
        if any(text) or any(reasoning):
            self.came.emit("".join(text), "".join(reasoning))
        if samples:
            self.sampled.emit(samples)
        for end in ends:
            self._end(end)

    def _end(self, end: "Ended | Replied") -> None:
        if isinstance(end, Replied):
            self._finish_reply(end.number, end.footer)
        elif end.what == "close":
            self.bridge.close()
            self.closed.emit()
        elif end.what.startswith("ask "):
            number = int(end.what.removeprefix("ask "))
            self._finish_reply(number, "Stopped by you." if end.error is None else str(end.error))
        elif end.error is not None and not isinstance(end.error, Superseded):
            self._fail(end.error if isinstance(end.error, LauncherError) else _unforeseen(end.error))

    def _fail(self, error: LauncherError) -> None:
        """Show why something could not be; what runs goes on."""
        if self.inputs.status.state is State.PREPARING:
            self._model.update(status=Status(State.FAILED, error=error))
        elif self.inputs.status.error is not error:
            self._model.update(problem=error)

    def show_problem(self, error: LauncherError) -> None:
        """Show an error that belongs to no server."""
        self._model.update(problem=error)

    def _finish_reply(self, number: int, footer: str) -> None:
        """End reply `number`; its work ends once more after it was whole, and then this has been done."""
        if self.inputs.replying and number == self._reply:
            self._asking = None
            self.replied.emit(footer)
            self._model.update(replying=False)


def _unforeseen(error: BaseException) -> LauncherError:
    return LauncherError(
        f"Something unforeseen went wrong: {type(error).__name__}: {error}.", "The log has more; please report it."
    )
