"""Cards of the Models page: file details, folders, catalogue, download queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal, Slot
from PySide6.QtWidgets import QComboBox, QGridLayout, QHBoxLayout, QLineEdit, QPushButton, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.base.messages import join_messages
from launcher.base.progress import Progress
from launcher.gui import theme
from launcher.gui.duration import format_duration
from launcher.gui.labels import ElidedLabel, Label, display_path, set_tooltip
from launcher.gui.models.columns import offer_columns
from launcher.gui.models.queries import CatalogueOffer, CatalogueOffers
from launcher.gui.models.queue_controller import QueueController, QueueView
from launcher.gui.models.table import ModelTable
from launcher.gui.models.text import (
    display_name,
    file_state,
    format_size,
    job_text,
    leftover_text,
    offer_size,
    place_text,
    quant_text,
)
from launcher.gui.translation import ntr, render, tr
from launcher.gui.widgets import Badge, Card, ComboBox, Glyph, ProgressLine, ReadAge
from launcher.gui.widgets.blocks import make_button, make_caption
from launcher.gui.widgets.flow import FlowLayout, clear_layout

if TYPE_CHECKING:
    from launcher.fetch.jobs import Job, JobFailure
    from launcher.fetch.queue_runner import QueueTotals
    from launcher.gui.bridge import Bridge
    from launcher.gui.models.queries import LocalModels, ModelDetails
    from launcher.models.leftovers import Leftover
    from launcher.models.library import LocalModel, VerifiedFile
    from launcher.runtime import WorkHandle

_CONFIRM_MS = 6_000
"""Milliseconds in which a second press of Delete confirms."""
_HASH_CHARACTERS = 16
_PATHS_SHOWN = 3
"""Parts of a split file whose paths are shown."""


class DetailCard(Card):
    """Details of a file. Delete takes two presses: the first shows how much space becomes free."""

    def __init__(
        self,
        start: Callable[[], object],
        plan: Callable[[], object],
        verify: Callable[[], object],
        delete: Callable[[], object],
        show_in_folder: Callable[[], object],
    ) -> None:
        super().__init__()
        self._delete = delete
        self._local: LocalModel | None = None
        self._confirming = False
        self.title, self.path, self.note = Label(), Label(), Label()
        self.title.setFont(theme.font(theme.SECTION_PX, bold=True))
        for label in (self.path, self.note):
            label.setObjectName("secondary")
        for label in (self.title, self.path, self.note):
            label.setWordWrap(True)
            label.setTextInteractionFlags(theme.SELECTABLE)
        self.badge = Badge()
        self.fit = Label()
        self.fit.setWordWrap(True)
        self.age = ReadAge()
        self.start = make_button(tr("Start"), start, primary=True)
        self.start.setToolTip(tr("Load this file (llama-server --model)"))
        self.plan = make_button(tr("Show its plan"), plan)
        self.plan.setToolTip(tr("Show the settings, memory and speed to expect, before it is loaded"))
        self.verify = make_button(tr("Verify"), verify)
        self.verify.setToolTip(tr("Read the whole file and compare its SHA-256 with the published one"))
        self.delete = make_button(tr("Delete"), self._press_delete)
        self.folder = make_button(tr("Show in folder"), show_in_folder)
        self.folder.setToolTip(tr("Open its folder"))
        self.progress = ProgressLine(tr("Verifying"))
        self.progress.hide()
        self.progress_text = Label()
        self.progress_text.setObjectName("secondary")
        self.progress_text.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.progress_text.hide()
        self._grid_holder = QWidget()
        self._grid_holder.setObjectName("plain")
        self.grid = QGridLayout(self._grid_holder)
        self.grid.setContentsMargins(0, 0, 0, 0)
        self.grid.setHorizontalSpacing(theme.px(theme.GAP_M))
        self.grid.setVerticalSpacing(theme.px(theme.GAP_S))
        self.grid.setColumnStretch(1, 1)
        actions = FlowLayout(gap=theme.px(theme.GAP))
        # Delete comes last because its text grows when it asks for confirmation.
        for button in (self.start, self.plan, self.verify, self.folder, self.delete):
            actions.add(button)
        for label in (self.title, self.path, self.badge, self.fit, self.age):
            self.body.addWidget(label)
        self.body.addLayout(actions)
        for widget in (self.progress, self.progress_text, self.note, self._grid_holder):
            self.body.addWidget(widget)
        self.body.addStretch()
        self._confirm_timer = QTimer(self)
        self._confirm_timer.setSingleShot(True)
        self._confirm_timer.setInterval(_CONFIRM_MS)
        self._confirm_timer.timeout.connect(self._cancel_confirmation)
        self.show_file(None)

    @property
    def local(self) -> LocalModel | None:
        """The file shown."""
        return self._local

    def show_file(self, local: LocalModel | None) -> None:
        """Show a file, or nothing for None."""
        changed = local is None or self._local is None or local.path != self._local.path
        self._local = local
        if changed:
            self._cancel_confirmation()
            self.badge.show_status("")
            self.badge.hide()
            self.fit.setText(tr("Checking whether it fits ...") if local else "")
            self.age.show_age(None)
            self._show_rows(())
        if local is None:
            self.title.setText(tr("No file is chosen"))
            self.path.setText(tr("Select a file to see its details."))
            self.note.hide()
        else:
            self.title.setText(f"{display_name(local)} · {quant_text(local)}")
            self.path.setText("\n".join(map(display_path, local.record.paths[:_PATHS_SHOWN])))
            self.note.setText(local.record.problem or "")
            self.note.setVisible(bool(local.record.problem))
        for button in (self.start, self.plan, self.verify, self.delete, self.folder):
            button.setVisible(local is not None)
        if local is not None:
            for button in (self.start, self.plan):
                button.setVisible(local.record.kind == "model")
                button.setEnabled(local.state.value not in ("damaged", "missing"))
            self.delete.setVisible(local.store is None)
            self._show_delete()

    def show_details(self, local: LocalModel, details: ModelDetails) -> None:
        """Show a file's details if it is still the one shown."""
        if self._local is None or local.path != self._local.path:
            return
        self.badge.show_status(details.fit or "")
        self.badge.setVisible(details.fit is not None)
        self.fit.setText(details.fit_text)
        self.age.show_age(details.read_at)
        record = local.record
        rows = [
            (tr("State"), file_state(local)[0], ""),
            (tr("Size"), format_size(record.bytes), f"{record.bytes:,}"),
            (tr("Place"), place_text(local), str(local.path)),
        ]
        if record.repo:
            rows.append((tr("From"), record.repo, f"{record.repo}:{record.file}"))
        if record.revision:
            rows.append((tr("Revision"), record.revision[:12], record.revision))
        hashes = [each for each in details.sha256 if each]
        shortened = f"{hashes[0][:_HASH_CHARACTERS]}…" if hashes else tr("not computed yet; use Verify")
        rows.append((tr("SHA-256"), shortened, "\n".join(hashes)))
        rows += [(name, value, "") for name, value in details.figures]
        self._show_rows(tuple(rows))

    def show_progress(self, done: int | None, size: int, speed: float | None = None) -> None:
        """Show the verification progress in bytes, or hide it if `done` is None."""
        running = done is not None
        self.progress.setVisible(running)
        self.progress_text.setVisible(running)
        self.verify.setText(tr("Stop verifying") if running else tr("Verify"))
        if done is not None:
            self.progress.show_fraction(done / size if size else None)
            parts = [tr("Verifying: {done} of {whole}", done=format_size(done), whole=format_size(size))]
            if speed:
                parts.append(tr("{time} left", time=format_duration((size - done) / speed)))
            self.progress_text.setText(" · ".join(parts))

    def _press_delete(self) -> None:
        if self._confirming:
            self._cancel_confirmation()
            self._delete()
            return
        self._confirming = True
        self._confirm_timer.start()
        self._show_delete()

    def _cancel_confirmation(self) -> None:
        self._confirming = False
        self._confirm_timer.stop()
        self._show_delete()

    def _show_delete(self) -> None:
        local = self._local
        if local is None:
            return
        freed = format_size(local.record.bytes)
        self.delete.setText(tr("Press again to free {size}", size=freed) if self._confirming else tr("Delete"))
        self.delete.setToolTip(tr("Delete the file and free {size}. Asks for confirmation", size=freed))

    def _show_rows(self, rows: tuple[tuple[str, str, str], ...]) -> None:
        clear_layout(self.grid)
        for row_number, (name, value, tip) in enumerate(rows):
            for column, text in enumerate((name, value)):
                label = Label(text)
                label.setWordWrap(column == 1)
                label.setFont(theme.font(theme.CAPTION_PX, tabular=True))
                if column == 0:
                    label.setObjectName("secondary")
                else:
                    label.setTextInteractionFlags(theme.SELECTABLE)
                    set_tooltip(label, tip)
                self.grid.addWidget(label, row_number, column)


