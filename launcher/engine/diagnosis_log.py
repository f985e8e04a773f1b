"""An engine's log as the diagnosis reads it: its last run, lines without their prefixes, and where faults are named."""

import errno
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from launcher.engine.diagnosis_data import Fault, Pattern, faults

HEAD_BYTES, TAIL_BYTES = 2 * 2**20, 14 * 2**20
"""Of a longer log only its beginning and its end are read: a run says why it failed when it loads or when it ends."""

STARTED = "mtp-launcher starts an engine:"
"""Begins the line that the launcher writes before each run."""
_BEGINS = (": initializing ...\n", ': initializing ...\\n"')
_ENDED = (
    "exiting due to",
    "main loop exited",
    "cleaning up before exit",
    "Failed to init server",
    "to show complete usage",
    "EOF on stdin detected",
)
_ALIVE = (
    "llama_server: model loaded",
    " init: model loaded",
    "main: model loaded",
    "main] model loaded",
    "listening on http",
)
_TRIAL = "load_model: loading model"
_TRIAL_FAILED = "encountered an error while trying to fit params"
_GOT_OVER = "retrying without pipeline parallelism"
_PREAMBLE_LINES = 60
_MOST_HITS = 60
_WINDOW_LINES = 4
_CUT = 20_000
"""Longer than what the launcher keeps of a line."""
_RETRY = 1_500
_LOOKED_AT = 65_536
_MOST_NOISE = 0.2
"""The part of characters that belong to no text beyond which a file is none. In random bytes it is over a half."""
_STAMP = re.compile(r"\b(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) ([EWIDT]) +")
_WRITTEN = re.compile(r"^\d{4}-\d\d-\d\d[ T][\d:]+(?:[,.]\d+)?Z? ")
_JSON = re.compile(r'\{"type":"log".*')
_JSON_TIME = re.compile(r'"time":(\d+)')
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_LEVELS = {"error": "E", "warn": "W", "info": "I", "debug": "D", "trace": "T"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line: what it says without time and level, and its level as the engine's letter where it tells it."""

    text: str
    level: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that names a fault: where it begins, the fault, and what its pattern found."""

    offset: int
    fault: Fault
    line: str
    facts: dict[str, str]


def read_log(source: Path | BinaryIO) -> str:
    """Return a log's text without colours; of a long one its beginning and its end, of a long line its beginning.

    Raises OSError when it cannot be read, or is a pipe or a device, which may have no end. What is open already, as
    standard input is, may be a pipe, and is read to its end.
    """
    if isinstance(source, Path):
        if source.exists() and not source.is_file() and not source.is_dir():
            raise OSError(errno.EINVAL, "it is not an ordinary file, so it may have no end")
        with source.open("rb") as file:
            return read_log(file)
    if source.seekable():
        head = source.read(HEAD_BYTES)
        size = source.seek(0, 2)
        source.seek(max(len(head), size - TAIL_BYTES))
        tail = source.read(TAIL_BYTES)
    else:
        head, tail = b"", b""
        while len(head) < HEAD_BYTES and (more := source.read(HEAD_BYTES - len(head))):
            head += more
        while more := source.read(2**20):
            tail = (tail + more)[-TAIL_BYTES:] if len(tail) > TAIL_BYTES else tail + more
    data = head + tail
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"  # as PowerShell's > writes it
    text = data.decode(encoding, "replace").replace("\r\n", "\n").lstrip("\ufeff")
    text = "\n".join([line[:_CUT] for line in text.split("\n")])
    return _ESCAPES.sub("", text) if "\x1b[" in text else text


def is_text(text: str) -> bool:
    """Whether what was read is a text, and not an archive, say, or zeroes."""
    seen = text[:_LOOKED_AT]
    return sum(char == "\ufffd" or (char < " " and char not in "\t\n\r\x1b") for char in seen) <= _MOST_NOISE * len(
        seen
    )


def line_of(raw: str) -> Line:
    """Take a line apart: plain ones of any version, those that a log book has stamped, and JSON. Long ones are cut."""
    raw = raw[:_CUT]
    if found := _JSON.search(raw):
        try:
            entry = json.loads(found[0])
            return Line(str(entry["msg"]).strip("\n"), _LEVELS.get(str(entry.get("level"))))
        except (ValueError, KeyError, TypeError):
            pass
    if stamp := _STAMP.search(raw):
        return Line(raw[stamp.end() :], stamp[5])
    return Line(_WRITTEN.sub("", raw))


def last_run(text: str) -> str:
    """Return the part of a log that the last run of the engine has written."""
    text = text[text.rfind(STARTED) + 1 :]
    begins = max(map(text.rfind, _BEGINS))
    begin = _preamble(text, text.rfind("\n", 0, begins) + 1) if begins >= 0 else 0
    # What shows before a run tells of itself is a run of its own when another one has told of itself before it.
    early = [hit.offset for hit in hits(text[begin:], [fault for fault in faults() if fault.data.at_start])]
    if early and any(mark in text[begin : begin + early[-1]] for mark in _BEGINS):
        return text[_preamble(text, begin + early[-1]) :]
    return text[begin:]


def alive_at(text: str) -> int:
    """Return where a run says last that its model is loaded; -1 when it does not."""
    return max(map(text.rfind, _ALIVE))


def trial(text: str) -> range:
    """Return the part of a run in which the engine tried out what fits, and failed; empty when there is none.

    It loads the model all the same, so what goes wrong there ends it only when it goes wrong again.
    """
    end = text.rfind(_TRIAL_FAILED)
    begin = text.rfind(_TRIAL, 0, end) if end >= 0 else -1
    return range(begin, end) if begin >= 0 else range(0)


def got_over(text: str, offset: int) -> bool:
    """Whether the engine says shortly after `offset` that it tries again in a smaller way."""
    return _GOT_OVER in text[offset : offset + _RETRY]


def _time(line: str) -> int | None:
    if stamp := _STAMP.search(line):
        minutes, *rest = (int(part) for part in stamp.groups()[:4])
        seconds, millis, micros = rest
        return ((minutes * 60 + seconds) * 1_000 + millis) * 1_000 + micros
    found = _JSON_TIME.search(line)
    return int(found[1]) if found else None


def _preamble(text: str, begin: int) -> int:
    """Return where the lines begin that a run wrote before `begin`, as the backends do that it loads."""
    own = _time(text[begin : begin + _CUT].split("\n")[0])
    for _ in range(_PREAMBLE_LINES):
        before = text.rfind("\n", 0, begin - 1) + 1 if begin > 0 else 0
        line = text[before : min(begin - 1, before + _CUT)]
        time = _time(line)
        if begin == 0 or any(mark in line for mark in _ENDED) or (time is not None and (own is None or time > own)):
            break
        begin = before
    return begin


def hits(text: str, known: Sequence[Fault] | None = None) -> list[Hit]:
    """Return the lines that name one of the `known` faults, in their order; of each pattern the first ones."""
    places: dict[str, list[int]] = {}
    found: dict[tuple[int, int], Hit] = {}
    for fault in faults() if known is None else known:
        for pattern in fault.patterns:
            if pattern.needle not in places:
                places[pattern.needle] = list(_line_starts(text, pattern.needle))
            for start in places[pattern.needle]:
                key = (start, fault.order)
                if key not in found and (hit := _hit(text, start, fault, pattern)):
                    found[key] = hit
    return [found[key] for key in sorted(found)]


def _line_starts(text: str, needle: str) -> Iterator[int]:
    at = text.find(needle)
    for _ in range(_MOST_HITS):
        if at < 0:
            return
        yield text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        at = text.find(needle, end) if end >= 0 else -1


def _hit(text: str, start: int, fault: Fault, pattern: Pattern) -> Hit | None:
    first, window = window_at(text, start)
    found = None if first.level in ("D", "T") else pattern.regex.search(window)
    if found is None or found.start() > len(first.text):
        return None
    facts = {name: value for name, value in found.groupdict().items() if value}
    return Hit(start, fault, first.text.strip(), facts)


def window_at(text: str, start: int) -> tuple[Line, str]:
    """Return the line at `start`, and it with those below it, all without prefixes."""
    lines = []
    for _ in range(_WINDOW_LINES):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        lines.append(line_of(text[start : min(end, start + _CUT)]))
        start = end + 1
        if start >= len(text):
            break
    return lines[0], "\n".join(line.text for line in lines)


def around(text: str, offset: int, before: int, after: int) -> tuple[str, str]:
    """Return the lines before and from `offset` on without prefixes, so many characters of each."""
    begin = text.rfind("\n", 0, max(0, offset - before)) + 1
    sides = text[begin:offset], text[offset : offset + after]
    above, below = ("\n".join(line_of(raw).text for raw in side.split("\n")) for side in sides)
    return above, below
