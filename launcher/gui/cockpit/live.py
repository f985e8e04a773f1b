"""The live column beside the chat: speed, accepted drafts and memory now, and what this chat takes."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from PySide6.QtCore import QPointF, Qt, QTimer, Slot
from PySide6.QtGui import QHideEvent, QPainter, QPaintEvent, QPen, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from launcher.base.units import format_percent
from launcher.gui import theme
from launcher.gui.chat.drafts import format_ordinal
from launcher.gui.chat.pane import ChatPane
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.controller import Controller
from launcher.gui.labels import UNKNOWN, Label, set_tooltip
from launcher.gui.plots.panel import PlotPanel
from launcher.gui.plots.quantities import GPU_NAMES, PLOTS, Plot, position_name
from launcher.gui.plots.readout import ReadOut
from launcher.gui.plots.row import find_reading
from launcher.gui.plots.samples import Columns
from launcher.gui.translation import render, tr
from launcher.gui.widgets import Card
from launcher.gui.widgets.blocks import make_caption
from launcher.gui.widgets.scrolling import make_scroll_area
from launcher.machine.gpu import Reading

if TYPE_CHECKING:
    from launcher.gui.plots.asides import PlotState
    from launcher.gui.plots.samples import Samples

_UPDATE_MS = 200
"""Least time between two updates: nobody reads faster, and a line moves by half a pixel in that time."""
_SPAN_S = 60.0
"""Time span of the lines, in seconds."""
_LINE_HEIGHT, _DOT_RADIUS, _NUMBER_PX = 26, 3.0, 30
_POSITIONS = 4
"""Draft positions that are named."""
_SHOWN_PLOTS, _WITH_LINE = ("rate", "acceptance", "vram", "host"), ("rate", "acceptance")
"""The plots whose values are shown, and those of them with a line."""
_THOUSAND = 1_024


class Sparkline(QWidget):
    """The last minute of a plot's main series as a line, with a dot at its newest value."""

    def __init__(self, plot: Plot) -> None:
        super().__init__()
        self._plot = plot
        self._samples: Samples | None = None
        self.setFixedHeight(theme.px(_LINE_HEIGHT))

    def show_samples(self, samples: Samples | None) -> None:
        """Show other samples, or none."""
        self._samples = samples
        self.update()

    def find_points(self) -> list[list[QPointF]]:
        """Return the lines between gaps, in pixels."""
        samples, quantity = self._samples, self._plot.read_outs[0]
        if samples is None or not len(samples):
            return []
        end_s, radius = samples.newest_s, theme.px(_DOT_RADIUS)
        width, height = self.width() - 2 * radius, self.height() - 2 * radius
        part = samples.slice_between(end_s - _SPAN_S, end_s)
        columns = Columns.group(samples.times(part), _SPAN_S / max(width, 1))
        values = [float(each) for each in columns.decimate(samples.values(quantity.name, part))]
        bottom, top = self._plot.bottom or 0.0, self._plot.top or self._plot.least / quantity.scale
        known = [each for each in values if not isnan(each)]
        bottom, top = min([bottom, *known]), max([top, *known])
        lines: list[list[QPointF]] = [[]]
        for time_s, value in zip(columns.times, values, strict=True):
            share = 1 - (end_s - float(time_s)) / _SPAN_S
            if isnan(value):
                lines.append([])
            elif share >= 0:
                y = radius + height * (1 - (value - bottom) / (top - bottom))
                lines[-1].append(QPointF(radius + width * min(share, 1.0), y))
        return [line for line in lines if line]

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Paint the line over its base."""
        colour = theme.colour(self._plot.read_outs[0].colour)
        with QPainter(self) as painter:
            painter.fillRect(0, self.height() - 1, self.width(), 1, theme.colour("border"))
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            lines = self.find_points()
            painter.setPen(QPen(colour, 1.2))
            for line in lines:
                painter.drawPolyline(line)
            if lines:
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(colour)
                painter.drawEllipse(lines[-1][-1], theme.px(_DOT_RADIUS), theme.px(_DOT_RADIUS))


class LiveFigure(QWidget):
    """A plot's newest value, with the last minute as a line."""

    def __init__(self, plot: Plot) -> None:
        super().__init__()
        self.plot = plot
        self.read_out = ReadOut(plot.read_outs[0])
        self.read_out.set_pixels(_NUMBER_PX)
        self.line = Sparkline(plot)
        self.read_out.insert_line(self.line, caption_lines=2 if plot.name in _WITH_LINE else 1)
        self.line.setVisible(plot.name in _WITH_LINE)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.read_out)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def show_state(self, state: PlotState | None, absence: str) -> None:
        """Show the newest values; with an `absence` only the line, and why there is no value."""
        found = None
        if state is not None:
            found = find_reading(self.plot, state.latest.readings, state.samples, state.server_start_s)
        quantity, reading, last = found or (self.plot.read_outs[0], Reading.unknown(tr("Not read yet.")), None)
        if absence:
            reading, last = Reading.unknown(absence), None
        self.read_out.show_reading(quantity, reading, last)
        self.read_out.show_aside("" if absence or state is None else self._describe(state))
        self.line.show_samples(None if state is None else state.samples)

    def _describe(self, state: PlotState) -> str:
        """Return the text below the number."""
        if self.plot.name == "rate":
            return ""
        if self.plot.name == "acceptance":
            return self._describe_positions(state)
        aside = None if self.plot.aside is None else self.plot.aside(state)
        return "" if aside is None else aside[0].partition("\n")[0]

    @staticmethod
    def _describe_positions(state: PlotState) -> str:
        parts = [state.drafter] if state.drafter else []
        for position in range(1, _POSITIONS + 1):
            last = state.samples.last_known(position_name(position))
            if last is not None and state.samples.newest_s - last[1] >= state.server_start_s:
                parts.append(tr("{ordinal} {percent:.0f}", ordinal=format_ordinal(position), percent=last[0]))
        return " · ".join(parts)


