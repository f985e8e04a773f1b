"""Workloads: sets of prompts for one kind of work, shipped with the program or read from the user's files."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from launcher.base.errors import BadOption, LauncherError
from launcher.base.messages import join_messages, message
from launcher.base.paths import shipped_file
from launcher.base.prompts import read_prompts
from launcher.base.text import one_line
from launcher.tuning.records import Prompt, Value

# Errors in a file of prompts, as sentences.

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


def error_sentences(errors: Sequence[ErrorDetails]) -> str:
    """Return all errors of a validation as sentences."""
    return join_messages(*dict.fromkeys(map(_error_sentence, errors)))


def broken_rules(data: Mapping[str, Any]) -> list[ErrorDetails]:
    """Return the errors between the parts of a file. Validation alone would stop at the first faulty part."""
    listed = data.get("prompts")
    prompts = [
        (at, each) for at, each in enumerate(listed if isinstance(listed, list) else ()) if isinstance(each, dict)
    ]
    errors = []
    for at, prompt in prompts:
        messages = prompt.get("messages")
        if ("text" in prompt) == bool(messages):
            errors.append(_rule_error(("prompts", at), "a prompt has either text or messages"))
        last = messages[-1] if isinstance(messages, list) and messages else None
        if isinstance(last, dict) and last.get("role") in ("system", "assistant"):
            errors.append(_rule_error(("prompts", at), "the last message is the user's"))
    names = [name for _, prompt in prompts if isinstance(name := prompt.get("name"), str)]
    if len(set(names)) < len(names):
        errors.append(_rule_error((), "two prompts have the same name"))
    return errors


def _rule_error(loc: tuple[int | str, ...], rule: str) -> ErrorDetails:
    return {"type": "value_error", "loc": loc, "msg": rule, "input": None, "ctx": {"error": rule}}


def _error_sentence(error: ErrorDetails) -> str:
    name, where = _place(error["loc"])
    if len(error["loc"]) > 1 and error["loc"][0] == "sampling":
        return message("{error} of the file's sampling must be a number or a text.", error=error["loc"][1])
    kind, limits = error["type"], error.get("ctx", {})
    if kind == "missing":
        return message("{where} has no {name}.", where=where, name=name)
    if kind == "extra_forbidden":
        return message("{where} has an unknown key {name}.", where=where, name=name)
    if kind == "value_error":
        said = str(limits["error"])
        return message("{whole}: {said}.", whole=_whole(name, where), said=said)
    if kind in _KINDS:
        return message("{name} of {lower} must be {kinds}.", name=name, lower=_lower(where), kinds=_KINDS[kind])
    said = _SAID[kind](limits) if kind in _SAID else f"is wrong ({error['msg']})"
    return message("{name} of {lower} {said}.", name=name, lower=_lower(where), said=said)


def _place(loc: tuple[int | str, ...]) -> tuple[str, str]:
    """Return the name and the place of a faulty field: ("text", "Prompt 2")."""
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


DEFAULT_WORKLOAD = "code"
"""The default workload."""
_USUAL_TOKENS = 256
_ORDER = ("code", "prose", "reasoning", "extraction", "long", "turns", "mixed", "published")


class WorkloadUnusable(LauncherError):
    """A file of prompts cannot be read or is invalid."""

    code = "workload_unusable"


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts for one kind of work.

    `version` changes with anything that changes figures. `source` is the author of the prompts, `about` their purpose.
    `runs` is how often to send each, None for as often as the precision needs.
    """

    name: str
    title: str
    version: int
    prompts: tuple[Prompt, ...]
    source: str
    about: str = ""
    runs: int | None = None

    @property
    def reply_tokens(self) -> int:
        """Most reply tokens of one round."""
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def sized_tokens(self) -> int:
        """Prompt tokens of one round, for the prompts that have a size."""
        return sum(prompt.size or 0 for prompt in self.prompts)


