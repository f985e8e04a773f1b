"""What runs as text for other tools: shown in place before it is copied."""

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QMenu, QPlainTextEdit, QPushButton

from launcher.base.errors import LauncherError
from launcher.base.text import visible
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import Label
from launcher.gui.sentences import say_error
from launcher.gui.widgets import Card
from launcher.gui.words import mark, tr

if TYPE_CHECKING:
    from launcher.export.render import Kind

KINDS: "dict[Kind, str]" = {
    "command": mark("Command line"),
    "script": mark("Script"),
    "compose": mark("Docker Compose"),
    "systemd": mark("systemd unit"),
    "llama-swap": mark("llama-swap entry"),
    "router-ini": mark("llama-server router entry"),
    "curl": mark("curl"),
    "python": mark("Python"),
    "typescript": mark("TypeScript"),
}
_LINES = 10


class CopyPanel(Card):
    """The text of one kind, with or without the API key, and a button that copies it."""

    copied = Signal(str)
    """What was copied, in words."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Copy as"))
        self._controller = controller
        self._kind: Kind = "command"
        self._wanted: tuple[Kind, bool, str | None] = (self._kind, False, None)
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setObjectName("log")
        self.text.setFont(theme.monospace())
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setFixedHeight(theme.px(_LINES * 17 + 16))
        self.text.setTabChangesFocus(True)
        self.with_key = QCheckBox(tr("with the API key"))
        self.with_key.setToolTip(tr("Whoever reads the text can then use the server"))
        self.with_key.toggled.connect(lambda _on: self.show_kind(self._kind))
        self._note = Label()
        self._note.setObjectName("secondary")
        self.copy = QPushButton(tr("Copy"))
        self.copy.setObjectName("primary")
        self.copy.setToolTip(tr("Copy the text that is shown"))
        self.copy.clicked.connect(self._copy)
        close = QPushButton(tr("Close"))
        close.setToolTip(tr("Take this card away (Esc)"))
        close.clicked.connect(self.hide)
        self.head.addWidget(self._note)
        self.body.addWidget(self.text)
        row = QHBoxLayout()
        row.setSpacing(theme.px(theme.GAP))
        row.addWidget(self.copy)
        row.addWidget(close)
        row.addWidget(self.with_key)
        row.addStretch()
        self.body.addLayout(row)
        escape = QAction(self)
        escape.setShortcut(Qt.Key.Key_Escape)
        escape.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        escape.triggered.connect(self.hide)
        self.addAction(escape)
        self.hide()

    def menu(self, owner: QPushButton) -> QMenu:
        """Return the menu of a button: address and key are copied at once, all else is shown first."""
        menu = QMenu(owner)
        menu.addAction(tr("Base URL")).triggered.connect(self.copy_address)
        menu.addAction(tr("API key")).triggered.connect(self.copy_key)
        menu.addSeparator()
        for kind, name in KINDS.items():
            menu.addAction(f"{tr(name)} ...").triggered.connect(lambda _=False, kind=kind: self.show_kind(kind))
        return menu

    def show_kind(self, kind: "Kind") -> None:
        """Show what runs as text of a kind."""
        self._kind = kind
        self._note.setText(tr(KINDS[kind]))
        self.text.setAccessibleName(tr(KINDS[kind]))
        wanted = self._wanted = kind, self.with_key.isChecked(), self._url()
        self.text.clear()
        self.copy.setEnabled(False)
        self.show()
        self._controller.bridge.run(
            lambda _tell: _text_of(*wanted),
            done=lambda text: self._show_text(wanted, text),
            failed=lambda error: self._show_error(wanted, error),
        )

    def copy_address(self) -> None:
        """Copy the address that clients take."""
        if url := self._url():
            self._to_clipboard(f"{url}/v1", tr("The base URL is copied: {url}", url=f"{url}/v1"))

    def copy_key(self) -> None:
        """Copy the API key; it is not shown."""
        self._controller.ask_api_key(lambda key: self._to_clipboard(key, tr("The API key is copied.")))

    def _url(self) -> str | None:
        address = self._controller.view.address
        return f"http://{address}" if address else None

    def _show_text(self, wanted: object, text: str) -> None:
        if wanted == self._wanted:  # and not what was asked for before, which may hold the key
            self.text.setPlainText(visible(text))
            self.copy.setEnabled(True)

    def _show_error(self, wanted: object, error: LauncherError) -> None:
        if wanted == self._wanted:
            self.text.setPlainText(say_error(error))

    def _copy(self) -> None:
        self._to_clipboard(self.text.toPlainText(), tr("{kind} is copied.", kind=tr(KINDS[self._kind])))

    def _to_clipboard(self, text: str, said: str) -> None:
        QGuiApplication.clipboard().setText(text)
        self.copied.emit(said)


async def _text_of(kind: "Kind", with_key: bool, url: str | None) -> str:
    from dataclasses import replace

    from launcher import recipes
    from launcher.export.render import render

    recipe = (await recipes.of_running(url, backend=None)).recipe
    return render(kind, recipe if with_key else replace(recipe, api_key=None))
