"""Parser for the flags in an engine build's --help output: names, value, default and description."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from launcher.base.errors import BadOption
from launcher.base.messages import message
from launcher.engine.builds.build import EngineBuild
from launcher.engine.builds.probe import read_help
from launcher.models.server_settings import ROWS

FlagKind = Literal["switch", "choice", "whole", "number", "file", "text"]

_BEGIN = re.compile(r" {0,2}(-{1,2}[A-Za-z].*)")
_SECTION = re.compile(r"-{3,} (.+?) -{3,}")
_NAME = re.compile(r"(--?[A-Za-z][\w-]*)(?:[ =](.+))?")
_DEFAULT = re.compile(r"\(default: '?\"?([^)'\",]*)")
_VARIABLE = re.compile(r"\s*\(env: \w+\)")
_CHOICES = re.compile(r"[\[<{]([^\]>}. ]+)[\]>}]")
_ALLOWED = re.compile(r"allowed values: ([\w, .+-]+)")
_WHOLE = re.compile(r"[+-]?\d+")
_REMOVED = "has been removed"
_PRINT_AND_EXIT = frozenset({"--help", "--usage", "--version", "--list-devices", "--cache-list", "--completion-bash"})
"""Flags that print something and exit; no server starts with them, so they are not offered as server arguments."""

SETTING_OF_FLAG = {flag: name for name, row in ROWS.items() for flag in row.flags} | {"--spec-type": "draft"}
"""Flags covered by a server setting, with that setting's name.

If the user's extra arguments repeat such a flag, the extra argument wins because it comes last on the command line.
"""


@dataclass(frozen=True, slots=True)
class Flag:
    """One command line flag of an engine build.

    `names` are its spellings, the preferred one first. `placeholder` stands for its value in the help text, such as
    FILE; it is None for a switch. `choices` are the allowed values, empty if any value is allowed. `default` is the
    default value as printed. `section` is the heading in the help text. `off` is the spelling that turns a switch off,
    such as --no-ui.
    """

    names: tuple[str, ...]
    placeholder: str | None = None
    choices: tuple[str, ...] = ()
    default: str | None = None
    description: str = ""
    section: str = ""
    off: str | None = None

    @property
    def name(self) -> str:
        """The preferred spelling."""
        return self.names[0]

    @property
    def kind(self) -> FlagKind:
        """The type of its value, guessed from the placeholder and the default value."""
        if self.placeholder is None:
            return "switch"
        if self.choices:
            return "choice"
        if re.search(r"FILE|FNAME|PATH|DIR", self.placeholder):
            return "file"
        default = self.default or ""
        if _WHOLE.fullmatch(default) and self.placeholder in ("N", "SEED", "PORT"):
            return "whole"
        return "number" if re.fullmatch(r"[+-]?\d+\.\d+", default) else "text"

    def check_value(self, value: str) -> None:
        """Check a value against the choices or the number format. Raises BadOption if it does not fit."""
        if self.choices and value not in self.choices:
            raise BadOption(
                message("{name} must be one of {choices}.", name=self.name, choices=", ".join(self.choices)),
                message("Choose one."),
                option=self.name,
            )
        if self.kind == "whole" and not _WHOLE.fullmatch(value):
            raise BadOption(
                message("{name} takes a whole number, not {value}.", name=self.name, value=value),
                message("Use digits."),
                option=self.name,
            )
        if self.kind == "number" and not re.fullmatch(r"[+-]?\d+(\.\d*)?|[+-]?\.\d+", value):
            raise BadOption(
                message("{name} takes a number, not {value}.", name=self.name, value=value),
                message("Use a number such as 0.5."),
                option=self.name,
            )

    def matches_search(self, text: str) -> bool:
        """Return whether all words of `text` occur in its names or description, ignoring case."""
        searched = f"{' '.join(self.names)} {self.description}".casefold()
        return all(word in searched for word in text.casefold().split())

    def value_in(self, extra: Sequence[str]) -> str | None:
        """Return the flag's value in a list of arguments, "on" or "off" for a switch; None if it is absent.

        The last occurrence counts, as it does for llama-server.
        """
        found = None
        for index, word in enumerate(extra):
            name, equals, value = word.partition("=")
            if self.off is not None and name == self.off:
                found = "off"
            elif name not in self.names:
                continue
            elif self.placeholder is None:
                found = "on"
            elif equals:
                found = value
            else:
                found = extra[index + 1] if index + 1 < len(extra) else ""
        return found

    def set_in(self, extra: Sequence[str], value: str | None) -> tuple[str, ...]:
        """Return `extra` with the flag set to `value` ("on" or "off" for a switch), or removed if `value` is None."""
        other_words: list[str] = []
        words = iter(extra)
        for word in words:
            name, equals, _ = word.partition("=")
            if name not in self.names and name != self.off:
                other_words.append(word)
            elif self.placeholder is not None and not equals:
                next(words, None)  # skip the flag's value
        if value is None:
            return tuple(other_words)
        if self.placeholder is None:
            return (*other_words, self.name if value == "on" else self.off or self.name)
        return (*other_words, self.name, value)


async def read_flags(build: EngineBuild) -> tuple[Flag, ...]:
    """Run a build with --help and return its flags. Raises EngineUnsuitable or EngineFailed if it prints no help."""
    return parse_flags(await read_help(build))


def parse_flags(text: str) -> tuple[Flag, ...]:
    """Return the flags in a help text, in its order. Reads the formats of llama-server and of Python's argparse."""
    # A later entry with the same name replaces an earlier one.
    flags = {flag.name: flag for flag in _parse_entries(text.splitlines())}
    return tuple(flags.values())


