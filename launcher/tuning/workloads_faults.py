"""What is wrong with a file of prompts, in sentences."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

EXAMPLE = "docs/measuring.md, under What is asked, has an example of such a file."
_KINDS = {
    "string_type": "a text in quotes",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table such as { temperature = 0.6 }",
    "model_type": "a table",
}
_SAID: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "string_too_short": lambda _: "must not be empty",
    "too_short": lambda _: "must not be empty",
    "greater_than_equal": lambda limits: f"must be at least {limits['ge']}",
    "less_than_equal": lambda limits: f"must be at most {limits['le']}",
    "literal_error": lambda limits: f"must be {limits['expected']}",
}


def faults(errors: Sequence[ErrorDetails]) -> str:
    """Return all of a validation's errors, a sentence each."""
    return " ".join(dict.fromkeys(map(_sentence, errors)))


def broken_rules(data: Mapping[str, Any]) -> list[ErrorDetails]:
    """Return what is wrong between the parts of a file, whatever else is wrong with them: a validation stops before."""
    listed = data.get("prompts")
    prompts = [
        (at, each) for at, each in enumerate(listed if isinstance(listed, list) else ()) if isinstance(each, dict)
    ]
    found = []
    for at, prompt in prompts:
        messages = prompt.get("messages")
        if ("text" in prompt) == bool(messages):
            found.append(_rule(("prompts", at), "a prompt has either text or messages"))
        last = messages[-1] if isinstance(messages, list) and messages else None
        if isinstance(last, dict) and last.get("role") in ("system", "assistant"):
            found.append(_rule(("prompts", at), "the last message is the user's"))
    names = [name for _, prompt in prompts if isinstance(name := prompt.get("name"), str)]
    if len(set(names)) < len(names):
        found.append(_rule((), "two prompts have the same name"))
    return found


def _rule(loc: tuple[int | str, ...], said: str) -> ErrorDetails:
    return {"type": "value_error", "loc": loc, "msg": said, "input": None, "ctx": {"error": said}}


def _sentence(error: ErrorDetails) -> str:
    name, where = _place(error["loc"])
    if len(error["loc"]) > 1 and error["loc"][0] == "sampling":
        return f"{error['loc'][1]} of the file's sampling must be a number or a text."
    kind, limits = error["type"], error.get("ctx", {})
    if kind == "missing":
        return f"{where} has no {name}."
    if kind == "extra_forbidden":
        return f"{where} has {name}, which nothing is called."
    if kind == "value_error":
        said = str(limits["error"])
        return f"{_whole(name, where)}: {said}."
    if kind in _KINDS:
        return f"{name} of {_lower(where)} must be {_KINDS[kind]}."
    said = _SAID[kind](limits) if kind in _SAID else f"is wrong ({error['msg']})"
    return f"{name} of {_lower(where)} {said}."


def _place(loc: tuple[int | str, ...]) -> tuple[str, str]:
    """Return what is wrong, and where that is: ("text", "Prompt 2")."""
    where = "The file"
    for at, part in enumerate(loc):
        if isinstance(part, int):
            where = f"Prompt {part + 1}" if at == 1 else f"message {part + 1} of {_lower(where)}"
            where = where[0].upper() + where[1:]
    names = [part for part in loc if isinstance(part, str)]
    named = loc and isinstance(loc[-1], str)
    return (names[-1] if named and names else ""), where


def _whole(name: str, where: str) -> str:
    return f"{name} of {_lower(where)}" if name else where


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
