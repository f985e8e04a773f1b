"""Memory bar: a model's memory estimate by part, with a legend."""

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFontMetrics,
    QHelpEvent,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from launcher.gui import theme
from launcher.gui.translation import tr

_MIB, _GIB = 2**20, 2**30
_LEAST_LABELLED_SHARE = 0.06
"""Share of the bar above which a segment is labelled."""
_SHADES = {"weights": 0, "kv": 1, "state": 2, "draft": 3, "compute": 4}
"""Indices of the parts' colours in Theme.memory and Theme.on_memory."""
_LEGEND_ROW_HEIGHT = 20
_OTHERS, _SERVERS = "others", "servers"


class _Segment(NamedTuple):
    key: str
    label: str
    size: int
    mib: int
    """Displayed size: whole MiB, rounded so that they add up."""

    @property
    def hatched(self) -> bool:
        """Whether the memory belongs to other programs or servers."""
        return self.key in (_OTHERS, _SERVERS)

    @property
    def fill_colour(self) -> QColor:
        """Fill colour."""
        colours, shade = theme.current(), _SHADES.get(self.key)
        if shade is not None:
            return QColor(colours.memory[shade])
        return QColor(colours.others if self.key == _OTHERS else colours.driver)

    @property
    def text_colour(self) -> QColor:
        """Text colour."""
        colours, shade = theme.current(), _SHADES.get(self.key)
        return QColor(colours.text if shade is None else colours.on_memory[shade])

    @property
    def brush(self) -> QBrush:
        """The brush of the segment."""
        return QBrush(self.fill_colour, Qt.BrushStyle.BDiagPattern if self.hatched else Qt.BrushStyle.SolidPattern)


