"""The open conversation: the messages sent to the model, and their stored copies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.conversations.attachments import Attachment, build_content
from launcher.conversations.records import Conversation, MessageEnding, Role, new_id
from launcher.conversations.store import Conversations
from launcher.gui.chat.chat_store import ChatStore, reply_figures
from launcher.gui.chat.steps import VerificationSteps

if TYPE_CHECKING:
    from launcher.monitor.reply import Reply


@dataclass(frozen=True, slots=True)
class _UnansweredQuestion:
    """A last question without a reply. `reply_id` is the ID of its empty reply, if one was stored."""

    question_id: str
    text: str
    reply_id: str | None


class OpenConversation:
    """The messages in the server's format and, at the same indices of `ids`, the IDs under which they are stored.

    A last question that got no reply is left out of both, so that it is not sent again with the next one.
    `restore_unanswered` puts it back.
    """

    def __init__(self, store: ChatStore) -> None:
        self._store = store
        self.id: str | None = None
        self.system = ""
        self.messages: list[dict[str, str]] = []
        self.ids: list[str] = []
        self.attachments: dict[str, tuple[Attachment, ...]] = {}
        """The files of questions, by their IDs."""
        self._versions: dict[tuple[str | None, Role], list[str]] = {}
        """IDs of all versions of a message, by the ID of the message before it and its own role."""
        self._unanswered: _UnansweredQuestion | None = None

    @property
    def has_unanswered(self) -> bool:
        """Whether the last question got no reply."""
        return self._unanswered is not None

    def clear(self) -> None:
        """Start a new conversation with the same system prompt."""
        self.id = None
        self.messages.clear()
        self.ids.clear()
        self.attachments.clear()
        self._versions.clear()
        self._unanswered = None

    def load(self, conversation: Conversation) -> None:
        """Continue a stored conversation. A last question without a reply is left out."""
        self.clear()
        self.id, self.system = conversation.id, conversation.system
        for message in conversation.messages:
            self.messages.append({"role": message.role.value, "content": message.text})
            self.ids.append(message.id)
            self._versions[message.parent, message.role] = list(message.versions)
            if message.attachments:
                self.attachments[message.id] = message.attachments
        empty_reply_id = None
        if self.messages and self.messages[-1] == {"role": Role.ASSISTANT.value, "content": ""}:
            empty_reply_id = self.ids[-1]
            self.keep_first(len(self.messages) - 1)
        if self.messages and self.messages[-1]["role"] == Role.USER.value:
            self._set_aside_question(empty_reply_id)

    def build_request(self, *, alone: bool = False) -> list[dict[str, Any]]:
        """Return the messages to send: system prompt and messages, or if `alone` only the last message."""
        system: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system.strip() else []
        messages = [
            {**message, "content": build_content(message["content"], self.attachments.get(message_id, ()))}
            for message, message_id in zip(self.messages, self.ids, strict=True)
        ]
        return system + (messages[-1:] if alone else messages)

    def set_system(self, text: str) -> None:
        """Change the system prompt."""
        self.system = text
        if (conversation_id := self.id) is not None:
            self._store.enqueue(lambda conversations: conversations.set_system(conversation_id, text))

    def add_question(self, text: str, model: str, attachments: tuple[Attachment, ...] = ()) -> None:
        """Append a question with its files."""
        if self.id is None:
            new_conversation_id, system = new_id(), self.system
            title = text or ", ".join(each.name for each in attachments)
            self.id = new_conversation_id
            self._store.enqueue(
                lambda conversations: conversations.create_conversation(
                    title, system=system, model=model, id=new_conversation_id
                )
            )
        self._unanswered = None
        conversation_id, question_id = self.id, new_id()
        parent_id = self.ids[-1] if self.ids else None
        self.messages.append({"role": "user", "content": text})
        self.ids.append(question_id)
        if attachments:
            self.attachments[question_id] = attachments
        self._add_version(parent_id, Role.USER, question_id)
        self._store.enqueue_change(
            lambda conversations: conversations.add_question(
                conversation_id, parent_id, text, attachments=attachments, id=question_id
            )
        )

    def begin_reply(self, settings: Mapping[str, object], model: str) -> str:
        """Begin a reply to the last question. Returns the reply's ID."""
        conversation_id, question_id, reply_id = self.id or "", self.ids[-1], new_id()
        stored_settings = dict(settings)
        self._add_version(question_id, Role.ASSISTANT, reply_id)
        self._store.enqueue(
            lambda conversations: conversations.begin_reply(
                conversation_id, question_id, settings=stored_settings, model=model, id=reply_id
            )
        )
        return reply_id

    def end_reply(
        self,
        reply_id: str,
        text: str,
        reply: "Reply | None",
        footer: str,
        *,
        steps: VerificationSteps,
        continues: bool = True,
    ) -> None:
        """Finish a reply. The conversation continues from it, if `continues`; not from reply B of a comparison."""
        ending = MessageEnding.WHOLE if reply is not None else MessageEnding.STOPPED
        figures = reply_figures(reply) | steps.as_figures()
        if continues:
            self.messages.append({"role": "assistant", "content": text})
            self.ids.append(reply_id)
        self._store.enqueue_change(
            lambda conversations: conversations.end_reply(reply_id, ending, footer=footer, figures=figures)
        )
        if not continues:
            self.open_version(self.ids[-1])

    def end_closed_reply(self, reply_id: str, footer: str) -> None:
        """Finish a reply whose conversation has been closed."""
        self._store.enqueue_change(
            lambda conversations: conversations.end_reply(reply_id, MessageEnding.STOPPED, footer=footer)
        )

    def end_empty_reply(self, reply_id: str, ending: MessageEnding, footer: str) -> str | None:
        """Finish an empty reply. Its question stays stored, but is not sent again with the next one.

        If the question has other replies, the empty one is deleted instead, and the ID of the newest other is returned.
        """
        other_ids = self._versions[self.ids[-1], Role.ASSISTANT]
        other_ids.remove(reply_id)
        if other_ids:
            self._store.enqueue_change(lambda conversations: conversations.delete_message(reply_id))
            return other_ids[-1]
        self._set_aside_question(reply_id)
        self._store.enqueue_change(lambda conversations: conversations.end_reply(reply_id, ending, footer=footer))
        return None

    def restore_unanswered(self) -> None:
        """Restore the unanswered question so that it is asked again. Its empty reply is deleted."""
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is not None:
            self.messages.append({"role": Role.USER.value, "content": unanswered.text})
            self.ids.append(unanswered.question_id)
            if (reply_id := unanswered.reply_id) is not None:
                self._store.enqueue_change(lambda conversations: conversations.delete_message(reply_id))

    def _set_aside_question(self, reply_id: str | None) -> None:
        """Remove the last question, which got an empty reply or none, from the messages to send."""
        self._unanswered = _UnansweredQuestion(self.ids[-1], self.messages[-1]["content"], reply_id)
        self._versions.pop((self.ids[-1], Role.ASSISTANT), None)
        self.keep_first(len(self.messages) - 1)

    def continue_with(self, reply_id: str, text: str) -> None:
        """Continue with another version of the last reply."""
        self.messages[-1] = {"role": "assistant", "content": text}
        self.ids[-1] = reply_id
        self.open_version(reply_id)

    def open_version(self, message_id: str, done: Callable[[Conversation], object] | None = None) -> None:
        """Open the branch of the stored conversation that contains a message. `done` gets the conversation."""
        conversation_id = self.id or ""

        def open_and_read(conversations: Conversations) -> Conversation:
            conversations.open_version(message_id)
            return conversations.read_conversation(conversation_id)

        self._store.enqueue(open_and_read, done)

    def keep_first(self, length: int) -> None:
        """Remove all messages after the first `length`. They stay stored as an earlier version."""
        del self.messages[length:], self.ids[length:]

    def find_versions(self, index: int) -> tuple[int, list[str]]:
        """Return which version of the message at `index` is open, and the IDs of all its versions, oldest first.

        If a reply has no other versions, those of its question are returned.
        """
        versions = self._list_versions(index)
        if len(versions) < 2 and index:
            index -= 1
            versions = self._list_versions(index)
        open_id = self.ids[index]
        return (versions.index(open_id) if open_id in versions else 0), versions

    def _list_versions(self, index: int) -> list[str]:
        parent_id = self.ids[index - 1] if index else None
        return self._versions.get((parent_id, Role(self.messages[index]["role"])), [])

    def _add_version(self, parent_id: str | None, role: Role, message_id: str) -> None:
        self._versions.setdefault((parent_id, role), []).append(message_id)
