"""View model of the Cockpit, derived from frozen inputs by pure functions."""

from typing import Any, NamedTuple

from PySide6.QtCore import QObject, Signal

from launcher.base.action import Action
from launcher.base.errors import LauncherError, ModelHasNoHead
from launcher.base.text import one_line
from launcher.engine.server.state import SERVING, ModelsChanged, ModelStatus, ServerState, ServerStatus
from launcher.gui.translation import mark, render, tr

_STATE_NAMES = {
    ServerState.STOPPED: mark("Stopped"),
    ServerState.PREPARING: mark("Preparing"),
    ServerState.LOADING: mark("Loading"),
    ServerState.WARMING_UP: mark("Warming up"),
    ServerState.READY: mark("Ready"),
    ServerState.BUSY: mark("Busy"),
    ServerState.DRAINING: mark("Finishing"),
    ServerState.RESTARTING: mark("Restarting"),
    ServerState.STOPPING: mark("Stopping"),
    ServerState.FAILED: mark("Failed"),
}
_MEANING = {
    ServerState.READY: "good",
    ServerState.BUSY: "good",
    ServerState.FAILED: "bad",
    ServerState.STOPPED: "secondary",
}
_GLYPH = {
    ServerState.READY: "dot",
    ServerState.BUSY: "target",
    ServerState.FAILED: "cross",
    ServerState.STOPPED: "ring",
}
_LONGEST_ERROR = 2_000
"""Characters of an error that are shown; it may quote a server or a file."""
_RESTING = (ServerState.STOPPED, ServerState.FAILED)
_STARTING = (ServerState.PREPARING, ServerState.LOADING, ServerState.WARMING_UP, ServerState.RESTARTING)


class Inputs(NamedTuple):
    """Everything that the Cockpit's controls depend on.

    `model` is the one that was served last in this window, `starting` that of a start that is under way, `last_model`
    that of an earlier window. `served` is whether a model has been served since the window opened; `texts_path` is the
    API's path for texts of a model that generates none; `problem` is an error besides the server's.
    """

    status: ServerStatus = ServerStatus()
    model: str | None = None
    starting: str = ""
    last_model: str = ""
    settings: str = ""
    address: str = ""
    replying: bool = False
    served: bool = False
    texts_path: str = ""
    problem: LauncherError | None = None
    models: ModelsChanged = ModelsChanged()


class View(NamedTuple):
    """State of the controls.

    `state_text` is the server's state for display, `glyph` the name of a painted glyph, `meaning` a role of the theme.
    `resting`: the server is stopped or failed. `under_way`: what is done until it is ready, with the per cent; "" if
    nothing is. `unloaded`: its own model is unloaded, but the address stays open for other models. `models` are those
    at its address, empty if there are no others. `actions` are the suggested fixes for `problem`,
    best first, for Controller.apply_fix.
    """

    state_text: str
    glyph: str
    meaning: str
    model_name: str
    address: str
    settings: str
    problem: str
    actions: tuple[Action, ...]
    resting: bool
    under_way: str
    unloaded: bool
    models: tuple[ModelStatus, ...]
    offers_start_without_mtp: bool
    offers_demo: bool
    can_start: bool
    can_stop: bool
    can_ask: bool
    replying: bool
    prompt_hint: str


def is_away(model: ModelStatus) -> bool:
    """Return whether a model is unloaded, and comes back when it is asked for."""
    return model.is_unloaded and model.state in _RESTING


def state_name(model: ModelStatus) -> str:
    """Return the state of a model at the server's address for display, with the per cent while it loads."""
    return tr("Unloaded") if is_away(model) else _describe_state(model.state, model.percent)


def derive_view(inputs: Inputs) -> View:
    """Derive the view from inputs."""
    state = inputs.status.state
    state_text = _describe_state(state, inputs.status.percent)
    error = inputs.problem or inputs.status.error
    stopped = state in _RESTING
    unloaded = stopped and inputs.models.is_main_unloaded
    resting = stopped and not unloaded
    if unloaded:
        state_text = tr("Unloaded")
    models = inputs.models.models
    running = state in SERVING
    return View(
        state_text=state_text,
        glyph=_GLYPH.get(state, "dashed"),
        meaning=_MEANING.get(state, "attention"),
        model_name=one_line(_name_model(inputs) or tr("No model yet")),
        address="" if resting else inputs.address,
        settings="" if resting else render(inputs.settings),
        problem=one_line(render(error.message), _LONGEST_ERROR) if error else "",
        actions=error.actions if error else (),
        resting=resting,
        under_way=state_text if state in _STARTING else "",
        unloaded=unloaded,
        models=models if unloaded or len(models) > 1 else (),
        offers_start_without_mtp=isinstance(error, ModelHasNoHead),
        offers_demo=resting and not inputs.served,
        can_start=stopped and inputs.model is not None,
        can_stop=not resting and (state is not ServerState.STOPPING or inputs.models.is_main_unloaded),
        can_ask=running and not inputs.texts_path and not inputs.replying,
        replying=inputs.replying,
        prompt_hint=_prompt_hint(state, state_text, running=running, texts_path=inputs.texts_path),
    )


def _name_model(inputs: Inputs) -> str:
    """Return the model to name beside the server's state: one that starts, else one that was served; "" without any."""
    if inputs.starting and inputs.status.state in _STARTING:
        return inputs.starting
    # A measurement starts a server of which nothing else is known before it is ready.
    main = next((each.name for each in inputs.models.models if each.is_main and each.path), "")
    return inputs.model or main or inputs.last_model


def _describe_state(state: ServerState, percent: float | None) -> str:
    name = tr(_STATE_NAMES[state])
    return name if percent is None else f"{name} {percent:.0f} %"


def _prompt_hint(state: ServerState, state_text: str, *, running: bool, texts_path: str) -> str:
    if running and texts_path:
        return tr("This model generates no text · programs send it texts at {path}", path=texts_path)
    if running:
        return tr("Ask something, or drop a file")
    if state in _RESTING:
        return tr("Load a model to chat")
    return tr("{state} · the model is not ready yet", state=state_text)


class ViewModel(QObject):
    """Holds inputs, derives the view, and emits `changed` only if the view differs."""

    changed = Signal(object)
    """View."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.inputs = Inputs()
        self.view = derive_view(self.inputs)

    def update(self, **changes: Any) -> None:  # noqa: ANN401 -- values of Inputs' fields
        """Change some inputs. Emits `changed` with the new view if it differs."""
        self.inputs = self.inputs._replace(**changes)
        view = derive_view(self.inputs)
        if view != self.view:
            self.view = view
            self.changed.emit(view)
