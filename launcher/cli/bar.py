"""Progress of long work: a bar in place on a terminal, a plain line every few seconds elsewhere, or JSON."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.cli.layout import wrap_text
from launcher.cli.output import Result, print_json, print_result, round_figure
from launcher.cli.terminal import rewrite_line
from launcher.engine.server.state import Notice, ServerEvent, ServerState, ServerStatus

if TYPE_CHECKING:
    from launcher.base.progress import Progress
    from launcher.tuning.records import Run

_LINE_S, _FRAME_S, _EVENT_S = 5.0, 0.2, 0.5
_LEAST_BAR, _MOST_BAR = 10, 40
_LONGEST, _LONGEST_NOTE, _LONGEST_STATUS = 200, 2_000, 78
_GAP = "  "
_USUAL_TAIL = len("100 %  12.34 GB of 12.34 GB  123.4 MB/s  12 min left")
"""The usual width of the figures, so that the bar keeps its length while they change."""


class ProgressBar:
    """A progress bar. `close` leaves the cursor on an empty line."""

    def __init__(self) -> None:
        self._moves = sys.stderr.isatty()
        self._shown_s: float | None = None if self._moves else time.monotonic()
        self._written = 0
        self._note = self._above = ""

    def show_progress(
        self,
        what: str,
        done: int,
        total: int | None,
        *,
        speed: float | None = None,
        left_s: float | None = None,
        note: str = "",
    ) -> None:
        """Show bytes done of a total, bytes per second and seconds left. Calls that come too soon show nothing.

        A new note is shown at once; off a terminal only if there was none before.
        """
        now_s = time.monotonic()
        if note and (note != self._note if self._moves else not self._note):
            self._shown_s = None
        self._note = note
        if not note:
            self._above = ""
        if self._shown_s is not None and now_s - self._shown_s < (_FRAME_S if self._moves else _LINE_S):
            return
        self._shown_s = now_s
        what = one_line(what, _LONGEST)
        fields = _list_fields(done, total, speed=speed, left_s=left_s, note=one_line(note, _LONGEST_NOTE))
        if not self._moves:
            print(f"{what}: {_GAP.join(fields)}", file=sys.stderr, flush=True)
            return
        columns = shutil.get_terminal_size().columns - 1
        above = bool(note) and len(f"{what}: {fields[-1]}") > columns
        if above:
            self._print_above(what, fields.pop(), now_s)
        tail = _GAP.join(fields)
        room = columns - len(what) - max(len(tail), _USUAL_TAIL) - 4
        if total and room >= _LEAST_BAR:
            length = min(room, _MOST_BAR)
            full = min(length * done // total, length)
            line = f"{what} [{'#' * full}{'.' * (length - full)}] {tail}"
        else:
            line = _fit_fields(what, fields, columns, keep_last=bool(note) and not above)
        rewrite_line(f"{line}{' ' * (self._written - len(line))}")
        self._written = len(line)

    def _print_above(self, what: str, note: str, now_s: float) -> None:
        """Print a note that does not fit on the line; the bar goes on below it."""
        if note != self._above:
            self.close()
            print(wrap_text(f"{what}: {note}"), file=sys.stderr)
            self._above, self._shown_s = note, now_s

    def show_status(self, text: str) -> None:
        """Show text in place of the bar, cut to its length; off a terminal nothing."""
        if self._moves:
            line = one_line(text, _LONGEST_STATUS)
            rewrite_line(line.ljust(self._written))
            self._written = len(line)

    def close(self) -> None:
        """Clear the bar, so that the next output begins on its own line."""
        if self._moves and self._written:
            rewrite_line(" " * self._written)
            rewrite_line("")
            self._shown_s = None
        self._written = 0


class Reporter:
    """Prints the events of long work: a JSON object each, or lines and a progress bar."""

    def __init__(self, *, as_json: bool) -> None:
        self._bar = None if as_json else ProgressBar()
        self._shown: dict[str, tuple[object, float]] = {}

    def show_event(
        self,
        data: Mapping[str, Any] | None,
        lines: Iterable[str] = (),
        *,
        about: str = "",
        state: object = None,
    ) -> None:
        """Print an event; `data` None prints nothing for programs.

        Of frequent events `about` the same thing, lines are printed when their `state` changes, and JSON then and
        every half second.
        """
        if about and not self._is_news(about, state):
            return
        if self._bar is None:
            if data is not None:
                print_json(data)
        elif lines := list(lines):
            self._bar.close()
            print_result(Result(None, lines), as_json=False)

    def show_progress(
        self, what: str, progress: Progress, data: Mapping[str, Any] | None, *, state: object = None
    ) -> None:
        """Show progress in bytes, which is added to `data`."""
        done, total = progress.done_bytes, progress.bytes
        speed, left_s = progress.bytes_per_second, progress.seconds_left
        if self._bar is not None:
            self._bar.show_progress(what, done, total, speed=speed, left_s=left_s, note=progress.note)
            return
        figures = {
            "done_bytes": done,
            "bytes": total,
            "bytes_per_second": round_figure(speed),
            "seconds_left": round_figure(left_s),
            "note": progress.note or None,
        }
        self.show_event(data and {**data, **figures}, about=what, state=(state, bool(progress.note)))

    def show_status(self, text: str) -> None:
        """Show what is being done, in place on a terminal; elsewhere nothing."""
        if self._bar is not None:
            self._bar.show_status(text)

    def show_round(self, run: Run, number: int, *, of: int | None) -> None:
        """Show the latest reply of a measurement as status. `of` None: the number of rounds is open."""
        which = "warm-up" if not number else f"round {number}" if of is None else f"round {number} of {of}"
        speed = run.error or run.spoilt or (f"{run.decode_rate:.1f} tokens/s" if run.decode_rate else "too short")
        self.show_status(f"{which}, {run.prompt}: {speed}")

    def _is_news(self, about: str, state: object) -> bool:
        last, shown_s = self._shown.get(about, (None, -math.inf))
        now_s = time.monotonic()
        if state == last and (self._bar is not None or now_s - shown_s < _EVENT_S):
            return False
        self._shown[about] = state, now_s
        return True

    def close(self) -> None:
        """Clear the bar, so that the next output begins on its own line."""
        if self._bar is not None:
            self._bar.close()


def format_progress(
    done: int, total: int | None, *, speed: float | None = None, left_s: float | None = None, note: str = ""
) -> str:
    """Return bytes done of a total, with speed and time left if known."""
    return _GAP.join(_list_fields(done, total, speed=speed, left_s=left_s, note=note))


def _list_fields(
    done: int, total: int | None, *, speed: float | None = None, left_s: float | None = None, note: str = ""
) -> list[str]:
    parts = [f"{100 * done // total} %"] if total else []
    parts.append(format_done_bytes(done, total))
    if note:
        return [*parts, note]
    if speed:
        parts.append(f"{format_size(int(speed))}/s")
    if left_s is not None and total and done < total:
        parts.append(f"{format_duration(round(left_s))} left")
    return parts


def _fit_fields(what: str, fields: list[str], columns: int, *, keep_last: bool) -> str:
    """Return as many whole fields as fit; with `keep_last` the last one has priority."""
    kept = list(fields)
    while len(kept) > 1 and len(f"{what} {_GAP.join(kept)}") > columns:
        kept.pop(-2 if keep_last else -1)
    if len(kept) > 1:
        return f"{what} {_GAP.join(kept)}"
    after = ": " if keep_last else " "
    return f"{one_line(what, max(columns - len(after + kept[0]), 1))}{after}{kept[0]}"[:columns]


def format_done_bytes(done: int, total: int | None) -> str:
    """Return bytes done of a total as text that differs until all are done: `all but 12 kB of 8.6 MB`."""
    if not total:
        return format_size(done)
    if done < total and format_size(done) == format_size(total):
        return f"all but {format_size(total - done)} of {format_size(total)}"
    return f"{format_size(done)} of {format_size(total)}"


def format_size(n_bytes: int) -> str:
    """Return bytes in a decimal unit, as downloads are usually given: 15.35 GB, 812.1 MB, 9 kB."""
    for unit, digits, factor in (("GB", 2, 10**9), ("MB", 1, 10**6), ("kB", 0, 10**3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.{digits}f} {unit}"
    return f"{n_bytes} bytes"


def format_duration(seconds: float) -> str:
    """Return a duration as text: 4.5 s, 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 9.95 and seconds % 1 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


