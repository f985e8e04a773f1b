"""The blocks that a reply is made of, one below the other: widgets near what is seen, of the others what they say."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from PySide6.QtCore import QPoint, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QWidget

from launcher.gui import theme

_NEAR, _FAR = 1, 2
"""How far from what is seen a block is built, and let go of, in heights of what is seen."""


class Source(Protocol):
    """What a block says, without its widget."""

    @property
    def bends(self) -> bool:
        """Whether its height depends on the width."""

    def build(self, *, coloured: bool) -> "Block":
        """Return the block."""


class Block(QFrame):
    """One piece of a body."""

    grew = Signal()
    """Its height is another one."""

    def fit(self, width: int) -> int:
        """Take a width and return the height that it needs."""
        raise NotImplementedError

    def source(self) -> Source | None:
        """Return what it can be built from again; None while it is used, so that it must stay."""
        raise NotImplementedError

    def recolour(self, *, coloured: bool) -> None:
        """Take over another theme, or whether steps are coloured."""


@dataclass(slots=True)
class _Place:
    """A block's, whether it is built or not."""

    block: Block | None
    source: Source | None = None
    height: int = 0


class Body(QWidget):
    """Blocks one below the other. When the last one grows, no other is touched; it is never let go of."""

    shifted = Signal(int)
    """What is seen stands so many pixels lower, because a block above it turned out to be higher"""

    def __init__(self) -> None:
        super().__init__()
        self.coloured = False
        self._places: list[_Place] = []
        self._above: list[int] = []
        self._built: set[int] = set()
        self._sized = False

    def __len__(self) -> int:
        return len(self._places)

    @property
    def blocks(self) -> list[Block]:
        """Those that are built, first one first."""
        return [block for number in sorted(self._built) if (block := self._places[number].block) is not None]

    def append(self, block: Block) -> None:
        """Put a block at the end."""
        block.setParent(self)
        number = len(self._places)
        self._places.append(_Place(block))
        self._above.append(0)
        self._built.add(number)
        block.grew.connect(lambda: self._place(number))
        self._place(number)
        block.show()
        self.look()

    def pop(self) -> None:
        """Take the last block away."""
        self._built.discard(len(self._places) - 1)
        self._above.pop()
        _drop(self._places.pop().block)
        if self._places and self._places[-1].block is None:
            self._build(len(self._places) - 1)

    def look(self) -> None:
        """Build the blocks near what is seen, and let go of those that are far from it."""
        seen = self._seen()
        if seen is None:
            return
        top, height = seen
        last = len(self._places) - 1
        for number in [each for each in self._built if each != last]:
            if not self._is_within(number, top - _FAR * height, top + (1 + _FAR) * height):
                self._let_go(number)
        shift = 0
        for number in self._numbers(top - _NEAR * height, top + (1 + _NEAR) * height):
            if self._places[number].block is None:
                was, end = self._places[number].height, self._above[number] + self._places[number].height
                self._build(number)
                shift += self._places[number].height - was if end <= top + shift else 0
        if shift:
            self.shifted.emit(shift)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Set the blocks in another width. Of those that are not built the height is guessed until they are."""
        super().resizeEvent(event)
        before, width = event.oldSize().width(), event.size().width()
        if width == before:
            return
        for place in self._places:
            if place.source is not None and place.source.bends and before > 0 and width > 0:
                place.height = place.height * before // width
        self._sized = True
        self._place(0)
        self.look()

    def _seen(self) -> tuple[int, int] | None:
        """Return the upper edge and the height of what is seen, as this widget counts; None before it has a size."""
        area = self.parentWidget()
        while area is not None and not isinstance(area, QAbstractScrollArea):
            area = area.parentWidget()
        if area is None or not self._sized:
            return None
        return -self.mapTo(area.viewport(), QPoint()).y(), area.viewport().height()

    def _numbers(self, top: int, bottom: int) -> Iterator[int]:
        """Yield the blocks between two edges."""
        yield from range(max(bisect_right(self._above, top) - 1, 0), bisect_left(self._above, bottom))

    def _is_within(self, number: int, top: int, bottom: int) -> bool:
        return self._above[number] < bottom and self._above[number] + self._places[number].height > top

    def _build(self, number: int) -> None:
        place = self._places[number]
        if place.source is None:
            return
        block, place.source = place.source.build(coloured=self.coloured), None
        block.setParent(self)
        place.block = block
        self._built.add(number)
        height = block.fit(self.width())
        block.grew.connect(lambda: self._place(number))
        block.move(0, self._above[number])
        if height != place.height:
            self._place(number)
        block.show()

    def _let_go(self, number: int) -> None:
        place = self._places[number]
        if place.block is not None and (source := place.block.source()) is not None:
            _drop(place.block)
            place.block, place.source = None, source
            self._built.discard(number)

    def _place(self, first: int) -> None:
        width = self.width()
        gap = theme.px(theme.GAP)
        y = self._above[first - 1] + self._places[first - 1].height + gap if first else 0
        for number in range(first, len(self._places)):
            place = self._places[number]
            self._above[number] = y
            if place.block is not None:
                place.height = place.block.fit(width)
                place.block.move(0, y)
            y += place.height + gap
        total = max(y - gap, 0)
        if total != self.height() or self.minimumHeight() != total:
            self.setFixedHeight(total)


def _drop(block: Block | None) -> None:
    if block is not None:
        block.hide()
        block.setParent(None)
        block.deleteLater()
