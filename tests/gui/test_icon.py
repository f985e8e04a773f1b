"""The program's icon: the files for menus and the window's own drawing are the same picture."""

import pytest
from PySide6.QtGui import QImage

from launcher.base.paths import shipped_file
from launcher.gui.icon import make_icon
from tools import icon


def measure_difference(one: QImage, other: QImage) -> float:
    """Return which part of two pictures' pixels differs visibly."""
    assert one.size() == other.size()
    points = [(x, y) for x in range(one.width()) for y in range(one.height())]
    seen = 0
    for x, y in points:
        here, there = one.pixelColor(x, y), other.pixelColor(x, y)
        ours = (here.red(), here.green(), here.blue(), here.alpha())
        theirs = (there.red(), there.green(), there.blue(), there.alpha())
        seen += any(abs(a - b) > 40 for a, b in zip(ours, theirs, strict=True))
    return seen / len(points)


@pytest.mark.usefixtures("qapp")
def test_icon_files_match_the_drawing_and_the_window_icon() -> None:
    folder = shipped_file("resources", "desktop")
    assert sorted(folder.glob("*.png")) == sorted(folder / f"mtp-launcher-{size}.png" for size in icon.SIZES)
    for size in icon.SIZES:
        assert measure_difference(QImage(str(folder / f"mtp-launcher-{size}.png")), icon.draw_icon(size)) < 0.002
    assert measure_difference(icon.draw_icon(128), make_icon().pixmap(128, 128).toImage()) < 0.01
