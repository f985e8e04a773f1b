"""Drop target: a frame over a page with a hint on what happens to the dragged file."""

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QEvent, QMimeData, QObject, QRectF, Qt
from PySide6.QtGui import QColor, QDropEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from launcher.gui import theme

_VEIL_OPACITY = 225
"""Opacity of the veil over the page, of 255."""


class DropTarget(QWidget):
    """Accepts drops on its parent, and covers it while something is dragged there; hidden until then.

    `get_hint` returns a hint for the dragged data, "" to refuse it; `accept` is called with the dropped data.
    """

    def __init__(
        self, parent: QWidget, get_hint: Callable[[QMimeData], str], accept: Callable[[QMimeData], object]
    ) -> None:
        super().__init__(parent)
        self._host, self._get_hint, self._accept, self._hint = parent, get_hint, accept, ""
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.hide()
        parent.setAcceptDrops(True)
        parent.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 -- Qt's name
        """Watch drags and drops on the parent."""
        kind = event.type()
        if kind == QEvent.Type.DragLeave:
            self.hide()
        elif kind == QEvent.Type.Resize and self.isVisible():
            self.setGeometry(self._host.rect())
        elif isinstance(event, QDropEvent) and kind in (QEvent.Type.DragEnter, QEvent.Type.Drop):
            hint = self._get_hint(event.mimeData())
            if hint:
                event.acceptProposedAction()
            if hint and kind == QEvent.Type.DragEnter:
                self._show_hint(hint)
            else:
                self.hide()
                if hint:
                    self._accept(event.mimeData())
            return bool(hint)
        return super().eventFilter(watched, event)

    def _show_hint(self, hint: str) -> None:
        self._hint = hint
        self.setAccessibleName(hint)
        self.setGeometry(self._host.rect())
        self.raise_()
        self.show()

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint veil, frame and hint."""
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            veil = QColor(theme.colour("window"))
            veil.setAlpha(_VEIL_OPACITY)
            painter.fillRect(self.rect(), veil)
            gap = theme.px(theme.GAP_M)
            painter.setPen(QPen(theme.colour("accent"), theme.px(2), Qt.PenStyle.DashLine))
            frame = QRectF(self.rect()).adjusted(gap, gap, -gap, -gap)
            painter.drawRoundedRect(frame, theme.px(theme.CARD_RADIUS), theme.px(theme.CARD_RADIUS))
            painter.setPen(theme.colour("text"))
            painter.setFont(theme.font(theme.SECTION_PX, bold=True))
            flags = Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap
            painter.drawText(frame.adjusted(gap, gap, -gap, -gap), flags, self._hint)


def dropped_models(data: QMimeData) -> list[Path]:
    """Return the dragged GGUF files and folders, or none if anything else is among them."""
    paths = [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]
    return paths if paths and all(path.is_dir() or path.suffix.lower() == ".gguf" for path in paths) else []
