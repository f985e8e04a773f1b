"""An engine build: its command, version and supported flags, as found by a probe."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.base.errors import EngineUnsuitable
from launcher.base.messages import message
from launcher.base.paths import data_dir

BUILT_IN = "built-in"
CHOOSE_ENGINE = message(
    "Choose another llama-server with --engine.",
    window=(
        "Choose another llama-server in a terminal: mtp-launcher engine add PATH, then mtp-launcher engine use PATH."
    ),
)


def store_dir() -> Path:
    """Return the folder of the store."""
    return data_dir() / "engines"


def find_llama_server_on_path() -> Path | None:
    """Return the llama-server on PATH, or None.

    On Windows, one in the current folder is found first, but ignored: it may be part of a download.
    """
    found = shutil.which("llama-server")
    return Path(found) if found and Path(found).is_absolute() else None


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

    `command` is the program with its leading arguments. `flags` and `kv_types` are the flags and KV cache types in its
    --help. `environment` holds the variables required by the profile of its fork. `offers_mtp` is whether its --help
    names draft-mtp, the MTP type of speculative decoding.
    """

    name: str
    command: tuple[str, ...]
    version: str
    flags: frozenset[str]
    kv_types: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    offers_mtp: bool = False

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
                    "Use a newer llama.cpp build, or omit --engine to use the built-in one.",
                    window="Use a newer llama.cpp build, or the built-in engine.",
                ),
                missing=missing,
            )
