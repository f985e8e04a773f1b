"""Takes pictures of the window, and waits until it shows what they need."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PySide6.QtCore import QCoreApplication, QElapsedTimer, QEvent, QEventLoop, QSize, Qt, QTimer
from PySide6.QtGui import QColor, QImage

from launcher.gui import theme
from launcher.gui.window import Window

SETTLE_MS = 1_500
"""Milliseconds in which a page settles after it was resized."""
_COLOURS, _SHADES = 256, 5
"""The number of colours of a reduced picture, and of shades between each of the theme's colours and each surface, which
the smoothed edges of lines have.
"""
_LIMIT_MS = 180_000


def take_picture(window: Window, path: Path, *, reduced: bool = False) -> None:
    """Save a picture of the window as it is now, of 256 colours if `reduced`. Raises OSError."""
    QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)  # a busy computer needs longer
    picture = window.grab().toImage()
    if reduced:
        picture = _reduce_colours(picture)
    if not picture.save(str(path), quality=0 if reduced else 60):
        raise OSError(f"{path} could not be written")


def resize_window(window: Window, width: int, height: int) -> None:
    """Resize the window, and carry out what is posted because of it."""
    window.resize(QSize(width, height))
    QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)


def wait_until(done: Callable[[], bool], limit_ms: int = _LIMIT_MS) -> None:
    """Wait until a condition holds. Raises TimeoutError."""
    clock = QElapsedTimer()
    clock.start()
    while not done():
        if clock.elapsed() > limit_ms:
            raise TimeoutError("The demo did not get that far.")
        wait_ms(50)


def wait_ms(milliseconds: int) -> None:
    """Run the event loop for some time."""
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()


def _reduce_colours(picture: QImage) -> QImage:
    """Return a picture reduced to 256 colours, those of the theme and the most frequent ones, without dithering."""
    plain = picture.convertToFormat(QImage.Format.Format_RGB32)
    pixels = np.frombuffer(plain.constBits(), np.uint32)
    colours, counts = np.unique(pixels, return_counts=True)
    often = [int(colour) for colour in colours[np.argsort(counts)[::-1]]]
    table = list(dict.fromkeys([*_own_colours(), *often]))[:_COLOURS]
    flags = Qt.ImageConversionFlag.ThresholdDither | Qt.ImageConversionFlag.AvoidDither
    return plain.convertToFormat(QImage.Format.Format_Indexed8, table, flags)


def _own_colours() -> list[int]:
    now = theme.current()
    names = dict.fromkeys(name for value in now for name in ((value,) if isinstance(value, str) else value))
    own = [QColor(name).rgb() for name in names]
    lines = (now.rate, now.acceptance, now.power, now.ours, now.others, now.limit, now.accent, now.good, now.text)
    shades = [
        _mix_colours(line, now.card, step / _SHADES) for step in range(1, _SHADES) for line in dict.fromkeys(lines)
    ]
    return [*own, *shades]


def _mix_colours(line: str, surface: str, share: float) -> int:
    over, under = QColor(line), QColor(surface)
    parts = ((over.red(), under.red()), (over.green(), under.green()), (over.blue(), under.blue()))
    return QColor(*(round(a * share + b * (1 - share)) for a, b in parts)).rgb()
