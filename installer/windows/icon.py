"""Writes mtp-launcher.ico, the program's icon, and side.bmp, the side of setup's last page (run when the icon changes).

QT_QPA_PLATFORM=offscreen .venv/bin/python installer/windows/icon.py
"""

import struct
from pathlib import Path

from PySide6.QtCore import QBuffer, QIODevice
from PySide6.QtGui import QIcon, QImage, QPainter
from PySide6.QtWidgets import QApplication

from launcher.gui.icon import make_icon

SIZES = (16, 24, 32, 48, 64, 256)
SIDE = (164, 314)
"""Width and height in pixels, as NSIS' Modern UI wants it."""
_LARGE = 256
"""From here on a picture is PNG; smaller ones are bitmaps, which every reader of icons knows."""


def encode_picture(icon: QIcon, size: int) -> bytes:
    """Return the icon in one size, in the form in which an icon file holds it."""
    image = icon.pixmap(size, size).toImage().convertToFormat(QImage.Format.Format_ARGB32)
    if size >= _LARGE:
        buffer = QBuffer()
        buffer.open(QIODevice.OpenModeFlag.WriteOnly)
        image.save(buffer, "PNG")
        return bytes(buffer.data().data())
    rows = bytes(image.flipped().constBits())
    mask = bytes(-(-size // 32) * 4 * size)
    return struct.pack("<IiiHHIIiiII", 40, size, 2 * size, 1, 32, 0, len(rows) + len(mask), 0, 0, 0, 0) + rows + mask


def paint_side(icon: QIcon) -> QImage:
    """Return the icon on a ground of its own colour, in the size SIDE."""
    image = icon.pixmap(64, 64).toImage().convertToFormat(QImage.Format.Format_ARGB32)
    ground = QImage(*SIDE, QImage.Format.Format_RGB888)
    ground.fill(image.pixelColor(32, 8))
    with QPainter(ground) as painter:
        painter.drawImage((SIDE[0] - 64) // 2, 40, image)
    return ground


def main() -> None:
    """Write both files."""
    application = QApplication([])
    icon = make_icon()
    pictures = [encode_picture(icon, size) for size in SIZES]
    head = struct.pack("<HHH", 0, 1, len(SIZES))
    place = len(head) + 16 * len(SIZES)
    for size, data in zip(SIZES, pictures, strict=True):
        head += struct.pack("<BBBBHHII", size % _LARGE, size % _LARGE, 0, 0, 1, 32, len(data), place)
        place += len(data)
    Path(__file__).with_name("mtp-launcher.ico").write_bytes(head + b"".join(pictures))
    paint_side(icon).save(str(Path(__file__).with_name("side.bmp")))
    application.quit()


if __name__ == "__main__":
    main()
