"""The history of measurements: every run with its settings and its environment, in a SQLite file of this computer."""

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter

from launcher.base.database import changing, open_database
from launcher.base.errors import HistoryUnusable, ResultMissing
from launcher.base.identity import ProcessId
from launcher.base.paths import data_dir
from launcher.tuning.history_environment import Environment
from launcher.tuning.history_records import RUN_COLUMNS, Row, Session, Summary, new_id, packed, run_of, run_row
from launcher.tuning.records import Run, Settings
from launcher.tuning.use_counts import DAY_S, TABLE, UseCounts, add, read

_TABLES = """
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL, workload TEXT NOT NULL, began_s REAL NOT NULL, ended_s REAL,
    model TEXT NOT NULL, quant TEXT,
    environment TEXT NOT NULL, settings TEXT NOT NULL, result TEXT NOT NULL DEFAULT '{}', sentence TEXT
);
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL REFERENCES sessions (number) ON DELETE CASCADE,
    prompt TEXT NOT NULL, settings TEXT NOT NULL, began_s REAL NOT NULL, wall_s REAL NOT NULL,
    prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, reply_tokens INTEGER NOT NULL,
    prefill_rate REAL, decode_rate REAL, first_token_s REAL,
    drafted INTEGER, accepted INTEGER, by_position TEXT,
    power_w REAL, energy_j REAL, temperature_c REAL, clock_mhz REAL, spoilt TEXT, error TEXT, clock TEXT NOT NULL
);
CREATE INDEX runs_of_session ON runs (session)
"""
_OWNER = "ALTER TABLE sessions ADD COLUMN owner TEXT"
"""Which process measures: its pid, and when it was created."""
_MIGRATIONS = (_TABLES, TABLE, _OWNER)
_COUNTS = "r.spoilt IS NULL AND r.error IS NULL AND r.decode_rate IS NOT NULL"
_SHOWN = f"{_COUNTS} AND (s.kind <> 'tune' OR r.settings = json_extract(s.result, '$.settings'))"
"""The runs whose mean is listed: a tune's are those with the settings that it recommends."""
_SUMMARY = f"""
SELECT s.id, s.kind, s.workload, s.began_s, s.ended_s, s.model, s.quant,
       count(r.number), coalesce(sum({_COUNTS}), 0), avg(CASE WHEN {_SHOWN} THEN r.decode_rate END),
       s.sentence, s.owner
FROM sessions s LEFT JOIN runs r ON r.session = s.number
"""  # noqa: S608 -- constants
CUT_OFF = "Cut off: the program that measured it has ended."
_ENVIRONMENT: TypeAdapter[Environment] = TypeAdapter(Environment)


def history_file() -> Path:
    """Return where the history is kept."""
    return data_dir() / "history" / "history.db"


