"""The icon in the system's tray: what the server does, start and stop, the address; and notifications."""

from collections.abc import Callable

from PySide6.QtCore import QObject, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QAction, QGuiApplication, QIcon, QPainter, QPixmap
from PySide6.QtWidgets import QMenu, QSystemTrayIcon

from launcher import settings
from launcher.engine.state import State
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.viewmodel import View
from launcher.gui.words import tr
from launcher.settings_declared import NOTIFICATIONS

_SIZES = (16, 24, 32, 48, 64, 128, 256)
_LONGEST_NOTE = 250


def make_icon() -> QIcon:
    """Return the program's icon: three bars, the last of which runs ahead, as a draft does."""
    icon = QIcon()
    for size in _SIZES:
        picture = QPixmap(QSize(size, size))
        picture.fill(Qt.GlobalColor.transparent)
        with QPainter(picture) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.scale(size / 32, size / 32)
            painter.setBrush(theme.accent_of_icon())
            painter.drawRoundedRect(QRectF(1, 1, 30, 30), 7, 7)
            painter.setBrush(Qt.GlobalColor.white)
            for top, left, width in ((8, 7, 9), (14, 7, 14), (20, 7, 18)):
                painter.drawRoundedRect(QRectF(left, top, width, 4), 2, 2)
        icon.addPixmap(picture)
    return icon


class Tray(QObject):
    """The icon with its menu. It asks for the window and for the end; the server it starts and stops itself."""

    window_asked = Signal()
    quit_asked = Signal()

    def __init__(self, controller: Controller, in_front: Callable[[], bool], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self._in_front = in_front
        self._state = controller.inputs.status.state
        self.menu = QMenu()
        self._head = self._add("", None)
        self._address = self._add("", self._copy)
        self.menu.addSeparator()
        self._switch = self._add("", self._start_or_stop)
        self._add(tr("Show the window"), self.window_asked.emit)
        self.menu.addSeparator()
        self._add(tr("Quit"), self.quit_asked.emit)
        self.icon = QSystemTrayIcon(make_icon(), self)
        self.icon.setContextMenu(self.menu)
        self.icon.activated.connect(self._pressed)
        controller.view_changed.connect(self.show_view)
        controller.launched.connect(self._tell_launch)
        controller.told_user.connect(self.notify)
        self.show_view(controller.view)

    @staticmethod
    def available() -> bool:
        """Whether there is a tray to put an icon into."""
        return QSystemTrayIcon.isSystemTrayAvailable()

    @Slot(object)
    def show_view(self, view: View) -> None:
        """Show what the server does; that it failed is worth a notification."""
        said = f"{view.word} · {view.subject}"
        self._head.setText(said)
        self._head.setEnabled(False)
        self._address.setText(tr("Copy the address {address}", address=view.address))
        self._address.setVisible(bool(view.address))
        self._switch.setText(tr("Start") if view.resting else tr("Stop"))
        self._switch.setEnabled(view.can_start if view.resting else view.can_stop)
        self.icon.setToolTip(f"MTP Launcher\n{said}\n{view.address}".strip())
        before, self._state = self._state, self._controller.inputs.status.state
        if self._state is State.FAILED and before is not State.FAILED:
            self.notify(tr("{model} could not be served", model=view.subject), view.problem)

    @Slot(object)
    def _tell_launch(self, launch: object) -> None:
        if launch is not None:
            view = self._controller.view
            self.notify(tr("{model} is ready", model=view.subject), view.address)

    @Slot(str, str)
    def notify(self, title: str, text: str) -> None:
        """Tell the user, unless the window is in front of them or they want no notifications."""
        if settings.value(NOTIFICATIONS) and not self._in_front():
            self.icon.showMessage(title, text[:_LONGEST_NOTE], self.icon.icon())

    def _add(self, text: str, triggered: Callable[[], object] | None) -> QAction:
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

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(f"http://{self._controller.view.address}/v1")

    @Slot(QSystemTrayIcon.ActivationReason)
    def _pressed(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason in (QSystemTrayIcon.ActivationReason.Trigger, QSystemTrayIcon.ActivationReason.DoubleClick):
            self.window_asked.emit()
