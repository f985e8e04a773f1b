"""Tokens that a chat takes in the context: those of the last request and its reply."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from launcher.engine.server.client import Timings


@dataclass(frozen=True, slots=True)
class ContextUse:
    """Tokens of a request: those of the prompt that were `read` or `reused`, and those of the `reply`."""

    read: int
    reused: int
    reply: int

    @classmethod
    def from_timings(cls, timings: "Timings") -> Self:
        """Return the use of a reply, by the engine's timings so far."""
        return cls(timings.prompt_n, timings.cache_n, timings.predicted_n)

    @classmethod
    def from_figures(cls, figures: Mapping[str, object]) -> Self | None:
        """Return the use of a stored reply, or None if it was not stored."""
        read, reused, reply = (figures.get(name) for name in ("prompt_n", "cache_n", "predicted_n"))
        if isinstance(read, int) and isinstance(reused, int) and isinstance(reply, int):
            return cls(read, reused, reply)
        return None

    @property
    def tokens(self) -> int:
        """Tokens in the context."""
        return self.read + self.reused + self.reply

    @property
    def reuse(self) -> float | None:
        """Reused share of the prompt, 0 to 1; None if it had no token."""
        prompt = self.read + self.reused
        return self.reused / prompt if prompt else None
