"""Scroll areas of pages and columns."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QScrollArea, QWidget


def make_scroll_area(content: QWidget, name: str = "", *, sideways: bool = False) -> QScrollArea:
    """Return a scroll area as wide as its place, which takes no focus. `name` is for screen readers.

    It scrolls sideways, too, if `sideways` is True and the content does not fit.
    """
    area = QScrollArea()
    area.setWidget(content)
    area.setWidgetResizable(True)
    if not sideways:
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    area.setAccessibleName(name)
    return area
