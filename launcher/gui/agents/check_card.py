"""The requests of a check, one below the other: what was read and reused, how fast, and with which result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QSizePolicy, QWidget

from launcher.gui import theme
from launcher.gui.agents.text import format_share, step_name
from launcher.gui.labels import UNKNOWN, ElidedLabel, Label, set_tooltip
from launcher.gui.translation import render, tr
from launcher.gui.widgets import Card, Glyph
from launcher.gui.widgets.blocks import make_caption

if TYPE_CHECKING:
    from launcher.agents.check import CheckedRequest

STEPS = ("first_prompt", "tool_result", "next_question")
OWN_API = "own_api"
_HEAD, _ROW, _BAR, _WIDEST_BAR = 28, 40, 10, 250
_NOTE_WIDTH, _FIGURES_WIDTH, _RESULT_WIDTH = 700, 560, 400
"""Widths of the card in pixels at 100 % below which notes, figures beside the reuse, and the result's text go."""


class PromptBar(QWidget):
    """A bar of a prompt: what was reused, then what was read, and the figure."""

    def __init__(self) -> None:
        super().__init__()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._reused = self._read = 0
        self._most = 1

    def show_tokens(self, reused: int | None, total: int | None, most: int) -> None:
        """Show a prompt of `total` tokens, of which `reused` were reused; `most` are those of the longest bar."""
        self._reused = min(reused or 0, total or 0)
        self._read, self._most = (total or 0) - self._reused, max(most, 1)
        text = tr("{reused:,} tokens reused, {read:,} read", reused=self._reused, read=self._read)
        self.setAccessibleName(text if total else UNKNOWN)
        self.setToolTip(text if total else "")
        self.update()

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return a size with room for the figure."""
        return QSize(theme.px(_WIDEST_BAR), theme.px(20))

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the least size."""
        return QSize(theme.px(90), theme.px(20))

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the two parts and the figure."""
        total = self._reused + self._read
        font = theme.font(theme.CAPTION_PX, tabular=True)
        metrics = QFontMetrics(font)
        text = f"{total:,}" if total else UNKNOWN
        room = min(self.width() - metrics.horizontalAdvance("000,000") - theme.px(theme.GAP), theme.px(_WIDEST_BAR))
        bar, x = theme.px(_BAR), 0.0
        top = (self.height() - bar) / 2
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            for tokens, colour in ((self._reused, _reused_colour()), (self._read, _read_colour())):
                wide = room * tokens / self._most
                if tokens:
                    wide = max(wide, 3.0)
                    painter.setBrush(colour)
                    painter.drawRoundedRect(QRectF(x, top, wide, bar), 2, 2)
                    x += wide + 2
            painter.setFont(font)
            painter.setPen(theme.colour("secondary"))
            left = x + (theme.px(6) if total else 0)
            painter.drawText(QRectF(left, 0, self.width() - left, self.height()), Qt.AlignmentFlag.AlignVCenter, text)


def _reused_colour() -> QColor:
    """Return the colour of what was reused: that of the KV cache in memory bars."""
    return QColor(theme.current().memory[1])


def _read_colour() -> QColor:
    """Return the colour of what was read."""
    return theme.mix_colours(theme.colour("secondary"), theme.colour("card"), 0.25)


class _Swatch(QWidget):
    """A small square for the legend: what was reused, or read."""

    def __init__(self, *, reused: bool) -> None:
        super().__init__()
        self._is_reused = reused
        self.setFixedSize(theme.px(10), theme.px(10))

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Paint the square."""
        with QPainter(self) as painter:
            painter.fillRect(self.rect(), _reused_colour() if self._is_reused else _read_colour())


@dataclass(frozen=True, slots=True)
class _Row:
    line: QFrame
    name: Label
    note: Label
    bar: PromptBar
    reused: Label
    first_token: Label
    glyph: Glyph
    result: ElidedLabel
    accepted: Label

    @property
    def widgets(self) -> tuple[QWidget, ...]:
        return (self.name, self.note, self.bar, self.reused, self.first_token, self.glyph, self.result, self.accepted)


