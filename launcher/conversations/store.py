"""Database of conversations: reads, searches, stores replies while they stream, and deletes without traces.

The messages of a conversation form a tree: an edited question, or a reply that was generated again, is a sibling of the
earlier one, and `leaf` marks the open branch. A reply is written in pieces, which are joined at its end.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from launcher.base import database
from launcher.base.codec import compact_json, parse_object
from launcher.base.database import transaction
from launcher.base.errors import ConversationMissing, ConversationsUnusable
from launcher.base.messages import command_name, mark, message
from launcher.base.paths import data_dir
from launcher.base.text import storable_text
from launcher.conversations.attachments import Attachment, AttachmentKind
from launcher.conversations.records import (
    ChatMessage,
    Conversation,
    ConversationSummary,
    MessageEnding,
    Role,
    SearchHit,
    make_title,
    new_id,
)

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
"""The schema. `pieces` holds the parts of unfinished replies; `leaf` is the last message of the open branch."""
_INDEX = "CREATE VIRTUAL TABLE found USING fts5(text, content='messages', content_rowid='number', tokenize='trigram')"
"""The full-text index, `found`, of the texts of messages."""
_ATTACHMENTS = """
CREATE TABLE attachments (
    number INTEGER PRIMARY KEY, message TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    kind TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL, media_type TEXT NOT NULL, text TEXT NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, pages INTEGER NOT NULL, tokens INTEGER NOT NULL
);
CREATE INDEX attachments_of_message ON attachments (message);
"""
"""The files of questions, in the order of the fields of Attachment."""
_MIGRATIONS = (_TABLES, _ATTACHMENTS)
"""Scripts from one schema version to the next; see open_database."""
_FILE_DESCRIPTION = "The file of conversations"


@dataclass(frozen=True, slots=True)
class OpenedConversations:
    """An open database, whether it has a full-text index, and a notice for the user about damage to the file, or ""."""

    db: sqlite3.Connection
    indexed: bool
    notice: str


def conversations_path() -> Path:
    """Return the path of the database."""
    return data_dir() / "conversations" / "conversations.db"


def open_conversations(path: Path, *, index: bool = True) -> OpenedConversations:
    """Open the database, creating it if needed. A damaged file is kept as .bad and replaced by a new one.

    There is no full-text index without `index`, or if SQLite was built without FTS5 or its trigram tokenizer. Raises
    ConversationsUnusable if the file cannot be read or written, WrittenByNewer if a newer version of this
    program wrote it.
    """
    try:
        opened = database.open_database(path, _MIGRATIONS, _FILE_DESCRIPTION, partial(_prepare_database, index=index))
        return OpenedConversations(opened.db, _has_index(opened.db), opened.notice)
    except (sqlite3.Error, OSError) as error:
        raise conversations_error(path, error) from error


def open_memory(*, index: bool = True) -> OpenedConversations:
    """Open an empty database in memory. Nothing is written to a disk."""
    opened = database.open_memory(_MIGRATIONS, _FILE_DESCRIPTION, partial(_prepare_database, index=index))
    return OpenedConversations(opened.db, _has_index(opened.db), opened.notice)


def conversations_error(path: Path, error: Exception) -> ConversationsUnusable:
    """Return the error for a database that cannot be read or written, with a next step."""
    why = getattr(error, "strerror", None) or error
    return ConversationsUnusable(
        message("Chats cannot be saved in {path}: {why}.", path=path, why=why),
        message("Check disk space and permissions. The chat continues but is not saved."),
        path=str(path),
    )


def _prepare_database(db: sqlite3.Connection, *, index: bool) -> None:
    """Make SQLite overwrite deleted data, and create the full-text index if `index` is True and SQLite supports it.

    An existing index that is not to be used, or that this SQLite cannot use, is removed, because deletions could not be
    applied to it.
    """
    db.execute("PRAGMA secure_delete = ON")
    exists = _has_index(db)
    if index:
        use_index = "SELECT rowid FROM found WHERE found MATCH '\"xyz\"'" if exists else _INDEX
        with suppress(sqlite3.OperationalError):  # SQLite without FTS5, or from before trigrams (3.34)
            db.execute(use_index).fetchone()
            return
    if exists:
        # Without FTS5 the virtual table itself cannot be dropped, only the tables behind it.
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_master WHERE name = 'found'")
        db.execute("PRAGMA writable_schema = RESET")
        for part in ("data", "idx", "docsize", "config"):
            db.execute(f"DROP TABLE IF EXISTS found_{part}")
        db.execute("UPDATE messages SET indexed = 0")


def _has_index(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'found'").fetchone() is not None


_TRIGRAM_LENGTH = 3
"""The shortest word, in characters, that the index can find."""
_EXCERPT_BEFORE, _EXCERPT_AFTER = 40, 80
"""Characters of an excerpt before and after the match."""
_CUT_OFF_FOOTER = message("The program ended before this reply was complete.")
_SUMMARY = """
SELECT c.id, c.title, c.model, c.created_s, c.changed_s,
       (SELECT count(*) FROM messages WHERE conversation = c.id),
       (SELECT count(*) FROM messages WHERE conversation = c.id AND role = 'assistant')
