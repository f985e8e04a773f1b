"""A file of ours that SQLite keeps: opened, made, brought up to date; set aside when it is damaged."""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.base.copies import copy_of, how_to_restore, keep_only, latest
from launcher.base.errors import WrittenByNewer
from launcher.base.files import open_private, private_folder, replace, set_aside

_BUSY_S = 5.0
_MEMORY = ":memory:"
Ready = Callable[[sqlite3.Connection], object]
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True)
class Opened:
    """The open file, in autocommit mode, and what the user must know of it, or an empty text."""

    db: sqlite3.Connection
    notice: str = ""


def open_database(path: Path, migrations: Sequence[str], what: str, ready: Ready = lambda _: None) -> Opened:
    """Open a file in WAL mode, and make it where there is none. A damaged one is kept as .bad, and a new one begun.

    `migrations` are the scripts that lead from one version of the file to the next; its `user_version` counts those
    that were run. Before any is run on a file that was there, it is copied (base/copies.py). `what` begins a sentence,
    such as "The history of measurements". `ready` gets the file last, and may find it damaged, too. Raises
    sqlite3.Error and OSError when the system refuses, WrittenByNewer for a file of a newer version of this program.
    """
    try:
        return Opened(_opened(path, migrations, what, ready))
    except sqlite3.DatabaseError as error:
        if not is_damage(error) or (bad := _put_aside(path, what)) is None:
            raise
    notice = f"{what} was damaged: a new one was begun, and the old one is kept as {bad.name}."
    return Opened(_opened(path, migrations, what, ready), notice)


def open_memory(migrations: Sequence[str], what: str, ready: Ready = lambda _: None) -> Opened:
    """Return what is like the file, and empty, but is nowhere on a disk."""
    opened = Opened(_set_up(_MEMORY, migrations, what, ready))
    opened.db.execute("PRAGMA temp_store = MEMORY")
    return opened


@contextmanager
def changing(db: sqlite3.Connection) -> Iterator[None]:
    """Make changes that come to be all together, or not at all; within others they are part of those."""
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk ends it by itself
            db.execute("ROLLBACK")
        raise


def is_damage(error: sqlite3.Error) -> bool:
    """Whether it is the file's content that SQLite objects to."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGE


class _Damaged(sqlite3.DatabaseError):
    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _opened(path: Path, migrations: Sequence[str], what: str, ready: Ready) -> sqlite3.Connection:
    private_folder(path.parent)
    os.close(open_private(path, os.O_RDWR | os.O_CREAT))  # SQLite gives its other files the same permissions
    return _set_up(str(path), migrations, what, ready)


def _set_up(place: str, migrations: Sequence[str], what: str, ready: Ready) -> sqlite3.Connection:
    db = sqlite3.connect(place, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA journal_mode = WAL")  # where the file system cannot, SQLite keeps to its usual journal
        if (found := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise _Damaged(found)
        _bring_up_to_date(db, place, migrations, what)
        ready(db)
    except BaseException:
        db.close()
        raise
    return db


def _bring_up_to_date(db: sqlite3.Connection, place: str, migrations: Sequence[str], what: str) -> None:
    version = _version(db)
    if version > len(migrations):
        copy = latest(Path(place), up_to=len(migrations))
        back = "" if copy is None else f" Or go back to how it was before the update: {how_to_restore(copy)}"
        raise WrittenByNewer(
            f"{what} ({place}) was written by a newer version of this program.",
            f"Update this one, or move that file away.{back}",
            path=place,
        )
    if version == len(migrations):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _version(db)  # another process may have done it meanwhile
        if 0 < version < len(migrations) and place != _MEMORY:
            _copy(Path(place), version)
        for number in range(version, len(migrations)):
            for statement in migrations[number].split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number + 1}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _copy(path: Path, version: int) -> None:
    """Copy a file that other processes may read meanwhile, and that nobody else changes, with what its log holds."""
    copy = copy_of(path, f"v{version}")
    draft = copy.with_name(f"{copy.name}.draft")
    draft.unlink(missing_ok=True)
    try:
        os.close(open_private(draft, os.O_RDWR | os.O_CREAT))
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(draft)) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # so that all of it is in the one file
        replace(draft, copy)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    keep_only(copy, path)


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _put_aside(path: Path, what: str) -> Path | None:
    bad = set_aside(path, what)
    if bad is not None:
        with suppress(OSError):
            path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
        with suppress(OSError):  # what came last may still be in it
            path.with_name(f"{path.name}-wal").rename(bad.with_name(f"{bad.name}-wal"))
    return bad
