"""The chat pane: conversation, prompt, stored conversations, and the comparison of two settings."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QEvent, QObject, Qt, Signal, Slot
from PySide6.QtGui import QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QFileDialog

from launcher.app import settings
from launcher.app.settings_declared import SYSTEM_PROMPT
from launcher.base.errors import LauncherError
from launcher.base.prompts import read_prompts
from launcher.conversations.records import Conversation, MessageEnding, make_title
from launcher.gui import theme
from launcher.gui.chat.chat_store import reply_settings
from launcher.gui.chat.column import Turn
from launcher.gui.chat.compare import CompareBar, ComparisonRestarts, ReplyPair, format_values
from launcher.gui.chat.conversation import OpenConversation
from launcher.gui.chat.frame import ChatFrame
from launcher.gui.chat.prompt import QuestionBubble
from launcher.gui.chat.reply import ReplyView
from launcher.gui.chat.style import chat_style_sheet
from launcher.gui.chat.text import ReadOnlyText
from launcher.gui.controller import Controller
from launcher.gui.translation import render, tr
from launcher.gui.viewmodel import View

if TYPE_CHECKING:
    from launcher.engine.server.client import Delta
    from launcher.monitor.reply import Reply

# Comparison of two settings.

SendRequest = Callable[[ReplyView, Mapping[str, Any], Mapping[str, Any]], None]
"""Requests a reply: the widget to show it in, the sampling values, and values to store with it."""


class SettingsComparison(QObject):
    """One comparison, from A's reply to its end.

    Both replies are stored as versions of one; the conversation continues with A until the user chooses B.
    """

    over = Signal()

    def __init__(
        self,
        controller: Controller,
        talk: OpenConversation,
        bar: CompareBar,
        send: SendRequest,
        parent: QObject,
        *,
        coloured: bool,
    ) -> None:
        """Prepare a comparison. Raises BadOption for invalid values of B, before anything is sent."""
        super().__init__(parent)
        sampling, restart = bar.read_values()
        self._talk, self._send = talk, send
        self._values = sampling | restart
        self._sampling = {**controller.sampling, **sampling}
        self.pair = ReplyPair((tr("as it runs"), format_values(self._values)), coloured=coloured)
        self._restarts = ComparisonRestarts(controller, restart, self)
        self._ids: list[str] = []
        self._restarts.status_changed.connect(self.pair.show_b_status)
        self._restarts.ready.connect(self._ask_b)
        self._restarts.failed.connect(self._end_with_error)
        self._restarts.ended.connect(self.over)

    def end(self, message: str, answer: ReplyView, reply: "Reply | None", footer: str) -> None:
        """Handle the end of a reply."""
        first = not self._ids
        self._ids.append(message)
        if first and not answer.text:
            self._talk.end_empty_reply(message, MessageEnding.STOPPED if reply is None else MessageEnding.WHOLE, footer)
            self.over.emit()
            return
        self._talk.end_reply(message, answer.text, reply, footer, steps=answer.steps, goes_on=first)
        if not first:
            texts = [each.text for each in self.pair.replies]
            ids, talk = list(self._ids), self._talk
            self.pair.chosen.connect(lambda number: talk.continue_with(ids[number], texts[number]))
            self.pair.offer_choice()
            self._restarts.restore_a()
        elif reply is None:
            self.pair.show_b_status(tr("B did not run because A was stopped."))
            self.over.emit()
        else:
            self._restarts.switch_to_b()

    def cancel(self) -> None:
        """Cancel the comparison and restore the earlier settings. Ends with `over`."""
        self._restarts.cancel()

    def _ask_b(self) -> None:
        """Ask B. The question is the last message while B replies."""
        message, id_ = self._talk.messages.pop(), self._talk.ids.pop()
        self._send(self.pair.replies[1], self._sampling, {"compared": dict(self._values)})
        self._talk.messages.append(message)
        self._talk.ids.append(id_)

    def _end_with_error(self, error: LauncherError) -> None:
        self.pair.show_b_status(render(error.message))
        self.over.emit()


__all__ = ["ChatPane", "ReadOnlyText", "ReplyView"]


class ChatPane(ChatFrame):
    """The conversation and the prompt."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._theme = theme.current()
        self.talk = OpenConversation(self.kept)
        self._answer: ReplyView | None = None
        self._writing = ""
        self._editing: int | None = None
        self._comparing: SettingsComparison | None = None
        self._can_ask = self._replying = False
        self.talk.system = str(settings.current_value(SYSTEM_PROMPT)).strip()
        self.system.show_text(self.talk.system)
        self._connect()
        self._show_view(controller.view)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages asked and replied so far, without the system prompt."""
        return self.talk.messages

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Stop the reply with Esc anywhere in the pane; otherwise cancel editing or close the list."""
        if event.key() != Qt.Key.Key_Escape:
            super().keyPressEvent(event)
        elif self._replying:
            self._stop()
        elif self._editing is not None:
            self._leave_editing()
        elif self.chats.isChecked():
            self.chats.setChecked(False)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802
        """Apply the current theme."""
        changed = event.type() == QEvent.Type.PaletteChange and hasattr(self, "talk")
        if changed and self._theme is not theme.current():  # setting a style sheet changes the palette, too
            self._theme = theme.current()
            self.setStyleSheet(chat_style_sheet())
            self.system.recolour()
            for answer in self.column.replies:
                answer.recolour()
        super().changeEvent(event)

    def show_abilities(self, *, can_ask: bool, replying: bool, hint: str) -> None:
        """Enable the actions that are possible now."""
        free = self._comparing is None and not replying
        self._can_ask = can_ask and free
        self._replying = replying
        self.send_button.setText(tr("Stop reply") if replying else tr("Send"))
        self.send_button.setToolTip(tr("Stop the reply (Esc)") if replying else tr("Send the message (Enter)"))
        self.send_button.setEnabled(self._can_ask or replying)
        for each in (self.new_button, self.compare_bar, self.compare_button):
            each.setEnabled(free)
        self.prompt.show_hint(hint)
        self._update_actions()

    def ask(self, text: str) -> None:
        """Append a question and send it; under both settings in a comparison."""
        self.banner.clear()
        self.system.commit_edit()
        coloured = self.colour_button.isChecked()
        comparing: SettingsComparison | None = None
        if self.compare_button.isChecked() and not self.prompts.active:
            try:
                comparing = SettingsComparison(
                    self._controller, self.talk, self.compare_bar, self._send_request, self, coloured=coloured
                )
            except LauncherError as error:
                self.banner.show_message(str(error), "attention")
                self.prompt.setPlainText(text)
                return
        if self._editing is not None:
            self.column.remove_from(self._editing)
            self.talk.keep_first(self._editing)
            self._leave_editing()
        if not self.messages:
            self.show_title(make_title(text))
        self.talk.add_question(text, self._model_name)
        answer = comparing.pair.replies[0] if comparing else ReplyView(coloured=coloured)
        self.column.add(Turn(len(self.messages) - 1, QuestionBubble(text), comparing.pair if comparing else answer))
        self._show_talk()
        self._comparing = comparing
        if comparing is not None:
            self.compare_bar.collapse()
            comparing.over.connect(self._stop_comparing)
        self._send_request(answer, self._controller.sampling, {})

    def add(self, text: str, reasoning: str) -> None:
        """Append to the reply in progress."""
        if self._answer is not None:
            self._answer.add(text, reasoning)
            self.kept.add(self._writing, text, reasoning)

    def end(self, footer: str, reply: "Reply | None" = None) -> None:
        """Finish the reply in progress. Its text so far stays in the conversation."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        answer.end(footer)
        if self._comparing is not None:
            self._comparing.end(self._writing, answer, reply, footer)
            if self.talk.has_unanswered:  # A got no reply: nothing to compare
                answer = ReplyView(coloured=self.colour_button.isChecked())
                self.column.replace_reply(self.column.turns[-1], answer)
                answer.end(footer)
        elif answer.text:
            self.talk.end_reply(self._writing, answer.text, reply, footer, steps=answer.steps)
            if reply is None:
                self.prompts.clear()
        else:
            self.prompts.clear()
            ending = MessageEnding.STOPPED if reply is None else MessageEnding.WHOLE
            other = self.talk.end_empty_reply(self._writing, ending, footer)
            if other is not None:
                self.banner.show_message(footer, "attention")
                self.talk.open_version(other, self.show_conversation)
        self._update_actions()

    @Slot()
    def clear(self) -> None:
        """Start a new conversation."""
        if not self._replying and self._comparing is None:
            self._clear_conversation()
            self._show_talk()
            self.prompt.setFocus()

    def open(self, conversation: str) -> None:
        """Open a stored conversation."""
        if self._replying or self._comparing is not None:
            self.banner.show_message(tr("Stop the reply first, or wait until it finishes."), "information")
            return
        self.banner.clear()
        self.kept.enqueue(lambda kept: kept.read_conversation(conversation), self.show_conversation)

    def show_conversation(self, conversation: Conversation) -> None:
        """Show a conversation, starting at its end. Earlier turns can be loaded."""
        if self._replying or self._comparing is not None:
            return
        self._leave_editing()
        self.prompts.clear()
        self.talk.load(conversation)
        self.system.show_text(conversation.system)
        self.show_title(conversation.title)
        self.column.show_messages(conversation.messages)
        self._show_talk()
        self._update_actions()
        self.prompt.setFocus()

    def ask_from(self, file: Path) -> None:
        """Ask the prompts of a file one after the other."""
        try:
            self.prompts.start_file(file, read_prompts(file))
        except LauncherError as error:
            self.banner.show_message(str(error), "attention")
            return
        self._next_prompt()

    @property
    def _model_name(self) -> str:
        return self._controller.inputs.model or ""

    def _send_request(self, answer: ReplyView, sampling: Mapping[str, Any], noted: Mapping[str, Any]) -> None:
        self._answer = answer
        settings = reply_settings(self._controller.launch, sampling) | dict(noted)
        self._writing = self.talk.begin_reply(settings, self._model_name)
        alone = self.prompts.active and self.prompts.alone.isChecked()
        self._controller.ask(self.talk.request(alone=alone), dict(sampling))

    @Slot(object)
    def _add_deltas(self, deltas: "list[Delta]") -> None:
        if self._answer is not None:
            self._answer.add_deltas(deltas)
            text, reasoning = (each.content for each in deltas), (each.reasoning for each in deltas)
            self.kept.add(self._writing, "".join(text), "".join(reasoning))

    @Slot(object, str)
    def _end_reply(self, reply: "Reply | None", footer: str) -> None:
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
    def _send_prompt(self) -> None:
        text = self.prompt.toPlainText().strip()
        if text and self._can_ask:
            self.prompt.clear()
            self.ask(text)

    @Slot()
    def _send_or_stop(self) -> None:
        if self._replying:
            self._stop()
        else:
            self._send_prompt()

    def _stop(self) -> None:
        self.prompts.clear()
        self._controller.stop_reply()

    @Slot(object)
    def _ask_again(self, turn: Turn) -> None:
        """Ask for another reply to a question."""
        if self._can_ask:
            self._leave_editing()
            self.system.commit_edit()
            if self._is_unanswered(turn):
                self.talk.restore_unanswered()
            self.column.remove_from(turn.at + 1)
            self.talk.keep_first(turn.at + 1)
            answer = ReplyView(coloured=self.colour_button.isChecked())
            self.column.replace_reply(turn, answer)
            self._send_request(answer, self._controller.sampling, {})

    @Slot(object)
    def _edit_question(self, turn: Turn) -> None:
        if not self._replying and self._comparing is None:
            self._editing = turn.at
            self.editing_bar.show()
            self.prompt.setPlainText(turn.question.text)
            self.prompt.moveCursor(self.prompt.textCursor().MoveOperation.End)
            self.prompt.setFocus()

    @Slot()
    def _edit_last(self) -> None:
        turn = self.column.turns[-1] if self.column.turns else None
        if turn is not None and (turn.at < len(self.messages) or self._is_unanswered(turn)):
            self._edit_question(turn)

    def _is_unanswered(self, turn: Turn) -> bool:
        """Return whether a turn is the last one and its question got no reply."""
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

    def _update_actions(self) -> None:
        """Show on each reply the actions that are possible now."""
        # turns before the last one per index have no reply
        last: dict[int, Turn] = {turn.at: turn for turn in self.column.turns}
        for turn in self.column.turns:
            if isinstance(turn.reply, ReplyView) and turn.reply is not self._answer:
                asked = turn.at < len(self.messages) and turn is last[turn.at]
                replied = asked and turn.at + 1 < len(self.messages)
                can_be_asked = self._can_ask and (asked or self._is_unanswered(turn))
                turn.reply.show_actions(again=can_be_asked, edit=can_be_asked)
                number, versions = self.talk.version(turn.at + 1) if replied else (0, [])
                turn.reply.show_versions(number + 1, len(versions) if self._can_ask or not self._replying else 0)

    @Slot()
    def _copy_last(self) -> None:
        answers = [answer for answer in self.column.replies if answer.text]
        if answers:
            answers[-1].copy_button.copy()

    @Slot(bool)
    def _colour_steps(self, coloured: bool) -> None:
        self.column.set_coloured(coloured=coloured)

    def _show_talk(self) -> None:
        self.chats.setChecked(False)

    @Slot(str)
    def _take_deleted(self, conversation: str) -> None:
        if conversation != self.talk.id:
            return
        if self._answer is not None:
            self._answer = None
            self._controller.stop_reply()
            self.talk.end_closed_reply(self._writing, tr("Stopped by you."))
        if self._comparing is not None:
            self._comparing.cancel()
        self._clear_conversation()

    def _clear_conversation(self) -> None:
        self._leave_editing()
        self.prompts.clear()
        self.column.clear()
        self.talk.clear()
        self.show_title("")

    @Slot(object)
    def _show_store_error(self, error: LauncherError) -> None:
        self.banner.show_message(str(error), "attention")

    @Slot()
    def _choose_prompts(self) -> None:
        dialog = QFileDialog(self, tr("Prompts from a file"))
        dialog.setNameFilters([tr("Text (*.txt *.md)"), tr("All files (*)")])
        dialog.fileSelected.connect(lambda name: self.ask_from(Path(name)))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()

    def _connect(self) -> None:
        controller = self._controller
        controller.deltas.connect(self._add_deltas)
        controller.replied.connect(self._end_reply)
        controller.view_changed.connect(self._show_view)
        controller.closed.connect(self.kept.close)
        self.kept.failed.connect(self._show_store_error)
        self.kept.noticed.connect(lambda notice: self.banner.show_message(notice, "attention"))
        self.drawer.opened.connect(self.open)
        self.drawer.gone.connect(self._take_deleted)
        self.column.regenerate_requested.connect(self._ask_again)
        self.column.edit_requested.connect(self._edit_question)
        self.column.version_requested.connect(self._show_version)
        self.prompt.sent.connect(self._send_prompt)
        self.prompt.edit_requested.connect(self._edit_last)
        said = tr("Images are not supported yet, so the picture was not added. Use text.")
        self.prompt.image_refused.connect(lambda: self.banner.show_message(said, "information"))
        self.system.changed.connect(self.talk.set_system)
        self.editing_bar.cancelled.connect(self._leave_editing)
        self.new_button.clicked.connect(self.clear)
        self.send_button.clicked.connect(self._send_or_stop)
        self.from_file.triggered.connect(self._choose_prompts)
        self.colour_button.toggled.connect(self._colour_steps)
        for key, do in (("Ctrl+N", self.clear), ("Ctrl+F", self.search), ("Ctrl+Shift+C", self._copy_last)):
            QShortcut(QKeySequence(key), self, do, context=Qt.ShortcutContext.WindowShortcut)
