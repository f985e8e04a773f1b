"""Card for sharing the server with the network: first a warning, then the addresses."""

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices, QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QCheckBox, QFrame, QPushButton, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import Label, set_tooltip
from launcher.gui.translation import tr
from launcher.gui.widgets import Card
from launcher.gui.widgets.blocks import make_button, make_caption

if TYPE_CHECKING:
    from launcher.app.serving.sharing import ShareInfo


class SharingCard(Card):
    """Card with a switch that asks before it shares. Sharing is off for every new server."""

    failed = Signal(object)
    """LauncherError: sharing failed; the server runs as before, if it can."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Network"))
        self._controller = controller
        self._changing = False
        self.switch = QCheckBox(tr("Share with the network"))
        set_tooltip(self.switch, tr("Let other computers use this server. Flag: --host 0.0.0.0"))
        self.switch.clicked.connect(self._on_switch_clicked)
        self._state_line = make_caption("")
        self._question_panel = _make_panel("attention")
        self.share_button = make_button(tr("Share now"), self._share, primary=True)
        set_tooltip(self.share_button, tr("Let other computers use this server until it stops. Running replies go on"))
        self.cancel_button = make_button(tr("Keep it private"), self.show_state)
        set_tooltip(self.cancel_button, tr("Do not share"))
        self._warning = Label()
        self._warning.setWordWrap(True)
        self.plain_choice = QCheckBox(tr("Without encryption"))
        set_tooltip(
            self.plain_choice, tr("For clients that cannot be told to trust a certificate (serve --lan --no-tls)")
        )
        self.plain_choice.toggled.connect(self._show_warning)
        note = make_caption(tr("Sharing ends when the server stops or this program restarts."))
        _fill_panel(
            self._question_panel,
            self._warning,
            self.plain_choice,
            note,
            ButtonRow(self.share_button, self.cancel_button),
        )
        self._show_warning()
        self._shared_panel = _make_panel("information")
        self.addresses = Label()
        self.addresses.setFont(theme.monospace())
        self.addresses.setWordWrap(True)
        self.addresses.setTextInteractionFlags(theme.SELECTABLE)
        self.certificate_note = make_caption(
            tr("Clients on other computers must trust this certificate. Its fingerprint (SHA-256):")
        )
        self.fingerprint = Label()
        self.fingerprint.setFont(theme.monospace())
        self.fingerprint.setWordWrap(True)
        self.fingerprint.setTextInteractionFlags(theme.SELECTABLE)
        self._certificate: Path | None = None
        self.show_certificate = make_button(tr("Show certificate"), self._show_certificate)
        set_tooltip(self.show_certificate, tr("Open the folder with certificate.pem, to copy it to other computers"))
        self.hint = Label()
        self.hint.setFont(theme.monospace())
        self.hint.setWordWrap(True)
        self.hint.setTextInteractionFlags(theme.SELECTABLE)
        self.copy_url = make_button(tr("Copy base URL"), self._copy_url)
        set_tooltip(self.copy_url, tr("Copy the address for clients on other computers"))
        self.copy_key = make_button(tr("Copy API key"), self._copy_key)
        set_tooltip(self.copy_key, tr("Copy the API key that clients send with each request. It is not shown"))
        self._copied = make_caption("")
        self._copied.hide()
        _fill_panel(
            self._shared_panel,
            self.addresses,
            self.certificate_note,
            self.fingerprint,
            self.hint,
            ButtonRow(self.copy_url, self.copy_key, self.show_certificate),
            self._copied,
        )
        top = QVBoxLayout()
        top.setSpacing(theme.px(2))
        top.addWidget(self.switch)
        top.addWidget(self._state_line)
        self.body.addLayout(top)
        self.body.addWidget(self._question_panel)
        self.body.addWidget(self._shared_panel)
        controller.launched.connect(self.show_state)
        controller.view_changed.connect(self._show_switch)
        self.show_state()

    def matches(self, words: list[str]) -> bool:
        """Return whether all words occur in the card's texts."""
        labels = (self.switch, self._state_line, self.copy_url, self.copy_key)
        # "lan" and "tls" are in none of the texts, but users search for it.
        text = " ".join((tr("Network"), "lan tls", *(each.text() for each in labels))).casefold()
        return all(word in text for word in words)

    @Slot()
    def show_state(self) -> None:
        """Show whether the server is shared, and its addresses."""
        shared = self._controller.shared
        self._question_panel.hide()
        self._copied.hide()
        self._shared_panel.setVisible(shared and bool(self.addresses.text()))
        self._show_switch()
        port = self._controller.view.address.rpartition(":")[2]
        if shared and port.isdecimal():
            encrypted = self._controller.encrypted
            self._controller.bridge.run(
                partial(_read_addresses, int(port), encrypted=encrypted), done=self._show_addresses
            )
        else:
            self.addresses.setText("")

    @Slot()
    def _show_switch(self) -> None:
        is_serving = self._controller.launch is not None or self._controller.view.unloaded
        is_asking = not self._question_panel.isHidden()
        self.switch.setChecked(self._controller.shared or is_asking)
        self.switch.setEnabled(is_serving and not self._changing)
        if self._changing:
            line = tr("Changing the address ...")
        elif not is_serving:
            line = tr("Only this computer can use the server. To share it, load a model first.")
        elif self._controller.shared:
            line = tr("Other computers can use the server with its API key until it stops or this window closes.")
        else:
            line = tr("Only this computer can use the server.")
        self._state_line.setText(line)

    @Slot(bool)
    def _on_switch_clicked(self, checked: bool) -> None:
        if checked and not self._controller.shared:
            self.plain_choice.setChecked(False)
            self._question_panel.show()
            self.cancel_button.setFocus()
            self._show_switch()
        elif not checked and self._controller.shared:
            self._change_sharing(shared=False)
        else:
            self.show_state()  # closes the question

    @Slot()
    def _share(self) -> None:
        self._change_sharing(shared=True)

    def _change_sharing(self, *, shared: bool) -> None:
        self._changing = True
        self._question_panel.hide()
        self._controller.set_shared(shared, self._finish_change, encrypted=not self.plain_choice.isChecked())
        self._show_switch()

    def _finish_change(self, error: LauncherError | None) -> None:
        self._changing = False
        self.show_state()
        if error is not None:
            self.failed.emit(error)

    @Slot()
    def _show_warning(self) -> None:
        if self.plain_choice.isChecked():
            text = tr(
                "Anyone with the API key can use the server. The connection is not encrypted, so others on "
                "the network could read the key and all messages. Share only on a network that you trust."
            )
        else:
            text = tr(
                "Anyone with the API key can use the server. The connection is encrypted with a certificate of this "
                "program, which clients on other computers must trust."
            )
        self._warning.setText(text)

    def _show_certificate(self) -> None:
        if self._certificate is not None:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(self._certificate.parent)))

    def _show_addresses(self, info: "ShareInfo") -> None:
        urls = [f"{url}/v1" for url in info.urls]
        self.addresses.setText("\n".join(urls) or tr("This computer has no network address."))
        self.copy_url.setEnabled(bool(urls))
        self._certificate = info.certificate
        self.fingerprint.setText(info.fingerprint or "")
        for widget in (self.certificate_note, self.fingerprint, self.show_certificate):
            widget.setVisible(info.fingerprint is not None)
        self.hint.setText(info.hint)
        self.hint.setVisible(bool(info.hint))
        self._shared_panel.setVisible(self._controller.shared)

    def _copy_url(self) -> None:
        url = self.addresses.text().partition("\n")[0]
        self._copy_text(url, tr("Base URL copied: {url}", url=url))

    def _copy_key(self) -> None:
        message = tr("API key copied.")
        self._controller.read_api_key(lambda key: self._copy_text(key, message))

    def _copy_text(self, text: str, message: str) -> None:
        QGuiApplication.clipboard().setText(text)
        self._copied.setText(message)
        self._copied.show()


class ButtonRow(QWidget):
    """Buttons in a row, or in a column where there is no room."""

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
        """Return the width of the widest button."""
        return QSize(max(each.sizeHint().width() for each in self._buttons), super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Arrange the buttons in a row or a column."""
        super().resizeEvent(event)
        room = sum(each.sizeHint().width() + self._layout.spacing() for each in self._buttons)
        across, down = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        self._layout.setDirection(across if room <= self.width() else down)


async def _read_addresses(port: int, *, encrypted: bool) -> "ShareInfo":
    from launcher.app.serving.sharing import read_share_info

    return await asyncio.to_thread(read_share_info, port, encrypted=encrypted)


def _make_panel(meaning: str) -> QFrame:
    panel = QFrame()
    panel.setObjectName("banner")
    panel.setProperty("meaning", meaning)
    panel.hide()
    return panel


def _fill_panel(panel: QFrame, *widgets: QWidget) -> None:
    column = QVBoxLayout(panel)
    column.setContentsMargins(*(theme.px(theme.GAP_M),) * 4)
    column.setSpacing(theme.px(theme.GAP))
    for widget in widgets:
        column.addWidget(widget)
    column.setAlignment(Qt.AlignmentFlag.AlignTop)
