"""The library's index: records and hashes of local model files, in one JSON file that is replaced under a lock.

It is checked without pydantic, whose import would double the time of commands that list models or plans.
"""

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from launcher.base.codec import encode_json, from_json, to_json
from launcher.base.files import write_atomically
from launcher.base.kept_files import KeptFile, hold_file_lock
from launcher.base.messages import message
from launcher.base.paths import data_dir

Kind = Literal["model", "draft", "mmproj", "other"]
Head = Literal["present", "promised", "none"]
_LOCK_S = 20.0
_VERSION = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHash:
    """The SHA-256 of a file, valid until size or modification time change. `verified_s` is in seconds since 1970."""

    path: Path
    bytes: int
    modified_ns: int
    sha256: str
    verified_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A local model, or a file that is mistaken for one: its files in order, and their origin.

    `sha256` has the expected hash of each file, None where unknown; `bytes` is the size of all files. `problem` is why
    the model is not the promised one. `received_s`, in seconds since the epoch, is None for a file that was found and
    not downloaded by us. Of a found file `missing_bytes` is how much it is too short for its tensors, None if unknown.
    `file_kind` is the file's name in the table of `file_kinds`, "model" for a model; None if it was not looked up.
    """

    kind: Kind = "model"
    paths: tuple[Path, ...]
    sha256: tuple[str | None, ...] = ()
    bytes: int = 0
    model: str | None = None
    quant: str | None = None
    repo: str | None = None
    revision: str | None = None
    file: str | None = None
    url: str | None = None
    head: Head | None = None
    problem: str | None = None
    received_s: float | None = None
    missing_bytes: int | None = None
    file_kind: str | None = None

    @property
    def path(self) -> Path:
        """The first file, which the engine loads."""
        return self.paths[0]

    @property
    def label(self) -> str:
        """The name to show: ID:QUANT, else REPO:FILE, else the path."""
        if self.model and self.kind == "model":
            return f"{self.model}:{self.quant}"
        return f"{self.repo}:{self.file}" if self.repo else str(self.path)


@dataclass(slots=True)
class Index:
    """The content of the index file. `drafts` are the files that the user has named as drafts, by the model's path."""

    records: list[Record] = field(default_factory=list)
    hashes: list[FileHash] = field(default_factory=list)
    drafts: dict[Path, Path] = field(default_factory=dict)


def _parse_index(text: bytes) -> Index:
    data = json.loads(text)
    if data.get("version", _VERSION) != _VERSION:
        raise ValueError("it is of another version")
    index = from_json(Index, data)
    if not all(each.paths and each.bytes >= 0 for each in index.records):
        raise ValueError("its records are invalid")
    if not all(each.bytes >= 0 and _SHA256.fullmatch(each.sha256) for each in index.hashes):
        raise ValueError("its hashes are invalid")
    return index


def index_path() -> Path:
    """Return the path of the index file."""
    return data_dir() / "library.json"


def read_index() -> tuple[Index, str | None]:
    """Return the index, and a message for the user if it is damaged; it is then empty."""
    path = index_path()
    if sys.platform == "win32" and path.exists():  # Windows cannot replace a file that is being read
        with hold_file_lock(path, _LOCK_S):
            return _load_index(path)
    return _load_index(path)


def find_origin(file: Path) -> Record | None:
    """Return the record of a file that came from a repository; None if its origin is unknown."""
    index, _ = read_index()
    return next((each for each in index.records if file in each.paths and each.repo is not None), None)


def _load_index(path: Path) -> tuple[Index, str | None]:
    try:
        index, damage = _FILE.load_with_damage(path)
    except OSError as error:
        return Index(), _unreadable_message(path, error.strerror)
    return index, _unreadable_message(path, "its content is damaged") if damage else None


def _unreadable_message(path: Path, why: str | None) -> str:
    return message("Cannot read {path} ({why}). Searching the model folders instead.", path=path, why=why)


_FILE = KeptFile("The list of models", _parse_index, Index)


@contextmanager
def edit_index() -> Iterator[Index]:
    """Lock the index and yield it for changes; it is written when the block ends without an exception.

    A damaged index is kept as a copy and replaced by an empty one. Raises OSError if it cannot be written.
    """
    path = index_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with hold_file_lock(path, _LOCK_S):
        index = _FILE.load(path)
        before = Index(list(index.records), list(index.hashes), dict(index.drafts))
        yield index
        if index != before:
            write_atomically(path, encode_json({"version": _VERSION, **to_json(index, sparse=True)}, indent=1))


def find_hash(index: Index, path: Path) -> FileHash | None:
    """Return the stored hash of a file; None if there is none or the file has changed since."""
    try:
        stat = path.stat()
    except OSError:
        return None
    kept = next((each for each in index.hashes if each.path == path), None)
    return kept if kept and (kept.bytes, kept.modified_ns) == (stat.st_size, stat.st_mtime_ns) else None


def store_hash(path: Path, sha256: str, stat: os.stat_result) -> None:
    """Store the SHA-256 of a file. `stat` must be from before hashing, so that a change meanwhile is noticed.

    Raises OSError.
    """
    new = FileHash(
        path=path, bytes=stat.st_size, modified_ns=stat.st_mtime_ns, sha256=sha256, verified_s=round(time.time(), 3)
    )
    with edit_index() as index:
        index.hashes[:] = [*(each for each in index.hashes if each.path != path), new]


def store_record(record: Record) -> None:
    """Store a record, replacing one for the same file. Raises OSError."""
    with edit_index() as index:
        index.records[:] = [*(each for each in index.records if each.path != record.path), record]


def remove_from_index(paths: tuple[Path, ...]) -> None:
    """Remove the records and hashes of files. Raises OSError."""
    with edit_index() as index:
        index.records[:] = [each for each in index.records if each.path not in paths]
        index.hashes[:] = [each for each in index.hashes if each.path not in paths]
