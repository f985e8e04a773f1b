"""Every flag that a build has, as its own --help tells: name, value, default, what it does."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from launcher.base.errors import BadOption
from launcher.engine.build import Build, help_of

Kind = Literal["switch", "choice", "whole", "number", "file", "text"]

_BEGIN = re.compile(r" {0,2}(-{1,2}[A-Za-z].*)")
_SECTION = re.compile(r"-{3,} (.+?) -{3,}")
_NAME = re.compile(r"(--?[A-Za-z][\w-]*)(?:[ =](.+))?")
_DEFAULT = re.compile(r"\(default: '?\"?([^)'\",]*)")
_VARIABLE = re.compile(r"\s*\(env: \w+\)")
_CHOICES = re.compile(r"[\[<{]([^\]>}. ]+)[\]>}]")
_ALLOWED = re.compile(r"allowed values: ([\w, .+-]+)")
_WHOLE = re.compile(r"[+-]?\d+")
_GONE = "has been removed"
_ANSWERS = frozenset({"--help", "--usage", "--version", "--list-devices", "--cache-list", "--completion-bash"})
"""Flags that make it answer and leave, so no server comes of them."""

SET_BY = {
    "--ctx-size": "ctx",
    "--spec-type": "draft",
    "--spec-draft-n-max": "draft",
    "--cache-type-k": "kv",
    "--cache-type-v": "kv",
    "--ubatch-size": "ubatch",
    "--n-cpu-moe": "n_cpu_moe",
    "--parallel": "slots",
    "--threads": "threads",
}
"""Flags that a setting of ours stands for. Given as one's own arguments, too, they come last and win."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: `names` with the one to write first, the value's placeholder or None for a switch.

    `off` is the name that switches it off, where it has one. `section` is the heading that it stands under.
    """

    names: tuple[str, ...]
    value: str | None
    choices: tuple[str, ...]
    default: str | None
    description: str
    section: str = ""
    off: str | None = None

    @property
    def name(self) -> str:
        """The name to write."""
        return self.names[0]

    @property
    def kind(self) -> Kind:
        """What its value is."""
        if self.value is None:
            return "switch"
        if self.choices:
            return "choice"
        if re.search(r"FILE|FNAME|PATH|DIR", self.value):
            return "file"
        default = self.default or ""
        if _WHOLE.fullmatch(default) and self.value in ("N", "SEED", "PORT"):
            return "whole"
        return "number" if re.fullmatch(r"[+-]?\d+\.\d+", default) else "text"

    def check(self, value: str) -> None:
        """Raise BadOption for a value that it cannot have."""
        if self.choices and value not in self.choices:
            raise BadOption(f"{self.name} is none of {', '.join(self.choices)}.", "Choose one.", option=self.name)
        if self.kind == "whole" and not _WHOLE.fullmatch(value):
            raise BadOption(f"{self.name} takes a whole number, not {value}.", "Write digits.", option=self.name)
        if self.kind == "number" and not re.fullmatch(r"[+-]?\d+(\.\d*)?|[+-]?\.\d+", value):
            raise BadOption(f"{self.name} takes a number, not {value}.", "Write one such as 0.5.", option=self.name)

    def matches(self, text: str) -> bool:
        """Whether all words of `text` occur in its names or its description."""
        told = f"{' '.join(self.names)} {self.description}".casefold()
        return all(word in told for word in text.casefold().split())

    def value_in(self, extra: Sequence[str]) -> str | None:
        """Return the value it has among arguments, the last if it is there twice; None where it is not there.

        A switch has "on" or "off".
        """
        found = None
        for place, word in enumerate(extra):
            name, equals, value = word.partition("=")
            if self.off is not None and name == self.off:
                found = "off"
            elif name in self.names:
                following = extra[place + 1] if place + 1 < len(extra) else ""
                found = "on" if self.value is None else value if equals else following
        return found

    def put_into(self, extra: Sequence[str], value: str | None) -> tuple[str, ...]:
        """Return arguments in which it has `value`; None takes it out."""
        left: list[str] = []
        words = iter(extra)
        for word in words:
            name, equals, _ = word.partition("=")
            if name not in self.names and name != self.off:
                left.append(word)
            elif self.value is not None and not equals:
                next(words, None)
        if value is None:
            return tuple(left)
        if self.value is None:
            return (*left, self.name if value == "on" else self.off or self.name)
        return (*left, self.name, value)


async def flags_of(build: Build) -> tuple[Flag, ...]:
    """Ask a build for its flags. Raises EngineUnsuitable or EngineFailed when it does not answer."""
    return parse_flags(await help_of(build))


def parse_flags(text: str) -> tuple[Flag, ...]:
    """Return the flags that a --help tells of, in its order: llama-server's own, or argparse's."""
    flags = {flag.name: flag for flag in _flags(text.splitlines())}
    return tuple(flags.values())


def _flags(lines: Sequence[str]) -> Iterator[Flag]:
    section, spec, said = "", "", list[str]()
    for line in (*lines, "--- end ---"):
        heading, begin = _SECTION.fullmatch(line.strip()), _BEGIN.fullmatch(line)
        if heading or begin or (line and not line[0].isspace()):
            yield from _flag(spec, " ".join(said), section)
            spec, said = "", []
        if heading:
            section = heading[1]
        elif begin:
            spec, _, first = re.sub(r",\s+", ", ", begin[1]).partition("  ")
            said = [first.strip()] if first.strip() else []
        elif spec and line.strip():
            said.append(line.strip())


def _flag(spec: str, said: str, section: str) -> Iterator[Flag]:
    if not spec or _GONE in said:
        return
    found = [each for part in spec.split(", ") if (each := _NAME.fullmatch(part.strip()))]
    names = [each[1] for each in found]
    value = next((each[2] for each in reversed(found) if each[2]), None)
    off = next((name for name in names if name.startswith("--no-")), None)
    on = [name for name in names if name != off] or names
    told = _ALLOWED.search(said)
    choices = _choices(value, told[1] if told else "") if value else ()
    default = _DEFAULT.search(said)
    if on and _ANSWERS.isdisjoint(on):
        on.sort(key=lambda name: (not name.startswith("--"), -len(name)))
        text = _VARIABLE.sub("", said).strip()
        usual = default[1].strip() if default else None
        yield Flag(tuple(on), value, choices, usual, text, section, off if off not in on else None)


def _choices(value: str, allowed: str) -> tuple[str, ...]:
    """What a value may be: as its placeholder lists it, or a sentence after it."""
    listed = _CHOICES.fullmatch(value)
    words = re.split(r"[|,]", listed[1]) if listed else re.split(r",\s*", allowed.strip()) if allowed else []
    return tuple(word.strip() for word in words) if len(words) > 1 else ()
