"""The lines that are shown, out of a ring of those that came: batches go in at the end, old ones out at the front."""

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal

from launcher.base.text import one_line
from launcher.gui.labels import as_tip
from launcher.gui.logs.lines import MOST_LINES, Line, Wanted
from launcher.gui.words import tr

_Index = QModelIndex | QPersistentModelIndex
_SLACK = MOST_LINES // 10


class LogModel(QAbstractListModel):
    """While it is `still` (paused, or not looked at) it takes lines in, and shows them when it goes on."""

    counted = Signal()
    """How much is shown or kept has changed."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.kept: list[Line] = []
        self.shown: list[Line] = []
        self.marks: frozenset[str] = frozenset()
        self.wanted = Wanted()
        self.waiting = 0
        """Lines that came while it was still."""
        self._test = self.wanted.test()
        self._still = False

    def rowCount(self, _parent: _Index = QModelIndex()) -> int:  # noqa: N802, B008 -- Qt's
        """Return how many lines are shown."""
        return len(self.shown)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401
        """Return a line's text; the delegate paints it by itself."""
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            text = one_line(self.shown[index.row()].text, 2_000)
            return text if role == Qt.ItemDataRole.DisplayRole else as_tip(text)
        if role == Qt.ItemDataRole.AccessibleTextRole:
            line = self.shown[index.row()]
            level = {"E": tr("Error"), "W": tr("Warning")}.get(line.level, "")
            return " ".join(filter(None, (level, line.time, one_line(line.words, 500))))
        return None

    def append(self, lines: Sequence[Line]) -> None:
        """Take lines in at the end."""
        if not lines:
            return
        self.kept.extend(lines)
        if len(self.kept) > MOST_LINES + _SLACK:
            del self.kept[: len(self.kept) - MOST_LINES]
        if self._still:
            self.waiting += len(lines)
            self.counted.emit()
            return
        new = list(filter(self._test, lines))[-MOST_LINES:]
        if not new:
            self.counted.emit()
            return
        if len(self.shown) + len(new) > MOST_LINES + _SLACK:
            over = len(self.shown) + len(new) - MOST_LINES
            self.beginRemoveRows(QModelIndex(), 0, min(over, len(self.shown)) - 1)
            del self.shown[:over]
            self.endRemoveRows()
        at = len(self.shown)
        self.beginInsertRows(QModelIndex(), at, at + len(new) - 1)
        self.shown.extend(new)
        self.endInsertRows()
        self.counted.emit()

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show other lines in place of all that there are."""
        self.kept = list(lines[-MOST_LINES:])
        self._show()

    def want(self, wanted: Wanted) -> None:
        """Show other ones of the lines that are kept. Raises re.error for a text that is no expression."""
        if wanted != self.wanted:
            self._test = wanted.test()
            self.wanted = wanted
            self._show()

    def hold_still(self, *, still: bool) -> None:
        """Show nothing new for now, or go on."""
        if still != self._still:
            self._still = still
            if not still and self.waiting:
                self._show()

    def mark(self, texts: frozenset[str]) -> None:
        """Mark lines by what they say."""
        if texts != self.marks:
            self.marks = texts
            if self.shown:
                self.dataChanged.emit(self.index(0), self.index(len(self.shown) - 1))

    def is_marked(self, line: Line) -> bool:
        """Whether a line is one of those that are marked."""
        return bool(self.marks) and any(mark in line.text for mark in self.marks)

    def row_of_mark(self) -> int | None:
        """Return the row of the last line that is marked, which belongs to the last run; None when there is none."""
        rows = range(len(self.shown) - 1, -1, -1)
        return next((row for row in rows if self.is_marked(self.shown[row])), None) if self.marks else None

    def _show(self) -> None:
        self.beginResetModel()
        self.waiting = 0
        self.shown = list(filter(self._test, self.kept))
        self.endResetModel()
        self.counted.emit()
