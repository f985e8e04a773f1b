"""Frames of a server-sent event stream: splitting bytes into frames, reading and writing their JSON."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

FRAME_END = b"\n\n"
COMMENT = b": waiting\n\n"
"""A comment, which clients skip. It keeps the connection of a client that waits alive."""
_DATA = b"data: "
_DECODER = json.JSONDecoder()
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_MOST_OBJECT_BYTES = 1 << 14
"""Size of the objects that `find_object` can find."""


class FrameSplitter:
    """Splits the bytes of a stream into complete frames, whatever pieces they arrive in."""

    def __init__(self) -> None:
        self._rest = b""

    def add_bytes(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes, without the blank lines that end them."""
        *frames, self._rest = (self._rest + data).split(FRAME_END)
        return frames


def parse_event(frame: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a frame; None for a comment, for [DONE] and for anything else."""
    begin = 0 if frame.startswith(_DATA) else frame.find(b"\n" + _DATA) + 1
    if not frame.startswith(_DATA + b"{", begin):
        return None
    try:
        event: dict[str, Any] = _DECODER.raw_decode(frame[begin + len(_DATA) :].decode())[0]
    except ValueError:
        return None
    return event


class ReplyPart(NamedTuple):
    """An event's part of the reply: text of the answer or of the thinking, or a part of a tool call."""

    content: str = ""
    reasoning: str = ""
    calls_tool: bool = False

    @property
    def text(self) -> str:
        """The text, of whichever kind."""
        return self.content or self.reasoning

    def replace_text(self, text: str) -> "ReplyPart":
        """Return the part with another text of the same kind."""
        return self._replace(reasoning=text) if self.reasoning else self._replace(content=text)


def read_part(event: Mapping[str, Any]) -> ReplyPart | None:
    """Return what an event of OpenAI's or Anthropic's API adds to the reply; None if it adds nothing."""
    if choices := event.get("choices"):
        delta = choices[0].get("delta") or {}
        content = delta.get("content") or choices[0].get("text") or ""
        part = ReplyPart(content, delta.get("reasoning_content") or "", "tool_calls" in delta)
    elif event.get("type") == "content_block_delta":
        delta = event.get("delta") or {}
        part = ReplyPart(delta.get("text") or "", delta.get("thinking") or "", "partial_json" in delta)
    elif event.get("type") == "content_block_start":
        part = ReplyPart(calls_tool=(event.get("content_block") or {}).get("type") == "tool_use")
    else:
        return None
    return part if any(part) else None


class AlikeFrames:
    """Reads what frames add to a reply that differ from an earlier one in their text only, without parsing them.

    Most frames of a stream are such ones for a second, after which their time of creation changes.
    """

    def __init__(self) -> None:
        self._head = self._tail = b""
        self._unproved: ReplyPart | None = None
        self._is_thinking = False

    def learn(self, frame: bytes, part: ReplyPart) -> None:
        """Take a frame as the pattern, if it has nothing but this text, and that at one place."""
        self._head = self._tail = b""
        if part.calls_tool or bool(part.content) == bool(part.reasoning):
            return
        text = _encode(part.text).encode(errors="replace")
        begin = frame.find(text)
        if begin > 0:
            self._head, self._tail = frame[: begin + 1], frame[begin + len(text) - 1 :]
            self._unproved, self._is_thinking = part, bool(part.reasoning)

    def _prove_pattern(self, part: ReplyPart) -> None:
        """Drop the pattern if another text at its place would not be the text of the reply."""
        self._unproved = None
        other = parse_event(self._head + b"other" + self._tail)
        if other is None or read_part(other) != part.replace_text("other"):
            self._head = self._tail = b""

    def read_part(self, frame: bytes) -> ReplyPart | None:
        """Return what a frame adds if it is like the pattern; None if it is not, or its text is empty."""
        if not self._head or not frame.startswith(self._head) or not frame.endswith(self._tail):
            return None
        if self._unproved is not None:  # only now, for many replies have one such frame
            self._prove_pattern(self._unproved)
        if not (head := self._head):
            return None
        tail = self._tail
        quoted = frame[len(head) : -len(tail)]
        try:
            is_plain = b"\\" not in quoted and b'"' not in quoted
            text = quoted.decode() if is_plain else json.loads(b'"%b"' % quoted)
        except ValueError:
            return None
        if not text:
            return None
        return ReplyPart("", text) if self._is_thinking else ReplyPart(text)


def begins_reply(event: Mapping[str, Any]) -> bool:
    """Return whether an event only says that a reply, or a block of one, begins; or that its prompt is being read."""
    if choices := event.get("choices"):
        return not choices[0].get("finish_reason") and read_part(event) is None
    return "prompt_progress" in event or event.get("type") in ("message_start", "content_block_start", "ping")


def drop_text(event: Mapping[str, Any], count: int) -> None:
    """Take the first `count` characters from the text that an event adds to the reply."""
    choices = event.get("choices")
    holder = (choices[0].get("delta") or choices[0]) if choices else event["delta"]
    for name in ("content", "reasoning_content", "text", "thinking"):
        if holder.get(name):
            holder[name] = holder[name][count:]
            return


def find_object(data: bytes, name: str) -> dict[str, Any] | None:
    """Return the last JSON object called `name` in a reply, without parsing the rest; None if there is none.

    Replies may have megabytes, and the quotes of a name within a text are escaped.
    """
    key = b'"%s":' % name.encode()
    begin = data.rfind(key)
    if begin < 0:
        return None
    text = data[begin + len(key) :][:_MOST_OBJECT_BYTES].decode(errors="replace").lstrip()
    try:
        value, _ = _DECODER.raw_decode(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def format_event(event: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """Return a frame without the blank line that ends it. `name` is the event's type, for APIs that name it."""
    data = _DATA + _encode(event).encode(errors="replace")
    return data if name is None else b"event: " + name.encode() + b"\n" + data
