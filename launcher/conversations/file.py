"""The file of conversations: opened, made, brought up to date; set aside when it is damaged."""

import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.base import database
from launcher.base.errors import ConversationsUnusable
from launcher.base.paths import data_dir

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
_WHAT = "The file of conversations"


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
        indexed: list[bool] = []
        opened = database.open_database(path, _MIGRATIONS, _WHAT, lambda db: indexed.append(_ready(db, index=index)))
    except (sqlite3.Error, OSError) as error:
        raise unusable(path, error) from error
    return Opened(opened.db, indexed[-1], opened.notice)


def open_memory(*, index: bool = True) -> Opened:
    """Return what is like the file, and empty, but is nowhere on a disk."""
    indexed: list[bool] = []
    opened = database.open_memory(_MIGRATIONS, _WHAT, lambda db: indexed.append(_ready(db, index=index)))
    return Opened(opened.db, indexed[-1], opened.notice)


def unusable(path: Path, error: Exception) -> ConversationsUnusable:
    """Return why conversations cannot be read or kept, and what to do."""
    why = getattr(error, "strerror", None) or error
    return ConversationsUnusable(
        f"Conversations cannot be kept in {path}: {why}.",
        "Check disk space and permissions. A conversation goes on without being kept.",
        path=str(path),
    )


def _ready(db: sqlite3.Connection, *, index: bool) -> bool:
    """Make a file ready for use, and return whether it has a full-text index."""
    db.execute("PRAGMA secure_delete = ON")
    return _make_index(db, wanted=index)


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
