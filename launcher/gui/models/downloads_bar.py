"""The bar of downloads: one line at the bottom of the page, which opens into the queue above it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from launcher.base.messages import join_messages
from launcher.base.progress import Progress
from launcher.gui import theme
from launcher.gui.duration import format_duration
from launcher.gui.labels import ElidedLabel, Label
from launcher.gui.models.queue_controller import QueueController, QueueView
from launcher.gui.models.text import format_size, job_text
from launcher.gui.translation import ntr, render, tr
from launcher.gui.widgets import Card, Glyph, ProgressLine
from launcher.gui.widgets.blocks import make_button
from launcher.gui.widgets.confirm_button import ConfirmButton
from launcher.gui.widgets.scrolling import make_scroll_area

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.fetch.jobs import Job, JobFailure

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
_ROW_HEIGHT, _MOST_ROWS = 44, 6
_TITLE_WIDTH, _LINE_WIDTH, _WIDE_ROW = 240, 140, 860
_LOSS_BYTES = 50_000_000
"""Received bytes from which Cancel asks: seconds of most connections."""


class JobRow(QWidget):
    """Row of one download in the open queue."""

    def __init__(self, queue: QueueController, job_id: int, name: Callable[[str], str]) -> None:
        super().__init__()
        self.setObjectName("plain")
        self._queue, self._job_id, self._name = queue, job_id, name
        self._state = ""
        self.glyph = Glyph()
        self.title, self.progress_text = ElidedLabel(), ElidedLabel()
        self.progress_text.setObjectName("secondary")
        self.progress_text.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.line = ProgressLine(tr("Download"))
        self.toggle = make_button("", self._toggle)
        self.up = make_button(tr("Earlier"), lambda: queue.move_job(job_id, "up"))
        self.up.setToolTip(tr("Move up in the queue"))
        self.cancel = ConfirmButton(tr("Cancel"))
        self.cancel.confirmed.connect(self._cancel)
        for button in (self.toggle, self.up, self.cancel):
            button.setObjectName("quiet")
        self.setFixedHeight(theme.px(_ROW_HEIGHT))
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.px(theme.GAP_M))
        row.addWidget(self.glyph)
        self.title.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Preferred)
        row.addWidget(self.title)
        row.addWidget(self.line)
        row.addWidget(self.progress_text, 1)
        for button in (self.up, self.toggle, self.cancel):  # `up` comes and goes, and moves none of the others
            row.addWidget(button)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Leave the figures room in a narrow row, too."""
        super().resizeEvent(event)
        share = 1.0 if self.width() >= theme.px(_WIDE_ROW) else 0.6
        self.title.setFixedWidth(round(theme.px(_TITLE_WIDTH) * share))
        self.line.setFixedWidth(round(theme.px(_LINE_WIDTH) * share))

    def show_job(self, job: Job, progress: Progress | None, *, is_first: bool) -> None:
        """Show a download and its progress. The first in the queue cannot move up."""
        state = self._state = job.state.value
        self.glyph.show_glyph(*_GLYPHS[state])
        self.title.setText(self._name(job.title))
        self.progress_text.setText(job_text(job, progress))
        self.line.show_fraction(_fraction(job, progress))
        self.line.setVisible(state in _QUEUED_STATES)
        self.line.setAccessibleName(tr("Download of {title}", title=job.title))
        is_active = state in _ACTIVE_STATES
        self.toggle.setVisible(state != "done")
        self.toggle.setText(_toggle_text(state))
        self.toggle.setToolTip(
            tr("The downloaded part is kept") if is_active else tr("Continues from the downloaded part")
        )
        self.toggle.setEnabled(not job.is_changing)
        self.up.setVisible(state in _QUEUED_STATES and not is_first)
        self.cancel.setVisible(state in (*_QUEUED_STATES, "failed"))
        self.cancel.show_loss(*_cancel_texts(job, progress))
        self.cancel.setToolTip(tr("Cancel the download and delete the downloaded part"))
        for button in (self.toggle, self.up, self.cancel):
            button.setAccessibleName(f"{button.text()}: {job.title}")

    def _toggle(self) -> None:
        self._queue.request_state("pause" if self._state in _ACTIVE_STATES else "run", self._job_id)

    def _cancel(self) -> None:
        self._queue.request_state("discard", self._job_id)


