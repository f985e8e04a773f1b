"""The focus within a part of a window."""

from PySide6.QtWidgets import QWidget


def find_focus(part: QWidget) -> QWidget | None:
    """Return the widget in `part`, or `part` itself, that has the focus of its window; None if none has.

    The window need not be the active one.
    """
    focused = part.window().focusWidget()
    return focused if focused is not None and (focused is part or part.isAncestorOf(focused)) else None
