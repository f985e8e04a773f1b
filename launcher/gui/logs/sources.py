"""Sources of log lines: this window's server, servers of other programs, files. Runs on the core's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import BadOption, LauncherError, ServerNotFound
from launcher.engine.server.logs import list_log_files
from launcher.gui.late import fix_actions, last_start, log_diagnosis, log_reading, registry, running_servers
from launcher.gui.logs.lines import MOST_LINES, ParsedLine, format_timestamp, parse_log_line

if TYPE_CHECKING:
    from launcher.app.serving.serving_session import ServingSession
    from launcher.base.action import Action
    from launcher.engine.serve_options import ServeOptions
    from launcher.engine.server.last_start import RepeatableStart

_EARLIER_LINES = 5_000
"""Lines that a server has written before and that are read when its log is opened."""
_BATCH_S = 0.1
"""Least time between two reports of new lines."""


class SourceKind(Enum):
    """Kind of a source."""

    OURS = auto()
    SERVER = auto()
    FILE = auto()


@dataclass(frozen=True, slots=True)
class LogSource:
    """A source to choose from.

    `where` is a server's address or a file's path; `modified_s` is in seconds since the epoch.
    """

    kind: SourceKind
    where: str = ""
    bytes: int = 0
    modified_s: float = 0.0

    def is_same_log(self, other: LogSource) -> bool:
        """Return whether it is the same log, which may have grown since."""
        return (self.kind, self.where) == (other.kind, other.where)


@dataclass(frozen=True, slots=True)
class FailureCause:
    """The cause of a server's failure: title, text, hint, the log line that shows it, and suggested actions.

    `start` is the failed start that an action repeats; None for the server of this window. `foreign`: the log is not of
    this computer's last start, so its actions cannot be applied.
    """

    title: str
    text: str
    hint: str
    line: str
    actions: tuple[Action, ...]
    start: RepeatableStart | None = None
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """The last lines of a file and its diagnosis, None if the log shows no known cause."""

    lines: list[ParsedLine]
    cause: FailureCause | None


OWN_SERVER = LogSource(SourceKind.OURS)


async def find_sources(own_url: str | None) -> tuple[LogSource, ...]:
    """Return the servers of this user's other programs, then the log files, newest first."""
    entries = await asyncio.to_thread(registry.list_entries)
    files = await asyncio.to_thread(list_log_files)
    servers = [LogSource(SourceKind.SERVER, each.url) for each in entries if each.url != own_url]
    return (*servers, *(LogSource(SourceKind.FILE, str(each.path), each.bytes, each.modified_s) for each in files))


async def read_earlier_lines(session: ServingSession) -> list[ParsedLine]:
    """Return the lines that this window's server wrote before the page was built."""
    try:
        log = session.supervisor.log
    except ServerNotFound:
        return []
    return [
        parse_log_line(line.text, format_timestamp(line.time_s))
        for line in log.lines_since(log.line_count - _EARLIER_LINES)
    ]


async def read_file(path: Path) -> OpenedLog:
    """Read and diagnose a llama-server log in any of its formats. Raises BadOption if it cannot be read."""
    return await asyncio.to_thread(_read_and_diagnose, path)


def _read_and_diagnose(path: Path) -> OpenedLog:
    try:
        text = log_reading.read_log(path)
    except OSError as error:
        hint = "Choose a file that you may read."
        raise BadOption(f"{path} cannot be read: {error.strerror or error}.", hint, path=str(path)) from None
    lines = [parse_log_line(line) for line in text.splitlines()[-MOST_LINES:]]
    last = last_start.load_last_start()
    own_start = last if last is not None and path.absolute() == last.log else None
    diagnosis = log_diagnosis.diagnose_log(text, exit_code=own_start.exit_code if own_start else None)
    if diagnosis is None:
        return OpenedLog(lines, None)
    cause = FailureCause(
        diagnosis.title, diagnosis.cause, diagnosis.hint, diagnosis.line, diagnosis.actions, foreign=True
    )
    if own_start is not None:
        actions = own_start.actions if own_start.diagnosis == diagnosis.code else diagnosis.actions
        cause = replace(cause, actions=actions, start=own_start.start, foreign=False)
    return OpenedLog(lines, cause)


def make_cause(error: LauncherError) -> FailureCause:
    """Return the cause of an error of this window's server."""
    return FailureCause(error.title, "", error.hint, str(error.facts.get("line", "")), error.actions)


async def follow_server(url: str, report: Callable[[list[ParsedLine]], object]) -> None:
    """Report the lines of another program's server as they come, until it ends."""
    lines: list[ParsedLine] = []
    reported_s = 0.0
    clock = asyncio.get_running_loop().time
    stream = running_servers.follow_log(url, lines=_EARLIER_LINES, follow=True)
    next_line = asyncio.ensure_future(anext(stream, None))
    try:
        while True:
            done, _ = await asyncio.wait((next_line,), timeout=_BATCH_S if lines else None)
            if done:
                text = next_line.result()
                if text is None:
                    break
                lines.append(parse_log_line(text))
                next_line = asyncio.ensure_future(anext(stream, None))
            if lines and (not done or clock() - reported_s >= _BATCH_S):
                report(lines)
                lines, reported_s = [], clock()
    finally:
        next_line.cancel()
        if lines:
            report(lines)


async def apply_fix(action: Action, start: RepeatableStart) -> ServeOptions:
    """Return the settings of a failed start, changed by an action. Raises ActionImpossible."""
    return fix_actions.apply_action(action, start.options, context=start.context)