class DownloadsBar(Card):
    """The running download with its progress, speed and remaining time. "Show all" opens the list of the others.

    Hidden while there is no download. Its height never exceeds one line and six rows. `name` returns the name of a
    download for users, by its title.
    """

    def __init__(self, queue: QueueController, name: Callable[[str], str]) -> None:
        super().__init__()
        self._queue, self._name = queue, name
        self._shown: Job | None = None
        self._cancels: int | None = None
        self.rows: dict[int, JobRow] = {}
        self._make_line()
        self._make_queue()
        edge = theme.px(theme.GAP_L)
        self.body.setContentsMargins(edge, 0, edge, 0)
        self.body.setSpacing(0)
        self.body.addWidget(self._area)
        self.body.addWidget(self._separator)
        self.body.addWidget(self._line)
        queue.changed.connect(self.show_queue)
        queue.adding_changed.connect(lambda: self.show_queue(self._queue.snapshot))
        self.show_queue(QueueView())

    def _make_line(self) -> None:
        self.glyph = Glyph()
        self.title = ElidedLabel()
        self.title.setFont(theme.font(theme.BODY_PX, bold=True))
        self.title.setMinimumWidth(theme.px(120))
        self.title.setMaximumWidth(theme.px(_TITLE_WIDTH))
        self.progress = ProgressLine(tr("Download"))
        self.amount, self.speed, self.rest, self.total = (Label() for _ in range(4))
        self.problem = ElidedLabel()
        for label in (self.amount, self.speed, self.rest):
            label.setFont(theme.font(theme.BODY_PX, tabular=True))
        self.total.setObjectName("secondary")
        self.total.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.toggle = make_button(tr("Pause"), self._toggle)
        self.cancel = ConfirmButton(tr("Cancel"))
        self.cancel.confirmed.connect(self._cancel)
        self.cancel.setToolTip(tr("Cancel the download and delete the downloaded part"))
        self.resume_button = make_button(tr("Resume"), self._resume_queue)
        self.resume_button.setToolTip(tr("Retry the download that blocks the queue"))
        self.clear_button = make_button(tr("Clear finished"), self._queue.clear_ended)
        self.clear_button.setToolTip(
            tr("Remove finished, failed and cancelled downloads from the list. Files are not deleted")
        )
        self.open_button = make_button(tr("Show all"), self._open_queue)
        self.open_button.setObjectName("quiet")
        self.open_button.setCheckable(True)
        self._line = QWidget()
        self._line.setObjectName("plain")
        self._line.setFixedHeight(theme.px(56))
        self._line.setMinimumWidth(1)  # what has no room is left out, so that the page does not grow wider
        self._line_layout = row = QHBoxLayout(self._line)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.px(theme.GAP_M))
        row.addWidget(self.glyph)
        row.addWidget(self.title, 3)
        row.addWidget(self.progress, 3)
        row.addWidget(self.problem, 6)
        for label in (self.amount, self.speed, self.rest, self.total):
            row.addWidget(label)
        # Those that come and go are left of the others, so that Cancel never comes to where another one was.
        for button in (self.clear_button, self.open_button, self.resume_button, self.toggle, self.cancel):
            row.addWidget(button)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Show the figures for which there is room."""
        super().resizeEvent(event)
        self._show_figures()

    def _show_figures(self) -> None:
        """Show the figures of the line, without the less important ones where there is no room. "Show all" has them."""
        edges = self.body.contentsMargins()
        room = self.contentsRect().width() - edges.left() - edges.right()
        figures = (self.amount, self.rest, self.speed, self.total)
        for label in figures:
            label.setVisible(bool(label.text()))
        for label in reversed(figures):
            if self._line_layout.minimumSize().width() > room:
                label.hide()

    def _make_queue(self) -> None:
        content = QWidget()
        content.setObjectName("plain")
        self._column = QVBoxLayout(content)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(0)
        self._area = make_scroll_area(content, tr("All downloads"), sideways=True)
        self._separator = QFrame()
        self._separator.setObjectName("line")
        self._separator.setFixedHeight(1)
        self._area.hide()
        self._separator.hide()

    def show_queue(self, snapshot: QueueView) -> None:
        """Show the queue."""
        self._show_rows(snapshot)
        jobs = snapshot.jobs
        queued = [job for job in jobs if job.state.value in _QUEUED_STATES]
        running = [job for job in queued if job.state.value == "running"]
        failed = [job for job in jobs if job.state.value == "failed"]
        adding = self._queue.adding
        self._shown = next(iter([*running, *queued, *failed, *reversed(jobs)]), None)
        self.setVisible(bool(jobs) or bool(adding))
        if self._shown is None:
            if adding:
                self._show_adding(adding[0])
            return
        self._show_job(self._shown, snapshot.progress_by_id.get(self._shown.id), snapshot.blocked_by)
        self._show_total(snapshot, len(queued) - 1 + len(adding))
        self.clear_button.setVisible(not queued)
        self.open_button.setVisible(len(jobs) > 1)
        self._show_figures()
        if len(jobs) <= 1 and self.open_button.isChecked():
            self.open_button.click()

    def _show_rows(self, snapshot: QueueView) -> None:
        ids = [job.id for job in snapshot.jobs]
        for job_id in [each for each in self.rows if each not in ids]:
            row = self.rows.pop(job_id)
            self._column.removeWidget(row)
            row.hide()
            row.deleteLater()
        if list(self.rows) != ids:
            rows = {job_id: self.rows.get(job_id) or JobRow(self._queue, job_id, self._name) for job_id in ids}
            for row in rows.values():
                self._column.removeWidget(row)
            for row in rows.values():
                self._column.addWidget(row)
            self.rows = rows
        self._area.setFixedHeight(theme.px(_ROW_HEIGHT) * max(min(len(ids), _MOST_ROWS), 1))
        queued = [job.id for job in snapshot.jobs if job.state.value in _QUEUED_STATES]
        for job in snapshot.jobs:
            self.rows[job.id].show_job(job, snapshot.progress_by_id.get(job.id), is_first=queued[:1] == [job.id])

    def _show_adding(self, title: str) -> None:
        """Show a download that is not in the queue yet, because its facts are still being read from the hub."""
        self.glyph.show_glyph("dashed", "secondary")
        self.title.setText(self._name(title))
        self.progress.show_fraction(None)
        self.amount.setText(tr("adding ..."))
        for label in (self.speed, self.rest, self.total):
            label.setText("")
        for widget in (self.problem, self.toggle, self.cancel, self.resume_button, self.clear_button, self.open_button):
            widget.hide()
        self.progress.show()
        self._show_figures()

    def _show_job(self, job: Job, progress: Progress | None, blocked_by: JobFailure | None) -> None:
        state = job.state.value
        self.glyph.show_glyph(*_GLYPHS[state])
        self.title.setText(self._name(job.title))
        self.progress.setAccessibleName(tr("Download of {title}", title=job.title))
        self.progress.show_fraction(_fraction(job, progress))
        is_queued = state in _QUEUED_STATES
        text = ""
        if blocked_by is not None:
            text = render(join_messages(blocked_by.title, blocked_by.hint))
        elif not is_queued or job.failure is not None or job.is_changing:
            text = job_text(job, progress)
        elif progress is not None and progress.note:
            text = render(progress.note)
        self.problem.setText(text)
        self.problem.setVisible(bool(text))
        self.progress.setVisible(is_queued and not text)
        done = _done_bytes(job, progress)
        size = (progress.bytes if progress is not None else None) or job.bytes
        amount = tr("{done} of {whole}", done=format_size(done), whole=format_size(size)) if size else format_size(done)
        if state in ("waiting", "paused"):
            amount = f"{job_text(job, None) if not done else amount}"
        self.amount.setText(amount if is_queued and not text else "")
        speed = progress.bytes_per_second if progress is not None and state == "running" else None
        self.speed.setText(f"{format_size(round(speed))}/s" if speed and not text else "")
        left = progress.seconds_left if progress is not None and state == "running" else None
        self.rest.setText(tr("{time} left", time=format_duration(left)) if left is not None and not text else "")
        self.toggle.setText(_toggle_text(state))
        self.toggle.setVisible(state != "done" and blocked_by is None)
        self.toggle.setEnabled(not job.is_changing)
        self.cancel.setVisible(state in (*_QUEUED_STATES, "failed"))
        if self._cancels != job.id:
            self._cancels = job.id
            self.cancel.reset()
        self.cancel.show_loss(*_cancel_texts(job, progress))
        waits_to_retry = state == "waiting" and job.failure is not None and job.retry_at_s is not None
        if waits_to_retry:
            self.glyph.show_glyph("triangle", "attention")
        self.resume_button.setText(tr("Try again now") if waits_to_retry else tr("Resume"))
        self.resume_button.setVisible(blocked_by is not None or waits_to_retry)
        for button in (self.toggle, self.cancel):
            button.setAccessibleName(f"{button.text()}: {job.title}")

    def _show_total(self, snapshot: QueueView, others: int) -> None:
        parts = [ntr("1 more", "{n} more", others)] if others > 0 else []
        totals = snapshot.totals
        if others > 0 and totals is not None and totals.seconds_left is not None and totals.jobs > 1:
            parts.append(tr("all in {time}", time=format_duration(totals.seconds_left)))
        self.total.setText(", ".join(parts))

    def _open_queue(self) -> None:
        is_open = self.open_button.isChecked()
        self.open_button.setText(tr("Show one") if is_open else tr("Show all"))
        self._area.setVisible(is_open)
        self._separator.setVisible(is_open)

    def _toggle(self) -> None:
        if self._shown is not None:
            state = "pause" if self._shown.state.value in _ACTIVE_STATES else "run"
            self._queue.request_state(state, self._shown.id)

    def _cancel(self) -> None:
        if self._shown is not None:
            self._queue.request_state("discard", self._shown.id)

    def _resume_queue(self) -> None:
        active = [job.id for job in self._queue.snapshot.jobs if job.state.value in _ACTIVE_STATES]
        self._queue.request_state("run", *active)


def _done_bytes(job: Job, progress: Progress | None) -> int:
    return progress.done_bytes if progress is not None else job.done_bytes or 0


def _cancel_texts(job: Job, progress: Progress | None) -> tuple[str, str]:
    """Return what Cancel says, and how much it deletes; "" for so little that it need not ask."""
    done = _done_bytes(job, progress)
    text = tr("Discard") if job.state.value == "failed" else tr("Cancel")
    return text, format_size(done) if done >= _LOSS_BYTES else ""


def _fraction(job: Job, progress: Progress | None) -> float:
    done = _done_bytes(job, progress)
    size = (progress.bytes if progress is not None else None) or job.bytes
    return done / size if size else 0.0


def _toggle_text(state: str) -> str:
    return {"waiting": tr("Pause"), "running": tr("Pause"), "paused": tr("Resume")}.get(state, tr("Try again"))
