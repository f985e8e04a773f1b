"""Log parsing for the diagnosis: extracts the last run, strips line prefixes, and finds lines that match a fault."""

import errno
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from launcher.engine.diagnosis.signatures import FaultSignature, LinePattern, fault_signatures

HEAD_BYTES, TAIL_BYTES = 2 * 2**20, 14 * 2**20
"""Parts of a long log that are read: its beginning and its end, because failures show while loading or at the end."""

STARTED = "mtp-launcher starts an engine:"
"""Prefix of the line that the launcher writes to the log before each run."""
_BEGIN_TEXTS = (": initializing ...\n", ': initializing ...\\n"')
_ENDED_TEXTS = (
    "exiting due to",
    "main loop exited",
    "cleaning up before exit",
    "Failed to init server",
    "to show complete usage",
    "EOF on stdin detected",
)
_LOADED_TEXTS = (
    "llama_server: model loaded",
    " init: model loaded",
    "main: model loaded",
    "main] model loaded",
    "listening on http",
)
_TEST_LOAD = "load_model: loading model"
_TEST_LOAD_FAILED = "encountered an error while trying to fit params"
_RETRIED = "retrying without pipeline parallelism"
_PREAMBLE_LINES = 60
_MOST_MATCHES = 60
_LINES_OF_MATCH = 4
"""A pattern must match in a line, but its groups may lie in the next three."""
_MOST_LINE_CHARACTERS = 20_000
"""Maximum characters of a line; more than the 16,384 that the launcher itself writes."""
_RETRY_CHARACTERS = 1_500
_SAMPLE_CHARACTERS = 65_536
_MOST_NOISE = 0.2
"""Largest share of control or undecodable characters in a text file; random bytes have over one half."""
_STAMP = re.compile(r"\b(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) ([EWIDT]) +")
_BARE_LEVEL = re.compile(r"([EWIDT]) (?=[a-z])|(?=warning: )", re.ASCII)
"""The level of a line without a time (--no-log-timestamps)."""
_LAUNCHER_STAMP = re.compile(r"^\d{4}-\d\d-\d\d[ T][\d:]+(?:[,.]\d+)?Z? ")
_JSON = re.compile(r'\{"type":"log".*')
_JSON_TIME = re.compile(r'"time":(\d+)')
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_LEVELS = {"error": "E", "warn": "W", "info": "I", "debug": "D", "trace": "T"}


@dataclass(frozen=True, slots=True)
class LevelledLine:
    """A log line: its text without time and level, and its level letter (E, W, I, D or T), None if unknown."""

    text: str
    level: str | None = None


@dataclass(frozen=True, slots=True)
class FaultMatch:
    """A line that matches a fault: its offset in the text, the fault, the line, and the pattern's named groups."""

    offset: int
    fault: FaultSignature
    line: str
    facts: dict[str, str]


def read_log(source: Path | BinaryIO) -> str:
    """Return a log's text without colours. Only the beginning and end of a long log are read, and long lines are cut.

    Raises OSError if it cannot be read, or is a pipe or device, which may have no end. A stream that is already open,
    such as standard input, may be a pipe and is read to its end.
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
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"  # PowerShell's > writes UTF-16
    text = data.decode(encoding, "replace").replace("\r\n", "\n").lstrip("\ufeff")
    text = "\n".join([line[:_MOST_LINE_CHARACTERS] for line in text.split("\n")])
    return _ESCAPES.sub("", text) if "\x1b[" in text else text


def is_text(text: str) -> bool:
    """Return whether the content is text, not binary data such as an archive or zeroes."""
    sample = text[:_SAMPLE_CHARACTERS]
    noise = sum(char == "\ufffd" or (char < " " and char not in "\t\n\r\x1b") for char in sample)
    return noise <= _MOST_NOISE * len(sample)


def parse_line(raw: str) -> LevelledLine:
    """Parse a log line: plain lines of any llama.cpp version, lines with the launcher's time stamp, and JSON lines."""
    raw = raw[:_MOST_LINE_CHARACTERS]
    if found := _JSON.search(raw):
        try:
            entry = json.loads(found[0])
            return LevelledLine(str(entry["msg"]).strip("\n"), _LEVELS.get(str(entry.get("level"))))
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
    if stamp := _STAMP.search(raw):
        return LevelledLine(raw[stamp.end() :], stamp[5])
    text = _LAUNCHER_STAMP.sub("", raw)
    bare = _BARE_LEVEL.match(text)
    return LevelledLine(text[bare.end() :], bare[1] or "W") if bare else LevelledLine(text)


