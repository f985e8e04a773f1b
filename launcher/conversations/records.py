"""What is kept of a conversation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import uuid4

from launcher.base.text import one_line

_TITLE_CHARACTERS = 60


class Role(StrEnum):
    """Who wrote a message."""

    USER = "user"
    ASSISTANT = "assistant"


class Ending(StrEnum):
    """How far a message came. WRITING in a file that nobody writes is a reply that a crash cut off."""

    WRITING = "writing"
    WHOLE = "whole"
    STOPPED = "stopped"
    CUT_OFF = "cut off"


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `footer` is the line of figures under a reply, `figures` the same for programs, `settings` what it
    was asked with. `versions` are the ids of all messages that stand in this one's place, itself among them, oldest
    first: an edited question, or a reply that was asked for again."""

    id: str
    parent: str | None
    role: Role
    text: str
    thinking: str = ""
    created_s: float = 0.0
    ending: Ending = Ending.WHOLE
    footer: str = ""
    figures: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """A conversation in a list. `messages` counts those of its newest branch and of all others."""

    id: str
    title: str
    model: str
    created_s: float
    changed_s: float
    messages: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation with the messages of the branch that was open last, first one first."""

    id: str
    title: str
    system: str
    model: str
    created_s: float
    changed_s: float
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A conversation in which all words of a search were found, and the place where the first one stands."""

    conversation: Summary
    excerpt: str


def new_id() -> str:
    """Return an id for a conversation or a message that is not there yet: 12 hexadecimal digits."""
    return uuid4().hex[:12]


def title_of(text: str) -> str:
    """Return a title for a conversation that begins with `text`."""
    lines = (line.strip(" #*`>-") for line in text.splitlines())
    return one_line(next(filter(None, lines), "Untitled"), _TITLE_CHARACTERS)


def packed(data: Mapping[str, object]) -> str:
    """Return figures or settings as they are kept."""
    return json.dumps(dict(data), ensure_ascii=True, separators=(",", ":"), default=str)


def unpacked(text: str) -> dict[str, object]:
    """Return figures or settings; none where the file holds something else."""
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
