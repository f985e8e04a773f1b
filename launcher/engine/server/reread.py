"""Parts of prompts that an engine reads although it has read them before."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar
from weakref import WeakKeyDictionary

from launcher.base.codec import JsonView
from launcher.base.messages import command_name, mark, message
from launcher.engine.server.logs import LogBook

BILLING_HEADER = "x-anthropic-billing-header"
"""A line that Claude Code writes in front of its prompt, and that differs from session to session."""

_DROPPED = re.compile(r"removing oldest entry|exceeds cache size limit")
"""The line that llama.cpp logs when it drops an old prompt from its cache, or does not keep one beyond the limit."""


class RereadCause(Enum):
    """Reason why a prompt was read again."""

    CHANGED_PREFIX = "changed prefix"
    """The client changed a part near its beginning, and what follows is the same."""
    RESTART = "restart"
    """The engine was started since then, without the slot's state."""
    OTHER_CLIENT = "other client"
    """Another conversation used the slot in between."""
    CACHE_LIMIT = "cache limit"
    """Another conversation used the slot in between, and the engine's prompt cache in host memory was full."""
    CHECKPOINT = "checkpoint"
    """The engine's last checkpoint did not reach back far enough."""
    KEPT_CHANGED = "kept file changed"
    """The file in which it was kept on disk is damaged, or cannot be read."""
    KEPT_REFUSED = "kept state refused"
    """The engine could not use what was kept on disk."""
    KEPT_OTHERWISE = "kept for other settings"
    """It is kept on disk as another engine has it, or the same one with other settings."""
    KEPT_SLOW = "kept but slow"
    """Restoring it from the disk would have saved too little."""
    NOT_KEPT = "not kept"
    """Nothing can be kept on disk."""


@dataclass(frozen=True, slots=True)
class Reread:
    """Tokens that were read although an earlier request had them, with the seconds that took.

    `place` is the part of the prompt that has changed, such as "system 1"; empty for other causes.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView("tokens seconds:2 cause place?")
    tokens: int
    seconds: float | None
    cause: RereadCause
    place: str = ""

    @property
    def explanation(self) -> str:
        """The cause in a sentence."""
        match self.cause:
            case RereadCause.CHANGED_PREFIX:
                if self.place != BILLING_HEADER:
                    return message("The client changed an early part of its prompt ({place}).", place=self.place)
                return message(
                    "Claude Code changed its header {header} in front of the prompt. {command} turns it off.",
                    header=BILLING_HEADER,
                    command=command_name("code claude", "CLAUDE_CODE_ATTRIBUTION_HEADER=0"),
                )
            case RereadCause.RESTART:
                return message("The engine was restarted in between and could not take its slots over.")
            case RereadCause.OTHER_CLIENT:
                return message("Another conversation had the slot in between.")
            case RereadCause.CACHE_LIMIT:
                return message(
                    "Another conversation had the slot in between, and the engine's prompt cache in host memory "
                    "was full.[ A larger one: {command}.]",
                    command=command_name("restart --set cache-ram=MIB"),
                )
            case RereadCause.CHECKPOINT:
                return message("The engine's last checkpoint did not reach back far enough.")
            case RereadCause.KEPT_CHANGED:
                return message("What was kept of the conversation on disk is damaged, so it was deleted.")
            case RereadCause.KEPT_REFUSED:
                return message("The engine could not use what was kept of the conversation on disk.")
            case RereadCause.KEPT_OTHERWISE:
                return message("The conversation is kept on disk for another engine or other settings of the model.")
            case RereadCause.KEPT_SLOW:
                return message("Restoring the conversation from the disk would have saved too little time.")
            case RereadCause.NOT_KEPT:
                return message(
                    "Conversations cannot be kept on disk: {command} says why.",
                    command=command_name("status", mark("Cockpit")),
                )


class DroppedPrompts:
    """Counts the prompts that engines dropped because their prompt caches in host memory were full, by their logs."""

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[LogBook, tuple[int, int]] = WeakKeyDictionary()
        """For each log the lines that were read, and the drops in them."""

    def count_until_now(self, log: LogBook) -> int:
        """Return how many prompts the engine of a log, and those before it, have dropped."""
        read, dropped = self._counts.get(log, (0, 0))
        until = log.line_count
        if until == read:
            return dropped
        dropped += sum(_DROPPED.search(line.text) is not None for line in log.lines_since(read))
        self._counts[log] = until, dropped
        return dropped
