"""The stream of one reply as its client sees it, made of the streams of several engines."""

from collections.abc import Mapping
from typing import Any

from launcher.gateway.continuation import Continuation
from launcher.gateway.frames import format_event, read_part

_IDENTITY = ("id", "created", "model", "system_fingerprint")


class RejoinedStream:
    """Rewrites the streams of further engines, so that the client sees one beginning, one ID and the counts of all.

    The formats are those of OpenAI's chat completions and completions, and of Anthropic's messages.
    """

    def __init__(self) -> None:
        self._identity: dict[str, Any] = {}
        self._message_begun = False
        self._blocks: set[object] = set()
        self._ended_blocks: set[object] = set()

    def take_event(self, event: dict[str, Any], frame: bytes, continuation: Continuation | None) -> bytes | None:
        """Return the frame of an event for the client, changing the event as well; None if it is a repetition.

        `continuation` is None while nothing of the reply has been delivered.
        """
        if "choices" not in event and "type" in event:
            return self._take_message_event(event, frame, continuation)
        # An event of the first engine, whose ID clients know.
        if continuation is None and self._identity.get("id", event.get("id")) == event.get("id"):
            self._identity = self._identity or {name: event[name] for name in _IDENTITY if name in event}
            return frame
        if _begins_again(event):
            return None
        event.update(self._identity)
        if continuation is not None:
            _count_whole_reply(event, continuation)
        return format_event(event)

    def _take_message_event(
        self, event: dict[str, Any], frame: bytes, continuation: Continuation | None
    ) -> bytes | None:
        """Return the frame of an event of Anthropic's API.

        The engine continues the message's blocks under the same numbers; a block that it adds text to is opened again.
        """
        kind = event["type"]
        if kind == "message_start":
            if self._message_begun:
                return None
            self._message_begun = True
        elif kind == "content_block_start":
            if event.get("index") in self._blocks:
                return None
            self._blocks.add(event.get("index"))
        elif kind == "content_block_stop":
            if event.get("index") in self._ended_blocks:
                return None
            self._ended_blocks.add(event.get("index"))
        elif continuation is not None and isinstance(usage := event.get("usage"), dict):
            usage["output_tokens"] = usage.get("output_tokens", 0) + continuation.tokens_before
            return format_event(event, name=str(kind))
        return frame


def _begins_again(event: Mapping[str, Any]) -> bool:
    """Return whether an event of a chat only says that the assistant's message begins."""
    choices = event.get("choices")
    if not choices or choices[0].get("finish_reason"):
        return False
    delta = choices[0].get("delta") or {}
    return bool(delta.get("role")) and read_part(event) is None


def _count_whole_reply(event: Mapping[str, Any], continuation: Continuation) -> None:
    """Add the tokens of earlier parts of the reply to the counts in an event."""
    if isinstance(timings := event.get("timings"), dict):
        timings["predicted_n"] = timings.get("predicted_n", 0) + continuation.tokens_before
        timings["cache_n"] = continuation.reused_tokens
        timings["prompt_n"] = continuation.prompt_tokens - continuation.reused_tokens
    if isinstance(usage := event.get("usage"), dict):
        usage["completion_tokens"] = usage.get("completion_tokens", 0) + continuation.tokens_before
        usage["prompt_tokens"] = continuation.prompt_tokens
        usage["total_tokens"] = usage["completion_tokens"] + usage["prompt_tokens"]
        if isinstance(usage.get("prompt_tokens_details"), dict):
            usage["prompt_tokens_details"]["cached_tokens"] = continuation.reused_tokens
