"""History of measurements: every run with its settings and its environment, in a SQLite file."""

import asyncio
import json
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from launcher.base.codec import compact_json, decode_json, to_json
from launcher.base.database import open_database, transaction
from launcher.base.errors import BadOption, HistoryUnusable, LauncherError, NothingMeasured, ResultMissing
from launcher.base.identity import ProcessId
from launcher.base.messages import add_message_data, command_name, mark, message, message_from_json, restore_messages
from launcher.base.paths import data_dir, expand_user
from launcher.base.text import storable_text
from launcher.gateway.request_log import RequestRecord
from launcher.tuning.history_environment import Environment
from launcher.tuning.history_records import (
    RUN_COLUMNS,
    LocalSpeed,
    RunRow,
    Session,
    Summary,
    format_utc_date,
    measured_line,
    new_session_id,
    row_from_run,
    run_from_row,
)
from launcher.tuning.kept_requests import REQUEST_ERRORS, REQUESTS_TABLE, add_request_rows, read_request_rows
from launcher.tuning.records import Run, RunSettings
from launcher.tuning.report_published import PREFIX, published_table
from launcher.tuning.session_file import read_session_file
from launcher.tuning.use_counts import DAY_S, TABLE, UseCounts, add_use_counts, read_use_counts

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
"""Adds the ProcessId of the process that measures, as JSON."""
_MIGRATIONS = (_TABLES, TABLE, _OWNER, REQUESTS_TABLE, REQUEST_ERRORS)
_IS_USABLE = "r.spoilt IS NULL AND r.error IS NULL AND r.decode_rate IS NOT NULL"
_AVERAGED = f"{_IS_USABLE} AND (s.kind <> 'tune' OR r.settings = json_extract(s.result, '$.settings'))"
"""Runs whose mean speed is listed: the usable ones; of a tune, only those with the recommended settings."""
_SUMMARY = f"""
SELECT s.id, s.kind, s.workload, s.began_s, s.ended_s, s.model, s.quant,
       count(r.number), coalesce(sum({_IS_USABLE}), 0), avg(CASE WHEN {_AVERAGED} THEN r.decode_rate END),
       s.sentence, json_extract(s.result, '$.messages.sentence'), s.owner
FROM sessions s LEFT JOIN runs r ON r.session = s.number
"""  # noqa: S608 -- constants
_SPEEDS = f"""
SELECT json_extract(s.environment, '$.model.file'), json_extract(s.environment, '$.model.bytes'),
       avg(CASE WHEN {_AVERAGED} THEN r.decode_rate END) AS rate, s.began_s
FROM sessions s JOIN runs r ON r.session = s.number
WHERE s.kind IN ('bench', 'tune') AND json_extract(s.environment, '$.model.file') IS NOT NULL
GROUP BY s.number HAVING rate IS NOT NULL ORDER BY s.began_s
"""  # noqa: S608 -- constants
CUT_OFF = message("Interrupted: the program that measured it has ended.")


def history_file() -> Path:
    """Return the path of the history file."""
    return data_dir() / "history" / "history.db"


