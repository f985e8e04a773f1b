"""The conversation that is open: what goes to the model, and how it is kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.conversations.records import Conversation, Ending, Role, new_id
from launcher.conversations.store import Conversations
from launcher.gui.chat.kept import Kept, figures_of
from launcher.gui.chat.steps import Steps

if TYPE_CHECKING:
    from launcher.app import Reply


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """A question that stands last and has no reply; `reply` is the empty one that is kept of it, if any."""

    question: str
    text: str
    reply: str | None


class Talk:
    """Its messages as the server takes them, and the ids under which they are kept, side by side.

    A question of which nothing came is no message any more: it would be asked with the next one. `take_up` asks it.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.id: str | None = None
        self.system = ""
        self.messages: list[dict[str, str]] = []
        self.ids: list[str] = []
        self._versions: dict[tuple[str | None, Role], list[str]] = {}
        self._unanswered: _Unanswered | None = None

    @property
    def has_unanswered(self) -> bool:
        """Whether the last question got no reply."""
        return self._unanswered is not None

    def clear(self) -> None:
        """Begin a new one, with the same system prompt."""
        self.id = None
        self.messages.clear()
        self.ids.clear()
        self._versions.clear()
        self._unanswered = None

    def load(self, conversation: Conversation) -> None:
        """Go on with one that is kept. What was asked last and has no reply is left out."""
        self.clear()
        self.id, self.system = conversation.id, conversation.system
        for message in conversation.messages:
            self.messages.append({"role": message.role.value, "content": message.text})
            self.ids.append(message.id)
            self._versions[message.parent, message.role] = list(message.versions)
        empty = None
        if self.messages and self.messages[-1] == {"role": Role.ASSISTANT.value, "content": ""}:
            empty = self.ids[-1]
            self.cut(len(self.messages) - 1)
        if self.messages and self.messages[-1]["role"] == Role.USER.value:
            self._set_aside(empty)

    def request(self, *, alone: bool = False) -> list[dict[str, str]]:
        """Return what is sent: the system prompt and the messages, or `alone` only the last of them."""
        system = [{"role": "system", "content": self.system}] if self.system.strip() else []
        return system + (self.messages[-1:] if alone else list(self.messages))

    def set_system(self, text: str) -> None:
        """Take another system prompt."""
        self.system = text
        if (id_ := self.id) is not None:
            self._kept.do(lambda kept: kept.set_system(id_, text))

    def ask(self, text: str, model: str) -> None:
        """Add a question at the end."""
        if self.id is None:
            id_, system = new_id(), self.system
            self.id = id_
            self._kept.do(lambda kept: kept.begin(text, system=system, model=model, id=id_))
        self._unanswered = None
        conversation, parent, message = self.id, self.ids[-1] if self.ids else None, new_id()
        self.messages.append({"role": "user", "content": text})
        self.ids.append(message)
        self._note(parent, Role.USER, message)
        self._kept.change(lambda kept: kept.ask(conversation, parent, text, id=message))

    def begin_reply(self, settings: Mapping[str, object], model: str) -> str:
        """Begin a reply to the question that stands last; return its id."""
        conversation, parent, message = self.id or "", self.ids[-1], new_id()
        given = dict(settings)
        self._note(parent, Role.ASSISTANT, message)
        self._kept.do(lambda kept: kept.begin_reply(conversation, parent, settings=given, model=model, id=message))
        return message

    def end_reply(
        self, message: str, text: str, reply: "Reply | None", footer: str, *, steps: Steps, goes_on: bool = True
    ) -> None:
        """End a reply. The conversation goes on from it, unless it is the second of two that are compared."""
        ending = Ending.WHOLE if reply is not None else Ending.STOPPED
        figures = figures_of(reply) | steps.figures()
        if goes_on:
            self.messages.append({"role": "assistant", "content": text})
            self.ids.append(message)
        self._kept.change(lambda kept: kept.end(message, ending, footer=footer, figures=figures))
        if not goes_on:
            self.open_version(self.ids[-1])

    def break_off(self, message: str, footer: str) -> None:
        """End a reply whose conversation is left."""
        self._kept.change(lambda kept: kept.end(message, Ending.STOPPED, footer=footer))

    def give_up(self, reply: str, ending: Ending, footer: str) -> str | None:
        """End a reply of which nothing came. Its question is kept, but not asked again with the next.

        Where it has other replies, this one is taken back: then return the newest of them.
        """
        question = self.ids[-1]
        others = self._versions[question, Role.ASSISTANT]
        others.remove(reply)
        if others:
            self._kept.change(lambda kept: kept.withdraw(reply))
            return others[-1]
        self._set_aside(reply)
        self._kept.change(lambda kept: kept.end(reply, ending, footer=footer))
        return None

    def take_up(self) -> None:
        """Let the question that got no reply be asked again; the empty reply to it is not kept."""
        again, self._unanswered = self._unanswered, None
        if again is not None:
            self.messages.append({"role": Role.USER.value, "content": again.text})
            self.ids.append(again.question)
            if (reply := again.reply) is not None:
                self._kept.change(lambda kept: kept.withdraw(reply))

    def _set_aside(self, reply: str | None) -> None:
        """Take the last question out of what is sent; `reply` is the empty one to it."""
        self._unanswered = _Unanswered(self.ids[-1], self.messages[-1]["content"], reply)
        self._versions.pop((self.ids[-1], Role.ASSISTANT), None)
        self.cut(len(self.messages) - 1)

    def go_on_with(self, message: str, text: str) -> None:
        """Let another version of the last reply be the one that the conversation goes on with."""
        self.messages[-1] = {"role": "assistant", "content": text}
        self.ids[-1] = message
        self.open_version(message)

    def open_version(self, message: str, done: Callable[[Conversation], object] | None = None) -> None:
        """Open the branch through a message."""
        id_ = self.id or ""

        def opened(kept: Conversations) -> Conversation:
            kept.open_version(message)
            return kept.get(id_)

        self._kept.do(opened, done)

    def cut(self, length: int) -> None:
        """Take all messages after the first `length` out of sight; they are kept as an earlier version."""
        del self.messages[length:], self.ids[length:]

    def version(self, number: int) -> tuple[int, list[str]]:
        """Return which version of message `number` is open, and the ids of all, oldest first; of its question where it
        has no others itself."""
        own = self._versions_of(number)
        if len(own) < 2 and number:
            number -= 1
            own = self._versions_of(number)
        return (own.index(self.ids[number]) if self.ids[number] in own else 0), own

    def _versions_of(self, number: int) -> list[str]:
        parent = self.ids[number - 1] if number else None
        return self._versions.get((parent, Role(self.messages[number]["role"])), [])

    def _note(self, parent: str | None, role: Role, message: str) -> None:
        self._versions.setdefault((parent, role), []).append(message)
