"""The Models page: models here, in the catalogue and on the hub in one list, with their details and the downloads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QMimeData, Qt, QTimer, QUrl, Slot
from PySide6.QtGui import QDesktopServices, QKeyEvent, QKeySequence, QPainter, QPaintEvent, QResizeEvent, QShortcut
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QStackedWidget, QVBoxLayout, QWidget

from launcher.app import settings
from launcher.app.models.model_library import (
    LibraryFile,
    LibraryModel,
    ModelShelf,
    find_recommended,
    look_up,
    name_local,
    plan_beside,
    plan_files,
    read_hub_model,
    read_shelf,
    search_hub,
)
from launcher.app.settings_declared import SEARCH_HUB, VALUE_OFF, VALUE_ON
from launcher.base.errors import LauncherError, Superseded
from launcher.base.paths import find_existing_parent
from launcher.fetch.hub_cache import is_hub_offline
from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.late import added_places, hub_model, leftovers, library
from launcher.gui.models.detail import DetailPanel
from launcher.gui.models.downloads_bar import DownloadsBar
from launcher.gui.models.folders import FoldersPanel
from launcher.gui.models.list_view import LibraryList, ListHead, paint_tile
from launcher.gui.models.queries import delete_model, read_figures
from launcher.gui.models.queue_controller import QueueController
from launcher.gui.models.row_text import (
    TILE_ORDER,
    Download,
    Row,
    describe_file,
    describe_model,
    name_file,
    store_tile,
    tile_name,
)
from launcher.gui.models.search import BEST, HERE, AddCard, HubLine, SearchLine, filter_models, sort_models
from launcher.gui.models.serving import read_serving, serving_key
from launcher.gui.models.text import format_size
from launcher.gui.models.verification import Verification
from launcher.gui.service import name_model
from launcher.gui.translation import join_sentences, ntr, render, tr
from launcher.gui.widgets import Banner, Card, DropTarget, EmptyState, PageHead
from launcher.gui.widgets.drop_target import dropped_models

if TYPE_CHECKING:
    from launcher.app.planning.planner import MachineDescription
    from launcher.fetch.jobs import Job
    from launcher.gui.controller import Controller
    from launcher.models.leftovers import Leftover
    from launcher.models.library import LocalModel
    from launcher.models.situation import Situation
    from launcher.runtime import WorkHandle

_DETAIL_WIDTH, _WIDE_DETAIL_WIDTH = 336, 560
"""Width of the details on usual and on wide pages, in pixels."""
_NARROW, _WIDE, _CRAMPED = 900, 1_800, 620
"""Page widths in pixels: below the first the details are a drawer, above the second they are wider, below the third
margins are smaller."""
_SEARCH_PAUSE_MS = 400
"""Pause after the last key before the hub is searched."""
_LEAST_SEARCH = 2
"""The least number of characters for which the hub is searched."""


@dataclass(frozen=True, slots=True)
class KeptLibrary:
    """State of a Models page that the page built in its place takes over: see the attributes of ModelsPage."""

    shelf: ModelShelf | None
    from_hub: tuple[LibraryModel, ...]
    machine: MachineDescription | None
    start_after: frozenset[str]
    search: str


class ModelsPage(QWidget):
    """The page. It runs the download queue from the moment it is built until the window closes."""

    def __init__(self, controller: Controller, kept: KeptLibrary | None = None) -> None:
        super().__init__()
        self._controller = controller
        self.machine: MachineDescription | None = None
        """The machine to plan for; None is this computer."""
        self.shelf: ModelShelf | None = None
        """The models of the catalogue and of this computer, as far as they are read."""
        self.from_hub: tuple[LibraryModel, ...] = ()
        """Models on the hub: found by the search, or named by a link."""
        """The words for which the hub was asked last."""
        self._downloads: dict[str, Download] = {}
        """Downloads by the file that they fetch."""
        self._start_after: set[str] = set()
        """Titles of the downloads whose files are to be started once they are here."""
        self._recommended = ""
        self._path_to_select: Path | None = None
        self._key_to_select = ""
        self._is_drawer_open = False
        self._reading: WorkHandle[None] | None = None
        self._searching: WorkHandle[None] | None = None
        self._figures_reading: WorkHandle[None] | None = None
        self._figures_of = ""
        self._planning: set[str] = set()
        """Keys of the models whose files are being planned because they were selected or opened."""
        self._serving = read_serving(controller)
        self._beside: LibraryFile | None = None
        """A file as it would be loaded beside the running model, for the file and the memory in `_beside_for`."""
        self._beside_for: tuple[str, Situation] | None = None
        self._beside_planning: WorkHandle[None] | None = None
        self._key_to_unload = ""
        """The file whose load was cancelled before the server knew its name; "" without one."""
        self.verifying = Verification(controller.bridge, self)
        self.banner = Banner()
        self.queue = QueueController(controller, self)
        self.search = SearchLine()
        self.list = LibraryList(self._describe_row)
        self.hub_line = HubLine()
        self.details = DetailPanel()
        self.downloads = DownloadsBar(self.queue, self._name_download)
        self.folders = FoldersPanel(self.add_folder, self._remove_folder, self._remove_leftover, self._open_folder)
        self.add_card = AddCard(self.show_hub_model, self.queue.add_download, self.choose_file, self.add_folder)
        self._search_timer = QTimer(self)
        self._search_timer.setSingleShot(True)
        self._search_timer.setInterval(_SEARCH_PAUSE_MS)
        self._lay_out()
        self.drop = DropTarget(self, _drop_hint, self._add_dropped)
        self._connect_signals()
        self.queue.refresh()
        if kept is not None:
            self._go_on_with(kept)

    def hand_over(self) -> KeptLibrary:
        """Leave what was read, and the words of the search, to the next page."""
        start_after = frozenset(self._start_after)
        return KeptLibrary(self.shelf, self.from_hub, self.machine, start_after, self.search.text)

    def _go_on_with(self, kept: KeptLibrary) -> None:
        self.machine, self._start_after = kept.machine, set(kept.start_after)
        self.search.field.setText(kept.search)
        self.from_hub = kept.from_hub
        if kept.shelf is not None:
            self._show_shelf(kept.shelf)

    def on_shown(self) -> None:
        """Read the models and the queue."""
        self.refresh()
        self.queue.refresh()

    @Slot()
    def refresh(self) -> None:
        """Read the models again. Cancels a read in progress."""

        async def read_models(report: object) -> None:
            from launcher.app.planning.planner import MachineDescription

            assert callable(report)  # noqa: S101 -- for the type checker
            async for shelf in read_shelf(machine or MachineDescription(), known):
                report(shelf)

        if self._reading is not None:
            self._reading.cancel()
        machine, known = self.machine, self.shelf
        self._reading = self._controller.bridge.run(
            read_models, reported=self._show_shelf, failed=self._show_read_failure
        )

    # What the user does with the selected model.

    @property
    def selected(self) -> tuple[LibraryModel, LibraryFile | None] | None:
        """The selected model with the file that is meant: the selected one, else the model's first if that is known."""
        model = self.list.model_row
        return None if model is None else (model, self.list.file_row or _first_file(model))

    @Slot(object, object)
    def act_on_row(self, model: LibraryModel, file: LibraryFile | None) -> None:
        """Do what the button of a row says: start what is here, get what is not."""
        file = file or _first_file(model)
        if file is None and model.found is not None:
            self.show_hub_model(model.repo)
        elif file is None:
            return
        elif model.is_built_in or file.is_usable:
            if file.is_model:
                self._start(model, file)
        elif file.download_id and (file.download_id not in self._downloads or not self._is_getting(file)):
            self._download(file)

    @Slot()
    def start_selected(self) -> None:
        """Serve the selected file, or open the chat if it is served."""
        selected = self.selected
        if selected is not None and selected[1] is not None:
            self._start(selected[0], selected[1])

    @Slot()
    def measure_selected(self) -> None:
        """Open Tune for the selected file, which is served first if it is not."""
        model, file = self.selected or (None, None)
        if model is None or file is None:
            return
        status = self._serving.find_status(model, file)
        if status is None or not status.is_main:
            self._controller.start(_start_name(model, file))
        self._controller.show_page("tune")

    @Slot()
    def plan_selected(self) -> None:
        """Show the plan of the selected file on the Start page."""
        selected = self.selected
        if selected is not None and selected[1] is not None:
            self._controller.show_plan(_start_name(selected[0], selected[1]))

    @Slot()
    def verify_selected(self) -> None:
        """Verify the selected file, or stop verifying."""
        local = self._selected_local
        if self.verifying.local is not None:
            self.verifying.stop()
        elif local is not None:
            self.details.show_progress(0, local.record.bytes)
            self.verifying.start_verifying(local)

    @Slot()
    def delete_selected(self) -> None:
        """Delete the selected file. The panel has asked for confirmation."""
        local = self._selected_local
        if local is not None:
            self._controller.bridge.run(
                delete_model,
                local,
                done=lambda freed: self._show_deleted(name_local(local), freed),
                failed=self._show_error,
            )

    @Slot()
    def show_in_folder(self) -> None:
        """Open the folder of the selected file."""
        if self._selected_local is not None:
            self._open_folder(self._selected_local.path.parent)

    @Slot()
    def download_selected(self, *, then_start: bool = False) -> None:
        """Get the selected file; with `then_start` start it once it is here."""
        selected = self.selected
        if selected is not None and selected[1] is not None and selected[1].download_id:
            if then_start:
                self._start_after.add(selected[1].download_id)
            self._download(selected[1])

    @Slot()
    def look_up_selected(self) -> None:
        """Read from the hub what the plan of the selected file lacks."""
        selected = self.selected
        if selected is None or selected[1] is None:
            return
        model, file = selected[0], selected[1]

        self.details.look_up.setEnabled(False)
        self.banner.show_message(tr("Asking Hugging Face about {name} ...", name=model.name), "information")
        self._controller.bridge.run(
            look_up, model, file, done=lambda _none: self._show_looked_up(model), failed=self._show_look_up_failure
        )

    def show_hub_model(self, name: str) -> None:
        """Read the files of a model on the hub, by its name or link, and select it in the list."""
        situation = self.shelf.situation if self.shelf is not None else None

        self.hub_line.show_state(tr("Reading the files of {name} on Hugging Face ...", name=name))
        if self._searching is not None:
            self._searching.cancel()
        self._searching = self._controller.bridge.run(
            read_hub_model,
            name,
            situation,
            done=self._show_hub_model,
            failed=lambda error: self._show_hub_failure(error, name),
        )

    # Files, folders and links.

    @Slot()
    def choose_file(self) -> None:
        """Let the user choose a model file, which is then listed."""
        kinds = f"{tr('Models')} (*.gguf);;{tr('All files')} (*)"
        name, _ = QFileDialog.getOpenFileName(self, tr("Choose a model"), "", kinds)
        if name:
            self.add_place(Path(name))

    @Slot()
    def add_folder(self) -> None:
        """Let the user choose another model folder."""
        name = QFileDialog.getExistingDirectory(self, tr("Find models in"))
        if name:
            self.add_place(Path(name))

    def add_place(self, path: Path) -> None:
        """Add a model folder, or list a single file."""

        async def add_to_list() -> tuple[bool, str]:
            is_new = await asyncio.to_thread(added_places.add_place, path)
            described = await asyncio.to_thread(library.describe_store, path)
            return is_new, described[0] if described else ""

        self._path_to_select = path if path.suffix.lower() == ".gguf" else None
        self._controller.bridge.run(
            add_to_list,
            done=lambda added: self._show_added(path, is_new=added[0], store=added[1]),
            failed=self._show_error,
        )

    def add_link(self, text: str) -> None:
        """Take a pasted link: show the files of a model on the hub, or ask for the checksum of another address."""
        if hub_model.parse_hub_name(text) is None:
            self._show_adding(shows=True)
            self.add_card.show_address(text)
        else:
            self.show_hub_model(text)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Esc goes back to the list: from the folders, the links and the drawer."""
        if event.key() == Qt.Key.Key_Escape and self._stack.currentIndex() == 1:
            self.show_folders(shows=False)
        elif event.key() == Qt.Key.Key_Escape and self.add_card.isVisible():
            self._show_adding(shows=False)
        elif event.key() == Qt.Key.Key_Escape and self._is_drawer_open and not self._is_beside:
            self._set_drawer(is_open=False)
        else:
            super().keyPressEvent(event)

    def show_folders(self, *, shows: bool) -> None:
        """Show the model folders in place of the list, or the list."""
        self.folders_button.setChecked(shows)
        self._stack.setCurrentIndex(1 if shows else 0)
        self.search.setVisible(not shows)

    # Layout.

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put the details beside the list, or into a drawer on a narrow page."""
        super().resizeEvent(event)
        self._arrange()

    def _lay_out(self) -> None:
        self._head = PageHead(tr("Models"), tr("Looking for models ..."))
        self.folders_button = self._head.add_button(
            tr("Folders"), lambda: self.show_folders(shows=self.folders_button.isChecked())
        )
        self.folders_button.setCheckable(True)
        self.folders_button.setToolTip(tr("Folders in which models are found, and unfinished downloads"))
        self.add_button = self._head.add_button(
            tr("Add file or link"), lambda: self._show_adding(shows=self.add_button.isChecked())
        )
        self.add_button.setCheckable(True)
        self._make_list()
        content = QWidget()
        content.setObjectName("plain")
        self._content = QHBoxLayout(content)
        self._content.setContentsMargins(0, 0, 0, 0)
        self._content.setSpacing(theme.px(theme.GAP_L))
        self._content.addWidget(self._list_card, 1)
        self._content.addWidget(self.details)
        self._stack = QStackedWidget()
        self._stack.addWidget(content)
        self._stack.addWidget(self.folders)
        self._column = QVBoxLayout(self)
        self._column.setSpacing(theme.px(theme.GAP_M))
        for widget in (self._head, self.banner, self.add_card, self.search):
            self._column.addWidget(widget)
        self._column.addWidget(self._stack, 1)
        self._column.addWidget(self.downloads)
        self._is_beside: bool | None = None
        """Whether the details are beside the list, not a drawer; None before the first layout."""
        self._arrange()
        QWidget.setTabOrder(self.search.order, self.list)
        find = QShortcut(QKeySequence(QKeySequence.StandardKey.Find), self, self._enter_search)
        find.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)

    def _make_list(self) -> None:
        self.empty = EmptyState(
            tr("No models are on this computer yet"),
            tr(
                "Download a model that fits, add your models folder, or drop a .gguf file here. Models of "
                "Ollama, LM Studio, Jan, llama.cpp and the Hugging Face cache are found automatically."
            ),
            ((tr("Show what fits"), self._show_all), (tr("Add a folder …"), self.add_folder)),
        )
        self.nothing = EmptyState(
            tr("Nothing found"),
            tr("No model of the catalogue or on this computer has these words."),
            (
                (tr("Clear the search"), self.search.field.clear),
                (tr("Paste a link"), lambda: self._show_adding(shows=True)),
            ),
        )
        self.looking = Label(tr("Looking for models ..."))
        self.looking.setObjectName("secondary")
        self.looking.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._head_line = ListHead(self.list)
        rows = QWidget()
        rows.setObjectName("plain")
        column = QVBoxLayout(rows)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self._head_line)
        column.addWidget(self.list, 1)
        self._rows = QStackedWidget()
        for widget in (self.looking, rows, self.empty, self.nothing):
            self._rows.addWidget(widget)
        self._legend = _Legend()
        self._list_card = Card()
        self._list_card.body.setContentsMargins(1, 1, 1, 1)
        self._list_card.body.setSpacing(0)
        self._list_card.body.addWidget(self._rows, 1)
        self._list_card.body.addWidget(self.hub_line)
        self._list_card.body.addWidget(self._legend)

    def _arrange(self) -> None:
        edge = theme.px(theme.GAP if self.width() < theme.px(_CRAMPED) else theme.GAP_XL)
        self._column.setContentsMargins(edge, theme.px(theme.GAP_L), edge, theme.px(theme.GAP_L))
        self._is_beside = self.width() >= theme.px(_NARROW)
        wide = self.width() >= theme.px(_WIDE)
        self.details.setFixedWidth(theme.px(_WIDE_DETAIL_WIDTH if wide else _DETAIL_WIDTH))
        self._show_drawer()

    def _show_drawer(self) -> None:
        """Show the details if there is room, or if the user has opened them."""
        has_rows = bool(self.list.models) or self.shelf is None
        self.details.setVisible(has_rows and (bool(self._is_beside) or self._is_drawer_open))
        self.details.close_button.setVisible(not self._is_beside)
        self._stack.updateGeometry()  # the list may be behind the folders: hidden, it does not report its new width

    def _set_drawer(self, *, is_open: bool) -> None:
        self._is_drawer_open = is_open
        self._show_drawer()
        if not is_open:
            self.list.setFocus()

    def _show_adding(self, *, shows: bool) -> None:
        self.add_button.setChecked(shows)
        self.add_card.setVisible(shows)
        if shows:
            self.add_card.address.setFocus()

    def _show_all(self) -> None:
        self.search.filter.set_value("all")
        self._show_rows()

    def _connect_signals(self) -> None:
        self.search.changed.connect(self._handle_search)
        self.search.field.left_down.connect(self._enter_list)
        self.search.field.returnPressed.connect(self._handle_search_entered)
        self._search_timer.timeout.connect(self._search_hub_if_allowed)
        self.list.chosen.connect(self._show_selected)
        self.list.acted.connect(self.act_on_row)
        self.list.opened.connect(self._plan_all_files)
        self.list.pressed_row.connect(lambda: self._set_drawer_open())
        details = self.details
        details.start_pressed.connect(self.start_selected)
        details.beside_pressed.connect(self.load_beside)
        details.download_pressed.connect(lambda: self.download_selected())
        details.download_and_start_pressed.connect(lambda: self.download_selected(then_start=True))
        details.plan_pressed.connect(self.plan_selected)
        details.verify_pressed.connect(self.verify_selected)
        details.delete_confirmed.connect(self.delete_selected)
        details.folder_pressed.connect(self.show_in_folder)
        details.look_up_pressed.connect(self.look_up_selected)
        details.files_pressed.connect(self._show_files_of_selected)
        details.draft_pressed.connect(self._download)
        details.measure_pressed.connect(self.measure_selected)
        details.close_pressed.connect(lambda: self._set_drawer(is_open=False))
        self.queue.finished.connect(self._show_downloaded)
        self.queue.added.connect(self._handle_added)
        self.queue.adding_changed.connect(self._handle_queue)
        self.queue.changed.connect(lambda _view: self._handle_queue())
        self.queue.noticed.connect(lambda text: self.banner.show_message(text, "attention"))
        self.queue.failed.connect(self._show_error)
        self.verifying.progressed.connect(self._show_verifying)
        self.verifying.verified.connect(self._show_verified)
        self.verifying.failed.connect(self._show_error)
        self.verifying.ended.connect(lambda: self.details.show_progress(None, 0))
        self._controller.launched.connect(self._handle_launch)
        self._controller.view_changed.connect(self._handle_view)
        self._controller.models_changed.connect(self._follow_server)
        self._controller.joined.connect(self._show_joined)
        self._controller.setting_changed.connect(self._handle_setting)

    def _set_drawer_open(self) -> None:
        if not self._is_beside:
            self._set_drawer(is_open=True)

    # Showing models, details and the search.

    def _describe_row(self, model: LibraryModel, file: LibraryFile | None) -> Row:
        if file is not None:
            return describe_file(model, file, self._downloads, serving=self._serving)
        recommended = model.key == self._recommended
        return describe_model(model, self._downloads, recommended=recommended, serving=self._serving)

    def _show_shelf(self, shelf: ModelShelf) -> None:
        is_first = self.shelf is None
        self.shelf = shelf
        recommended = find_recommended(shelf.models) if shelf.situation is not None else None
        before = self._recommended
        self._recommended = recommended.key if recommended is not None else ""
        if before != self._recommended:
            self.list.tree.forget_row(before)
            self.list.tree.forget_row(self._recommended)
        self._show_rows()
        self._select_wanted()
        if (
            is_first
            and shelf.models
            and self._rows.currentIndex() == 1
            and not self.isAncestorOf(self.focusWidget() or self)
        ):
            self.list.setFocus()
        self.folders.show_folders(shelf.local)
        self._show_subtitle(shelf)
        if shelf.local.notice:
            self.banner.show_message(shelf.local.notice, "attention")

    def _show_subtitle(self, shelf: ModelShelf) -> None:
        here = [each for each in shelf.models if each.is_here]
        total = sum(each.local.record.bytes for model in here for each in model.files if each.local is not None)
        parts = [ntr("1 model here", "{n} models here", len(here)) if here else tr("No models here yet")]
        if here:
            parts.append(format_size(total))
        parts.append(tr("{size} free on the disk", size=format_size(shelf.local.free_bytes)))
        if shelf.local.leftovers:
            size = format_size(sum(each.bytes for each in shelf.local.leftovers))
            parts.append(tr("unfinished downloads: {size}", size=size))
        if shelf.problem:
            parts.append(render(shelf.problem))
        elif not shelf.is_complete and shelf.situation is not None:
            planned = sum(1 for each in shelf.models if any(file.plan or file.lack for file in each.files))
            parts.append(tr("checking what fits: {count} of {all}", count=planned, all=len(shelf.models)))
        self._head.show_subtitle(" · ".join(parts))

    def _show_rows(self) -> None:
        """Show the rows that the search and the filter let through, in the chosen order."""
        if self.shelf is None:
            return
        known = {each.repo.casefold() for each in self.shelf.models if each.repo}
        keys = {each.key for each in self.shelf.models}
        extra = [each for each in self.from_hub if each.key not in keys and each.repo.casefold() not in known]
        text, shown = self.search.text, str(self.search.filter.value)
        order = str(self.search.order.currentData() or BEST)
        on_hub = {each.key: each for each in self.from_hub if each.found is None}
        all_models = [
            each.with_hub_files(on_hub[each.key]) if each.key in on_hub else each for each in self.shelf.models
        ]
        models = filter_models(all_models, text, shown)
        models = sort_models(models, order, by_fit=self.shelf.is_complete)
        if shown != HERE:
            # Models that the hub found already match the words.
            found = [each for each in extra if each.found is not None]
            named = filter_models([each for each in extra if each.found is None], text, shown)
            models += sort_models([*named, *found], order) if order != BEST else [*named, *found]
        self.list.show_models(models, complete=self.shelf.is_complete)
        self._legend.show_tiles(self.list.models)
        if models:
            self._rows.setCurrentIndex(1)
        elif text:
            self._rows.setCurrentIndex(3)
        else:
            self._rows.setCurrentIndex(2)
        self._place_hub_line(has_list=bool(models) or not text)
        self._show_drawer()
        if not models:
            self._show_selected(None, None)

    def _place_hub_line(self, *, has_list: bool) -> None:
        """Put the line about the hub under the list or, if nothing was found, below the text "Nothing found"."""
        line = self.hub_line
        if has_list == (line.parentWidget() is self._list_card):
            return
        is_shown = not line.isHidden()
        if has_list:
            self._list_card.body.insertWidget(1, line)
        else:
            self.nothing.add_below_text(line)
        line.set_inset(theme.GAP_L if has_list else 0)
        line.setVisible(is_shown)

    def _select_wanted(self) -> None:
        """Select the file that was added or dropped, or the model that was named by a link, once it is listed."""
        if self._path_to_select is not None:
            for model in self.list.models:
                for file in model.files:
                    if file.local is not None and file.local.path == self._path_to_select:
                        self._path_to_select = None
                        self.list.choose(model.key, file.key if len(model.files) > 1 else None)
                        return
        if self._key_to_select and self.list.choose(self._key_to_select):
            self._key_to_select = ""

    @Slot(object, object)
    def _show_selected(self, _model: LibraryModel | None, _file: LibraryFile | None) -> None:
        self._show_details()
        model = self.list.model_row
        if model is not None and model.is_pending and model.files and self.shelf is not None and self.shelf.is_complete:
            self._plan_all_files(model)  # a model with hundreds of files has only some planned at first
        local = self._selected_local
        verified = self.verifying.local
        if local is None or verified is None or verified.path != local.path:
            self.details.show_progress(None, 0)
        path = str(local.path) if local is not None else ""
        if path == self._figures_of:
            return
        self._figures_of = path
        if self._figures_reading is not None:
            self._figures_reading.cancel()  # another row is selected now
        if local is not None:
            self._figures_reading = self._controller.bridge.run(
                read_figures,
                local,
                done=lambda figures: self.details.show_figures(path, figures),
                failed=self._show_error,
            )

    @Slot(object)
    def _handle_view(self, _view: object) -> None:
        """Follow the server. This is a slot, because Qt disconnects it when the page is deleted, but not a lambda."""
        self._follow_server()

    @Slot()
    def _follow_server(self) -> None:
        """Show which models are loaded, and how far others are. Reads the free memory again once another is loaded."""
        before, self._serving = self._serving, read_serving(self._controller)
        if self._serving == before:
            return
        now, then = self._serving.statuses, before.statuses
        unwanted = now.get(self._key_to_unload)
        if unwanted is not None and unwanted.path:
            self._key_to_unload = ""
            self._controller.stop_model(unwanted.name)
        changed = {key for key in {*now, *then} if now.get(key) != then.get(key)}
        for model in self.list.models:
            if not changed.isdisjoint(serving_key(model, each) for each in model.files):
                self.list.tree.forget_row(model.key)
        if self._serving.loaded != before.loaded and self.isVisible():
            self.refresh()
        self._show_details()

    def _show_details(self) -> None:
        selected = self.selected
        if selected is None:
            self.details.show_nothing()
            return
        model, file = selected
        download = self._downloads.get(file.download_id) if file is not None and file.is_absent else None
        situation = self.shelf.situation if self.shelf is not None else None
        beside = self._plan_beside(model, file, situation)
        drafts = [(each, self._downloads.get(each.download_id)) for each in model.drafts]
        self.details.show_model(model, file, situation, download, self._serving, beside, drafts)

    def _plan_beside(
        self, model: LibraryModel, file: LibraryFile | None, situation: Situation | None
    ) -> LibraryFile | None:
        """Return a file with the plan by which it would be loaded beside the running model.

        None while that is being planned, or if the file cannot be loaded there. When the free memory is read again, the
        old plan stays until the new one is made.
        """
        is_loaded = self._serving.find_status(model, file) is not None
        if file is None or not file.is_usable or situation is None or self._serving.rests or is_loaded:
            return None
        if self._beside_for == (file.key, situation):
            return self._beside
        if self._beside_for is None or self._beside_for[0] != file.key:
            self._beside = None
        self._beside_for = file.key, situation
        if self._beside_planning is not None:
            self._beside_planning.cancel()

        self._beside_planning = self._controller.bridge.run(
            plan_beside,
            file,
            situation,
            done=self._show_beside,
            failed=lambda _error: self._show_beside(LibraryFile(local=file.local)),
        )
        return self._beside

    def _show_beside(self, file: LibraryFile) -> None:
        self._beside = file
        self._show_details()

    @property
    def _selected_local(self) -> LocalModel | None:
        selected = self.selected
        return selected[1].local if selected is not None and selected[1] is not None else None

    @Slot(object)
    def _plan_all_files(self, model: LibraryModel) -> None:
        """Plan all files of a model: its rows are open."""
        situation = self.shelf.situation if self.shelf is not None else None
        if situation is None or model.is_planned or model.key in self._planning:
            return
        self._planning.add(model.key)

        self._controller.bridge.run(
            plan_files,
            model,
            situation,
            done=self._replace_model,
            failed=lambda error: self._show_plan_failure(model.key, error),
        )

    def _replace_model(self, model: LibraryModel) -> None:
        self._planning.discard(model.key)
        if self.shelf is not None:
            self.shelf = self.shelf.with_model(model)
        self.from_hub = tuple(model if each.key == model.key else each for each in self.from_hub)
        self._show_rows()

    def _show_plan_failure(self, key: str, error: LauncherError) -> None:
        self._planning.discard(key)
        self._show_error(error)

    # The search.

    @Slot()
    def _handle_search(self) -> None:
        self.from_hub = tuple(each for each in self.from_hub if each.found is None)
        self._show_rows()
        self._search_timer.start()
        if len(self.search.text) < _LEAST_SEARCH:
            self.hub_line.show_state("")

    @Slot()
    def _handle_search_entered(self) -> None:
        """Open the link or the name in the field; else go to the list."""
        text = self.search.text
        if "/" in text and hub_model.parse_hub_name(text) is not None:
            self.show_hub_model(text)
        elif "://" in text:
            self.add_link(text)
        elif not self.list.models:
            self._search_hub()
        else:
            self._enter_list()

    def _enter_search(self) -> None:
        self.show_folders(shows=False)
        self.search.field.setFocus()
        self.search.field.selectAll()

    def _enter_list(self) -> None:
        if self.list.models:
            self.list.setFocus()

    @Slot()
    def _search_hub_if_allowed(self) -> None:
        """Ask the hub if the user has allowed that, else say how to allow it."""
        text = self.search.text
        if len(text) < _LEAST_SEARCH or self.search.filter.value == HERE:
            self.hub_line.show_state("")
            return
        allowed = settings.stored_value(SEARCH_HUB)
        if is_hub_offline():
            self.hub_line.show_state(tr("Only the catalogue and this computer were searched: there is no network."))
        elif allowed == VALUE_ON:
            self._search_hub()
        elif allowed == VALUE_OFF:
            self.hub_line.show_state(
                tr("The search on Hugging Face is off."), ((tr("Allow it once"), self._search_hub),)
            )
        else:
            self.hub_line.show_state(
                tr("Search on Hugging Face, too? The words of the search are sent there."),
                (
                    (tr("Search once"), self._search_hub),
                    (tr("Always"), lambda: self._allow_search(VALUE_ON)),
                    (tr("Never"), lambda: self._allow_search(VALUE_OFF)),
                ),
            )

    def _allow_search(self, answer: str) -> None:
        self._controller.change_setting(SEARCH_HUB, answer)
        self.hub_line.show_state("")

    @Slot(str, object)
    def _handle_setting(self, name: str, _value: object) -> None:
        if name == SEARCH_HUB:
            self._search_hub_if_allowed()

    def _search_hub(self) -> None:
        text = self.search.text

        self.hub_line.show_state(tr("Searching Hugging Face ..."))
        if self._searching is not None:
            self._searching.cancel()
        self._searching = self._controller.bridge.run(
            search_hub, text, done=self._show_found, failed=lambda error: self._show_hub_failure(error, "")
        )

    def _show_found(self, found: tuple[LibraryModel, ...]) -> None:
        named = tuple(each for each in self.from_hub if each.found is None)
        self.from_hub = (*named, *(each for each in found if each.key not in {one.key for one in named}))
        self._show_rows()
        count = len(found)
        text = ntr("1 found on Hugging Face", "{n} found on Hugging Face", count)
        self.hub_line.show_state(text if count else tr("Nothing found on Hugging Face."))

    def _show_hub_failure(self, error: LauncherError, name: str) -> None:
        """Show why the hub gave no answer. `name` is the model that was asked about, "" for a search."""
        again = (lambda: self.show_hub_model(name)) if name else self._search_hub
        self.hub_line.show_state(render(str(error)), ((tr("Try again"), again),))

    def _show_hub_model(self, model: LibraryModel) -> None:
        self.hub_line.show_state("")
        if self.shelf is not None and any(each.key == model.key for each in self.shelf.models):
            self.shelf = self.shelf.with_model(model)
        else:
            others = tuple(each for each in self.from_hub if each.repo.casefold() != model.repo.casefold())
            self.from_hub = (model, *others)
        keys = {each.key for each in self.list.models}
        if model.key not in keys:
            self.search.filter.set_value("all")
            if not any(each.repo.casefold() == model.repo.casefold() for each in self.list.models if model.repo):
                self.search.field.clear()
        self._key_to_select = model.key
        self._show_adding(shows=False)
        self.show_folders(shows=False)
        self._show_rows()
        self._select_wanted()
        index = self.list.tree.find_index(model.key)
        if index.isValid():
            self.list.setExpanded(index, True)
            self.list.scrollTo(index)
        self.list.setFocus()
        self._set_drawer_open()

    @Slot()
    def _show_files_of_selected(self) -> None:
        if self.list.model_row is not None:
            self.show_hub_model(self.list.model_row.repo)

    # Downloads.

    def _is_getting(self, file: LibraryFile) -> bool:
        download = self._downloads.get(file.download_id)
        return download is not None and download.is_active

    def _start(self, model: LibraryModel, file: LibraryFile) -> None:
        status = self._serving.find_status(model, file)
        if status is not None and status.is_main:
            self._controller.open_chat()
            return
        self._controller.start(_start_name(model, file))
        self._controller.show_page("cockpit")

    @Slot()
    def load_beside(self) -> None:
        """Load the selected file beside the running model; unload it if it is loaded there. Its row shows that."""
        if self.selected is None or self.selected[1] is None:
            return
        model, file = self.selected[0], self.selected[1]
        self.banner.clear()
        status = self._serving.find_status(model, file)
        if status is None:
            self._controller.load_beside(_start_name(model, file), serving_key(model, file))
        elif status.path:
            self._controller.stop_model(status.name)
        else:
            self._key_to_unload = serving_key(model, file)

    @Slot(str, object)
    def _show_joined(self, model: str, error: LauncherError | None) -> None:
        """Say how the load of a model beside the running one has ended, unless the user has cancelled it."""
        self._key_to_unload = ""
        if error is None:
            text = tr("{model} is loaded. Programs reach both models at the same address.", model=name_model(model))
            show = (tr("Show on Cockpit"), lambda: self._controller.show_page("cockpit"))
            self.banner.show_message(text, "good", [show])
        elif error.code != Superseded.code:
            self._show_error(error)

    def _download(self, file: LibraryFile) -> None:
        download = self._downloads.get(file.download_id)
        if download is not None and download.job is not None and download.job.state.value in ("failed", "cancelled"):
            self.queue.request_state("run", download.job.id)
        else:
            planned = file.plan.setting if file.plan is not None else None
            with_file = planned is not None and planned.drafter.source == "file"
            self.queue.add_download(file.download_id, planned.chosen_drafter if planned and with_file else None)

    def _find_download(self, title: str) -> tuple[LibraryModel, LibraryFile] | None:
        models = (*(self.shelf.models if self.shelf is not None else ()), *self.from_hub)
        named = ((model, file) for model in models for file in model.files if file.download_id == title)
        return next(named, None)

    def _name_download(self, title: str) -> str:
        """Return the name of what a download gets: that of the list, else its title."""
        found = self._find_download(title)
        return name_file(*found) if found is not None else title

    def _handle_queue(self) -> None:
        """Show the downloads in the rows of their files."""
        view = self.queue.snapshot
        downloads = {job.title: Download(job, view.progress_by_id.get(job.id)) for job in view.jobs}
        downloads |= {target: Download() for target in self.queue.adding}
        changed = {name for name in {*downloads, *self._downloads} if downloads.get(name) != self._downloads.get(name)}
        self._downloads = downloads
        if not changed:
            return
        for model in self.list.models:
            if any(each.download_id in changed for each in model.files):
                self.list.tree.forget_row(model.key)
        if (selected := self.selected) is None:
            return
        if any(each is not None and each.download_id in changed for each in (selected[1], *selected[0].drafts)):
            self._show_details()

    @Slot(object)
    def _handle_added(self, job: Job) -> None:
        if not any(each.download_id == job.title for model in self.list.models for each in model.files):
            self.banner.show_message(tr("{title} is in the queue.", title=job.title), "information")

    @Slot(object)
    def _show_downloaded(self, job: Job) -> None:
        self._controller.notify(tr("Download finished"), job.title)
        path = (job.result or {}).get("path")
        if path and job.title in self._start_after:
            self._start_after.discard(job.title)
            self._controller.start(str(path))
            self._controller.show_page("cockpit")
            return
        buttons = []
        found = self._find_download(job.title)
        if found is not None and found[1].draft is not None:
            if found[0].key != (self.list.model_row.key if self.list.model_row is not None else ""):
                self._key_to_select = found[0].key
        elif path:
            self._path_to_select = Path(path)
            buttons = [(tr("Start"), lambda: self._start_path(Path(path)))]
        text = tr("{title} was downloaded and verified.", title=self._name_download(job.title))
        self.banner.show_message(text, "good", buttons)
        self.refresh()

    def _start_path(self, path: Path) -> None:
        self.banner.clear()
        self._controller.start(str(path))
        self._controller.show_page("cockpit")

    # Results of actions.

    @Slot(object)
    def _handle_launch(self, _launch: object) -> None:
        """Read the free memory again: a server has started or stopped."""
        self._serving = read_serving(self._controller)
        self.list.tree.forget_all()
        if self.isVisible():
            self.refresh()
        self._show_details()

    @Slot(object, float)
    def _show_verifying(self, done: int, speed: float) -> None:
        verified, shown = self.verifying.local, self._selected_local
        if verified is not None and shown is not None and shown.path == verified.path:
            self.details.show_progress(done, verified.record.bytes, speed)

    @Slot(str, str)
    def _show_verified(self, text: str, meaning: str) -> None:
        self.banner.show_message(text, meaning)
        self._figures_of = ""
        self.refresh()

    def _show_deleted(self, name: str, freed: int) -> None:
        self.banner.show_message(tr("{name} deleted, {size} freed.", name=name, size=format_size(freed)), "good")
        self.refresh()

    def _show_added(self, path: Path, *, is_new: bool, store: str = "") -> None:
        if is_new:
            text = tr("{name} was added to the list.", name=path.name)
        else:
            text = tr("{name} is already in the list.", name=path.name)
        self.banner.show_message(join_sentences(text, render(store)), "good" if is_new else "information")
        self.refresh()

    def _show_looked_up(self, model: LibraryModel) -> None:
        self.details.look_up.setEnabled(True)
        self.banner.clear()
        if self.shelf is not None:  # plan it anew
            files = tuple(LibraryFile(each.entry, each.file, each.local) for each in model.files)
            self.shelf = self.shelf.with_model(LibraryModel(model.key, model.name, files, model.entry))
        self.refresh()

    def _show_look_up_failure(self, error: LauncherError) -> None:
        self.details.look_up.setEnabled(True)
        self._show_error(error)

    def _show_read_failure(self, error: LauncherError) -> None:
        self.banner.show_message(str(error), "bad", [(tr("Try again"), self.refresh)])
        if self.shelf is None:
            self.looking.setText(tr("The models could not be read."))

    def _add_dropped(self, data: QMimeData) -> None:
        for path in dropped_models(data):
            self.add_place(path)

    def _remove_folder(self, path: Path) -> None:
        self._controller.bridge.run(
            lambda: added_places.remove_place(path), done=lambda _done: self.refresh(), failed=self._show_error
        )

    def _remove_leftover(self, leftover: Leftover) -> None:
        self._controller.bridge.run(
            lambda: leftovers.remove_leftover(leftover),
            done=lambda freed: self._show_deleted(leftover.path.name, freed),
            failed=self._show_error,
        )

    def _open_folder(self, folder: Path) -> None:
        QDesktopServices.openUrl(QUrl.fromLocalFile(str(find_existing_parent(folder))))

    def _show_error(self, error: LauncherError) -> None:
        self.banner.show_message(str(error), "bad")


