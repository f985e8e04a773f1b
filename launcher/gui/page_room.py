"""The room of a window that holds its pages."""

from PySide6.QtCore import QEvent, QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QStackedWidget, QWidget


class PageRoom(QWidget):
    """Holds the pages, and needs the room that the one needs which is shown.

    It has no layout of its own: a stack's would ask for the height of the highest of all its pages.
    """

    def __init__(self, stack: QStackedWidget) -> None:
        super().__init__()
        self._stack = stack
        stack.setParent(self)
        stack.currentChanged.connect(lambda _: self.updateGeometry())

    def event(self, event: QEvent) -> bool:
        """Hear that the page needs another size."""
        if event.type() == QEvent.Type.LayoutRequest:
            self.updateGeometry()
        return super().event(event)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Give all room to the page."""
        super().resizeEvent(event)
        self._stack.setGeometry(self.rect())
        if event.size().width() != event.oldSize().width():
            self.updateGeometry()

    def sizeHint(self) -> QSize:  # noqa: N802
        """Return the size that the page wants."""
        page = self._stack.currentWidget()
        return page.sizeHint() if page is not None else super().sizeHint()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the least size of the page."""
        page = self._stack.currentWidget()
        if page is None:
            return super().minimumSizeHint()
        least, layout = page.minimumSizeHint(), page.layout()
        if layout is not None and layout.hasHeightForWidth():  # lines of text that wrap need more
            width = max(least.width(), self.width())
            least.setHeight(max(least.height(), layout.totalMinimumHeightForWidth(width)))
        return least
