"""The vault: slot states on disk, so that a conversation need not be read again after its model was unloaded.

A state is found by the text of requests: each request is hashed in blocks of `BLOCK_BYTES` bytes, each hash
including the one before, so that two requests share their beginnings as far as they share hashes. The text needs no
question to the engine and is the same in all APIs. Whether its tokens are those of the state, the engine compares
itself when the request comes: a state that is restored for another prompt costs time, and never changes a reply.

The index is a SQLite file, shared by all servers of the user. Files that it does not list are deleted.
"""

import json
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from errno import ENOSPC
from functools import wraps
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from launcher.base.codec import JsonView, compact_json, from_json
from launcher.base.database import open_database, transaction
from launcher.base.errors import LauncherError
from launcher.base.files import make_private_folder
from launcher.base.messages import message, plural_message
from launcher.gateway.slot_file import digest_file, read_tokens

_log = logging.getLogger(__name__)
Method = TypeVar("Method", bound=Callable[..., Any])
BLOCK_BYTES = 256
HASH_BYTES = 8
_DAY_S = 86_400.0
_FREE_SHARE = 0.1
"""Largest share of the disk's free space, what the vault holds included, that it takes."""
_WRITTEN_SHARE = 3.0
"""Bytes that may be written in a day, as a multiple of the vault's size: a disk of 1 TB endures 600 TB."""
_HALF_LIFE_S = 3 * _DAY_S
"""After this time without a use a state counts half as likely to be asked for."""
_UNLISTED_S = 3_600.0
"""A file that no row lists is deleted once it is this old: another server may be about to list a younger one."""
_FORGOTTEN_DAYS = 365
"""Days for which a deleted conversation is not kept again: a server may have it in a slot for as long as it runs."""
_RETRY_S = 60.0
"""Seconds until a folder that could not be used is tried again."""
_SUFFIX, _UNREAD = ".state", ".unread"
_TABLES = """
CREATE TABLE states (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, model TEXT NOT NULL, client TEXT NOT NULL, purpose TEXT NOT NULL,
    chain BLOB NOT NULL, opening BLOB NOT NULL, characters INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    tokens INTEGER NOT NULL, checkpoints TEXT NOT NULL, goes_back INTEGER NOT NULL,
    size INTEGER NOT NULL, digest BLOB NOT NULL,
    read_s REAL NOT NULL, saved_s REAL NOT NULL, used_s REAL NOT NULL, uses INTEGER NOT NULL,
    conversation TEXT NOT NULL
);
CREATE TABLE forgotten (conversation TEXT PRIMARY KEY, day INTEGER NOT NULL);
CREATE TABLE written (day INTEGER PRIMARY KEY, bytes INTEGER NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class SavedState:
    """A slot's state in the vault.

    `kind` is the same for engines that can restore it, `chain` the hashes of the request that led to it, `opening` one
    of its text up to the first question. The request had `characters` bytes of text and `prompt_tokens` tokens;
    `tokens` has its reply, too. The engine can go on from each of the numbers of tokens in `checkpoints`, and with
    `goes_back` from any. `read_s` is how long it took to read the prompt. Times are in seconds since 1970. The window
    names its conversations: see `forget_conversations`.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "id model client purpose prompt_tokens tokens checkpoints size read_s:1 saved_s used_s uses"
    )
    name: str
    kind: str
    model: str
    client: str
    purpose: str
    chain: bytes
    opening: bytes
    characters: int
    prompt_tokens: int
    tokens: int
    checkpoints: tuple[int, ...]
    goes_back: bool
    size: int
    digest: bytes
    read_s: float
    saved_s: float
    used_s: float
    uses: int
    conversation: str = ""

    @property
    def id(self) -> str:
        """The name by which users delete it."""
        return self.name[:8]

    def count_reusable(self, chain: bytes) -> int:
        """Return about how many tokens the engine need not read for a request with this chain.

        The request may part within the next block: so a checkpoint there may be of use.
        """
        blocks = count_common(self.chain, chain)
        if not blocks:
            return 0
        is_whole = blocks == len(self.chain) // HASH_BYTES
        common, most = (self.prompt_tokens * count * BLOCK_BYTES // self.characters for count in (blocks, blocks + 1))
        if self.goes_back:
            return self.prompt_tokens if is_whole else common
        most = self.prompt_tokens if is_whole else most
        return max((each for each in self.checkpoints if each <= most), default=0)

    def judge_worth(self, now_s: float) -> float:
        """Return the seconds that it may save, by how likely it is to be asked for, per byte."""
        likely: float = 0.5 ** (max(0.0, now_s - self.used_s) / _HALF_LIFE_S)  # a clock may have been set back
        return self.read_s * likely * (1 + self.uses) / max(1, self.size)


def _one_at_a_time(method: Method) -> Method:
    """Have threads that call methods of a vault wait for each other: they share its connection."""

    @wraps(method)
    def call(self: "StateVault", *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- the method's own
        with self._lock:
            return method(self, *args, **kwargs)

    return cast(Method, call)


@dataclass(frozen=True, slots=True)
class VaultUse:
    """How much the vault holds and may hold, and what was written today, in bytes.

    With a `problem` it can hold nothing.
    """

    states: int
    size: int
    limit: int
    written_today: int
    tokens: int = 0
    problem: str = ""

    @property
    def sentence(self) -> str:
        """How much is kept; empty if nothing is."""
        if not self.states:
            return ""
        size = f"{self.size / 1e9:,.1f} GB" if self.size >= 1e9 else f"{self.size / 1e6:,.0f} MB"
        return message(
            "Kept on disk: {conversations}, {tokens:,} tokens, {size}.",
            conversations=plural_message("{n} conversation", "{n} conversations", self.states),
            tokens=self.tokens,
            size=size,
        )


class StateVault:
    """Slot states in a folder for this user alone. `read_limits` returns its size in bytes, and the days to keep one.

    Its methods do file work, and may be called from any thread. Where the folder cannot be used, nothing
    is kept and nothing found: `problem` says why.
    """

    def __init__(self, folder: Path, read_limits: Callable[[], tuple[int, float]]) -> None:
        self.folder = folder
        self._index = folder / "index.sqlite"
        self.problem = ""
        self._retry_s = 0.0
        self._read_limits = read_limits
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._states: list[SavedState] = []
        self._read_at: tuple[int, int] | None = None

    @_one_at_a_time
    def close(self) -> None:
        """Close the index."""
        if self._db is not None:
            self._db.close()
            self._db = None

    @_one_at_a_time
    def keep_file(self, path: Path, state: SavedState) -> bool:
        """Move a slot's file into the vault, and make room for it; return whether it is kept.

        One that is too large is not, nor one of a forgotten conversation. States of the same conversation that this one
        continues are replaced.
        """
        db = self._open()
        if db is None or not self.may_take(state.size):
            return False
        target = self.path_of(state)
        earlier = [each for each in self.list_states(state.kind) if _continues(state, each)]
        state = replace(state, uses=max((each.uses for each in earlier), default=0))
        try:
            path.replace(target)
            with transaction(db):
                names = ", ".join(_COLUMNS)
                marks = ", ".join("?" * len(_COLUMNS))
                unless = "WHERE ? NOT IN (SELECT conversation FROM forgotten)"
                query = f"INSERT INTO states ({names}) SELECT {marks} {unless}"
                is_kept = db.execute(query, [*_to_row(state), state.conversation]).rowcount > 0
                gone = earlier if is_kept else [state]
                db.executemany("DELETE FROM states WHERE name = ?", [(each.name,) for each in gone])
                db.execute(
                    "INSERT INTO written VALUES (?, ?) ON CONFLICT (day) DO UPDATE SET bytes = bytes + excluded.bytes",
                    (_today(), state.size),
                )
            self.problem = ""
        except (OSError, sqlite3.Error) as error:
            self._note_problem(error)
            with suppress(OSError):
                target.unlink(missing_ok=True)
            return False
        self._delete_files(gone)
        self.make_room()
        return is_kept

    @_one_at_a_time
    def may_take(self, size: int) -> bool:
        """Return whether a state of `size` bytes may be written now. If the disk has become fuller, make room first."""
        most, _ = self._read_limits()
        if (not most and not self._index.exists()) or (db := self._open()) is None:
            return False
        limit, _ = self._limits()
        if sum(each.size for each in self.list_states()) > limit:
            self.make_room()
        if limit < size <= most:
            self._note_problem(OSError(ENOSPC, message("too little of the disk is free")))
        with suppress(sqlite3.Error):
            row = db.execute("SELECT bytes FROM written WHERE day = ?", (_today(),)).fetchone()
            return 0 < limit >= size and (row[0] if row else 0) + size <= _WRITTEN_SHARE * limit
        return False

    def take_in(self, path: Path) -> Path:
        """Move a file that is to be read before it is kept into the vault's folder; return its new path."""
        inside = self.folder / f"{path.stem}{_UNREAD}"
        try:
            path.replace(inside)
        except OSError:  # another file system
            return path
        return inside

    def find_state(self, kind: str, chain: bytes, but: Collection[str] = ()) -> tuple[SavedState, int] | None:
        """Return the state that saves most of reading a request again, and how many tokens; None without one.

        `but` are names of states that are left out.
        """
        if not self._limits()[0]:
            return None
        states = [each for each in self.list_states(kind) if each.name not in but]
        sure = max((len(each.chain) for each in states if chain.startswith(each.chain)), default=0)
        more = chain[: sure + HASH_BYTES]
        # No checkpoint behind the place where a request parts is of use. A state that it begins with tells that place.
        found = (
            (each, each.count_reusable(chain))
            for each in states
            if each.goes_back or chain.startswith(each.chain) or each.chain.startswith(more)
        )
        best = max(found, key=lambda each: (each[1], -each[0].size), default=None)
        return best if best is not None and best[1] else None

    def lend_file(self, state: SavedState, path: Path) -> bool:
        """Make a state's file available at `path` if it is whole; a damaged one is deleted."""
        source = self.path_of(state)
        try:
            path.unlink(missing_ok=True)
            try:
                os.link(source, path)
            except OSError:  # another file system, or one without links
                shutil.copyfile(source, path)
            # Of what is lent: another server may replace the source.
            is_whole = _is_same_file(path, state)
        except OSError as error:
            if source.exists():  # a full disk is no fault of the state's
                self._note_problem(error)
                return False
            is_whole = False
        if not is_whole:
            _log.warning("%s has changed since it was saved, and is deleted.", source)
            self.drop_state(state)
            path.unlink(missing_ok=True)
        return is_whole

    @_one_at_a_time
    def note_use(self, state: SavedState) -> None:
        """Record that a state was restored."""
        if (db := self._open()) is not None:
            with suppress(sqlite3.Error):
                db.execute("UPDATE states SET used_s = ?, uses = uses + 1 WHERE name = ?", (time.time(), state.name))

    @_one_at_a_time
    def drop_state(self, state: SavedState) -> None:
        """Delete a state, for example one that an engine has refused."""
        if (db := self._open()) is not None:
            with suppress(sqlite3.Error):
                db.execute("DELETE FROM states WHERE name = ?", (state.name,))
            self._delete_files([state])

    @_one_at_a_time
    def list_states(self, kind: str | None = None) -> list[SavedState]:
        """Return the states of a kind, or all."""
        if (db := self._open()) is None:
            return []
        try:
            # The first changes with each commit of another connection, the second with each change of this one.
            version = db.execute("PRAGMA data_version").fetchone()[0], db.total_changes
            if version != self._read_at:
                rows = db.execute(f"SELECT {', '.join(_COLUMNS)} FROM states")  # noqa: S608 -- constants
                self._states, self._read_at = [state for row in rows if (state := _from_row(row))], version
            return [each for each in self._states if kind in (None, each.kind)]
        except sqlite3.Error as error:
            self._note_problem(error)
            return []

    def read_shared_tokens(self, one: SavedState, other: SavedState) -> list[int]:
        """Return the tokens that two states begin with in common; none if a file cannot be read."""
        try:
            with self.path_of(one).open("rb") as first, self.path_of(other).open("rb") as second:
                pairs = zip(read_tokens(first) or (), read_tokens(second) or (), strict=False)
        except OSError:
            return []
        return [mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]

    def verify(self) -> list[SavedState]:
        """Compare each file with its digest, delete the damaged ones, and return them."""
        damaged = []
        for state in self.list_states():
            try:
                is_whole = _is_same_file(self.path_of(state), state)
            except OSError:
                is_whole = False
            if not is_whole and state in self.list_states():  # else a server has replaced it meanwhile
                damaged.append(state)
                self.drop_state(state)
        return damaged

    @_one_at_a_time
    def forget_conversations(self, names: Collection[str]) -> None:
        """Delete the states of conversations, and beginnings that they share; no server keeps them again."""
        if (db := self._open()) is None:
            return
        with suppress(sqlite3.Error):
            db.executemany("INSERT OR IGNORE INTO forgotten VALUES (?, ?)", [(name, _today()) for name in names])
        states = self.list_states()
        gone = [each for each in states if each.conversation in names]
        shared = [each for each in states if any(_is_beginning(each, one) for one in gone)]
        self.forget([*gone, *shared])

    def forget(self, states: Iterable[SavedState]) -> None:
        """Delete states."""
        for state in states:
            self.drop_state(state)

    @_one_at_a_time
    def forget_all(self) -> int:
        """Delete all states, and files that no index lists; return how many files are left."""
        self.forget(self.list_states())
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.execute("DELETE FROM states")  # damaged rows, too
        left = 0
        for path in [*self.folder.glob(f"*{_SUFFIX}"), *self.folder.glob(f"*{_UNREAD}"), *self.folder.glob("*.bad")]:
            try:
                path.unlink(missing_ok=True)
            except OSError:
                left += 1
        return left

    def read_use(self, kind: str | None = None) -> VaultUse:
        """Return how much the vault holds, of a kind or in all, and may hold."""
        states = self.list_states(kind)
        db, written = self._open(), None
        if db is not None:
            with suppress(sqlite3.Error):
                written = db.execute("SELECT bytes FROM written WHERE day = ?", (_today(),)).fetchone()
        return VaultUse(
            len(states),
            sum(each.size for each in states),
            self._limits()[0],
            written[0] if written else 0,
            sum(each.tokens for each in states),
            self.problem,
        )

    @_one_at_a_time
    def make_room(self) -> None:
        """Delete what is too old, what no row lists, and what saves least per byte, until the vault is small enough."""
        if (db := self._open()) is None:
            return
        limit, days = self._limits()
        now_s = time.time()
        states = sorted(self.list_states(), key=lambda each: each.judge_worth(now_s))
        size = sum(each.size for each in states)
        for state in states:
            if size <= limit and now_s - state.used_s <= days * _DAY_S:
                continue
            self.drop_state(state)
            size -= state.size
        with suppress(sqlite3.Error):
            db.execute("DELETE FROM written WHERE day < ?", (_today(),))
            db.execute("DELETE FROM forgotten WHERE day < ?", (_today() - _FORGOTTEN_DAYS,))
        listed = {state.name for state in self.list_states()}
        for path in [*self.folder.glob(f"*{_SUFFIX}"), *self.folder.glob(f"*{_UNREAD}")]:
            with suppress(OSError):  # another server may have deleted it
                if path.stem not in listed and now_s - path.stat().st_mtime > _UNLISTED_S:
                    path.unlink(missing_ok=True)

    def path_of(self, state: SavedState) -> Path:
        """Return the path of a state's file."""
        return self.folder / f"{state.name}{_SUFFIX}"

    def _limits(self) -> tuple[int, float]:
        limit, days = self._read_limits()
        if not limit:
            return 0, days
        try:
            free = shutil.disk_usage(self.folder if self.folder.exists() else self.folder.parent).free
        except OSError:
            return limit, days
        return int(min(limit, _FREE_SHARE * (free + sum(each.size for each in self.list_states())))), days

    def _delete_files(self, states: Iterable[SavedState]) -> None:
        for state in states:
            with suppress(OSError):  # on Windows while it is read: `make_room` deletes it later
                self.path_of(state).unlink(missing_ok=True)

    def _open(self) -> sqlite3.Connection | None:
        index = self._index
        if self._db is not None and not index.exists():  # somebody has deleted the folder
            self.close()
            self._retry_s = 0.0
        if self._db is None and time.monotonic() >= self._retry_s:
            try:
                make_private_folder(self.folder)
                self._db = open_database(index, (_TABLES,), "The index of kept conversations").db
                self._read_at = None
            except (OSError, sqlite3.Error, LauncherError) as error:
                self._note_problem(error)
                self._retry_s = time.monotonic() + _RETRY_S
            else:
                self.problem = ""
                self.make_room()
        return self._db

    def _note_problem(self, error: Exception) -> None:
        why = getattr(error, "strerror", None) or str(error)
        if not self.problem:
            _log.warning("Conversations are not kept on disk: %s", why)
        self.problem = why.rstrip(".")


def _is_same_file(path: Path, state: SavedState) -> bool:
    """Return whether a file is as the state's was when it was saved. Raises OSError."""
    return path.stat().st_size == state.size and digest_file(path) == state.digest


def _continues(state: SavedState, earlier: SavedState) -> bool:
    """Return whether a state is of the same conversation as an earlier one, and has more of it."""
    kind, earlier_kind = (state.purpose, state.opening), (earlier.purpose, earlier.opening)
    return kind == earlier_kind and state.chain.startswith(earlier.chain)


def _is_beginning(state: SavedState, whole: SavedState) -> bool:
    """Return whether a state is of what a conversation has in common with another one: see StateKeeper."""
    return state.purpose != whole.purpose and whole.chain.startswith(state.chain)


def hash_request(texts: Iterable[bytes]) -> tuple[bytes, int]:
    """Return the chain of a request's parts, in the order in which a template writes them, and their bytes.

    What is left after the last whole block is not in the chain.
    """
    chain, rest, count = bytearray(), b"", 0
    hasher = blake2b(digest_size=HASH_BYTES)
    for text in texts:
        count += len(text)
        rest += text
        whole = len(rest) - len(rest) % BLOCK_BYTES
        for begin in range(0, whole, BLOCK_BYTES):
            hasher.update(rest[begin : begin + BLOCK_BYTES])
            chain += hasher.digest()
        rest = rest[whole:]
    return bytes(chain), count


def count_common(one: bytes, other: bytes) -> int:
    """Return how many hashes two chains begin with in common. Each hash includes the ones before, so it is a search."""
    if one[:HASH_BYTES] != other[:HASH_BYTES]:  # as with most
        return 0
    low, high = 0, min(len(one), len(other)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        place = slice((middle - 1) * HASH_BYTES, middle * HASH_BYTES)
        low, high = (middle, high) if one[place] == other[place] else (low, middle - 1)
    return low


_COLUMNS = tuple(each.name for each in fields(SavedState))


def _to_row(state: SavedState) -> list[Any]:
    values = {name: getattr(state, name) for name in _COLUMNS}
    return [*(values | {"checkpoints": compact_json(state.checkpoints)}).values()]


def _from_row(row: Sequence[Any]) -> SavedState | None:
    """Return the state in a row; None if the row is damaged."""
    values: Mapping[str, Any] = dict(zip(_COLUMNS, row, strict=True))
    try:
        checkpoints = json.loads(values["checkpoints"])
        state = from_json(SavedState, {**values, "checkpoints": checkpoints, "goes_back": bool(values["goes_back"])})
    except (ValueError, TypeError):
        return None
    is_sound = state.name.isalnum() and min(state.characters, state.prompt_tokens, state.size) > 0
    return state if is_sound else None


def _today() -> int:
    return int(time.time() // _DAY_S)
