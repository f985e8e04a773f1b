"""The program's icon, for its windows and the tray."""

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap

from launcher.gui import theme

_SIZES = (16, 24, 32, 48, 64, 128, 256)


def make_icon() -> QIcon:
    """Return the program's icon: three bars, the last one ahead like a draft."""
    icon = QIcon()
    for size in _SIZES:
        picture = QPixmap(QSize(size, size))
        picture.fill(Qt.GlobalColor.transparent)
        with QPainter(picture) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.scale(size / 32, size / 32)
            painter.setBrush(theme.icon_background())
            painter.drawRoundedRect(QRectF(1, 1, 30, 30), 7, 7)
            painter.setBrush(Qt.GlobalColor.white)
            for top, left, width in ((8, 7, 9), (14, 7, 14), (20, 7, 18)):
                painter.drawRoundedRect(QRectF(left, top, width, 4), 2, 2)
        icon.addPixmap(picture)
    return icon
