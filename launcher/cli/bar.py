"""How far a long work is, on stderr: a bar that moves in place on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import shutil
import sys
import time

from launcher.base.text import one_line
from launcher.cli.layout import filled
from launcher.cli.terminal import rewrite

_LINE_S, _FRAME_S = 5.0, 0.2
_LEAST_BAR, _MOST_BAR = 10, 40
_LONGEST, _LONGEST_NOTE = 200, 2_000
_GAP = "  "
_USUAL_TAIL = len("100 %  12.34 GB of 12.34 GB  123.4 MB/s  12 min left")
"""What the figures take, so that the bar keeps its length while they change."""


class Bar:
    """One bar. `close` leaves the cursor on an empty line."""

    def __init__(self) -> None:
        self._moves = sys.stderr.isatty()
        self._shown_s: float | None = None if self._moves else time.monotonic()
        self._written = 0
        self._note = self._told_above = ""

    def show(
        self,
        what: str,
        done: int,
        total: int | None,
        *,
        speed: float | None = None,
        left_s: float | None = None,
        note: str = "",
    ) -> None:
        """Show bytes done of a total, bytes per second, seconds left. Most calls come too early and show nothing.

        A note is shown at once where there was none, and on a terminal where there was another.
        """
        now_s = time.monotonic()
        if note and (note != self._note if self._moves else not self._note):
            self._shown_s = None
        self._note = note
        if not note:
            self._told_above = ""
        if self._shown_s is not None and now_s - self._shown_s < (_FRAME_S if self._moves else _LINE_S):
            return
        self._shown_s = now_s
        what = one_line(what, _LONGEST)
        fields = _fields(done, total, speed=speed, left_s=left_s, note=one_line(note, _LONGEST_NOTE))
        if not self._moves:
            print(f"{what}: {_GAP.join(fields)}", file=sys.stderr, flush=True)
            return
        columns = shutil.get_terminal_size().columns - 1
        above = bool(note) and len(f"{what}: {fields[-1]}") > columns
        if above:
            self._tell_above(what, fields.pop(), now_s)
        tail = _GAP.join(fields)
        room = columns - len(what) - max(len(tail), _USUAL_TAIL) - 4
        if total and room >= _LEAST_BAR:
            length = min(room, _MOST_BAR)
            full = min(length * done // total, length)
            line = f"{what} [{'#' * full}{'.' * (length - full)}] {tail}"
        else:
            line = _fitted(what, fields, columns, keep_last=bool(note) and not above)
        rewrite(f"{line}{' ' * (self._written - len(line))}")
        self._written = len(line)

    def _tell_above(self, what: str, note: str, now_s: float) -> None:
        """Print a note that one line has no room for; the bar goes on below it."""
        if note != self._told_above:
            self.close()
            print(filled(f"{what}: {note}"), file=sys.stderr)
            self._told_above, self._shown_s = note, now_s

    def close(self) -> None:
        """End it: what is printed next begins on a line of its own."""
        if self._moves and self._written:
            rewrite(" " * self._written)
            rewrite("")
            self._shown_s = None
        self._written = 0


def figures(
    done: int, total: int | None, *, speed: float | None = None, left_s: float | None = None, note: str = ""
) -> str:
    """Return bytes done of a total with speed and time left, as far as they are known."""
    return _GAP.join(_fields(done, total, speed=speed, left_s=left_s, note=note))


def _fields(
    done: int, total: int | None, *, speed: float | None = None, left_s: float | None = None, note: str = ""
) -> list[str]:
    parts = [f"{100 * done // total} %"] if total else []
    parts.append(share(done, total))
    if note:
        return [*parts, note]
    if speed:
        parts.append(f"{size(int(speed))}/s")
    if left_s is not None and total and done < total:
        parts.append(f"{duration(round(left_s))} left")
    return parts


def _fitted(what: str, fields: list[str], columns: int, *, keep_last: bool) -> str:
    """Return as many of the fields as there is room for, each whole; `keep_last`: the last one before all others."""
    kept = list(fields)
    while len(kept) > 1 and len(f"{what} {_GAP.join(kept)}") > columns:
        kept.pop(-2 if keep_last else -1)
    if len(kept) > 1:
        return f"{what} {_GAP.join(kept)}"
    after = ": " if keep_last else " "
    return f"{one_line(what, max(columns - len(after + kept[0]), 1))}{after}{kept[0]}"[:columns]


def share(done: int, total: int | None) -> str:
    """Return bytes done of a total in words that differ while they do: `all but 12 kB of 8.6 MB`."""
    if not total:
        return size(done)
    if done < total and size(done) == size(total):
        return f"all but {size(total - done)} of {size(total)}"
    return f"{size(done)} of {size(total)}"


def size(n_bytes: int) -> str:
    """Return bytes in the decimal unit that suits them, as downloads are named: 15.35 GB, 812.1 MB, 9 kB."""
    for unit, digits, factor in (("GB", 2, 10**9), ("MB", 1, 10**6), ("kB", 0, 10**3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.{digits}f} {unit}"
    return f"{n_bytes} bytes"


def duration(seconds: float) -> str:
    """Return a time in words: 4.5 s, 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 9.95 and seconds % 1 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
