"""The list of known-bad llama.cpp builds, and parsing of build numbers."""

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache

from launcher.base.messages import Message, message
from launcher.base.paths import shipped_file

_BUILD = re.compile(r"\bbuild (\d+)|^(\d+) \(|^xllamacpp \d+\.\d+\.(\d+)")
"""The version formats: `0.7.0 (build 11669, ...)`, `6123 (...)` in older builds, `xllamacpp 2026.10.11549`."""


@dataclass(frozen=True, slots=True)
class KnownFault:
    """A known fault of the builds `first` to `last`, inclusive.

    `reason` is a clause that can follow "because", `fixed_in` the first build without the fault, None if there is none
    yet, and `source` a link, or words. A fault of `several_slots` shows only where several of them serve a model with
    recurrent layers, so the build is good for all else.
    """

    first: int
    last: int
    reason: str
    source: str
    fixed_in: int | None = None
    several_slots: bool = False

    @property
    def advice(self) -> Message:
        """The hint, as a sentence."""
        if self.fixed_in is None:
            return message("Use one slot, or turn MTP off.") if self.several_slots else message("Use another build.")
        return message("Use b{fixed_in} or newer.", fixed_in=self.fixed_in)


@lru_cache(maxsize=1)
def known_faults() -> tuple[KnownFault, ...]:
    """Return the known faults from resources/known-bad-builds.toml."""
    data = tomllib.loads(shipped_file("resources", "known-bad-builds.toml").read_text("utf-8"))
    return tuple(KnownFault(**each) for each in data["builds"])


def find_known_fault(number: int | None, *, several_slots: bool = False) -> KnownFault | None:
    """Return the known fault of a build number; None if there is none or the number is unknown.

    `several_slots` is whether several slots will serve a model with recurrent layers.
    """
    if number is None:
        return None
    held = (fault for fault in known_faults() if several_slots or not fault.several_slots)
    return next((fault for fault in held if fault.first <= number <= fault.last), None)


def build_number(version: str) -> int | None:
    """Return the llama.cpp build number in the output of `--version`; None if the build has none."""
    found = _BUILD.search(version)
    number = int(found[1] or found[2] or found[3]) if found else 0
    return number or None
