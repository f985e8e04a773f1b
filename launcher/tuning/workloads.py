"""Workloads: sets of prompts for one kind of work, shipped with the program or read from the user's files."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from launcher.base.errors import BadOption, LauncherError
from launcher.base.messages import join_messages, message
from launcher.base.paths import shipped_file
from launcher.base.prompts import read_prompts
from launcher.base.text import one_line
from launcher.base.validation import BaseModel, ConfigDict, ErrorDetails, Field, ValidationError
from launcher.models.server_settings import Value
from launcher.tuning.records import Prompt

# Errors in a file of prompts, as sentences.

EXAMPLE = message("docs/measuring.md, under Workloads, has an example of such a file.")
_TYPE_TEXTS = {
    "string_type": "a text in quotes",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table such as { temperature = 0.6 }",
    "model_type": "a table",
}
_RULE_TEXTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "string_too_short": lambda _: "must not be empty",
    "too_short": lambda _: "must not be empty",
    "greater_than_equal": lambda limits: f"must be at least {limits['ge']}",
    "less_than_equal": lambda limits: f"must be at most {limits['le']}",
    "literal_error": lambda limits: f"must be {limits['expected']}",
}


def error_sentences(errors: Sequence[ErrorDetails]) -> str:
    """Return all errors of a validation as sentences."""
    return join_messages(*dict.fromkeys(map(_error_sentence, errors)))


def find_broken_rules(data: Mapping[str, Any]) -> list[ErrorDetails]:
    """Return the errors that concern several fields of a file.

    As validators of pydantic they would be reported only if all single fields are valid.
    """
    prompts = data.get("prompts")
    errors, names = [], []
    for index, prompt in enumerate(prompts if isinstance(prompts, list) else ()):
        if not isinstance(prompt, dict):
            continue
        messages = prompt.get("messages")
        if ("text" in prompt) == bool(messages):
            errors.append(_rule_error(("prompts", index), "a prompt has either text or messages"))
        last = messages[-1] if isinstance(messages, list) and messages else None
        if isinstance(last, dict) and last.get("role") in ("system", "assistant"):
            errors.append(_rule_error(("prompts", index), "the last message is the user's"))
        if isinstance(prompt.get("name"), str):
            names.append(prompt["name"])
    if len(set(names)) < len(names):
        errors.append(_rule_error((), "two prompts have the same name"))
    return errors


def _rule_error(loc: tuple[int | str, ...], rule: str) -> ErrorDetails:
    return {"type": "value_error", "loc": loc, "msg": rule, "input": None, "ctx": {"error": rule}}


def _error_sentence(error: ErrorDetails) -> str:
    name, where = _locate_field(error["loc"])
    if len(error["loc"]) > 1 and error["loc"][0] == "sampling":
        return message("{error} of the file's sampling must be a number or a text.", error=error["loc"][1])
    kind, limits = error["type"], error.get("ctx", {})
    if kind == "missing":
        return message("{where} has no {name}.", where=where, name=name)
    if kind == "extra_forbidden":
        return message("{where} has an unknown key {name}.", where=where, name=name)
    if kind == "value_error":
        subject = f"{name} of {_lower_first(where)}" if name else where
        return message("{subject}: {rule}.", subject=subject, rule=str(limits["error"]))
    if kind in _TYPE_TEXTS:
        return message(
            "{name} of {lower} must be {kinds}.", name=name, lower=_lower_first(where), kinds=_TYPE_TEXTS[kind]
        )
    rule = _RULE_TEXTS[kind](limits) if kind in _RULE_TEXTS else f"is wrong ({error['msg']})"
    return message("{name} of {lower} {rule}.", name=name, lower=_lower_first(where), rule=rule)


def _locate_field(loc: tuple[int | str, ...]) -> tuple[str, str]:
    """Return the name and the place of a faulty field, such as ("text", "Prompt 2"); no name for a list's entry."""
    where = "The file"
    for depth, part in enumerate(loc):
        if isinstance(part, int):
            where = f"Prompt {part + 1}" if depth == 1 else f"Message {part + 1} of {_lower_first(where)}"
    last = loc[-1] if loc else ""
    return (last if isinstance(last, str) else ""), where