class History:
    """The SQLite file of measurement sessions. Several processes may use it, and one thread at a time in each.

    Every method raises HistoryUnusable when SQLite or the system fails, and those that take an id raise ResultMissing
    when there is no such session. Changes are committed when a method returns. `notice` tells the user about a damaged
    file (empty if there was none).
    """

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path or history_file()
        self._clock = clock
        with self._converted_errors():
            opened = open_database(self.path, _MIGRATIONS, "The history of measurements")
        self._db, self.notice = opened.db, opened.notice

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def begin_session(
        self,
        kind: str,
        environment: Environment,
        settings: RunSettings,
        *,
        workload: str = "",
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Begin a session and return its id. `kind` is the verb: bench, tune, curve, endure.

        `settings` are the server's at the beginning; each run has its own.
        """
        session, model = id or new_session_id(), environment.model
        with self._transaction() as db:
            db.execute(
                "INSERT INTO sessions (id, kind, workload, began_s, model, quant, environment, settings, owner) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    session, kind, storable_text(workload), self._clock(), storable_text(model.label), model.quant,
                    compact_json(environment), compact_json(settings), compact_json(_own_process()),
                ),
            )  # fmt: skip
        return session

    def add_run(self, session: str, run: Run) -> None:
        """Add one run to a session."""
        self.add_runs(session, (run,))

    def add_runs(self, session: str, runs: Sequence[Run]) -> None:
        """Add runs to a session, all or none of them."""
        names, placeholders = ", ".join(RUN_COLUMNS), ", ".join("?" * len(RUN_COLUMNS))
        with self._transaction() as db:
            number = self._row_number(session)
            db.executemany(
                f"INSERT INTO runs (session, {names}) VALUES (?, {placeholders})",  # noqa: S608 -- constants
                [(number, *map(_clean_value, row_from_run(run))) for run in runs],
            )

    def finish(self, session: str, result: Mapping[str, Any]) -> None:
        """End a session with its `result`, whose `sentence`, if any, is shown in lists."""
        with self._transaction() as db:
            number = self._row_number(session)
            db.execute(
                "UPDATE sessions SET ended_s = ?, result = ?, sentence = ? WHERE number = ?",
                (self._clock(), compact_json(add_message_data(to_json(result))), _result_sentence(result), number),
            )

    def reopen(self, session: str) -> None:
        """Reopen a session that ended; this process becomes its owner."""
        with self._transaction() as db:
            db.execute(
                "UPDATE sessions SET ended_s = NULL, result = '{}', sentence = NULL, owner = ? WHERE number = ?",
                (compact_json(_own_process()), self._row_number(session)),
            )

    def find_sessions(
        self,
        *,
        kind: str | None = None,
        model: str | None = None,
        workload: str | None = None,
        since_s: float | None = None,
        most: int | None = None,
    ) -> tuple[Summary, ...]:
        """Return at most `most` session summaries, the newest first. `model` is a part of its name or quant."""
        conditions, values = ["TRUE"], []
        for condition, value in (
            ("s.kind = ?", kind),
            ("instr(lower(s.model || ' ' || coalesce(s.quant, '')), lower(?))", model),
            ("s.workload = ?", workload),
            ("s.began_s >= ?", since_s),
        ):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        limit = "" if most is None else f" LIMIT {most:d}"
        query = f"{_SUMMARY} WHERE {' AND '.join(conditions)} GROUP BY s.number ORDER BY s.number DESC{limit}"
        return tuple(_summary_from_row(*row) for row in self._fetch_rows(query, *values))

    def read_speeds(self) -> dict[tuple[str, int | None], LocalSpeed]:
        """Return the newest measured speed of each model file, by its name and size in bytes.

        Of a tune it is that of the recommended settings. A session without usable runs is left out.
        """
        rows = self._fetch_rows(_SPEEDS)
        return {
            (file, size): LocalSpeed(
                rate, measured_line(message("{rate:,.0f} t/s, {date}", rate=rate, date=format_utc_date(began_s)))
            )
            for file, size, rate, began_s in rows
        }

    def resolve_id(self, text: str) -> str:
        """Return the full id of the session whose id begins with `text`, or of the newest for "last"."""
        if text.lower() == "last":
            found = self._fetch_rows("SELECT id FROM sessions ORDER BY number DESC LIMIT 1")
        else:
            found = self._fetch_rows("SELECT id FROM sessions WHERE ? != '' AND instr(id, ?) = 1", text, text.lower())
        if len(found) == 1:
            return str(found[0][0])
        what = (
            message("{found} measurements begin with {text}.", found=len(found), text=text)
            if found
            else message("There is no measurement {text}.", text=text)
        )
        raise ResultMissing(what, message("See {command}.", command=command_name("history", mark("Tune"))), id=text)

    def is_cut_off(self, session: str) -> bool:
        """Return whether a session is incomplete because the program that measured it has ended."""
        return any(
            _is_cut_off(*row) for row in self._fetch_rows("SELECT ended_s, owner FROM sessions WHERE id = ?", session)
        )

    def load(self, session: str) -> Session:
        """Return a session with its runs."""
        return self.load_all([session])[0]

    def load_all(self, sessions: Sequence[str]) -> tuple[Session, ...]:
        """Return several sessions, in the given order."""
        parsed_settings: dict[str, RunSettings] = {}
        return tuple(self._load_session(session, parsed_settings) for session in sessions)

    def delete(self, sessions: Sequence[str]) -> int:
        """Delete sessions and return how many existed."""
        with self._transaction() as db:
            gone = sum(db.execute("DELETE FROM sessions WHERE id = ?", (each,)).rowcount for each in sessions)
        if gone:
            with self._converted_errors():
                self._db.execute("VACUUM")
        return gone

    def add_use(self, key: str, counts: Sequence[UseCounts]) -> None:
        """Add counters of real use to those of today. `key` is that of `use_counts_key`."""
        with self._transaction() as db:
            add_use_counts(db, int(self._clock() // DAY_S), key, counts)

    def load_use(self, key: str, days: int = 30) -> tuple[UseCounts, ...]:
        """Return the counters of real use over the last `days`, one for each set of settings. See `add_use`."""
        with self._converted_errors():
            return tuple(read_use_counts(self._db, key, int(self._clock() // DAY_S) - days))

    def forget_use(self) -> None:
        """Delete all counters of real use."""
        with self._transaction() as db:
            db.execute("DELETE FROM use_counts")

    def add_requests(self, records: Sequence[RequestRecord]) -> None:
        """Add requests that have ended. The oldest ones are deleted beyond MOST_KEPT of kept_requests.py."""
        with self._transaction() as db:
            add_request_rows(db, records)

    def load_requests(self, most: int) -> list[RequestRecord]:
        """Return at most `most` requests, the last ones in the order in which they ended."""
        with self._converted_errors():
            return read_request_rows(self._db, most)

    def forget_requests(self) -> None:
        """Delete all requests."""
        with self._transaction() as db:
            db.execute("DELETE FROM requests")

    def _load_session(self, session: str, parsed_settings: dict[str, RunSettings]) -> Session:
        """Return a session. `parsed_settings` caches settings by their JSON, because many runs share them."""
        found = self._fetch_rows(
            "SELECT number, id, kind, workload, began_s, ended_s, environment, settings, result "
            "FROM sessions WHERE id = ?",
            session,
        )
        if not found:
            raise ResultMissing(
                message("There is no measurement {session}.", session=session),
                message("See {command}.", command=command_name("history", mark("Tune"))),
                id=session,
            )
        number, id_, kind, workload, began_s, ended_s, environment, settings, result = found[0]
        rows: list[RunRow] = self._fetch_rows(
            f"SELECT {', '.join(RUN_COLUMNS)} FROM runs WHERE session = ? ORDER BY number",  # noqa: S608 -- constants
            number,
        )
        with self._converted_errors():
            for row in rows:
                if row[1] not in parsed_settings:
                    parsed_settings[row[1]] = json.loads(row[1])
            runs = tuple(run_from_row(row, parsed_settings[row[1]]) for row in rows)
            measured_on = decode_json(Environment, environment)
            outcome = restore_messages(json.loads(result))
            return Session(id_, kind, workload, began_s, ended_s, measured_on, json.loads(settings), outcome, runs)

    def _row_number(self, session: str) -> int:
        """Return the primary key of a session."""
        row = self._db.execute("SELECT number FROM sessions WHERE id = ?", (session,)).fetchone()
        if row is None:
            raise ResultMissing(message("This measurement no longer exists."), id=session)
        return int(row[0])

    def _fetch_rows(self, query: str, *values: object) -> list[Any]:
        with self._converted_errors():
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Make changes in one transaction."""
        with self._converted_errors(), transaction(self._db):
            yield self._db

    @contextmanager
    def _converted_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error
            raise HistoryUnusable(
                message("Cannot read or save measurements in {path}: {why}.", path=self.path, why=why),
                message("Check disk space and permissions. Measurements continue but are not saved."),
                path=str(self.path),
            ) from error


def _own_process() -> list[int | float] | None:
    """Return the id of this process as the history keeps it, for which every version looks."""
    own = ProcessId.from_pid(os.getpid())
    return None if own is None else list(own)


def _summary_from_row(*row: Any) -> Summary:  # noqa: ANN401 -- columns of all types
    *columns, sentence_data, owner = row
    summary = Summary(*columns)
    if summary.sentence and sentence_data:
        summary = replace(summary, sentence=message_from_json(summary.sentence, json.loads(sentence_data)))
    return replace(summary, sentence=CUT_OFF) if _is_cut_off(summary.ended_s, owner) else summary


def _is_cut_off(ended_s: float | None, owner: str | None) -> bool:
    return ended_s is None and (owner is None or not ProcessId(*json.loads(owner)).is_running())


def _result_sentence(result: Mapping[str, Any]) -> str | None:
    sentence = result.get("sentence")
    return storable_text(sentence) if isinstance(sentence, str) and sentence else None


def _clean_value(value: object) -> object:
    return storable_text(value) if isinstance(value, str) else value


# Background writer: measuring never waits for a disk.

HistoryTask = Callable[[History], object]
_log = logging.getLogger(__name__)


def _log_warning(error: LauncherError) -> None:
    _log.warning("%s", error.title)


class HistoryWriter:
    """Writes measurements on a thread of its own while they are made, so that its methods return at once.

    `failed` is called once, on that thread, with the first error; nothing is written after it, but measuring goes on.
    By default it logs a warning.
    """

    def __init__(self, failed: Callable[[LauncherError], None] = _log_warning, path: Path | None = None) -> None:
        self._failed = failed
        self._path = path
        self._tasks: queue.SimpleQueue[HistoryTask | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._broken = False

    def begin_session(self, kind: str, environment: Environment, settings: RunSettings, *, workload: str = "") -> str:
        """Begin a session and return its id. See History.begin_session."""
        session = new_session_id()
        self._enqueue(lambda history: history.begin_session(kind, environment, settings, workload=workload, id=session))
        return session

    def reopen(self, session: str) -> None:
        """Reopen a session that ended."""
        self._enqueue(lambda history: history.reopen(session))

    def add_run(self, session: str, run: Run) -> None:
        """Add a run to a session."""
        self._enqueue(lambda history: history.add_run(session, run))

    def finish(self, session: str, result: Mapping[str, Any]) -> None:
        """End a session with its result."""
        self._enqueue(lambda history: history.finish(session, result))

    def close(self, timeout_s: float = 5.0) -> bool:
        """Finish the pending writes, close the file and end the thread.

        Waits up to `timeout_s` and returns whether the thread has ended.
        """
        if self._thread is None:
            return True
        self._tasks.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _enqueue(self, task: HistoryTask) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="history", daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def _run(self) -> None:
        history: History | None = None
        while (task := self._tasks.get()) is not None:
            if self._broken:
                continue
            try:
                history = history or History(self._path)
                task(history)
            except LauncherError as error:
                self._broken = True
                self._failed(error)
        if history is not None:
            history.close()


class SessionRecord:
    """The history session of a running measurement. A failure to write does not stop the measurement."""

    def __init__(self, writer: HistoryWriter, session: str) -> None:
        self._writer, self.id = writer, session
        self._finished = False

    def add_run(self, run: Run) -> None:
        """Add a run."""
        self._writer.add_run(self.id, run)

    def finish(self, result: Mapping[str, Any]) -> None:
        """End the measurement. Only the first result is kept."""
        if not self._finished:
            self._writer.finish(self.id, result)
        self._finished = True


@asynccontextmanager
async def record_session(
    kind: str, environment: Environment, settings: RunSettings, *, workload: str, reopened: str | None = None
) -> AsyncIterator[SessionRecord]:
    """Record a measurement in the history, in a new session or in `reopened`. See History.begin_session.

    If the block raises NothingMeasured, that is the session's result. Leaving the block waits until everything is
    written, also on cancellation.
    """
    writer = HistoryWriter()
    if reopened is not None:
        writer.reopen(reopened)
    record = SessionRecord(writer, reopened or writer.begin_session(kind, environment, settings, workload=workload))
    try:
        yield record
    except NothingMeasured as error:
        record.finish({"error": error.title, "sentence": error.title})
        raise
    finally:
        await asyncio.shield(asyncio.to_thread(writer.close))


# Sessions as users name them: by id, by file, or by published table.


def load_session(history: History, text: str) -> Session:
    """Return a session by the beginning of its id, "last", published:NAME, or the path of a .json file.

    Raises ResultMissing and ResultUnreadable.
    """
    if text.startswith(PREFIX):
        return published_table(text).session
    if text.lower().endswith(".json"):
        return read_session_file(expand_user(Path(text)))
    return history.load(history.resolve_id(text))


def parse_session_choice(text: str) -> tuple[str, dict[str, str]]:
    """Split `ID:draft=2,kv=q8_0` into the id and the chosen settings. Raises BadOption."""
    name, colon, choice = text.rpartition(":")
    if not colon or "=" not in choice:
        return text, {}
    chosen: dict[str, str] = {}
    for part in choice.split(","):
        setting, equals, value = part.partition("=")
        if not equals or not setting.strip() or not value.strip():
            raise BadOption(
                message("{part} matches no measurement.", part=part), message("Write it as in `ID:draft=2,kv=q8_0`.")
            )
        chosen[setting.strip()] = value.strip()
    return name, chosen
