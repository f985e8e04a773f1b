"""Labels and tips that show text as it is: Qt would take what looks like HTML for it, and load the files it names."""

import html
import sys
from pathlib import Path

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from launcher.base.text import visible


class Label(QLabel):
    """A label that never is rich text, and whose text does nothing."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setText(text)

    def setText(self, text: str) -> None:  # noqa: N802 -- Qt's name
        """Show text."""
        super().setText(visible(text))


class Elided(Label):
    """A label of one line that shortens its text to the room there is; its tip has all of it."""

    def __init__(self, text: str = "", *, mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight) -> None:
        self._mode, self._whole = mode, ""
        super().__init__(text)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    @property
    def whole(self) -> str:
        """The text, however little of it is seen."""
        return self._whole

    def setText(self, text: str) -> None:  # noqa: N802 -- Qt's name
        """Show text."""
        if text != self._whole:
            self._whole = text
            self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Shorten it anew."""
        super().resizeEvent(event)
        self._fit()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Be as narrow as need be."""
        return QSize(0, super().minimumSizeHint().height())

    def _fit(self) -> None:
        room = max(self.contentsRect().width(), 0)
        said = visible(self._whole)
        short = self.fontMetrics().elidedText(said, self._mode, room) if room else said
        if QLabel.text(self) != short:
            super().setText(short)
        set_tip(self, self._whole)
        self.setAccessibleName(said)


def shown_path(path: Path | str) -> str:
    """Return a path as it is shown: what lies in the user's home begins with ~, but for Windows, which has no such."""
    home = Path.home()
    if sys.platform == "win32" or not Path(path).is_relative_to(home):
        return str(path)
    return str("~" / Path(path).relative_to(home))


def as_tip(text: str) -> str:
    """Return a tooltip that says `text` whatever it holds; none when it is empty."""
    lines = html.escape(visible(text)).replace("\n", "<br>")
    return f"<span>{lines}</span>" if text else ""


def set_tip(widget: QWidget, text: str) -> None:
    """Give a widget a tooltip that says `text` whatever it holds."""
    widget.setToolTip(as_tip(text))