class LiveColumn(Card):
    """Column with the values of now, and the settings and tokens of the open chat.

    It is updated at the rate of the plots' numbers, and only while it is visible.
    """

    def __init__(self, controller: Controller, plots: PlotPanel, chat: ChatPane, state: SettingsState) -> None:
        super().__init__()
        self._controller, self._plots, self._chat, self._state = controller, plots, chat, state
        self.figures = [LiveFigure(plot) for plot in PLOTS if plot.name in _SHOWN_PLOTS]
        self.updates = 0
        """Number of updates."""
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(_UPDATE_MS)
        self._timer.timeout.connect(self.show_state)
        self._build()
        plots.recorded.connect(self._schedule_update)
        controller.view_changed.connect(self._schedule_update)
        chat.use_changed.connect(self._schedule_update)
        state.sampling_changed.connect(self._schedule_update)
        self.show_state()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 -- Qt's name
        """Show what came while the column was hidden."""
        super().showEvent(event)
        self._timer.start(0)

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802
        """Stop updating while hidden."""
        super().hideEvent(event)
        self._timer.stop()

    @Slot()
    def _schedule_update(self) -> None:
        if self.isVisible() and not self.window().isMinimized() and not self._timer.isActive():
            self._timer.start(_UPDATE_MS)

    @Slot()
    def show_state(self) -> None:
        """Show the newest values."""
        self.updates += 1
        state = self._plots.state
        has_gpu = state is not None and any(name in state.samples.names for name in GPU_NAMES)
        launch = self._controller.launch
        drafts = launch is None or launch.options.drafter.drafts
        for figure in self.figures:
            figure.setVisible(figure.plot.with_gpu in (None, has_gpu) and (drafts or figure.plot.name != "acceptance"))
            figure.show_state(state, self._plots.absence_of(figure.plot))
        note = self._controller.note if self._controller.launch is not None else ""
        if self.note.text() != render(note):
            self.note.setText(render(note))
        self.note.setVisible(bool(note))
        self._show_chat()

    def _show_chat(self) -> None:
        launch, use = self._controller.launch, self._chat.context_use
        used = UNKNOWN if use is None else format_token_count(use.tokens)
        if launch is not None:
            context = format_token_count(launch.plan_settings("cpu").slot_context)
            used = tr("{used} of {context}", used=used, context=context)
        thinking, temperature = self._controller.sampling.get("thinking"), self._state.sampling_value("temperature")
        limit = self._state.sampling_value("max_tokens")
        texts = {
            "context": used,
            "reuse": format_percent(None if use is None else use.reuse),
            "thinking": tr("auto") if thinking is None else tr("on") if thinking else tr("off"),
            "temperature": UNKNOWN if temperature is None else f"{temperature:.2f}",
            "limit": UNKNOWN if limit is None else tr("none") if limit < 0 else f"{limit:,.0f}",
        }
        for name, text in texts.items():
            if self.values[name].text() != text:
                self.values[name].setText(text)

    def _build(self) -> None:
        gap, small = theme.px(theme.GAP_L), theme.px(theme.GAP)
        self.body.setContentsMargins(gap, theme.px(10), 0, theme.px(theme.GAP_M))
        self.body.setSpacing(small)
        title = Label(tr("Live"))
        title.setFont(theme.font(theme.SECTION_PX, bold=True))
        self.title_row = QHBoxLayout()
        self.title_row.setContentsMargins(0, 0, small, 0)
        self.title_row.addWidget(title, 1)
        self.body.addLayout(self.title_row)
        inner = QWidget()
        inner.setObjectName("plain")
        column = QVBoxLayout(inner)
        column.setContentsMargins(0, 0, gap, 0)
        column.setSpacing(theme.px(theme.GAP_M))
        for figure in self.figures:
            column.addWidget(figure)
        line = QFrame()
        line.setObjectName("line")
        line.setFixedHeight(1)
        column.addWidget(line)
        heading = Label(tr("This chat"))
        heading.setFont(theme.font(theme.BODY_PX, bold=True))
        column.addWidget(heading)
        column.addLayout(self._make_rows())
        self.note = make_caption()
        """The controller's remark on the speed of the running server."""
        column.addWidget(self.note)
        column.addStretch(1)
        area = make_scroll_area(inner, tr("Live"))
        self.body.addWidget(area, 1)
        self.system_button = QPushButton(tr("System prompt"))
        self.system_button.setObjectName("dense")
        self.system_button.setToolTip(tr("Instructions for the model at the start of the chat"))
        self.system_button.clicked.connect(self._chat.system.open_field)
        foot = QHBoxLayout()
        foot.setContentsMargins(0, 0, gap, 0)
        foot.addWidget(self.system_button)
        self.body.addLayout(foot)

    def _make_rows(self) -> QGridLayout:
        """Return the rows about the open chat."""
        rows = {
            "context": (tr("Context"), tr("Tokens of the last request and its reply, and what the context holds")),
            "reuse": (tr("Reuse"), tr("Part of the last prompt that the server had kept and did not read again")),
            "thinking": (
                tr("Thinking"),
                tr("Whether the model thinks before it replies. Change it in the layout Adjust"),
            ),
            "temperature": (tr("Temperature"), tr("Randomness of replies. Change it in the layout Adjust")),
            "limit": (tr("Token limit"), tr("Longest reply, in tokens. Change it in the layout Adjust")),
        }
        grid = QGridLayout()
        grid.setHorizontalSpacing(theme.px(theme.GAP_S))
        grid.setVerticalSpacing(theme.px(6))
        grid.setColumnStretch(1, 1)
        self.values: dict[str, Label] = {}
        for number, (name, (title, tip)) in enumerate(rows.items()):
            label, value = Label(title), Label()
            label.setObjectName("secondary")
            label.setFont(theme.font(theme.CAPTION_PX))
            value.setFont(theme.font(theme.CAPTION_PX, tabular=True))
            value.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            for each in (label, value):
                set_tooltip(each, tip)
            grid.addWidget(label, number, 0)
            grid.addWidget(value, number, 1)
            self.values[name] = value
        return grid


def format_token_count(count: int) -> str:
    """Return a number of tokens in short: 940, 1.9K, 128K."""
    if count < _THOUSAND:
        return str(count)
    short = f"{count / _THOUSAND:.1f}" if count < 10 * _THOUSAND else f"{count / _THOUSAND:.0f}"
    return f"{short.removesuffix('.0')}K"
