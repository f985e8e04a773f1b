"""What the cockpit shows, derived from frozen inputs by pure functions."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from PySide6.QtCore import QObject, Signal

from launcher.base.action import Action
from launcher.base.errors import LauncherError, ModelHasNoHead
from launcher.base.text import one_line
from launcher.engine.state import State, Status
from launcher.gui.sentences import say_error
from launcher.gui.words import mark, tr

_WORDS = {
    State.STOPPED: mark("Stopped"),
    State.PREPARING: mark("Preparing"),
    State.LOADING: mark("Loading"),
    State.WARMING_UP: mark("Warming up"),
    State.READY: mark("Ready"),
    State.BUSY: mark("Busy"),
    State.DRAINING: mark("Finishing"),
    State.RESTARTING: mark("Restarting"),
    State.STOPPING: mark("Stopping"),
    State.FAILED: mark("Failed"),
}
_MEANING = {State.READY: "good", State.BUSY: "good", State.FAILED: "bad", State.STOPPED: "secondary"}
_GLYPH = {State.READY: "dot", State.BUSY: "target", State.FAILED: "cross", State.STOPPED: "ring"}
_MOST = 2_000
"""Characters of an error, which may quote what a server or a file says."""
_RUNNING = (State.READY, State.BUSY)
_RESTING = (State.STOPPED, State.FAILED)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that the cockpit's controls depend on."""

    status: Status = field(default_factory=Status)
    model: str | None = None
    settings: str = ""
    address: str = ""
    replying: bool = False
    served: bool = False
    problem: LauncherError | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What the controls show. `glyph` is one of the painted ones, `meaning` a role of the theme.

    `actions` are what can be done about the problem, best first, for Controller.fix.
    """

    word: str
    glyph: str
    meaning: str
    subject: str
    address: str
    settings: str
    problem: str
    actions: tuple[Action, ...]
    resting: bool
    offers_without_mtp: bool
    offers_demo: bool
    can_start: bool
    can_stop: bool
    can_ask: bool
    replying: bool
    prompt_hint: str


def derive(inputs: Inputs) -> View:
    """Return what is shown for `inputs`."""
    state = inputs.status.state
    word = tr(_WORDS[state])
    if inputs.status.percent is not None:
        word = f"{word} {inputs.status.percent:.0f} %"
    error = inputs.problem or inputs.status.error
    resting = state in _RESTING
    running = state in _RUNNING
    return View(
        word=word,
        glyph=_GLYPH.get(state, "dashed"),
        meaning=_MEANING.get(state, "attention"),
        subject=one_line(inputs.model or tr("No model yet")),
        address="" if resting else inputs.address,
        settings="" if resting else inputs.settings,
        problem=one_line(say_error(error), _MOST) if error else "",
        actions=error.actions if error else (),
        resting=resting,
        offers_without_mtp=isinstance(error, ModelHasNoHead),
        offers_demo=resting and not inputs.served,
        can_start=resting and inputs.model is not None,
        can_stop=not resting and state is not State.STOPPING,
        can_ask=running and not inputs.replying,
        replying=inputs.replying,
        prompt_hint=_prompt_hint(state, running=running),
    )


def _prompt_hint(state: State, *, running: bool) -> str:
    if running:
        return tr("Ask something · Enter sends, Esc stops")
    if state in _RESTING:
        return tr("Start a model to ask it something")
    return tr("The model is not ready yet")


_I = TypeVar("_I")
_V = TypeVar("_V")


class ViewModel(QObject, Generic[_I, _V]):
    """Holds inputs, derives the view, and tells only when the view has changed."""

    changed = Signal(object)

    def __init__(self, inputs: _I, derive_view: Callable[[_I], _V], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._derive = derive_view
        self.inputs = inputs
        self.view = derive_view(inputs)

    def update(self, **changes: object) -> None:
        """Change some inputs; `changed` is emitted with the new view if that differs."""
        self.inputs = replace(self.inputs, **changes)  # type: ignore[type-var]
        view = self._derive(self.inputs)
        if view != self.view:
            self.view = view
            self.changed.emit(view)
