"""The Models page: local files and their actions, the catalogue, folders and the download queue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QMimeData, QSize, Qt, QUrl, Slot
from PySide6.QtGui import QDesktopServices, QResizeEvent
from PySide6.QtWidgets import QFileDialog, QGridLayout, QScrollArea, QStackedWidget, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.base.paths import find_existing_parent
from launcher.gui import theme
from launcher.gui.models.cards import DetailCard, FoldersPanel, OffersPanel, QueueCard, Verification
from launcher.gui.models.columns import file_columns
from launcher.gui.models.queries import LocalModels, delete_model, read_details, read_local_models, read_offers
from launcher.gui.models.queue_controller import QueueController
from launcher.gui.models.table import ModelTable
from launcher.gui.models.text import count_files, display_name, format_size
from launcher.gui.translation import ntr, render, tr
from launcher.gui.widgets import Banner, Card, DropTarget, EmptyState, PageHead, Segmented

if TYPE_CHECKING:
    from launcher.fetch.jobs import Job
    from launcher.gui.controller import Controller
    from launcher.models.leftovers import Leftover
    from launcher.models.library import LocalModel
    from launcher.runtime import WorkHandle

_SIDE_WIDTH, _NARROW, _CRAMPED = 388, 940, 620
"""In pixels: width of the details; page widths below which they go below the table, and margins shrink."""
_FILES, _OFFERS, _FOLDERS = range(3)


class ModelsPage(QWidget):
    """The page. It runs the download queue from the moment it is built until the window closes."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.local_models: LocalModels | None = None
        self._used: dict[str, float] = {}
        """Time of the last use by path. The table's columns read it, so it is updated in place."""
        self._path_to_select: Path | None = None
        self._listing: WorkHandle[None] | None = None
        self._details_reading: WorkHandle[None] | None = None
        self.verifying = Verification(controller.bridge, self)
        self.banner = Banner()
        self.queue = QueueController(controller, self)
        self.table: ModelTable[LocalModel] = ModelTable(tr("Models on this computer"), file_columns(self._used))
        self.details = DetailCard(
            self.start_selected, self.plan_selected, self.verify_selected, self.delete_selected, self.show_in_folder
        )
        self.downloads = QueueCard(self.queue)
        self.offers = OffersPanel(self.queue.add_download)
        self.folders = FoldersPanel(self.add_folder, self._remove_folder, self._remove_leftover, self._open_folder)
        self._lay_out()
        self.drop = DropTarget(self, _drop_hint, self._add_dropped)
        self._connect_signals()
        self.queue.refresh()

    def on_shown(self) -> None:
        """Read the model folders, the queue and, if visible, the catalogue."""
        self.refresh()
        self.queue.refresh()
        if self._views.value == _OFFERS:
            self._read_offers()

    @Slot()
    def refresh(self) -> None:
        """Read the model folders again. Cancels a read in progress."""
        if self._listing is not None:
            self._listing.cancel()
        run = self._controller.bridge.run
        self._listing = run(lambda _report: read_local_models(), done=self._show_models, failed=self._show_error)

    @Slot()
    def start_selected(self) -> None:
        """Serve the selected file."""
        local = self.table.row
        if local is None:
            return
        self._controller.start(_model_name(local))
        self._controller.show_page("cockpit")

    @Slot()
    def plan_selected(self) -> None:
        """Show the plan of the selected file."""
        if self.table.row is not None:
            self._controller.show_plan(_model_name(self.table.row))

    @Slot()
    def verify_selected(self) -> None:
        """Verify the selected file, or stop verifying."""
        local = self.table.row
        if self.verifying.local is not None:
            self.verifying.stop()
        elif local is not None:
            self.details.show_progress(0, local.record.bytes)
            self.verifying.start_verifying(local)

    @Slot()
    def delete_selected(self) -> None:
        """Delete the selected file. The card has asked for confirmation."""
        local = self.table.row
        if local is not None:
            self._controller.bridge.run(
                lambda _report: delete_model(local),
                done=lambda freed: self._show_deleted(display_name(local), freed),
                failed=self._show_error,
            )

    @Slot()
    def show_in_folder(self) -> None:
        """Open the folder of the selected file."""
        if self.table.row is not None:
            self._open_folder(self.table.row.path.parent)

    @Slot()
    def add_folder(self) -> None:
        """Let the user choose another model folder."""
        name = QFileDialog.getExistingDirectory(self, tr("Find models in"))
        if name:
            self.add_place(Path(name))

    def add_place(self, path: Path) -> None:
        """Add a model folder, or list a single file."""

        async def work(_report: object) -> tuple[bool, str]:
            from launcher.models.added_places import add_place
            from launcher.models.library import describe_store

            is_new = await asyncio.to_thread(add_place, path)
            described = await asyncio.to_thread(describe_store, path)
            return is_new, described[0] if described else ""

        self._path_to_select = path if path.suffix.lower() == ".gguf" else None
        self._controller.bridge.run(
            work, done=lambda added: self._show_added(path, is_new=added[0], store=added[1]), failed=self._show_error
        )

    def _add_dropped(self, data: QMimeData) -> None:
        for path in _dropped_models(data):
            self.add_place(path)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put the details beside the table, or below it on a narrow page."""
        super().resizeEvent(event)
        self._arrange()

    def _lay_out(self) -> None:
        self._head = PageHead(tr("Models"), tr("Scanning for models ..."))
        options = [(_FILES, tr("On this computer")), (_OFFERS, tr("Download")), (_FOLDERS, tr("Folders"))]
        self._views = Segmented(tr("View"), options)
        self.empty = EmptyState(
            tr("No models are on this computer yet"),
            tr(
                "Download a model that fits, add your models folder, or drop a .gguf file here. Models of "
                "Ollama, LM Studio, Jan, llama.cpp and the Hugging Face cache are found automatically."
            ),
            ((tr("Download one"), lambda: self.show_view(_OFFERS)), (tr("Add a folder …"), self.add_folder)),
        )
        card = Card()
        card.body.setContentsMargins(*(theme.px(theme.GAP),) * 4)
        card.body.addWidget(self.table)
        self._files = _CurrentPageStack()
        self._files.addWidget(self.empty)
        self._files.addWidget(card)
        self._stack = _CurrentPageStack()
        for widget in (self._files, self.offers, self.folders):
            self._stack.addWidget(widget)
        content = QWidget()
        content.setObjectName("plain")
        self._grid = QGridLayout(content)
        self._grid.setSpacing(theme.px(theme.GAP_L))
        self._grid.addWidget(self._head, 0, 0, 1, 2)
        self._grid.addWidget(self.banner, 1, 0, 1, 2)
        self._grid.addWidget(self._views, 2, 0, 1, 2)
        self._side = QWidget()
        self._side.setObjectName("plain")
        side = QVBoxLayout(self._side)
        side.setContentsMargins(0, 0, 0, 0)
        side.setSpacing(theme.px(theme.GAP_L))
        side.addWidget(self.downloads)
        side.addWidget(self.details, 1)
        side.addStretch()  # keeps the downloads together where no file is shown
        self._is_beside: bool | None = None
        """Whether the side column is beside the table, not below it; None before the first layout."""
        area = QScrollArea()
        area.setWidget(content)
        area.setWidgetResizable(True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)  # needed at 200 % text scale
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(area)
        self._arrange()
        previous: QWidget = self.table  # focus order: the table first, then the switch above it
        for value, _ in options:
            QWidget.setTabOrder(previous, self._views.button(value))
            previous = self._views.button(value)

    def _arrange(self) -> None:
        edge = theme.px(theme.GAP if self.width() < theme.px(_CRAMPED) else theme.GAP_XL)
        self._grid.setContentsMargins(edge, edge, edge, edge)
        is_beside = self.width() >= theme.px(_NARROW)
        if is_beside != self._is_beside:
            self._is_beside = is_beside
            if is_beside:
                self._grid.addWidget(self._stack, 3, 0)
                self._grid.addWidget(self._side, 3, 1)
            else:
                self._grid.addWidget(self._stack, 3, 0, 1, 2)
                self._grid.addWidget(self._side, 4, 0, 1, 2)
            self._grid.setColumnStretch(0, 1)
            self._grid.setRowStretch(3, 1 if is_beside else 0)
            self._grid.setRowStretch(4, 0 if is_beside else 1)
            self._side.setMaximumWidth(theme.px(_SIDE_WIDTH) if is_beside else theme.NO_MAXIMUM)
        self._show_side()

    def _connect_signals(self) -> None:
        self._views.changed.connect(self.show_view)
        self.table.chosen.connect(self._show_file)
        self.table.opened.connect(lambda _local: self.start_selected())
        self.queue.finished.connect(self._show_downloaded)
        self.queue.added.connect(
            lambda title: self.banner.show_message(tr("{title} is in the queue.", title=title), "information")
        )
        self.queue.changed.connect(lambda _line: self._show_side())
        self.queue.noticed.connect(lambda text: self.banner.show_message(text, "attention"))
        self.queue.failed.connect(self._show_error)
        self.verifying.progressed.connect(self._show_verifying)
        self.verifying.verified.connect(self._show_verified)
        self.verifying.failed.connect(self._show_error)
        self.verifying.ended.connect(lambda: self.details.show_progress(None, 0))
        self._controller.launched.connect(self._handle_launch)

    @Slot(object)
    def show_view(self, view: int) -> None:
        """Show the local files, the catalogue or the folders."""
        self._views.set_value(view)
        self._stack.setCurrentIndex(view)
        self._stack.updateGeometry()
        self._show_side()
        if view == _OFFERS:
            self._read_offers()

    @Slot(object)
    def _handle_launch(self, _launch: object) -> None:
        """Read the free memory again: a server has started or stopped."""
        if self.isVisible():
            self.refresh()
            if self._views.value == _OFFERS:
                self._read_offers()

    def _read_offers(self) -> None:
        self._controller.bridge.run(
            lambda _report: read_offers(), done=self.offers.show_offers, failed=self._show_error
        )

    def _show_side(self) -> None:
        self.details.setVisible(self._views.value == _FILES and bool(self.table.rows))
        has_side = not self.details.isHidden() or not self.downloads.isHidden()
        self._side.setVisible(has_side)
        two_columns = has_side and self._is_beside
        self._grid.setColumnMinimumWidth(1, theme.px(_SIDE_WIDTH) if two_columns else 0)
        self._grid.setHorizontalSpacing(theme.px(theme.GAP_L) if two_columns else 0)

    def _show_models(self, models: LocalModels) -> None:
        is_first = self.local_models is None
        self.local_models = models
        self._used.clear()
        self._used.update(models.used)
        self.table.show_rows(models.files, lambda local: local.path)
        to_select = next((local for local in models.files if local.path == self._path_to_select), None)
        if to_select is not None:
            self._path_to_select = None
            self.table.choose_row(to_select)
        self._files.setCurrentIndex(1 if models.files else 0)
        if is_first and models.files:
            self.table.setFocus()
        self.folders.show_folders(models)
        total_bytes = sum(local.record.bytes for local in models.files)
        parts = [count_files(len(models.files)), format_size(total_bytes)] if models.files else [tr("No files yet")]
        parts.append(tr("{size} free", size=format_size(models.free_bytes)))
        if models.leftovers:
            leftover_bytes = sum(each.bytes for each in models.leftovers)
            count = ntr("1 file", "{n} files", len(models.leftovers))
            parts.append(tr("{count} unfinished downloads, {size}", count=count, size=format_size(leftover_bytes)))
        self._head.show_subtitle(" · ".join(parts))
        if models.notice:
            self.banner.show_message(models.notice, "attention")
        self._show_side()

    @Slot(object)
    def _show_file(self, local: LocalModel | None) -> None:
        self.details.show_file(local)
        verified = self.verifying.local
        if local is None or verified is None or verified.path != local.path:
            self.details.show_progress(None, 0)
        if self._details_reading is not None:
            self._details_reading.cancel()  # another row is selected now
        if local is not None:
            self._details_reading = self._controller.bridge.run(
                lambda _report: read_details(local),
                done=lambda details: self.details.show_details(local, details),
                failed=self._show_error,
            )

    @Slot(object, float)
    def _show_verifying(self, done: int, speed: float) -> None:
        verified, shown = self.verifying.local, self.details.local
        if verified is not None and shown is not None and shown.path == verified.path:
            self.details.show_progress(done, verified.record.bytes, speed)

    @Slot(str, str)
    def _show_verified(self, text: str, meaning: str) -> None:
        self.banner.show_message(text, meaning)
        self.refresh()

    def _show_deleted(self, name: str, freed: int) -> None:
        self.banner.show_message(tr("{name} deleted, {size} freed.", name=name, size=format_size(freed)), "good")
        self.refresh()

    def _show_added(self, path: Path, *, is_new: bool, store: str = "") -> None:
        if is_new:
            text = tr("{name} was added to the list.", name=path.name)
        else:
            text = tr("{name} is already in the list.", name=path.name)
        self.banner.show_message(f"{text} {render(store)}".rstrip(), "good" if is_new else "information")
        self.refresh()

    def _remove_folder(self, path: Path) -> None:
        async def work(_report: object) -> bool:
            from launcher.models.added_places import remove_place

            return await asyncio.to_thread(remove_place, path)

        self._controller.bridge.run(work, done=lambda _done: self.refresh(), failed=self._show_error)

    def _remove_leftover(self, leftover: Leftover) -> None:
        async def work(_report: object) -> int:
            from launcher.models.leftovers import remove_leftover

            return await asyncio.to_thread(remove_leftover, leftover)

        self._controller.bridge.run(
            work, done=lambda freed: self._show_deleted(leftover.path.name, freed), failed=self._show_error
        )

    @Slot(object)
    def _show_downloaded(self, job: Job) -> None:
        self._controller.notify(tr("Download finished"), job.title)
        self.banner.show_message(tr("{title} was downloaded and verified.", title=job.title), "good")
        self.refresh()

    def _open_folder(self, folder: Path) -> None:
        QDesktopServices.openUrl(QUrl.fromLocalFile(str(find_existing_parent(folder))))

    def _show_error(self, error: LauncherError) -> None:
        self.banner.show_message(str(error), "bad")


class _CurrentPageStack(QStackedWidget):
    """Stack as large as its visible page only."""

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the visible page's size."""
        current = self.currentWidget()
        return current.sizeHint() if current else QSize()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the visible page's minimum size."""
        current = self.currentWidget()
        return current.minimumSizeHint() if current else QSize()


def _model_name(local: LocalModel) -> str:
    """Return the name by which a file is planned and started."""
    if local.record.model and local.record.quant:
        return local.record.label
    return local.stored.name if local.stored else str(local.path)


def _drop_hint(data: QMimeData) -> str:
    """Return the hint shown while data is dragged over the page, or "" if it is refused."""
    return tr("Drop the file to add it to the list. It is not moved") if _dropped_models(data) else ""


def _dropped_models(data: QMimeData) -> list[Path]:
    """Return the dragged GGUF files and folders, or none if anything else is among them."""
    paths = [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]
    return paths if paths and all(path.is_dir() or path.suffix.lower() == ".gguf" for path in paths) else []
