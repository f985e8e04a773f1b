"""SQLite files of this program: open, create, migrate, and set aside when damaged."""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launcher.base.errors import WrittenByNewer
from launcher.base.files import make_private_folder, open_private_file, replace_file
from launcher.base.kept_files import (
    delete_other_version_copies,
    find_readable_version_copy,
    restore_instructions,
    set_aside,
    version_copy_path,
)
from launcher.base.locks import has_locks, read_clock
from launcher.base.messages import join_messages, message

_BUSY_S = 5.0
_LONGEST_TRANSACTION_S = 60.0
_MEMORY = ":memory:"
Prepare = Callable[[sqlite3.Connection], object]
"""Work on a database that was just opened and migrated."""
_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True)
class OpenedDatabase:
    """An open database in autocommit mode, and a notice for the user if its file was damaged, else ""."""

    db: sqlite3.Connection
    notice: str = ""


def open_database(
    path: Path, migrations: Sequence[str], label: str, prepare: Prepare = lambda _: None
) -> OpenedDatabase:
    """Open a database, creating it if needed. A damaged file is kept as .bad and replaced by a new one.

    It is in WAL mode where the file system has locks.
    `migrations` are the scripts that lead from one schema version to the next; `user_version` counts those that were
    run. An existing file is copied before it is migrated (base/kept_files.py). `label` begins a sentence about the
    file, such as "The history of measurements". If `prepare` raises an error for which `is_damage` is True, the file is
    replaced as well. Raises sqlite3.Error and OSError if the system refuses, WrittenByNewer for a file of a newer
    version of this program.
    """
    try:
        return OpenedDatabase(_open_file(path, migrations, label, prepare))
    except sqlite3.DatabaseError as error:
        if not is_damage(error) or (bad := _set_damaged_aside(path, label)) is None:
            raise
    notice = message(
        "{what} was damaged. A new one was created; the old one is kept as {name}.", what=label, name=bad.name
    )
    return OpenedDatabase(_open_file(path, migrations, label, prepare), notice)


def open_memory(migrations: Sequence[str], label: str, prepare: Prepare = lambda _: None) -> OpenedDatabase:
    """Open an empty database in memory, with the schema that all `migrations` lead to. Nothing is written to a disk."""
    opened = OpenedDatabase(_connect(_MEMORY, migrations, label, prepare))
    opened.db.execute("PRAGMA temp_store = MEMORY")
    return opened


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run changes in one transaction: all are committed or none. Inside another transaction they join it."""
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # not if SQLite has rolled back by itself, for example on a full disk
            db.execute("ROLLBACK")
        raise


def is_damage(error: sqlite3.Error) -> bool:
    """Return True if the error means that the file's content is damaged."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGE_CODES


class _Damaged(sqlite3.DatabaseError):
    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _open_file(path: Path, migrations: Sequence[str], label: str, prepare: Prepare) -> sqlite3.Connection:
    make_private_folder(path.parent)
    # SQLite creates its -wal and -shm files with the same permissions.
    os.close(open_private_file(path, os.O_RDWR | os.O_CREAT))
    return _connect(str(path), migrations, label, prepare)


def _open_connection(database: str) -> sqlite3.Connection:
    """Open a file with the locks of its file system, or with a folder beside it as the lock where that has none."""
    path = Path(database)
    connect: Callable[..., sqlite3.Connection] = partial(
        sqlite3.connect, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    if database == _MEMORY or has_locks(path.parent):
        return connect(database)
    lock = path.with_name(f"{path.name}.lock")
    with suppress(OSError):  # left behind by a process that was killed: no transaction of ours takes so long
        if read_clock(path.parent) - lock.stat().st_mtime > _LONGEST_TRANSACTION_S:
            lock.rmdir()
    db = connect(f"{path.absolute().as_uri()}?vfs=unix-dotfile", uri=True)
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # a file that is in WAL mode cannot be opened otherwise
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA locking_mode = NORMAL")
    except BaseException:
        db.close()
        raise
    return db


def _connect(database: str, migrations: Sequence[str], label: str, prepare: Prepare) -> sqlite3.Connection:
    db = _open_connection(database)
    try:
        db.execute("PRAGMA foreign_keys = ON")
        # On file systems without locks or shared memory SQLite stays with its rollback journal.
        db.execute("PRAGMA journal_mode = WAL")
        if (problem := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise _Damaged(problem)
        _migrate(db, database, migrations, label)
        prepare(db)
    except BaseException:
        db.close()
        raise
    return db


def _migrate(db: sqlite3.Connection, database: str, migrations: Sequence[str], label: str) -> None:
    version = _schema_version(db)
    if version > len(migrations):
        copy, restore_hint = find_readable_version_copy(Path(database), up_to=len(migrations)), ""
        if copy is not None:
            restore_hint = message(
                "Or restore the copy from before the update: {steps}", steps=restore_instructions(copy)
            )
        raise WrittenByNewer(
            message("{what} ({place}) was written by a newer version of this program.", what=label, place=database),
            join_messages(message("Update this program, or move that file away."), restore_hint),
            path=database,
        )
    if version == len(migrations):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _schema_version(db)  # read again: another process may have migrated it meanwhile
        if 0 < version < len(migrations) and database != _MEMORY:
            _copy_database(Path(database), version)
        for number in range(version, len(migrations)):
            for statement in migrations[number].split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number + 1}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _copy_database(path: Path, version: int) -> None:
    """Copy a database including its write-ahead log. The caller's transaction keeps others from changing it."""
    copy = version_copy_path(path, f"v{version}")
    temporary = copy.with_name(f"{copy.name}.draft")
    temporary.unlink(missing_ok=True)
    try:
        os.close(open_private_file(temporary, os.O_RDWR | os.O_CREAT))
        with closing(_open_connection(str(path))) as source, closing(_open_connection(str(temporary))) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # makes the copy a single file
        replace_file(temporary, copy)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    delete_other_version_copies(copy, path)


def _schema_version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _set_damaged_aside(path: Path, label: str) -> Path | None:
    bad = set_aside(path, label)
    if bad is not None:
        with suppress(OSError):
            path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
        with suppress(OSError):  # kept with the damaged file, because it may hold the last commits
            path.with_name(f"{path.name}-wal").rename(bad.with_name(f"{bad.name}-wal"))
    return bad
