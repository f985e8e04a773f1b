"""What may be dropped on the page."""

from pathlib import Path

from PySide6.QtGui import QDropEvent


def dropped_log(event: QDropEvent) -> Path | None:
    """Return the one file that is dragged, unless it is a model."""
    urls = event.mimeData().urls()
    if len(urls) != 1 or not urls[0].isLocalFile():
        return None
    path = Path(urls[0].toLocalFile())
    return path if path.is_file() and path.suffix.lower() != ".gguf" else None
