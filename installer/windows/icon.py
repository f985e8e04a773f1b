"""Writes mtp-launcher.ico, the program's own icon, for the setup program and its shortcuts (run when the icon changes).

QT_QPA_PLATFORM=offscreen .venv/bin/python installer/windows/icon.py
"""

import struct
from pathlib import Path

from PySide6.QtCore import QBuffer, QIODevice
from PySide6.QtGui import QIcon, QImage
from PySide6.QtWidgets import QApplication

from launcher.gui.tray import make_icon

SIZES = (16, 24, 32, 48, 64, 256)
_LARGE = 256
"""From here on a picture is PNG; smaller ones are bitmaps, which every reader of icons knows."""


def picture(icon: QIcon, size: int) -> bytes:
    """Return one size as an icon file holds it."""
    image = icon.pixmap(size, size).toImage().convertToFormat(QImage.Format.Format_ARGB32)
    if size >= _LARGE:
        buffer = QBuffer()
        buffer.open(QIODevice.OpenModeFlag.WriteOnly)
        image.save(buffer, "PNG")
        return bytes(buffer.data().data())
    rows = bytes(image.flipped().constBits())
    mask = bytes(-(-size // 32) * 4 * size)
    return struct.pack("<IiiHHIIiiII", 40, size, 2 * size, 1, 32, 0, len(rows) + len(mask), 0, 0, 0, 0) + rows + mask


def main() -> None:
    """Draw all sizes into one file."""
    application = QApplication([])
    icon = make_icon()
    pictures = [picture(icon, size) for size in SIZES]
    head = struct.pack("<HHH", 0, 1, len(SIZES))
    place = len(head) + 16 * len(SIZES)
    for size, data in zip(SIZES, pictures, strict=True):
        head += struct.pack("<BBBBHHII", size % _LARGE, size % _LARGE, 0, 0, 1, 32, len(data), place)
        place += len(data)
    Path(__file__).with_name("mtp-launcher.ico").write_bytes(head + b"".join(pictures))
    application.quit()


if __name__ == "__main__":
    main()
