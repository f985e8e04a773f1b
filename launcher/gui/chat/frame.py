"""The chat's frame: its head, its two sides (the conversation, and those that are kept), and what stands where."""

from PySide6.QtCore import Qt, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QMenu, QPushButton, QStackedWidget, QVBoxLayout, QWidget

from launcher.base.text import one_line
from launcher.gui import theme
from launcher.gui.chat.bars import EditingBar, PromptsBar, SystemPrompt
from launcher.gui.chat.column import Column
from launcher.gui.chat.compare import CompareBar
from launcher.gui.chat.drawer import Drawer
from launcher.gui.chat.kept import Kept
from launcher.gui.chat.look import dense, sheet
from launcher.gui.chat.prompt import Prompt
from launcher.gui.labels import Elided
from launcher.gui.widgets import Banner
from launcher.gui.widgets.flow import Flow
from launcher.gui.words import tr

_NARROWEST = 280


class ChatFrame(QFrame):
    """The widgets of the chat. What they do together is ChatPane's business."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("card")
        self.setMinimumWidth(theme.px(_NARROWEST))
        self.kept = Kept(self)
        self.name = ""
        self.column, self.prompt, self.banner = Column(), Prompt(), Banner()
        self.drawer = Drawer(self.kept)
        self.compare_bar, self.editing_bar, self.prompts = CompareBar(), EditingBar(), PromptsBar()
        self.compare_bar.hide()
        self._build()

    def show_title(self, name: str) -> None:
        """Show the conversation's name, as much as there is room for."""
        self.name = name
        self._title.setText(one_line(name) or tr("Chat"))

    @Slot()
    def search(self) -> None:
        """Search in the conversations."""
        self.chats.setChecked(True)
        self.drawer.search.setFocus()
        self.drawer.search.selectAll()

    @Slot(bool)
    def _show_drawer(self, shown: bool) -> None:
        self._stack.setCurrentIndex(1 if shown else 0)
        if shown:
            self.drawer.refresh()
            self.drawer.search.setFocus()
        else:
            self.drawer.hide_for_good()
            self.prompt.setFocus()

    def _build(self) -> None:
        self.setStyleSheet(sheet())
        self._title = Elided()
        self._title.setFont(theme.font(theme.SECTION_PX, bold=True))
        self.new_button = dense(tr("New"), tr("Begin another conversation (Ctrl+N); this one is kept"))
        self.more_button = dense(tr("More"), tr("Prompts from a file"))
        menu = QMenu(self.more_button)
        self.from_file = menu.addAction(tr("Prompts from a file …"))
        self.more_button.setMenu(menu)
        self.chats = dense(tr("Chats"), tr("Conversations that are kept (Ctrl+F searches in them)"), checkable=True)
        self.compare_button = dense(
            tr("Compare"), tr("Ask each question twice: as the server runs, and with other values"), checkable=True
        )
        self.colour_button = dense(
            tr("Colour drafts"),
            tr("Give the tokens that came in one verification step one colour; single ones have none"),
            checkable=True,
        )
        self.system = SystemPrompt(self.colour_button)
        talk = QWidget()
        talk.setObjectName("plain")
        column = QVBoxLayout(talk)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        column.addWidget(self.system)
        column.addWidget(self.column, 1)
        for bar in (self.compare_bar, self.prompts, self.editing_bar):
            column.addWidget(bar)
        self.send_button = QPushButton(tr("Send"))
        self.send_button.setObjectName("primary")
        below = QHBoxLayout()
        below.setSpacing(theme.px(theme.GAP))
        below.addWidget(self.prompt)
        below.addWidget(self.send_button, alignment=Qt.AlignmentFlag.AlignBottom)
        column.addLayout(below)
        self._stack = QStackedWidget()
        self._stack.addWidget(talk)
        self._stack.addWidget(self.drawer)
        layout = QVBoxLayout(self)
        gap = theme.px(theme.GAP_L)
        layout.setContentsMargins(gap, theme.px(theme.GAP_M), gap, gap)
        layout.setSpacing(theme.px(theme.GAP))
        layout.addWidget(self._title)
        ways = Flow(gap=theme.px(theme.GAP))
        for button in (self.chats, self.new_button, self.compare_button, self.more_button):
            ways.add(button)
        layout.addLayout(ways)
        layout.addWidget(self.banner)
        layout.addWidget(self._stack, 1)
        self.chats.toggled.connect(self._show_drawer)
        self.compare_button.toggled.connect(self.compare_bar.setVisible)
        self.compare_button.toggled.connect(self.compare_bar.unfold)
        self.show_title("")
