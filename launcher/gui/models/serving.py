"""The state of each model file at the server: loaded, being loaded, or neither."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from launcher.engine.demo import DEMO
from launcher.engine.server.state import SERVING, ModelStatus, ServerState

if TYPE_CHECKING:
    from launcher.app.models.model_library import LibraryFile, LibraryModel
    from launcher.gui.controller import Controller

_ENDED = (ServerState.STOPPED, ServerState.FAILED)


@dataclass(frozen=True, slots=True)
class Serving:
    """The models at the server's address.

    `statuses` holds the models that are loaded or being loaded. Its keys are the paths of their files; the demo's is
    "demo". `rests` is True if nothing is served or starting. `running` is the name of the model that the server was
    started with.
    """

    statuses: Mapping[str, ModelStatus] = field(default_factory=dict)
    rests: bool = True
    running: str = ""

    def find_status(self, model: LibraryModel, file: LibraryFile | None) -> ModelStatus | None:
        """Return the state of a file that is loaded or being loaded; None if it is neither."""
        return self.statuses.get(serving_key(model, file))

    @property
    def loaded(self) -> frozenset[str]:
        """The keys of the files that are loaded."""
        return frozenset(key for key, status in self.statuses.items() if is_loaded(status))


def read_serving(controller: Controller) -> Serving:
    """Return the models at the server's address, and those that the window is about to load there."""
    inputs, launch = controller.inputs, controller.launch
    statuses = {key: ModelStatus(key, ServerState.PREPARING) for key in controller.joining.values()}
    if launch is not None:
        key = DEMO if launch.options.alias == DEMO else str(launch.options.model)
        statuses[key] = ModelStatus(key, inputs.status.state, is_main=True)
    for each in inputs.models.models:
        statuses[DEMO if each.name == DEMO else each.path] = each
    current = {key: status for key, status in statuses.items() if status.state not in _ENDED}
    return Serving(current, controller.view.resting, controller.view.model_name)


def serving_key(model: LibraryModel, file: LibraryFile | None) -> str:
    """Return what identifies a file among those at the server's address; "" for one that is not here."""
    if model.is_built_in:
        return DEMO
    return str(file.local.path) if file is not None and file.local is not None else ""


def is_loaded(status: ModelStatus) -> bool:
    """Return whether a model takes requests."""
    return status.state in SERVING
