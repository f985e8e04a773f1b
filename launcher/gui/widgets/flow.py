"""Flow layout, which wraps a row of controls into further rows; scrolling columns of pages; clearing a layout."""

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtWidgets import QLayout, QLayoutItem, QScrollArea, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.widgets.scrolling import make_scroll_area


class FlowLayout(QLayout):
    """Layout from left to right and then down; each row is as high as its highest item.

    The first widget of a row that was added with `wide` takes the row's spare width.
    """

    def __init__(self, parent: QWidget | None = None, *, gap: int) -> None:
        super().__init__(parent)
        self._items: list[QLayoutItem] = []
        self._wide: set[QWidget] = set()
        self.setContentsMargins(0, 0, 0, 0)
        self.setSpacing(gap)

    def add(self, widget: QWidget, *, wide: bool = False) -> None:
        """Append a widget. `wide`: it may take the row's spare width."""
        if wide:
            self._wide.add(widget)
        self.addWidget(widget)

    def addItem(self, item: QLayoutItem) -> None:  # noqa: N802 -- Qt's names from here on
        """Append an item."""
        self._items.append(item)

    def count(self) -> int:
        """Return the number of items."""
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:  # noqa: N802 -- Qt iterates until None
        """Return an item, or None."""
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:  # noqa: N802
        """Remove and return an item, or None."""
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:  # noqa: N802
        """Return no direction."""
        return Qt.Orientation(0)

    def hasHeightForWidth(self) -> bool:  # noqa: N802
        """Return True: the height depends on the width."""
        return True

    def heightForWidth(self, width: int) -> int:  # noqa: N802
        """Return the height of all rows at a width."""
        return self._arrange(QRect(0, 0, width, 0), moves=False)

    def sizeHint(self) -> QSize:  # noqa: N802
        """Return the size with all items in one row."""
        shown = [item.sizeHint() for item in self._items if not item.isEmpty()]
        gaps = self.spacing() * max(len(shown) - 1, 0)
        return QSize(sum(each.width() for each in shown) + gaps, max((each.height() for each in shown), default=0))

    def minimumSize(self) -> QSize:  # noqa: N802
        """Return the size of the largest item."""
        size = QSize()
        for item in self._items:
            if not item.isEmpty():
                size = size.expandedTo(item.minimumSize())
        return size

    def setGeometry(self, rect: QRect) -> None:  # noqa: N802
        """Place all items."""
        super().setGeometry(rect)
        self._arrange(self.alignmentRect(rect), moves=True)

    def _base_width(self, item: QLayoutItem) -> int:
        """Return an item's width before the spare width is distributed."""
        return item.minimumSize().width() if item.widget() in self._wide else item.sizeHint().width()

    def _arrange(self, rect: QRect, *, moves: bool) -> int:
        """Return the height of the rows in the width of `rect`; with `moves` also place the items there."""
        rows: list[list[QLayoutItem]] = [[]]
        used_width = 0
        for item in self._items:
            if item.isEmpty():
                continue
            width = self._base_width(item)
            if rows[-1] and used_width + self.spacing() + width > rect.width():
                rows.append([])
                used_width = 0
            used_width += width + (self.spacing() if rows[-1] else 0)
            rows[-1].append(item)
        top = rect.top()
        for row in filter(None, rows):
            height = max(item.sizeHint().height() for item in row)
            if moves:
                self._place_row(row, QRect(rect.left(), top, rect.width(), height))
            top += height + self.spacing()
        return max(top - self.spacing() - rect.top(), 0)

    def _place_row(self, row: list[QLayoutItem], rect: QRect) -> None:
        left = rect.left()
        spare = rect.width() - sum(map(self._base_width, row)) - self.spacing() * (len(row) - 1)
        wide = next((item for item in row if item.widget() in self._wide), None)
        for item in row:
            hint = item.sizeHint()
            width = min(self._base_width(item), rect.width()) + (max(spare, 0) if item is wide else 0)
            item.setGeometry(QRect(left, rect.top() + (rect.height() - hint.height()) // 2, width, hint.height()))
            left += width + self.spacing()


def clear_layout(layout: QLayout) -> None:
    """Remove and delete the widgets of a layout."""
    while (item := layout.takeAt(0)) is not None:
        if (widget := item.widget()) is not None:
            widget.hide()
            widget.deleteLater()


def make_scrolling_column(page: QWidget) -> QVBoxLayout:
    """Return a new column that fills `page` and scrolls if it does not fit."""
    content = QWidget()
    content.setObjectName("plain")
    column = QVBoxLayout(content)
    column.setContentsMargins(*(theme.px(each) for each in (theme.GAP_XL, theme.GAP_L) * 2))
    column.setSpacing(theme.px(theme.GAP_L))
    area = make_scroll_area(content, sideways=True)
    outer = QVBoxLayout(page)
    outer.setContentsMargins(0, 0, 0, 0)
    outer.addWidget(area)
    return column


def make_headed_column(page: QWidget, name: str, *above: QWidget) -> QVBoxLayout:
    """Return a new scrolling column with the accessible name `name`, below the widgets `above`, which do not scroll."""
    content = QWidget()
    content.setObjectName("plain")
    column = QVBoxLayout(content)
    column.setContentsMargins(0, 0, theme.px(theme.GAP), 0)
    column.setSpacing(theme.px(theme.GAP_L))
    area = QScrollArea()
    area.setWidget(content)
    area.setWidgetResizable(True)
    area.setAccessibleName(name)
    outer = QVBoxLayout(page)
    outer.setContentsMargins(*(theme.px(theme.GAP_XL),) * 4)
    outer.setSpacing(theme.px(theme.GAP_L))
    for widget in above:
        outer.addWidget(widget)
    outer.addWidget(area, 1)
    return column
