"""Card with an agent's needs of a server: a meter of the context, and a row for each other need."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import TYPE_CHECKING

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QSizePolicy, QWidget

from launcher.gui import theme
from launcher.gui.agents.text import describe_context, format_whole_thousands, need_name
from launcher.gui.labels import UNKNOWN, Label
from launcher.gui.translation import render, tr
from launcher.gui.widgets import Card, Glyph
from launcher.gui.widgets.blocks import make_caption

if TYPE_CHECKING:
    from launcher.app.agent_session import AgentSession, Need

_KINDS = ("model", "prompt cache", "KV cache", "sampling", "template")
_GLYPHS = {True: ("tick", "good"), False: ("triangle", "attention"), None: ("dot", "secondary")}
_LEAST_TOKENS = 4_096
_BAR, _ROW = 8, 44


class ContextMeter(QWidget):
    """A bar of the context on a logarithmic scale from 4K, with the need as a mark and the largest that fits."""

    def __init__(self) -> None:
        super().__init__()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._need = self._runs = 0
        self._fits: int | None = None
        self._is_running, self._role = True, "information"

    def show_tokens(
        self, need: int, runs: int, fits: int | None, *, is_running: bool, role: str = "information"
    ) -> None:
        """Show the need, the context in a colour role, and the largest that fits (None: unknown), in tokens."""
        self._role = role
        self._need, self._runs, self._fits, self._is_running = need, runs, fits, is_running
        self.setAccessibleName(", ".join(text for _, text in self._labels()))
        self.update()

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the height of the bar and its words."""
        height = QFontMetrics(theme.font(theme.CAPTION_PX)).height()
        return QSize(theme.px(160), theme.px(_BAR + 10) + height)

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return a width in which the words have room."""
        return QSize(theme.px(120), self.sizeHint().height())

    def _labels(self) -> list[tuple[int, str]]:
        """Return the words below the bar, each with its tokens."""
        words = [(self._need, tr("needs {context}", context=format_whole_thousands(self._need)))] if self._need else []
        if self._runs:
            text = tr("runs {context}") if self._is_running else tr("gets {context}")
            words.append((self._runs, text.format(context=format_whole_thousands(self._runs))))
        if self._fits and self._fits > self._runs:
            words.append((self._fits, tr("fits {context}", context=format_whole_thousands(self._fits))))
        return sorted(words)

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the bar, the mark and the words."""
        width, bar, top = self.width(), theme.px(_BAR), theme.px(4)
        most = max(self._fits or 0, self._runs, 2 * self._need, 2 * _LEAST_TOKENS)

        def place(tokens: int) -> float:
            return width * max(0.0, log(max(tokens, _LEAST_TOKENS) / _LEAST_TOKENS)) / log(most / _LEAST_TOKENS)

        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme.colour("border"))
            painter.drawRoundedRect(QRectF(0, top, width, bar), bar / 2, bar / 2)
            if self._runs:
                painter.setBrush(theme.colour(self._role))
                painter.drawRoundedRect(QRectF(0, top, max(place(self._runs), bar), bar), bar / 2, bar / 2)
            if self._need:
                painter.fillRect(QRectF(place(self._need) - 1, top - 3, 2, bar + 6), theme.colour("text"))
            font = theme.font(theme.CAPTION_PX, tabular=True)
            painter.setFont(font)
            painter.setPen(theme.colour("secondary"))
            metrics, left = QFontMetrics(font), 0.0
            boxes = []
            for tokens, text in self._labels():
                wide = metrics.horizontalAdvance(text)
                left = max(left, min(place(tokens) - wide / 2, width - wide))
                boxes.append((left, wide, text))
                left += wide + theme.px(theme.GAP_M)
            limit = float(width)
            for at, wide, text in reversed(boxes):  # moves boxes back that were pushed past the edge
                at = max(0.0, min(at, limit - wide))
                limit = at - theme.px(theme.GAP)
                painter.drawText(QRectF(at, top + bar + 4, wide + 2, metrics.height()), 0, text)


class NeedsCard(Card):
    """The meter, and a row for each need with its state and a remark."""

    def __init__(self) -> None:
        super().__init__(tr("What it needs"))
        self.count = make_caption()
        self.count.setWordWrap(False)
        self.head.addWidget(self.count)
        self.head.addStrut(theme.px(theme.CONTROL_HEIGHT))  # as high as the head of the card beside it
        self.body.setSpacing(theme.px(theme.GAP))
        self.context, self.meter = Label(UNKNOWN), ContextMeter()
        self.context.setFont(theme.font(theme.BODY_PX, bold=True, tabular=True))
        self.context.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.context.setWordWrap(True)
        row = QHBoxLayout()
        row.addWidget(Label(tr("Context")))
        row.addWidget(self.context, 1)
        self.body.addLayout(row)
        self.body.addWidget(self.meter)
        self._rows: dict[str, tuple[Glyph, Label]] = {}
        grid = QGridLayout()
        grid.setHorizontalSpacing(theme.px(theme.GAP))
        grid.setVerticalSpacing(0)
        grid.setColumnStretch(2, 1)
        for at, kind in enumerate(_KINDS):
            line = QFrame()
            line.setObjectName("line")
            line.setFixedHeight(1)
            glyph, name, remark = Glyph("dot"), Label(need_name(kind)), Label(UNKNOWN)
            name.setMinimumWidth(theme.px(104))
            policy = glyph.sizePolicy()
            policy.setRetainSizeWhenHidden(True)
            glyph.setSizePolicy(policy)
            remark.setObjectName("secondary")
            remark.setWordWrap(True)
            remark.setFont(theme.font(theme.BODY_PX, tabular=True))
            grid.addWidget(line, 2 * at, 0, 1, 3)
            for column, widget in enumerate((glyph, name, remark)):
                grid.addWidget(widget, 2 * at + 1, column, Qt.AlignmentFlag.AlignVCenter)
            grid.setRowMinimumHeight(2 * at + 1, theme.px(_ROW))
            self._rows[kind] = (glyph, remark)
        self.body.addLayout(grid)
        self.body.addStretch()

    def show_session(self, session: AgentSession | None, judged: Mapping[str, tuple[bool, str]]) -> None:
        """Show what a session gets; None while unknown. `judged` are needs that a check found met or unmet."""
        needs: dict[str, Need] = {each.kind.value: each for each in session.needs} if session is not None else {}
        met = 0
        for kind, (glyph, remark) in self._rows.items():
            need = needs.get(kind)
            is_met, text = (None, UNKNOWN) if need is None else (need.met, render(need.remark))
            if need is not None and kind in judged:
                is_met, text = judged[kind]
            if kind == "model" and session is not None and kind in judged:
                text = f"{session.server.model} · {text}"
            glyph.show_glyph(*_GLYPHS[is_met])
            glyph.setVisible(need is not None)
            remark.setText(text)
            met += bool(is_met)
        if session is None:
            self.context.setText(UNKNOWN)
            self.meter.show_tokens(0, 0, None, is_running=True)
            self.count.setText("")
            return
        agent, total = session.agent, len(self._rows) + 1
        self.context.setText(describe_context(session))
        role = "information" if session.context >= agent.least_context else "attention"
        self.meter.show_tokens(
            agent.least_context,
            session.context,
            session.largest_context,
            is_running=session.is_running,
            role=role if session.has_enough_context else "bad",
        )
        self.count.setText(tr("{met} of {total} met", met=met + session.has_enough_context, total=total))
