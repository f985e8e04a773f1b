"""System tray icon: server state, start and stop, address; and desktop notifications.

Run as a program it prints whether the desktop shows tray icons: "yes" or "no".
"""

from collections.abc import Callable

from PySide6.QtCore import QObject, Signal, Slot
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QApplication, QMenu, QSystemTrayIcon

from launcher.app import settings
from launcher.app.settings_declared import NOTIFICATIONS
from launcher.engine.server.state import ServerState
from launcher.gui.controller import Controller
from launcher.gui.icon import make_icon
from launcher.gui.translation import tr
from launcher.gui.viewmodel import View

_LONGEST_NOTIFICATION = 250
"""Characters of a notification's text."""


class Tray(QObject):
    """Tray icon with a menu. Emits requests to show the window and to quit; starts and stops the server directly."""

    window_requested = Signal()
    quit_requested = Signal()

    def __init__(self, controller: Controller, is_in_front: Callable[[], bool], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._is_in_front = is_in_front
        self._state = controller.inputs.status.state
        self.menu = QMenu()
        self._status = self._add_action("", None)
        self._address = self._add_action("", self._copy_address)
        self.menu.addSeparator()
        self._switch = self._add_action("", self._start_or_stop)
        self._add_action(tr("Show the window"), self.window_requested.emit)
        self.menu.addSeparator()
        self._add_action(tr("Quit"), self.quit_requested.emit)
        self.icon = QSystemTrayIcon(make_icon(), self)
        self.icon.setContextMenu(self.menu)
        self.icon.activated.connect(self._on_activated)
        controller.view_changed.connect(self.show_view)
        controller.launched.connect(self._notify_launch)
        controller.notification_requested.connect(self.notify)
        self.show_view(controller.view)

    @staticmethod
    def is_available() -> bool:
        """Return whether the system has a tray."""
        return QSystemTrayIcon.isSystemTrayAvailable()

    @Slot(object)
    def show_view(self, view: View) -> None:
        """Show the server's state. A failure triggers a notification."""
        status = f"{view.state_text} · {view.model_name}"
        self._status.setText(status)
        self._status.setEnabled(False)  # a title, not an action
        self._address.setText(tr("Copy the address {address}", address=view.address))
        self._address.setVisible(bool(view.address))
        self._switch.setText(tr("Start") if view.resting else tr("Stop"))
        self._switch.setEnabled(view.can_start if view.resting else view.can_stop)
        self.icon.setToolTip(f"MTP Launcher\n{status}\n{view.address}".strip())
        before, self._state = self._state, self._controller.inputs.status.state
        if self._state is ServerState.FAILED and before is not ServerState.FAILED:
            self.notify(tr("{model} could not be loaded", model=view.model_name), view.problem)

    @Slot(object)
    def _notify_launch(self, launch: object) -> None:
        if launch is not None:
            view = self._controller.view
            self.notify(tr("{model} is ready", model=view.model_name), view.address)

    @Slot(str, str)
    def notify(self, title: str, text: str) -> None:
        """Show a desktop notification, unless the window is in front or the user turned them off."""
        if settings.stored_value(NOTIFICATIONS) and not self._is_in_front():
            self.icon.showMessage(title, text[:_LONGEST_NOTIFICATION], self.icon.icon())

    def _add_action(self, text: str, triggered: Callable[[], object] | None) -> QAction:
        action = QAction(text, self)
        if triggered is not None:
            action.triggered.connect(lambda _checked=False: triggered())
        self.menu.addAction(action)
        return action

    def _start_or_stop(self) -> None:
        if self._controller.view.resting:
            self._controller.start()
        else:
            self._controller.stop()

    def _copy_address(self) -> None:
        QGuiApplication.clipboard().setText(f"http://{self._controller.view.address}/v1")

    @Slot(QSystemTrayIcon.ActivationReason)
    def _on_activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason in (QSystemTrayIcon.ActivationReason.Trigger, QSystemTrayIcon.ActivationReason.DoubleClick):
            self.window_requested.emit()


if __name__ == "__main__":
    application = QApplication(["mtp-launcher"])
    print("yes" if Tray.is_available() else "no")
    del application