# Model folders, and leftovers of downloads.


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
        add_button.setToolTip(tr("Also find models in another folder (models folders add)"))
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

    def show_folders(self, models: LocalModels) -> None:
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
        for path, (program, problem) in models.stores.items():
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
        confirmation = tr("Press again to free {size}", size=freed)

        def press_delete() -> None:
            if button.text() == confirmation:
                self._delete_leftover(leftover)
            else:
                button.setText(confirmation)

        button = _make_button_with_tip(
            tr("Delete"), press_delete, tr("Frees {size}. Asks for confirmation", size=freed)
        )
        self.delete_buttons[leftover.path] = button
        glyph, role = ("cross", "bad") if leftover.kind.value == "bad" else ("half", "attention")
        self._leftovers.addWidget(
            _FolderRow(glyph, role, leftover.path.name, f"{leftover_text(leftover)} · {freed}", button)
        )


def _make_button_with_tip(text: str, clicked: Callable[[], object], tip: str, *, quiet: bool = False) -> QPushButton:
    button = make_button(text, clicked)
    button.setToolTip(tip)
    if quiet:
        button.setObjectName("quiet")
    return button


# Catalogue of files to download.

_MODEL_COLUMN = 1


class OffersPanel(Card):
    """Files of the catalogue to download, with how well each fits this computer, and a field for any other file."""

    def __init__(self, download: Callable[[str], object]) -> None:
        super().__init__()
        self._download = download
        self._offers: tuple[CatalogueOffer, ...] = ()
        self._recommended: frozenset[str] = frozenset()
        self.family = ComboBox()
        self.family.setAccessibleName(tr("Model"))
        self.family.setToolTip(tr("Show one model of the catalogue only"))
        self.family.addItem(tr("All models"), None)
        self.family.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.family.setMinimumContentsLength(16)
        self.table: ModelTable[CatalogueOffer] = ModelTable(
            tr("Files of the catalogue"), offer_columns(), stretch=_MODEL_COLUMN
        )
        self.reason = Label(tr("Checking which models fit this computer ..."))
        self.reason.setObjectName("secondary")
        self.reason.setWordWrap(True)
        self.download_button = make_button(tr("Download"), self._download_selected, primary=True)
        self.download_button.setToolTip(tr("Add to the download queue"))
        self.download_button.setEnabled(False)
        self.address = QLineEdit()
        self.address.setPlaceholderText(tr("Hugging Face link, OWNER/NAME:QUANT, or a URL and its SHA-256"))
        self.address.setAccessibleName(tr("Another file"))
        self.address.setToolTip(tr("A Hugging Face file, or an https URL, a space and the SHA-256 from its page"))
        self.address.setMinimumWidth(theme.px(220))
        self.add_button = make_button(tr("Add to the queue"), self._download_typed)
        self.add_button.setToolTip(tr("Download the file entered here"))
        self.add_button.setEnabled(False)
        top, bottom = FlowLayout(gap=theme.px(theme.GAP)), FlowLayout(gap=theme.px(theme.GAP))
        self.family.setMinimumWidth(theme.px(180))
        top.add(self.family, wide=True)
        top.add(self.download_button)
        bottom.add(self.address, wide=True)
        bottom.add(self.add_button)
        self.body.addLayout(top)
        self.body.addWidget(self.table, 1)
        self.body.addWidget(self.reason)
        self.age = ReadAge()
        self.body.addWidget(self.age)
        self.body.addLayout(bottom)
        self.table.chosen.connect(self._show_offer)
        self.table.opened.connect(lambda _offer: self._download_selected())
        self.family.activated.connect(self._choose_family)
        self.address.textChanged.connect(lambda text: self.add_button.setEnabled(bool(text.strip())))
        self.address.returnPressed.connect(self._download_typed)

    def show_offers(self, catalogue: CatalogueOffers) -> None:
        """Show the files of the catalogue."""
        is_first = not self._offers
        self._offers, self._recommended = catalogue.offers, catalogue.recommended
        self.age.show_age(catalogue.read_at)
        if self.family.count() == 1:
            for model, name in {offer.model: offer.name for offer in catalogue.offers}.items():
                self.family.addItem(name, model)
        self._show_family(selects_best=is_first)
        if catalogue.problem:
            self.reason.setText(catalogue.problem)

    @Slot(int)
    def _choose_family(self, _index: int) -> None:
        self._show_family(selects_best=True)

    def _show_family(self, *, selects_best: bool) -> None:
        """Show the files of the chosen model.

        `selects_best` selects the recommended file, unless the user selected another one.
        """
        model = self.family.currentData()
        rows = [offer for offer in self._offers if model in (None, offer.model)]
        self.table.show_rows(rows, lambda offer: offer.download_id)
        if selects_best and rows and self.table.row is rows[0]:
            self.table.choose_row(next((offer for offer in rows if offer.download_id in self._recommended), rows[0]))

    @Slot(object)
    def _show_offer(self, offer: CatalogueOffer | None) -> None:
        self.download_button.setEnabled(offer is not None and not offer.downloaded)
        if offer is not None:
            self.reason.setText(offer.reason)
            size = offer_size(offer) if offer.bytes else tr("size unknown")
            set_tooltip(
                self.download_button, tr("Add {what} to the download queue: {size}", what=offer.download_id, size=size)
            )

    def _download_selected(self) -> None:
        offer = self.table.row
        if offer is not None and not offer.downloaded:
            self._download(offer.download_id)

    def _download_typed(self) -> None:
        if text := self.address.text().strip():
            self._download(text)
            self.address.clear()


