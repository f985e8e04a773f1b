"""What is kept of the model files on this machine: one small JSON file, written whole, under a lock."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from launcher.base.files import set_aside, write_atomically
from launcher.base.paths import data_dir

Kind = Literal["model", "draft", "mmproj"]
Head = Literal["present", "promised", "none"]
_LOCK_S = 20.0
_SHA256 = r"^[0-9a-f]{64}$"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Hashed(_Frozen):
    """A file's SHA-256, and when it was computed (seconds since the epoch), for as long as size and time stay."""

    path: Path
    bytes: int = Field(ge=0)
    modified_ns: int
    sha256: str = Field(pattern=_SHA256)
    verified_s: float


class Record(_Frozen):
    """One model on this machine, or what is loaded beside one: its files in order, and where they came from.

    `sha256` are what the files should be, None where nobody has said, `bytes` the size of all; `problem` says why it is
    not what was promised. `received_s` (since the epoch) is None for a file that was found and not downloaded by us.
    """

    kind: Kind = "model"
    paths: tuple[Path, ...] = Field(min_length=1)
    sha256: tuple[str | None, ...] = ()
    bytes: int = Field(0, ge=0)
    model: str | None = None
    quant: str | None = None
    repo: str | None = None
    revision: str | None = None
    file: str | None = None
    url: str | None = None
    head: Head | None = None
    problem: str | None = None
    received_s: float | None = None

    @property
    def path(self) -> Path:
        """Its first file, which an engine is given."""
        return self.paths[0]

    @property
    def words(self) -> str:
        """What the user calls it: ID:QUANT, or where it came from, or its path."""
        if self.model and self.kind == "model":
            return f"{self.model}:{self.quant}"
        return f"{self.repo}:{self.file}" if self.repo else str(self.path)


class Index(BaseModel):
    """The whole file."""

    version: Literal[1] = 1
    records: list[Record] = []
    hashes: list[Hashed] = []


def index_path() -> Path:
    """Return where the index lies."""
    return data_dir() / "library.json"


def read_index() -> tuple[Index, str | None]:
    """Return the index, and what to tell the user when it is damaged and therefore taken as empty."""
    path = index_path()
    if sys.platform == "win32" and path.exists():  # what is being read cannot be replaced there
        with FileLock(_lock_path(), timeout=_LOCK_S):
            return _read(path)
    return _read(path)


def origin_of(file: Path) -> Record | None:
    """Return what is known of a file that came from a repository; None when nobody knows where it came from."""
    index, _ = read_index()
    return next((each for each in index.records if file in each.paths and each.repo is not None), None)


def _read(path: Path) -> tuple[Index, str | None]:
    try:
        return Index.model_validate_json(path.read_bytes()), None
    except FileNotFoundError:
        return Index(), None
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "it does not hold what was written to it"
        return Index(), f"{path} cannot be read ({why}): the models are looked for in their folders."


@contextmanager
def changed_index() -> Iterator[Index]:
    """Yield the index to change it; it is written when the block ends well. Others wait meanwhile.

    A damaged one is kept beside it and begun anew. Raises OSError when it cannot be written.
    """
    path = index_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(_lock_path(), timeout=_LOCK_S):
        index, damaged = _read(path)
        before = index.model_copy(deep=True)
        if damaged:
            set_aside(path, "The list of models")
        yield index
        if damaged or index != before:
            write_atomically(path, index.model_dump_json(indent=1, exclude_none=True).encode())


def _lock_path() -> Path:
    return index_path().with_suffix(".lock")


def hash_kept(index: Index, path: Path) -> Hashed | None:
    """Return the SHA-256 that was computed of a file, None when it was not or the file has changed since."""
    try:
        stat = path.stat()
    except OSError:
        return None
    kept = next((each for each in index.hashes if each.path == path), None)
    return kept if kept and (kept.bytes, kept.modified_ns) == (stat.st_size, stat.st_mtime_ns) else None


def keep_hash(path: Path, sha256: str, stat: os.stat_result) -> None:
    """Remember a SHA-256 that was just computed of what `stat` told before, so that a change meanwhile shows.

    Raises OSError.
    """
    new = Hashed(
        path=path, bytes=stat.st_size, modified_ns=stat.st_mtime_ns, sha256=sha256, verified_s=round(time.time(), 3)
    )
    with changed_index() as index:
        index.hashes[:] = [*(each for each in index.hashes if each.path != path), new]


def keep_record(record: Record) -> None:
    """Put a record in, in place of one for the same file. Raises OSError."""
    with changed_index() as index:
        index.records[:] = [*(each for each in index.records if each.path != record.path), record]


def forget(paths: tuple[Path, ...]) -> None:
    """Take out what is kept of files. Raises OSError."""
    with changed_index() as index:
        index.records[:] = [each for each in index.records if each.path not in paths]
        index.hashes[:] = [each for each in index.hashes if each.path not in paths]
