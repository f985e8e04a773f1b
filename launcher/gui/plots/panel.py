"""Panel with all plots on one time axis: pause, zoom, pan, cursor read-out and export."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QStandardPaths, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QAction, QFocusEvent, QHideEvent, QImage, QKeyEvent, QPaintEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QMenu, QPushButton, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.gui import theme
from launcher.gui.labels import set_tooltip
from launcher.gui.late import chart_drawing, plot_export
from launcher.gui.plots.asides import PlotState
from launcher.gui.plots.marks import MarkLog
from launcher.gui.plots.quantities import GPU_NAMES, PLOTS, Plot, read_values
from launcher.gui.plots.readout import ElidedText
from launcher.gui.plots.references import RateReferences
from launcher.gui.plots.row import PlotRow
from launcher.gui.plots.samples import Columns, Samples
from launcher.gui.plots.span import TimeSpan
from launcher.gui.translation import render, tr
from launcher.gui.widgets import ComboBox
from launcher.gui.widgets.blocks import open_menu_with
from launcher.gui.widgets.scrolling import make_scroll_area
from launcher.models.drafters import MTP

if TYPE_CHECKING:
    from launcher.engine.server.launch import Launch
    from launcher.gui.bridge import Bridge
    from launcher.gui.controller import Controller
    from launcher.gui.plots.export import PlotTable
    from launcher.gui.viewmodel import View
    from launcher.monitor.monitor import MonitorSnapshot

# Cursor: the values at one moment in all plots, chosen by pointer or arrow keys.

_MARK_DISTANCE, _KEY_STEP = 0.012, 0.008
"""Shares of the width: distance within which a mark is listed, and the step of an arrow key."""
_MAX_MARKS = 4
_FOCUS_COMES_BACK = (Qt.FocusReason.ActiveWindowFocusReason, Qt.FocusReason.PopupFocusReason)
"""Reasons for which the plots lose the focus only for a while: to another window, or to a menu."""


@dataclass(frozen=True, slots=True)
class CursorText:
    """Text of the cursor's read-out. `line` has the moment and the marks, `all_text` also the values."""

    line: str = ""
    all_text: str = ""


class PlotCursor:
    """The moment whose values are read, set by pointer or keyboard."""

    def __init__(self, span: TimeSpan, marks: MarkLog, rows: Sequence[PlotRow]) -> None:
        self._span = span
        self._marks = marks
        self._rows = rows
        self._pointer: tuple[PlotRow, float] | None = None
        """Card under the pointer, and the pointer's position as a share of the width."""
        self._at_s: float | None = None
        """Moment set by keyboard."""

    @property
    def share(self) -> float | None:
        """Position as a share of the width, None without a cursor."""
        if self._at_s is not None:
            return self._span.share_at(self._at_s)
        return self._pointer[1] if self._pointer is not None else None

    def follow_pointer(self, row: PlotRow | None, share: float) -> None:
        """Move to the pointer over a row. `row` is None when the pointer has left."""
        self._pointer = None if row is None else (row, share)
        if row is not None:
            self._at_s = None

    def clear(self) -> None:
        """Drop the position set by keyboard."""
        self._at_s = None

    def move(self, samples: Samples, direction: int, *, to_mark: bool) -> None:
        """Move left (-1) or right (1), or to the next mark. The span follows if necessary."""
        span, share = self._span, self.share
        at_s = span.end_s if share is None else span.start_s + share * span.length_s
        if to_mark:
            mark = self._marks.find_next(at_s, back=direction < 0)
            if mark is None:
                return
            at_s = mark.time_s
        else:
            at_s += direction * max(_KEY_STEP * span.length_s, 0.1)
        self._pointer = None
        self._at_s = min(max(at_s, samples.oldest_s), samples.newest_s)
        span.scroll_to(self._at_s)

    def show_values(self, samples: Samples) -> CursorText:
        """Show the read-out in all visible rows. Returns its text."""
        share, rows = self.share, [row for row in self._rows if row.isVisible()]
        at_s = None if share is None else self._span.start_s + share * self._span.length_s
        index = None if at_s is None else samples.nearest_index(at_s)
        if at_s is None or index is None:
            for row in rows:
                row.show_values_at(samples, self._span, None, ())
            return CursorText()
        near_s = _MARK_DISTANCE * self._span.length_s
        mark_texts = [mark.text for mark in self._marks.between(at_s - near_s, at_s + near_s)[-_MAX_MARKS:]]
        if self._pointer is not None:
            header_row: PlotRow | None = self._pointer[0]
        else:
            header_row = next((row for row in rows if row.absent is None), None)
        header = (_format_moment(samples, index), *mark_texts)
        values = [row.show_values_at(samples, self._span, index, header if row is header_row else ()) for row in rows]
        return CursorText(" · ".join(header), ". ".join(filter(None, [*header, *values])))