def shipped_workloads() -> tuple[Workload, ...]:
    """Return the workloads that ship with the program, the default first."""
    return _shipped()


def load_workload(name: str) -> Workload:
    """Return the workload of a name, or from a file. Raises BadOption and WorkloadUnusable."""
    for each in shipped_workloads():
        if each.name == name:
            return each
    path = Path(name)
    if path.suffix or path.exists():
        return read_workload_file(path)
    names = ", ".join(each.name for each in shipped_workloads())
    raise BadOption(
        message("{name} is not a workload.", name=one_line(name)),
        message("Choose one of {names}, or a prompt file.", names=names),
    )


def read_workload_file(path: Path) -> Workload:
    """Read a workload of the user's: a TOML file like those in resources/workloads, or a text file of prompts.

    In a text file, empty lines separate the prompts; without any, each line is one. They use the server's default
    sampling. Raises WorkloadUnusable for a TOML file, BadOption for another.
    """
    if path.suffix.lower() != ".toml":
        texts = read_prompts(path)
        prompts = tuple(Prompt(f"prompt {n}", (("user", text),), _USUAL_TOKENS) for n, text in enumerate(texts, 1))
        return Workload(path.stem, path.stem, 1, prompts, message("Your own prompts."))
    try:
        data = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise WorkloadUnusable(
            message("{name} cannot be read: {strerror}.", name=path.name, strerror=error.strerror or error),
            path=str(path),
        ) from error
    except UnicodeDecodeError as error:
        raise WorkloadUnusable(
            message("{name} is not UTF-8 text.", name=path.name), message("Save it as UTF-8."), path=str(path)
        ) from error
    except RecursionError as error:
        raise WorkloadUnusable(
            message("{name} is nested too deeply.", name=path.name), EXAMPLE, path=str(path)
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise WorkloadUnusable(
            message("{name} is not valid TOML: {error}.", name=path.name, error=error), EXAMPLE, path=str(path)
        ) from error
    if errors := _file_errors(data):
        raise WorkloadUnusable(
            join_messages(message("{name} is not a workload.", name=path.name), errors), EXAMPLE, path=str(path)
        )
    return _read(data)


def _file_errors(data: dict[str, Any]) -> str:
    """Return all errors of a file, as sentences."""
    broken = broken_rules(data)
    try:
        _File.model_validate(data)
    except ValidationError as error:
        broken = [*error.errors(), *broken]
    return error_sentences(broken)


class _Message(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1)


class _Prompt(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    text: str | None = Field(default=None, min_length=1)
    messages: list[_Message] = []
    tokens: int | None = Field(default=None, ge=1)
    size: int | None = Field(default=None, ge=1)


class _File(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    title: str = Field(min_length=1)
    version: int = Field(ge=1)
    source: str
    about: str = ""
    runs: int | None = Field(default=None, ge=1, le=1_000)
    tokens: int = Field(default=_USUAL_TOKENS, ge=1)
    thinking: bool | None = None
    sampling: dict[str, int | float | str] = {}
    prompts: list[_Prompt] = Field(min_length=1)


@cache
def _shipped() -> tuple[Workload, ...]:
    folder = shipped_file("resources", "workloads")
    return tuple(_read(tomllib.loads((folder / f"{name}.toml").read_text("utf-8"))) for name in _ORDER)


def _read(data: dict[str, Any]) -> Workload:
    file = _File.model_validate(data)
    sampling: dict[str, Value] = dict(file.sampling)
    prompts = tuple(
        Prompt(
            name=each.name,
            messages=tuple((message.role, message.content) for message in each.messages)
            or (("user", each.text or ""),),
            tokens=each.tokens or file.tokens,
            sampling=sampling,
            thinking=file.thinking,
            size=each.size,
        )
        for each in file.prompts
    )
    return Workload(file.name, file.title, file.version, prompts, file.source, file.about, file.runs)
