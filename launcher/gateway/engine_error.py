"""Errors that an engine answers with: where replies have them, and what is kept of their text."""

import json
import re
from collections.abc import Mapping
from typing import Any

from launcher.base.text import storable_text
from launcher.gateway.frames import find_object

_MOST_CHARACTERS = 300
_MOST_BODY_BYTES = 1 << 14
"""Size of a reply in which an error is looked for that is not an object called `error`."""
_TEMPLATE_ERROR = re.compile(r"^Error: ", re.MULTILINE)
"""Before the reason of an error in a chat template; the lines above it quote the template."""
_QUOTES = re.compile(
    r"""
    (?<=last\ read:\ ).* | (?<=at\ pos\ )\d+:.*            # where a parser stopped: text of the request or of the reply
    | (?<=Invalid\ diff:\ ).* | (?<=,\ got\ )".*
    | [\[{]\s*["\[{].* | ;\ \w+\ =.*                       # JSON of the request
    | (?<=://)\S+ | (?<=;base64,)\S+                       # a picture or its address, which may hold a signature
    | (?P<name>"[^"\s]{0,40}" | (?<!\w)'(?:[^'\s]{0,20}\s){0,2}[^'\s]{0,40}'(?!\w))
    | "[^"]*("|$) | (?<!\w)'[^']*('|$)
    """,
    re.VERBOSE,
)
"""Parts of llama.cpp's errors that quote the request or the reply (common/chat.cpp, common/json.cpp), and names."""


def read_error(status: int, data: bytes) -> Mapping[str, Any]:
    """Return the error of a whole reply, without a message if it names none. All APIs have an object called `error`."""
    found: Mapping[str, Any] | None = find_object(data, "error")
    if found is None and len(data) <= _MOST_BODY_BYTES:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        found = find_error(body) if isinstance(body, dict) else None
    return {**(found or {}), "code": status}


def find_error(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the error in an event of a stream; None if it has none.

    llama-server sends it as `error`, and to clients of /v1/messages as the event itself.
    """
    response = event.get("response")
    for found in (event.get("error"), response.get("error") if isinstance(response, dict) else None):
        if not found:
            continue
        if isinstance(found, dict):
            return found
        if isinstance(found, str):
            return {"message": found}
    return event if isinstance(event.get("code"), int) and isinstance(event.get("message"), str) else None


def shorten_error(text: str) -> str:
    """Return what is kept of an error's text: one short line, without what it quotes of the request or the reply."""
    reasons = _TEMPLATE_ERROR.split(text.strip())
    line = " ".join(reasons[-1].split("\n")) if len(reasons) == 1 else reasons[-1].split("\n")[0]
    line = " ".join(_QUOTES.sub(lambda found: found["name"] or "…", storable_text(line)).split())
    return line if len(line) <= _MOST_CHARACTERS else line[: _MOST_CHARACTERS - 1] + "…"