def _format_moment(samples: Samples, index: int) -> str:
    at_s, wall_s = samples.time_at(index)
    minutes, seconds = divmod(round(samples.newest_s - at_s), 60)
    ago = tr("{m} min {s} s ago", m=minutes, s=seconds) if minutes else tr("{s} s ago", s=seconds)
    return f"{datetime.fromtimestamp(wall_s).astimezone():%H:%M:%S} · {ago}"


# Line above the plots: read-out, time span, pause, export.

_LENGTHS_S = (60.0, 120.0, 300.0, 900.0, 3_600.0)


class PlotHead(QWidget):
    """Line above the plots: read-out, time span, pause and export. Emits the user's choices."""

    length_chosen = Signal(float)
    pause_requested = Signal()
    table_requested = Signal()
    picture_requested = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._notice = ""
        self._live, self._is_idle = True, False
        self._text = ElidedText()
        self._text.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self._length = ComboBox()
        self._length.setAccessibleName(tr("Time span"))
        self._length.setToolTip(tr("Time span of the plots. Scroll to zoom, drag to go back in time."))
        for length_s in _LENGTHS_S:
            self._length.addItem(_format_length(length_s), length_s)
        self._length.activated.connect(lambda index: self.length_chosen.emit(self._length.itemData(index)))
        self._pause = QPushButton(tr("Pause"))
        self._pause.setToolTip(tr("Pause the plots, or follow live values (Space). Home also resets the zoom."))
        self._pause.clicked.connect(self.pause_requested)
        # The button keeps its width when its text changes; 34 pixels are its padding and border.
        widest = max(self._pause.fontMetrics().horizontalAdvance(label) for label in (tr("Pause"), tr("Go live")))
        self._pause.setMinimumWidth(widest + theme.px(34))
        export = QPushButton(tr("Export"))
        export.setToolTip(tr("Save the plots as a picture or a table"))
        menu = QMenu(export)
        for label, signal in ((tr("Picture (PNG)"), self.picture_requested), (tr("Table (CSV)"), self.table_requested)):
            action = QAction(label, menu)
            action.triggered.connect(lambda _checked=False, signal=signal: signal.emit())
            menu.addAction(action)
        open_menu_with(export, menu)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP))
        layout.addWidget(self._text, 1)
        for widget in (self._length, self._pause, export):
            layout.addWidget(widget)
        self.show_span(TimeSpan())

    def show_span(self, span: TimeSpan, *, is_idle: bool = False) -> None:
        """Show the time span and whether it is live. `is_idle`: no server runs."""
        self._is_idle = is_idle
        if span.live != self._live:
            self._live = span.live
            self._pause.setText(tr("Pause") if span.live else tr("Go live"))
        index = next((i for i, length_s in enumerate(_LENGTHS_S) if abs(length_s - span.length_s) < 1), -1)
        if index != self._length.currentIndex():
            self._length.setCurrentIndex(index)
        if index < 0:
            self._length.setPlaceholderText(_format_length(span.length_s))

    def show_reading(self, line: str, all_text: str) -> None:
        """Show the read-out's line with `all_text` as the tooltip. Without a line show the last notice or the state."""
        if line:
            self._notice = ""
        state = tr("Live") if self._live else tr("Paused; recording continues")
        text = line or self._notice or (tr("Nothing is running.") if self._is_idle else state)
        if self._text.text() != text:
            self._text.setText(text)
            set_tooltip(self._text, all_text or self._notice)

    def show_notice(self, text: str) -> None:
        """Show a notice until the next read-out."""
        self._notice = text
        self.show_reading("", text)


