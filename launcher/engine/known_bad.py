"""Builds of llama.cpp that are known not to do what this program is for, and a build's number."""

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache

from launcher.base.paths import shipped

_BUILD = re.compile(r"\bbuild (\d+)|^(\d+) \(")
"""The two forms in which llama-server has told its build: `0.7.0 (build 11669, ...)`, before that `6123 (...)`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the builds `first` to `last`: a clause for "because ...", and where that is known from."""

    first: int
    last: int
    reason: str
    mended: int
    source: str


@lru_cache(maxsize=1)
def known_faults() -> tuple[Fault, ...]:
    """Return the list that ships with the program (resources/known-bad-builds.toml)."""
    data = tomllib.loads(shipped("resources", "known-bad-builds.toml").read_text("utf-8"))
    return tuple(Fault(**each) for each in data["builds"])


def fault_of(number: int | None) -> Fault | None:
    """Return what is known to be wrong with a build, or None."""
    if number is None:
        return None
    return next((fault for fault in known_faults() if fault.first <= number <= fault.last), None)


def build_number(version: str) -> int | None:
    """Return the number of llama.cpp's build in what `--version` says; None when it was built without one."""
    found = _BUILD.search(version)
    number = int(found[1] or found[2]) if found else 0
    return number or None
