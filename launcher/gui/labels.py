"""Labels and tooltips in plain text: Qt would render text that looks like HTML and load the files it names."""

import html
import sys
from pathlib import Path

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFont, QResizeEvent, QTextLayout
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from launcher.base.text import make_visible

UNKNOWN = "–"  # noqa: RUF001 -- an en dash, the sign for an unknown value


class Label(QLabel):
    """Label that never interprets rich text."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setText(text)

    def setText(self, text: str) -> None:  # noqa: N802 -- Qt's name
        """Set the text. Control characters are replaced by visible ones."""
        super().setText(make_visible(text))


class ElidedLabel(Label):
    """One-line label that elides its text to the available width. The tooltip has all of it."""

    def __init__(self, text: str = "", *, mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight) -> None:
        self._mode, self._full_text = mode, ""
        super().__init__(text)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    @property
    def full_text(self) -> str:
        """The complete text."""
        return self._full_text

    def setText(self, text: str) -> None:  # noqa: N802 -- Qt's name
        """Set the complete text, which is then elided."""
        if text != self._full_text:
            self._full_text = text
            self._elide_text()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Elide the text for the new width."""
        super().resizeEvent(event)
        self._elide_text()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Allow any width."""
        return QSize(0, super().minimumSizeHint().height())

    def _elide_text(self) -> None:
        width = self.contentsRect().width()
        text = make_visible(self._full_text)
        short = self.fontMetrics().elidedText(text, self._mode, width) if width > 0 else text
        if QLabel.text(self) != short:
            super().setText(short)
        set_tooltip(self, self._full_text)
        self.setAccessibleName(text)


def measure_line(text: str, font: QFont) -> tuple[int, int]:
    """Return the height of a line of text above and below its baseline, in pixels.

    It exceeds the height of the font if a character is of another one, such as a Chinese font.
    """
    layout = QTextLayout(text, font)
    layout.beginLayout()
    line = layout.createLine()
    layout.endLayout()
    return (round(line.ascent()), round(line.descent())) if line.isValid() else (0, 0)


def display_path(path: Path | str) -> str:
    """Return a path for display: ~ replaces the user's home, except on Windows."""
    home = Path.home()
    if sys.platform == "win32" or not Path(path).is_relative_to(home):
        return str(path)
    return str("~" / Path(path).relative_to(home))


def escape_tooltip(text: str) -> str:
    """Return `text` as an escaped tooltip, or "" for no tooltip."""
    lines = html.escape(make_visible(text)).replace("\n", "<br>")
    return f"<span>{lines}</span>" if text else ""


def set_tooltip(widget: QWidget, text: str) -> None:
    """Set a plain-text tooltip."""
    widget.setToolTip(escape_tooltip(text))
