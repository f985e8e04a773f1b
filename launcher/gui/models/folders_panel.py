"""The folders that models are looked for in, and what downloads have left there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import Elided, Label, shown_path
from launcher.gui.models import words
from launcher.gui.widgets import Card, Glyph
from launcher.gui.widgets.blocks import make_button
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.gui.models.shelf import Shelf
    from launcher.models.leftovers import Leftover


class _Row(QWidget):
    """A glyph, a line with a line under it, and a button."""

    def __init__(self, glyph: str, role: str, title: str, under: str, button: QPushButton | None) -> None:
        super().__init__()
        self.setObjectName("plain")
        below = Label(under)
        below.setObjectName("secondary")
        below.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        below.setWordWrap(True)
        column = QVBoxLayout()
        column.setSpacing(theme.px(2))
        column.addWidget(Elided(title))
        column.addWidget(below)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.px(theme.GAP))
        row.addWidget(Glyph(glyph, role))
        row.addLayout(column, 1)
        if button is not None:
            button.setAccessibleName(f"{button.text()}: {title}")
            row.addWidget(button)


class FoldersPanel(Card):
    """Folders can be added and taken out; leftovers are deleted by a second press."""

    def __init__(
        self,
        add: Callable[[], object],
        drop: Callable[[Path], object],
        remove: Callable[[Leftover], object],
        show: Callable[[Path], object],
    ) -> None:
        super().__init__(tr("Folders"))
        self._drop, self._remove, self._show = drop, remove, show
        adds = make_button(tr("Add a folder …"), add)
        adds.setToolTip(tr("Look for models in another folder, too (models folders add)"))
        self.head.addWidget(adds)
        self._folders, self._left = QVBoxLayout(), QVBoxLayout()
        for column in (self._folders, self._left):
            column.setSpacing(theme.px(theme.GAP_M))
        self._left_title = Label(tr("Left by downloads"))
        self._left_title.setFont(theme.font(theme.SECTION_PX, bold=True))
        self.body.addLayout(self._folders)
        self.body.addSpacing(theme.px(theme.GAP_L))
        self.body.addWidget(self._left_title)
        self.body.addLayout(self._left)
        self.body.addStretch()
        self.remove_buttons: dict[Path, QPushButton] = {}
        self.drop_buttons: dict[Path, QPushButton] = {}

    def show_shelf(self, shelf: Shelf) -> None:
        """Show the folders, and what is left in them."""
        for column in (self._folders, self._left):
            while (item := column.takeAt(0)) is not None:
                if (widget := item.widget()) is not None:
                    widget.hide()
                    widget.deleteLater()
        self.remove_buttons.clear()
        self.drop_buttons.clear()
        free = tr("{size} are free on its disk", size=words.size(shelf.free_bytes))
        ours = _quiet(tr("Show"), lambda: self._show(shelf.ours), tr("Open this folder"))
        self._folders.addWidget(
            _Row("dot", "accent", shown_path(shelf.ours), tr("Ours: downloads go here. {free}.", free=free), ours)
        )
        self._folders.addWidget(
            _Row("ring", "secondary", tr("Hugging Face cache"), tr("Belongs to other programs: only read."), None)
        )
        for path, there in shelf.folders.items():
            button = _quiet(tr("Take out"), partial(self._drop, path), tr("Look there no more; its files stay"))
            self.drop_buttons[path] = button
            under = tr("Added by you.") if there else tr("Added by you. It is not there now: is the disk connected?")
            glyph, role = ("dot", "good") if there else ("triangle", "attention")
            self._folders.addWidget(_Row(glyph, role, shown_path(path), under, button))
        self._left_title.setVisible(bool(shelf.leftovers))
        for left in shelf.leftovers:
            self._add_left(left)

    def _add_left(self, left: Leftover) -> None:
        freed = words.size(left.bytes)
        button = _quiet(tr("Delete"), lambda: None, tr("{size} become free. Asks once more first", size=freed))
        sure = tr("Press again to free {size}", size=freed)

        def press() -> None:
            if button.text() == sure:
                self._remove(left)
            else:
                button.setText(sure)

        button.clicked.connect(press)
        self.remove_buttons[left.path] = button
        glyph, role = ("cross", "bad") if left.kind.value == "bad" else ("half", "attention")
        self._left.addWidget(_Row(glyph, role, left.path.name, f"{words.leftover_words(left)} · {freed}", button))


def _quiet(text: str, clicked: Callable[[], object], tip: str) -> QPushButton:
    button = make_button(text, clicked)
    button.setToolTip(tip)
    return button
