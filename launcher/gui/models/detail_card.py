"""All about one file, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QGridLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import Label, set_tip, shown_path
from launcher.gui.models import words
from launcher.gui.widgets import Badge, Card, ProgressLine
from launcher.gui.widgets.blocks import make_button
from launcher.gui.widgets.flow import Flow
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.gui.models.shelf import Details
    from launcher.models.library import LocalModel

_SURE_MS = 6_000
_HASH = 16


class DetailCard(Card):
    """Deleting asks by the button itself: pressed once it says what it frees, pressed again it does it."""

    def __init__(
        self,
        start: Callable[[], object],
        verify: Callable[[], object],
        delete: Callable[[], object],
        show_in_folder: Callable[[], object],
    ) -> None:
        super().__init__()
        self._delete = delete
        self._local: LocalModel | None = None
        self._sure = False
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
        self.start = make_button(tr("Start"), start, primary=True)
        self.start.setToolTip(tr("Serve this file (llama-server --model)"))
        self.verify = make_button(tr("Verify"), verify)
        self.verify.setToolTip(tr("Read it to its end and compare its SHA-256 with what it should be"))
        self.delete = make_button(tr("Delete"), self._press_delete)
        self.folder = make_button(tr("Show in folder"), show_in_folder)
        self.folder.setToolTip(tr("Open the folder that it lies in"))
        self.progress = ProgressLine(tr("Verifying"))
        self.progress.hide()
        self.progress_words = Label()
        self.progress_words.setObjectName("secondary")
        self.progress_words.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.progress_words.hide()
        self._grid_holder = QWidget()
        self._grid_holder.setObjectName("plain")
        self.grid = QGridLayout(self._grid_holder)
        self.grid.setContentsMargins(0, 0, 0, 0)
        self.grid.setHorizontalSpacing(theme.px(theme.GAP_M))
        self.grid.setVerticalSpacing(theme.px(theme.GAP_S))
        self.grid.setColumnStretch(1, 1)
        actions = Flow(gap=theme.px(theme.GAP))
        for button in (self.start, self.verify, self.folder, self.delete):  # the last one grows when it asks
            actions.add(button)
        above: tuple[QWidget, ...] = (self.title, self.path, self.badge, self.fit)
        below: tuple[QWidget, ...] = (self.progress, self.progress_words, self.note, self._grid_holder)
        for each in above:
            self.body.addWidget(each)
        self.body.addLayout(actions)
        for each in below:
            self.body.addWidget(each)
        self.body.addStretch()
        self._calm = QTimer(self)
        self._calm.setSingleShot(True)
        self._calm.setInterval(_SURE_MS)
        self._calm.timeout.connect(self._not_sure)
        self.show_file(None)

    @property
    def local(self) -> LocalModel | None:
        """The file that is shown."""
        return self._local

    def show_file(self, local: LocalModel | None) -> None:
        """Show a file; None is none."""
        changed = local is None or self._local is None or local.path != self._local.path
        self._local = local
        if changed:
            self._not_sure()
            self.badge.show_status("")
            self.badge.hide()
            self.fit.setText(tr("What fits here is being worked out.") if local else "")
            self._show_rows(())
        if local is None:
            self.title.setText(tr("No file is chosen"))
            self.path.setText(tr("Choose one to see all about it."))
            self.note.hide()
        else:
            self.title.setText(f"{words.name_of(local)} · {words.quant_of(local)}")
            self.path.setText("\n".join(map(shown_path, local.record.paths[:3])))
            self.note.setText(local.record.problem or "")
            self.note.setVisible(bool(local.record.problem))
        for button in (self.start, self.verify, self.delete, self.folder):
            button.setVisible(local is not None)
        if local is not None:
            self.start.setVisible(local.record.kind == "model")
            self.start.setEnabled(local.state.value not in ("damaged", "missing"))
            self._show_delete()

    def show_details(self, local: LocalModel, details: Details) -> None:
        """Show what was read of the file, if it is still the one that is shown."""
        if self._local is None or local.path != self._local.path:
            return
        self.badge.show_status(details.fit or "")
        self.badge.setVisible(details.fit is not None)
        self.fit.setText(details.fit_words)
        record = local.record
        rows = [
            (tr("State"), words.state_of(local)[0], ""),
            (tr("Size"), words.size(record.bytes), f"{record.bytes:,}"),
            (tr("Place"), words.place_of(local), str(local.path)),
        ]
        if record.repo:
            rows.append((tr("From"), record.repo, f"{record.repo}:{record.file}"))
        if record.revision:
            rows.append((tr("Revision"), record.revision[:12], record.revision))
        told = [each for each in details.sha256 if each]
        whole = "\n".join(told)
        rows.append((tr("SHA-256"), f"{told[0][:_HASH]}…" if told else tr("not computed yet: verify it"), whole))
        rows += [(name, value, "") for name, value in details.figures]
        self._show_rows(tuple(rows))

    def show_progress(self, done: int | None, whole: int, speed: float | None = None) -> None:
        """Show how far verifying is, in bytes; None: it is not verified now."""
        running = done is not None
        self.progress.setVisible(running)
        self.progress_words.setVisible(running)
        self.verify.setText(tr("Stop verifying") if running else tr("Verify"))
        if done is not None:
            self.progress.show_fraction(done / whole if whole else None)
            parts = [tr("Verifying: {done} of {whole}", done=words.size(done), whole=words.size(whole))]
            if speed:
                parts.append(tr("{time} left", time=words.duration((whole - done) / speed)))
            self.progress_words.setText(" · ".join(parts))

    def _press_delete(self) -> None:
        if self._sure:
            self._not_sure()
            self._delete()
            return
        self._sure = True
        self._calm.start()
        self._show_delete()

    def _not_sure(self) -> None:
        self._sure = False
        self._calm.stop()
        self._show_delete()

    def _show_delete(self) -> None:
        local = self._local
        if local is None:
            return
        freed = words.size(local.record.bytes)
        self.delete.setText(tr("Press again to free {size}", size=freed) if self._sure else tr("Delete"))
        self.delete.setToolTip(tr("Delete the file: {size} become free. Asks once more first", size=freed))

    def _show_rows(self, rows: tuple[tuple[str, str, str], ...]) -> None:
        while (item := self.grid.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()
        for at, (name, value, tip) in enumerate(rows):
            for column, text in enumerate((name, value)):
                label = Label(text)
                label.setWordWrap(column == 1)
                label.setFont(theme.font(theme.CAPTION_PX, tabular=True))
                if column == 0:
                    label.setObjectName("secondary")
                else:
                    label.setTextInteractionFlags(theme.SELECTABLE)
                    set_tip(label, tip)
                self.grid.addWidget(label, at, column)