def _format_length(length_s: float) -> str:
    if length_s >= 3_600:
        return tr("1 hour")
    return tr("{n:.0f} min", n=length_s / 60) if length_s >= 60 else tr("{n:.0f} s", n=length_s)


# Export as picture or table, written on the core's thread so that the window stays responsive.

_PICTURE_SCALE = 2.0
"""The fewest pixels of an exported picture for each pixel of the window, in each direction."""
_MAX_FILES = 100
"""Numbers to try in the name of an export if an earlier one has the same second in its name."""


class NotSaved(LauncherError):
    """A picture or table could not be written."""


def _paint_picture(widget: QWidget) -> QImage:
    """Return a picture of a widget, with so many pixels that it is sharp on any screen."""
    scale = max(widget.devicePixelRatioF(), _PICTURE_SCALE)
    picture = QImage(widget.size() * scale, QImage.Format.Format_RGB32)
    picture.setDevicePixelRatio(scale)
    picture.fill(theme.colour("window"))
    widget.render(picture)
    return picture


def unused_export_path(suffix: str, folder: Path | None = None) -> Path:
    """Return an unused path named after the current time, in `folder` or the user's downloads."""
    if folder is None:
        downloads = Path(QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DownloadLocation))
        folder = downloads if downloads.is_dir() else Path.home()
    name = f"mtp-launcher-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}"
    first = folder / f"{name}.{suffix}"
    numbered = (folder / f"{name}-{n}.{suffix}" for n in range(2, _MAX_FILES))
    return next((path for path in (first, *numbered) if not path.exists()), first)


def save_table(bridge: Bridge, table: PlotTable, path: Path, on_end: Callable[[str, Path | None], object]) -> None:
    """Write a CSV file. `on_end` gets a message, and the path if it was written."""
    _save_file(bridge, lambda: plot_export.write_csv(table, path), path, on_end)


def save_picture(bridge: Bridge, picture: QImage, path: Path, on_end: Callable[[str, Path | None], object]) -> None:
    """Write a PNG file. `on_end` as for save_table."""

    def save() -> None:
        if not picture.save(str(path)):
            raise OSError(tr("the folder cannot be written to, or the disk is full"))

    _save_file(bridge, save, path, on_end)


def _save_file(
    bridge: Bridge, write: Callable[[], None], path: Path, on_end: Callable[[str, Path | None], object]
) -> None:
    async def write_file() -> None:
        try:
            await asyncio.to_thread(write)
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotSaved(
                tr("{path} could not be written: {reason}.", path=path, reason=reason),
                tr("Free some space and try again."),
            ) from error

    bridge.run(
        write_file,
        done=lambda _: on_end(tr("Saved: {path}", path=path), path),
        failed=lambda error: on_end(str(error), None),
    )


_TICK_MS = 100
_NUMBERS_INTERVAL_S = 0.2
"""Least time between two updates of the numbers: nobody reads faster."""
_MOST_UNSTORED = 600
"""Samples that are kept before NumPy is loaded for them: those of a minute."""
_LONGEST_INTERVAL_S = 1.0
"""Longest time between two drawings while live."""
_NARROW_WIDTH = 620
"""Width in pixels below which the texts beside the plots have less room."""


@dataclass(frozen=True, slots=True)
class KeptPlots:
    """State that a new plot panel takes over: the samples and marks of an hour, and the time span that is shown."""

    samples: Samples | None
    unstored: list[MonitorSnapshot]
    latest: MonitorSnapshot | None
    throttled: tuple[float, str] | None
    server_start_s: float
    span: TimeSpan
    marks: MarkLog