def _parse_entries(lines: Sequence[str]) -> Iterator[Flag]:
    """Yield the flags of a help text. An entry begins at a line with at most two leading spaces."""
    section, spec, description = "", "", list[str]()
    for line in (*lines, "--- end ---"):
        heading, begin = _SECTION.fullmatch(line.strip()), _BEGIN.fullmatch(line)
        if heading or begin or (line and not line[0].isspace()):
            yield from _parse_entry(spec, " ".join(description), section)
            spec, description = "", []
        if heading:
            section = heading[1]
        elif begin:
            spec, _, first = re.sub(r",\s+", ", ", begin[1]).partition("  ")
            description = [first.strip()] if first.strip() else []
        elif spec and line.strip():
            description.append(line.strip())


def _parse_entry(spec: str, description: str, section: str) -> Iterator[Flag]:
    """Yield the flag of one help entry, or nothing for flags that were removed or do not start a server."""
    if not spec or _REMOVED in description:
        return
    spellings = [match for part in spec.split(", ") if (match := _NAME.fullmatch(part.strip()))]
    names = [match[1] for match in spellings]
    placeholder = next((match[2] for match in reversed(spellings) if match[2]), None)
    off = next((name for name in names if name.startswith("--no-")), None)
    on = [name for name in names if name != off] or names
    if not on or not _PRINT_AND_EXIT.isdisjoint(on):
        return
    on.sort(key=lambda name: (not name.startswith("--"), -len(name)))
    allowed = _ALLOWED.search(description)
    choices = _parse_choices(placeholder, allowed[1] if allowed else "") if placeholder else ()
    default = _DEFAULT.search(description)
    yield Flag(
        tuple(on),
        placeholder,
        choices,
        default[1].strip() if default else None,
        _VARIABLE.sub("", description).strip(),
        section,
        off if off not in on else None,
    )


def _parse_choices(placeholder: str, allowed: str) -> tuple[str, ...]:
    """Return the allowed values, from the placeholder (`[on|off|auto]`) or from "allowed values: ..." in the text."""
    if listed := _CHOICES.fullmatch(placeholder):
        words = re.split(r"[|,]", listed[1])
    else:
        words = re.split(r",\s*", allowed.strip())
    return tuple(word.strip() for word in words) if len(words) > 1 else ()
