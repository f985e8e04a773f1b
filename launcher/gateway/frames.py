"""Frames of a server-sent event stream: splitting bytes into frames, reading and writing their JSON."""

import json
from collections.abc import Mapping
from typing import Any

FRAME_END = b"\n\n"
COMMENT = b": waiting\n\n"
"""A comment, which clients skip. It keeps the connection of a client that waits alive."""
_DATA = b"data: "
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
        event = json.loads(frame[begin + len(_DATA) :])
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


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
        value, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def format_event(event: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """Return a frame without the blank line that ends it. `name` is the event's type, for APIs that name it."""
    data = _DATA + json.dumps(event, separators=(",", ":")).encode()
    return data if name is None else b"event: " + name.encode() + b"\n" + data
