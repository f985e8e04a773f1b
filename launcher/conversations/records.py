"""Records of stored conversations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import uuid4

from launcher.base.text import one_line
from launcher.conversations.attachments import Attachment

_MAX_TITLE_CHARACTERS = 60


class Role(StrEnum):
    """The author of a message."""

    USER = "user"
    ASSISTANT = "assistant"


class MessageEnding(StrEnum):
    """Ending of a message; WRITING until then. A reply still WRITING at the next start was cut off by a crash."""

    WRITING = "writing"
    WHOLE = "whole"
    STOPPED = "stopped"
    CUT_OFF = "cut off"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation.

    `footer` is the line of figures below a reply, `figures` the same as data, `settings` the request's settings.
    `versions` are the IDs of this message and its alternatives, oldest first: edited questions, or replies that were
    generated again.
    """

    id: str
    parent: str | None
    role: Role
    text: str
    thinking: str = ""
    created_s: float = 0.0
    ending: MessageEnding = MessageEnding.WHOLE
    footer: str = ""
    figures: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    versions: tuple[str, ...] = ()
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """A conversation in a list. `messages` and `replies` are counted in all branches."""

    id: str
    title: str
    model: str
    created_s: float
    changed_s: float
    messages: int
    replies: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation with the messages of its open branch, in order."""

    id: str
    title: str
    system: str
    model: str
    created_s: float
    changed_s: float
    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A conversation that matches a search, and an excerpt around the first match."""

    conversation: ConversationSummary
    excerpt: str


def new_id() -> str:
    """Return a new ID for a conversation or a message: 12 hexadecimal digits."""
    return uuid4().hex[:12]


def make_title(text: str) -> str:
    """Return a title for a conversation that begins with `text`."""
    lines = (line.strip(" #*`>-") for line in text.splitlines())
    return one_line(next(filter(None, lines), "Untitled"), _MAX_TITLE_CHARACTERS)