def _lower_first(text: str) -> str:
    return text[0].lower() + text[1:]


DEFAULT_WORKLOAD = "code"
"""The default workload."""
_USUAL_TOKENS = 256
ALL_WORKLOADS, _ALL = "all", ("code", "prose", "reasoning", "extraction")
"""The name of all kinds of text together, and these."""
_ORDER = ("code", "prose", "reasoning", "extraction", "long", "turns", "mixed", "published")


class WorkloadUnusable(LauncherError):
    """A file of prompts cannot be read or is invalid."""

    code = "workload_unusable"


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts for one kind of work.

    `version` rises with each change that affects measurements. `source` is the author of the prompts, `about` their
    purpose. `rounds` is how often to send each, None for as often as the precision needs. `parts` are the names
    of the prompts of each workload, if several were joined.
    """

    name: str
    title: str
    version: int
    prompts: tuple[Prompt, ...]
    source: str
    about: str = ""
    rounds: int | None = field(default=None, metadata={"key": "runs"})  # as saved tunes call it
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def reply_tokens(self) -> int:
        """Maximum number of reply tokens of one round."""
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def sized_tokens(self) -> int:
        """Prompt tokens of one round in the prompts that have a size."""
        return sum(prompt.size or 0 for prompt in self.prompts)


@cache
def shipped_workloads() -> tuple[Workload, ...]:
    """Return the workloads that ship with the program, the default first."""
    folder = shipped_file("resources", "workloads")
    return tuple(_parse_workload(tomllib.loads((folder / f"{name}.toml").read_text("utf-8"))) for name in _ORDER)


def load_workloads(names: str, find_other: Callable[[str], Workload | None] = lambda _: None) -> Workload:
    """Return a workload, or several joined in one: "all", or names with commas between.

    `find_other` returns workloads of further names. Raises as `load_workload`.
    """
    if Path(names).is_file() or ("," not in names and names != ALL_WORKLOADS):
        return find_other(names) or load_workload(names)
    chosen = _ALL if names == ALL_WORKLOADS else [name.strip() for name in names.split(",")]
    return join_workloads([find_other(name) or load_workload(name) for name in dict.fromkeys(chosen)])


def join_workloads(workloads: Sequence[Workload]) -> Workload:
    """Return one workload with the prompts of several, whose names say where they come from."""
    parts = {
        each.name: tuple(replace(prompt, name=f"{each.name}: {prompt.name}") for prompt in each.prompts)
        for each in workloads
    }
    return Workload(
        name=", ".join(parts),
        title=", ".join(each.title for each in workloads),
        version=1,
        prompts=tuple(prompt for prompts in parts.values() for prompt in prompts),
        source=", ".join(dict.fromkeys(each.source for each in workloads)),
        parts={name: tuple(prompt.name for prompt in prompts) for name, prompts in parts.items()},
    )


def load_workload(name: str) -> Workload:
    """Return the shipped workload of that name, or else read that file. Raises BadOption and WorkloadUnusable."""
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
    """Read a user's workload: a TOML file like those in resources/workloads, or a text file of prompts.

    In a text file, empty lines separate the prompts; without any, each line is one. They use the server's default
    sampling. Raises WorkloadUnusable for an invalid TOML file, BadOption for another invalid file.
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
    return _parse_workload(data)


def _file_errors(data: dict[str, Any]) -> str:
    """Return all errors of a file, as sentences."""
    errors = find_broken_rules(data)
    try:
        _File.model_validate(data)
    except ValidationError as error:
        errors = [*error.errors(), *errors]
    return error_sentences(errors)


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


def _parse_workload(data: dict[str, Any]) -> Workload:
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
