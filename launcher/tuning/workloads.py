"""Workloads: sets of prompts for one kind of work, as data that ships with the program or as files of the user's."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from launcher.base.errors import BadOption, LauncherError
from launcher.base.paths import shipped
from launcher.base.prompts import read_prompts
from launcher.base.text import one_line
from launcher.tuning.records import Prompt, Value
from launcher.tuning.workloads_faults import EXAMPLE, broken_rules, faults

USUAL = "code"
"""The workload that is measured where none is named."""
_USUAL_TOKENS = 256
_ORDER = ("code", "prose", "reasoning", "extraction", "long", "turns", "mixed", "published")


class WorkloadUnusable(LauncherError):
    """A file of prompts cannot be read, or is none."""

    code = "workload_unusable"


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts for one kind of work.

    `version` changes with anything that changes figures; `source` says who wrote the prompts, `about` what they stand
    for. `runs` is how often each is to be asked, None for as often as it takes to know its speed.
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
        """The most tokens that one round of its replies may have."""
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def sized_tokens(self) -> int:
        """How many tokens are read for those prompts of a round that have a size."""
        return sum(prompt.size or 0 for prompt in self.prompts)


def workloads() -> tuple[Workload, ...]:
    """Return the workloads that ship with the program, the usual one first."""
    return _shipped()


def workload(name: str) -> Workload:
    """Return the workload of that name, or the one in the file of that name. Raises BadOption, WorkloadUnusable."""
    for each in workloads():
        if each.name == name:
            return each
    path = Path(name)
    if path.suffix or path.exists():
        return of_file(path)
    names = ", ".join(each.name for each in workloads())
    raise BadOption(f"{one_line(name)} is no workload.", f"There are {names}; or name a file of prompts.")


def of_file(path: Path) -> Workload:
    """Read a workload of the user's: a TOML file such as those in resources/workloads, or a text file of prompts.

    In a text file empty lines part the prompts; without any, each line is one. They are asked with the server's own
    sampling. Raises WorkloadUnusable for a TOML file, BadOption for another.
    """
    if path.suffix.lower() != ".toml":
        found = read_prompts(path)
        prompts = tuple(Prompt(f"prompt {n}", (("user", text),), _USUAL_TOKENS) for n, text in enumerate(found, 1))
        return Workload(path.stem, path.stem, 1, prompts, "The user's own.")
    try:
        data = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise WorkloadUnusable(f"{path.name} cannot be read: {error.strerror or error}.", path=str(path)) from error
    except UnicodeDecodeError as error:
        raise WorkloadUnusable(f"{path.name} is no text in UTF-8.", "Save it as UTF-8.", path=str(path)) from error
    except tomllib.TOMLDecodeError as error:
        raise WorkloadUnusable(f"{path.name} is no TOML: {error}.", EXAMPLE, path=str(path)) from error
    if said := _wrong(data):
        raise WorkloadUnusable(f"{path.name} is no workload. {said}", EXAMPLE, path=str(path))
    return _read(data)


def _wrong(data: dict[str, Any]) -> str:
    """Return all that is wrong with a file, in sentences."""
    broken = broken_rules(data)
    try:
        _File.model_validate(data)
    except ValidationError as error:
        broken = [*error.errors(), *broken]
    return faults(broken)


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
    folder = shipped("resources", "workloads")
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
