"""Model of the log view: the received lines up to a limit, and those that pass the filter."""

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal

from launcher.base.text import one_line
from launcher.gui.labels import escape_tooltip
from launcher.gui.logs.lines import MOST_LINES, LogFilter, ParsedLine
from launcher.gui.translation import tr

_Index = QModelIndex | QPersistentModelIndex
_TRIM_AFTER = MOST_LINES // 10
"""Lines by which the limit may be exceeded, so that the oldest are not removed with every batch."""


class LogModel(QAbstractListModel):
    """Log lines, all and filtered. While `still` (paused or hidden) new lines are collected and shown on resume."""

    count_changed = Signal()
    """The number of lines has changed."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.all_lines: list[ParsedLine] = []
        self.shown: list[ParsedLine] = []
        self.highlighted_text = ""
        """Lines that contain it are highlighted; "" for none."""
        self.log_filter = LogFilter()
        self.waiting_count = 0
        """Lines received while still."""
        self._is_shown = self.log_filter.make_predicate()
        self._still = False

    def rowCount(self, _parent: _Index = QModelIndex()) -> int:  # noqa: N802, B008 -- Qt's
        """Return the number of shown lines."""
        return len(self.shown)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401
        """Return a line's text. The delegate paints the line itself."""
        if not 0 <= index.row() < len(self.shown):  # a screen reader may ask for a row that is gone
            return None
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            text = one_line(self.shown[index.row()].text, 2_000)
            return text if role == Qt.ItemDataRole.DisplayRole else escape_tooltip(text)
        if role == Qt.ItemDataRole.AccessibleTextRole:
            line = self.shown[index.row()]
            level = {"E": tr("Error"), "W": tr("Warning")}.get(line.level, "")
            return " ".join(filter(None, (level, line.time, one_line(line.message, 500))))
        return None

    def append(self, lines: Sequence[ParsedLine]) -> None:
        """Append lines."""
        if not lines:
            return
        self.all_lines.extend(lines)
        if len(self.all_lines) > MOST_LINES + _TRIM_AFTER:
            del self.all_lines[: len(self.all_lines) - MOST_LINES]
        if self._still:
            self.waiting_count += len(lines)
            self.count_changed.emit()
            return
        new = list(filter(self._is_shown, lines))[-MOST_LINES:]
        if not new:
            self.count_changed.emit()
            return
        if len(self.shown) + len(new) > MOST_LINES + _TRIM_AFTER:
            excess = len(self.shown) + len(new) - MOST_LINES
            self.beginRemoveRows(QModelIndex(), 0, min(excess, len(self.shown)) - 1)
            del self.shown[:excess]
            self.endRemoveRows()
        at = len(self.shown)
        self.beginInsertRows(QModelIndex(), at, at + len(new) - 1)
        self.shown.extend(new)
        self.endInsertRows()
        self.count_changed.emit()

    def show_lines(self, lines: Sequence[ParsedLine]) -> None:
        """Replace all lines."""
        self.all_lines = list(lines[-MOST_LINES:])
        self._apply_filter()

    def set_filter(self, new_filter: LogFilter) -> None:
        """Apply another filter. Raises re.error for an invalid expression."""
        if new_filter != self.log_filter:
            self._is_shown = new_filter.make_predicate()
            self.log_filter = new_filter
            self._apply_filter()

    def set_still(self, *, still: bool) -> None:
        """Stop showing new lines, or resume."""
        if still != self._still:
            self._still = still
            if not still and self.waiting_count:
                self._apply_filter()

    def highlight_text(self, text: str) -> None:
        """Highlight the lines that contain `text`; "" highlights none."""
        if text != self.highlighted_text:
            self.highlighted_text = text
            if self.shown:
                self.dataChanged.emit(self.index(0), self.index(len(self.shown) - 1))

    def is_highlighted(self, line: ParsedLine) -> bool:
        """Return whether a line is highlighted."""
        return bool(self.highlighted_text) and self.highlighted_text in line.text

    def last_highlighted_row(self) -> int | None:
        """Return the last highlighted row, or None. With several runs in a log, it belongs to the last one."""
        rows = range(len(self.shown) - 1, -1, -1)
        return next((row for row in rows if self.is_highlighted(self.shown[row])), None)

    def _apply_filter(self) -> None:
        self.beginResetModel()
        self.waiting_count = 0
        self.shown = list(filter(self._is_shown, self.all_lines))
        self.endResetModel()
        self.count_changed.emit()
