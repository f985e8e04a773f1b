"""What the chat adds to the look: icons from painted glyphs, and a style sheet of its own."""

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtWidgets import QPushButton

from launcher.gui import theme
from launcher.gui.widgets.glyphs import paint_glyph

_SIZE = 14


def icon(name: str, role: str = "secondary") -> QIcon:
    """Return a painted glyph as an icon; "left" is "right" turned around."""
    size = theme.px(_SIZE)
    picture = QPixmap(QSize(size, size) * 2)
    picture.setDevicePixelRatio(2)
    picture.fill(Qt.GlobalColor.transparent)
    with QPainter(picture) as painter:
        if name == "left":
            painter.translate(size, 0)
            painter.scale(-1, 1)
            name = "right"
        paint_glyph(painter, name, QRectF(0, 0, size, size), theme.colour(role))
    return QIcon(picture)


def sheet() -> str:
    """Return the chat's own rules. The frame around text that has the focus takes no room, so nothing is set anew."""
    radius = theme.px(theme.CONTROL_RADIUS)
    t = theme.current()
    return f"""
    QTextEdit#reply {{ background: transparent; border: 2px solid transparent; border-radius: {radius}px; padding: 0; }}
    QTextEdit#reply:focus {{ border: 2px solid {t.accent}; }}
    QFrame#code {{ background: {t.window}; border: 1px solid {t.border}; border-radius: {radius}px; }}
    QPlainTextEdit#code {{ background: transparent; border: none; padding: 0; border-radius: 0; }}
    QPlainTextEdit#code:focus {{ background: {t.raised}; }}
    QListWidget {{ background: transparent; border: 1px solid transparent; }}
    QListWidget:focus {{ border: 2px solid {t.accent}; border-radius: {radius}px; }}
    #editing {{ background: {t.raised}; border-radius: {radius}px; }}
    """


def dense(text: str, tip: str, *, checkable: bool = False) -> QPushButton:
    """Return a small button."""
    button = QPushButton(text)
    button.setObjectName("dense")
    button.setToolTip(tip)
    button.setCheckable(checkable)
    button.setAutoDefault(True)
    return button
