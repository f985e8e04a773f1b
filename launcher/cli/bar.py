"""How far a long work is, on stderr: a bar that moves in place on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import shutil
import sys
import time

from launcher.base.text import one_line
from launcher.cli.terminal import rewrite

_LINE_S, _FRAME_S = 5.0, 0.2
_LEAST_BAR, _MOST_BAR = 10, 40
_LONGEST = 200
_USUAL_TAIL = len("100 %  12.34 GB of 12.34 GB  123.4 MB/s  12 min left")
"""What the figures take, so that the bar keeps its length while they change."""


class Bar:
    """One bar. `close` leaves the cursor on an empty line."""

    def __init__(self) -> None:
        self._moves = sys.stderr.isatty()
        self._shown_s: float | None = None if self._moves else time.monotonic()
        self._written = 0
        self._noted = False

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

        A note is shown at once where there was none.
        """
        now_s = time.monotonic()
        if note and not self._noted:
            self._shown_s = None
        self._noted = bool(note)
        if self._shown_s is not None and now_s - self._shown_s < (_FRAME_S if self._moves else _LINE_S):
            return
        self._shown_s = now_s
        what = one_line(what, _LONGEST)
        tail = figures(done, total, speed=speed, left_s=left_s, note=note)
        if not self._moves:
            print(f"{what}: {tail}", file=sys.stderr, flush=True)
            return
        columns = shutil.get_terminal_size().columns - 1
        room = columns - len(what) - max(len(tail), _USUAL_TAIL) - 4
        if total and room >= _LEAST_BAR:
            length = min(room, _MOST_BAR)
            full = min(length * done // total, length)
            line = f"{what} [{'#' * full}{'.' * (length - full)}] {tail}"
        else:
            line = f"{what} {tail}"
        line = line[:columns]
        rewrite(f"{line}{' ' * (self._written - len(line))}")
        self._written = len(line)

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
    parts = [f"{100 * done // total} %"] if total else []
    parts.append(f"{size(done)} of {size(total)}" if total else size(done))
    if note:
        return "  ".join((*parts, note))
    if speed:
        parts.append(f"{size(int(speed))}/s")
    if left_s is not None and total and done < total:
        parts.append(f"{duration(round(left_s))} left")
    return "  ".join(parts)


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
