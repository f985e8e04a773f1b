"""Where a dragged file would go to: a frame over a page, with what becomes of the file."""

from collections.abc import Callable

from PySide6.QtCore import QEvent, QMimeData, QObject, QRectF, Qt
from PySide6.QtGui import QColor, QDropEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from launcher.gui import theme

_VEIL = 225
"""How much of what is below it hides, of 255."""


class DropTarget(QWidget):
    """Lets things be dropped on its parent, and lies over that while one is dragged there; hidden until then.

    `words` says what becomes of what is dragged, nothing where it is not taken; `take` gets what was dropped.
    """

    def __init__(self, parent: QWidget, words: Callable[[QMimeData], str], take: Callable[[QMimeData], object]) -> None:
        super().__init__(parent)
        self._host, self._words_of, self._take, self._words = parent, words, take, ""
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.hide()
        parent.setAcceptDrops(True)
        parent.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 -- Qt's name
        """Hear what is dragged over the parent, and dropped there."""
        kind = event.type()
        if kind == QEvent.Type.DragLeave:
            self.hide()
        elif kind == QEvent.Type.Resize and self.isVisible():
            self.setGeometry(self._host.rect())
        elif isinstance(event, QDropEvent) and kind in (QEvent.Type.DragEnter, QEvent.Type.Drop):
            said = self._words_of(event.mimeData())
            if said:
                event.acceptProposedAction()
            if said and kind == QEvent.Type.DragEnter:
                self._offer(said)
            else:
                self.hide()
                if said:
                    self._take(event.mimeData())
            return bool(said)
        return super().eventFilter(watched, event)

    def _offer(self, words: str) -> None:
        self._words = words
        self.setAccessibleName(words)
        self.setGeometry(self._host.rect())
        self.raise_()
        self.show()

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the veil, the frame and the words."""
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            veil = QColor(theme.colour("window"))
            veil.setAlpha(_VEIL)
            painter.fillRect(self.rect(), veil)
            gap = theme.px(theme.GAP_M)
            painter.setPen(QPen(theme.colour("accent"), theme.px(2), Qt.PenStyle.DashLine))
            frame = QRectF(self.rect()).adjusted(gap, gap, -gap, -gap)
            painter.drawRoundedRect(frame, theme.px(theme.CARD_RADIUS), theme.px(theme.CARD_RADIUS))
            painter.setPen(theme.colour("text"))
            painter.setFont(theme.font(theme.SECTION_PX, bold=True))
            flags = Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap
            painter.drawText(frame.adjusted(gap, gap, -gap, -gap), flags, self._words)
