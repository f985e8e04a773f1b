"""Files that are dragged onto widgets, and dropped there."""

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QMimeData, QPoint, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QApplication, QWidget


def drag_files(widget: QWidget, *paths: Path) -> bool:
    """Drag files onto a widget; return whether it takes them."""
    return _send(QDragEnterEvent, widget, paths)


def drop_files(widget: QWidget, *paths: Path) -> bool:
    """Drag files onto a widget, and drop them where it takes them; return whether it does."""
    return drag_files(widget, *paths) and _send(QDropEvent, widget, paths)


def _send(kind: type[QDropEvent], widget: QWidget, paths: Sequence[Path]) -> bool:
    data = QMimeData()  # kept in a variable, because the event only points to it
    data.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    left, none = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    event = kind(QPoint(5, 5), Qt.DropAction.CopyAction, data, left, none)
    event.ignore()
    QApplication.sendEvent(widget, event)
    return event.isAccepted()
