"""List of the window's pages. Pages of the rail are built before they are shown."""

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from launcher.gui.translation import mark, mark_page

if TYPE_CHECKING:
    from PySide6.QtWidgets import QWidget

    from launcher.gui.controller import Controller


class PageSpec(NamedTuple):
    """A page: name, title in the rail, keyboard shortcut, and class as "module:Class".

    The class is a QWidget that takes the controller. Optional methods: `on_shown()`, `on_hidden()` and, if building
    takes long, `build_next_part() -> bool`, which runs the next build step and returns False when none is left. When
    pages are built anew, in another language or text size, `hand_over()` returns what the next page needs of this one,
    and the next one's class takes that as `kept`: what cannot be read again, but no widgets.

    `needs` lists modules that the page imports later: in `on_shown()` on another thread, or when a server has started.
    They are imported in advance, because that delays the page's painting, on another thread, too (by 0.1 s for Tune).
    """

    name: str
    title: str
    key: str
    factory: str
    in_rail: bool = True
    needs: tuple[str, ...] = ()

    def import_modules(self) -> Iterator[str]:
        """Import the page's `needs` and its module, unless they are loaded. Yields the name of each one imported.

        The module comes last, because it imports some of the others: so no step takes as long as both.
        """
        for name in (*self.needs, self.factory.partition(":")[0]):
            if name not in sys.modules:
                import_module(name)
                yield name

    def build(self, controller: "Controller", kept: object = None) -> "QWidget":
        """Build the page. `kept` is what its predecessor has handed over; None without one."""
        module, _, name = self.factory.partition(":")
        factory = getattr(import_module(module), name)
        page: QWidget = factory(controller) if kept is None else factory(controller, kept)
        return page


PAGES = (
    PageSpec("start", mark_page("Start"), "Ctrl+1", "launcher.gui.start.page:StartPage"),
    PageSpec(
        "cockpit",
        mark("Cockpit"),
        "Ctrl+2",
        "launcher.gui.cockpit.page:CockpitPage",
        needs=("launcher.gui.plots.samples",),
    ),
    PageSpec(
        "tune",
        mark("Tune"),
        "Ctrl+3",
        "launcher.gui.tune.page:TunePage",
        needs=(
            "launcher.app.measuring.saved_tunes",
            "launcher.tuning.history",
            "launcher.app.serving.serving",
            "launcher.app.serving.use_counting",
            "launcher.app.planning.tuned_match",
            "launcher.app.measuring.tuner_space",
        ),
    ),
    PageSpec("models", mark("Models"), "Ctrl+4", "launcher.gui.models.page:ModelsPage"),
    PageSpec(
        "agents",
        mark("Agents"),
        "Ctrl+5",
        "launcher.gui.agents.page:AgentsPage",
        needs=("launcher.app.agent_session", "pygments.lexers"),
    ),
    PageSpec("logs", mark("Logs"), "Ctrl+6", "launcher.gui.logs.page:LogsPage"),
    PageSpec("settings", mark("Settings"), "Ctrl+,", "launcher.gui.settings.page:SettingsPage"),
    PageSpec("keys", mark("Keyboard"), "F1", "launcher.gui.keys:KeysPage", in_rail=False),
    PageSpec("about", mark("About"), "", "launcher.gui.about:AboutPage", in_rail=False),
)
