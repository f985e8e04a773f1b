"""The chat: a conversation and its prompt, the conversations that are kept, and one question to two settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QEvent, Qt, Slot
from PySide6.QtGui import QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QFileDialog

from launcher import settings
from launcher.base.errors import LauncherError
from launcher.base.prompts import read_prompts
from launcher.conversations.records import Conversation, Ending, title_of
from launcher.gui import theme
from launcher.gui.chat.column import Turn
from launcher.gui.chat.comparing import Comparing
from launcher.gui.chat.frame import ChatFrame
from launcher.gui.chat.kept import settings_of
from launcher.gui.chat.look import sheet
from launcher.gui.chat.prompt import Question
from launcher.gui.chat.reply import Answer
from launcher.gui.chat.talk import Talk
from launcher.gui.chat.text import Text
from launcher.gui.controller import Controller
from launcher.gui.viewmodel import View
from launcher.gui.words import tr
from launcher.settings_declared import SYSTEM_PROMPT

if TYPE_CHECKING:
    from launcher.app import Reply
    from launcher.engine.client import Delta

__all__ = ["Answer", "ChatPane", "Text"]


class ChatPane(ChatFrame):
    """The conversation and the prompt."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._theme = theme.current()
        self.talk = Talk(self.kept)
        self._answer: Answer | None = None
        self._writing = ""
        self._editing: int | None = None
        self._comparing: Comparing | None = None
        self._can_ask = self._replying = False
        self.talk.system = str(settings.value(SYSTEM_PROMPT)).strip()
        self.system.show_text(self.talk.system)
        self._connect()
        self._show_view(controller.view)

    @property
    def messages(self) -> list[dict[str, str]]:
        """What was asked and replied, without the system prompt."""
        return self.talk.messages

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Stop the reply with Esc, wherever in the pane the focus is; else leave what was begun."""
        if event.key() != Qt.Key.Key_Escape:
            super().keyPressEvent(event)
        elif self._replying:
            self._stop()
        elif self._editing is not None:
            self._leave_editing()
        elif self.chats.isChecked():
            self.chats.setChecked(False)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802
        """Take over another theme."""
        changed = event.type() == QEvent.Type.PaletteChange and hasattr(self, "talk")
        if changed and self._theme is not theme.current():  # a style sheet changes the palette, too
            self._theme = theme.current()
            self.setStyleSheet(sheet())
            self.system.recolour()
            for answer in self.column.answers:
                answer.recolour()
        super().changeEvent(event)

    def show_abilities(self, *, can_ask: bool, replying: bool, hint: str) -> None:
        """Enable what is possible now."""
        free = self._comparing is None and not replying
        self._can_ask = can_ask and free
        self._replying = replying
        self.send_button.setText(tr("Stop reply") if replying else tr("Send"))
        self.send_button.setToolTip(tr("Stop the reply (Esc)") if replying else tr("Send the message (Enter)"))
        self.send_button.setEnabled(self._can_ask or replying)
        for each in (self.new_button, self.compare_bar, self.compare_button):
            each.setEnabled(free)
        self.prompt.setPlaceholderText(hint)
        self._offer_actions()

    def ask(self, text: str) -> None:
        """Put a question into the conversation and ask it; twice where two settings are compared."""
        self.banner.clear()
        self.system.settle()
        coloured = self.colour_button.isChecked()
        comparing: Comparing | None = None
        if self.compare_button.isChecked() and not self.prompts.active:
            try:
                comparing = Comparing(
                    self._controller, self.talk, self.compare_bar, self._send_request, self, coloured=coloured
                )
            except LauncherError as error:
                self.banner.tell(str(error), "attention")
                self.prompt.setPlainText(text)
                return
        if self._editing is not None:
            self.column.cut(self._editing)
            self.talk.cut(self._editing)
            self._leave_editing()
        if not self.messages:
            self.show_title(title_of(text))
        self.talk.ask(text, self._model)
        answer = comparing.pair.answers[0] if comparing else Answer(coloured=coloured)
        self.column.add(Turn(len(self.messages) - 1, Question(text), comparing.pair if comparing else answer))
        self._show_talk()
        self._comparing = comparing
        if comparing is not None:
            self.compare_bar.fold()
            comparing.over.connect(self._stop_comparing)
        self._send_request(answer, self._controller.sampling, {})

    def add(self, text: str, reasoning: str) -> None:
        """Append to the reply that is under way."""
        if self._answer is not None:
            self._answer.add(text, reasoning)
            self.kept.add(self._writing, text, reasoning)

    def end(self, footer: str, reply: "Reply | None" = None) -> None:
        """End the reply that is under way; what came of it stays in the conversation."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        answer.end(footer)
        if self._comparing is not None:
            self._comparing.end(self._writing, answer, reply, footer)
            if self.talk.has_unanswered:  # then there is nothing to be compared
                answer = Answer(coloured=self.colour_button.isChecked())
                self.column.exchange(self.column.turns[-1], answer)
                answer.end(footer)
        elif answer.said:
            self.talk.end_reply(self._writing, answer.said, reply, footer, steps=answer.steps)
            if reply is None:
                self.prompts.clear()
        else:
            self.prompts.clear()
            ending = Ending.STOPPED if reply is None else Ending.WHOLE
            other = self.talk.give_up(self._writing, ending, footer)
            if other is not None:
                self.banner.tell(footer, "attention")
                self.talk.open_version(other, self.show_conversation)
        self._offer_actions()

    @Slot()
    def clear(self) -> None:
        """Begin a new conversation."""
        if not self._replying and self._comparing is None:
            self._forget()
            self._show_talk()
            self.prompt.setFocus()

    def open(self, conversation: str) -> None:
        """Open a conversation that is kept."""
        if self._replying or self._comparing is not None:
            self.banner.tell(tr("Stop the reply first, or let it come to its end."), "information")
            return
        self.banner.clear()
        self.kept.do(lambda kept: kept.get(conversation), self.show_conversation)

    def show_conversation(self, conversation: Conversation) -> None:
        """Show one, from its end on; what comes before can be shown as well."""
        if self._replying or self._comparing is not None:
            return
        self._leave_editing()
        self.prompts.clear()
        self.talk.load(conversation)
        self.system.show_text(conversation.system)
        self.show_title(conversation.title)
        self.column.show_messages(conversation.messages)
        self._show_talk()
        self._offer_actions()
        self.prompt.setFocus()

    def ask_from(self, file: Path) -> None:
        """Ask the prompts of a file in turn."""
        try:
            self.prompts.begin(file, read_prompts(file))
        except LauncherError as error:
            self.banner.tell(str(error), "attention")
            return
        self._next_prompt()

    @property
    def _model(self) -> str:
        return self._controller.inputs.model or ""

    def _send_request(self, answer: Answer, sampling: Mapping[str, Any], noted: Mapping[str, Any]) -> None:
        self._answer = answer
        settings = settings_of(self._controller.launch, sampling) | dict(noted)
        self._writing = self.talk.begin_reply(settings, self._model)
        alone = self.prompts.active and self.prompts.alone.isChecked()
        self._controller.ask(self.talk.request(alone=alone), dict(sampling))

    @Slot(object)
    def _take(self, deltas: "list[Delta]") -> None:
        if self._answer is not None:
            self._answer.take(deltas)
            text, reasoning = (each.content for each in deltas), (each.reasoning for each in deltas)
            self.kept.add(self._writing, "".join(text), "".join(reasoning))

    @Slot(object, str)
    def _take_reply(self, reply: "Reply | None", footer: str) -> None:
        self.end(footer, reply)

    @Slot(object)
    def _show_view(self, view: View) -> None:
        self.show_abilities(can_ask=view.can_ask, replying=view.replying, hint=view.prompt_hint)
        if self.prompts.active and self._can_ask and self._answer is None:
            self._next_prompt()

    @Slot()
    def _stop_comparing(self) -> None:
        if self._comparing is not None:
            self._comparing.deleteLater()
            self._comparing = None
            self._show_view(self._controller.view)

    @Slot()
    def _next_prompt(self) -> None:
        if self._can_ask and (prompt := self.prompts.next()) is not None:
            self.ask(prompt)

    @Slot()
    def _send(self) -> None:
        text = self.prompt.toPlainText().strip()
        if text and self._can_ask:
            self.prompt.clear()
            self.ask(text)

    @Slot()
    def _send_or_stop(self) -> None:
        if self._replying:
            self._stop()
        else:
            self._send()

    def _stop(self) -> None:
        self.prompts.clear()
        self._controller.stop_reply()

    @Slot(object)
    def _again(self, turn: Turn) -> None:
        """Ask for another reply to a question."""
        if self._can_ask:
            self._leave_editing()
            self.system.settle()
            if self._waits(turn):
                self.talk.take_up()
            self.column.cut(turn.at + 1)
            self.talk.cut(turn.at + 1)
            answer = Answer(coloured=self.colour_button.isChecked())
            self.column.exchange(turn, answer)
            self._send_request(answer, self._controller.sampling, {})

    @Slot(object)
    def _edit(self, turn: Turn) -> None:
        if not self._replying and self._comparing is None:
            self._editing = turn.at
            self.editing_bar.show()
            self.prompt.setPlainText(turn.question.text)
            self.prompt.moveCursor(self.prompt.textCursor().MoveOperation.End)
            self.prompt.setFocus()

    @Slot()
    def _edit_last(self) -> None:
        turn = self.column.turns[-1] if self.column.turns else None
        if turn is not None and (turn.at < len(self.messages) or self._waits(turn)):
            self._edit(turn)

    def _waits(self, turn: Turn) -> bool:
        """Whether a turn's question got no reply, and stands last."""
        return self.talk.has_unanswered and turn is self.column.turns[-1]

    @Slot(object, int)
    def _show_version(self, turn: Turn, by: int) -> None:
        if not self._replying and self._comparing is None:
            number, versions = self.talk.version(turn.at + 1)
            self.talk.open_version(versions[number + by], self.show_conversation)

    def _leave_editing(self) -> None:
        if self._editing is not None:
            self._editing = None
            self.editing_bar.hide()
            self.prompt.clear()

    def _offer_actions(self) -> None:
        """Offer with each reply what can be done with it now."""
        last: dict[int, Turn] = {turn.at: turn for turn in self.column.turns}  # before it are those without a reply
        for turn in self.column.turns:
            if isinstance(turn.reply, Answer) and turn.reply is not self._answer:
                asked = turn.at < len(self.messages) and turn is last[turn.at]
                replied = asked and turn.at + 1 < len(self.messages)
                can_be_asked = self._can_ask and (asked or self._waits(turn))
                turn.reply.show_actions(again=can_be_asked, edit=can_be_asked)
                number, versions = self.talk.version(turn.at + 1) if replied else (0, [])
                turn.reply.show_versions(number + 1, len(versions) if self._can_ask or not self._replying else 0)

    @Slot()
    def _copy_last(self) -> None:
        answers = [answer for answer in self.column.answers if answer.said]
        if answers:
            answers[-1].copy_button.copy()

    @Slot(bool)
    def _colour_steps(self, coloured: bool) -> None:
        self.column.colour(coloured=coloured)

    def _show_talk(self) -> None:
        self.chats.setChecked(False)

    @Slot(str)
    def _take_deleted(self, conversation: str) -> None:
        if conversation != self.talk.id:
            return
        if self._answer is not None:
            self._answer = None
            self._controller.stop_reply()
            self.talk.break_off(self._writing, tr("Stopped by you."))
        if self._comparing is not None:
            self._comparing.leave()
        self._forget()

    def _forget(self) -> None:
        self._leave_editing()
        self.prompts.clear()
        self.column.clear()
        self.talk.clear()
        self.show_title("")

    @Slot(object)
    def _not_kept(self, error: LauncherError) -> None:
        self.banner.tell(str(error), "attention")

    @Slot()
    def _choose_prompts(self) -> None:
        dialog = QFileDialog(self, tr("Prompts from a file"))
        dialog.setNameFilters([tr("Text (*.txt *.md)"), tr("All files (*)")])
        dialog.fileSelected.connect(lambda name: self.ask_from(Path(name)))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()

    def _connect(self) -> None:
        controller = self._controller
        controller.deltas.connect(self._take)
        controller.replied.connect(self._take_reply)
        controller.view_changed.connect(self._show_view)
        controller.closed.connect(self.kept.close)
        self.kept.failed.connect(self._not_kept)
        self.kept.noticed.connect(lambda notice: self.banner.tell(notice, "attention"))
        self.drawer.opened.connect(self.open)
        self.drawer.gone.connect(self._take_deleted)
        self.column.again_asked.connect(self._again)
        self.column.edit_asked.connect(self._edit)
        self.column.version_asked.connect(self._show_version)
        self.prompt.sent.connect(self._send)
        self.prompt.edit_asked.connect(self._edit_last)
        said = tr("Images are not supported yet: the picture was not taken over. Ask by text.")
        self.prompt.image_refused.connect(lambda: self.banner.tell(said, "information"))
        self.system.changed.connect(self.talk.set_system)
        self.editing_bar.cancelled.connect(self._leave_editing)
        self.new_button.clicked.connect(self.clear)
        self.send_button.clicked.connect(self._send_or_stop)
        self.from_file.triggered.connect(self._choose_prompts)
        self.colour_button.toggled.connect(self._colour_steps)
        for key, do in (("Ctrl+N", self.clear), ("Ctrl+F", self.search), ("Ctrl+Shift+C", self._copy_last)):
            QShortcut(QKeySequence(key), self, do, context=Qt.ShortcutContext.WindowShortcut)