# Download queue.

_GLYPHS = {
    "waiting": ("dashed", "secondary"),
    "running": ("down", "information"),
    "paused": ("pause", "attention"),
    "failed": ("cross", "bad"),
    "done": ("tick", "good"),
    "cancelled": ("minus", "secondary"),
}
_QUEUED_STATES = ("waiting", "running", "paused")
_ACTIVE_STATES = ("waiting", "running")
"""States of jobs that run without further action, now or later."""


class JobRow(QWidget):
    """Row of one download."""

    def __init__(self, queue: QueueController, job_id: int) -> None:
        super().__init__()
        self.setObjectName("plain")
        self._queue, self._job_id = queue, job_id
        self._state = ""
        self.glyph = Glyph()
        self.title = ElidedLabel()
        self.progress_text = make_caption()
        self.line = ProgressLine(tr("Download"))
        self.toggle = _make_button_with_tip("", self._toggle, "", quiet=True)
        self.up = _make_button_with_tip(
            tr("Earlier"), lambda: queue.move_job(job_id, "up"), tr("Move up in the queue"), quiet=True
        )
        self.cancel = _make_button_with_tip(tr("Cancel"), self._cancel, "", quiet=True)
        head = QHBoxLayout()
        head.setSpacing(theme.px(theme.GAP))
        head.addWidget(self.glyph)
        head.addWidget(self.title, 1)
        buttons = FlowLayout(gap=theme.px(theme.GAP_S))
        for button in (self.toggle, self.up, self.cancel):
            buttons.add(button)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP_S))
        column.addLayout(head)
        column.addWidget(self.line)
        column.addWidget(self.progress_text)
        column.addLayout(buttons)

    def show_job(self, job: Job, progress: Progress | None, *, is_first: bool) -> None:
        """Show a download and its progress. The first in the queue cannot move up."""
        state = self._state = job.state.value
        self.glyph.show_glyph(*_GLYPHS[state])
        self.title.setText(job.title)
        self.progress_text.setText(job_text(job, progress))
        done = progress.done_bytes if progress else job.done_bytes or 0
        size = (progress.bytes if progress else None) or job.bytes
        self.line.show_fraction(done / size if size else 0.0)
        self.line.setVisible(state in _QUEUED_STATES)
        self.line.setAccessibleName(tr("Download of {title}", title=job.title))
        is_active = state in _ACTIVE_STATES
        self.toggle.setVisible(state != "done")
        toggle_texts = {"waiting": tr("Pause"), "running": tr("Pause"), "paused": tr("Resume")}
        self.toggle.setText(toggle_texts.get(state, tr("Try again")))
        self.toggle.setToolTip(
            tr("The downloaded part is kept") if is_active else tr("Continues from the downloaded part")
        )
        self.toggle.setEnabled(not job.is_changing)
        self.up.setVisible(state in _QUEUED_STATES and not is_first)
        self.cancel.setVisible(state in (*_QUEUED_STATES, "failed"))
        self.cancel.setText(tr("Discard") if state == "failed" else tr("Cancel"))
        self.cancel.setToolTip(tr("Cancel the download and delete the downloaded part"))
        for button in (self.toggle, self.up, self.cancel):
            button.setAccessibleName(f"{button.text()}: {job.title}")

    def _toggle(self) -> None:
        self._queue.request_state("pause" if self._state in _ACTIVE_STATES else "run", self._job_id)

    def _cancel(self) -> None:
        self._queue.request_state("discard", self._job_id)


