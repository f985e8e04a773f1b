"""What must be said above the panes: why something failed, and what a detector found; each with its button."""

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QVBoxLayout, QWidget

from launcher.base.errors import LauncherError, Superseded
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.sentences import say
from launcher.gui.viewmodel import View
from launcher.gui.widgets import Banner
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.base.action import Action
    from launcher.gui.widgets.blocks import Button
    from launcher.monitor.health_event import Code, Finding

_MEANINGS = {"warning": "attention", "information": "information"}


class Notices(QWidget):
    """A line for what failed, one for each finding that stands, one for what was done."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.problem, self.done = Banner(), Banner()
        self.findings: dict[Code, Banner] = {}
        self._dismissed: set[Code] = set()
        self._failed: LauncherError | None = None
        self._shown: LauncherError | None = None
        self._closed: LauncherError | None = None
        """The errors that the line for what failed shows, and showed when the user took it away."""
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(theme.px(theme.GAP))
        self._column.addWidget(self.problem)
        self._column.addWidget(self.done)
        self.problem.closed.connect(self._forget)
        controller.view_changed.connect(self.show_view)
        controller.applied.connect(self.show_applied)
        controller.launched.connect(self._take_launch)
        controller.health_changed.connect(self.show_health)
        self.show_view(controller.view)
        self.show_health(controller.health)

    @Slot(object)
    def show_view(self, view: View) -> None:
        """Show why the server failed or is being restarted."""
        inputs = self._controller.inputs
        error = inputs.problem or inputs.status.error
        if error is not None and error is not self._closed:
            self._tell(view.problem, error, without_mtp=view.offers_without_mtp)
        elif self._failed is not None:
            self._tell(str(self._failed), self._failed, without_mtp=False)
        else:
            self.problem.clear()
        self._fit()

    @Slot(object)
    def show_applied(self, error: LauncherError | None) -> None:
        """Say why new settings were not taken over; what ran before runs again if it can."""
        self._failed = None if isinstance(error, Superseded) else error
        self.show_view(self._controller.view)

    @Slot(object)
    def _take_launch(self, launch: object) -> None:
        """What failed to be applied is of no account any more once something else runs."""
        if launch is not None and self._failed is not None:
            self._failed = None
            self.show_view(self._controller.view)

    def say(self, text: str) -> None:
        """Say that something was done."""
        self.done.tell(text, "good")
        self._fit()

    @Slot(object)
    def show_health(self, standing: "tuple[Finding, ...]") -> None:
        """Show what stands against the server's health; what was dismissed comes back when it is found anew."""
        codes = {finding.code for finding in standing}
        self._dismissed &= codes
        for code in [each for each in self.findings if each not in codes]:
            banner = self.findings.pop(code)
            self._column.removeWidget(banner)
            banner.deleteLater()
        for finding in standing:
            if finding.code in self._dismissed:
                continue
            banner = self.findings.get(finding.code) or self._add(finding.code)
            buttons = [self._button(finding.action)] if finding.action else []
            banner.tell(finding.sentence, _MEANINGS[finding.level.value], [each for each in buttons if each])
        self._fit()

    def _add(self, code: "Code") -> Banner:
        banner = self.findings[code] = Banner()
        banner.closed.connect(partial(self._dismiss, code))
        self._column.addWidget(banner)
        return banner

    def _dismiss(self, code: "Code") -> None:
        self._dismissed.add(code)
        self._fit()

    def _forget(self) -> None:
        self._failed, self._closed = None, self._shown
        self._fit()

    def _tell(self, text: str, error: LauncherError, *, without_mtp: bool) -> None:
        self._shown = error
        offered = [self._button(action) for action in error.actions]
        buttons = [each for each in offered if each]
        if without_mtp:
            buttons.insert(0, (tr("Start without MTP"), lambda: self._controller.start(draft=0)))
        self.problem.tell(text, "bad", buttons[:1])

    def _button(self, action: "Action | None") -> "Button | None":
        """Return the button that does what is proposed; None where only the user can."""
        if action is None:
            return None
        from launcher.base.action import ActionKind
        from launcher.engine.action import starts_again

        pages = {
            ActionKind.OTHER_MODEL: "start",
            ActionKind.OTHER_ENGINE_BUILD: "start",
            ActionKind.DOWNLOAD_AGAIN: "models",
        }
        if starts_again(action) or "link" in action.parameters:
            return say(action.label), lambda: self._fix(action)
        page = pages.get(action.kind)
        return (say(action.label), lambda: self._controller.show_page(page)) if page else None

    def _fix(self, action: "Action") -> None:
        self._failed = None
        self._controller.fix(action)

    def _fit(self) -> None:
        """Take no room while there is nothing to say."""
        self.setVisible(any(not each.isHidden() for each in (self.problem, self.done, *self.findings.values())))
