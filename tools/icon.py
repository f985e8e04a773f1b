"""Writes the icon as PNG files beside its drawing: `python -m tools.icon`."""

from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QImage, QPainter
from PySide6.QtSvg import QSvgRenderer

from launcher.base.paths import shipped_file

SIZES = (48, 128, 256)
"""Width and height of the pictures in pixels: those of the icon theme specification that menus ask for most."""


def draw_icon(size: int) -> QImage:
    """Return the drawing, `size` pixels wide and high."""
    picture = QImage(size, size, QImage.Format.Format_ARGB32)
    picture.fill(Qt.GlobalColor.transparent)
    with QPainter(picture) as painter:
        QSvgRenderer(str(shipped_file("resources", "desktop", "mtp-launcher.svg"))).render(painter)
    return picture


def write(folder: Path) -> None:
    """Write a PNG for each size."""
    for size in SIZES:
        draw_icon(size).save(str(folder / f"mtp-launcher-{size}.png"))


if __name__ == "__main__":
    application = QGuiApplication(["icon", "-platform", "offscreen"])
    write(shipped_file("resources", "desktop"))
