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
_LONGEST_LINE = 4_000
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
        written = _FILE_STAMP.match(self.text)
        begin = written.end() if written else 0
        found = _ENGINE_STAMP.match(self.text, begin)
        return self.text[found.end() if found else begin :]


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Filter for lines: least level ("" all, "W", "E"), text, and whether polling requests are hidden."""

    level: str = ""
    text: str = ""
    regex: bool = False
    hides_polling: bool = True

    def make_predicate(self) -> Callable[[ParsedLine], bool]:
        """Return a function that decides whether a line is shown. Raises re.error for an invalid expression."""
        levels = {"W": frozenset("EW"), "E": frozenset("E")}.get(self.level)
        needle = self.text.casefold()
        search = re.compile(self.text, re.IGNORECASE).search if self.regex and self.text else None
        hides = self.hides_polling

        def is_shown(line: ParsedLine) -> bool:
            if levels is not None and line.level not in levels:
                return False
            if search is not None:
                if search(line.text) is None:
                    return False
            elif needle and needle not in line.text.casefold():
                return False
            return not (hides and POLLING_LINE.search(line.text))

        return is_shown


def format_timestamp(time_s: float) -> str:
    """Return a time (seconds since the epoch) as local HH:MM:SS with milliseconds."""
    return f"{time.strftime('%H:%M:%S', time.localtime(time_s))}.{int(1_000 * (time_s % 1)):03}"


def parse_log_line(text: str, came: str = "") -> ParsedLine:
    """Parse a line. `came` is the arrival time, used if the line has none."""
    text = text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 1]}…"
    written = _FILE_STAMP.match(text)
    when = written[2][:12].replace(",", ".") if written else came
    if stamp := _ENGINE_STAMP.search(text):
        return ParsedLine(when or stamp[1], stamp[2], text)
    if text.startswith("{") and (level := _JSON.search(text)):
        return ParsedLine(when, _LEVELS.get(level[1].lower(), "I"), text)
    return ParsedLine(when, "E" if _ERROR.search(text) else "W" if _WARNING.search(text) else "I", text)


def thin_out(texts: Sequence[str]) -> tuple[list[str], int]:
    """Return the lines of a batch to show, and how many were left out: of a flood the last ones and the serious ones.

    The page gets 30 batches a second; nobody reads more, and the log file has all lines.
    """
    over = len(texts) - _MOST_IN_A_BATCH
    if over <= 0:
        return list(texts), 0
    serious = [text for text in texts[:over] if " E " in text or " W " in text][:_MOST_SERIOUS]
    return [*serious, *texts[over:]], over - len(serious)
