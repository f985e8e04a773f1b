"""The queue of downloads: how far each is, and what can be asked of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import Elided, Label
from launcher.gui.models import words
from launcher.gui.models.queue_host import Line, QueueHost
from launcher.gui.sentences import say
from launcher.gui.widgets import Card, Glyph, ProgressLine
from launcher.gui.widgets.blocks import make_button
from launcher.gui.widgets.flow import Flow
from launcher.gui.words import ntr, tr

if TYPE_CHECKING:
    from launcher.fetch.jobs import Figures, Job

_GLYPHS = {
    "waiting": ("dashed", "secondary"),
    "running": ("down", "information"),
    "paused": ("pause", "attention"),
    "failed": ("cross", "bad"),
    "done": ("tick", "good"),
    "cancelled": ("minus", "secondary"),
}
_IN_LINE = ("waiting", "running", "paused")


class JobRow(QWidget):
    """One download."""

    def __init__(self, host: QueueHost, job_id: int) -> None:
        super().__init__()
        self.setObjectName("plain")
        self._host, self._id = host, job_id
        self._state = ""
        self.glyph = Glyph()
        self.title = Elided()
        self.told = Label()
        self.told.setObjectName("secondary")
        self.told.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.told.setWordWrap(True)
        self.line = ProgressLine(tr("Download"))
        self.toggle = self._button("", self._toggle, "")
        self.up = self._button(tr("Earlier"), lambda: host.move(job_id, "up"), tr("Move it up in the line"))
        self.cancel = self._button(tr("Cancel"), self._cancel, "")
        head = QHBoxLayout()
        head.setSpacing(theme.px(theme.GAP))
        head.addWidget(self.glyph)
        head.addWidget(self.title, 1)
        buttons = Flow(gap=theme.px(theme.GAP_S))
        for button in (self.toggle, self.up, self.cancel):
            buttons.add(button)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP_S))
        column.addLayout(head)
        column.addWidget(self.line)
        column.addWidget(self.told)
        column.addLayout(buttons)

    def show_job(self, job: Job, now: Figures | None, *, first: bool) -> None:
        """Show how far it is."""
        self._state = state = job.state.value
        self.glyph.show_glyph(*_GLYPHS[state])
        self.title.setText(job.title)
        self.told.setText(words.job_words(job, now))
        done = now.done_bytes if now else job.done_bytes or 0
        whole = (now.bytes if now else None) or job.bytes
        self.line.show_fraction(1.0 if state == "done" else done / whole if whole else 0.0)
        self.line.setVisible(state in _IN_LINE)
        self.line.setAccessibleName(tr("Download of {title}", title=job.title))
        runs = state in ("waiting", "running")
        self.toggle.setVisible(state != "done")
        self.toggle.setText(tr("Pause") if runs else tr("Resume") if state == "paused" else tr("Try again"))
        self.toggle.setToolTip(tr("What has arrived is kept") if runs else tr("Goes on from what has arrived"))
        self.toggle.setEnabled(not job.obeying)
        self.up.setVisible(state in _IN_LINE and not first)
        self.cancel.setVisible(state in (*_IN_LINE, "failed"))
        discards = state == "failed"
        self.cancel.setText(tr("Discard") if discards else tr("Cancel"))
        self.cancel.setToolTip(tr("Give it up, and remove what has arrived of it"))
        for button in (self.toggle, self.up, self.cancel):
            button.setAccessibleName(f"{button.text()}: {job.title}")

    def _button(self, text: str, clicked: object, tip: str) -> QPushButton:
        button = make_button(text, clicked)  # type: ignore[arg-type]
        button.setObjectName("quiet")
        button.setToolTip(tip)
        return button

    def _toggle(self) -> None:
        self._host.become("pause" if self._state in ("waiting", "running") else "run", self._id)

    def _cancel(self) -> None:
        self._host.become("discard", self._id)


class QueueCard(Card):
    """All downloads; hidden while there are none."""

    def __init__(self, host: QueueHost) -> None:
        super().__init__(tr("Downloads"))
        self._host = host
        self.rows: dict[int, JobRow] = {}
        self.total = Label()
        self.total.setObjectName("secondary")
        self.total.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.total.setWordWrap(True)
        self.held = Label()
        self.held.setWordWrap(True)
        self.go_on = make_button(tr("Go on"), self._go_on)
        self.go_on.setToolTip(tr("Try again what holds all downloads up"))
        self.clear = make_button(tr("Clear ended"), host.clear)
        self.clear.setObjectName("quiet")
        self.clear.setToolTip(tr("Take what is done, failed or cancelled out of the list; files stay"))
        self.head.addWidget(self.clear)
        self._column = QVBoxLayout()
        self._column.setSpacing(theme.px(theme.GAP_L))
        for widget in (self.total, self.held, self.go_on):
            self.body.addWidget(widget)
        self.body.addLayout(self._column)
        host.changed.connect(self.show_line)
        self.show_line(Line())

    def show_line(self, line: Line) -> None:
        """Show the queue."""
        ids = [job.id for job in line.jobs]
        for job_id in [each for each in self.rows if each not in ids]:
            row = self.rows.pop(job_id)
            self._column.removeWidget(row)
            row.hide()
            row.deleteLater()
        if [each for each in self.rows if each in ids] != ids or len(self.rows) != len(ids):
            rows = {job_id: self.rows.get(job_id) or JobRow(self._host, job_id) for job_id in ids}
            for row in rows.values():
                self._column.removeWidget(row)
            for row in rows.values():
                self._column.addWidget(row)
            self.rows = rows
        in_line = [job.id for job in line.jobs if job.state.value in _IN_LINE]
        for job in line.jobs:
            first = bool(in_line) and in_line[0] == job.id
            self.rows[job.id].show_job(job, line.figures.get(job.id), first=first)
        totals = line.totals
        shows = totals is not None and totals.jobs > 1 and bool(in_line)
        if totals is not None and shows:
            said = [ntr("1 download", "{n} downloads", totals.jobs)]
            if totals.left_bytes is not None:
                said.append(tr("{size} to come", size=words.size(totals.left_bytes)))
            if totals.seconds_left is not None:
                said.append(tr("{time} left", time=words.duration(totals.seconds_left)))
            self.total.setText(" · ".join(said))
        self.total.setVisible(shows)
        self.held.setText(say(f"{line.held.title} {line.held.hint}".strip()) if line.held else "")
        self.held.setVisible(line.held is not None)
        self.go_on.setVisible(line.held is not None)
        self.clear.setVisible(any(job.state.value not in _IN_LINE for job in line.jobs))
        self.setVisible(bool(line.jobs))

    def _go_on(self) -> None:
        waiting = [job.id for job in self._host.line.jobs if job.state.value in ("waiting", "running")]
        self._host.become("run", *waiting)
