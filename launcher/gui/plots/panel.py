"""All plots on one axis of time: pause, zoom, pan, a read-out under the pointer or the arrow keys, and export."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QHideEvent, QKeyEvent, QPaintEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.plots import asides
from launcher.gui.plots.card import PlotCard
from launcher.gui.plots.cursor import Cursor
from launcher.gui.plots.head import Head
from launcher.gui.plots.marks import MarkLog
from launcher.gui.plots.quantities import GPU_NAMES, MEAN_LENGTH, PLOTS, POSITIONS, position_name
from launcher.gui.plots.references import References
from launcher.gui.plots.saving import free_path, save_picture, save_table
from launcher.gui.plots.span import Span
from launcher.gui.sentences import say
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.gui.controller import Controller
    from launcher.gui.plots.samples import Columns, Samples
    from launcher.monitor.monitor import Sampled

_TICK_MS = 100
_SAID_S = 0.2
"""Numbers change five times a second: faster nobody can read them."""
_SLOWEST_S = 1.0
_HEIGHTS = (4, 3, 3, 3, 3)
_DENSE = 660
"""In pixels: lower, four plots have not the room for their times each."""


class PlotPanel(QWidget):
    """The plots of what `controller` samples. An hour is kept; it is drawn while it is seen, and where it changed."""

    exported = Signal(str)
    """The path of a file that was written."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.samples: Samples | None = None
        self.span = Span()
        self.cards = tuple(map(PlotCard, PLOTS))
        self._rate, self._acceptance, self._gpu, self._vram, self._host = self.cards
        self._vram.hide()
        self._waiting: list[Sampled] = []
        self._latest: Sampled | None = None
        self._throttled: tuple[float, str] | None = None
        self._drawn_s = self._said_s = float("-inf")
        self._stale = self._attaching = False
        self._room: tuple[bool, list[PlotCard]] | None = None
        """Whether it is little, and which plots have their times."""
        self.drawings = 0
        """How often the plots were drawn."""
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(_TICK_MS)
        self._timer.timeout.connect(self._tick)
        self.marks = MarkLog(controller, self.redraw)
        self.cursor_line = Cursor(self.span, self.marks, self.cards)
        self.head = Head()
        self._build()
        controller.sampled.connect(self.take_samples)
        self.references = References(controller, self)
        self.references.changed.connect(self._show_references)
        self.references.take_launch(controller.launch)

    @Slot()
    def _show_references(self) -> None:
        self._rate.references = self.references.lines
        self._said_s = float("-inf")
        self.redraw()

    # samples

    def take_samples(self, batch: list[Sampled]) -> None:
        """Keep new samples; drawing follows, not more often than it can be seen."""
        if not batch:
            return
        self._latest = batch[-1]
        if self.samples is None:
            self._waiting += batch
        else:
            self._keep(self.samples, batch)
        if self._is_seen() and not self._timer.isActive():
            self._timer.start()

    def _keep(self, samples: Samples, batch: list[Sampled]) -> None:
        offset_s = time.time() - time.monotonic()
        for sample in batch:
            values = {name: reading.value for name, reading in sample.readings.items()}
            if sample.acceptance is not None:
                values[MEAN_LENGTH] = sample.acceptance.mean_length
                shares = sample.acceptance.rates_by_position[:POSITIONS]
                values |= {position_name(n): 100 * share for n, share in enumerate(shares, 1)}
            samples.add(sample.time_s, offset_s + sample.time_s, values)
            if sample.activity is not None and sample.activity.throttled_by:
                self._throttled = sample.time_s, tr(", ").join(map(say, sample.activity.throttled_by))
        self.span.follow(samples.oldest_s, samples.newest_s)

    # drawing

    def redraw(self) -> None:
        """Draw soon: several changes within a moment are drawn once."""
        self._stale = True
        if self._is_seen():
            self._timer.start(0)

    def _is_seen(self) -> bool:
        return self.isVisible() and not self.window().isMinimized()

    def _tick(self) -> None:
        self._timer.setInterval(_TICK_MS)
        samples = self.samples
        if samples is None or not self._is_seen():
            return
        now_s = samples.newest_s
        if self._latest is not None and abs(now_s - self._said_s) >= _SAID_S:
            self._said_s = now_s
            self._show_readings(self._latest, samples)
        chart = self._rate.chart
        column_s = self.span.length_s / (chart.columns if chart else 1)
        moved = abs(now_s - self._drawn_s) >= min(max(column_s / 2, _TICK_MS / 1_000), _SLOWEST_S) - 0.01
        if self._stale or (self.span.live and moved):
            self.draw()

    def draw(self) -> None:
        """Draw all plots now."""
        samples = self.samples
        if samples is None:
            return
        from launcher.gui.plots.samples import Columns

        self._stale = False
        self._drawn_s = samples.newest_s
        self.drawings += 1
        span, divided = self.span, dict[int, "Columns"]()
        times = samples.times(samples.between(span.start_s, span.end_s))

        def columns(count: int) -> Columns:
            """Divide the samples; cards of one width share it."""
            if count not in divided:
                divided[count] = Columns.of(times, span.length_s / count)
            return divided[count]

        marks = self.marks.between(span.start_s, span.end_s)
        for card in self.cards:
            card.draw(samples, span, marks, columns)
        self.head.show_span(span)
        self._show_cursor()

    def _show_readings(self, latest: Sampled, samples: Samples) -> None:
        has_gpu = any(name in samples.names for name in GPU_NAMES)
        self._vram.setVisible(has_gpu)
        self._host.setVisible(not has_gpu)
        for card in self.cards:
            if not card.isHidden():
                card.show_readings(latest.readings, samples)
        self._make_room()
        self._rate.show_aside(*asides.of_rate(samples, self.references.limit, self._controller.note))
        drafts = asides.of_drafts(latest)
        if drafts is not None:
            self._acceptance.show_aside(*drafts)
        if self._gpu.absent is None:
            self._gpu.show_aside(*asides.of_throttling(latest, self._throttled))
        self._vram.show_aside(*asides.of_memory(latest, "vram_used_mib", "vram_total_mib"))
        self._host.show_aside(*asides.of_memory(latest, "host_memory_used_mib", "host_memory_total_mib"))

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Leave out what the plots have in common where there is little height."""
        super().resizeEvent(event)
        self._make_room()

    def _make_room(self) -> None:
        dense = self.height() < theme.px(_DENSE)
        timed = [card for card in self.cards if not card.isHidden() and card.absent is None][-1 if dense else 0 :]
        if (dense, timed) != self._room:
            self._room = dense, timed
            for card in self.cards:
                card.show_dense(dense, times=card in timed)

    # the plots' library comes after the first paint

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Once there was something to see, load the plots."""
        super().paintEvent(event)
        if not self._attaching:
            self._attaching = True
            QTimer.singleShot(0, self, self.attach)

    def attach(self) -> None:
        """Load the plots' library, unless that was done, and put the plots into the cards."""
        if self.samples is not None:
            return
        from launcher.gui.plots.chart import Chart
        from launcher.gui.plots.samples import Samples

        self._attaching = True
        self.samples = Samples()
        for card in self.cards:
            chart = Chart(card.plot)
            card.attach(chart)
            chart.overlay.hovered.connect(lambda share, card=card: self.point(card, share))
            chart.overlay.left.connect(lambda: self.point(None))
            chart.overlay.zoomed.connect(self.zoom)
            chart.overlay.dragged.connect(self.pan)
            chart.overlay.homed.connect(self.home)
        self._room = None
        self._make_room()
        waiting, self._waiting = self._waiting, []
        self._keep(self.samples, waiting)
        self.redraw()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802
        """Draw what came while nobody looked."""
        super().showEvent(event)
        self._said_s = float("-inf")
        self.redraw()

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802
        """Draw nothing that nobody sees."""
        super().hideEvent(event)
        self._timer.stop()

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802
        """Take the colours of another theme."""
        super().changeEvent(event)
        if event.type() is QEvent.Type.PaletteChange:
            for card in self.cards:
                if card.chart is not None:
                    card.chart.recolour()
            self.redraw()

    # the axis of time

    def zoom(self, notches: float, share: float = 1.0) -> None:
        """Zoom in by notches of the wheel around a share of the width, with negative ones out."""
        self.span.zoom(notches, self.span.start_s + share * self.span.length_s)
        self.redraw()

    def pan(self, share: float) -> None:
        """Go back by a share of the width, with a negative one forward."""
        self.span.pan(share * self.span.length_s)
        self.redraw()

    def home(self) -> None:
        """Back to now and to the usual stretch of time."""
        self.span.home()
        self.cursor_line.clear()
        self.redraw()

    def toggle_pause(self) -> None:
        """Hold what is shown, or follow the newest samples again."""
        if self.span.live:
            self.span.hold()
        else:
            self.span.go_live()
        self.redraw()

    def choose_length(self, seconds: float) -> None:
        """Show this many seconds."""
        self.span.choose(seconds)
        self.redraw()

    # the read-out

    def point(self, card: PlotCard | None, share: float = 0.0) -> None:
        """Read values at a share of the width, as the pointer over a card does; None when it is gone."""
        self.cursor_line.point(card, share)
        self._show_cursor()

    def _show_cursor(self) -> None:
        if self.samples is not None:
            said = self.cursor_line.show(self.samples)
            self.head.say(said.line, said.whole)
            if self._board.accessibleDescription() != said.whole:
                self._board.setAccessibleDescription(said.whole)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Arrows move the read-out, with Ctrl to the next mark, with Shift the axis; + and - zoom, Home goes live."""
        key, modifiers = Qt.Key(event.key()), event.modifiers()
        way = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(key)
        at = self.cursor_line.share
        if way is not None and modifiers & Qt.KeyboardModifier.ShiftModifier:
            self.pan(-way / 10)
        elif way is not None and self.samples is not None:
            to_mark = bool(modifiers & Qt.KeyboardModifier.ControlModifier)
            self.cursor_line.step(self.samples, way, to_mark=to_mark)
            self.redraw()
        elif key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal, Qt.Key.Key_Minus):
            self.zoom(-1 if key is Qt.Key.Key_Minus else 1, 1.0 if at is None else at)
        elif key is Qt.Key.Key_Home:
            self.home()
        elif key is Qt.Key.Key_Space:
            self.toggle_pause()
        elif key is Qt.Key.Key_Escape and at is not None:
            self.cursor_line.clear()
            self.redraw()
        else:
            super().keyPressEvent(event)

    # export

    def export_csv(self, folder: Path | None = None) -> None:
        """Write what is shown as a table into a folder, else the user's downloads; a line in place tells where."""
        if self.samples is None or not len(self.samples):
            self.head.tell(tr("There is nothing to export yet."))
            return
        from launcher.gui.plots.export import table_of

        start_s, end_s = self.span.start_s, self.span.end_s
        table = table_of(self.samples, start_s, end_s, self.marks.between(start_s, end_s))
        save_table(self._controller.bridge, table, free_path("csv", folder), self._saved)

    def export_png(self, folder: Path | None = None) -> None:
        """Write a picture of the plots likewise."""
        picture = self._board.grab().toImage()
        save_picture(self._controller.bridge, picture, free_path("png", folder), self._saved)

    def _saved(self, words: str, path: Path | None) -> None:
        self.head.tell(words)
        if path is not None:
            self.exported.emit(str(path))

    def _build(self) -> None:
        self._board = QWidget()
        self._board.setObjectName("conversation")
        self._board.setAccessibleName(tr("Plots"))
        column = QVBoxLayout(self._board)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        for card, height in zip(self.cards, _HEIGHTS, strict=True):
            column.addWidget(card, height)
        column.addStretch(0)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        area.setWidget(self._board)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP))
        layout.addWidget(self.head)
        layout.addWidget(area, 1)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(tr("Plots: arrows read values, Ctrl and arrows go from mark to mark"))
        self.head.length_chosen.connect(self.choose_length)
        self.head.pause_asked.connect(self.toggle_pause)
        self.head.table_asked.connect(self.export_csv)
        self.head.picture_asked.connect(self.export_png)