class PlotPanel(QWidget):
    """All plots of the controller's samples. Keeps one hour, and draws only while visible and after a change."""

    exported = Signal(str)
    """The path of a written file."""
    recorded = Signal()
    """There are new samples, or a server has started or ended."""

    def __init__(self, controller: Controller, kept: KeptPlots | None = None) -> None:
        super().__init__()
        self._controller = controller
        self.samples: Samples | None = None
        self._kept_samples = None if kept is None else kept.samples
        """Samples to go on with once the plot library is loaded."""
        self.span = TimeSpan() if kept is None else kept.span
        self.rows = {plot.name: PlotRow(plot) for plot in PLOTS}
        self._unstored: list[MonitorSnapshot] = []
        """Samples received before the plot library is loaded."""
        self._latest: MonitorSnapshot | None = None
        self._throttled: tuple[float, str] | None = None
        """Time and reason of the last throttling."""
        self._drawn_s = self._numbers_s = self._server_start_s = float("-inf")
        """When the plots were drawn, when the numbers were shown, and when the running server started."""
        self._is_idle, self._under_way = controller.view.resting, controller.view.under_way
        """Whether no server runs, and the text of the current step of a start, "" if there is none."""
        self._stale = self._attaching = self._attached = False
        self._ends: tuple[bool, PlotRow, PlotRow] | None = None
        """Whether the panel is narrow, and the first and the last row with a plot; None before the first layout."""
        self.drawings = 0
        """Number of drawings."""
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(_TICK_MS)
        self._timer.timeout.connect(self.draw_if_due)
        self.marks = MarkLog(controller, self.schedule_drawing) if kept is None else kept.marks
        if kept is not None:
            self._unstored, self._latest = kept.unstored, kept.latest
            self._throttled, self._server_start_s = kept.throttled, kept.server_start_s
            self.marks.notify(self.schedule_drawing)
        self.plot_cursor = PlotCursor(self.span, self.marks, tuple(self.rows.values()))
        self.head = PlotHead()
        self._build()
        self._show_rows(has_gpu=False)
        self._show_no_server()
        controller.sampled.connect(self.add_samples)
        controller.view_changed.connect(self._handle_view)
        controller.launched.connect(self._handle_launch)
        self.references = RateReferences(controller, self)
        self.references.changed.connect(self._show_references)
        self.references.request_references(controller.launch)

    def hand_over(self) -> KeptPlots:
        """Leave samples and marks to the next panel. This one must be deleted then."""
        self.marks.notify(lambda: None)
        samples = self._kept_samples if self.samples is None else self.samples
        return KeptPlots(
            samples, self._unstored, self._latest, self._throttled, self._server_start_s, self.span, self.marks
        )

    @Slot()
    def _show_references(self) -> None:
        lines = self.references.lines
        for row in self.rows.values():
            row.references = tuple(line for name in row.plot.references if (line := lines[name]) is not None)
        self.schedule_refresh()

    def schedule_refresh(self) -> None:
        """Schedule a drawing that also refreshes the numbers."""
        self._numbers_s = float("-inf")
        self.schedule_drawing()

    # running server

    @Slot(object)
    def _handle_view(self, view: View) -> None:
        """Show that no server runs any more. Without this, the last numbers would stay: no further sample comes."""
        if (view.resting, view.under_way) != (self._is_idle, self._under_way):
            self._is_idle, self._under_way = view.resting, view.under_way
            self._show_no_server()
            self.schedule_refresh()
            self.recorded.emit()

    def absence_of(self, plot: Plot) -> str:
        """Return the text to show instead of outdated figures: nothing runs, or the step of a start; else ""."""
        if self._is_idle:
            return tr("Nothing is running.")
        return self._under_way if plot.of_server else ""

    def _show_no_server(self) -> None:
        for row in self.rows.values():
            if reason := self.absence_of(row.plot):
                row.show_no_server(reason)

    @Slot(object)
    def _handle_launch(self, launch: Launch | None) -> None:
        """Reset the figures when a server has started."""
        if launch is not None:
            self._server_start_s, self._latest = time.monotonic(), None
            self.recorded.emit()
            for row in self.rows.values():
                if row.plot.of_server:
                    row.show_aside("")

    # samples

    def add_samples(self, batch: list[MonitorSnapshot]) -> None:
        """Store new samples and schedule a drawing at the next tick."""
        if not batch:
            return
        self._latest = batch[-1]
        if self.samples is None:
            self._unstored += batch
            if len(self._unstored) > _MOST_UNSTORED:  # the plots have not been shown yet, and may never be
                self.load_samples()
        else:
            self._store(self.samples, batch)
        if self._is_visible_to_user() and not self._timer.isActive():
            self._timer.start()
        self.recorded.emit()

    def load_samples(self) -> Samples:
        """Return the samples. Loads NumPy for them the first time, which takes 0.1 s."""
        if self.samples is None:
            self.samples = Samples() if self._kept_samples is None else self._kept_samples
            unstored, self._unstored = self._unstored, []
            self._store(self.samples, unstored)
        return self.samples

    @property
    def state(self) -> PlotState | None:
        """The newest values, or None before the first sample."""
        if self._latest is None:
            return None
        limit, note, launch = self.references.limit, self._controller.note, self._controller.launch
        drafter = launch.options.drafter if launch is not None else MTP
        named = "" if drafter.uses_head else render(drafter.name_short)
        return PlotState(self.load_samples(), self._latest, limit, note, self._server_start_s, self._throttled, named)

    def _store(self, samples: Samples, batch: list[MonitorSnapshot]) -> None:
        offset_s = time.time() - time.monotonic()
        for sample in batch:
            samples.add(sample.time_s, offset_s + sample.time_s, read_values(sample))
            if sample.activity is not None and sample.activity.throttled_by:
                self._throttled = sample.time_s, tr(", ").join(map(render, sample.activity.throttled_by))
        self.span.set_recorded(samples.oldest_s, samples.newest_s)

    # drawing

    def schedule_drawing(self) -> None:
        """Schedule a drawing. Several calls in quick succession cause one."""
        self._stale = True
        if self._is_visible_to_user():
            self._timer.start(0)

    def _is_visible_to_user(self) -> bool:
        return self.isVisible() and not self.window().isMinimized()

    def draw_if_due(self) -> None:
        """Draw, and refresh the numbers, if the panel is visible and there are new samples or another time span."""
        self._timer.setInterval(_TICK_MS)  # schedule_drawing has set it to 0
        samples = self.samples
        if samples is None or not self._is_visible_to_user():
            return
        now_s = samples.newest_s
        if self._latest is not None and abs(now_s - self._numbers_s) >= _NUMBERS_INTERVAL_S:
            self._numbers_s = now_s
            self._show_readings(self._latest, samples)
        chart = next(iter(self.rows.values())).chart
        column_s = self.span.length_s / (chart.columns if chart else 1)
        # The plots need not be drawn before the curves have moved by half a pixel.
        interval_s = min(max(column_s / 2, _TICK_MS / 1_000), _LONGEST_INTERVAL_S)
        if self._stale or (self.span.live and abs(now_s - self._drawn_s) >= interval_s - 0.01):
            self.draw()

    def draw(self) -> None:
        """Draw all plots now."""
        samples = self.samples
        if samples is None:
            return
        self._stale = False
        self._drawn_s = samples.newest_s
        self.drawings += 1
        span, by_count = self.span, dict[int, "Columns"]()
        times = samples.times(samples.slice_between(span.start_s, span.end_s))

        def group_samples(count: int) -> Columns:
            """Group the samples into `count` columns. Cards of equal width share them."""
            if count not in by_count:
                by_count[count] = Columns.group(times, span.length_s / count)
            return by_count[count]

        marks = self.marks.between(span.start_s, span.end_s)
        for row in self.rows.values():
            row.draw(samples, span, marks, group_samples, is_idle=self._is_idle)
        self.head.show_span(span, is_idle=self._is_idle)
        self._show_cursor()

    def _show_readings(self, latest: MonitorSnapshot, samples: Samples) -> None:
        has_gpu = any(name in samples.names for name in GPU_NAMES)
        self._show_rows(has_gpu=has_gpu)
        for row in self.rows.values():
            if not row.isHidden():
                row.show_readings(latest.readings, samples, has_gpu=has_gpu, server_start_s=self._server_start_s)
        self._place_ends()
        self._show_no_server()
        state = self.state
        if self._is_idle or self._under_way or state is None:
            return
        for row in self.rows.values():
            aside = row.plot.aside(state) if row.plot.aside is not None and row.absent is None else None
            if aside is not None:
                row.show_aside(*aside)

    def _show_rows(self, *, has_gpu: bool) -> None:
        for row in self.rows.values():
            row.setVisible(row.plot.with_gpu in (None, has_gpu))

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Adapt the texts beside the plots to the width."""
        super().resizeEvent(event)
        self._place_ends()

    def _place_ends(self) -> None:
        """Put the marks' glyphs above the first plot, and the times below the last one."""
        narrow = self.width() < theme.px(_NARROW_WIDTH)
        drawn = [row for row in self.rows.values() if not row.isHidden() and row.absent is None]
        if not drawn or (narrow, drawn[0], drawn[-1]) == self._ends:
            return
        self._ends = narrow, drawn[0], drawn[-1]
        for row in self.rows.values():
            row.show_narrow(narrow)
            if row.chart is not None:
                row.chart.show_ends(first=row is drawn[0], last=row is drawn[-1], narrow=narrow)

    # loading the plot library after the first paint

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Load the plot library after the first paint."""
        super().paintEvent(event)
        if not self._attaching:
            self._attaching = True
            QTimer.singleShot(0, self, self.attach_charts)

    def attach_charts(self) -> None:
        """Load the plot library once and put the charts into the rows."""
        if self._attached:
            return
        self._attaching = self._attached = True
        self.load_samples()
        for row in self.rows.values():
            chart = chart_drawing.ChartWidget(row.plot, row.least_height)
            row.attach_chart(chart)
            chart.overlay.hovered.connect(lambda share, row=row: self.read_at(row, share))
            chart.overlay.pointer_left.connect(lambda: self.read_at(None))
            chart.overlay.zoomed.connect(self.zoom)
            chart.overlay.dragged.connect(self.pan)
            chart.overlay.reset_requested.connect(self.reset_view)
        self._ends = None
        self._place_ends()
        self.schedule_drawing()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802
        """Draw the samples received while hidden."""
        super().showEvent(event)
        self.schedule_refresh()

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802
        """Stop drawing while hidden."""
        super().hideEvent(event)
        self._timer.stop()

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802
        """Apply another theme's colours."""
        super().changeEvent(event)
        if event.type() is QEvent.Type.PaletteChange:
            for row in self.rows.values():
                if row.chart is not None:
                    row.chart.recolour()
            self.schedule_drawing()

    # time axis

    def zoom(self, notches: float, share: float = 1.0) -> None:
        """Zoom in by wheel notches (negative: out) around a share of the width."""
        self.span.zoom(notches, self.span.start_s + share * self.span.length_s)
        self.schedule_drawing()

    def pan(self, share: float) -> None:
        """Move back in time by a share of the width (negative: forward)."""
        self.span.pan(share * self.span.length_s)
        self.schedule_drawing()

    def reset_view(self) -> None:
        """Return to the live view and the usual span."""
        self.span.reset()
        self.plot_cursor.clear()
        self.schedule_drawing()

    def toggle_pause(self) -> None:
        """Hold the plots, or follow the newest samples again."""
        if self.span.live:
            self.span.hold()
        else:
            self.span.go_live()
        self.schedule_drawing()

    def choose_length(self, seconds: float) -> None:
        """Set the length of the time span."""
        self.span.set_length(seconds)
        self.schedule_drawing()

    # cursor

    def read_at(self, row: PlotRow | None, share: float = 0.0) -> None:
        """Show the values under the pointer, at a share of a row's width. `row` is None when the pointer has left."""
        self.plot_cursor.follow_pointer(row, share)
        self._show_cursor()

    def _show_cursor(self) -> None:
        if self.samples is not None:
            reading = self.plot_cursor.show_values(self.samples)
            self.head.show_reading(reading.line, reading.all_text)
            if self.board.accessibleDescription() != reading.all_text:
                self.board.setAccessibleDescription(reading.all_text)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Move the cursor with the arrows, with Ctrl to the next mark, with Shift pan; + and - zoom, Home goes live."""
        key, modifiers = Qt.Key(event.key()), event.modifiers()
        direction = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(key)
        at = self.plot_cursor.share
        if direction is not None and modifiers & Qt.KeyboardModifier.ShiftModifier:
            self.pan(-direction / 10)
        elif direction is not None and self.samples is not None:
            to_mark = bool(modifiers & Qt.KeyboardModifier.ControlModifier)
            self.plot_cursor.move(self.samples, direction, to_mark=to_mark)
            self.schedule_drawing()
        elif key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal, Qt.Key.Key_Minus):
            self.zoom(-1 if key is Qt.Key.Key_Minus else 1, 1.0 if at is None else at)
        elif key is Qt.Key.Key_Home:
            self.reset_view()
        elif key is Qt.Key.Key_Space:
            self.toggle_pause()
        elif key is Qt.Key.Key_Escape and at is not None:
            self.plot_cursor.clear()
            self.schedule_drawing()
        else:
            super().keyPressEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:  # noqa: N802
        """Drop the moment that keys have chosen when another widget of the window gets the focus."""
        super().focusOutEvent(event)
        if event.reason() not in _FOCUS_COMES_BACK:
            self.plot_cursor.clear()
            self._show_cursor()

    # export

    def export_csv(self, folder: Path | None = None) -> None:
        """Write the shown data as CSV to `folder` or the user's downloads. `exported` names the path."""
        if self.samples is None or not len(self.samples):
            self.head.show_notice(tr("There is nothing to export yet."))
            return
        start_s, end_s = self.span.start_s, self.span.end_s
        table = plot_export.copy_table(self.samples, start_s, end_s, self.marks.between(start_s, end_s))
        save_table(self._controller.bridge, table, unused_export_path("csv", folder), self._show_saved)

    def export_png(self, folder: Path | None = None) -> None:
        """Write a picture of the plots as PNG, like `export_csv`."""
        picture = _paint_picture(self.board)
        save_picture(self._controller.bridge, picture, unused_export_path("png", folder), self._show_saved)

    def _show_saved(self, text: str, path: Path | None) -> None:
        if path is None:
            self.head.show_notice(text)
        else:
            self.exported.emit(str(path))

    def _build(self) -> None:
        self.board = QFrame()
        """The plots, one below the other; scrolled where there is little room."""
        self.board.setObjectName("card")
        self.board.setAccessibleName(tr("Plots"))
        column = QVBoxLayout(self.board)
        column.setContentsMargins(1, 0, 1, theme.px(theme.GAP_S))
        column.setSpacing(0)
        for row in self.rows.values():
            column.addWidget(row, row.plot.height)
        column.addStretch(0)
        area = make_scroll_area(self.board, sideways=True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP))
        layout.addWidget(self.head)
        layout.addWidget(area, 1)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(tr("Plots: arrow keys read values, Ctrl+arrow keys jump between marks"))
        self.head.length_chosen.connect(self.choose_length)
        self.head.pause_requested.connect(self.toggle_pause)
        self.head.table_requested.connect(self.export_csv)
        self.head.picture_requested.connect(self.export_png)