class QueueCard(Card):
    """All downloads; hidden while there are none."""

    def __init__(self, queue: QueueController) -> None:
        super().__init__(tr("Downloads"))
        self._queue = queue
        self.rows: dict[int, JobRow] = {}
        self.total = make_caption()
        self.problem = Label()
        self.problem.setWordWrap(True)
        self.resume_button = make_button(tr("Resume"), self._resume_queue)
        self.resume_button.setToolTip(tr("Retry the download that blocks the queue"))
        self.clear_button = make_button(tr("Clear finished"), queue.clear_ended)
        self.clear_button.setObjectName("quiet")
        self.clear_button.setToolTip(
            tr("Remove finished, failed and cancelled downloads from the list. Files are not deleted")
        )
        self.head.addWidget(self.clear_button)
        self._column = QVBoxLayout()
        self._column.setSpacing(theme.px(theme.GAP_L))
        for widget in (self.total, self.problem, self.resume_button):
            self.body.addWidget(widget)
        self.body.addLayout(self._column)
        queue.changed.connect(self.show_queue)
        self.show_queue(QueueView())

    def show_queue(self, snapshot: QueueView) -> None:
        """Show the queue."""
        ids = [job.id for job in snapshot.jobs]
        for job_id in [each for each in self.rows if each not in ids]:
            row = self.rows.pop(job_id)
            self._column.removeWidget(row)
            row.hide()
            row.deleteLater()
        if list(self.rows) != ids:
            rows = {job_id: self.rows.get(job_id) or JobRow(self._queue, job_id) for job_id in ids}
            for row in rows.values():
                self._column.removeWidget(row)
            for row in rows.values():
                self._column.addWidget(row)
            self.rows = rows
        queued = [job.id for job in snapshot.jobs if job.state.value in _QUEUED_STATES]
        for job in snapshot.jobs:
            self.rows[job.id].show_job(job, snapshot.progress_by_id.get(job.id), is_first=queued[:1] == [job.id])
        self._show_total(snapshot.totals if queued else None)
        self._show_problem(snapshot.blocked_by)
        self.clear_button.setVisible(any(job.state.value not in _QUEUED_STATES for job in snapshot.jobs))
        self.setVisible(bool(snapshot.jobs))

    def _show_total(self, totals: QueueTotals | None) -> None:
        if totals is None or totals.jobs < 2:
            self.total.hide()
            return
        parts = [ntr("1 download", "{n} downloads", totals.jobs)]
        if totals.left_bytes is not None:
            parts.append(tr("{size} left", size=format_size(totals.left_bytes)))
        if totals.seconds_left is not None:
            parts.append(tr("{time} left", time=format_duration(totals.seconds_left)))
        self.total.setText(" · ".join(parts))
        self.total.show()

    def _show_problem(self, failure: JobFailure | None) -> None:
        self.problem.setText(render(join_messages(failure.title, failure.hint)) if failure is not None else "")
        self.problem.setVisible(failure is not None)
        self.resume_button.setVisible(failure is not None)

    def _resume_queue(self) -> None:
        active = [job.id for job in self._queue.snapshot.jobs if job.state.value in _ACTIVE_STATES]
        self._queue.request_state("run", *active)


