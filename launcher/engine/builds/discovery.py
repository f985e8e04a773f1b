"""Finds all engines on this computer: installed, added by the user, on PATH, in common folders, built-in."""

import asyncio
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.base.errors import EngineUnsuitable, LauncherError
from launcher.base.paths import expand_user
from launcher.engine.builds.build import PROGRAMS, EngineBuild, program_in
from launcher.engine.builds.installed import BUILT_IN_NAME, EngineStore, InstalledEngine, read_store
from launcher.engine.builds.known_bad import KnownFault, build_number, find_known_fault
from launcher.engine.builds.probe import probe_engine
from launcher.engine.builds.slower_builds import list_slower_builds

EngineOrigin = Literal["installed", "yours", "PATH", "found", "built-in"]
_PLUG_IN = re.compile(
    r"(?:lib)?ggml-(cuda|vulkan|hip|sycl|metal|openvino|opencl|musa|cann)[\w.-]*\.(?:so[\d.]*|dll|dylib)"
)
"""ggml's backend plug-ins beside llama-server; the first group is ggml's name of the backend."""
_BACKEND_NAMES = {"hip": "rocm"}
"""ggml's backend names that differ from ours."""
_LINUX_FOLDERS = (
    "/usr/local/bin",
    "/usr/bin",
    "/opt/llama.cpp",
    "/opt/llama.cpp/bin",
    "/opt/llama.cpp/build/bin",
    "/home/linuxbrew/.linuxbrew/bin",
    "~/.linuxbrew/bin",
)
_MAC_FOLDERS = ("/opt/homebrew/bin", "/usr/local/bin")
_HOME_FOLDERS = ("~/.local/bin", "~/bin", "~/llama.cpp", "~/llama.cpp/build/bin", "~/src/llama.cpp/build/bin")
_WINDOWS_FOLDERS = (
    "%LOCALAPPDATA%/Microsoft/WinGet/Links",
    "%LOCALAPPDATA%/Microsoft/WinGet/Packages/ggml.llamacpp_*",
    "%SCOOP%/apps/llama.cpp/current",
    "%USERPROFILE%/scoop/apps/llama.cpp/current",
    "%PROGRAMFILES%/llama.cpp",
    "%PROGRAMFILES%/llama.cpp/bin",
    "%USERPROFILE%/llama.cpp",
    "%USERPROFILE%/llama.cpp/build/bin/Release",
)
"""Folders by system where package managers, llama.app and CMake put a server; one with an unset variable is skipped."""
_PARALLEL_PROBES = 4
"""Number of engines probed at the same time."""


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """An engine on this computer with the result of its probe.

    `name` is its name in the store, or its path. `origin` is the place where it was found. `program` is None for the
    built-in engine. `build` is None if the probe failed, with the reason in `error`. `backends` are the compute
    backends besides the CPU; None means unknown, because they may be linked into the program. `mtp` is whether its
    --spec-type has draft-mtp, None if the probe failed. `fault` is its entry in the known-bad list. `current` is
    whether it is in use, `pinned` whether it is in use and pinned. `installed` is its entry in the store.
    """

    name: str
    origin: EngineOrigin
    program: Path | None
    build: EngineBuild | None
    error: LauncherError | None
    backends: tuple[str, ...] | None
    mtp: bool | None
    fault: KnownFault | None
    current: bool
    pinned: bool
    installed: InstalledEngine | None = None


async def find_engines() -> tuple[tuple[FoundEngine, ...], EngineStore]:
    """Return all engines and the store. Each is probed, unless a probe of it is cached; failures are recorded."""
    store, slower = read_store(), list_slower_builds()
    limit = asyncio.Semaphore(_PARALLEL_PROBES)

    async def probe_candidate(
        name: str, origin: EngineOrigin, program: Path | None, engine: InstalledEngine | None
    ) -> FoundEngine:
        build, error = None, None
        try:
            async with limit:
                build = await probe_engine(program)
        except LauncherError as failure:
            error = failure
        number = engine.number if engine else None
        if build is not None:
            number = build_number(build.version)
        current = name == store.current
        return FoundEngine(
            name,
            origin,
            program,
            build,
            error,
            _detect_backends(program, engine),
            build.offers_mtp if build else None,
            find_known_fault(number) or (slower[name].as_fault() if name in slower else None),
            current,
            current and store.pinned,
            engine,
        )

    candidates: list[tuple[str, EngineOrigin, Path | None, InstalledEngine | None]] = [
        (engine.name, "installed" if engine.manifest else "yours", engine.program, engine) for engine in store.engines
    ]
    seen = {engine.program.resolve() for engine in store.engines}
    for origin, program in find_programs():
        resolved = program.resolve()
        if resolved not in seen:
            seen.add(resolved)
            candidates.append((str(program), origin, program, None))
    candidates.append((BUILT_IN_NAME, "built-in", None, None))
    found = await asyncio.gather(*(probe_candidate(*each) for each in candidates))
    return tuple(engine for engine in found if not _is_other_llama(engine)), store


def _is_other_llama(engine: FoundEngine) -> bool:
    """Return whether a program was found only because it is called `llama`, as other programs are, too."""
    is_unsuitable = isinstance(engine.error, EngineUnsuitable) and engine.origin in ("PATH", "found")
    return is_unsuitable and engine.program is not None and engine.program.name == PROGRAMS[1]


def find_programs(environ: Mapping[str, str] | None = None) -> Iterator[tuple[EngineOrigin, Path]]:
    """Yield the llama-servers on PATH, in its order, then those in common folders; there may be duplicates."""
    environ = os.environ if environ is None else environ
    for folder in environ.get("PATH", "").split(os.pathsep):
        program = program_in(expand_user(folder).absolute()) if folder else None
        if program is not None and os.access(program, os.X_OK):
            yield "PATH", program
    patterns = {"win32": _WINDOWS_FOLDERS, "darwin": (*_MAC_FOLDERS, *_HOME_FOLDERS)}.get(
        sys.platform, (*_LINUX_FOLDERS, *_HOME_FOLDERS)
    )
    for pattern in patterns:
        for matching in _expand_folders(pattern, environ):
            program = program_in(matching)
            if program is not None and os.access(program, os.X_OK):
                yield "found", program


def _expand_folders(pattern: str, environ: Mapping[str, str]) -> list[Path]:
    """Expand variables, ~ and a trailing * in a folder pattern and return the folders it matches."""
    for name in re.findall(r"%(\w+)%", pattern):
        if not environ.get(name):
            return []
        pattern = pattern.replace(f"%{name}%", environ[name])
    path = expand_user(pattern)
    if "*" not in path.name:
        return [path]
    try:
        return sorted(path.parent.glob(path.name))
    except OSError:
        return []


def _detect_backends(program: Path | None, engine: InstalledEngine | None) -> tuple[str, ...] | None:
    """Return an engine's backends besides the CPU, from its manifest or the plug-ins in its folder; None if unknown.

    The engine is not started for this, because listing devices would wake a sleeping GPU.
    """
    if program is None:
        return ("cpu",)
    if engine and engine.manifest:
        return (engine.manifest.backend,)
    try:
        found = {match[1] for each in program.resolve().parent.iterdir() if (match := _PLUG_IN.fullmatch(each.name))}
    except OSError:
        return None
    return tuple(sorted(_BACKEND_NAMES.get(name, name) for name in found)) or None
