"""Style of the chat: icons from painted glyphs, and its style sheet."""

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtWidgets import QPushButton

from launcher.gui import theme
from launcher.gui.widgets.glyphs import paint_glyph

_ICON_SIZE = 14


def glyph_icon(name: str, role: str = "secondary") -> QIcon:
    """Return a painted glyph as an icon. "left" is "right" mirrored."""
    size = theme.px(_ICON_SIZE)
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


def chat_style_sheet() -> str:
    """Return the chat's style sheet. Text reserves room for its focus frame, so gaining the focus changes no layout."""
    radius, large = theme.px(theme.CONTROL_RADIUS), theme.px(theme.CARD_RADIUS)
    t = theme.current()
    return f"""
    QTextEdit#reply {{ background: transparent; border: 2px solid transparent; border-radius: {radius}px; padding: 0; }}
    QTextEdit#reply:focus {{ border: 2px solid {t.accent}; }}
    QFrame#code {{ background: {t.window}; border: 1px solid {t.border}; border-radius: {large}px; }}
    QFrame#codeHead {{ background: transparent; border: none; border-bottom: 1px solid {t.border}; }}
    QPlainTextEdit#code, QTextEdit#code {{ background: transparent; border: none; padding: 0; border-radius: 0; }}
    QFrame#code QPushButton:checked {{ background: transparent; color: {t.text}; }}
    QPlainTextEdit#code:focus, QTextEdit#code:focus {{ background: {t.raised}; }}
    QFrame#composer {{ background: {t.card}; border: 1px solid {t.control}; border-radius: {large}px; }}
    QFrame#composer[active="true"] {{ border: 2px solid {t.accent}; padding: 0; }}
    QFrame#tile {{ background: {t.card}; border: 1px solid {t.border}; border-radius: {large}px; }}
    QFrame#tile:focus {{ border: 2px solid {t.accent}; }}
    QPlainTextEdit#prompt, QPlainTextEdit#prompt:focus {{ background: {t.card}; border: none; padding: 2px 4px;
        border-radius: 0; }}
    QListWidget {{ background: transparent; border: 1px solid transparent; }}
    QListWidget:focus {{ border: 2px solid {t.accent}; border-radius: {radius}px; }}
    QPushButton#suggestion {{ min-height: 0; padding: 0; text-align: left; }}
    QPushButton#suggestion:focus {{ padding: 0; }}
    #editing {{ background: {t.raised}; border-radius: {radius}px; }}
    """


def make_dense_button(text: str, tip: str, *, checkable: bool = False) -> QPushButton:
    """Return a small button."""
    button = QPushButton(text)
    button.setObjectName("dense")
    button.setToolTip(tip)
    button.setCheckable(checkable)
    button.setAutoDefault(True)
    return button
