"""Requests in the history file: the figures of the last ones, without any text."""

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from launcher.base.codec import compact_json
from launcher.gateway.request_log import RequestRecord

MOST_KEPT = 10_000
_NOT_KEPT = ("reread", "notice", "restored_tokens", "restored_s", "spared_s")
_COLUMNS = [field.name for field in fields(RequestRecord) if field.name not in _NOT_KEPT]
"""Columns of the table: all fields of a RequestRecord except those that only a running server tells."""
_QUOTED_COLUMNS = ", ".join(f'"{name}"' for name in _COLUMNS)  # quoted, because "end" is a keyword of SQL
_PLACES = ", ".join("?" * len(_COLUMNS))
_GAPS = _COLUMNS.index("gaps_s")
REQUESTS_TABLE = """
CREATE TABLE requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, started_s REAL NOT NULL,
    key_name TEXT NOT NULL, user_agent TEXT NOT NULL, model TEXT, path TEXT NOT NULL, state TEXT NOT NULL,
    prompt_tokens INTEGER, reused_tokens INTEGER, reply_tokens INTEGER, first_token_s REAL, tokens_per_second REAL,
    drafted INTEGER, accepted INTEGER, gaps_s TEXT NOT NULL, handovers INTEGER NOT NULL, "end" TEXT
)
"""

REQUEST_ERRORS = "ALTER TABLE requests ADD COLUMN status INTEGER; ALTER TABLE requests ADD COLUMN message TEXT"
"""Adds why a request failed: the HTTP status, and the sentence with it."""


def add_request_rows(db: sqlite3.Connection, records: Iterable[RequestRecord]) -> None:
    """Add requests within the caller's transaction. The oldest ones beyond MOST_KEPT are deleted."""
    db.executemany(
        f"INSERT INTO requests ({_QUOTED_COLUMNS}) VALUES ({_PLACES})",  # noqa: S608 -- constants
        [tuple(_column_value(getattr(record, name)) for name in _COLUMNS) for record in records],
    )
    db.execute("DELETE FROM requests WHERE number <= (SELECT max(number) FROM requests) - ?", (MOST_KEPT,))


def read_request_rows(db: sqlite3.Connection, most: int) -> list[RequestRecord]:
    """Return the last requests, in the order in which they ended."""
    rows = db.execute(
        f"SELECT {_QUOTED_COLUMNS} FROM requests ORDER BY number DESC LIMIT ?",  # noqa: S608 -- constants
        (most,),
    ).fetchall()
    return [_make_record(*row) for row in reversed(rows)]


def _make_record(*row: Any) -> RequestRecord:  # noqa: ANN401 -- columns of all types
    return replace(RequestRecord(*row), gaps_s=tuple(json.loads(row[_GAPS])))


def _column_value(value: object) -> object:
    return compact_json(value) if isinstance(value, tuple) else value
