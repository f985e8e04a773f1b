"""Card of the model folders: where downloads go, what else is searched, and what downloads have left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import ElidedLabel, Label, display_path
from launcher.gui.models.text import format_size, leftover_text
from launcher.gui.translation import render, tr
from launcher.gui.widgets import Card, Glyph
from launcher.gui.widgets.blocks import make_button, make_caption
from launcher.gui.widgets.confirm_button import ConfirmButton
from launcher.gui.widgets.flow import clear_layout

if TYPE_CHECKING:
    from launcher.app.models.model_library import LocalState
    from launcher.models.leftovers import Leftover


class _FolderRow(QWidget):
    """Row with a glyph, a title, a second line below it, and a button."""

    def __init__(self, glyph: str, role: str, title: str, second_line: str, button: QPushButton | None) -> None:
        super().__init__()
        self.setObjectName("plain")
        caption = make_caption(second_line)
        column = QVBoxLayout()
        column.setSpacing(theme.px(2))
        column.addWidget(ElidedLabel(title))
        column.addWidget(caption)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.px(theme.GAP))
        row.addWidget(Glyph(glyph, role))
        row.addLayout(column, 1)
        if button is not None:
            button.setAccessibleName(f"{button.text()}: {title}")
            row.addWidget(button)


class FoldersPanel(Card):
    """Model folders, and leftovers of downloads. Deleting a leftover takes two presses."""

    def __init__(
        self,
        add_folder: Callable[[], object],
        remove_folder: Callable[[Path], object],
        delete_leftover: Callable[[Leftover], object],
        open_folder: Callable[[Path], object],
    ) -> None:
        super().__init__(tr("Folders"))
        self._remove_folder, self._delete_leftover, self._open_folder = remove_folder, delete_leftover, open_folder
        add_button = make_button(tr("Add a folder …"), add_folder)
        add_button.setToolTip(tr("Also find models in another folder"))
        self.head.addWidget(add_button)
        self._folders, self._leftovers = QVBoxLayout(), QVBoxLayout()
        for column in (self._folders, self._leftovers):
            column.setSpacing(theme.px(theme.GAP_M))
        self._leftovers_title = Label(tr("Unfinished downloads"))
        self._leftovers_title.setFont(theme.font(theme.SECTION_PX, bold=True))
        self.body.addLayout(self._folders)
        self.body.addSpacing(theme.px(theme.GAP_L))
        self.body.addWidget(self._leftovers_title)
        self.body.addLayout(self._leftovers)
        self.body.addStretch()
        self.delete_buttons: dict[Path, QPushButton] = {}
        self.remove_buttons: dict[Path, QPushButton] = {}

    def show_folders(self, models: LocalState) -> None:
        """Show the folders and the leftovers in them."""
        clear_layout(self._folders)
        clear_layout(self._leftovers)
        self.delete_buttons.clear()
        self.remove_buttons.clear()
        free = tr("{size} free on its disk", size=format_size(models.free_bytes))
        show_button = _make_button_with_tip(
            tr("Show"), lambda: self._open_folder(models.own_folder), tr("Open this folder")
        )
        self._folders.addWidget(
            _FolderRow(
                "dot",
                "accent",
                display_path(models.own_folder),
                tr("Downloads are saved here. {free}.", free=free),
                show_button,
            )
        )
        for path, (program, problems) in models.stores.items():
            problem = "\n".join(map(render, problems))
            title = tr("Hugging Face cache") if program == "Hugging Face" else f"{program} · {display_path(path)}"
            state = problem or tr("Belongs to other programs. Read only.")
            glyph, role = ("triangle", "attention") if problem else ("ring", "secondary")
            self._folders.addWidget(_FolderRow(glyph, role, title, state, None))
        for path, exists in models.folders.items():
            button = _make_button_with_tip(
                tr("Remove"),
                partial(self._remove_folder, path),
                tr("Stop listing this folder. Its files are not deleted"),
            )
            self.remove_buttons[path] = button
            state = tr("Added by you.") if exists else tr("Added by you. Not found now. Is the disk connected?")
            glyph, role = ("dot", "good") if exists else ("triangle", "attention")
            self._folders.addWidget(_FolderRow(glyph, role, display_path(path), state, button))
        self._leftovers_title.setVisible(bool(models.leftovers))
        for leftover in models.leftovers:
            self._add_leftover(leftover)

    def _add_leftover(self, leftover: Leftover) -> None:
        freed = format_size(leftover.bytes)
        button = ConfirmButton(tr("Delete"))
        button.show_loss(tr("Delete"), freed)
        button.setToolTip(tr("Frees {size}. Asks for confirmation", size=freed))
        button.confirmed.connect(partial(self._delete_leftover, leftover))
        self.delete_buttons[leftover.path] = button
        glyph, role = ("cross", "bad") if leftover.kind.value == "bad" else ("half", "attention")
        self._leftovers.addWidget(
            _FolderRow(glyph, role, leftover.path.name, f"{leftover_text(leftover)} · {freed}", button)
        )


def _make_button_with_tip(text: str, clicked: Callable[[], object], tip: str) -> QPushButton:
    button = make_button(text, clicked)
    button.setToolTip(tip)
    return button
