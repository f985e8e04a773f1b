"""Failure signatures of llama-server, loaded from resources/engine-faults.toml."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, Self

from launcher.base.action import ActionKind
from launcher.base.errors import LauncherError
from launcher.base.messages import FaceName, command_name, engine_arguments, mark
from launcher.base.paths import shipped_file
from launcher.base.validation import BaseModel, ConfigDict, Field, field_validator, model_validator
from launcher.models.server_settings import name_setting

Severity = Literal["fatal", "degraded", "request", "notice"]
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_LEAST_NEEDLE = 3
FACE_NAMES: Mapping[str, FaceName] = {
    **{name: name_setting(name) for name in ("ctx", "draft", "n_cpu_moe", "slots", "ubatch")},
    "kv_type": name_setting("kv"),
    "kv_f16": name_setting("kv", "f16"),
    "one_slot": name_setting("slots", 1),
    "by_layers": name_setting("split_mode", "layer"),
    "mtp_off": name_setting("draft", 0),
    "draft_to_0": FaceName("--draft 0", mark("Draft length to 0")),
    "no_draft": FaceName("--draft 0"),
    "vision": FaceName("--vision or --mmproj FILE"),
    "port_option": FaceName("--port"),
    "close_program": FaceName(None, mark("Close that program, then start the model again.")),
    "add_projector": engine_arguments("--mmproj FILE"),
    "projector_on_host": engine_arguments("--no-mmproj-offload"),
    "no_flash": engine_arguments("-fa off"),
    "chatml": engine_arguments("--chat-template chatml"),
    "alias": command_name("models alias add NAME=MODEL"),
    "doctor": command_name("doctor"),
    "engine_use": command_name("engine use PATH"),
    "plan_command": command_name("plan"),
    "pull": command_name("pull"),
    "pull_page": command_name("pull", mark("Models")),
    "show_key": command_name("status --show-key", mark("Settings")),
}
"""Facts of hints that do not come from the log: settings and commands, by the names of their placeholders."""


class _StrictModel(BaseModel):
    """Base of the file's models: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ActionData(_StrictModel):
    """A suggested fix; its label and values may contain placeholders for facts from the log, such as {tokens}."""

    kind: ActionKind
    label: str
    parameters: dict[str, str | int] = Field(default_factory=dict)


class SignatureData(_StrictModel):
    """One entry of the file.

    `patterns` are regular expressions for the line that names the fault; their named groups are facts. `error` is the
    code of the error class to raise. `title`, `cause` and `hint` are sentences with {placeholders} for facts. `source`
    is the place of the text in llama.cpp.

    With `general`, the patterns are forms of sentences whose reason can be anything: such a fault counts only where no
    other one does. With `at_start`, the line is printed before the engine's "initializing" line. With `until_loaded`,
    the fault does not count once the model is loaded. `exits` are exit codes that identify the fault without a log
    line. `context` are patterns for further facts in lines nearby. Of the `evidence` patterns one must be in the log,
    of the `absent` ones none. `narrowed_by` are codes of faults that name the affected part of the engine in their
    `part`. `explains` are codes of later fatal faults that this one causes.
    """

    number: Annotated[int, Field(ge=1)]
    code: Annotated[str, Field(pattern=r"^[a-z_]+$")]
    severity: Severity
    error: str
    patterns: Annotated[list[str], Field(min_length=1)]
    title: str
    cause: str
    hint: str
    actions: Annotated[list[ActionData], Field(min_length=1)]
    source: str
    general: bool = False
    at_start: bool = False
    until_loaded: bool = False
    exits: list[int] = Field(default_factory=list)
    context: list[str] = Field(default_factory=list)
    evidence: list[str] = Field(default_factory=list)
    absent: list[str] = Field(default_factory=list)
    narrowed_by: list[str] = Field(default_factory=list)
    explains: list[str] = Field(default_factory=list)
    part: str | None = None

    @field_validator("error")
    @classmethod
    def _check_error_code(cls, value: str) -> str:
        if value not in error_types():
            raise ValueError(f"no error has the code {value}")
        return value

    @model_validator(mode="after")
    def _check_placeholders(self) -> Self:
        known = {"mib", "part", "expected_mib", "reason", *FACE_NAMES} | {
            name for pattern in (*self.patterns, *self.context) for name in re.compile(pattern).groupindex
        }
        values = [str(value) for action in self.actions for value in (action.label, *action.parameters.values())]
        used = set(_PLACEHOLDER.findall(" ".join((self.title, self.cause, self.hint, *values))))
        if unknown := used - known:
            raise ValueError(f"{self.code}: no pattern finds {', '.join(sorted(unknown))}")
        return self