class _Legend(QWidget):
    """The line under the list that says what the letters of the tiles stand for."""

    def __init__(self) -> None:
        super().__init__()
        self._tiles: list[str] = []
        self.setFixedHeight(theme.px(40))
        self.setFont(theme.font(theme.CAPTION_PX))

    def show_tiles(self, models: list[LibraryModel]) -> None:
        """Show the tiles of these models."""
        found = set()
        for model in models:
            first = model.first
            local = first.local if first is not None else None
            found.add(store_tile(local) if local is not None else "M" if model.is_built_in else "")
        self._tiles = [each for each in TILE_ORDER if each in found]
        self.setVisible(bool(self._tiles))
        self.setAccessibleName(
            ", ".join(f"{each}: {tile_name(each)}" if each else tile_name(each) for each in self._tiles)
        )
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Paint the tiles with their meanings, as many as there is room for."""
        side, left = theme.px(20), theme.px(theme.GAP_L)
        with QPainter(self) as painter:
            painter.setPen(theme.colour("border"))
            painter.drawLine(0, 0, self.width(), 0)
            metrics = self.fontMetrics()
            for tile in self._tiles:
                text = tile_name(tile)
                wide = metrics.horizontalAdvance(text)
                if left + side + wide > self.width() - theme.px(theme.GAP_L):
                    break
                box = self.rect().adjusted(left, 0, 0, 0)
                box.setWidth(side + theme.px(4))
                box.setTop((self.height() - side) // 2)
                box.setHeight(side)
                paint_tile(painter, box, tile)
                painter.setPen(theme.colour("secondary"))
                painter.setFont(self.font())
                words = self.rect().adjusted(left + side + theme.px(12), 0, 0, 0)
                painter.drawText(words, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), text)
                left += side + wide + theme.px(12 + 20)


def _first_file(model: LibraryModel) -> LibraryFile | None:
    """Return the file that stands for a model; None while nobody knows which is the best."""
    return None if model.is_pending and not model.is_here else model.first


def _start_name(model: LibraryModel, file: LibraryFile) -> str:
    """Return the name by which a file is planned and started."""
    if model.is_built_in:
        return "demo"
    local = file.local
    if local is None:
        return file.download_id
    if local.record.model and local.record.quant:
        return local.record.label
    return local.stored.name if local.stored else str(local.path)


def _drop_hint(data: QMimeData) -> str:
    """Return the hint shown while data is dragged over the page, or "" if it is refused."""
    return tr("Drop the file to add it to the list. It is not moved") if dropped_models(data) else ""
