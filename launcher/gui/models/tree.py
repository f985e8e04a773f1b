"""Item model of the library: a row for each model, and below it one for each of its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QAbstractItemModel, QModelIndex, QObject, QPersistentModelIndex, Qt

from launcher.app.models.model_library import LibraryFile, LibraryModel
from launcher.base.text import one_line
from launcher.gui.labels import escape_tooltip
from launcher.gui.models.row_text import Row

_Index = QModelIndex | QPersistentModelIndex
_LONGEST = 600
"""Characters of a row's sentence that a screen reader gets."""


class LibraryTree(QAbstractItemModel):
    """Two levels in one column. `describe` returns the texts of a row; they are kept until the row changes."""

    def __init__(self, describe: Callable[[LibraryModel, LibraryFile | None], Row], parent: QObject) -> None:
        super().__init__(parent)
        self._describe = describe
        self.models: list[LibraryModel] = []
        self._rows: dict[tuple[str, str], Row] = {}

    def show_models(self, models: Sequence[LibraryModel]) -> bool:
        """Show models. Returns whether rows were replaced, so that selection and expansion may be lost."""
        if [each.key for each in models] != [each.key for each in self.models]:
            self.beginResetModel()
            self.models = list(models)
            self._rows.clear()
            self.endResetModel()
            return True
        is_changed = False
        for at, (old, new) in enumerate(zip(tuple(self.models), models, strict=True)):
            if new == old:  # equal, but another object: the models are read again whenever the page is shown
                continue
            if [each.key for each in old.files] != [each.key for each in new.files]:
                self._replace_files(at, new)
                is_changed = True
            self.models[at] = new
            self.forget_row(new.key)
        return is_changed

    def _replace_files(self, at: int, model: LibraryModel) -> None:
        """Replace the rows of a model's files; while there are none, the model has none either."""
        parent = self.index(at, 0)
        if old := len(self.models[at].files):
            self.beginRemoveRows(parent, 0, old - 1)
            self.models[at] = replace(model, files=())
            self.endRemoveRows()
        if new := len(model.files):
            self.beginInsertRows(parent, 0, new - 1)
            self.models[at] = model
            self.endInsertRows()

    def forget_row(self, key: str) -> None:
        """Describe a model and its files anew, because something about them has changed."""
        for place in [each for each in self._rows if each[0] == key]:
            del self._rows[place]
        at = next((at for at, each in enumerate(self.models) if each.key == key), None)
        if at is None:
            return
        index = self.index(at, 0)
        self.dataChanged.emit(index, index)
        if files := self.rowCount(index):
            self.dataChanged.emit(self.index(0, 0, index), self.index(files - 1, 0, index))

    def forget_all(self) -> None:
        """Describe all rows anew."""
        for each in self.models:
            self.forget_row(each.key)

    def model_at(self, index: _Index) -> LibraryModel | None:
        """Return the model of a row, or that of its file."""
        if not index.isValid():
            return None
        owner = index.internalId()
        return self.models[owner - 1 if owner else index.row()]

    def file_at(self, index: _Index) -> LibraryFile | None:
        """Return the file of a row; None for the row of a model."""
        model = self.model_at(index)
        return model.files[index.row()] if model is not None and index.internalId() else None

    def row_at(self, index: _Index) -> Row:
        """Return the texts of a row."""
        model, file = self.model_at(index), self.file_at(index)
        assert model is not None  # noqa: S101 -- for the type checker
        place = model.key, file.key if file is not None else ""
        if place not in self._rows:
            self._rows[place] = self._describe(model, file)
        return self._rows[place]

    def find_index(self, key: str, file_key: str | None = None) -> QModelIndex:
        """Return the index of a model, or of a file of it; an invalid one if it is not shown."""
        for at, model in enumerate(self.models):
            if model.key == key:
                parent = self.index(at, 0)
                if file_key is None:
                    return parent
                for number, file in enumerate(model.files):
                    if file.key == file_key:
                        return self.index(number, 0, parent)
                return parent
        return QModelIndex()

    def index(self, row: int, column: int, parent: _Index = QModelIndex()) -> QModelIndex:  # noqa: B008 -- Qt's
        """Return the index of a row; its id is 0 for a model, else the place of its model from 1."""
        if not self.hasIndex(row, column, parent):
            return QModelIndex()
        return self.createIndex(row, column, parent.row() + 1 if parent.isValid() else 0)

    def parent(self, index: _Index = QModelIndex()) -> Any:  # noqa: ANN401, B008
        """Return the row of a file's model."""
        if isinstance(index, QModelIndex | QPersistentModelIndex):
            owner = index.internalId() if index.isValid() else 0
            return self.createIndex(owner - 1, 0, 0) if owner else QModelIndex()
        return super().parent()

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: N802, B008
        """Return the number of models, or of a model's files."""
        if not parent.isValid():
            return len(self.models)
        return len(self.models[parent.row()].files) if self._has_row(parent) and not parent.internalId() else 0

    def _has_row(self, index: _Index) -> bool:
        """Return whether an index, which may be older than a change, still belongs to a row."""
        owner = index.internalId() if index.isValid() else 0
        if owner:
            return owner <= len(self.models) and index.row() < len(self.models[owner - 1].files)
        return index.isValid() and index.row() < len(self.models)

    def columnCount(self, _parent: _Index = QModelIndex()) -> int:  # noqa: N802, B008
        """Return 1: the delegate paints all columns."""
        return 1

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:  # noqa: ANN401
        """Return a row's name, tooltip or sentence; None for a row that is gone, of which a screen reader may ask."""
        if not self._has_row(index):
            return None
        row = self.row_at(index)
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return one_line(row.name, _LONGEST)
            case Qt.ItemDataRole.AccessibleTextRole:
                return one_line(row.sentence, _LONGEST)
            case Qt.ItemDataRole.ToolTipRole:
                return escape_tooltip(f"{row.note}\n{row.tip}".strip()[:2_000])
        return None
