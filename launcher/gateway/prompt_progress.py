"""The engine's progress reports on a prompt, which the gateway asks for and keeps from clients that did not ask."""

from collections.abc import Mapping
from typing import Any

from launcher.gateway.frames import FRAME_END, format_event

ASK_FIELD = b'"return_progress":true,'
"""Makes the engine report how many tokens the prompt has, and how many were read, before the first token."""
_TEXTS = ("content", "reasoning_content")


class HiddenProgress:
    """Takes out of a stream what the engine adds to it because of ASK_FIELD, so that the rest is as without it.

    The engine (b11549, b11669) sends each report as an event of its own, repeats the assistant's role in it and after
    it, and sends text that the chat template has begun the reply with in a report instead of before the first token.
    """

    def __init__(self) -> None:
        self._begun: set[object] = set()
        """The choices whose role the client has."""
        self._held: dict[tuple[object, str], str] = {}
        """Text that came in reports, by choice and field."""

    def take_event(self, event: dict[str, Any], frame: bytes) -> bytes | None:
        """Return the frame of an event as it would be without reports, changing the event as well; None without one."""
        before = b""
        for choice in event.get("choices") or ():
            delta, index = choice.get("delta"), choice.get("index")
            if not isinstance(delta, dict):
                continue
            if "prompt_progress" in event:
                self._hold_text(index, delta)
            elif delta.get("role") and not any(delta.get(name) for name in _TEXTS):
                if index in self._begun:
                    return None
                self._begun.add(index)
            elif self._held:
                frame, before = self._give_text(event, choice, frame)
        return None if "prompt_progress" in event else before + frame

    def _hold_text(self, index: object, delta: Mapping[str, Any]) -> None:
        for name in _TEXTS:
            if text := delta.get(name):
                self._held[index, name] = self._held.get((index, name), "") + text

    def _give_text(self, event: dict[str, Any], choice: dict[str, Any], frame: bytes) -> tuple[bytes, bytes]:
        """Return the frame of the event that follows a choice's reports, and a frame to send before it."""
        index, delta = choice.get("index"), choice["delta"]
        before = b""
        for name in _TEXTS:
            if not (text := self._held.pop((index, name), "")):
                continue
            if isinstance(delta.get(name), str):
                delta[name] = text + delta[name]
                frame = format_event(event)
            else:
                own = {"finish_reason": None, "index": index, "delta": {name: text}}
                without = {key: value for key, value in event.items() if key not in ("timings", "usage")}
                before += format_event({**without, "choices": [own]}) + FRAME_END
        return frame, before
