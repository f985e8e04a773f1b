"""Details of the selected model or file: what to do with it, its speed, its memory, and what is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.duration import format_duration
from launcher.gui.labels import Label, display_path, set_tooltip
from launcher.gui.models.row_text import (
    Download,
    download_text,
    draft_gain_text,
    missing_mib,
    pictures_mib,
    size_text,
)
from launcher.gui.models.serving import is_loaded
from launcher.gui.models.text import (
    file_state,
    format_date,
    format_day,
    format_size,
    head_state,
    place_text,
    quant_text,
    without_flags,
)
from launcher.gui.setting_text import format_context_length
from launcher.gui.start.text import (
    count_stopping_servers,
    evidence_text,
    memory_parts,
    memory_totals,
    unknown_memory_text,
)
from launcher.gui.translation import join_sentences, ntr, render, tr
from launcher.gui.viewmodel import state_name
from launcher.gui.widgets import Badge, Card, MemoryBar, ProgressLine, ReadAge
from launcher.gui.widgets.blocks import make_button, make_caption
from launcher.gui.widgets.confirm_button import ConfirmButton
from launcher.gui.widgets.flow import FlowLayout, clear_layout
from launcher.gui.widgets.scrolling import make_scroll_area

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.app.models.model_library import LibraryFile, LibraryModel
    from launcher.engine.server.state import ModelStatus
    from launcher.gui.models.queries import FileFigures
    from launcher.gui.models.serving import Serving
    from launcher.models.memory import PlanSettings
    from launcher.models.plan import Plan
    from launcher.models.situation import Situation
    from launcher.models.speed import SpeedForecast

_HASH_CHARACTERS = 16
_PATHS_SHOWN = 3
"""Parts of a split file whose paths are shown."""
_FACT_NAME_WIDTH = 92
_REASONS_SHOWN = 2
"""Sentences of a plan that are shown; the Start page has all of them."""


class SpeedRange(QWidget):
    """A line on which the expected speed is a ring, its range thick, and the speed without drafts a dashed mark."""

    def __init__(self) -> None:
        super().__init__()
        self._forecast: SpeedForecast | None = None
        self._drafts = False
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFont(theme.font(theme.CAPTION_PX, tabular=True))

    def show_forecast(self, forecast: SpeedForecast, *, drafts: bool) -> None:
        """Show a forecast. `drafts`: the plan uses them."""
        self._forecast, self._drafts = forecast, drafts
        words = [self._range_text(forecast)]
        if drafts:
            words.append(self._without_text(forecast))
        self.setAccessibleName(", ".join(words))
        self.update()

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the usual size."""
        return QSize(theme.px(200), theme.px(38))

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the smallest size."""
        return QSize(theme.px(120), theme.px(38))

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the line and the words below it."""
        forecast = self._forecast
        if forecast is None:
            return
        top = 1.15 * max(forecast.high, forecast.without_mtp)
        line, width = theme.px(10), float(self.width())

        def place(rate: float) -> float:
            return min(rate / top, 1.0) * width if top else 0.0

        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(theme.colour("border"), theme.px(4), Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap))
            painter.drawLine(QPointF(2, line), QPointF(width - 2, line))
            painter.setPen(QPen(theme.colour("rate"), theme.px(6), Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap))
            painter.drawLine(QPointF(place(forecast.low), line), QPointF(place(forecast.high), line))
            painter.setPen(QPen(theme.colour("rate"), theme.px(2)))
            painter.setBrush(theme.colour("card"))
            painter.drawEllipse(QPointF(place(forecast.tokens_per_second), line), theme.px(5), theme.px(5))
            painter.setFont(self.font())
            metrics = QFontMetrics(self.font())
            text = self._range_text(forecast)
            wide = metrics.horizontalAdvance(text)
            left = min(max(place(forecast.tokens_per_second) - wide / 2, 0.0), width - wide)
            below = QRectF(0, theme.px(20), width, theme.px(18))
            painter.setPen(theme.colour("text"))
            painter.drawText(QRectF(left, below.top(), wide + 2, below.height()), Qt.AlignmentFlag.AlignLeft, text)
            if not self._drafts:
                return
            at = place(forecast.without_mtp)
            painter.setPen(QPen(theme.colour("secondary"), theme.px(2), Qt.PenStyle.DotLine))
            painter.drawLine(QPointF(at, theme.px(2)), QPointF(at, theme.px(18)))
            without = self._without_text(forecast)
            needs = metrics.horizontalAdvance(without)
            start = min(max(at - needs / 2, 0.0), left - needs - theme.px(theme.GAP))
            if start >= 0:
                painter.setPen(theme.colour("secondary"))
                rect = QRectF(start, below.top(), needs + 2, below.height())
                painter.drawText(rect, Qt.AlignmentFlag.AlignLeft, without)

    @staticmethod
    def _range_text(forecast: SpeedForecast) -> str:
        return tr("{low:,.0f} to {high:,.0f}", low=forecast.low, high=forecast.high)

    @staticmethod
    def _without_text(forecast: SpeedForecast) -> str:
        return tr("without drafts {rate:,.0f}", rate=forecast.without_mtp)