class CheckCard(Card):
    """The turns of the last check, or of the running one as they come."""

    def __init__(self) -> None:
        super().__init__(tr("The check, turn by turn"))
        self._legend: list[QWidget] = []
        for reused, text in ((True, tr("reused")), (False, tr("read"))):
            caption = make_caption(text)
            caption.setWordWrap(False)
            self._legend += [_Swatch(reused=reused), caption]
        for widget in self._legend:
            self.head.addWidget(widget)
        self.body.setSpacing(theme.px(theme.GAP_S))
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(theme.px(theme.GAP_M))
        self._grid.setVerticalSpacing(0)
        self._grid.setColumnStretch(2, 3)
        self._grid.setColumnStretch(6, 2)
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        heads = ((2, tr("Prompt, tokens"), None), (3, tr("Reused"), right), (4, tr("First token"), right),
                 (6, tr("Result"), None), (7, tr("Accepted"), right))  # fmt: skip
        self._heads: dict[int, Label] = {}
        for column, text, alignment in heads:
            head = self._heads[column] = make_caption(text)
            head.setWordWrap(False)
            if alignment is not None:
                head.setAlignment(alignment)
            self._grid.addWidget(head, 0, column)
        set_tooltip(self._heads[3], tr("Share of the prompt before that was not read again"))
        self._grid.setRowMinimumHeight(0, theme.px(_HEAD))
        self.rows: dict[str, _Row] = {}
        for at, step in enumerate((*STEPS, OWN_API)):
            self.rows[step] = self._add_row(2 * at + 1, step)
        self.body.addLayout(self._grid)
        self._show_row(self.rows[OWN_API], visible=False)

    def _add_row(self, at: int, step: str) -> _Row:
        title, remark = step_name(step)
        line = QFrame()
        line.setObjectName("line")
        line.setFixedHeight(1)
        row = _Row(
            line, Label(title), Label(remark), PromptBar(), Label(UNKNOWN), Label(UNKNOWN), Glyph("dot"),
            ElidedLabel(UNKNOWN), Label(UNKNOWN),
        )  # fmt: skip
        row.name.setFont(theme.font(theme.BODY_PX, bold=True))
        row.note.setObjectName("secondary")
        for label in (row.reused, row.first_token, row.accepted):
            label.setFont(theme.font(theme.BODY_PX, bold=label is row.reused, tabular=True))
            label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        row.result.setMinimumWidth(theme.px(40))
        policy = row.glyph.sizePolicy()
        policy.setRetainSizeWhenHidden(True)
        row.glyph.setSizePolicy(policy)
        self._grid.addWidget(line, at, 0, 1, 8)
        self._grid.setRowMinimumHeight(at + 1, theme.px(_ROW) if step != OWN_API else 0)
        for column, widget in enumerate(row.widgets):
            self._grid.addWidget(widget, at + 1, column)
        return row

    def show_requests(self, requests: Sequence[CheckedRequest], *, with_api: bool, is_dim: bool = False) -> None:
        """Show the requests of a check. `with_api`: the agent has an API of its own. `is_dim`: they are out of date."""
        by_step = {str(each.step): each for each in requests}
        most = max((each.prompt_tokens or 0 for each in requests), default=1)
        self._show_row(self.rows[OWN_API], visible=with_api)
        for step, row in self.rows.items():
            if step != OWN_API or with_api:
                self._fill_row(row, by_step.get(step), most)
        self._grid.setRowMinimumHeight(2 * len(STEPS) + 2, theme.px(_ROW) if with_api else 0)
        self.setEnabled(not is_dim)
        self._arrange()

    @staticmethod
    def _fill_row(row: _Row, request: CheckedRequest | None, most: int) -> None:
        if request is None:
            row.bar.show_tokens(None, None, most)
            for label in (row.reused, row.first_token, row.accepted, row.result):
                label.setText(UNKNOWN)
            row.glyph.hide()
            return
        row.bar.show_tokens(request.reused_tokens, request.prompt_tokens, most)
        row.reused.setText(format_share(request.reuse))
        seconds = request.first_token_s
        row.first_token.setText(UNKNOWN if seconds is None else f"{seconds:.2f} s")
        row.glyph.show()
        row.glyph.show_glyph(*(("tick", "good") if request.passed else ("cross", "bad")))
        row.result.setText(render(request.result))
        row.accepted.setText(format_share(request.acceptance))

    @staticmethod
    def _show_row(row: _Row, *, visible: bool) -> None:
        for widget in (row.line, *row.widgets):
            widget.setVisible(visible)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Leave out columns where there is little room."""
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        width = self.width() / theme.text_scale()
        has_notes, has_figures, has_results = (width >= least for least in (_NOTE_WIDTH, _FIGURES_WIDTH, _RESULT_WIDTH))
        for row in self.rows.values():
            is_there = not row.name.isHidden()
            row.note.setVisible(is_there and has_notes)
            row.first_token.setVisible(is_there and has_figures)
            row.accepted.setVisible(is_there and has_figures)
            row.result.setVisible(is_there and has_results)
        for widget in self._legend:
            widget.setVisible(has_results)
        for column, shown in ((4, has_figures), (6, has_results), (7, has_figures)):
            self._heads[column].setVisible(shown)
