"""What may be dropped on the page."""

from pathlib import Path

from PySide6.QtCore import QMimeData

from launcher.gui.words import tr


def reading(data: QMimeData) -> str:
    """Say what becomes of what is dragged; nothing where it is not taken."""
    return tr("Drop it to read it here, with what went wrong in it") if dropped_log(data) is not None else ""


def dropped_log(data: QMimeData) -> Path | None:
    """Return the one file that is dragged, unless it is a model."""
    urls = data.urls()
    if len(urls) != 1 or not urls[0].isLocalFile():
        return None
    path = Path(urls[0].toLocalFile())
    return path if path.is_file() and path.suffix.lower() != ".gguf" else None
