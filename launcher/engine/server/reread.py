"""Parts of prompts that an engine reads although it has read them before."""

from dataclasses import dataclass
from enum import Enum

BILLING_HEADER = "x-anthropic-billing-header"
"""A line that Claude Code writes in front of its prompt, and that differs from session to session."""


class RereadCause(Enum):
    """Why a prompt was read again."""

    CHANGED_PREFIX = "changed prefix"
    """The client changed a part near its beginning, and what follows is the same."""
    RESTART = "restart"
    """The engine was started since then, without the slot's state."""
    OTHER_CLIENT = "other client"
    """Another conversation used the slot in between."""
    CHECKPOINT = "checkpoint"
    """The engine's last checkpoint, or its prompt cache, did not reach back far enough."""


@dataclass(frozen=True, slots=True)
class Reread:
    """Tokens that were read although an earlier request had them, with the seconds that took.

    `place` is the part of the prompt that has changed, such as "system 1"; empty for other causes.
    """

    tokens: int
    seconds: float | None
    cause: RereadCause
    place: str = ""

    def as_json(self) -> dict[str, object]:
        """Return it with the keys of docs/json.md."""
        seconds = None if self.seconds is None else round(self.seconds, 2)
        return {"tokens": self.tokens, "seconds": seconds, "cause": self.cause.value, "place": self.place or None}
