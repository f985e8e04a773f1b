"""The list of coding agents: which are installed, with their version and need, and how the last check went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PySide6.QtCore import (
    QAbstractListModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QRect,
    QRectF,
    QSize,
    Qt,
    Signal,
    Slot,
)
from PySide6.QtGui import QFontMetrics, QPainter, QPen
from PySide6.QtWidgets import QFrame, QListView, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from launcher.gui import theme
from launcher.gui.agents.text import describe_agent, describe_version
from launcher.gui.labels import escape_tooltip
from launcher.gui.translation import tr
from launcher.gui.widgets.glyphs import paint_glyph

if TYPE_CHECKING:
    from launcher.agents.agent import Agent
    from launcher.gui.agents.control import AgentControl

_Index = QModelIndex | QPersistentModelIndex
_ROW, _TILE, _GLYPH, _PAD = 56, 36, 16, 10
_TILES = {"opencode": "oc", "codex": "Cx", "claude": "Cc", "qwen": "Qw"}
"""Letters in an agent's tile that are not the first two of its title."""


class AgentRows(QAbstractListModel):
    """The agents as rows."""

    def __init__(self, control: AgentControl, parent: QObject) -> None:
        super().__init__(parent)
        self.control = control
        self.agents: tuple[Agent, ...] = ()
        control.agents_changed.connect(self._show_agents)
        self._show_agents()

    @Slot()
    def _show_agents(self) -> None:
        if self.control.agents != self.agents:
            self.beginResetModel()
            self.agents = self.control.agents
            self.endResetModel()
        elif self.agents:
            self.dataChanged.emit(self.index(0), self.index(len(self.agents) - 1))

    def rowCount(self, _parent: _Index = QModelIndex()) -> int:  # noqa: N802, B008 -- Qt's
        """Return the number of agents."""
        return len(self.agents)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401
        """Return an agent's text for display, screen readers and its tooltip; None for a row that is gone."""
        if not 0 <= index.row() < len(self.agents):
            return None
        agent = self.agents[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return agent.title
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{agent.title}, {describe_agent(self.control, agent)}"
        if role == Qt.ItemDataRole.ToolTipRole:
            return escape_tooltip(describe_version(self.control, agent))
        return None


class AgentList(QListView):
    """View of the agents. `chosen` is emitted when the user chooses one."""

    chosen = Signal(str)

    def __init__(self, rows: AgentRows) -> None:
        super().__init__()
        self._rows = rows
        self.setObjectName("agents")
        self.setAccessibleName(tr("Coding agent"))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setModel(rows)
        self.setItemDelegate(_AgentDelegate(rows, self))
        self.setMouseTracking(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.selectionModel().currentChanged.connect(self._emit_choice)
        rows.modelReset.connect(self.show_choice)
        self.show_choice()

    @Slot()
    def show_choice(self) -> None:
        """Select the chosen agent."""
        agent = self._rows.control.agent
        if agent in self._rows.agents:
            index = self._rows.index(self._rows.agents.index(agent))
            if index != self.currentIndex():
                self.setCurrentIndex(index)

    @Slot(QModelIndex, QModelIndex)
    def _emit_choice(self, current: QModelIndex, _before: QModelIndex) -> None:
        if current.isValid():
            self.chosen.emit(self._rows.agents[current.row()].name)


class _AgentDelegate(QStyledItemDelegate):
    """Paints an agent: a tile (dashed if it is not installed), title and a line, and the outcome of its check."""

    def __init__(self, rows: AgentRows, parent: QObject) -> None:
        super().__init__(parent)
        self._rows = rows

    def sizeHint(self, _option: QStyleOptionViewItem, _index: _Index) -> QSize:  # noqa: N802 -- Qt's name
        """Return the size of a row."""
        return QSize(theme.px(160), theme.px(_ROW))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        """Paint one row."""
        control, agent = self._rows.control, self._rows.agents[index.row()]
        is_installed = control.found is not None and agent in control.found.installed
        rect = QRect(option.rect).adjusted(0, 2, 0, -2)
        state = option.state
        pad, radius = theme.px(_PAD), theme.px(theme.CONTROL_RADIUS)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        frame = QRectF(rect).adjusted(1, 1, -1, -1)
        if state & QStyle.StateFlag.State_Selected:
            has_focus = bool(state & QStyle.StateFlag.State_HasFocus)
            painter.setPen(QPen(theme.colour("accent"), 2 if has_focus else 1))
            painter.setBrush(theme.mix_colours(theme.colour("card"), theme.colour("accent"), 0.12))
            painter.drawRoundedRect(frame, radius, radius)
        elif state & QStyle.StateFlag.State_MouseOver:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme.colour("raised"))
            painter.drawRoundedRect(frame, radius, radius)
        size = theme.px(_TILE)
        tile = QRect(rect.left() + pad, rect.center().y() - size // 2 + 1, size, size)
        pen = QPen(theme.colour("border" if is_installed else "control"), 1)
        pen.setStyle(Qt.PenStyle.SolidLine if is_installed else Qt.PenStyle.DashLine)
        painter.setPen(pen)
        painter.setBrush(theme.colour("raised") if is_installed else Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(QRectF(tile).adjusted(0.5, 0.5, -0.5, -0.5), radius, radius)
        painter.setFont(theme.font(theme.BODY_PX, bold=is_installed))
        painter.setPen(theme.colour("text" if is_installed else "secondary"))
        painter.drawText(tile, Qt.AlignmentFlag.AlignCenter, _TILES.get(agent.name, agent.title[:2]))
        glyph = theme.px(_GLYPH)
        right = rect.right() - pad - glyph
        self._paint_glyph(painter, agent, QRectF(right, rect.center().y() - glyph / 2, glyph, glyph))
        left = tile.right() + theme.px(theme.GAP_M)
        lines = (
            (agent.title, theme.font(theme.BODY_PX, bold=True), "text"),
            (describe_agent(control, agent), theme.font(theme.CAPTION_PX, tabular=True), "secondary"),
        )
        heights = [QFontMetrics(font).height() for _, font, _ in lines]
        top = rect.center().y() - sum(heights) // 2 + 1
        for (text, font, role), height in zip(lines, heights, strict=True):
            box = QRect(left, top, right - left - theme.px(theme.GAP_S), height)
            painter.setFont(font)
            painter.setPen(theme.colour(role))
            short = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, box.width())
            painter.drawText(box, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, short)
            top += height
        painter.restore()

    def _paint_glyph(self, painter: QPainter, agent: Agent, rect: QRectF) -> None:
        control = self._rows.control
        record = control.find_record(agent.name)
        if control.found is None or agent not in control.found.installed:
            paint_glyph(painter, "right", rect, theme.colour("secondary"))
        elif record is not None:
            ready = record.verdict.ready
            paint_glyph(painter, "tick" if ready else "cross", rect, theme.colour("good" if ready else "bad"))
