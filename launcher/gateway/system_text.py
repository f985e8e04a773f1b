"""Puts a system text before the conversation of a request that has none, in the format of its API."""

from collections.abc import Mapping
from typing import Any

_ROLES = ("system", "developer")


def add_system_text(path: str, body: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """Return the body of a request to `path` with a system text; `body` itself if it has one, or cannot have one.

    A request that only counts the tokens of another is changed like that one.
    """
    asked = path.removeprefix("/v1").removesuffix("/input_tokens").removesuffix("/count_tokens")
    if asked == "/chat/completions":
        messages = body.get("messages")
        if isinstance(messages, list) and not _has_system(messages):
            return {**body, "messages": [{"role": "system", "content": text}, *messages]}
    elif asked == "/messages":
        if not body.get("system"):
            return {**body, "system": text}
    elif asked == "/responses":
        entries = body.get("input")
        if not body.get("instructions") and not (isinstance(entries, list) and _has_system(entries)):
            return {**body, "instructions": text}
    return body


def _has_system(messages: list[Any]) -> bool:
    return any(isinstance(each, Mapping) and each.get("role") in _ROLES for each in messages)
