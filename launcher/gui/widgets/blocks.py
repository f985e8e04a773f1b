"""Layout blocks of pages: cards, page heads and empty states."""

from collections.abc import Callable, Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QHBoxLayout, QMenu, QPushButton, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.widgets.flow import FlowLayout, clear_layout

ButtonAction = tuple[str, Callable[[], object]]
"""A button's text and what a click calls."""
_MIN_TEXT_WIDTH = 200
"""Pixels that a page's title and subtitle need beside the buttons; with less the buttons go below them."""
_BELOW_TEXT = 3
"""Place in the column of an empty state after the stretch, the title and the text."""


class Card(QFrame):
    """Frame with a title for one subject. Content goes into `body`, widgets beside the title into `head`."""

    def __init__(self, title: str = "") -> None:
        super().__init__()
        self.setObjectName("card")
        self.body = QVBoxLayout(self)
        self.body.setContentsMargins(*(theme.px(theme.GAP_L),) * 4)
        self.body.setSpacing(theme.px(theme.GAP_M))
        self.head = QHBoxLayout()
        self.head.setSpacing(theme.px(theme.GAP))
        if title:
            self._title = Label(title)
            self._title.setFont(theme.font(theme.SECTION_PX, bold=True))
            self.head.addWidget(self._title)
            self.head.addStretch()
            self.body.addLayout(self.head)

    def add_aligned(self, widget: QWidget, inset: int) -> None:
        """Add a widget, such as a table, whose texts begin `inset` pixels from its edges, aligned with the title.

        The card's side margins shrink by `inset`, and the layouts that it already has are indented by as much.
        """
        sides = self.body.contentsMargins()
        narrower = max(min(sides.left(), sides.right()) - inset, 0)
        inset = sides.left() - narrower
        for at in range(self.body.count()):
            item = self.body.itemAt(at)
            layout = item.layout() if item is not None else None
            if layout is not None:
                layout.setContentsMargins(inset, 0, inset, 0)
        self.body.setContentsMargins(narrower, sides.top(), narrower, sides.bottom())
        self.body.addWidget(widget)


class PageHead(QWidget):
    """A page's title, its subtitle (`beside` it, which saves height, or below), and buttons at the right."""

    def __init__(self, title: str, subtitle: str = "", *, beside: bool = True) -> None:
        super().__init__()
        self.title = Label(title)
        self.title.setFont(theme.font(theme.TITLE_PX, bold=True))
        self.subtitle = Label()
        self.subtitle.setObjectName("secondary")
        self.subtitle.setWordWrap(True)
        texts = QHBoxLayout() if beside else QVBoxLayout()
        texts.setSpacing(theme.px(theme.GAP_M if beside else 2))
        texts.addWidget(self.title)
        texts.addWidget(self.subtitle, 1 if beside else 0)
        self._buttons = QHBoxLayout()
        self._buttons.setSpacing(theme.px(theme.GAP_M))
        self._layout = QBoxLayout(QBoxLayout.Direction.LeftToRight, self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(theme.px(theme.GAP_M))
        self._layout.addLayout(texts, 1)
        self._layout.addLayout(self._buttons)
        self.show_subtitle(subtitle)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put the buttons beside the text, or below it if that leaves too little room."""
        super().resizeEvent(event)
        room = self.width() - self._buttons.sizeHint().width()
        narrow = room < theme.px(_MIN_TEXT_WIDTH) and self._buttons.count() > 0
        self._layout.setDirection(QBoxLayout.Direction.TopToBottom if narrow else QBoxLayout.Direction.LeftToRight)
        self._layout.setAlignment(self._buttons, Qt.AlignmentFlag.AlignLeft if narrow else Qt.AlignmentFlag.AlignRight)
        self.updateGeometry()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the width of the buttons or the title, and the height that the text needs."""
        width = max(self._buttons.minimumSize().width(), self.title.minimumSizeHint().width())
        height = super().minimumSizeHint().height()
        if self._layout.hasHeightForWidth():
            height = max(height, self._layout.minimumHeightForWidth(max(self.width(), width)))
        return QSize(width, height)

    def show_subtitle(self, text: str) -> None:
        """Show a subtitle, or none if `text` is empty."""
        self.subtitle.setText(text)
        self.subtitle.setVisible(bool(text))

    def add_widget(self, widget: QWidget) -> None:
        """Append a widget to the buttons."""
        self._buttons.addWidget(widget, alignment=Qt.AlignmentFlag.AlignVCenter)

    def add_button(self, text: str, clicked: Callable[[], object], *, primary: bool = False) -> QPushButton:
        """Append a button. Returns it."""
        button = make_button(text, clicked, primary=primary)
        self.add_widget(button)
        return button


class EmptyState(QWidget):
    """Placeholder for an empty page: what it is for, and what to do first. The first button is primary."""

    def __init__(self, title: str, text: str, buttons: Sequence[ButtonAction] = ()) -> None:
        super().__init__()
        heading, self.text = Label(title), Label()
        heading.setFont(theme.font(theme.TITLE_PX, bold=True))
        heading.setWordWrap(True)
        self.text.setWordWrap(True)
        self.text.setObjectName("secondary")
        self.buttons: list[QPushButton] = []
        column = self._column = QVBoxLayout()
        column.setSpacing(theme.px(theme.GAP_L))
        column.addStretch(2)
        column.addWidget(heading)
        column.addWidget(self.text)
        self._row = FlowLayout(gap=theme.px(theme.GAP_M))
        column.addLayout(self._row)
        column.addStretch(3)
        middle = QWidget()
        middle.setObjectName("plain")
        middle.setLayout(column)
        middle.setMaximumWidth(theme.px(520))
        column.setContentsMargins(0, 0, 0, 0)
        layout = QHBoxLayout(self)
        layout.addStretch(1)
        layout.addWidget(middle, 8)
        layout.addStretch(1)
        self.show_content(text, buttons)

    def show_content(self, text: str, buttons: Sequence[ButtonAction]) -> None:
        """Show another text and other buttons."""
        self.text.setText(text)
        clear_layout(self._row)
        self.buttons = [make_button(label, clicked, primary=at == 0) for at, (label, clicked) in enumerate(buttons)]
        for button in self.buttons:
            self._row.addWidget(button)

    def add_below_text(self, widget: QWidget) -> None:
        """Put a widget between the text and the buttons."""
        self._column.insertWidget(_BELOW_TEXT, widget)


def make_caption(text: str = "") -> Label:
    """Return a small secondary label that wraps. Its digits have equal widths, so that changing figures do not jump."""
    label = Label(text)
    label.setObjectName("secondary")
    label.setFont(theme.font(theme.CAPTION_PX, tabular=True))
    label.setWordWrap(True)
    return label


def make_button(text: str, clicked: Callable[[], object], *, primary: bool = False) -> QPushButton:
    """Return a button that calls `clicked` without Qt's `checked`."""
    button = QPushButton(text)
    if primary:
        button.setObjectName("primary")
    button.clicked.connect(lambda _checked=False: clicked())
    return button


def open_menu_with(button: QPushButton, menu: QMenu) -> None:
    """Let a button open a menu, and show an arrow beside its text."""
    button.setProperty("opens", "menu")
    button.setMenu(menu)
