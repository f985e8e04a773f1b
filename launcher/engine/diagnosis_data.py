"""The known ways in which llama-server fails, as data: resources/engine-faults.toml."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from launcher.base.errors import LauncherError
from launcher.base.paths import shipped
from launcher.engine.action import ActionKind

Severity = Literal["fatal", "degraded", "request", "notice"]
_PLACE = re.compile(r"\{(\w+)\}")
_LEAST_NEEDLE = 4


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ActionData(_Strict):
    """A next step, with places for facts in its label and its values."""

    kind: ActionKind
    label: str
    parameters: dict[str, str | int] = Field(default_factory=dict)


class FaultData(_Strict):
    """One entry of the file, as it stands there."""

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
    def _known_error(cls, value: str) -> str:
        if value not in error_types():
            raise ValueError(f"no error has the code {value}")
        return value

    @model_validator(mode="after")
    def _places_are_facts(self) -> Self:
        known = {"mib", "part"} | {
            name for pattern in (*self.patterns, *self.context) for name in re.compile(pattern).groupindex
        }
        values = [str(value) for action in self.actions for value in (action.label, *action.parameters.values())]
        places = set(_PLACE.findall(" ".join((self.title, self.cause, self.hint, *values))))
        if unknown := places - known:
            raise ValueError(f"{self.code}: no pattern finds {', '.join(sorted(unknown))}")
        return self


class _File(_Strict):
    fault: list[FaultData]


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a line is matched with, and a piece of text that every match begins its search from."""

    needle: str
    regex: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Fault:
    """A known way to fail, ready to be looked for. `order` decides between faults that match the same line."""

    order: int
    data: FaultData
    patterns: tuple[Pattern, ...]
    context: tuple[re.Pattern[str], ...]
    evidence: tuple[re.Pattern[str], ...]
    absent: tuple[re.Pattern[str], ...]

    @property
    def code(self) -> str:
        """Its stable name."""
        return self.data.code


@lru_cache(maxsize=1)
def faults() -> tuple[Fault, ...]:
    """Return all known faults, in the order in which one line is tried."""
    data = _File.model_validate(tomllib.loads(shipped("resources", "engine-faults.toml").read_text("utf-8")))
    return tuple(
        Fault(
            order,
            each,
            tuple(Pattern(needle_of(pattern), re.compile(pattern)) for pattern in each.patterns),
            *(tuple(map(re.compile, patterns)) for patterns in (each.context, each.evidence, each.absent)),
        )
        for order, each in enumerate(data.fault)
    )


@lru_cache(maxsize=1)
def error_types() -> Mapping[str, type[LauncherError]]:
    """Return the errors that a user can meet, by their codes."""

    def below(kind: type[LauncherError]) -> Iterator[type[LauncherError]]:
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    return {kind.code: kind for kind in reversed(list(below(LauncherError)))}


_ESCAPED = re.compile(r"\\([^\w\s])")
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_GROUP = re.compile(r"\((\?(?:P<\w+>|:|!|=|<!|<=))?([^()]*)\)([?*+]|\{\d*,?\d*\})?")
_VARIABLE = re.compile(r"\\[a-zA-Z](?:[?*+]|\{\d*,?\d*\})?\??|.(?:[?*]|\{\d*,?\d*\})\??|[.^$+\"\n]", re.DOTALL)
_PRIVATE = 0xE000


def needle_of(pattern: str) -> str:
    """Return the longest text that every match of `pattern` holds, without quotation marks (JSON has others).

    Raises ValueError when there is none of use.
    """
    flat = _ESCAPED.sub(lambda found: chr(_PRIVATE + ord(found[1])), pattern)
    flat = _CLASS.sub("\\\\w", flat)
    while (outer := _GROUP.sub(_content, flat)) != flat:
        flat = outer
    pieces = [] if "|" in flat else _VARIABLE.sub("\n", flat).split("\n")
    needle = max(("".join(map(_plain, piece)) for piece in pieces), key=len, default="")
    if len(needle) < _LEAST_NEEDLE:
        raise ValueError(f"{pattern} holds no text to look for")
    return needle


def _content(group: re.Match[str]) -> str:
    """Return what a group surely matches; a line end stands for what varies."""
    kind, content, times = group.groups()
    varies = "|" in content or times or kind in ("?!", "?=", "?<!", "?<=")
    return "\n" if varies else f"\n{content}\n" if _VARIABLE.search(content) else content


def _plain(char: str) -> str:
    return chr(ord(char) - _PRIVATE) if _PRIVATE <= ord(char) < _PRIVATE + 0x80 else char
