"""The pages of the window: declared here; those of the rail are built before they are shown."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from launcher.gui.words import mark

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

    from launcher.gui.controller import Controller


@dataclass(frozen=True, slots=True)
class PageSpec:
    """A page: its name, the title in the rail, the key that shows it, and the class as "module:Class".

    The class is a QWidget that takes the controller, with optional methods `shown()`, `hidden()` and, where it takes
    long to build, `build_on() -> bool`, which does the next step of that, if one is left. `needs` are modules that its
    `shown()` has imported on another thread, which would hold up the page's own painting: 0.1 s for Tune's.
    """

    name: str
    title: str
    key: str
    factory: str
    in_rail: bool = True
    needs: tuple[str, ...] = ()

    def load(self) -> Iterator[str]:
        """Import its code and what it needs; each item is a module that is there now."""
        for name in (self.factory.partition(":")[0], *self.needs):
            import_module(name)
            yield name

    def build(self, controller: "Controller") -> "QWidget":
        """Return the page."""
        module, _, name = self.factory.partition(":")
        page: QWidget = getattr(import_module(module), name)(controller)
        return page


PAGES = (
    PageSpec("start", mark("Start"), "Ctrl+1", "launcher.gui.start.page:StartPage"),
    PageSpec("cockpit", mark("Cockpit"), "Ctrl+2", "launcher.gui.cockpit.page:CockpitPage"),
    PageSpec(
        "tune",
        mark("Tune"),
        "Ctrl+3",
        "launcher.gui.tune.page:TunePage",
        needs=(
            "launcher.tuner_kept",
            "launcher.tuning.history",
            "launcher.app",
            "launcher.use_counting",
            "launcher.machine_presets",
            "launcher.tuner_space",
        ),
    ),
    PageSpec("models", mark("Models"), "Ctrl+4", "launcher.gui.models.page:ModelsPage"),
    PageSpec("logs", mark("Logs"), "Ctrl+5", "launcher.gui.logs.page:LogsPage"),
    PageSpec("settings", mark("Settings"), "Ctrl+,", "launcher.gui.settings.page:SettingsPage"),
    PageSpec("keys", mark("Keyboard"), "F1", "launcher.gui.keys:KeysPage", in_rail=False),
    PageSpec("about", mark("About"), "", "launcher.gui.about:AboutPage", in_rail=False),
)
