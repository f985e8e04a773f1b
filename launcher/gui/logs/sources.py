"""Where lines come from: this window's server, those of other programs, files. Runs on the core's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import BadOption, LauncherError, ServerNotFound
from launcher.gui.logs.lines import MOST_LINES, Line, stamp_of, taken_apart

if TYPE_CHECKING:
    from launcher.app import Session
    from launcher.base.action import Action
    from launcher.engine.started import Started

_CATCH_UP = 5_000
_BATCH_S = 0.1


class Kind(Enum):
    """Whose lines."""

    OURS = auto()
    SERVER = auto()
    FILE = auto()


@dataclass(frozen=True, slots=True)
class Source:
    """One to choose. `where` is a server's address or a file's path; `modified_s` counts from the epoch."""

    kind: Kind
    where: str = ""
    bytes: int = 0
    modified_s: float = 0.0

    def same_as(self, other: Source) -> bool:
        """Whether it is the same log, which may have grown since."""
        return (self.kind, self.where) == (other.kind, other.where)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something failed, in words, what can be done, and what the log's line says.

    `start` is what failed, where an action can be done to it by starting that again; None: to what this window runs.
    """

    title: str
    text: str
    hint: str
    line: str
    actions: tuple[Action, ...]
    start: Started | None = None
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """A file that was read: its last lines and what is wrong, None when the log names no cause that is known."""

    lines: list[Line]
    cause: Cause | None


OURS = Source(Kind.OURS)


async def find_sources(own_url: str | None) -> tuple[Source, ...]:
    """Return the servers of other programs of this user, and the files that lie here, newest first."""
    from launcher.engine import registry
    from launcher.engine.log_files import log_files

    entries = await asyncio.to_thread(registry.running)
    files = await asyncio.to_thread(log_files)
    servers = [Source(Kind.SERVER, each.url) for each in entries if each.url != own_url]
    return (*servers, *(Source(Kind.FILE, str(each.path), each.bytes, each.modified_s) for each in files))


async def caught_up(session: Session) -> list[Line]:
    """Return what this window's server has written before the page was there."""
    try:
        log = session.supervisor.log
    except ServerNotFound:
        return []
    return [taken_apart(line.text, stamp_of(line.time_s)) for line in log.since(log.added - _CATCH_UP)]


async def read_file(path: Path) -> Read:
    """Read a log of llama-server, however it was written, and diagnose it. Raises BadOption when it cannot be read."""
    return await asyncio.to_thread(_read, path)


def _read(path: Path) -> Read:
    from launcher.engine.diagnosis import diagnose
    from launcher.engine.diagnosis_log import read_log
    from launcher.engine.started import last_start

    try:
        text = read_log(path)
    except OSError as error:
        hint = "Choose a file that you may read."
        raise BadOption(f"{path} cannot be read: {error.strerror or error}.", hint, path=str(path)) from None
    lines = [taken_apart(line) for line in text.splitlines()[-MOST_LINES:]]
    last = last_start()
    own = last if last is not None and path.absolute() == last.log else None
    found = diagnose(text, exit_code=own.exit_code if own else None)
    if found is None:
        return Read(lines, None)
    same = own is not None and own.diagnosis == found.code
    actions = own.actions if own is not None and same else found.actions
    start = own.start if own is not None else None
    return Read(lines, Cause(found.title, found.cause, found.hint, found.line, actions, start, foreign=own is None))


def cause_of(error: LauncherError) -> Cause:
    """Return what an error of this window's server says."""
    return Cause(error.title, "", error.hint, str(error.facts.get("line", "")), error.actions)


async def follow_server(url: str, tell: Callable[[list[Line]], object]) -> None:
    """Tell the lines of another program's server as they come, until it ends."""
    from launcher import app

    lines: list[Line] = []
    told_s = 0.0
    clock = asyncio.get_running_loop().time
    stream = app.logs(url, lines=_CATCH_UP, follow=True)
    following = asyncio.ensure_future(anext(stream, None))
    try:
        while True:
            done, _ = await asyncio.wait((following,), timeout=_BATCH_S if lines else None)
            if done:
                text = following.result()
                if text is None:
                    break
                lines.append(taken_apart(text))
                following = asyncio.ensure_future(anext(stream, None))
            if lines and (not done or clock() - told_s >= _BATCH_S):
                tell(lines)
                lines, told_s = [], clock()
    finally:
        following.cancel()
        if lines:
            tell(lines)


async def fixed_options(action: Action, start: Started) -> object:
    """Return the options of a start that failed, changed as an action says. Raises ActionImpossible."""
    from launcher.engine.action import apply

    return apply(action, start.options, context=start.context)