class DetailPanel(Card):
    """Details of a model or file. Delete takes two presses: the first shows how much space becomes free."""

    start_pressed = Signal()
    beside_pressed = Signal()
    download_pressed = Signal()
    download_and_start_pressed = Signal()
    plan_pressed = Signal()
    verify_pressed = Signal()
    delete_confirmed = Signal()
    folder_pressed = Signal()
    look_up_pressed = Signal()
    files_pressed = Signal()
    draft_pressed = Signal(object)
    """LibraryFile: this draft is to be downloaded."""
    measure_pressed = Signal()
    close_pressed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.body.setContentsMargins(0, 0, 0, 0)
        self._model: LibraryModel | None = None
        self._file: LibraryFile | None = None
        self._figures: FileFigures | None = None
        self._make_top()
        self._make_sections()
        self._lay_out()
        self.show_nothing()

    @property
    def file(self) -> LibraryFile | None:
        """The file shown."""
        return self._file

    def _make_top(self) -> None:
        self.title, self.subtitle, self.fit, self.note = Label(), Label(), Label(), Label()
        self.title.setFont(theme.font(theme.TITLE_PX, bold=True))
        for label in (self.title, self.subtitle, self.fit, self.note):
            label.setWordWrap(True)
            label.setTextInteractionFlags(theme.SELECTABLE)
        for label in (self.subtitle, self.fit):
            label.setObjectName("secondary")
        self.close_button = make_button(tr("Close"), self.close_pressed.emit)
        self.close_button.setObjectName("quiet")
        self.close_button.hide()
        self.badge, self.age = Badge(), ReadAge()
        self.start = make_button(tr("Start"), self.start_pressed.emit, primary=True)
        self.beside = make_button(tr("Load beside"), self.beside_pressed.emit)
        self.beside_fit = make_caption()
        self.download_and_start = make_button(
            tr("Download and start"), self.download_and_start_pressed.emit, primary=True
        )
        self.download = make_button(tr("Download"), self.download_pressed.emit)
        self.files = make_button(tr("Show files"), self.files_pressed.emit, primary=True)
        self.files.setToolTip(tr("Read the list of its files from Hugging Face, and the header of one: a few MB"))
        self.look_up = make_button(tr("Look it up on Hugging Face"), self.look_up_pressed.emit)
        self.look_up.setToolTip(tr("Read the size and the header of this file there: about 10 MB"))
        self.plan = make_button(tr("Show its plan"), self.plan_pressed.emit)
        self.plan.setToolTip(tr("Show the settings, memory and speed to expect, before it is loaded"))
        self.verify = make_button(tr("Verify"), self.verify_pressed.emit)
        self.verify.setToolTip(tr("Read the whole file and compare its SHA-256 with the published one"))
        self.folder = make_button(tr("Show in folder"), self.folder_pressed.emit)
        self.folder.setToolTip(tr("Open its folder"))
        self.delete = ConfirmButton(tr("Delete"))
        self.delete.confirmed.connect(self.delete_confirmed)
        self.progress = ProgressLine(tr("Verifying"))
        self.progress_text = make_caption()
        self.downloading = make_caption()

    def _make_sections(self) -> None:
        self.speed = Label()
        self.speed.setFont(theme.font(theme.READOUT_PX, bold=True, tabular=True))
        self.speed_range = SpeedRange()
        self.speed_source, self.measured = make_caption(), make_caption()
        self.measured.setObjectName("")  # before the expected speed, in the colour of normal text
        self.memory = MemoryBar()
        self.why, self.caution = make_caption(), make_caption()
        self.drafts_intro = make_caption()
        self._drafts_holder = QWidget()
        self._drafts_holder.setObjectName("plain")
        self._draft_column = QVBoxLayout(self._drafts_holder)
        self._draft_column.setContentsMargins(0, 0, 0, 0)
        self._draft_column.setSpacing(theme.px(theme.GAP_M))
        self.draft_rows: dict[str, DraftRow] = {}
        """By the key of the file."""
        self.measure = make_button(tr("Measure what is fastest"), self.measure_pressed.emit)
        self.measure.setToolTip(tr("Loads the model and opens Tune, which measures each way to draft that is here"))
        self._facts_holder, self.grid = _make_grid()
        self.header_fold = make_button(tr("More about the file"), self._toggle_header)
        self.header_fold.setObjectName("fold")
        self.header_fold.setCheckable(True)
        self._header_holder, self.header_grid = _make_grid()
        self._header_holder.hide()

    def _lay_out(self) -> None:
        head = QHBoxLayout()
        head.addWidget(self.title, 1)
        head.addWidget(self.close_button, alignment=Qt.AlignmentFlag.AlignTop)
        fit = QHBoxLayout()
        fit.setSpacing(theme.px(theme.GAP))
        fit.addWidget(self.badge, alignment=Qt.AlignmentFlag.AlignTop)
        fit.addWidget(self.fit, 1)
        actions = FlowLayout(gap=theme.px(theme.GAP))
        actions.add(self.start, wide=True)
        actions.add(self.download_and_start, wide=True)
        actions.add(self.files, wide=True)
        for button in (self.beside, self.download, self.plan, self.look_up):
            actions.add(button)
        unit = Label(tr("t/s"))
        unit.setObjectName("secondary")
        unit.setFont(theme.font(theme.SECTION_PX))
        value = QHBoxLayout()
        value.setSpacing(theme.px(6))
        value.addWidget(self.speed, alignment=Qt.AlignmentFlag.AlignBottom)
        value.addWidget(unit, 1, alignment=Qt.AlignmentFlag.AlignBottom)
        # Delete comes last because its text grows when it asks for confirmation.
        tools = FlowLayout(gap=theme.px(theme.GAP))
        for button in (self.verify, self.folder, self.delete):
            tools.add(button)
        top = _Section(
            head,
            self.subtitle,
            fit,
            self.note,
            actions,
            self.beside_fit,
            self.downloading,
            self.progress,
            self.progress_text,
        )
        expected = make_caption(tr("Expected speed"))
        self._expected = (expected, self.speed, unit, self.speed_range, self.speed_source)
        self._speed_section = _Section(self.measured, expected, value, self.speed_range, self.speed_source)
        memory_head = QHBoxLayout()
        memory_head.addWidget(_make_heading(tr("Memory")), 1)
        memory_head.addWidget(self.age)
        self._memory_section = _Section(memory_head, self.memory)
        self._why_section = _Section(_make_heading(tr("Why this file")), self.why, self.caution)
        measuring = FlowLayout(gap=theme.px(theme.GAP))
        measuring.add(self.measure)
        self._drafts_section = _Section(
            _make_heading(tr("Other ways to draft")), self.drafts_intro, self._drafts_holder, measuring
        )
        self._facts_section = _Section(self._facts_holder, self.header_fold, self._header_holder, tools)
        content = QWidget()
        content.setObjectName("plain")
        column = QVBoxLayout(content)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        self._sections = (
            top,
            self._speed_section,
            self._memory_section,
            self._why_section,
            self._drafts_section,
            self._facts_section,
        )
        for number, section in enumerate(self._sections):
            section.line.setVisible(number > 0)
            column.addWidget(section)
        column.addStretch()
        area = make_scroll_area(content)
        self.body.addWidget(area)

    def show_nothing(self) -> None:
        """Show that nothing is selected."""
        self._model = self._file = self._figures = None
        self.title.setText(tr("No model is chosen"))
        self.subtitle.setText(tr("Select a model to see its details."))
        self.badge.hide()
        self.age.show_age(None)
        for widget in (self.fit, self.note, self.downloading, self.beside_fit, *self._buttons, *self._sections[1:]):
            widget.hide()
        self.show_progress(None, 0)

    @property
    def _buttons(self) -> tuple[QWidget, ...]:
        return (self.start, self.beside, self.download_and_start, self.download, self.files, self.look_up, self.plan)

    def show_model(
        self,
        model: LibraryModel,
        file: LibraryFile | None,
        situation: Situation | None,
        download: Download | None,
        serving: Serving,
        beside: LibraryFile | None = None,
        drafts: Sequence[tuple[LibraryFile, Download | None]] = (),
    ) -> None:
        """Show a model with one of its files; `file` is None for a model on the hub whose files were not read.

        `beside` is the file as it would be loaded beside the running model, None while that is being planned. `drafts`
        are the files with which the model could draft, with their downloads.
        """
        changed = self._file is None or file is None or self._file.key != file.key or self._model is None
        if changed:
            self._figures = None
            self.delete.reset()
        self._model, self._file = model, file
        self.title.setText(render(model.name))
        plan = file.plan if file is not None else None
        self._show_subtitle(model, file)
        status = serving.find_status(model, file)
        self._show_fit(plan, file, situation, status)
        self._show_buttons(model, file, download, serving)
        self._show_beside(model, file, serving, beside)
        self._show_speed(plan, file)
        self._show_memory(plan, situation)
        self._show_why(plan)
        self._show_drafts(file, drafts)
        self._show_facts(file, model.released)
        self._show_delete()

    def show_figures(self, path: str, figures: FileFigures) -> None:
        """Show what was read of a local file if it is still the one shown."""
        if self._file is None or self._file.local is None or str(self._file.local.path) != path or self._model is None:
            return
        self._figures = figures
        self._show_facts(self._file, self._model.released)

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

    def _show_subtitle(self, model: LibraryModel, file: LibraryFile | None) -> None:
        if file is None:
            self.subtitle.setText(model.repo)
            return
        quant = file.quant
        if file.draft is not None:
            quant = render(file.draft.drafter.name_short)
        elif file.local is not None and not file.is_model:
            quant = quant_text(file.local)
        parts = [quant, size_text(file)]
        if file.local is not None:
            parts.append(file_state(file.local)[0])
        elif not model.is_built_in:
            parts.append(tr("not downloaded"))
        self.subtitle.setText(" · ".join(filter(None, parts)))

    def _show_fit(
        self, plan: Plan | None, file: LibraryFile | None, situation: Situation | None, status: ModelStatus | None
    ) -> None:
        self.badge.show_status(plan.status.value if plan is not None else "")
        self.badge.setVisible(plan is not None)
        text = ""
        if status is not None and not is_loaded(status):
            text = state_name(status)
        elif status is not None and status.is_main:
            text = tr("Loaded now. Its settings and memory are on Cockpit.")
        elif status is not None:
            text = tr("Loaded beside the running model, at the same address.")
        elif plan is not None and situation is not None:
            text = needs_text(plan.required_mib, situation, plan.setting)
        elif self._model is not None and self._model.is_built_in:
            text = tr("It is a part of the program.")
        elif file is not None and file.local is not None and file.local.kind is not None:
            text = render(file.local.kind.sentence)
        elif file is not None and file.draft is not None:
            text = tr("Drafts for the model: {gain}.", gain=draft_gain_text(file))
        elif file is not None:
            text = render(file.lack) or tr("Checking whether it fits ...")
        elif self._model is not None and self._model.found is None:
            text = tr("Checking whether it fits ...")
        self.fit.setText(text)
        self.fit.setVisible(bool(text))
        self.age.show_age(situation.read_at if situation is not None and plan is not None else None)
        problem = file.local.problem if file is not None and file.local is not None else ""
        self.note.setText(render(problem))
        self.note.setVisible(bool(problem))

    def _show_buttons(
        self, model: LibraryModel, file: LibraryFile | None, download: Download | None, serving: Serving
    ) -> None:
        local = file.local if file is not None else None
        is_here = model.is_built_in or (local is not None and file is not None and file.is_model)
        is_active = download is not None and download.is_active
        can_download = file is not None and bool(file.download_id) and file.is_absent and not is_active
        self.start.setVisible(is_here)
        self.start.setEnabled(model.is_built_in or (file is not None and file.is_usable))
        status = serving.find_status(model, file)
        is_main = status is not None and status.is_main
        self.start.setText(tr("Open the chat") if is_main else tr("Start") if serving.rests else tr("Switch to this"))
        tip = tr("Load this file") if serving.rests else tr("Load this file in place of the running one")
        self.start.setToolTip("" if is_main else tip)
        self.beside.setVisible(is_here and self.start.isEnabled() and not serving.rests and not is_main)
        self.download.setVisible(can_download)
        self.download_and_start.setVisible(can_download and file is not None and file.is_model)
        self.download_and_start.setEnabled(file is not None and not file.is_too_big)
        if can_download and file is not None:
            text = tr("Add {what} to the download queue: {size}", what=file.download_id, size=size_text(file))
            set_tooltip(self.download, text)
        self.files.setVisible(model.found is not None)
        self.look_up.setVisible(can_download and file is not None and file.plan is None and bool(file.lack))
        self.plan.setVisible(file is not None and file.is_model and (bool(file.download_id) or is_here))
        self.downloading.setVisible(is_active)
        if download is not None:
            self.downloading.setText(tr("Downloading: {progress}", progress=download_text(download)))

    def _show_beside(
        self, model: LibraryModel, file: LibraryFile | None, serving: Serving, beside: LibraryFile | None
    ) -> None:
        """Show whether the file fits beside the running model, or the button that unloads it there."""
        offered = not self.beside.isHidden()
        status = serving.find_status(model, file)
        self.beside.setText(
            tr("Load beside") if status is None else tr("Unload") if is_loaded(status) else tr("Cancel")
        )
        too_big = beside is not None and beside.is_too_big
        self.beside.setEnabled(status is not None or not too_big)
        if status is None:
            self.beside.setToolTip(tr("Load this file at the same address, while the running model goes on"))
        else:
            self.beside.setToolTip(tr("Unload this model. The others go on"))
        self.beside_fit.setVisible(offered and status is None and not model.is_built_in)
        self.beside_fit.setText(beside_text(beside, serving.running))

    def _show_speed(self, plan: Plan | None, file: LibraryFile | None) -> None:
        measured = file.measured if file is not None else None
        self.measured.setVisible(measured is not None)
        self.measured.setText(render(measured.line) if measured is not None else "")
        forecast = plan.forecast if plan is not None and plan.status.value != "TOO BIG" else None
        self._speed_section.setVisible(forecast is not None or measured is not None)
        for widget in self._expected:
            widget.setVisible(forecast is not None)
        if plan is None or forecast is None:
            return
        self.speed.setText(f"{forecast.tokens_per_second:,.0f}")
        self.speed_range.show_forecast(forecast, drafts=plan.setting.drafter.drafts)
        if plan.evidence:
            source = tr("Nearest published run: {run}.", run=evidence_text(plan))
        elif forecast.near:
            source = tr("Calculated from published runs on cards like this one.")
        else:
            source = tr("Calculated for this card; no run on such a card was published.")
        tokens = f"{forecast.filled // 1_024}K"
        filled = tr("At {tokens} tokens about {rate:,.0f} t/s.", tokens=tokens, rate=forecast.when_filled)
        self.speed_source.setText(f"{filled} {source}")

    def _show_memory(self, plan: Plan | None, situation: Situation | None) -> None:
        self._memory_section.setVisible(plan is not None and situation is not None)
        if plan is not None and situation is not None:
            total, others = memory_totals(situation)
            self.memory.show_parts(
                memory_parts(plan), total, others, plan.margin_mib * 2**20, needed=plan.estimate.needed_bytes
            )

    def _show_why(self, plan: Plan | None) -> None:
        reasons = plan.reasons if plan is not None else ()
        self._why_section.setVisible(bool(reasons))
        self.why.setText(without_flags(join_sentences(*map(render, reasons[:_REASONS_SHOWN]))))
        caution = without_flags(render(plan.cautions[0])) if plan is not None and plan.cautions else ""
        self.caution.setText(caution)
        self.caution.setVisible(bool(caution))

    def _show_drafts(self, file: LibraryFile | None, drafts: Sequence[tuple[LibraryFile, Download | None]]) -> None:
        """Show the files with which a model could draft: what each might bring, and a button that gets it."""
        is_model = file is not None and file.is_model
        self._drafts_section.setVisible(bool(drafts) and is_model)
        if [each.key for each, _ in drafts] != list(self.draft_rows):
            clear_layout(self._draft_column)
            self.draft_rows = {each.key: DraftRow() for each, _ in drafts}
            for row in self.draft_rows.values():
                row.download_pressed.connect(self.draft_pressed)
                self._draft_column.addWidget(row)
        for row, (draft, download) in zip(self.draft_rows.values(), drafts, strict=True):
            row.show_draft(draft, download)
        has_draft = any(each.is_usable for each, _ in drafts)
        self.drafts_intro.setText(
            tr("Which way is fastest depends on this computer and on your texts: measure them.")
            if has_draft
            else tr("With one of these files it may write faster or slower than now. Get one, then measure both here.")
        )
        self.measure.setVisible(has_draft and file is not None and file.local is not None)

    def _show_facts(self, file: LibraryFile | None, released: str) -> None:
        local = file.local if file is not None else None
        for widget in (self.verify, self.folder):
            widget.setVisible(local is not None)
        self.delete.setVisible(local is not None and local.store is None)
        dates = [(tr("Released"), format_day(released), "")] if released else []
        rows = [*_plan_facts(file), *dates, *_file_facts(file)]
        self._facts_section.setVisible(bool(rows))
        _fill_grid(self.grid, rows)
        more = _local_facts(local, self._figures) if local is not None else []
        self.header_fold.setVisible(bool(more))
        self._header_holder.setVisible(bool(more) and self.header_fold.isChecked())
        _fill_grid(self.header_grid, more)

    def _toggle_header(self) -> None:
        self._header_holder.setVisible(self.header_fold.isChecked())

    def _show_delete(self) -> None:
        local = self._file.local if self._file is not None else None
        if local is None:
            return
        freed = format_size(local.record.bytes)
        self.delete.show_loss(tr("Delete"), freed)
        self.delete.setToolTip(tr("Delete the file and free {size}. Asks for confirmation", size=freed))