class History:
    """The file of measurements. One thread at a time may use it; several processes may.

    Every method raises HistoryUnusable when the system refuses, and those that take an id ResultMissing when there is
    none. What is added is there when the method returns. `notice` is what the user must know of the file, or empty.
    """

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path or history_file()
        self._clock = clock
        with self._told():
            opened = open_database(self.path, _MIGRATIONS, "The history of measurements")
        self._db, self.notice = opened.db, opened.notice

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add_session(
        self,
        kind: str,
        environment: Environment,
        settings: Settings,
        *,
        workload: str = "",
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Begin a measurement and return its id. `kind` is the verb: bench, tune, curve, endure.

        `settings` are the server's at its beginning; each run has its own.
        """
        session, model = id or new_id(), environment.model
        with self._change() as db:
            db.execute(
                "INSERT INTO sessions (id, kind, workload, began_s, model, quant, environment, settings, owner) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    session, kind, _clean(workload), self._clock(), _clean(model.label), model.quant,
                    packed(environment.as_json()), packed(dict(settings)), _this_process(),
                ),
            )  # fmt: skip
        return session

    def add_run(self, session: str, run: Run) -> None:
        """Add one run to a measurement."""
        self.add_runs(session, (run,))

    def add_runs(self, session: str, runs: Sequence[Run]) -> None:
        """Add runs to a measurement, all or none of them."""
        names, marks = ", ".join(RUN_COLUMNS), ", ".join("?" * len(RUN_COLUMNS))
        with self._change() as db:
            number = self._number(session)
            db.executemany(
                f"INSERT INTO runs (session, {names}) VALUES (?, {marks})",  # noqa: S608 -- constants
                [(number, *map(_clean_value, run_row(run))) for run in runs],
            )

    def finish(self, session: str, result: Mapping[str, Any]) -> None:
        """End a measurement. `result` is what it came to; its `sentence`, if it has one, is shown in lists."""
        with self._change() as db:
            number = self._number(session)
            db.execute(
                "UPDATE sessions SET ended_s = ?, result = ?, sentence = ? WHERE number = ?",
                (self._clock(), packed(dict(result)), _sentence(result), number),
            )

    def go_on(self, session: str) -> None:
        """Let a measurement that ended go on, by this process."""
        with self._change() as db:
            db.execute(
                "UPDATE sessions SET ended_s = NULL, result = '{}', sentence = NULL, owner = ? WHERE number = ?",
                (_this_process(), self._number(session)),
            )

    def find(
        self,
        *,
        kind: str | None = None,
        model: str | None = None,
        workload: str | None = None,
        since_s: float | None = None,
        most: int | None = None,
    ) -> tuple[Summary, ...]:
        """Return measurements, the newest first. `model` is a part of the model's name or quant."""
        terms, values = ["TRUE"], []
        for term, value in (
            ("s.kind = ?", kind),
            ("instr(lower(s.model || ' ' || coalesce(s.quant, '')), lower(?))", model),
            ("s.workload = ?", workload),
            ("s.began_s >= ?", since_s),
        ):
            if value is not None:
                terms.append(term)
                values.append(value)
        limit = "" if most is None else f" LIMIT {most:d}"
        query = f"{_SUMMARY} WHERE {' AND '.join(terms)} GROUP BY s.number ORDER BY s.number DESC{limit}"
        return tuple(_summary(*row) for row in self._rows(query, *values))

    def id_of(self, text: str) -> str:
        """Return the whole id of the measurement whose id begins with `text`; of the newest for "last"."""
        if text.lower() == "last":
            found = self._rows("SELECT id FROM sessions ORDER BY number DESC LIMIT 1")
        else:
            found = self._rows("SELECT id FROM sessions WHERE ? != '' AND instr(id, ?) = 1", text, text.lower())
        if len(found) == 1:
            return str(found[0][0])
        what = f"{len(found)} measurements begin with {text}." if found else f"There is no measurement {text}."
        raise ResultMissing(what, "`mtp-launcher history` lists them.", id=text)

    def cut_off(self, session: str) -> bool:
        """Return whether a measurement has no end though the program that measured it has ended."""
        return any(_is_cut_off(*row) for row in self._rows("SELECT ended_s, owner FROM sessions WHERE id = ?", session))

    def load(self, session: str) -> Session:
        """Return a measurement with its runs."""
        return self.load_all([session])[0]

    def load_all(self, sessions: Sequence[str]) -> tuple[Session, ...]:
        """Return several measurements, in that order."""
        shared: dict[str, Settings] = {}
        return tuple(self._loaded(session, shared) for session in sessions)

    def delete(self, sessions: Sequence[str]) -> int:
        """Delete measurements and return how many there were."""
        with self._change() as db:
            gone = sum(db.execute("DELETE FROM sessions WHERE id = ?", (each,)).rowcount for each in sessions)
        if gone:
            with self._told():
                self._db.execute("VACUUM")
        return gone

    def add_use(self, place: str, counts: Sequence[UseCounts]) -> None:
        """Add counters of real use to those of today."""
        with self._change() as db:
            add(db, int(self._clock() // DAY_S), place, counts)

    def use(self, place: str, days: int = 30) -> tuple[UseCounts, ...]:
        """Return the counters of real use at a place over so many days, by settings."""
        with self._told():
            return tuple(read(self._db, place, int(self._clock() // DAY_S) - days).values())

    def forget_use(self) -> None:
        """Delete all counters of real use."""
        with self._change() as db:
            db.execute("DELETE FROM use_counts")

    def _loaded(self, session: str, shared: dict[str, Settings]) -> Session:
        found = self._rows(
            "SELECT number, id, kind, workload, began_s, ended_s, environment, settings, result "
            "FROM sessions WHERE id = ?",
            session,
        )
        if not found:
            raise ResultMissing(f"There is no measurement {session}.", "`mtp-launcher history` lists them.", id=session)
        number, id_, kind, workload, began_s, ended_s, environment, settings, result = found[0]
        rows: list[Row] = self._rows(
            f"SELECT {', '.join(RUN_COLUMNS)} FROM runs WHERE session = ? ORDER BY number",  # noqa: S608 -- constants
            number,
        )
        with self._told():
            for row in rows:
                if row[1] not in shared:
                    shared[row[1]] = json.loads(row[1])
            runs = tuple(run_of(row, shared[row[1]]) for row in rows)
            where = _ENVIRONMENT.validate_json(environment)
            return Session(id_, kind, workload, began_s, ended_s, where, json.loads(settings), json.loads(result), runs)

    def _number(self, session: str) -> int:
        row = self._db.execute("SELECT number FROM sessions WHERE id = ?", (session,)).fetchone()
        if row is None:
            raise ResultMissing("There is no such measurement any more.", id=session)
        return int(row[0])

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._told():
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Make changes that come to be all together, or not at all."""
        with self._told(), changing(self._db):
            yield self._db

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise HistoryUnusable(
                f"Measurements cannot be read from or kept in {self.path}: {why}.",
                "Check disk space and permissions. What is measured goes on without being kept.",
                path=str(self.path),
            ) from error


def _this_process() -> str:
    return packed(ProcessId.of(os.getpid()))


def _summary(*row: Any) -> Summary:  # noqa: ANN401 -- columns of all types
    *told, owner = row
    found = Summary(*told)
    return replace(found, sentence=CUT_OFF) if _is_cut_off(found.ended_s, owner) else found


def _is_cut_off(ended_s: float | None, owner: str | None) -> bool:
    return ended_s is None and (owner is None or not ProcessId(*json.loads(owner)).running())


def _sentence(result: Mapping[str, Any]) -> str | None:
    told = result.get("sentence")
    return _clean(told) if isinstance(told, str) and told else None


def _clean(text: str) -> str:
    """Return a text that can be written: a file's name may hold halves of characters."""
    return text.encode("utf-8", "replace").decode()


def _clean_value(value: object) -> object:
    return _clean(value) if isinstance(value, str) else value