# Verification of a file.

_PROGRESS_INTERVAL_S = 0.1


class Verification(QObject):
    """Verifies one file at a time: reads all of it and compares hashes. After `stop` no result is emitted."""

    progressed = Signal(object, float)
    """Bytes read, and bytes per second."""
    ended = Signal()
    """Verification has ended in any way, also by a stop."""
    verified = Signal(str, str)
    """The result as text, and its meaning for the banner's colour."""
    failed = Signal(object)
    """LauncherError."""

    def __init__(self, bridge: Bridge, parent: QObject) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self.local: LocalModel | None = None
        """The file being read."""
        self.handle: WorkHandle[None] | None = None

    def start_verifying(self, local: LocalModel) -> None:
        """Verify a file."""

        async def work(report: Callable[[object], None]) -> tuple[VerifiedFile, ...]:
            from launcher.models.library import verify_model

            reported_s = started_s = time.monotonic()

            def on_bytes(done: int) -> None:
                nonlocal reported_s
                if (now_s := time.monotonic()) - reported_s >= _PROGRESS_INTERVAL_S:
                    reported_s = now_s
                    report((done, done / (now_s - started_s)))

            return await verify_model(local, on_bytes)

        def emit_progress(progress: tuple[int, float]) -> None:
            if local is self.local:
                self.progressed.emit(*progress)

        self.local = local
        self.handle = self._bridge.run(
            work,
            reported=emit_progress,
            done=lambda results: self._emit_result(local, results),
            failed=lambda error: self._emit_error(local, error),
        )

    def stop(self) -> None:
        """Stop reading."""
        if self.handle is not None:
            self.handle.cancel()
            self._reset()

    def _emit_result(self, local: LocalModel, results: tuple[VerifiedFile, ...]) -> None:
        if local is self.local:
            self._reset()
            self.verified.emit(*verification_result(display_name(local), {each.outcome.value for each in results}))

    def _emit_error(self, local: LocalModel, error: LauncherError) -> None:
        if local is self.local:
            self._reset()
            self.failed.emit(error)

    def _reset(self) -> None:
        self.local = self.handle = None
        self.ended.emit()


def verification_result(name: str, outcomes: set[str]) -> tuple[str, str]:
    """Return the result of verifying all parts of a file as text, and its meaning. The worst outcome counts."""
    if "changed" in outcomes:
        return (
            tr("{name} is damaged or was changed: its SHA-256 does not match. Download it again.", name=name),
            "bad",
        )
    if "missing" in outcomes:
        return tr("{name} no longer exists.", name=name), "bad"
    if "unknown" in outcomes:
        text = tr("No checksum is published for {name}. Its SHA-256 was saved for the next check.", name=name)
        return text, "information"
    return tr("{name} is intact: its SHA-256 matches.", name=name), "good"