class DraftRow(QWidget):
    """A file with which a model could draft: its drafter and size, what it might bring, and whether it is here."""

    download_pressed = Signal(object)
    """LibraryFile."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("plain")
        self._file: LibraryFile | None = None
        self.title, self.gain, self.progress = Label(), make_caption(), make_caption()
        self.title.setWordWrap(True)
        self.download = make_button(tr("Download"), lambda: self.download_pressed.emit(self._file))
        column = QVBoxLayout()
        column.setSpacing(theme.px(2))
        for label in (self.title, self.gain, self.progress):
            column.addWidget(label)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.px(theme.GAP))
        row.addLayout(column, 1)
        row.addWidget(self.download, alignment=Qt.AlignmentFlag.AlignTop)

    def show_draft(self, file: LibraryFile, download: Download | None) -> None:
        """Show a draft and its download, None without one."""
        assert file.draft is not None  # noqa: S101 -- for the type checker
        self._file = file
        name = render(file.draft.drafter.name_short)
        state = file_state(file.local)[0] if file.local is not None else ""
        self.title.setText(" · ".join(filter(None, (name, size_text(file), state))))
        set_tooltip(self.title, file.download_id)
        self.gain.setText(draft_gain_text(file))
        is_getting = file.is_absent and download is not None and download.is_active
        self.download.setVisible(file.is_absent and bool(file.download_id) and not is_getting)
        self.download.setAccessibleName(tr("Download {name}", name=name))
        tip = tr("Add {what} to the download queue: {size}", what=file.download_id, size=size_text(file))
        set_tooltip(self.download, tip)
        if is_getting and download is not None:
            self.progress.setText(tr("Downloading: {progress}", progress=download_text(download)))
        self.progress.setVisible(is_getting)


class _Section(QWidget):
    """A part of the panel with a line above it. Content is widgets and layouts, from top to bottom."""

    def __init__(self, *content: QWidget | QHBoxLayout | FlowLayout) -> None:
        super().__init__()
        self.setObjectName("plain")
        self.line = QFrame()
        self.line.setObjectName("line")
        self.line.setFixedHeight(1)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.setSpacing(0)
        outer.addWidget(self.line)
        column = QVBoxLayout()
        column.setContentsMargins(*(theme.px(theme.GAP_L),) * 4)
        column.setSpacing(theme.px(theme.GAP))
        for each in content:
            if isinstance(each, QWidget):
                column.addWidget(each)
            else:
                column.addLayout(each)
        outer.addLayout(column)


def beside_text(file: LibraryFile | None, running: str) -> str:
    """Return whether a file, as planned beside the running model, fits there. `file` is None while it is planned."""
    if file is None:
        return tr("Checking whether it fits beside {running} ...", running=running)
    plan = file.plan
    if plan is None:
        return tr("Cannot tell whether it fits beside {running}.", running=running)
    values = {"running": running, "needed": f"{plan.required_mib:,}", "free": f"{plan.free_mib:,}"}
    if not file.is_too_big:
        context = f"{plan.setting.context:,}"
        return tr(
            "Fits beside {running}: needs {needed} of {free} MiB free, with a context of {context} tokens.",
            context=context,
            **values,
        )
    if plan.host_short and not missing_mib(plan):
        return tr("Does not fit beside {running}: it needs more host memory than is free.", running=running)
    return tr("Does not fit beside {running}: it needs {needed} MiB, and {free} MiB are free.", **values)


def needs_text(needed_mib: int, situation: Situation, setting: PlanSettings) -> str:
    """Return as text how much of the free memory a plan needs."""
    values = {"needed": f"{needed_mib:,}", "free": f"{situation.free_mib:,}", "context": f"{setting.context:,}"}
    mtp = render(setting.draft_choice.label())
    text = tr("Needs {needed} of {free} MiB free, with a context of {context} tokens, {mtp}.", mtp=mtp, **values)
    if stopping := count_stopping_servers(situation):
        text = ntr(
            "Needs {needed} of {free} MiB free once the running server stops ({now} MiB free now), with a "
            "context of {context} tokens, {mtp}.",
            "Needs {needed} of {free} MiB free once {n} running servers stop ({now} MiB free now), with a "
            "context of {context} tokens, {mtp}.",
            stopping,
            mtp=mtp,
            now=f"{situation.free_now_mib:,}",
            **values,
        )
    return join_sentences(text, unknown_memory_text(situation))


_Facts = list[tuple[str, str, str]]
"""Name, value and tooltip of each fact."""


def _plan_facts(file: LibraryFile | None) -> _Facts:
    if file is None or file.plan is None:
        return []
    plan, entry = file.plan, file.plan.entry
    trained = entry.native_context or (entry.geometry.trained_context if entry.geometry else 0)
    context = format_context_length(plan.setting.context)
    if trained:
        context = tr("{tokens} of {trained} trained", tokens=context, trained=format_context_length(trained))
    rows = [(tr("Context"), context, tr("{count} tokens", count=f"{plan.setting.context:,}"))]
    head = tr("in the file, not used") if entry.has_head(plan.file) else tr("none")
    choice = plan.setting.draft_choice
    match choice.drafter.source:
        case "file":
            head = tr("in a file of its own, draft {count}", count=render(choice.number))
        case "head":
            head = tr("in the file, draft {count}", count=render(choice.number))
        case "text":
            head = render(choice.label())
    rows.append((tr("Draft head"), head, ""))
    rows.append((tr("Reads"), _senses_text(plan), ""))
    if entry.licence:
        rows.append((tr("Licence"), entry.licence, ""))
    if billions := entry.parameters_b:
        count = (
            tr("{count:,.3g} billion", count=billions)
            if billions >= 1
            else tr("{count:,.3g} million", count=1_000 * billions)
        )
        rows.append((tr("Parameters"), count, ""))
    return rows


def _senses_text(plan: Plan) -> str:
    """Return whether a model reads pictures, and the memory that its projector takes in addition."""
    if not plan.entry.mmproj:
        return tr("text")
    needed = None if plan.setting.mmproj_bytes else pictures_mib(plan)
    if needed is None:
        return tr("text and pictures")
    if plan.needed_mib + needed > plan.free_mib:
        missing = plan.needed_mib + needed - plan.free_mib
        return tr("text; for pictures {size:,} MiB more are needed than are free", size=missing)
    return tr("text and pictures, which take {size:,} MiB more", size=needed)


def _file_facts(file: LibraryFile | None) -> _Facts:
    local = file.local if file is not None else None
    if local is None:
        if file is None or not file.download_id:
            return []
        repo = file.entry.repo if file.entry is not None else None
        return [(tr("From"), repo or "", file.download_id)]
    rows = [(tr("Place"), place_text(local), "\n".join(map(str, local.record.paths)))]
    # A plan's facts have the head already, but not that the header lists one which the file lacks.
    plan_has_it = file is not None and file.plan is not None and local.record.head != "promised"
    if local.record.kind == "model" and local.record.head is not None and not plan_has_it:
        rows.append((tr("MTP head"), head_state(local)[0], ""))
    state, _glyph, _role = file_state(local)
    verified = tr("verified {when}", when=format_date(local.verified_s)) if local.verified_s else ""
    rows.append((tr("State"), verified if verified and local.state.value == "good" else state, verified))
    return rows


def _local_facts(local: object, figures: FileFigures | None) -> _Facts:
    from launcher.models.library import LocalModel

    assert isinstance(local, LocalModel)  # noqa: S101 -- for the type checker
    record = local.record
    paths = "\n".join(map(display_path, record.paths[:_PATHS_SHOWN]))
    rows = [(tr("File"), paths, ""), (tr("Size"), tr("{count:,} bytes", count=record.bytes), "")]
    if record.repo:
        rows.append((tr("From"), record.repo, f"{record.repo}:{record.file}"))
    if record.revision:
        rows.append((tr("Revision"), record.revision[:12], record.revision))
    if figures is None:
        return rows
    last = format_date(figures.used_s) if figures.used_s else tr("never")
    rows.append((tr("Last used"), last, ""))
    hashes = [each for each in figures.sha256 if each]
    shortened = f"{hashes[0][:_HASH_CHARACTERS]}…" if hashes else tr("not computed yet; use Verify")
    rows.append((tr("SHA-256"), shortened, "\n".join(hashes)))
    return rows + [(name, value, "") for name, value in figures.header]


def _make_heading(text: str) -> Label:
    label = Label(text)
    label.setFont(theme.font(theme.BODY_PX, bold=True))
    return label


def _make_grid() -> tuple[QWidget, QGridLayout]:
    holder = QWidget()
    holder.setObjectName("plain")
    grid = QGridLayout(holder)
    grid.setContentsMargins(0, 0, 0, 0)
    grid.setHorizontalSpacing(theme.px(theme.GAP_M))
    grid.setVerticalSpacing(theme.px(6))
    grid.setColumnMinimumWidth(0, theme.px(_FACT_NAME_WIDTH))
    grid.setColumnStretch(1, 1)
    return holder, grid


def _fill_grid(grid: QGridLayout, rows: _Facts) -> None:
    """Show facts in a grid. Labels that are there are used again."""
    if grid.property("rows") == rows:
        return
    grid.setProperty("rows", rows)
    clear_layout(grid)
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
            grid.addWidget(label, row_number, column, Qt.AlignmentFlag.AlignTop)
