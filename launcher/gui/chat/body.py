"""Column of a reply's blocks. Only blocks near the viewport are widgets, the others are stored as their content."""

from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from PySide6.QtCore import QPoint, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QWidget

from launcher.gui import theme

_BUILD_WITHIN, _RELEASE_BEYOND = 1, 2
"""Distance from the viewport, in viewport heights, within which a block is built, and beyond which it is released."""


class BlockSource(Protocol):
    """Content of a block whose widget has been released."""

    @property
    def wraps(self) -> bool:
        """Whether the block's height depends on its width."""

    def build_block(self, *, coloured: bool) -> "BodyBlock":
        """Build the block's widget."""


class BodyBlock(QFrame):
    """One widget of a body: prose, code or a table."""

    grew = Signal()
    """The block's height has changed."""
    indent = 0
    """Distance from the body's left edge in pixels, such as that of code within a list."""

    @abstractmethod
    def set_width(self, width: int) -> int:
        """Set the width. Returns the height needed, both in pixels."""

    @abstractmethod
    def make_source(self) -> BlockSource | None:
        """Return the content to rebuild the block from, or None while the block is in use and must stay."""

    def recolour(self, *, coloured: bool) -> None:
        """Apply the current theme and the colouring by draft step."""


@dataclass(slots=True)
class _BlockSlot:
    """Slot for one block: the widget if it is built, else its source."""

    block: BodyBlock | None
    source: BlockSource | None = None
    height: int = 0


class Body(QWidget):
    """Blocks in a column. Growth of the last block moves no other; the last block is never released."""

    shifted = Signal(int)
    """Pixels by which the visible content moved down, because a block above it was higher than estimated."""

    def __init__(self) -> None:
        super().__init__()
        self.coloured = False
        self._slots: list[_BlockSlot] = []
        self._tops: list[int] = []
        """The y coordinate of each block's top, in pixels."""
        self._built: set[int] = set()
        """Numbers of the blocks that are widgets now."""
        self._sized = False
        """Whether the body has been laid out at its real width."""

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def blocks(self) -> list[BodyBlock]:
        """The blocks that are built, in their order."""
        return [block for number in sorted(self._built) if (block := self._slots[number].block) is not None]

    def append(self, block: BodyBlock) -> None:
        """Append a block."""
        block.setParent(self)
        number = len(self._slots)
        self._slots.append(_BlockSlot(block))
        self._tops.append(0)
        self._built.add(number)
        block.grew.connect(lambda: self._lay_out_from(number))
        self._lay_out_from(number)
        block.show()
        self.update_visible()

    def pop(self) -> None:
        """Remove the last block."""
        self._built.discard(len(self._slots) - 1)
        self._tops.pop()
        _delete_block(self._slots.pop().block)
        if self._slots and self._slots[-1].block is None:
            self._build(len(self._slots) - 1)

    def update_visible(self) -> None:
        """Build the blocks near the viewport and release those far from it."""
        viewport = self._viewport()
        if viewport is None:
            return
        top, height = viewport
        last = len(self._slots) - 1
        for number in [each for each in self._built if each != last]:
            if not self._is_within(number, top - _RELEASE_BEYOND * height, top + (1 + _RELEASE_BEYOND) * height):
                self._release(number)
        shift = 0
        for number in self._indices_between(top - _BUILD_WITHIN * height, top + (1 + _BUILD_WITHIN) * height):
            if self._slots[number].block is None:
                old_height = self._slots[number].height
                old_bottom = self._tops[number] + old_height
                self._build(number)
                if old_bottom <= top + shift:
                    shift += self._slots[number].height - old_height
        if shift:
            self.shifted.emit(shift)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Lay the blocks out for another width. The height of unbuilt blocks is an estimate."""
        super().resizeEvent(event)
        before, width = event.oldSize().width(), event.size().width()
        if width == before:
            return
        for slot in self._slots:
            if slot.source is not None and slot.source.wraps and before > 0 and width > 0:
                slot.height = slot.height * before // width
        self._sized = True
        self._lay_out_from(0)
        self.update_visible()

    def _viewport(self) -> tuple[int, int] | None:
        """Return the viewport's top and height in this widget's coordinates, or None before the first layout."""
        area = self.parentWidget()
        while area is not None and not isinstance(area, QAbstractScrollArea):
            area = area.parentWidget()
        if area is None or not self._sized:
            return None
        return -self.mapTo(area.viewport(), QPoint()).y(), area.viewport().height()

    def _indices_between(self, top: int, bottom: int) -> Iterator[int]:
        """Yield the indices of the blocks between two y coordinates."""
        yield from range(max(bisect_right(self._tops, top) - 1, 0), bisect_left(self._tops, bottom))

    def _is_within(self, number: int, top: int, bottom: int) -> bool:
        return self._tops[number] < bottom and self._tops[number] + self._slots[number].height > top

    def _build(self, number: int) -> None:
        slot = self._slots[number]
        if slot.source is None:
            return
        block, slot.source = slot.source.build_block(coloured=self.coloured), None
        block.setParent(self)
        slot.block = block
        self._built.add(number)
        height = block.set_width(self.width() - block.indent)
        block.grew.connect(lambda: self._lay_out_from(number))
        block.move(block.indent, self._tops[number])
        if height != slot.height:
            self._lay_out_from(number)
        block.show()

    def _release(self, number: int) -> None:
        slot = self._slots[number]
        if slot.block is not None and (source := slot.block.make_source()) is not None:
            _delete_block(slot.block)
            slot.block, slot.source = None, source
            self._built.discard(number)

    def _lay_out_from(self, first: int) -> None:
        """Place the blocks from number `first` on below those before it, and set the height of the body."""
        width = self.width()
        gap = theme.px(theme.GAP)
        y = self._tops[first - 1] + self._slots[first - 1].height + gap if first else 0
        for number in range(first, len(self._slots)):
            slot = self._slots[number]
            self._tops[number] = y
            if slot.block is not None:
                slot.height = slot.block.set_width(width - slot.block.indent)
                slot.block.move(slot.block.indent, y)
            y += slot.height + gap
        total = max(y - gap, 0)
        if total != self.height() or self.minimumHeight() != total:
            self.setFixedHeight(total)


def _delete_block(block: BodyBlock | None) -> None:
    if block is not None:
        block.hide()
        block.setParent(None)
        block.deleteLater()
