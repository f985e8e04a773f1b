"""Badge for a fit verdict: text with a glyph in an outlined pill."""

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.translation import mark, tr
from launcher.gui.widgets.glyphs import paint_glyph

_STYLES = {
    mark("FITS"): ("tick", "good"),
    mark("TIGHT"): ("half", "attention"),
    mark("OFFLOADS"): ("down", "information"),
    mark("TOO BIG"): ("cross", "bad"),
}
_PLAIN_STYLE = ("", "control")


def badge_size(word: str) -> QSize:
    """Return the size of a badge."""
    glyph = theme.px(17) if word in _STYLES else 0
    width = QFontMetrics(theme.font(11, bold=True)).horizontalAdvance(tr(word))
    return QSize(width + glyph + theme.px(17), theme.px(theme.BADGE_HEIGHT))


def paint_badge(painter: QPainter, left: float, middle: float, word: str) -> None:
    """Paint a badge from its left edge, vertically centred on `middle`. For table delegates."""
    name, role = _STYLES.get(word, _PLAIN_STYLE)
    size, colour = badge_size(word), theme.colour(role)
    rect = QRectF(left, middle - size.height() / 2, size.width(), size.height()).adjusted(0.5, 0.5, -0.5, -0.5)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(colour, 1))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawRoundedRect(rect, rect.height() / 2, rect.height() / 2)
    text_left = theme.px(8)
    if name:
        side = theme.px(13)
        paint_glyph(painter, name, QRectF(rect.left() + theme.px(7), rect.center().y() - side / 2, side, side), colour)
        text_left = theme.px(24)
    painter.setPen(theme.colour("text"))
    painter.setFont(theme.font(11, bold=True))
    painter.drawText(rect.adjusted(text_left, 0, 0, 0), int(Qt.AlignmentFlag.AlignVCenter), tr(word))
    painter.restore()


class Badge(Label):
    """A badge: FITS, TIGHT, OFFLOADS and TOO BIG have glyphs, other words are plain."""

    def __init__(self) -> None:
        super().__init__()
        self.setFont(theme.font(11, bold=True))
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.show_status("")

    def show_status(self, word: str) -> None:
        """Show a status by its English word, or nothing if it is empty."""
        self._word = word
        self.setText(tr(word))
        self.updateGeometry()

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the pill's size."""
        return badge_size(self._word)

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the pill's size."""
        return self.sizeHint()

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the badge."""
        if self._word:
            with QPainter(self) as painter:
                paint_badge(painter, 0, self.height() / 2, self._word)