def extract_last_run(text: str) -> str:
    """Return the part of a log that belongs to the engine's last run."""
    text = text[text.rfind(STARTED) + 1 :]
    initializing = max(map(text.rfind, _BEGIN_TEXTS))
    begin = _preamble_start(text, text.rfind("\n", 0, initializing) + 1) if initializing >= 0 else 0
    # Some faults stop the engine before it prints its "initializing" line. If such a fault comes after the line of an
    # earlier run, it belongs to a later run that begins there.
    faults_at_start = [fault for fault in fault_signatures() if fault.data.at_start]
    offsets = [begin + match.offset for match in find_matches(text[begin:], faults_at_start)]
    if offsets and any(line in text[begin : offsets[-1]] for line in _BEGIN_TEXTS):
        return text[_preamble_start(text, offsets[-1]) :]
    return text[begin:]


def last_loaded_offset(text: str) -> int:
    """Return the offset of the last line that reports a loaded model; -1 if there is none."""
    return max(map(text.rfind, _LOADED_TEXTS))


def find_failed_test_load(text: str) -> range:
    """Return the offsets of the failed test load by which the engine finds out what fits; empty if there is none.

    The engine loads the model afterwards anyway, so a fault in the test load is fatal only if it occurs again.
    """
    end = text.rfind(_TEST_LOAD_FAILED)
    begin = text.rfind(_TEST_LOAD, 0, end) if end >= 0 else -1
    return range(begin, end) if begin >= 0 else range(0)


def is_retried(text: str, offset: int) -> bool:
    """Return whether the engine reports shortly after `offset` that it retries with less memory."""
    return _RETRIED in text[offset : offset + _RETRY_CHARACTERS]


def _parse_time(line: str) -> int | None:
    """Return the time in a line's prefix, to compare lines of one run; None if it has none."""
    if stamp := _STAMP.search(line):
        minutes, seconds, millis, micros = map(int, stamp.groups()[:4])
        return ((minutes * 60 + seconds) * 1_000 + millis) * 1_000 + micros
    found = _JSON_TIME.search(line)
    return int(found[1]) if found else None


def _preamble_start(text: str, begin: int) -> int:
    """Return the offset of the first line of a run whose "initializing" line is at `begin`.

    Backends print lines before it while they are loaded.
    """
    run_time = _parse_time(text[begin : begin + _MOST_LINE_CHARACTERS].split("\n")[0])
    for _ in range(_PREAMBLE_LINES):
        if begin == 0:
            break
        previous = text.rfind("\n", 0, begin - 1) + 1
        line = text[previous : min(begin - 1, previous + _MOST_LINE_CHARACTERS)]
        line_time = _parse_time(line)
        later = line_time is not None and (run_time is None or line_time > run_time)
        if later or any(ended in line for ended in _ENDED_TEXTS):  # the line belongs to the run before
            break
        begin = previous
    return begin


def find_matches(text: str, known: Sequence[FaultSignature] | None = None) -> list[FaultMatch]:
    """Return the lines that match one of the `known` faults (by default all), in order.

    For speed, at most `_MOST_MATCHES` lines are tried for each needle: see LinePattern.
    """
    starts: dict[str, list[int]] = {}
    found: dict[tuple[int, int], FaultMatch] = {}
    for fault in fault_signatures() if known is None else known:
        for pattern in fault.patterns:
            if pattern.needle not in starts:
                starts[pattern.needle] = list(_line_starts(text, pattern.needle))
            for start in starts[pattern.needle]:
                key = (start, fault.order)
                if key not in found and (match := _match_line(text, start, fault, pattern)):
                    found[key] = match
    return [found[key] for key in sorted(found)]


def _line_starts(text: str, needle: str) -> Iterator[int]:
    position = text.find(needle)
    for _ in range(_MOST_MATCHES):
        if position < 0:
            return
        yield text.rfind("\n", 0, position) + 1
        end = text.find("\n", position)
        position = text.find(needle, end) if end >= 0 else -1


def _match_line(text: str, start: int, fault: FaultSignature, pattern: LinePattern) -> FaultMatch | None:
    first, lines = parse_lines_at(text, start)
    unfit = ("D", "T", "I", "W") if fault.data.general and fault.data.severity == "fatal" else ("D", "T")
    found = None if first.level in unfit else pattern.regex.search(lines)
    if found is None or found.start() > len(first.text):
        return None
    facts = {name: value for name, value in found.groupdict().items() if value}
    return FaultMatch(start, fault, first.text.strip(), facts)


def parse_lines_at(text: str, start: int) -> tuple[LevelledLine, str]:
    """Return the line at `start`, and its text together with that of the next three lines, without prefixes."""
    lines = []
    for _ in range(_LINES_OF_MATCH):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        lines.append(parse_line(text[start : min(end, start + _MOST_LINE_CHARACTERS)]))
        start = end + 1
        if start >= len(text):
            break
    return lines[0], "\n".join(line.text for line in lines)


def text_around(text: str, offset: int, before: int, after: int) -> tuple[str, str]:
    """Return `before` characters of text before `offset` and `after` characters from it on, without line prefixes."""
    begin = text.rfind("\n", 0, max(0, offset - before)) + 1
    sides = text[begin:offset], text[offset : offset + after]
    above, below = ("\n".join(parse_line(raw).text for raw in side.split("\n")) for side in sides)
    return above, below