class TopicData(_StrictModel):
    """What a general fault may be about: words, and the advice for it, of which the actions come first."""

    words: str
    hint: str
    actions: Annotated[list[ActionData], Field(min_length=1)]


class _SignaturesFile(_StrictModel):
    fault: list[SignatureData]
    topic: list[TopicData]


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A regular expression for log lines, and a text that every match contains, used as a fast first search."""

    needle: str
    regex: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class FaultSignature:
    """A failure signature with compiled patterns. `order`, its place in the file, decides if several match a line."""

    order: int
    data: SignatureData
    patterns: tuple[LinePattern, ...]
    context: tuple[re.Pattern[str], ...]
    evidence: tuple[re.Pattern[str], ...]
    absent: tuple[re.Pattern[str], ...]

    @property
    def code(self) -> str:
        """Stable code of the fault."""
        return self.data.code


@lru_cache(maxsize=1)
def _read_signatures_file() -> _SignaturesFile:
    return _SignaturesFile.model_validate(
        tomllib.loads(shipped_file("resources", "engine-faults.toml").read_text("utf-8"))
    )


@lru_cache(maxsize=1)
def fault_topics() -> tuple[tuple[re.Pattern[str], TopicData], ...]:
    """Return the topics of general faults with the patterns of their words, in the order in which they are tried."""
    return tuple((re.compile(topic.words, re.IGNORECASE), topic) for topic in _read_signatures_file().topic)


@lru_cache(maxsize=1)
def fault_signatures() -> tuple[FaultSignature, ...]:
    """Return all failure signatures, in the order in which they are tried on a line."""
    return tuple(
        FaultSignature(
            order,
            each,
            tuple(LinePattern(find_needle(pattern), re.compile(pattern)) for pattern in each.patterns),
            *(tuple(map(re.compile, patterns)) for patterns in (each.context, each.evidence, each.absent)),
        )
        for order, each in enumerate(_read_signatures_file().fault)
    )


@lru_cache(maxsize=1)
def error_types() -> Mapping[str, type[LauncherError]]:
    """Return all error classes of the program by their codes."""

    def with_subclasses(kind: type[LauncherError]) -> Iterator[type[LauncherError]]:
        yield kind
        for child in kind.__subclasses__():
            yield from with_subclasses(child)

    # Reversed, so that a class takes precedence over subclasses that inherit its code.
    return {kind.code: kind for kind in reversed(list(with_subclasses(LauncherError)))}


# Parts of a regular expression, for find_needle: escaped punctuation, character classes, innermost groups, and anything
# else that matches more than one text.

_ESCAPED = re.compile(r"\\([^\w\s])")
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_GROUP = re.compile(r"\((\?(?:P<\w+>|:|!|=|<!|<=))?([^()]*)\)([?*+]|\{\d*,?\d*\})?")
_VARIABLE = re.compile(r"\\[a-zA-Z](?:[?*+]|\{\d*,?\d*\})?\??|.(?:[?*]|\{\d*,?\d*\})\??|[.^$+\"\n]", re.DOTALL)
_PRIVATE = 0xE000
"""First code point of Unicode's private use area, which stands for escaped characters while a pattern is parsed."""


def find_needle(pattern: str) -> str:
    """Return the longest literal text that every match of `pattern` contains.

    Quotation marks never belong to it, because JSON logs escape them. Raises ValueError if it has fewer than three
    characters.
    """
    flat = _ESCAPED.sub(lambda found: chr(_PRIVATE + ord(found[1])), pattern)
    flat = _CLASS.sub("\\\\w", flat)
    while (outer := _GROUP.sub(_group_content, flat)) != flat:
        flat = outer
    pieces = [] if "|" in flat else _VARIABLE.sub("\n", flat).split("\n")
    needle = max(("".join(map(_unescape, piece)) for piece in pieces), key=len, default="")
    if len(needle) < _LEAST_NEEDLE:
        raise ValueError(f"{pattern} contains no literal text of {_LEAST_NEEDLE} characters")
    return needle


def _group_content(group: re.Match[str]) -> str:
    """Return the literal text of a regex group, with line ends in place of variable parts."""
    kind, content, times = group.groups()
    varies = "|" in content or times or kind in ("?!", "?=", "?<!", "?<=")
    return "\n" if varies else f"\n{content}\n" if _VARIABLE.search(content) else content


def _unescape(char: str) -> str:
    return chr(ord(char) - _PRIVATE) if _PRIVATE <= ord(char) < _PRIVATE + 0x80 else char
