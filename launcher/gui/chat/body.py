"""The blocks that a reply is made of, one below the other."""

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QWidget

from launcher.gui import theme


class Block(QFrame):
    """One piece of a body."""

    grew = Signal()
    """Its height is another one."""

    def fit(self, width: int) -> int:
        """Take a width and return the height that it needs."""
        raise NotImplementedError

    def recolour(self) -> None:
        """Take over another theme, or whether steps are coloured."""


class Body(QWidget):
    """Blocks one below the other. When the last one grows, no other is touched."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self._heights: list[int] = []
        self._above: list[int] = []

    def append(self, block: Block) -> None:
        """Put a block at the end."""
        block.setParent(self)
        number = len(self.blocks)
        self.blocks.append(block)
        self._heights.append(0)
        self._above.append(0)
        block.grew.connect(lambda: self._place(number))
        self._place(number)
        block.show()

    def pop(self) -> None:
        """Take the last block away."""
        block = self.blocks.pop()
        self._heights.pop()
        self._above.pop()
        block.hide()
        block.setParent(None)
        block.deleteLater()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Set all blocks in another width."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._place(0)

    def _place(self, first: int) -> None:
        width = self.width()
        gap = theme.px(theme.GAP_S)
        y = self._above[first - 1] + self._heights[first - 1] + gap if first else 0
        for number in range(first, len(self.blocks)):
            block = self.blocks[number]
            self._above[number], self._heights[number] = y, block.fit(width)
            block.move(0, y)
            y += self._heights[number] + gap
        total = max(y - gap, 0)
        if total != self.height() or self.minimumHeight() != total:
            self.setFixedHeight(total)
