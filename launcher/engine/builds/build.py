"""An engine build: its command, version and supported flags, as found by a probe."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.base.errors import EngineUnsuitable
from launcher.base.messages import FaceName, message
from launcher.base.paths import data_dir
from launcher.models.drafters import MTP, SPEC_TYPES

BUILT_IN = "built-in"
CHOOSE_ENGINE = message(
    "Choose another llama-server with {option}.", option=FaceName("--engine", "`mtp-launcher engine use PATH`")
)


def store_dir() -> Path:
    """Return the folder of the store."""
    return data_dir() / "engines"


PROGRAMS = ("llama-server.exe", "llama.exe") if sys.platform == "win32" else ("llama-server", "llama")
"""The programs of llama.cpp that start a server: alone, and as `llama serve` (of llama.app and winget)."""


def find_llama_server_on_path() -> Path | None:
    """Return the llama-server on PATH, otherwise the program with `llama serve`, or None.

    On Windows, one in the current folder is found first, but ignored: it may be part of a download.
    """
    found = [Path(path) for name in PROGRAMS if (path := shutil.which(name))]
    return next((path for path in found if path.is_absolute() and not _is_llama_stack(path)), None)


def program_in(folder: Path) -> Path | None:
    """Return the program in a folder that may start a server, or None. llama.cpp's archives have both."""
    return next((path for name in PROGRAMS if _is_file(path := folder / name) and not _is_llama_stack(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _is_llama_stack(path: Path) -> bool:
    """Return whether a program is the `llama` of the Python package llama-stack, a script of Python."""
    if path.name != PROGRAMS[1]:
        return False
    try:
        with path.open("rb") as file:
            return b"python" in file.readline(200).partition(b"#!")[2]
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU from the engine's --list-devices; memory in MiB."""

    name: str
    description: str
    total_mib: int
    free_mib: int


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """An engine build that was probed successfully.

    `command` is the program with its leading arguments, such as `llama serve`. `flags` and `kv_types` are the flags and
    KV cache types in its --help, `spec_types` the drafters there (--spec-type). `environment` holds the variables
    required by the profile of its fork.
    """

    name: str
    command: tuple[str, ...]
    version: str
    flags: frozenset[str]
    kv_types: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    spec_types: frozenset[str] = frozenset()

    @property
    def program(self) -> Path:
        """The program; of the built-in engine, its script."""
        return Path(self.command[-1] if self.name == BUILT_IN else self.command[0])

    @property
    def offers_mtp(self) -> bool:
        """Whether it drafts with the model's own head."""
        return MTP.spec_type in self.spec_types

    def require_drafters(self, *spec_types: str) -> None:
        """Check that the build has these drafters, unless its --help lists none. Raises EngineUnsuitable otherwise."""
        missing = [each for each in spec_types if self.spec_types and each not in self.spec_types]
        if missing:
            raise EngineUnsuitable(
                message(
                    "The engine {name} ({version}) cannot draft with {missing}.",
                    name=self.name,
                    version=self.version,
                    missing=", ".join(missing),
                ),
                message(
                    "It has {drafters}. Choose one of these[ with {option}], or another llama-server.",
                    drafters=", ".join(each for each in SPEC_TYPES if each in self.spec_types),
                    option=FaceName("--drafter"),
                ),
                missing=missing,
            )

    def require_flags(self, *flags: str) -> None:
        """Check that the build supports all `flags`. Raises EngineUnsuitable otherwise."""
        missing = [flag for flag in flags if flag not in self.flags]
        if missing:
            raise EngineUnsuitable(
                message(
                    "The engine {name} ({version}) does not support {missing}.",
                    name=self.name,
                    version=self.version,
                    missing=", ".join(missing),
                ),
                CHOOSE_ENGINE
                if self.name == BUILT_IN
                else message(
                    "Use a newer llama.cpp build, or[ omit {option} to use] the built-in one.",
                    option=FaceName("--engine"),
                ),
                missing=missing,
            )
