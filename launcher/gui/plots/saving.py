"""Exports: a picture or a table of what the plots show, written on the core's side so that the window goes on."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QStandardPaths
from PySide6.QtGui import QImage

from launcher.base.errors import LauncherError
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.gui.bridge import Bridge
    from launcher.gui.plots.export import Table

_MOST = 100


class NotSaved(LauncherError):
    """A picture or a table could not be written."""


def free_path(suffix: str, folder: Path | None = None) -> Path:
    """Return a path named after this moment that is not taken: in `folder`, else among the user's downloads."""
    if folder is None:
        place = Path(QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DownloadLocation))
        folder = place if place.is_dir() else Path.home()
    name = f"mtp-launcher-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}"
    names = (f"{name}{again}.{suffix}" for again in ("", *(f"-{n}" for n in range(2, _MOST))))
    return next((folder / each for each in names if not (folder / each).exists()), folder / f"{name}.{suffix}")


def save_table(bridge: "Bridge", table: "Table", path: Path, told: Callable[[str, Path | None], object]) -> None:
    """Write a CSV file; `told` gets a sentence, and the path when it is there."""
    from launcher.gui.plots.export import write_csv

    _save(bridge, lambda: write_csv(table, path), path, told)


def save_picture(bridge: "Bridge", picture: QImage, path: Path, told: Callable[[str, Path | None], object]) -> None:
    """Write a PNG file."""

    def save() -> None:
        if not picture.save(str(path)):
            raise OSError(tr("the folder cannot be written to, or the disk is full"))

    _save(bridge, save, path, told)


def _save(bridge: "Bridge", write: Callable[[], None], path: Path, told: Callable[[str, Path | None], object]) -> None:
    async def work(_tell: object) -> None:
        try:
            await asyncio.to_thread(write)
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotSaved(
                tr("{path} could not be written: {reason}.", path=path, reason=reason),
                tr("Free some space and try again."),
            ) from error

    bridge.run(
        work,
        done=lambda _: told(tr("Saved: {path}", path=path), path),
        failed=lambda error: told(str(error), None),
    )
