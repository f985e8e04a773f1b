"""What was tuned before on this computer: chosen, it is shown again; the one that is shown can be exported."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QHeaderView, QStyle

from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.sentences import say, say_error
from launcher.gui.widgets import Card
from launcher.gui.widgets.row_table import RowTable
from launcher.gui.widgets.rows import Cell, Column, Rows
from launcher.gui.words import tr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.base.errors import LauncherError
    from launcher.gui.controller import Controller
    from launcher.tuning.history_records import Session, Summary

_MOST, _SENTENCE = 20, 3


def _columns() -> list[Column[Summary]]:
    def said(row: Summary) -> Cell:
        return Cell(say(row.sentence) if row.sentence else tr("Still measured"))

    return [
        Column(tr("When"), "", lambda row: Cell(time.strftime("%Y-%m-%d %H:%M", time.localtime(row.began_s)))),
        Column(tr("Model"), "", lambda row: Cell(f"{row.model} {row.quant}" if row.quant else row.model)),
        Column(tr("Prompts"), "", lambda row: Cell(row.workload)),
        Column(tr("Verdict"), "", said),
    ]


class HistoryCard(Card):
    """Hidden while there is nothing to list, and nothing to say of why."""

    chosen = Signal(object)
    """Session: with all its runs"""
    listed = Signal(bool)
    """Whether anything was measured before, or may have been: what is kept cannot be read"""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Measured before"))
        self._controller = controller
        self.table = RowTable(tr("Measured before"))
        self._model: Rows[Summary] = Rows(_columns(), self.table)
        self.table.setModel(self._model)
        self.table.horizontalHeader().setSectionResizeMode(_SENTENCE, QHeaderView.ResizeMode.Stretch)
        self.table.horizontalHeader().setSectionsClickable(False)
        self.table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.table.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.table.clicked.connect(lambda index: self._choose(index.row()))
        self.table.activated.connect(lambda index: self._choose(index.row()))
        self._usual = tr("A row shows its figures above. `mtp-launcher compare` puts two beside each other.")
        self.note = Label(self._usual)
        self.note.setObjectName("secondary")
        self.note.setFont(theme.font(theme.CAPTION_PX))
        self.note.setWordWrap(True)
        own = self.table.style().pixelMetric(QStyle.PixelMetric.PM_FocusFrameHMargin, None, self.table)
        inset = theme.px(theme.CELL_PADDING) + own + 1
        head = self.table.horizontalHeader()
        head.setStyleSheet(f"QHeaderView::section {{ padding: 0 {inset}px; }}")  # as cells have
        self.hang(self.table, inset)
        self.note.setContentsMargins(inset, 0, inset, 0)
        self.body.addWidget(self.note)
        self.hide()

    @property
    def rows(self) -> Sequence[Summary]:
        """What is listed, the newest first."""
        return self._model.rows

    def look(self) -> None:
        """List what there is now."""
        self._controller.bridge.run(lambda _tell: asyncio.to_thread(_listed), done=self._show, failed=self._fail)

    def export(self, session: str) -> None:
        """Let the user choose a file, and write a measurement there."""
        kinds = tr("Markdown (*.md);;CSV (*.csv);;JSON (*.json)")
        name, kind = QFileDialog.getSaveFileName(self, tr("Export"), "tune.md", kinds)
        if name:
            path = Path(name)
            if not path.suffix:
                path = path.with_suffix(kind[kind.rfind(".") : -1])
            self._controller.bridge.run(lambda _tell: asyncio.to_thread(_export, session, path))

    def _show(self, rows: Sequence[Summary], problem: str = "") -> None:
        self._model.show(rows)
        height = self.table.row_height * (len(rows) + 1) + 2 * self.table.frameWidth()
        self.table.setFixedHeight(height)
        self.table.setVisible(bool(rows))
        self.note.setText(problem or self._usual)
        self.setVisible(bool(rows or problem))
        self.listed.emit(bool(rows or problem))

    def _fail(self, error: LauncherError) -> None:
        self._show((), say_error(error))

    def _choose(self, row: int) -> None:
        if 0 <= row < len(self.rows):
            session = self.rows[row].id
            self._controller.bridge.run(lambda _tell: asyncio.to_thread(_load, session), done=self.chosen.emit)


def _listed() -> tuple[Summary, ...]:
    from launcher.tuning.history import History, history_file

    if not history_file().exists():
        return ()
    with History() as history:
        return history.find(kind="tune", most=_MOST)


def _load(session: str) -> Session:
    from launcher.tuning.history import History

    with History() as history:
        return history.load(session)


def _export(session: str, path: Path) -> None:
    from launcher.base.paths import refusal
    from launcher.tuning.report_export import writer_for

    text = writer_for(path)(_load(session))
    try:
        path.write_bytes(text.encode())
    except OSError as error:
        raise refusal(error) from error
