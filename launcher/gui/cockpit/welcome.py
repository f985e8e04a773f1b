"""The Cockpit before the first start: buttons that start the last model, the demo or another model.

After a start that failed or was stopped, the first button starts that model again.
"""

from PySide6.QtCore import Slot

from launcher.base.errors import LauncherError
from launcher.base.text import one_line
from launcher.gui.controller import Controller
from launcher.gui.late import catalogue_load, last_start, model_search
from launcher.gui.service import DEMO, name_model
from launcher.gui.translation import tr
from launcher.gui.viewmodel import View
from launcher.gui.widgets import EmptyState
from launcher.runtime import WorkHandle

_MOST_CHARACTERS = 48
"""Characters of a model's name that are shown."""


class Welcome(EmptyState):
    """Offers the model that was served last, if it is still on this computer, and the demo."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("No model is running"), "")
        self._controller = controller
        self._finding: WorkHandle[None] | None = None
        self._last_model: str | None = None
        self._not_started: tuple[str, bool] | None = None
        """The model whose start has ended, and whether it failed; None before the first start."""
        self._show_model(None)
        controller.view_changed.connect(self._show_view)

    def request_last_model(self) -> None:
        """Find the last model, and offer it."""
        if self._finding is not None:
            self._finding.cancel()  # the earlier search might end after the new one, with an older answer
        self._finding = self._controller.bridge.run(_read_last_model, done=self._show_model)

    @Slot(object)
    def _show_view(self, view: View) -> None:
        """Offer the model again whose start has failed or was stopped."""
        not_started = (view.model_name, bool(view.problem)) if view.can_start and view.offers_demo else None
        if not_started != self._not_started:
            self._not_started = not_started
            self._show_model(self._last_model)

    def _show_model(self, model: str | None) -> None:
        """Offer a model by its name or the path of its file; None for the demo alone."""
        self._last_model = model
        demo_text = tr(
            "The demo runs a real llama.cpp server with MTP and a built-in 9 MB model. It needs no GPU and "
            "no network.\n\nIt shows each step, not a speed-up, and the model can only talk about this program."
        )
        controller = self._controller
        buttons = [
            (tr("Start the demo"), lambda: controller.start(DEMO)),
            (tr("Open a model ..."), controller.choose_file),
        ]
        if self._not_started is not None:
            model_name, failed = self._not_started
            name = one_line(model_name, _MOST_CHARACTERS)
            text = (
                tr("{model} did not start. The reason is above.", model=name)
                if failed
                else tr("{model} was stopped before it was ready.", model=name)
            )
            self.show_content(text, [(tr("Start it again"), lambda: controller.start()), *buttons])
            return
        if model is None:
            self.show_content(demo_text, buttons)
            return
        name = one_line(name_model(model), _MOST_CHARACTERS)
        controller.note_last_model(name)
        text = tr("You used {model} last. It starts with the settings that you chose for it.", model=name)
        label = tr("Start {model}", model=name.replace("&", "&&"))
        self.show_content(text, [(label, lambda: controller.start(model)), *buttons])


def _read_last_model() -> str | None:
    """Return the name or path of the model that was served last, None without one that can be started again."""
    name = last_start.load_last_model()
    if name is None or name == DEMO:
        return None
    try:
        return name if model_search.select_model(name, catalogue_load.load_catalogue()).path is not None else None
    except (LauncherError, OSError):  # the file was deleted or renamed
        return None