# The states of a starting server on stderr.

_WORDS = {
    ServerState.PREPARING: "Preparing",
    ServerState.LOADING: "Loading the model",
    ServerState.WARMING_UP: "Warming up",
    ServerState.READY: "Ready",
    ServerState.DRAINING: "Finishing running requests",
    ServerState.RESTARTING: "Restarting",
    ServerState.STOPPING: "Stopping",
    ServerState.STOPPED: "Stopped",
}


class StateLine:
    """Prints each state of a server once; on a terminal the percentage changes in place."""

    def __init__(self) -> None:
        self._last: ServerState | None = None
        self._moves = sys.stderr.isatty()

    def show_event(self, event: ServerEvent) -> None:
        """Print an event of the supervisor."""
        if isinstance(event, Notice):
            self._last = None
            sys.stderr.write(f"{one_line(event.text, 2_000)}\n")
            sys.stderr.flush()
        if not isinstance(event, ServerStatus) or event.state not in _WORDS:
            return
        if event.state is self._last:
            if self._moves and event.percent is not None:
                rewrite_line(f"{_WORDS[event.state]} {event.percent:.0f} %")
            return
        self._last = event.state
        line = f"{_WORDS[event.state]:<24}\n"
        if self._moves:
            rewrite_line(line)
        else:
            sys.stderr.write(line)
            sys.stderr.flush()
