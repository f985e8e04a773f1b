"""The open conversation: the messages sent to the model, and their stored copies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.conversations.records import Conversation, MessageEnding, Role, new_id
from launcher.conversations.store import Conversations
from launcher.gui.chat.chat_store import ChatStore, reply_figures
from launcher.gui.chat.steps import VerificationSteps

if TYPE_CHECKING:
    from launcher.monitor.reply import Reply


@dataclass(frozen=True, slots=True)
class _UnansweredQuestion:
    """A question at the end without a reply. `reply` is the ID of its stored empty reply, if any."""

    question: str
    text: str
    reply: str | None


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
        self._versions: dict[tuple[str | None, Role], list[str]] = {}
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
        empty_reply = None
        if self.messages and self.messages[-1] == {"role": Role.ASSISTANT.value, "content": ""}:
            empty_reply = self.ids[-1]
            self.keep_first(len(self.messages) - 1)
        if self.messages and self.messages[-1]["role"] == Role.USER.value:
            self._set_aside(empty_reply)

    def build_request(self, *, alone: bool = False) -> list[dict[str, str]]:
        """Return the messages to send: system prompt and messages, or if `alone` only the last message."""
        system = [{"role": "system", "content": self.system}] if self.system.strip() else []
        return system + (self.messages[-1:] if alone else list(self.messages))

    def set_system(self, text: str) -> None:
        """Change the system prompt."""
        self.system = text
        if (conversation_id := self.id) is not None:
            self._store.enqueue(lambda conversations: conversations.set_system(conversation_id, text))

    def add_question(self, text: str, model: str) -> None:
        """Append a question."""
        if self.id is None:
            conversation_id, system = new_id(), self.system
            self.id = conversation_id
            self._store.enqueue(
                lambda conversations: conversations.create_conversation(
                    text, system=system, model=model, id=conversation_id
                )
            )
        self._unanswered = None
        conversation, parent, message = self.id, self.ids[-1] if self.ids else None, new_id()
        self.messages.append({"role": "user", "content": text})
        self.ids.append(message)
        self._add_version(parent, Role.USER, message)
        self._store.change(lambda conversations: conversations.add_question(conversation, parent, text, id=message))

    def begin_reply(self, settings: Mapping[str, object], model: str) -> str:
        """Begin a reply to the last question. Returns the reply's ID."""
        conversation, parent, message = self.id or "", self.ids[-1], new_id()
        stored_settings = dict(settings)
        self._add_version(parent, Role.ASSISTANT, message)
        self._store.enqueue(
            lambda conversations: conversations.begin_reply(
                conversation, parent, settings=stored_settings, model=model, id=message
            )
        )
        return message

    def end_reply(
        self,
        message: str,
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
            self.ids.append(message)
        self._store.change(
            lambda conversations: conversations.end_reply(message, ending, footer=footer, figures=figures)
        )
        if not continues:
            self.open_version(self.ids[-1])

    def end_closed_reply(self, message: str, footer: str) -> None:
        """Finish a reply whose conversation has been closed."""
        self._store.change(lambda conversations: conversations.end_reply(message, MessageEnding.STOPPED, footer=footer))

    def end_empty_reply(self, reply: str, ending: MessageEnding, footer: str) -> str | None:
        """Finish an empty reply. Its question stays stored, but is not sent again with the next one.

        If the question has other replies, the empty one is deleted instead, and the ID of the newest other is returned.
        """
        question = self.ids[-1]
        others = self._versions[question, Role.ASSISTANT]
        others.remove(reply)
        if others:
            self._store.change(lambda conversations: conversations.delete_message(reply))
            return others[-1]
        self._set_aside(reply)
        self._store.change(lambda conversations: conversations.end_reply(reply, ending, footer=footer))
        return None

    def restore_unanswered(self) -> None:
        """Restore the unanswered question so that it is asked again. Its empty reply is deleted."""
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is not None:
            self.messages.append({"role": Role.USER.value, "content": unanswered.text})
            self.ids.append(unanswered.question)
            if (reply := unanswered.reply) is not None:
                self._store.change(lambda conversations: conversations.delete_message(reply))

    def _set_aside(self, reply: str | None) -> None:
        """Remove the last question from the messages to send. `reply` is its empty reply."""
        self._unanswered = _UnansweredQuestion(self.ids[-1], self.messages[-1]["content"], reply)
        self._versions.pop((self.ids[-1], Role.ASSISTANT), None)
        self.keep_first(len(self.messages) - 1)

    def continue_with(self, message: str, text: str) -> None:
        """Continue with another version of the last reply."""
        self.messages[-1] = {"role": "assistant", "content": text}
        self.ids[-1] = message
        self.open_version(message)

    def open_version(self, message: str, done: Callable[[Conversation], object] | None = None) -> None:
        """Open the branch that contains a message."""
        conversation_id = self.id or ""

        def open_and_read(conversations: Conversations) -> Conversation:
            conversations.open_version(message)
            return conversations.read_conversation(conversation_id)

        self._store.enqueue(open_and_read, done)

    def keep_first(self, length: int) -> None:
        """Remove all messages after the first `length`. They stay stored as an earlier version."""
        del self.messages[length:], self.ids[length:]

    def find_versions(self, number: int) -> tuple[int, list[str]]:
        """Return the index of the open version of message `number`, and the IDs of all its versions, oldest first.

        If a reply has no other versions, those of its question are returned.
        """
        own = self._versions_of(number)
        if len(own) < 2 and number:
            number -= 1
            own = self._versions_of(number)
        return (own.index(self.ids[number]) if self.ids[number] in own else 0), own

    def _versions_of(self, number: int) -> list[str]:
        parent = self.ids[number - 1] if number else None
        return self._versions.get((parent, Role(self.messages[number]["role"])), [])

    def _add_version(self, parent: str | None, role: Role, message: str) -> None:
        self._versions.setdefault((parent, role), []).append(message)
