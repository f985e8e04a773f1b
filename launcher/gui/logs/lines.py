"""The lines of a log as the page keeps and filters them. Nothing of Qt here: a flood goes through it."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from launcher.engine.logs import POLLING

MOST_LINES = 20_000
"""Kept in memory; the files on the disk have more."""
_MOST_IN_A_BATCH, _MOST_SERIOUS = 100, 40
_LONGEST = 4_000
_STAMP = re.compile(r"(?<!\S)(\d+\.\d\d\.\d{3}\.\d{3}) ([EWIDT]) +")
_WRITTEN = re.compile(r"(\d{4}-\d\d-\d\d)[ T]([\d:]+(?:[,.]\d+)?)Z? ")
_JSON = re.compile(r'"level":"(\w+)"')
_BAD = re.compile(r"\berror\b|\bfatal\b|\bfailed to\b|out of memory|^exception", re.IGNORECASE)
_WARNING = re.compile(r"\bwarn(?:ing)?\b", re.IGNORECASE)
_LEVELS = {"error": "E", "warn": "W", "info": "I", "debug": "D", "trace": "T"}


class Line(NamedTuple):
    """One line: when it came as people read it, its level (E, W, I, D or T), and its text as it was written."""

    time: str
    level: str
    text: str

    @property
    def words(self) -> str:
        """What it says, without its times and its level."""
        written = _WRITTEN.match(self.text)
        begin = written.end() if written else 0
        found = _STAMP.match(self.text, begin)
        return self.text[found.end() if found else begin :]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines are shown: from which level on ("" all, "W", "E"), with which text, and whether polling is hidden."""

    level: str = ""
    text: str = ""
    regex: bool = False
    hides_polling: bool = True

    def test(self) -> Callable[[Line], bool]:
        """Return what says of a line whether it is shown. Raises re.error for a text that is no expression."""
        levels = {"W": frozenset("EW"), "E": frozenset("E")}.get(self.level)
        needle = self.text.casefold()
        search = re.compile(self.text, re.IGNORECASE).search if self.regex and self.text else None
        hides = self.hides_polling

        def shown(line: Line) -> bool:
            if levels is not None and line.level not in levels:
                return False
            if search is not None:
                if search(line.text) is None:
                    return False
            elif needle and needle not in line.text.casefold():
                return False
            return not (hides and POLLING.search(line.text))

        return shown


def stamp_of(time_s: float) -> str:
    """Return a time (seconds since the epoch) as the clock of this place shows it, with milliseconds."""
    return f"{time.strftime('%H:%M:%S', time.localtime(time_s))}.{int(1_000 * (time_s % 1)):03}"


def taken_apart(text: str, came: str = "") -> Line:
    """Return a line; `came` is when, where the line itself does not tell."""
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    written = _WRITTEN.match(text)
    when = written[2][:12].replace(",", ".") if written else came
    if stamp := _STAMP.search(text):
        return Line(when or stamp[1], stamp[2], text)
    if text.startswith("{") and (level := _JSON.search(text)):
        return Line(when, _LEVELS.get(level[1].lower(), "I"), text)
    return Line(when, "E" if _BAD.search(text) else "W" if _WARNING.search(text) else "I", text)


def thinned(texts: Sequence[str]) -> tuple[list[str], int]:
    """Return what is shown of a batch, and how many lines are left out: of a flood the last, and what seems serious.

    The page comes by 30 batches a second; nobody reads more, and the log file has all.
    """
    over = len(texts) - _MOST_IN_A_BATCH
    if over <= 0:
        return list(texts), 0
    serious = [text for text in texts[:over] if " E " in text or " W " in text][:_MOST_SERIOUS]
    return [*serious, *texts[over:]], over - len(serious)
