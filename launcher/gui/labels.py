"""Labels and tips that show text as it is: Qt would take what looks like HTML for it, and load the files it names."""

import html

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QWidget

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


def set_tip(widget: QWidget, text: str) -> None:
    """Give a widget a tooltip that says `text` whatever it holds; none when it is empty."""
    lines = html.escape(visible(text)).replace("\n", "<br>")
    widget.setToolTip(f"<span>{lines}</span>" if text else "")
