"""Card with the settings of an agent's session: variables, files and command, with the API key hidden."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QSize
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QPlainTextEdit, QPushButton

from launcher.gui import theme
from launcher.gui.agents.text import format_summary
from launcher.gui.chat.highlight import CodeColours
from launcher.gui.labels import set_tooltip
from launcher.gui.late import agent_session
from launcher.gui.translation import tr
from launcher.gui.widgets import Card, ComboBox, Segmented
from launcher.gui.widgets.blocks import make_button, make_caption

if TYPE_CHECKING:
    from launcher.agents.configuration import AgentConfiguration
    from launcher.app.agent_session import AgentSession

_FOLDER = Path("<session>")
"""Stands for the folder of a session, whose name is new each time."""
_NOTE_ROOM = 400
"""Width in pixels at 100 % from which on a note says that the key is hidden."""
_SUMMARY, _VARIABLES, _COMMAND = "summary", "variables", "command"


class SessionCard(Card):
    """A read-only text in parts: a summary, the variables, each file, and the command if it has arguments."""

    def __init__(self) -> None:
        super().__init__(tr("Set for this session"))
        self.copy_button: QPushButton = make_button(tr("Copy"), self._copy)
        set_tooltip(self.copy_button, tr("Copy what is shown, without the key"))
        self._key_note = make_caption(tr("key hidden"))
        self._key_note.setWordWrap(False)
        self.head.addWidget(self._key_note)
        self.head.addWidget(self.copy_button)
        self._tabs_row = QHBoxLayout()
        self.tabs = self._make_tabs([])
        self.choice = ComboBox()
        """The parts where the tabs have no room."""
        self.choice.setAccessibleName(tr("Part"))
        self.choice.activated.connect(lambda _: self._choose_part())
        self._tabs_row.addWidget(self.tabs)
        self._tabs_row.addWidget(self.choice)
        self._tabs_row.addStretch()
        self.body.addLayout(self._tabs_row)
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setAccessibleName(tr("Set for this session"))
        self.text.setFont(theme.monospace())
        self.text.setTabChangesFocus(True)
        self.text.setPlaceholderText(tr("Shown when it is known which server the agent would get."))
        self.text.setMinimumHeight(theme.px(120))
        self.body.addWidget(self.text, 1)
        self._parts: dict[str, tuple[str, str]] = {}
        self._names: list[str] = []
        self._colours: CodeColours | None = None

    def show_session(self, session: AgentSession | None) -> None:
        """Show what an agent would get; None while unknown."""
        parts = {} if session is None else _make_parts(session)
        if parts == self._parts:
            return
        self._parts = parts
        if list(parts) != self._names:
            self._names = list(parts)
            chosen = self.tabs.value
            tabs = self._make_tabs(list(parts))
            tabs.set_value(chosen if chosen in parts else next(iter(parts), None))
            self._tabs_row.replaceWidget(self.tabs, tabs)
            self.tabs.hide()
            self.tabs.deleteLater()
            self.tabs = tabs
            self.choice.clear()
            for name in parts:
                self.choice.addItem(_part_title(name), name)
            self._arrange()
        self._show_part()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Show the tabs, or a combo box where they have no room."""
        super().resizeEvent(event)
        self._arrange()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the size that is needed without the tabs and the note on the key."""
        margins = self.body.contentsMargins()
        note = 0 if self._key_note.isHidden() else self._key_note.minimumSizeHint().width() + self.head.spacing()
        width = max(self.head.minimumSize().width() - note, self.choice.minimumSizeHint().width())
        return QSize(width + margins.left() + margins.right(), super().minimumSizeHint().height())

    def _arrange(self) -> None:
        margins = self.body.contentsMargins()
        has_room = self.tabs.sizeHint().width() <= self.width() - margins.left() - margins.right()
        self.tabs.setVisible(has_room)
        self.choice.setVisible(not has_room)
        self._key_note.setVisible(self.width() >= theme.px(_NOTE_ROOM))

    def _choose_part(self) -> None:
        self.tabs.set_value(self.choice.currentData())
        self._show_part()

    def _make_tabs(self, names: list[str]) -> Segmented:
        tabs = Segmented(tr("Part"), [(each, _part_title(each)) for each in names])
        tabs.changed.connect(lambda _: self._show_part())
        return tabs

    def _show_part(self) -> None:
        self.choice.setCurrentIndex(self.choice.findData(self.tabs.value))
        text, language = self._parts.get(str(self.tabs.value), ("", ""))
        self.copy_button.setText(tr("Copy"))
        self.copy_button.setEnabled(bool(text))
        if self._colours is not None:
            self._colours.deleteLater()
        self.text.setPlainText(text)
        self._colours = CodeColours(self.text.document(), language)
        self._colours.colour_new_lines()

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 -- Qt's name
        """Colour the text again for another theme."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange and self._colours is not None:
            self._colours.restart()

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.text.toPlainText())
        self.copy_button.setText(tr("Copied"))


def _part_title(name: str) -> str:
    titles = {_SUMMARY: tr("Summary"), _VARIABLES: tr("Environment"), _COMMAND: tr("Command")}
    return titles.get(name, Path(name).name)


def _make_parts(session: AgentSession) -> dict[str, tuple[str, str]]:
    """Return the text and language of each part by its name."""
    agent = session.agent
    configuration: AgentConfiguration = agent_session.configure_session(
        agent, session.server, (agent.program,), _FOLDER
    )
    parts = {
        _SUMMARY: (format_summary(configuration), "toml"),
        _VARIABLES: ("\n".join(agent_session.format_environment(configuration)), "bash"),
    }
    parts |= {str(path): (text.rstrip(), "json") for path, text in configuration.files.items()}
    if len(configuration.command) > 1:
        parts[_COMMAND] = (shlex.join(configuration.command), "bash")
    return parts
