"""The file of conversations: opened, made, brought up to date; set aside when it is damaged."""

import os
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import ConversationsUnusable, WrittenByNewer
from launcher.base.files import open_private, private_folder, set_aside
from launcher.base.paths import data_dir

_BUSY_S = 5.0
_TABLES = """
CREATE TABLE conversations (
    id TEXT PRIMARY KEY, title TEXT NOT NULL, system TEXT NOT NULL, model TEXT NOT NULL,
    created_s REAL NOT NULL, changed_s REAL NOT NULL,
    leaf TEXT, hidden INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    conversation TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE,
    parent TEXT REFERENCES messages (id) ON DELETE CASCADE,
    role TEXT NOT NULL, text TEXT NOT NULL, thinking TEXT NOT NULL DEFAULT '',
    created_s REAL NOT NULL, ending TEXT NOT NULL, footer TEXT NOT NULL DEFAULT '',
    figures TEXT NOT NULL DEFAULT '{}', settings TEXT NOT NULL DEFAULT '{}', indexed INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX messages_of_conversation ON messages (conversation);
CREATE INDEX messages_of_parent ON messages (parent);
CREATE TABLE pieces (
    number INTEGER PRIMARY KEY, message TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    text TEXT NOT NULL, thinking TEXT NOT NULL
);
CREATE INDEX pieces_of_message ON pieces (message);
"""
"""`pieces` are what came of replies that are being written; `leaf` is the last message of the branch that is open."""
_INDEX = "CREATE VIRTUAL TABLE found USING fts5(text, content='messages', content_rowid='number', tokenize='trigram')"
_MIGRATIONS = (_TABLES,)
"""The scripts that lead from one version of the file to the next; its `user_version` counts those that were run."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True)
class Opened:
    """The open file. `indexed` says whether it has a full-text index, `notice` what the user must know."""

    db: sqlite3.Connection
    indexed: bool
    notice: str


def conversations_file() -> Path:
    """Return where conversations are kept."""
    return data_dir() / "conversations" / "conversations.db"


def open_file(path: Path, *, index: bool = True) -> Opened:
    """Open the file, and make it where there is none. One that is damaged is kept as .bad, and a new one begun.

    Without `index`, or where SQLite was built without FTS5 or its trigrams, there is no full-text index. Raises
    ConversationsUnusable when the system refuses, WrittenByNewer for a file of a newer version of this program.
    """
    try:
        try:
            return _opened(path, index=index, notice="")
        except sqlite3.DatabaseError as error:
            if not is_damage(error) or (bad := _put_aside(path)) is None:
                raise
        notice = f"The file of conversations was damaged: a new one was begun, and the old one is kept as {bad.name}."
        return _opened(path, index=index, notice=notice)
    except (sqlite3.Error, OSError) as error:
        raise unusable(path, error) from error


def open_memory(*, index: bool = True) -> Opened:
    """Return what is like the file, and empty, but is nowhere on a disk."""
    opened = _set_up(":memory:", Path(":memory:"), index=index)
    opened.db.execute("PRAGMA temp_store = MEMORY")
    return opened


def is_damage(error: sqlite3.Error) -> bool:
    """Whether it is the file's content that SQLite objects to."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGE


def unusable(path: Path, error: Exception) -> ConversationsUnusable:
    """Return why conversations cannot be read or kept, and what to do."""
    why = getattr(error, "strerror", None) or error
    return ConversationsUnusable(
        f"Conversations cannot be kept in {path}: {why}.",
        "Check disk space and permissions. A conversation goes on without being kept.",
        path=str(path),
    )


def _opened(path: Path, *, index: bool, notice: str) -> Opened:
    private_folder(path.parent)
    os.close(open_private(path, os.O_RDWR | os.O_CREAT))  # SQLite gives its other files the same permissions
    return _set_up(str(path), path, index=index, notice=notice)


def _set_up(place: str, path: Path, *, index: bool, notice: str = "") -> Opened:
    db = sqlite3.connect(place, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA journal_mode = WAL")  # where the file system cannot, SQLite keeps to its usual journal
        if (found := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise _Damaged(found)
        _bring_up_to_date(db, path)
        return Opened(db, _make_index(db, wanted=index), notice)
    except BaseException:
        db.close()
        raise


class _Damaged(sqlite3.DatabaseError):
    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _bring_up_to_date(db: sqlite3.Connection, path: Path) -> None:
    version = _version(db)
    if version > len(_MIGRATIONS):
        raise WrittenByNewer(
            f"The conversations in {path} were written by a newer version of this program.",
            "Update this one, or move that file away.",
            path=str(path),
        )
    if version == len(_MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for number in range(_version(db), len(_MIGRATIONS)):  # another process may have done it meanwhile
            for statement in _MIGRATIONS[number].split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number + 1}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _make_index(db: sqlite3.Connection, *, wanted: bool) -> bool:
    """Make the full-text index where there is none; return whether it can be used.

    One that another SQLite wrote, and this one cannot use, is deleted: what is deleted from now on must not stay in it.
    """
    there = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'found'").fetchone() is not None
    if wanted and not there:
        with suppress(sqlite3.OperationalError):  # built without FTS5, or it is older than trigrams
            db.execute(_INDEX)
            return True
    elif wanted:
        with suppress(sqlite3.OperationalError):
            db.execute("SELECT rowid FROM found WHERE found MATCH '\"xyz\"'").fetchone()
            return True
    if there:
        db.execute(
            "PRAGMA writable_schema = ON"
        )  # without FTS5 the table cannot be dropped, but those that it is made of
        db.execute("DELETE FROM sqlite_master WHERE name = 'found'")
        db.execute("PRAGMA writable_schema = RESET")
        for part in ("data", "idx", "docsize", "config"):
            db.execute(f"DROP TABLE IF EXISTS found_{part}")
        db.execute("UPDATE messages SET indexed = 0")
    return False


def _put_aside(path: Path) -> Path | None:
    bad = set_aside(path, "The file of conversations")
    if bad is not None:
        with suppress(OSError):
            path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
        with suppress(OSError):  # what came last may still be in it
            path.with_name(f"{path.name}-wal").rename(bad.with_name(f"{bad.name}-wal"))
    return bad