FROM conversations c WHERE NOT c.hidden
"""
_MESSAGE = """
SELECT id, parent, role,
       text || coalesce((SELECT group_concat(text, '') FROM
           (SELECT text FROM pieces WHERE message = m.id ORDER BY number)), ''),
       thinking || coalesce((SELECT group_concat(thinking, '') FROM
           (SELECT thinking FROM pieces WHERE message = m.id ORDER BY number)), ''),
       created_s, ending, footer, figures, settings FROM messages m
"""


OnDelete = Callable[[Sequence[str]], object]


class Conversations:
    """The database of conversations. Several processes may use it; within one, one thread at a time.

    Every method raises ConversationsUnusable if the file cannot be read or written; those that take a conversation's ID
    raise ConversationMissing if there is none. With `in_memory` there is no file, and closing loses everything.
    `on_delete` is called with the IDs of conversations that were deleted.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        in_memory: bool = False,
        index: bool = True,
        clock: Callable[[], float] = time.time,
        on_delete: OnDelete = lambda _: None,
    ) -> None:
        self.path = path or conversations_path()
        self._on_delete = on_delete
        self._clock = clock
        opened = open_memory(index=index) if in_memory else open_conversations(self.path, index=index)
        self.indexed, self.notice = opened.indexed, opened.notice
        """See OpenedConversations."""
        self._db = opened.db
        self._db.create_function("holds", 2, _contains_text, deterministic=True)
        with self._transaction():
            self._add_to_index("indexed = 0 AND ending != 'writing'", ())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def list_all(self) -> tuple[ConversationSummary, ...]:
        """Return all conversations, the last changed first."""
        return tuple(
            ConversationSummary(*row) for row in self._fetch_rows(f"{_SUMMARY} ORDER BY c.changed_s DESC, c.rowid DESC")
        )

    def resolve_id(self, text: str) -> str:
        """Return the full ID of the only conversation whose ID begins with `text`."""
        found = [each.id for each in self.list_all() if text and each.id.startswith(text.lower())]
        if len(found) == 1:
            return found[0]
        if found:
            title = message("{found} conversations begin with {text}.", found=len(found), text=text)
        else:
            title = message("There is no conversation {text}.", text=text)
        raise ConversationMissing(
            title, message("See {command}.", command=command_name("chats", mark("Chats"))), id=text
        )

    def read_conversation(self, conversation_id: str) -> Conversation:
        """Return a conversation with its open branch."""
        found = self._fetch_rows(
            "SELECT id, title, system, model, created_s, changed_s, leaf FROM conversations WHERE id = ?",
            conversation_id,
        )
        if not found:
            raise ConversationMissing(message("This conversation no longer exists."), id=conversation_id)
        id_, title, system, model, created_s, changed_s, leaf = found[0]
        return Conversation(id_, title, system, model, created_s, changed_s, tuple(self._read_branch(leaf)))

    def search(self, text: str, limit: int = 100) -> tuple[SearchHit, ...]:
        """Return the conversations that contain every word of `text` in the title or in one message.

        The last changed comes first. Parts of words match, too; case is ignored.
        """
        words = text.split()
        if not words:
            return ()
        # `holds` also checks the words that are too short for the index.
        conditions, values = ["holds(m.text, ?)"] * len(words), list(words)
        indexed_words = [word for word in words if len(word) >= _TRIGRAM_LENGTH]
        if self.indexed and indexed_words:
            conditions.append("m.number IN (SELECT rowid FROM found WHERE found MATCH ?)")
            values.append(" AND ".join('"' + word.replace('"', '""') + '"' for word in indexed_words))
        excerpts: dict[str, str] = {}
        query = f"SELECT conversation, text FROM messages m WHERE {' AND '.join(conditions)} ORDER BY number DESC"  # noqa: S608
        for conversation, message_text in self._fetch_rows(query, *values):
            excerpts.setdefault(conversation, _make_excerpt(message_text, words[0]))
        hits = (
            SearchHit(each, excerpts.get(each.id, ""))
            for each in self.list_all()
            if each.id in excerpts or all(_contains_text(each.title, word) for word in words)
        )
        return tuple(hits)[:limit]

    def create_conversation(self, first: str, *, system: str = "", model: str = "", id: str | None = None) -> str:  # noqa: A002
        """Create a conversation, with a title made of its `first` question; return its ID."""
        conversation_id, now_s = id or new_id(), self._clock()
        with self._transaction() as db:
            db.execute(
                "INSERT INTO conversations (id, title, system, model, created_s, changed_s) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    conversation_id,
                    storable_text(make_title(first)),
                    storable_text(system),
                    storable_text(model),
                    now_s,
                    now_s,
                ),
            )
        return conversation_id

    def add_question(
        self,
        conversation_id: str,
        parent_id: str | None,
        text: str,
        *,
        attachments: Sequence[Attachment] = (),
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Add a question after the message `parent_id`, None for the first one; return its ID."""
        with self._transaction() as db:
            question_id = self._add_message(conversation_id, parent_id, Role.USER, text, MessageEnding.WHOLE, {}, id)
            db.executemany(
                "INSERT INTO attachments (message, kind, name, data, media_type, text, width, height, pages, tokens) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (question_id, each.kind, storable_text(each.name), each.data, each.media_type,
                     storable_text(each.text), each.width, each.height, each.pages, each.tokens)
                    for each in attachments
                ],
            )  # fmt: skip
        return question_id

    def begin_reply(
        self,
        conversation_id: str,
        parent_id: str,
        *,
        settings: Mapping[str, object] | None = None,
        model: str = "",
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Create an empty reply to a question; return its ID. `append_pieces` adds to it until `end_reply`."""
        with self._transaction() as db:
            reply = self._add_message(
                conversation_id, parent_id, Role.ASSISTANT, "", MessageEnding.WRITING, settings or {}, id
            )
            if model:
                db.execute("UPDATE conversations SET model = ? WHERE id = ?", (storable_text(model), conversation_id))
        return reply

    def append_pieces(self, pieces: Iterable[tuple[str, str, str]]) -> None:
        """Append (message ID, text, reasoning) to unfinished replies. The data is committed when this returns."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO pieces (message, text, thinking) SELECT id, ?2, ?3 FROM messages WHERE id = ?1",
                [(message_id, storable_text(text), storable_text(thinking)) for message_id, text, thinking in pieces],
            )

    def end_reply(
        self,
        message_id: str,
        ending: MessageEnding = MessageEnding.WHOLE,
        *,
        footer: str = "",
        figures: Mapping[str, object] | None = None,
    ) -> None:
        """Finish a reply: join its pieces and index it."""
        with self._transaction() as db:
            db.execute(f"UPDATE messages SET (text, thinking) = (SELECT {_join_sql('text')}, {_join_sql('thinking')}) "  # noqa: S608
                       "WHERE id = ?1", (message_id,))  # fmt: skip
            db.execute(
                "UPDATE messages SET ending = ?, footer = ?, figures = ? WHERE id = ?",
                (ending, storable_text(footer), compact_json(figures or {}), message_id),
            )
            db.execute("DELETE FROM pieces WHERE message = ?", (message_id,))
            db.execute(
                "UPDATE conversations SET changed_s = ? WHERE id = (SELECT conversation FROM messages WHERE id = ?)",
                (self._clock(), message_id),
            )
            self._add_to_index("indexed = 0 AND id = ?", (message_id,))

    def delete_message(self, message_id: str) -> None:
        """Delete a message with all that follow it, and the conversation if no message is left."""
        with self._transaction() as db:
            row = db.execute("SELECT conversation, parent FROM messages WHERE id = ?", (message_id,)).fetchone()
            if row is None:
                return
            conversation_id, parent = row
            self._remove_from_index(self._list_subtree(message_id))
            db.execute("DELETE FROM messages WHERE id = ?", (message_id,))
            db.execute("UPDATE conversations SET leaf = ? WHERE id = ?", (parent, conversation_id))
            db.execute(
                "DELETE FROM conversations WHERE id = ?1 AND NOT EXISTS "
                "(SELECT 1 FROM messages WHERE conversation = ?1)",
                (conversation_id,),
            )
        self._wipe_traces()

    def open_version(self, message_id: str) -> None:
        """Open the branch through a message, which ends with the newest of the messages that follow it."""
        with self._transaction() as db:
            newest = message_id
            while row := db.execute(
                "SELECT id FROM messages WHERE parent = ? ORDER BY number DESC LIMIT 1", (newest,)
            ).fetchone():
                newest = row[0]
            db.execute(
                "UPDATE conversations SET leaf = ?1 WHERE id = (SELECT conversation FROM messages WHERE id = ?1)",
                (newest,),
            )

    def rename(self, conversation_id: str, title: str) -> None:
        """Change a conversation's title."""
        with self._transaction() as db:
            changed = db.execute(
                "UPDATE conversations SET title = ? WHERE id = ?", (storable_text(make_title(title)), conversation_id)
            )
        if not changed.rowcount:
            raise ConversationMissing(message("This conversation no longer exists."), id=conversation_id)

    def set_system(self, conversation_id: str, system: str) -> None:
        """Change a conversation's system prompt."""
        with self._transaction() as db:
            db.execute("UPDATE conversations SET system = ? WHERE id = ?", (storable_text(system), conversation_id))

    def hide(self, conversation_id: str, *, hidden: bool = True) -> None:
        """Hide a conversation until it is deleted or shown again. `clean_up` deletes hidden ones."""
        with self._transaction() as db:
            db.execute("UPDATE conversations SET hidden = ? WHERE id = ?", (int(hidden), conversation_id))

    def delete(self, conversation_ids: Sequence[str]) -> int:
        """Delete conversations without traces in the file. Return how many were deleted."""
        deleted = 0
        with self._transaction() as db:
            for conversation_id in conversation_ids:
                rows = db.execute("SELECT number FROM messages WHERE conversation = ?", (conversation_id,))
                self._remove_from_index([number for (number,) in rows])
                db.execute("DELETE FROM messages WHERE conversation = ?", (conversation_id,))
                deleted += db.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,)).rowcount
        if deleted:
            self._wipe_traces()
            self._on_delete(conversation_ids)
        return deleted

    def clean_up(self) -> None:
        """Clean up after an earlier process: end its unfinished replies, and delete hidden conversations.

        Only the process that writes replies may call this, before it begins one.
        """
        for (writing,) in self._fetch_rows("SELECT id FROM messages WHERE ending = 'writing'"):
            self.end_reply(writing, MessageEnding.CUT_OFF, footer=_CUT_OFF_FOOTER)
        self.delete([conversation for (conversation,) in self._fetch_rows("SELECT id FROM conversations WHERE hidden")])

    def _read_branch(self, leaf: str | None) -> Iterator[ChatMessage]:
        """Yield the messages from the first one to `leaf`."""
        versions: dict[tuple[str | None, str], list[str]] = {}
        branch = self._fetch_rows(
            "WITH RECURSIVE branch (id, parent, depth) AS (SELECT id, parent, 0 FROM messages WHERE id = ? UNION ALL "
            "SELECT m.id, m.parent, depth + 1 FROM messages m JOIN branch b ON m.id = b.parent) "
            "SELECT id FROM branch ORDER BY depth DESC",
            leaf,
        )
        if not branch:
            return
        for id_, parent, role in self._fetch_rows(
            "SELECT id, parent, role FROM messages WHERE conversation = "
            "(SELECT conversation FROM messages WHERE id = ?) ORDER BY number",
            leaf,
        ):
            versions.setdefault((parent, role), []).append(id_)
        for (id_,) in branch:
            (_, parent, role, text, thinking, created_s, ending, footer, figures, settings) = self._fetch_rows(
                f"{_MESSAGE} WHERE id = ?", id_
            )[0]
            yield ChatMessage(
                id_, parent, Role(role), text, thinking, created_s, MessageEnding(ending), footer,
                parse_object(figures), parse_object(settings), tuple(versions[parent, role]),
                self._read_attachments(id_),
            )  # fmt: skip

    def _read_attachments(self, message_id: str) -> tuple[Attachment, ...]:
        rows = self._fetch_rows(
            "SELECT kind, name, data, media_type, text, width, height, pages, tokens FROM attachments "
            "WHERE message = ? ORDER BY number",
            message_id,
        )
        return tuple(Attachment(AttachmentKind(kind), *others) for kind, *others in rows)

    def _add_message(
        self,
        conversation_id: str,
        parent_id: str | None,
        role: Role,
        text: str,
        ending: MessageEnding,
        settings: Mapping[str, object],
        id_: str | None,
    ) -> str:
        message_id, now_s = id_ or new_id(), self._clock()
        with self._transaction() as db:
            if not db.execute("SELECT 1 FROM conversations WHERE id = ?", (conversation_id,)).fetchone():
                raise ConversationMissing(message("This conversation no longer exists."), id=conversation_id)
            db.execute(
                "INSERT INTO messages (id, conversation, parent, role, text, created_s, ending, settings) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    message_id,
                    conversation_id,
                    parent_id,
                    role,
                    storable_text(text),
                    now_s,
                    ending,
                    compact_json(settings),
                ),
            )
            db.execute(
                "UPDATE conversations SET leaf = ?, changed_s = ? WHERE id = ?", (message_id, now_s, conversation_id)
            )
            if ending is not MessageEnding.WRITING:
                self._add_to_index("id = ?", (message_id,))
        return message_id

    def _list_subtree(self, message_id: str) -> list[int]:
        """Return the row numbers of a message and of all that follow it."""
        rows = self._fetch_rows(
            "WITH RECURSIVE below (id, number) AS (SELECT id, number FROM messages WHERE id = ? UNION ALL "
            "SELECT m.id, m.number FROM messages m JOIN below b ON m.parent = b.id) SELECT number FROM below",
            message_id,
        )
        return [number for (number,) in rows]

    def _add_to_index(self, condition: str, values: Sequence[object]) -> None:
        """Index the messages that meet an SQL condition; `values` fill its placeholders."""
        if self.indexed:
            insert = f"INSERT INTO found (rowid, text) SELECT number, text FROM messages WHERE {condition}"  # noqa: S608
            self._db.execute(insert, values)
            self._db.execute(f"UPDATE messages SET indexed = 1 WHERE {condition}", values)  # noqa: S608

    def _remove_from_index(self, numbers: Iterable[int]) -> None:
        if self.indexed:
            self._db.executemany(
                "INSERT INTO found (found, rowid, text) "
                "SELECT 'delete', number, text FROM messages WHERE number = ? AND indexed",
                [(number,) for number in numbers],
            )

    def _wipe_traces(self) -> None:
        """Remove all traces of deleted messages.

        Traces stay in the index, which only marks deletions; in rewritten pages, because secure_delete was measured to
        leave data there; and in the write-ahead log.
        """
        with self._converted_errors():
            if self.indexed:
                self._db.execute("INSERT INTO found (found) VALUES ('optimize')")
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _fetch_rows(self, query: str, *values: object) -> list[Any]:
        with self._converted_errors():
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run changes in one transaction: all are committed or none."""
        with self._converted_errors(), transaction(self._db):
            yield self._db

    @contextmanager
    def _converted_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise conversations_error(self.path, error) from error


def _join_sql(column: str) -> str:
    """Return an SQL expression for a column of message ?1 followed by that column of its pieces."""
    return (
        f"{column} || coalesce((SELECT group_concat(piece, '') FROM "  # noqa: S608
        f"(SELECT {column} AS piece FROM pieces WHERE message = ?1 ORDER BY number)), '')"
    )


def _contains_text(text: str, word: str) -> bool:
    return word.casefold() in text.casefold()


def _make_excerpt(text: str, word: str) -> str:
    match = max(0, text.casefold().find(word.casefold()))
    begin, end = max(0, match - _EXCERPT_BEFORE), match + len(word) + _EXCERPT_AFTER
    excerpt = " ".join(text[begin:end].split())
    return f"{'…' if begin else ''}{excerpt}{'…' if end < len(text) else ''}"
