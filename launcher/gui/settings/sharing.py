"""The card that shares the server with the network: what that means is said before, and the real addresses after."""

import asyncio
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, Signal, Slot
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QCheckBox, QFrame, QPushButton, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import Label, set_tip
from launcher.gui.widgets import Card
from launcher.gui.widgets.blocks import make_button
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.sharing import Sharing


class SharingCard(Card):
    """A switch that asks before it shares. Nothing of it is kept: it is off whenever a server is started."""

    failed = Signal(object)
    """LauncherError: it could not be shared, and runs as before, if it can"""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Network"))
        self._controller = controller
        self._works = False
        self._port = 0
        self.switch = QCheckBox(tr("Share with the network"))
        set_tip(self.switch, tr("Let other computers use this server. Flag: --host 0.0.0.0"))
        self.switch.clicked.connect(self._switched)
        self._line = _secondary("")
        self._question = _panel("attention")
        self.share_button = make_button(tr("Share now"), self._share, primary=True)
        set_tip(self.share_button, tr("Restart the server so that other computers reach it. Flag: --host 0.0.0.0"))
        self.cancel_button = make_button(tr("Leave it private"), self.show_state)
        set_tip(self.cancel_button, tr("Change nothing"))
        meaning = Label(
            tr(
                "Whoever has the key can use the server, and whoever can listen on the network reads the key and all"
                " that is said, because nothing is encrypted. Share only where you trust all."
            )
        )
        meaning.setWordWrap(True)
        how = _secondary(
            tr("The server restarts for it. It is private again when it stops, and at each start of this program.")
        )
        _fill(self._question, meaning, how, Buttons(self.share_button, self.cancel_button))
        self._shared = _panel("information")
        self.addresses = Label()
        self.addresses.setFont(theme.monospace())
        self.addresses.setWordWrap(True)
        self.addresses.setTextInteractionFlags(theme.SELECTABLE)
        self.hint = Label()
        self.hint.setFont(theme.monospace())
        self.hint.setWordWrap(True)
        self.hint.setTextInteractionFlags(theme.SELECTABLE)
        self.copy_url = make_button(tr("Copy base URL"), self._copy_url)
        set_tip(self.copy_url, tr("Copy the address that clients on other computers take"))
        self.copy_key = make_button(tr("Copy API key"), self._copy_key)
        set_tip(self.copy_key, tr("Copy the key, which clients send with each request; it is not shown"))
        self._copied = _secondary("")
        self._copied.hide()
        _fill(self._shared, self.addresses, self.hint, Buttons(self.copy_url, self.copy_key), self._copied)
        top = QVBoxLayout()
        top.setSpacing(theme.px(2))
        top.addWidget(self.switch)
        top.addWidget(self._line)
        self.body.addLayout(top)
        self.body.addWidget(self._question)
        self.body.addWidget(self._shared)
        controller.launched.connect(lambda _launch: self.show_state())
        controller.view_changed.connect(lambda _view: self._show_switch())
        self.show_state()

    def holds(self, words: list[str]) -> bool:
        """Whether all words are in what it says."""
        said = " ".join(
            (tr("Network"), self.switch.text(), self._line.text(), "lan", self.copy_url.text(), self.copy_key.text())
        )
        return all(word in said.casefold() for word in words)

    @Slot()
    def show_state(self) -> None:
        """Show whether it is shared, and where."""
        shared = self._controller.shared
        self._question.hide()
        self._copied.hide()
        self._shared.setVisible(shared and bool(self.addresses.text()))
        self._show_switch()
        port = self._controller.view.address.rpartition(":")[2]
        if shared and port.isdecimal():
            self._port = int(port)
            self._controller.bridge.run(lambda _tell: _look(self._port), done=self._show_addresses)
        else:
            self.addresses.setText("")

    def _show_switch(self) -> None:
        serves = self._controller.launch is not None
        asks = not self._question.isHidden()
        self.switch.setChecked(self._controller.shared or asks)
        self.switch.setEnabled(serves and not self._works)
        if self._works:
            line = tr("The server restarts ...")
        elif not serves:
            line = tr("Only this computer reaches a server. Start a model first to share it.")
        elif self._controller.shared:
            line = tr("Other computers reach the server with its key, until it stops or this window closes.")
        else:
            line = tr("Only this computer reaches the server.")
        self._line.setText(line)

    @Slot(bool)
    def _switched(self, on: bool) -> None:
        if on and not self._controller.shared:
            self._question.show()
            self.cancel_button.setFocus()
            self._show_switch()
        elif on or not self._controller.shared:
            self.show_state()
        else:
            self._restart(shared=False)

    @Slot()
    def _share(self) -> None:
        self._restart(shared=True)

    def _restart(self, *, shared: bool) -> None:
        self._works = True
        self._question.hide()
        self._controller.share(shared, self._ended)
        self._show_switch()

    def _ended(self, error: LauncherError | None) -> None:
        self._works = False
        self.show_state()
        if error is not None:
            self.failed.emit(error)

    def _show_addresses(self, found: "Sharing") -> None:
        urls = [f"{url}/v1" for url in found.urls]
        self.addresses.setText("\n".join(urls) or tr("This computer has no address in a network."))
        self.copy_url.setEnabled(bool(urls))
        self.hint.setText(found.hint)
        self.hint.setVisible(bool(found.hint))
        self._shared.setVisible(self._controller.shared)

    def _copy_url(self) -> None:
        url = self.addresses.text().partition("\n")[0]
        self._copy(url, tr("The base URL is copied: {url}", url=url))

    def _copy_key(self) -> None:
        said = tr("The API key is copied.")
        self._controller.ask_api_key(lambda key: self._copy(key, said))

    def _copy(self, text: str, said: str) -> None:
        QGuiApplication.clipboard().setText(text)
        self._copied.setText(said)
        self._copied.show()


class Buttons(QWidget):
    """Buttons beside each other, or under each other where there is no room for that."""

    def __init__(self, *buttons: QPushButton) -> None:
        super().__init__()
        self.setObjectName("plain")
        self._buttons = buttons
        self._layout = QBoxLayout(QBoxLayout.Direction.LeftToRight, self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(theme.px(theme.GAP))
        for button in buttons:
            self._layout.addWidget(button)
        self._layout.addStretch()

    def minimumSizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Be as wide as the widest of them."""
        return QSize(max(each.sizeHint().width() for each in self._buttons), super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Put them beside or under each other."""
        super().resizeEvent(event)
        room = sum(each.sizeHint().width() + self._layout.spacing() for each in self._buttons)
        across, down = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        self._layout.setDirection(across if room <= self.width() else down)


async def _look(port: int) -> "Sharing":
    from launcher.sharing import sharing

    return await asyncio.to_thread(sharing, port)


def _secondary(text: str) -> Label:
    label = Label(text)
    label.setObjectName("secondary")
    label.setFont(theme.font(theme.CAPTION_PX))
    label.setWordWrap(True)
    return label


def _panel(meaning: str) -> QFrame:
    panel = QFrame()
    panel.setObjectName("banner")
    panel.setProperty("meaning", meaning)
    panel.hide()
    return panel


def _fill(panel: QFrame, *widgets: QWidget) -> None:
    column = QVBoxLayout(panel)
    column.setContentsMargins(*(theme.px(theme.GAP_M),) * 4)
    column.setSpacing(theme.px(theme.GAP))
    for widget in widgets:
        column.addWidget(widget)
    column.setAlignment(Qt.AlignmentFlag.AlignTop)
