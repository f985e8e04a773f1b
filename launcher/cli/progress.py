"""Progress of long work: a bar in place on a terminal, a plain line every few seconds elsewhere, or JSON."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from launcher.base.codec import JsonView, to_json
from launcher.base.text import one_line
from launcher.cli.layout import wrap_text
from launcher.cli.output import Result, print_json, print_result
from launcher.cli.terminal import rewrite_line
from launcher.engine.server.state import Notice, ServerEvent, ServerState, ServerStatus

if TYPE_CHECKING:
    from launcher.base.progress import Progress
    from launcher.tuning.records import Run

_LINE_PERIOD_S, _FRAME_PERIOD_S, _JSON_PERIOD_S = 5.0, 0.2, 0.5
"""Fewest seconds between two lines, two redraws of the bar, and two JSON objects."""
_MIN_BAR, _MAX_BAR = 10, 40
_MAX_TITLE, _MAX_NOTE, _MAX_STATUS = 200, 2_000, 78
"""Characters of the texts that are shown, at most."""
_GAP = "  "
_USUAL_FIGURES_WIDTH = len("100 %  12.34 GB of 12.34 GB  123.4 MB/s  12 min left")
"""Room for the figures, so that the bar keeps its length while they change."""


class ProgressBar:
    """A progress bar. `close` leaves the cursor on an empty line."""

    def __init__(self) -> None:
        self._in_place = sys.stderr.isatty()
        self._shown_s: float | None = None if self._in_place else time.monotonic()
        """When the bar was last shown; None to show it at the next call."""
        self._written = 0
        """Characters on the current line."""
        self._note = ""
        self._note_above = ""
        """The note that was printed on a line of its own, above the bar."""

    def show_progress(
        self,
        title: str,
        done_bytes: int,
        total_bytes: int | None,
        *,
        speed: float | None = None,
        left_s: float | None = None,
        note: str = "",
    ) -> None:
        """Show bytes done of a total, bytes per second and seconds left, unless they were shown a moment ago.

        A new note is shown at once; if stderr is not a terminal, only if the last call had no note.
        """
        now_s = time.monotonic()
        is_new_note = note != self._note if self._in_place else not self._note
        if note and is_new_note:
            self._shown_s = None
        self._note = note
        if not note:
            self._note_above = ""
        period_s = _FRAME_PERIOD_S if self._in_place else _LINE_PERIOD_S
        if self._shown_s is not None and now_s - self._shown_s < period_s:
            return
        self._shown_s = now_s
        title = one_line(title, _MAX_TITLE)
        fields = _list_fields(done_bytes, total_bytes, speed=speed, left_s=left_s, note=one_line(note, _MAX_NOTE))
        if not self._in_place:
            print(f"{title}: {_GAP.join(fields)}", file=sys.stderr, flush=True)
            return
        columns = shutil.get_terminal_size().columns - 1
        is_note_too_long = bool(note) and len(f"{title}: {fields[-1]}") > columns
        if is_note_too_long:
            self._print_note_above(title, fields.pop(), now_s)
        figures = _GAP.join(fields)
        room = columns - len(title) - max(len(figures), _USUAL_FIGURES_WIDTH) - 4
        if total_bytes and room >= _MIN_BAR:
            length = min(room, _MAX_BAR)
            full = min(length * done_bytes // total_bytes, length)
            line = f"{title} [{'#' * full}{'.' * (length - full)}] {figures}"
        else:
            line = _fit_fields(title, fields, columns, keep_last=bool(note) and not is_note_too_long)
        rewrite_line(f"{line}{' ' * (self._written - len(line))}")
        self._written = len(line)

    def _print_note_above(self, title: str, note: str, now_s: float) -> None:
        """Print a note that does not fit on the line; the bar goes on below it."""
        if note != self._note_above:
            self.close()
            print(wrap_text(f"{title}: {note}"), file=sys.stderr)
            self._note_above, self._shown_s = note, now_s

    def show_status(self, text: str) -> None:
        """Show text in place of the bar, cut to the line; nothing if the output is not a terminal."""
        if self._in_place:
            line = one_line(text, _MAX_STATUS)
            rewrite_line(line.ljust(self._written))
            self._written = len(line)

    def close(self) -> None:
        """Clear the bar, so that the next output begins on its own line."""
        if self._in_place and self._written:
            rewrite_line(" " * self._written)
            rewrite_line("")
            self._shown_s = None
        self._written = 0


PROGRESS_VIEW = JsonView("done_bytes bytes bytes_per_second:1 seconds_left:1 note?")


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
        topic: str = "",
        state: object = None,
    ) -> None:
        """Print an event: its `lines`, or with --json its `data` unless that is None.

        Events that come often have a `topic`. An event is printed only if its `state` differs from that of the last
        event with the same topic; with --json also if half a second has passed.
        """
        if topic and not self._should_show(topic, state):
            return
        if self._bar is None:
            if data is not None:
                print_json(data)
        elif lines := list(lines):
            self._bar.close()
            print_result(Result(None, lines), as_json=False)

    def show_progress(
        self, title: str, progress: Progress, data: Mapping[str, Any] | None, *, state: object = None
    ) -> None:
        """Show progress in bytes. With --json it is added to `data`; `state` is as for `show_event`."""
        done_bytes, total_bytes = progress.done_bytes, progress.bytes
        speed, left_s = progress.bytes_per_second, progress.seconds_left
        if self._bar is not None:
            self._bar.show_progress(title, done_bytes, total_bytes, speed=speed, left_s=left_s, note=progress.note)
            return
        self.show_event(
            data and {**data, **to_json(progress, PROGRESS_VIEW)}, topic=title, state=(state, bool(progress.note))
        )

    def show_status(self, text: str) -> None:
        """Show what is being done, in place on a terminal; nothing with --json or if the output is not a terminal."""
        if self._bar is not None:
            self._bar.show_status(text)

    def show_round(self, run: Run, number: int, *, rounds: int | None) -> None:
        """Show the latest reply of a measurement. Round 0 is the warm-up; `rounds` is their number, None if unknown."""
        label = "warm-up"
        if number:
            label = f"round {number}" if rounds is None else f"round {number} of {rounds}"
        speed = run.error or run.spoilt or (f"{run.decode_rate:.1f} tokens/s" if run.decode_rate else "too short")
        self.show_status(f"{label}, {run.prompt}: {speed}")

    def _should_show(self, topic: str, state: object) -> bool:
        last_state, shown_s = self._shown.get(topic, (None, -math.inf))
        now_s = time.monotonic()
        if state == last_state and (self._bar is not None or now_s - shown_s < _JSON_PERIOD_S):
            return False
        self._shown[topic] = state, now_s
        return True

    def close(self) -> None:
        """Clear the bar, so that the next output begins on its own line."""
        if self._bar is not None:
            self._bar.close()


def format_progress(
    done_bytes: int, total_bytes: int | None, *, speed: float | None = None, left_s: float | None = None, note: str = ""
) -> str:
    """Return bytes done of a total, with speed and time left if known."""
    return _GAP.join(_list_fields(done_bytes, total_bytes, speed=speed, left_s=left_s, note=note))


def _list_fields(
    done_bytes: int, total_bytes: int | None, *, speed: float | None = None, left_s: float | None = None, note: str = ""
) -> list[str]:
    parts = [f"{100 * done_bytes // total_bytes} %"] if total_bytes else []
    parts.append(format_done_bytes(done_bytes, total_bytes))
    if note:
        return [*parts, note]
    if speed:
        parts.append(f"{format_size(int(speed))}/s")
    if left_s is not None and total_bytes and done_bytes < total_bytes:
        parts.append(f"{format_duration(round(left_s))} left")
    return parts


def _fit_fields(title: str, fields: list[str], columns: int, *, keep_last: bool) -> str:
    """Return the title and as many fields as fit. If only one fits, that is the first, or with `keep_last` the last."""
    fitting = list(fields)
    while len(fitting) > 1 and len(f"{title} {_GAP.join(fitting)}") > columns:
        fitting.pop(-2 if keep_last else -1)
    if len(fitting) > 1:
        return f"{title} {_GAP.join(fitting)}"
    separator = ": " if keep_last else " "
    return f"{one_line(title, max(columns - len(separator + fitting[0]), 1))}{separator}{fitting[0]}"[:columns]


def format_done_bytes(done_bytes: int, total_bytes: int | None) -> str:
    """Return bytes done of a total as text, such as `1.2 GB of 8.6 GB`.

    Where rounding would hide that some are missing, it names those: `all but 12 kB of 8.6 MB`.
    """
    if not total_bytes:
        return format_size(done_bytes)
    if done_bytes < total_bytes and format_size(done_bytes) == format_size(total_bytes):
        return f"all but {format_size(total_bytes - done_bytes)} of {format_size(total_bytes)}"
    return f"{format_size(done_bytes)} of {format_size(total_bytes)}"


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


# The states of a server on stderr.

_STATE_LABELS = {
    ServerState.PREPARING: "Preparing",
    ServerState.LOADING: "Loading the model",
    ServerState.WARMING_UP: "Warming up",
    ServerState.READY: "Ready",
    ServerState.DRAINING: "Finishing running requests",
    ServerState.RESTARTING: "Restarting",
    ServerState.STOPPING: "Stopping",
    ServerState.STOPPED: "Stopped",
}
_STATE_WIDTH = 24
"""Columns that cover a label and its percentage."""


class StateLine:
    """Prints each new state of a server on a line; on a terminal with a percentage that changes in place."""

    def __init__(self) -> None:
        self._last_state: ServerState | None = None
        self._in_place = sys.stderr.isatty()

    def show_event(self, event: ServerEvent) -> None:
        """Print an event of the supervisor."""
        if isinstance(event, Notice):
            self._last_state = None
            sys.stderr.write(f"{one_line(event.text, _MAX_NOTE)}\n")
            sys.stderr.flush()
        if not isinstance(event, ServerStatus) or event.state not in _STATE_LABELS:
            return
        if event.state is self._last_state:
            if self._in_place and event.percent is not None:
                rewrite_line(f"{_STATE_LABELS[event.state]} {event.percent:.0f} %")
            return
        self._last_state = event.state
        label = _STATE_LABELS[event.state]
        if self._in_place:
            rewrite_line(f"{label:<{_STATE_WIDTH}}\n")
        else:
            print(label, file=sys.stderr, flush=True)
