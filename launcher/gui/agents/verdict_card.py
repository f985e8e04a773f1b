"""The card at the top of the Agents page: the verdict on the server, the folder, and the buttons that start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, QTimer
from PySide6.QtGui import QGuiApplication, QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QFileDialog, QHBoxLayout, QLineEdit, QPushButton, QSizePolicy, QVBoxLayout

from launcher.gui import theme
from launcher.gui.agents.text import Fix, VerdictView, describe_verdict
from launcher.gui.labels import Label, display_path, set_tooltip
from launcher.gui.translation import tr
from launcher.gui.widgets import Card, ComboBox, Glyph
from launcher.gui.widgets.blocks import make_button, make_caption

if TYPE_CHECKING:
    from launcher.gui.agents.control import AgentControl

_AGE_MS = 20_000
_LEAST_TEXT = 320
"""Width in pixels that a verdict needs beside its button."""
_LONG_TEXT = 110
"""Characters above which the second part of a verdict gets smaller letters."""


class CheckVerdictCard(Card):
    """The verdict with the button that fixes it; folder, terminal, and the buttons that start."""

    def __init__(self, control: AgentControl, act: Callable[[Fix], object]) -> None:
        super().__init__()
        self.setObjectName("banner")
        self._control, self._act = control, act
        self._view: VerdictView | None = None
        self._keeps_focus = False
        self.agents = ComboBox()
        """The agents where the list has no room."""
        self.agents.setAccessibleName(tr("Coding agent"))
        self.agents.activated.connect(lambda _: control.choose_agent(self.agents.currentData()))
        self.caption = make_caption()
        self._glyph = Glyph(pixels=20)
        self.title, self.text = Label(), Label()
        self.title.setFont(theme.font(theme.TITLE_PX, bold=True))
        for label in (self.title, self.text):
            label.setWordWrap(True)
            label.setTextInteractionFlags(theme.SELECTABLE)
        self.command = QLineEdit()
        self.command.setReadOnly(True)
        self.command.setAccessibleName(tr("To copy"))
        self.command.setFont(theme.monospace(theme.BODY_PX))
        self.command.setMaximumWidth(theme.px(520))
        self.copy_button: QPushButton = make_button(tr("Copy"), self._copy_command)
        self.fix_button: QPushButton = make_button("", self._press_fix)
        self.folder = ComboBox()
        self.folder.setAccessibleName(tr("Folder of your project"))
        set_tooltip(self.folder, tr("The folder of your project, in which the agent reads and changes files"))
        self.folder.setSizeAdjustPolicy(ComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.folder.setMinimumContentsLength(12)
        self.folder.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.folder.setMaximumWidth(theme.px(400))
        self.folder.activated.connect(self._choose_folder)
        self.terminal = ComboBox()
        self.terminal.setAccessibleName(tr("Terminal"))
        self.terminal.setSizeAdjustPolicy(ComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.terminal.setMinimumContentsLength(13)
        self.terminal.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        set_tooltip(self.terminal, tr("The terminal in which the agent opens"))
        self.terminal.activated.connect(lambda _: control.choose_terminal(self.terminal.currentData()))
        self.server_button: QPushButton = make_button(tr("Server only"), control.start_server)
        set_tooltip(self.server_button, tr("Start a server for this agent. You start the agent yourself"))
        self.start_button: QPushButton = make_button("", self.start_agent, primary=True)
        self._lay_out()
        self._timer = QTimer(self, interval=_AGE_MS)
        self._timer.timeout.connect(self.refresh)
        control.changed.connect(self.refresh)
        control.agents_changed.connect(self._show_agents)
        self._show_agents()
        self.refresh()

    def _lay_out(self) -> None:
        self.body.setSpacing(theme.px(theme.GAP))
        self.body.addWidget(self.agents)
        self.body.addWidget(self.caption)
        words = QVBoxLayout()
        words.setSpacing(theme.px(theme.GAP_S))
        words.addWidget(self.title)
        words.addWidget(self.text)
        copying = QHBoxLayout()
        copying.setSpacing(theme.px(theme.GAP))
        copying.setContentsMargins(0, theme.px(theme.GAP_S), 0, theme.px(theme.GAP_S))
        copying.addWidget(self.command, 1)
        copying.addWidget(self.copy_button)
        copying.addStretch()
        words.addLayout(copying)
        self._verdict = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._verdict.setSpacing(theme.px(theme.GAP_M))
        sentence = QHBoxLayout()
        sentence.setSpacing(theme.px(theme.GAP_M))
        sentence.addWidget(self._glyph, alignment=Qt.AlignmentFlag.AlignTop)
        sentence.addLayout(words, 1)
        self._verdict.addLayout(sentence, 1)
        self._verdict.addWidget(self.fix_button, alignment=Qt.AlignmentFlag.AlignTop)
        self.body.addLayout(self._verdict)
        self.body.addSpacing(theme.px(theme.GAP_S))
        where = self._where = QHBoxLayout()
        buttons = self._buttons = QHBoxLayout()
        for row in (where, buttons):
            row.setSpacing(theme.px(theme.GAP))
        where.addWidget(self.folder, 1)
        where.addWidget(self.terminal)
        buttons.addWidget(self.server_button)
        buttons.addWidget(self.start_button)
        self._actions = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._actions.setSpacing(theme.px(theme.GAP_M))
        self._actions.addLayout(where, 1)
        self._actions.addStretch()
        self._actions.addLayout(buttons)
        self.body.addLayout(self._actions)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put the buttons beside or below the texts."""
        super().resizeEvent(event)
        self._arrange()
        self.updateGeometry()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the width that is needed with the buttons below the texts, and the height for the present width."""
        parts = (self._where.minimumSize(), self._buttons.minimumSize(), self.fix_button.minimumSizeHint())
        margins = self.body.contentsMargins()
        width = max(part.width() for part in parts) + margins.left() + margins.right()
        return QSize(width, self.body.minimumHeightForWidth(max(self.width(), width)))

    def _arrange(self) -> None:
        """Put the buttons beside or below the texts."""
        margins = self.body.contentsMargins()
        room = self.width() - margins.left() - margins.right() - theme.px(2 * theme.GAP_M)
        fix = 0 if self.fix_button.isHidden() else self.fix_button.minimumSizeHint().width()
        needs = (
            (self._verdict, theme.px(_LEAST_TEXT) + fix),
            (self._actions, self._where.minimumSize().width() + self._buttons.minimumSize().width()),
        )
        for layout, needed in needs:
            beside = needed <= room
            layout.setDirection(QBoxLayout.Direction.LeftToRight if beside else QBoxLayout.Direction.TopToBottom)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802
        """Start the timer that updates the age of the verdict."""
        super().showEvent(event)
        self._timer.start()
        self.refresh()

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802
        """Stop the timer."""
        super().hideEvent(event)
        self._timer.stop()

    def start_agent(self) -> None:
        """Start the agent; ask for the folder first if none is chosen."""
        if self._control.folder is None:
            self.choose_other_folder()
        self._control.start_agent()

    def choose_other_folder(self) -> None:
        """Let the user choose the folder of a project."""
        before = str(self._control.folder or Path.home())
        if chosen := QFileDialog.getExistingDirectory(self, tr("Choose the folder of your project"), before):
            self._control.choose_folder(Path(chosen))
        self._show_folders()

    def _choose_folder(self, _index: int) -> None:
        if chosen := self.folder.currentData():
            self._control.choose_folder(Path(chosen))
        else:
            self.choose_other_folder()

    def _show_folders(self) -> None:
        chosen = self._control.folder
        folders = list(dict.fromkeys([*([str(chosen)] if chosen else []), *self._control.recent_folders]))
        texts = [tr("In folder {folder}", folder=display_path(each)) for each in folders]
        if not chosen:
            texts, folders = [tr("No folder chosen yet"), *texts], ["", *folders]
        texts, folders = [*texts, tr("Choose a folder …")], [*folders, ""]
        if [self.folder.itemText(at) for at in range(self.folder.count())] != texts:
            self.folder.clear()
            for text, folder in zip(texts, folders, strict=True):
                self.folder.addItem(text, folder)
        self.folder.setCurrentIndex(0)

    def _show_terminals(self) -> None:
        names = self._control.terminals
        if [self.terminal.itemData(at) for at in range(self.terminal.count())] != ["", *names]:
            self.terminal.clear()
            self.terminal.addItem(tr("Terminal: system"), "")
            for name in names:
                self.terminal.addItem(tr("Terminal: {name}", name=name), name)
        self.terminal.setCurrentIndex(max(self.terminal.findData(self._control.terminal), 0))
        self.terminal.setVisible(bool(names))

    def _show_agents(self) -> None:
        self.agents.clear()
        found = self._control.found
        for agent in self._control.agents:
            is_installed = found is not None and agent in found.installed
            text = agent.title if is_installed else tr("{title} (not installed)", title=agent.title)
            self.agents.addItem(text, agent.name)
        self.refresh()

    def refresh(self) -> None:
        """Show what is known and done now."""
        control, view = self._control, describe_verdict(self._control)
        agent, session = control.agent, control.session
        if agent is not None:
            self.agents.setCurrentIndex(self.agents.findData(agent.name))
        self._show_folders()
        self._show_terminals()
        name = agent.title if agent is not None else ""
        self.start_button.setText(tr("Start {title}", title=name) if name else tr("Start"))
        can_serve = not control.is_busy and control.is_installed and not control.is_loading
        is_too_small = session is not None and not session.has_enough_context and not control.is_record_fresh
        has_problem = control.reading_error is not None or is_too_small
        self.start_button.setEnabled(can_serve and not has_problem)
        is_served = session is not None and session.start is None
        self.server_button.setEnabled(can_serve and not has_problem and not is_served)
        for widget in (self.agents, self.folder, self.terminal):
            widget.setEnabled(not control.is_busy)
        if view != self._view:
            self._view = view
            self._show_view(view)
            self._arrange()
        if self._keeps_focus and not control.is_busy:
            self._keeps_focus = False
            (self.start_button if self.start_button.isEnabled() else self.fix_button).setFocus()

    def keep_focus(self) -> None:
        """Move the focus to the next step when the work that begins now has ended."""
        self._keeps_focus = True

    def _show_view(self, view: VerdictView) -> None:
        self.setProperty("meaning", view.meaning if view.meaning in ("good", "bad", "attention") else "")
        self.style().unpolish(self)
        self.style().polish(self)
        if view.glyph:
            self._glyph.show_glyph(view.glyph, view.meaning)
        self._glyph.setVisible(bool(view.glyph))
        self.caption.setText(view.caption)
        self.caption.setVisible(bool(view.caption))
        self.title.setText(view.title)
        self.text.setText(view.text)
        self.text.setVisible(bool(view.text))
        for label in (self.title, self.text):
            label.setObjectName("secondary" if view.is_dim else "")
            label.style().unpolish(label)
            label.style().polish(label)
        is_headline = view.title.endswith((":", "：")) and len(view.text) < _LONG_TEXT  # noqa: RUF001 -- Chinese
        self.text.setFont(theme.font(theme.TITLE_PX if is_headline else theme.BODY_PX, tabular=True))
        self.command.setText(view.command)
        self.command.setVisible(bool(view.command))
        self.copy_button.setVisible(bool(view.command))
        self.copy_button.setText(tr("Copy"))
        self.fix_button.setText(view.button)
        self.fix_button.setVisible(view.fix is not None)
        is_next = not self.start_button.isEnabled() and view.fix not in (Fix.CANCEL, Fix.SEARCH_AGAIN)
        self.fix_button.setObjectName("primary" if is_next else "")
        self.fix_button.style().unpolish(self.fix_button)
        self.fix_button.style().polish(self.fix_button)
        self.setAccessibleName(f"{view.title} {view.text}".strip())

    def _press_fix(self) -> None:
        if self._view is not None and self._view.fix is not None:
            self._keeps_focus = self._view.fix not in (Fix.PLANS, Fix.SUGGESTED_PLAN, Fix.SEARCH_AGAIN)
            self._act(self._view.fix)

    def _copy_command(self) -> None:
        QGuiApplication.clipboard().setText(self.command.text())
        self.copy_button.setText(tr("Copied"))
