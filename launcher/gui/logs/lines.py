"""Log lines: parsing, filtering and thinning. Qt-free, because it must keep up with floods of lines."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from launcher.engine.server.logs import POLLING_LINE

MOST_LINES = 20_000
"""Lines kept in memory; the files on disk have more."""
_MOST_IN_A_BATCH, _MOST_SERIOUS = 100, 40
"""The most lines of a batch that are shown: the last ones, and errors and warnings before them."""
_LONGEST_LINE = 4_000
"""Characters of a line that are kept."""
_ENGINE_STAMP = re.compile(r"(?<!\S)(\d+\.\d\d\.\d{3}\.\d{3}) ([EWIDT]) +")
_FILE_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T]([\d:]+(?:[,.]\d+)?)Z? ")
_JSON = re.compile(r'"level":"(\w+)"')
_ERROR = re.compile(r"\berror\b|\bfatal\b|\bfailed to\b|out of memory|^exception", re.IGNORECASE)
_WARNING = re.compile(r"\bwarn(?:ing)?\b", re.IGNORECASE)
_LEVELS = {"error": "E", "warn": "W", "info": "I", "debug": "D", "trace": "T"}


class ParsedLine(NamedTuple):
    """A log line: local time for display, level (E, W, I, D or T), and the original text."""

    time: str
    level: str
    text: str

    @property
    def message(self) -> str:
        """The message without its times and level."""
        file_stamp = _FILE_STAMP.match(self.text)
        start = file_stamp.end() if file_stamp else 0
        engine_stamp = _ENGINE_STAMP.match(self.text, start)
        return self.text[engine_stamp.end() if engine_stamp else start :]


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Filter for lines: least level ("" all, "W", "E"), text or expression, and whether health checks are hidden."""

    level: str = ""
    text: str = ""
    regex: bool = False
    hides_polling: bool = True

    def make_predicate(self) -> Callable[[ParsedLine], bool]:
        """Return a function that decides whether a line is shown. Raises re.error for an invalid expression."""
        levels = {"W": frozenset("EW"), "E": frozenset("E")}.get(self.level)
        needle = self.text.casefold()
        search = re.compile(self.text, re.IGNORECASE).search if self.regex and self.text else None

        def is_shown(line: ParsedLine) -> bool:
            if levels is not None and line.level not in levels:
                return False
            if search is not None:
                if search(line.text) is None:
                    return False
            elif needle and needle not in line.text.casefold():
                return False
            return not (self.hides_polling and POLLING_LINE.search(line.text))

        return is_shown


def format_timestamp(time_s: float) -> str:
    """Return a time (seconds since the epoch) as local HH:MM:SS with milliseconds."""
    return f"{time.strftime('%H:%M:%S', time.localtime(time_s))}.{int(1_000 * (time_s % 1)):03}"


def parse_log_line(text: str, arrival_time: str = "") -> ParsedLine:
    """Parse a line. `arrival_time` is used if the line has no time of its own."""
    text = text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 1]}…"
    file_stamp = _FILE_STAMP.match(text)
    line_time = file_stamp[2][:12].replace(",", ".") if file_stamp else arrival_time
    if engine_stamp := _ENGINE_STAMP.search(text):
        return ParsedLine(line_time or engine_stamp[1], engine_stamp[2], text)
    if text.startswith("{") and (level := _JSON.search(text)):
        return ParsedLine(line_time, _LEVELS.get(level[1].lower(), "I"), text)
    if _ERROR.search(text):
        return ParsedLine(line_time, "E", text)
    return ParsedLine(line_time, "W" if _WARNING.search(text) else "I", text)


def thin_out(texts: Sequence[str]) -> tuple[list[str], int]:
    """Return the lines of a batch to show, and how many are left out.

    A large batch is reduced to its last lines and some errors and warnings before them. With 30 batches a second,
    nobody could read more; the log file has all lines.
    """
    excess = len(texts) - _MOST_IN_A_BATCH
    if excess <= 0:
        return list(texts), 0
    serious = [text for text in texts[:excess] if " E " in text or " W " in text][:_MOST_SERIOUS]
    return [*serious, *texts[excess:]], excess - len(serious)
