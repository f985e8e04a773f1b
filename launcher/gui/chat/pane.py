"""The chat pane: conversation, prompt, stored conversations, and the comparison of two settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QEvent, QMimeData, QObject, Qt, Signal, Slot
from PySide6.QtGui import QImage, QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QFileDialog

from launcher.app import settings
from launcher.app.settings_declared import SYSTEM_PROMPT
from launcher.base.errors import LauncherError
from launcher.base.prompts import read_prompts
from launcher.conversations.attachments import Attachment, AttachmentKind
from launcher.conversations.records import Conversation, MessageEnding, make_title
from launcher.gui import theme
from launcher.gui.chat.attachments import (
    ProjectorFinder,
    find_image,
    list_files,
    sees_pictures,
)
from launcher.gui.chat.chat_store import ChatStore, reply_settings
from launcher.gui.chat.column import Turn
from launcher.gui.chat.compare import CompareBar, ComparisonRestarts, ReplyPair, format_values
from launcher.gui.chat.conversation import OpenConversation
from launcher.gui.chat.frame import ChatFrame
from launcher.gui.chat.prompt import QuestionBubble
from launcher.gui.chat.reply import ReplyView
from launcher.gui.chat.style import chat_style_sheet
from launcher.gui.chat.tool_calls import ToolCallWriter
from launcher.gui.chat.usage import ContextUse
from launcher.gui.controller import Controller
from launcher.gui.translation import join_sentences, render, tr
from launcher.gui.viewmodel import View
from launcher.gui.widgets import DropTarget

if TYPE_CHECKING:
    from launcher.engine.server.client import Delta
    from launcher.monitor.reply import Reply

# Comparison of two settings.

SendRequest = Callable[[ReplyView, Mapping[str, Any], Mapping[str, Any]], None]
"""Requests a reply: the widget to show it in, the sampling values, and values to store with it."""


class ComparisonRun(QObject):
    """Runs one comparison: stores A's reply, gets B's with other settings, and restores A's settings.

    Both replies are stored as versions of one; the conversation continues with A until the user chooses B.
    """

    finished = Signal()

    def __init__(
        self,
        controller: Controller,
        conversation: OpenConversation,
        bar: CompareBar,
        send_request: SendRequest,
        parent: QObject,
        *,
        coloured: bool,
    ) -> None:
        """Prepare a comparison. Raises BadOption for invalid values of B, before anything is sent."""
        super().__init__(parent)
        sampling, server_settings = bar.read_values()
        self._conversation, self._send_request = conversation, send_request
        self._values = sampling | server_settings
        self._sampling = {**controller.sampling, **sampling}
        self.pair = ReplyPair((tr("as it runs"), format_values(self._values)), coloured=coloured)
        self._restarts = ComparisonRestarts(controller, server_settings, self)
        self._reply_ids: list[str] = []
        self._reply_of_a: Reply | None = None
        self._restarts.status_changed.connect(self.pair.show_b_status)
        self._restarts.ready.connect(self._send_to_b)
        self._restarts.failed.connect(self._end_with_error)
        self._restarts.ended.connect(self.finished)

    def handle_reply_end(self, reply_id: str, reply_view: ReplyView, reply: "Reply | None", footer: str) -> None:
        """Store a reply that has ended. After A's, run B, unless A was stopped; after B's, let the user choose."""
        is_a = not self._reply_ids
        self._reply_ids.append(reply_id)
        if is_a and not reply_view.text:
            self._conversation.end_empty_reply(
                reply_id, MessageEnding.STOPPED if reply is None else MessageEnding.WHOLE, footer
            )
            self.finished.emit()
            return
        self._conversation.end_reply(reply_id, reply_view.text, reply, footer, steps=reply_view.steps, continues=is_a)
        if is_a and reply is None:
            self.pair.show_b_status(tr("B did not run because A was stopped."))
            self.finished.emit()
        elif is_a:
            self._reply_of_a = reply
            self._restarts.switch_to_b()
        else:
            self.pair.show_result(self._reply_of_a, reply)
            self._offer_choice()
            self._restarts.restore_a()

    def cancel(self) -> None:
        """Cancel the comparison and restore the earlier settings. Ends with `finished`."""
        self._restarts.cancel()

    def _offer_choice(self) -> None:
        # The choice can be made long after the comparison has ended and this object is gone: keep no reference to it.
        texts = [each.text for each in self.pair.replies]
        reply_ids, conversation = list(self._reply_ids), self._conversation
        self.pair.chosen.connect(lambda number: conversation.continue_with(reply_ids[number], texts[number]))
        self.pair.offer_choice()

    def _send_to_b(self) -> None:
        """Send the question with B's settings. A's reply is taken out meanwhile, so that the question is last."""
        reply, reply_id = self._conversation.messages.pop(), self._conversation.ids.pop()
        self._send_request(self.pair.replies[1], self._sampling, {"compared": dict(self._values)})
        self._conversation.messages.append(reply)
        self._conversation.ids.append(reply_id)

    def _end_with_error(self, error: LauncherError) -> None:
        self.pair.show_b_status(render(error.message))
        self.finished.emit()


@dataclass(frozen=True, slots=True)
class KeptChat:
    """State that a new chat pane takes over: the stored conversations, the open one, the typed text, and its files."""

    store: ChatStore
    conversation_id: str | None
    system: str
    typed: str
    files: tuple[Attachment, ...]


class ChatPane(ChatFrame):
    """The chat: sends questions through the controller, and shows and stores the conversation."""

    use_changed = Signal()
    """`context_use` is that of another conversation, or of another reply."""

    def __init__(self, controller: Controller, kept: KeptChat | None = None) -> None:
        super().__init__(None if kept is None else kept.store)
        self._controller = controller
        self._theme = theme.current()
        self.conversation = OpenConversation(self.store)
        self._reply_view: ReplyView | None = None
        self._tool_calls = ToolCallWriter()
        self._reply_id = ""
        self._editing_index: int | None = None
        self._comparison: ComparisonRun | None = None
        self._can_ask = self._replying = False
        self.context_use: ContextUse | None = None
        """Tokens of the last request; None if they are not known."""
        self._projectors = ProjectorFinder(controller, self)
        self._drop_target = DropTarget(
            self,
            lambda data: tr("Add to the question") if list_files(data) or find_image(data) is not None else "",
            self._drop,
        )
        self._show_thinking()
        self.conversation.system = str(settings.stored_value(SYSTEM_PROMPT)).strip()
        self.system.show_text(self.conversation.system)
        self._connect_signals()
        self._show_view(controller.view)
        if kept is not None:
            self.conversation.system = kept.system
            self.system.show_text(kept.system)
            self.prompt.setPlainText(kept.typed)
            self.composer.files.show_files(kept.files)
            if kept.conversation_id is not None:
                self.open_conversation(kept.conversation_id)

    def hand_over(self) -> KeptChat:
        """Leave the conversation to the next pane. This one must be deleted then."""
        self.system.commit_edit()
        self.store.hand_over()
        return KeptChat(
            self.store,
            self.conversation.id,
            self.conversation.system,
            self.prompt.toPlainText(),
            self.composer.files.attachments,
        )

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages of the conversation so far, without the system prompt."""
        return self.conversation.messages

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Handle Esc: stop the reply, else cancel editing, else close the list of conversations."""
        if event.key() != Qt.Key.Key_Escape:
            super().keyPressEvent(event)
        elif self._replying:
            self._stop()
        elif self._editing_index is not None:
            self._leave_editing()
        elif self.chats_button.isChecked():
            self.chats_button.setChecked(False)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802
        """Apply the current theme."""
        changed = event.type() == QEvent.Type.PaletteChange and hasattr(self, "conversation")
        if changed and self._theme is not theme.current():  # setting a style sheet changes the palette, too
            self._theme = theme.current()
            self.setStyleSheet(chat_style_sheet())
            for widget in (self.head, self.system, self.composer, self.chats_column):
                widget.recolour()
            for reply_view in self.column.replies:
                reply_view.recolour()
        super().changeEvent(event)

    def enable_actions(self, *, can_ask: bool, replying: bool, hint: str) -> None:
        """Enable the actions that are possible now."""
        is_idle = self._comparison is None and not replying
        self._can_ask = can_ask and is_idle
        self._replying = replying
        self.send_button.setText(tr("Stop reply") if replying else tr("Send"))
        self.send_button.setToolTip(tr("Stop the reply (Esc)") if replying else tr("Send the message (Enter)"))
        self.send_button.setEnabled(self._can_ask or replying)
        for each in (self.new_button, self.chats_column.new_button, self.compare_bar, self.compare_button):
            each.setEnabled(is_idle)
        self.prompt.show_hint(hint)
        self._update_actions()

    def send_question(self, text: str, attachments: tuple[Attachment, ...] = ()) -> None:
        """Append a question with its files and send it, in a comparison with both settings."""
        self.banner.clear()
        self.system.commit_edit()
        coloured = self.colour_button.isChecked()
        comparison: ComparisonRun | None = None
        if self.compare_button.isChecked() and not self.prompts.active:
            try:
                comparison = ComparisonRun(
                    self._controller, self.conversation, self.compare_bar, self._send_request, self, coloured=coloured
                )
            except LauncherError as error:
                self.banner.show_message(str(error), "attention")
                self._propose_question(text)
                self.composer.files.show_files(attachments)
                return
        if self._editing_index is not None:
            self.column.remove_from(self._editing_index)
            self.conversation.keep_first(self._editing_index)
            self._leave_editing()
        if not self.messages:
            self.show_title(make_title(text or ", ".join(each.name for each in attachments)))
        self.conversation.add_question(text, self._model_name, attachments)
        self.conversation_list.mark_open(self.conversation.id)
        reply_view = comparison.pair.replies[0] if comparison else ReplyView(coloured=coloured)
        self.column.add_turn(
            Turn(
                len(self.messages) - 1, QuestionBubble(text, attachments), comparison.pair if comparison else reply_view
            )
        )
        self._close_conversation_list()
        self._comparison = comparison
        if comparison is not None:
            self.compare_bar.collapse()
            comparison.finished.connect(self._stop_comparing)
        self._send_request(reply_view, self._controller.sampling, {})

    def append_text(self, text: str, reasoning: str) -> None:
        """Append text and reasoning to the reply in progress."""
        if self._reply_view is not None:
            self._reply_view.append_text(text, reasoning)
            self.store.append_text(self._reply_id, text, reasoning)

    def finish_reply(self, footer: str, reply: "Reply | None" = None) -> None:
        """Finish the reply in progress. Its text so far stays in the conversation."""
        if (ending := self._tool_calls.end_call()) and self._reply_view is not None:
            self.append_text(ending, "")
        reply_view, self._reply_view = self._reply_view, None
        if reply_view is None:
            return
        reply_view.end_reply(footer)
        if self._comparison is not None:
            self._comparison.handle_reply_end(self._reply_id, reply_view, reply, footer)
            if self.conversation.has_unanswered:  # A got no reply: nothing to compare
                reply_view = ReplyView(coloured=self.colour_button.isChecked())
                self.column.replace_reply(self.column.turns[-1], reply_view)
                reply_view.end_reply(footer)
        elif reply_view.text:
            self.conversation.end_reply(self._reply_id, reply_view.text, reply, footer, steps=reply_view.steps)
            if reply is None:
                self.prompts.clear()
        else:
            self.prompts.clear()
            ending = MessageEnding.STOPPED if reply is None else MessageEnding.WHOLE
            other = self.conversation.end_empty_reply(self._reply_id, ending, footer)
            if other is not None:
                self.banner.show_message(footer, "attention")
                self.conversation.open_version(other, self.show_conversation)
        self._update_actions()

    @Slot()
    def start_conversation(self) -> None:
        """Start a new conversation."""
        if not self._replying and self._comparison is None:
            self._clear_conversation()
            self._close_conversation_list()
            self.prompt.setFocus()

    def open_conversation(self, conversation_id: str) -> None:
        """Open a stored conversation."""
        if self._replying or self._comparison is not None:
            self.banner.show_message(tr("Stop the reply first, or wait until it finishes."), "information")
            self.conversation_list.mark_open(self.conversation.id)
            return
        self.banner.clear()
        self.store.enqueue(
            lambda conversations: conversations.read_conversation(conversation_id), self.show_conversation
        )

    def show_conversation(self, conversation: Conversation) -> None:
        """Show a conversation, starting at its end. Earlier turns can be loaded."""
        if self._replying or self._comparison is not None:
            return
        self._leave_editing()
        self.prompts.clear()
        self.conversation.load(conversation)
        self.system.show_text(conversation.system)
        self.show_title(conversation.title)
        self.column.show_messages(conversation.messages)
        figures = (ContextUse.from_figures(each.figures) for each in reversed(conversation.messages))
        self._show_use(next(filter(None, figures), None))
        self.conversation_list.mark_open(conversation.id)
        self._close_conversation_list()
        self._update_actions()
        self.prompt.setFocus()

    def send_prompts_from(self, file: Path) -> None:
        """Send the prompts of a file one after the other."""
        try:
            self.prompts.start_file(file, read_prompts(file))
        except LauncherError as error:
            self.banner.show_message(str(error), "attention")
            return
        self._next_prompt()

    @property
    def _model_name(self) -> str:
        return self._controller.inputs.model or ""

    def _send_request(
        self, reply_view: ReplyView, sampling: Mapping[str, Any], extra_settings: Mapping[str, Any]
    ) -> None:
        self._reply_view, self._tool_calls = reply_view, ToolCallWriter()
        reply_view.await_text()
        stored_settings = reply_settings(self._controller.launch, sampling) | dict(extra_settings)
        self._reply_id = self.conversation.begin_reply(stored_settings, self._model_name)
        alone = self.prompts.active and self.prompts.alone.isChecked()
        kept_as = self.conversation.id if self.store.keeps_chats else None
        self._controller.request_reply(self.conversation.build_request(alone=alone), dict(sampling), kept_as)

    @Slot(object)
    def _add_deltas(self, deltas: "list[Delta]") -> None:
        if self._reply_view is not None:
            deltas = self._tool_calls.write_calls(deltas)
            self._reply_view.add_deltas(deltas)
            timings = next((each.timings for each in reversed(deltas) if each.timings is not None), None)
            if timings is not None:
                self.context_use = ContextUse.from_timings(timings)
            text, reasoning = (each.content for each in deltas), (each.reasoning for each in deltas)
            self.store.append_text(self._reply_id, "".join(text), "".join(reasoning))

    @Slot(object, str)
    def _end_reply(self, reply: "Reply | None", footer: str) -> None:
        self.finish_reply(footer, reply)
        self.use_changed.emit()

    @Slot(object)
    def _show_view(self, view: View) -> None:
        self.enable_actions(can_ask=view.can_ask, replying=view.replying, hint=view.prompt_hint)
        launch = self._controller.launch
        drafts = launch is not None and launch.options.drafter.drafts
        self.column.suggest_for(self._controller.served_name if view.can_ask else None, drafts=drafts)
        if self.prompts.active and self._can_ask and self._reply_view is None:
            self._next_prompt()

    @Slot(object)
    def _handle_launch(self, _launch: object) -> None:
        """Show the view again: it had changed before the launch was known, on which the hint about drafts depends."""
        self._show_view(self._controller.view)

    @Slot()
    def _show_thinking(self) -> None:
        self.composer.thinking.show_value(self._controller.sampling.get("thinking"))

    @Slot()
    def _stop_comparing(self) -> None:
        if self._comparison is not None:
            self._comparison.deleteLater()
            self._comparison = None
            self._show_view(self._controller.view)

    @Slot()
    def _next_prompt(self) -> None:
        if self._can_ask and (prompt := self.prompts.take_next()) is not None:
            self.send_question(prompt)

    @Slot()
    def _send_prompt(self) -> None:
        text, files = self.prompt.toPlainText().strip(), self.composer.files
        if not self._can_ask or not (text or files.attachments or files.is_reading):
            return
        if files.is_reading:
            self.banner.show_message(tr("A file is still being read."), "information")
            return
        attachments = files.attachments
        if any(each.kind is AttachmentKind.PICTURE for each in attachments) and not sees_pictures(self._controller):
            self._projectors.find()
            return
        self.prompt.clear()
        files.clear()
        self.send_question(text, attachments)

    @Slot(object)
    def _add_files(self, paths: list[Path]) -> None:
        self._close_conversation_list()
        self.composer.files.add_files(self._controller, paths)
        self.prompt.setFocus()

    @Slot(object)
    def _add_image(self, image: QImage) -> None:
        self._close_conversation_list()
        self.composer.files.add_image(self._controller, image)
        self.prompt.setFocus()

    def _drop(self, data: QMimeData) -> None:
        """Add data that was dropped anywhere on the chat."""
        if files := list_files(data):
            self._add_files(files)
        elif (image := find_image(data)) is not None:
            self._add_image(image)

    @Slot()
    def _choose_files(self) -> None:
        dialog = QFileDialog(self, tr("Add files"))
        dialog.setFileMode(QFileDialog.FileMode.ExistingFiles)
        dialog.filesSelected.connect(lambda names: self._add_files([Path(name) for name in names]))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()

    @Slot(object)
    def _show_file_error(self, error: LauncherError) -> None:
        """Show why a file cannot be added."""
        self.banner.show_message(str(error), "attention")

    @Slot(object)
    def _offer_projector(self, projector: Path) -> None:
        text = tr("This model cannot see pictures yet: it was loaded without its vision projector.")

        def restart() -> None:
            self.banner.clear()
            self.prompt.setFocus()
            self._projectors.restart_with(projector)

        # The pictures stay at the prompt: they can be sent when the model has been loaded again.
        self.banner.show_message(text, "attention", [(tr("Load it with {name}", name=projector.name), restart)])

    @Slot(str)
    def _refuse_pictures(self, reason: str) -> None:
        self.composer.files.remove_unseen()
        text = tr("This model cannot see pictures: it has no vision projector. Texts and PDFs can be added.")
        self.banner.show_message(join_sentences(text, reason), "attention")

    @Slot(str)
    def _propose_question(self, question: str) -> None:
        """Put a question into the prompt field, to be changed or sent."""
        self.prompt.setPlainText(question)
        self.prompt.moveCursor(self.prompt.textCursor().MoveOperation.End)
        self.prompt.setFocus()

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
    def _regenerate(self, turn: Turn) -> None:
        """Request another reply to a question."""
        if self._can_ask:
            self._leave_editing()
            self.system.commit_edit()
            if self._is_unanswered(turn):
                self.conversation.restore_unanswered()
            self.column.remove_from(turn.index + 1)
            self.conversation.keep_first(turn.index + 1)
            reply_view = ReplyView(coloured=self.colour_button.isChecked())
            self.column.replace_reply(turn, reply_view)
            self._send_request(reply_view, self._controller.sampling, {})

    @Slot(object)
    def _edit_question(self, turn: Turn) -> None:
        if not self._replying and self._comparison is None:
            self._editing_index = turn.index
            self.editing_bar.show()
            self.composer.files.show_files(turn.question.attachments)
            self._propose_question(turn.question.text)

    @Slot()
    def _edit_last(self) -> None:
        turn = self.column.turns[-1] if self.column.turns else None
        if turn is not None and (turn.index < len(self.messages) or self._is_unanswered(turn)):
            self._edit_question(turn)

    def _is_unanswered(self, turn: Turn) -> bool:
        """Return whether a turn is the last one and its question got no reply."""
        return self.conversation.has_unanswered and turn is self.column.turns[-1]

    @Slot(object, int)
    def _show_version(self, turn: Turn, by: int) -> None:
        if not self._replying and self._comparison is None:
            number, versions = self.conversation.find_versions(turn.index + 1)
            self.conversation.open_version(versions[number + by], self.show_conversation)

    def _leave_editing(self) -> None:
        if self._editing_index is not None:
            self._editing_index = None
            self.editing_bar.hide()
            self.prompt.clear()
            self.composer.files.clear()

    def _update_actions(self) -> None:
        """Show on each reply the actions that are possible now."""
        # An unanswered question has the same index as the next one: only the last turn counts.
        last_by_index = {turn.index: turn for turn in self.column.turns}
        for turn in self.column.turns:
            if isinstance(turn.reply, ReplyView) and turn.reply is not self._reply_view:
                is_current = turn.index < len(self.messages) and turn is last_by_index[turn.index]
                has_reply = is_current and turn.index + 1 < len(self.messages)
                can_resend = self._can_ask and (is_current or self._is_unanswered(turn))
                turn.reply.show_actions(can_resend=can_resend)
                number, versions = self.conversation.find_versions(turn.index + 1) if has_reply else (0, [])
                turn.reply.show_versions(number + 1, 0 if self._replying else len(versions))

    @Slot()
    def _copy_last(self) -> None:
        replies = [reply for reply in self.column.replies if reply.text]
        if replies:
            replies[-1].copy_button.copy()

    @Slot(bool)
    def _colour_steps(self, coloured: bool) -> None:
        self.column.set_coloured(coloured=coloured)

    def _close_conversation_list(self) -> None:
        self.chats_button.setChecked(False)

    @Slot(str)
    def _handle_deletion(self, conversation_id: str) -> None:
        if conversation_id != self.conversation.id:
            return
        if self._reply_view is not None:
            self._reply_view = None
            self._controller.stop_reply()
            self.conversation.end_closed_reply(self._reply_id, tr("Stopped by you."))
        if self._comparison is not None:
            self._comparison.cancel()
        self._clear_conversation()

    def _clear_conversation(self) -> None:
        self._leave_editing()
        self.prompts.clear()
        self.column.clear()
        self.conversation.clear()
        self.conversation_list.mark_open(None)
        self._show_use(None)
        self.show_title("")

    def _show_use(self, use: ContextUse | None) -> None:
        self.context_use = use
        self.use_changed.emit()

    @Slot(object)
    def _show_store_error(self, error: LauncherError) -> None:
        self.banner.show_message(str(error), "attention")

    @Slot(str)
    def _show_store_notice(self, notice: str) -> None:
        self.banner.show_message(notice, "attention")

    @Slot()
    def _choose_prompts(self) -> None:
        dialog = QFileDialog(self, tr("Prompts from a file"))
        dialog.setNameFilters([tr("Text (*.txt *.md)"), tr("All files (*)")])
        dialog.fileSelected.connect(lambda name: self.send_prompts_from(Path(name)))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()

    def _connect_signals(self) -> None:
        controller = self._controller
        controller.deltas.connect(self._add_deltas)
        controller.replied.connect(self._end_reply)
        controller.view_changed.connect(self._show_view)
        controller.launched.connect(self._handle_launch)
        controller.sampling_changed.connect(self._show_thinking)
        controller.closed.connect(self.store.close)
        self.store.failed.connect(self._show_store_error)
        self.store.noticed.connect(self._show_store_notice)
        self.conversation_list.opened.connect(self.open_conversation)
        self.conversation_list.deleted.connect(self._handle_deletion)
        self.column.regenerate_requested.connect(self._regenerate)
        self.column.edit_requested.connect(self._edit_question)
        self.column.version_requested.connect(self._show_version)
        self.column.suggestions.chosen.connect(self._propose_question)
        self.prompt.sent.connect(self._send_prompt)
        self.prompt.edit_requested.connect(self._edit_last)
        self.prompt.files_added.connect(self._add_files)
        self.prompt.image_added.connect(self._add_image)
        self.composer.attach_button.clicked.connect(self._choose_files)
        self.composer.thinking.changed.connect(partial(controller.set_sampling_value, "thinking"))
        self.composer.files.failed.connect(self._show_file_error)
        self.composer.files.unseen.connect(self._projectors.find)
        self._projectors.found.connect(self._offer_projector)
        self._projectors.missing.connect(self._refuse_pictures)
        self.system.changed.connect(self.conversation.set_system)
        self.editing_bar.cancelled.connect(self._leave_editing)
        for button in (self.new_button, self.chats_column.new_button):
            button.clicked.connect(self.start_conversation)
        self.send_button.clicked.connect(self._send_or_stop)
        self.from_file.triggered.connect(self._choose_prompts)
        self.colour_button.toggled.connect(self._colour_steps)
        for key, slot in (
            ("Ctrl+N", self.start_conversation),
            ("Ctrl+F", self.focus_search),
            ("Ctrl+Shift+C", self._copy_last),
        ):
            QShortcut(QKeySequence(key), self, slot, context=Qt.ShortcutContext.WindowShortcut)
