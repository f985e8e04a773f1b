"""Conversations that are kept: read, searched, written while replies stream, deleted so that nothing of them stays.

The messages of a conversation are a tree: an edited question, or a reply that was asked for again, stands beside the
earlier one, and `leaf` says which branch is open. A reply is written piece by piece, and put together at its end.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from launcher.base.database import changing
from launcher.base.errors import ConversationMissing
from launcher.conversations.file import conversations_file, open_file, open_memory, unusable
from launcher.conversations.records import (
    Conversation,
    Ending,
    Hit,
    Message,
    Role,
    Summary,
    new_id,
    packed,
    title_of,
    unpacked,
)

_TRIGRAM = 3
"""Characters that a word needs to be found by the index."""
_BEFORE, _AFTER = 40, 80
"""Characters of an excerpt around what was found."""
_CUT_OFF = "The program ended before this reply did."
_SUMMARY = """
SELECT c.id, c.title, c.model, c.created_s, c.changed_s,
       (SELECT count(*) FROM messages WHERE conversation = c.id) FROM conversations c WHERE NOT c.hidden
"""
_MESSAGE = """
SELECT id, parent, role,
       text || coalesce((SELECT group_concat(text, '') FROM
           (SELECT text FROM pieces WHERE message = m.id ORDER BY number)), ''),
       thinking || coalesce((SELECT group_concat(thinking, '') FROM
           (SELECT thinking FROM pieces WHERE message = m.id ORDER BY number)), ''),
       created_s, ending, footer, figures, settings FROM messages m
