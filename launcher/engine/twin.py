"""A sparse twin: a file with a model's real header and full size, and holes where its weights would be."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import TwinImpossible
from launcher.base.paths import cache_dir

_TRIAL_BYTES = 2**25
_LEFT_OVER_S = 3_600.0
_FSCTL_SET_SPARSE = 0x900C4


@dataclass(frozen=True, slots=True)
class TwinPart:
    """One file of the model: its name, the bytes up to its tensors' data, and its full size in bytes."""

    name: str
    raw_header: bytes
    file_bytes: int


@contextmanager
def sparse_twin(parts: Sequence[TwinPart], folder: Path | None = None) -> Iterator[Path]:
    """Write the twin of a model, yield the path of its first file, and delete it at the end.

    It lies in the cache folder, or in `folder`. Raises TwinImpossible where the file system has no holes or no room.
    """
    home = (cache_dir() / "twins") if folder is None else folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        _sweep(home)
        place = Path(tempfile.mkdtemp(dir=home))
    except OSError as error:
        raise _impossible(home, str(error.strerror or error)) from error
    try:
        try:
            for part in parts:
                _write(place / part.name, part)
        except OSError as error:
            raise _impossible(home, str(error.strerror or error)) from error
        yield place / parts[0].name
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _write(path: Path, part: TwinPart) -> None:
    with path.open("wb") as file:
        if sys.platform == "win32":
            _allow_holes(file.fileno())
        file.write(part.raw_header)
        file.flush()
        file.truncate(min(part.file_bytes, len(part.raw_header) + _TRIAL_BYTES))
        if _disk_bytes(path) > len(part.raw_header) + _TRIAL_BYTES // 2:
            raise _impossible(path.parent.parent, "its file system has no sparse files")
        file.truncate(part.file_bytes)


def _disk_bytes(path: Path) -> int:
    if sys.platform == "win32":
        return 0  # there FSCTL_SET_SPARSE has told
    return path.stat().st_blocks * 512


def _allow_holes(descriptor: int) -> None:
    if sys.platform != "win32":
        return
    import ctypes
    import msvcrt
    from ctypes import wintypes

    returned = wintypes.DWORD()
    handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
    done = ctypes.windll.kernel32.DeviceIoControl(
        handle, _FSCTL_SET_SPARSE, None, 0, None, 0, ctypes.byref(returned), None
    )
    if not done:
        raise OSError(ctypes.get_last_error(), "its file system has no sparse files")


def _sweep(home: Path) -> None:
    """Delete twins that a killed process left behind."""
    for place in home.iterdir():
        if place.is_dir() and place.stat().st_mtime < time.time() - _LEFT_OVER_S:
            shutil.rmtree(place, ignore_errors=True)


def _impossible(folder: Path, why: str) -> TwinImpossible:
    variable = "MTP_LAUNCHER_HOME"
    return TwinImpossible(
        f"The engine cannot be asked: no sparse file can be made in {folder} ({why.rstrip('.')}).",
        f"The formula's figures stand. Or set {variable} to a folder on a disk with sparse files (ext4, NTFS).",
        folder=os.fspath(folder),
    )
