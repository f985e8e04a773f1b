"""A sparse twin: a file with a model's real header and full size, and holes where its weights would be."""

import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import TwinImpossible
from launcher.base.files import make_folder
from launcher.base.identity import ProcessId
from launcher.base.paths import HOME_VARIABLE, cache_dir

_TRIAL_BYTES = 2**25
_NODE = platform.node() or "localhost"
_PLACE = re.compile(re.escape(_NODE) + r"-(\d+)-(\d+\.\d+)-.*")
"""What a twin's folder is called: computer, pid and creation time of the process it belongs to, and a random end."""
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

    It lies in the cache folder, or in `folder`. What killed processes of this computer left there is deleted. Raises
    TwinImpossible where the file system has no holes, no room, or no files of that size, and OSError where there can
    be no cache folder.
    """
    home = (cache_dir() / "twins") if folder is None else folder
    if folder is None:
        make_folder(cache_dir())
    try:
        home.mkdir(parents=True, exist_ok=True)
        _sweep(home)
        owner = ProcessId.of(os.getpid()) or ProcessId(os.getpid(), time.time())
        place = Path(tempfile.mkdtemp(prefix=f"{_NODE}-{owner.pid}-{owner.created_s:.2f}-", dir=home))
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
    """Delete twins whose process was killed."""
    for place in home.iterdir():
        owner = _PLACE.fullmatch(place.name)
        if owner and not ProcessId(int(owner[1]), float(owner[2])).running():
            shutil.rmtree(place, ignore_errors=True)


def _impossible(folder: Path, why: str) -> TwinImpossible:
    return TwinImpossible(
        f"The engine cannot be asked: no sparse file can be made in {folder} ({why.rstrip('.')}).",
        f"Set {HOME_VARIABLE} to a folder on a disk with sparse files (ext4, NTFS).",
        folder=os.fspath(folder),
    )