"""


class Conversations:
    """The file of conversations. One thread at a time may use it; several processes may.

    Every method raises ConversationsUnusable when the system refuses, and those that take the id of a conversation
    ConversationMissing when there is none. `in_memory` there is no file, and all is gone once it is closed.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        in_memory: bool = False,
        index: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path or conversations_file()
        self._clock = clock
        opened = open_memory(index=index) if in_memory else open_file(self.path, index=index)
        self.indexed, self.notice = opened.indexed, opened.notice
        """Whether searches use a full-text index, and what the user must know of the file."""
        self._db = opened.db
        self._db.create_function("holds", 2, _holds, deterministic=True)
        with self._change():
            self._add_to_index("indexed = 0 AND ending != 'writing'", ())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def all(self) -> tuple[Summary, ...]:
        """Return all conversations, the one that was changed last first."""
        return tuple(Summary(*row) for row in self._rows(f"{_SUMMARY} ORDER BY c.changed_s DESC, c.rowid DESC"))

    def id_of(self, text: str) -> str:
        """Return the whole id of the conversation whose id begins with `text`."""
        found = [each.id for each in self.all() if text and each.id.startswith(text.lower())]
        if len(found) == 1:
            return found[0]
        what = f"{len(found)} conversations begin with {text}." if found else f"There is no conversation {text}."
        raise ConversationMissing(what, "`mtp-launcher chats` lists them.", id=text)

    def get(self, conversation: str) -> Conversation:
        """Return a conversation with the branch of it that is open."""
        found = self._rows(
            "SELECT id, title, system, model, created_s, changed_s, leaf FROM conversations WHERE id = ?", conversation
        )
        if not found:
            raise ConversationMissing("There is no such conversation any more.", id=conversation)
        id_, title, system, model, created_s, changed_s, leaf = found[0]
        return Conversation(id_, title, system, model, created_s, changed_s, tuple(self._branch(leaf)))

    def search(self, text: str, most: int = 100) -> tuple[Hit, ...]:
        """Return the conversations that hold every word of `text`, in their title or in one message: newest first.

        A word is found inside of others too. Capital letters do not matter.
        """
        words = text.split()
        if not words:
            return ()
        terms, values = ["holds(m.text, ?)"] * len(words), list(words)
        long = [word for word in words if len(word) >= _TRIGRAM]
        if self.indexed and long:
            terms.append("m.number IN (SELECT rowid FROM found WHERE found MATCH ?)")
            values.append(" AND ".join('"' + word.replace('"', '""') + '"' for word in long))
        excerpts: dict[str, str] = {}
        query = f"SELECT m.conversation, m.text FROM messages m WHERE {' AND '.join(terms)} ORDER BY m.number DESC"  # noqa: S608
        for conversation, found in self._rows(query, *values):
            excerpts.setdefault(conversation, _excerpt(found, words[0]))
        hits = (
            Hit(each, excerpts.get(each.id, ""))
            for each in self.all()
            if each.id in excerpts or all(_holds(each.title, word) for word in words)
        )
        return tuple(hits)[:most]

    def begin(self, first: str, *, system: str = "", model: str = "", id: str | None = None) -> str:  # noqa: A002
        """Begin a conversation that is named after its first question; return its id."""
        conversation, now_s = id or new_id(), self._clock()
        with self._change() as db:
            db.execute(
                "INSERT INTO conversations (id, title, system, model, created_s, changed_s) VALUES (?, ?, ?, ?, ?, ?)",
                (conversation, _clean(title_of(first)), _clean(system), _clean(model), now_s, now_s),
            )
        return conversation

    def ask(self, conversation: str, parent: str | None, text: str, *, id: str | None = None) -> str:  # noqa: A002
        """Add a question after the message `parent`, None as the first; return its id."""
        return self._add(conversation, parent, Role.USER, text, Ending.WHOLE, {}, id)

    def begin_reply(
        self,
        conversation: str,
        parent: str,
        *,
        settings: Mapping[str, object] | None = None,
        model: str = "",
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Begin the reply to a question; return its id. It is written by `add` until `end`."""
        with self._change() as db:
            message = self._add(conversation, parent, Role.ASSISTANT, "", Ending.WRITING, settings or {}, id)
            if model:
                db.execute("UPDATE conversations SET model = ? WHERE id = ?", (_clean(model), conversation))
        return message

    def add(self, pieces: Iterable[tuple[str, str, str]]) -> None:
        """Append to replies that are being written: message, text, thinking. They are safe when this returns."""
        with self._change() as db:
            db.executemany(
                "INSERT INTO pieces (message, text, thinking) SELECT id, ?2, ?3 FROM messages WHERE id = ?1",
                [(message, _clean(text), _clean(thinking)) for message, text, thinking in pieces],
            )

    def end(
        self,
        message: str,
        ending: Ending = Ending.WHOLE,
        *,
        footer: str = "",
        figures: Mapping[str, object] | None = None,
    ) -> None:
        """End a reply: put it together and index it."""
        with self._change() as db:
            db.execute(f"UPDATE messages SET (text, thinking) = (SELECT {_joined('text')}, {_joined('thinking')}) "  # noqa: S608
                       "WHERE id = ?1", (message,))  # fmt: skip
            db.execute(
                "UPDATE messages SET ending = ?, footer = ?, figures = ? WHERE id = ?",
                (ending, _clean(footer), packed(figures or {}), message),
            )
            db.execute("DELETE FROM pieces WHERE message = ?", (message,))
            db.execute(
                "UPDATE conversations SET changed_s = ? WHERE id = (SELECT conversation FROM messages WHERE id = ?)",
                (self._clock(), message),
            )
            self._add_to_index("indexed = 0 AND id = ?", (message,))

    def withdraw(self, message: str) -> None:
        """Delete a question that got no reply, with all that follows it; a conversation without messages goes too."""
        with self._change() as db:
            row = db.execute("SELECT conversation, parent FROM messages WHERE id = ?", (message,)).fetchone()
            if row is None:
                return
            conversation, parent = row
            self._take_from_index(self._below([message]))
            db.execute("DELETE FROM messages WHERE id = ?", (message,))
            db.execute("UPDATE conversations SET leaf = ? WHERE id = ?", (parent, conversation))
            db.execute(
                "DELETE FROM conversations WHERE id = ?1 AND NOT EXISTS "
                "(SELECT 1 FROM messages WHERE conversation = ?1)",
                (conversation,),
            )
        self._wipe()

    def open_version(self, message: str) -> None:
        """Open the branch that goes through a message: to its newest end."""
        with self._change() as db:
            newest = message
            while row := db.execute(
                "SELECT id FROM messages WHERE parent = ? ORDER BY number DESC LIMIT 1", (newest,)
            ).fetchone():
                newest = row[0]
            db.execute(
                "UPDATE conversations SET leaf = ?1 WHERE id = (SELECT conversation FROM messages WHERE id = ?1)",
                (newest,),
            )

    def rename(self, conversation: str, title: str) -> None:
        """Give a conversation another title."""
        with self._change() as db:
            changed = db.execute(
                "UPDATE conversations SET title = ? WHERE id = ?", (_clean(title_of(title)), conversation)
            )
        if not changed.rowcount:
            raise ConversationMissing("There is no such conversation any more.", id=conversation)

    def set_system(self, conversation: str, system: str) -> None:
        """Give a conversation another system prompt."""
        with self._change() as db:
            db.execute("UPDATE conversations SET system = ? WHERE id = ?", (_clean(system), conversation))

    def hide(self, conversation: str, *, hidden: bool = True) -> None:
        """Show a conversation no more, until it is deleted or shown again. `settle` deletes those that are hidden."""
        with self._change() as db:
            db.execute("UPDATE conversations SET hidden = ? WHERE id = ?", (int(hidden), conversation))

    def delete(self, conversations: Sequence[str]) -> int:
        """Delete conversations: nothing of them stays in the file. Return how many there were."""
        gone = 0
        with self._change() as db:
            for conversation in conversations:
                rows = db.execute("SELECT number FROM messages WHERE conversation = ?", (conversation,))
                self._take_from_index([number for (number,) in rows])
                db.execute("DELETE FROM messages WHERE conversation = ?", (conversation,))
                gone += db.execute("DELETE FROM conversations WHERE id = ?", (conversation,)).rowcount
        if gone:
            self._wipe()
        return gone

    def settle(self) -> None:
        """Put right what an earlier window left: replies that it could not end, and conversations that it hid.

        Only for the one that writes replies, before it does.
        """
        for (message,) in self._rows("SELECT id FROM messages WHERE ending = 'writing'"):
            self.end(message, Ending.CUT_OFF, footer=_CUT_OFF)
        self.delete([conversation for (conversation,) in self._rows("SELECT id FROM conversations WHERE hidden")])

    def _branch(self, leaf: str | None) -> Iterator[Message]:
        versions: dict[tuple[str | None, str], list[str]] = {}
        line = self._rows(
            "WITH RECURSIVE branch (id, parent, depth) AS (SELECT id, parent, 0 FROM messages WHERE id = ? UNION ALL "
            "SELECT m.id, m.parent, depth + 1 FROM messages m JOIN branch b ON m.id = b.parent) "
            "SELECT id FROM branch ORDER BY depth DESC",
            leaf,
        )
        if not line:
            return
        for message, parent, role in self._rows(
            "SELECT id, parent, role FROM messages WHERE conversation = "
            "(SELECT conversation FROM messages WHERE id = ?) ORDER BY number",
            leaf,
        ):
            versions.setdefault((parent, role), []).append(message)
        for (message,) in line:
            (id_, parent, role, text, thinking, created_s, ending, footer, figures, settings) = self._rows(
                f"{_MESSAGE} WHERE id = ?", message
            )[0]
            yield Message(
                id_, parent, Role(role), text, thinking, created_s, Ending(ending), footer,
                unpacked(figures), unpacked(settings), tuple(versions[parent, role]),
            )  # fmt: skip

    def _add(
        self,
        conversation: str,
        parent: str | None,
        role: Role,
        text: str,
        ending: Ending,
        settings: Mapping[str, object],
        id_: str | None,
    ) -> str:
        message, now_s = id_ or new_id(), self._clock()
        with self._change() as db:
            if not db.execute("SELECT 1 FROM conversations WHERE id = ?", (conversation,)).fetchone():
                raise ConversationMissing("There is no such conversation any more.", id=conversation)
            db.execute(
                "INSERT INTO messages (id, conversation, parent, role, text, created_s, ending, settings) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (message, conversation, parent, role, _clean(text), now_s, ending, packed(settings)),
            )
            db.execute("UPDATE conversations SET leaf = ?, changed_s = ? WHERE id = ?", (message, now_s, conversation))
            if ending is not Ending.WRITING:
                self._add_to_index("id = ?", (message,))
        return message

    def _below(self, messages: Sequence[str]) -> list[int]:
        rows = self._rows(
            "WITH RECURSIVE below (id, number) AS (SELECT id, number FROM messages WHERE id = ? UNION ALL "
            "SELECT m.id, m.number FROM messages m JOIN below b ON m.parent = b.id) SELECT number FROM below",
            *messages,
        )
        return [number for (number,) in rows]

    def _add_to_index(self, which: str, values: Sequence[object]) -> None:
        if self.indexed:
            insert = f"INSERT INTO found (rowid, text) SELECT number, text FROM messages WHERE {which}"  # noqa: S608
            self._db.execute(insert, values)
            self._db.execute(f"UPDATE messages SET indexed = 1 WHERE {which}", values)  # noqa: S608

    def _take_from_index(self, numbers: Iterable[int]) -> None:
        if self.indexed:
            self._db.executemany(
                "INSERT INTO found (found, rowid, text) "
                "SELECT 'delete', number, text FROM messages WHERE number = ? AND indexed",
                [(number,) for number in numbers],
            )

    def _wipe(self) -> None:
        """Let nothing stay of what was deleted: not in the index, which only notes deletions, nor where pages were
        rewritten (what secure_delete leaves there was measured), nor in the journal."""
        with self._told():
            if self.indexed:
                self._db.execute("INSERT INTO found (found) VALUES ('optimize')")
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

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
        except (sqlite3.Error, OSError) as error:
            raise unusable(self.path, error) from error


def _joined(column: str) -> str:
    return (
        f"{column} || coalesce((SELECT group_concat(piece, '') FROM "  # noqa: S608
        f"(SELECT {column} AS piece FROM pieces WHERE message = ?1 ORDER BY number)), '')"
    )


def _holds(text: str, word: str) -> bool:
    return word.casefold() in text.casefold()


def _excerpt(text: str, word: str) -> str:
    at = max(0, text.casefold().find(word.casefold()))
    begin = max(0, at - _BEFORE)
    cut = " ".join(text[begin : at + len(word) + _AFTER].split())
    return f"{'…' if begin else ''}{cut}{'…' if at + len(word) + _AFTER < len(text) else ''}"


def _clean(text: str) -> str:
    """Return a text that can be written: what a user types may hold halves of characters."""
    return text.encode("utf-8", "replace").decode()