class MemoryBar(QWidget):
    """Stacked bar: the parts from dark to light, memory of others hatched, free memory empty. Sizes are in bytes.

    What does not fit is drawn past a line at the memory's end, with the missing MiB. A dashed line shows the margin
    that should stay free.
    """

    def __init__(self) -> None:
        super().__init__()
        self._segments: list[_Segment] = []
        self._total = self._used = self._margin = 0
        self._reason = ""
        self.has_legend = True
        self._drawn: list[tuple[QRectF, str]] = []
        """Painted areas with their tooltips."""
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.show_unknown(tr("No estimate yet."))

    def show_parts(
        self,
        parts: Sequence[tuple[str, str, int]],
        total: int,
        others: int | None,
        margin: int | None,
        *,
        servers: int = 0,
        needed: int | None = None,
        others_label: str = "",
    ) -> None:
        """Show parts (key, label, bytes) in a memory of `total` bytes. The keys weights, kv, ... have a shade each.

        `others` is used by other programs (None: unknown), `servers` by other servers of ours. `needed` is the memory
        that must be free if that is more than the sum of the parts, as with several GPUs. `others_label` is shown in
        place of "other programs" if `others` is memory of something else.
        """
        self._segments, so_far = [], 0
        for key, label, size in parts:
            if size > 0:
                self._segments.append(_Segment(key, label, size, _round_up_mib(so_far + size) - _round_up_mib(so_far)))
                so_far += size
        self._used = max(so_far, needed or 0) + servers + (others or 0)
        if servers:
            self._segments.append(_Segment(_SERVERS, tr("other servers"), servers, _round_up_mib(servers)))
        if others:
            label = others_label or tr("other programs")
            self._segments.append(_Segment(_OTHERS, label, others, _round_up_mib(others)))
        self._total, self._margin, self._reason = total, margin or 0, ""
        text = ", ".join(f"{each.label} {each.mib:,} MiB" for each in self._segments)
        self.setAccessibleName(tr("Memory: {parts}; {rest}", parts=text, rest=self._rest_text()))
        self._update_height()

    def show_unknown(self, reason: str) -> None:
        """Show an empty bar with the reason."""
        self._segments, self._total, self._used, self._margin, self._reason = [], 0, 0, 0, reason
        self.setAccessibleName(tr("Memory: not known. {reason}", reason=reason))
        self._update_height()

    def show_legend(self, *, shows: bool) -> None:
        """Show the legend under the bar, or only tooltips where there is no room."""
        if shows != self.has_legend:
            self.has_legend = shows
            self._update_height()

    @property
    def missing(self) -> int:
        """Missing bytes; 0 if it fits."""
        return max(self._used - self._total, 0)

    def hasHeightForWidth(self) -> bool:  # noqa: N802
        """Return True: the legend wraps."""
        return True

    def heightForWidth(self, width: int) -> int:  # noqa: N802
        """Return the height of bar and legend."""
        if not (self.has_legend or self._reason):
            return theme.px(theme.BAR_HEIGHT)
        rows = len(self._legend_rows(width)) if self._segments or self._reason else 0
        return theme.px(theme.BAR_HEIGHT) + theme.px(6) + rows * theme.px(_LEGEND_ROW_HEIGHT)

    def sizeHint(self) -> QSize:  # noqa: N802
        """Return a size for the current width."""
        width = max(self.width(), theme.px(240))
        return QSize(theme.px(240), self.heightForWidth(width))

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the minimum size."""
        return QSize(theme.px(160), self.heightForWidth(max(self.width(), theme.px(160))))

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Set the legend's height for this width."""
        super().resizeEvent(event)
        if event.oldSize().width() != event.size().width():
            self._update_height()

    def _update_height(self) -> None:
        """Set the minimum height for the width, because outer layouts do not query heightForWidth again."""
        self.setMinimumHeight(self.heightForWidth(self.width()))
        self.updateGeometry()
        self.update()

    def event(self, event: QEvent) -> bool:
        """Show the tooltip of the segment under the pointer."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            tip = next((text for rect, text in self._drawn if rect.contains(QPointF(event.pos()))), "")
            QToolTip.showText(event.globalPos(), tip, self)
            return True
        return super().event(event)

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint bar and legend."""
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            self._paint_bar(painter, QRectF(0, 0, self.width(), theme.px(theme.BAR_HEIGHT)))
            if self.has_legend or self._reason:
                self._paint_legend(painter)

    def _paint_bar(self, painter: QPainter, bar: QRectF) -> None:
        used = self._used
        full_scale = max(used, self._total, 1)
        room = bar.adjusted(0.5, 0.5, -0.5, -0.5)
        memory_end = room.left() + room.width() * (self._total / full_scale if self._total else 1.0)
        border = theme.colour("control")
        self._drawn = []
        path = QPainterPath()
        path.addRoundedRect(room, theme.px(4), theme.px(4))
        painter.save()
        painter.setClipPath(path)
        left = room.left()
        for each in self._segments:
            width = room.width() * each.size / full_scale
            rect = QRectF(left, room.top(), width, room.height())
            self._paint_segment(painter, rect, each, share=each.size / full_scale)
            self._drawn.append((rect, f"{each.label}: {each.mib:,} MiB"))
            left += width
        if used > self._total:
            excess = QRectF(memory_end, room.top(), room.right() - memory_end, room.height())
            painter.fillRect(excess, theme.colour("bad"))
            self._drawn.insert(0, (excess, self._rest_text()))
        elif self._total:
            rest = QRectF(left, room.top(), room.right() - left, room.height())
            self._drawn.append((rest, self._rest_text()))
        painter.restore()
        painter.setPen(QPen(border, 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawPath(path)
        if self._total and used > self._total:
            painter.setPen(QPen(theme.colour("text"), 2))
            painter.drawLine(QPointF(memory_end, bar.top()), QPointF(memory_end, bar.bottom()))
        elif self._total and self._margin:
            margin_start = room.left() + room.width() * (1 - self._margin / full_scale)
            painter.setPen(QPen(theme.colour("secondary"), 1, Qt.PenStyle.DashLine))
            painter.drawLine(QPointF(margin_start, room.top()), QPointF(margin_start, room.bottom()))

    def _paint_segment(self, painter: QPainter, rect: QRectF, segment: _Segment, *, share: float) -> None:
        inner = rect.adjusted(0, 0, -1, 0) if rect.width() > 3 else rect
        if segment.hatched:
            painter.fillRect(inner, theme.colour("raised"))
        painter.fillRect(inner, segment.brush)
        text = f"{segment.label} {_format_segment_size(segment)}"
        fits = QFontMetrics(self.font()).horizontalAdvance(text) + theme.px(14) < rect.width()
        if share >= _LEAST_LABELLED_SHARE and fits and not segment.hatched:
            painter.setPen(segment.text_colour)
            painter.setFont(self.font())
            painter.drawText(rect.adjusted(theme.px(7), 0, 0, 0), int(Qt.AlignmentFlag.AlignVCenter), text)

    def _legend_rows(self, width: int) -> list[list[tuple[_Segment | None, str, int]]]:
        """Return the legend's rows of (segment, text, x)."""
        metrics = QFontMetrics(self.font())
        entries: list[tuple[_Segment | None, str]] = [(each, f"{each.label} {each.mib:,}") for each in self._segments]
        entries.append((None, self._reason or self._rest_text()))
        rows: list[list[tuple[_Segment | None, str, int]]] = [[]]
        left = 0
        for segment, text in entries:
            size = metrics.horizontalAdvance(text) + (theme.px(16) if segment else 0)
            if left and left + size > width:
                rows.append([])
                left = 0
            rows[-1].append((segment, text, left if segment else max(width - size, left)))
            left += size + theme.px(theme.GAP_L)
        return rows

    def _paint_legend(self, painter: QPainter) -> None:
        top = theme.px(theme.BAR_HEIGHT) + theme.px(6)
        line, side = theme.px(_LEGEND_ROW_HEIGHT), theme.px(9)
        painter.setFont(self.font())
        for row in self._legend_rows(self.width()):
            for segment, text, left in row:
                text_left = left
                if segment is not None:
                    box = QRectF(left, top + (line - side) / 2, side, side)
                    painter.fillRect(box, segment.brush)
                    if segment.hatched:
                        painter.setPen(QPen(segment.fill_colour, 1))
                        painter.setBrush(Qt.BrushStyle.NoBrush)
                        painter.drawRect(box)
                    text_left += theme.px(16)
                elif self._reason:
                    text_left = 0
                is_missing_text = segment is None and self.missing > 0
                painter.setPen(theme.colour("text" if is_missing_text else "secondary"))
                rect = QRectF(text_left, top, self.width() - text_left, line)
                painter.drawText(rect, int(Qt.AlignmentFlag.AlignVCenter), text)
            top += line

    def _rest_text(self) -> str:
        if self.missing:
            missing, total = _round_up_mib(self.missing), _round_up_mib(self._total)
            return tr("{missing:,} MiB too much for {total:,} MiB", missing=missing, total=total)
        total = _round_up_mib(self._total)
        return tr("free {free:,} of {total:,} MiB", free=total - _round_up_mib(self._used), total=total)


def _round_up_mib(size: int) -> int:
    """Return bytes as MiB, rounded up."""
    return -(-size // _MIB)


def _format_segment_size(segment: _Segment) -> str:
    return f"{segment.size / _GIB:.1f} GiB" if segment.size >= _GIB else f"{segment.mib:,} MiB"
