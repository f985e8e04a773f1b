"""All engines of this computer: installed, the user's own, on PATH, in the usual places, built-in."""

import asyncio
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.base.errors import LauncherError
from launcher.base.paths import expanded
from launcher.engine.build import Build, probe
from launcher.engine.installed import BUILT_IN_NAME, PROGRAM, InstalledEngine, Store, read_store
from launcher.engine.known_bad import Fault, build_number, fault_of

Origin = Literal["installed", "yours", "PATH", "found", "built-in"]
_PLUG_IN = re.compile(
    r"(?:lib)?ggml-(cuda|vulkan|hip|sycl|metal|openvino|opencl|musa|cann)[\w.-]*\.(?:so[\d.]*|dll|dylib)"
)
_WORDS = {"hip": "rocm"}
_LINUX = (
    "/usr/local/bin",
    "/usr/bin",
    "/opt/llama.cpp",
    "/opt/llama.cpp/bin",
    "/opt/llama.cpp/build/bin",
    "/home/linuxbrew/.linuxbrew/bin",
    "~/.linuxbrew/bin",
)
_MAC = ("/opt/homebrew/bin", "/usr/local/bin")
_HOME = ("~/.local/bin", "~/bin", "~/llama.cpp", "~/llama.cpp/build/bin", "~/src/llama.cpp/build/bin")
_WINDOWS = (
    "%LOCALAPPDATA%/Microsoft/WinGet/Links",
    "%LOCALAPPDATA%/Microsoft/WinGet/Packages/ggml.llamacpp_*",
    "%SCOOP%/apps/llama.cpp/current",
    "%USERPROFILE%/scoop/apps/llama.cpp/current",
    "%PROGRAMFILES%/llama.cpp",
    "%PROGRAMFILES%/llama.cpp/bin",
    "%USERPROFILE%/llama.cpp",
    "%USERPROFILE%/llama.cpp/build/bin/Release",
)
"""Where package managers and CMake put llama-server; an unset variable leaves its places out."""
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """An engine and what it says of itself.

    `build` is None when it does not answer, for `error`. `backends` None is not known: they may be inside the program.
    `mtp` is whether its --spec-type knows draft-mtp, None when it does not answer.
    """

    name: str
    origin: Origin
    program: Path | None
    build: Build | None
    error: LauncherError | None
    backends: tuple[str, ...] | None
    mtp: bool | None
    fault: Fault | None
    current: bool
    pinned: bool
    installed: InstalledEngine | None = None


async def find_engines() -> tuple[tuple[FoundEngine, ...], Store]:
    """Return all engines, each asked once what it can do (the answer is kept), and the store. None makes it fail."""
    store = read_store()
    limit = asyncio.Semaphore(_AT_ONCE)

    async def look(name: str, origin: Origin, program: Path | None, engine: InstalledEngine | None) -> FoundEngine:
        build, error = None, None
        try:
            async with limit:
                build = await probe(program)
        except LauncherError as failure:
            error = failure
        number = build_number(build.version) if build else engine.number if engine else None
        current = name == store.current
        return FoundEngine(
            name,
            origin,
            program,
            build,
            error,
            _backends(program, engine),
            build.offers_mtp if build else None,
            fault_of(number),
            current,
            current and store.pinned,
            engine,
        )

    known: list[tuple[str, Origin, Path | None, InstalledEngine | None]] = [
        (engine.name, "installed" if engine.manifest else "yours", engine.program, engine) for engine in store.engines
    ]
    taken = {engine.program.resolve() for engine in store.engines}
    for origin, program in programs():
        real = program.resolve()
        if real not in taken:
            taken.add(real)
            known.append((str(program), origin, program, None))
    known.append((BUILT_IN_NAME, "built-in", None, None))
    return tuple(await asyncio.gather(*(look(*each) for each in known))), store


def programs(environ: Mapping[str, str] | None = None) -> Iterator[tuple[Origin, Path]]:
    """Yield the llama-servers on PATH, in its order, then those in the usual places; some may be the same."""
    environ = os.environ if environ is None else environ
    for folder in environ.get("PATH", "").split(os.pathsep):
        if folder and _runs(expanded(folder) / PROGRAM):
            yield "PATH", expanded(folder).absolute() / PROGRAM
    usual = {"win32": _WINDOWS, "darwin": (*_MAC, *_HOME)}.get(sys.platform, (*_LINUX, *_HOME))
    for place in usual:
        for folder_path in _folders(place, environ):
            if _runs(folder_path / PROGRAM):
                yield "found", folder_path / PROGRAM


def _folders(place: str, environ: Mapping[str, str]) -> list[Path]:
    """Return the folders that a place stands for: variables and ~ replaced, a * looked up."""
    for name in re.findall(r"%(\w+)%", place):
        if not environ.get(name):
            return []
        place = place.replace(f"%{name}%", environ[name])
    path = expanded(place)
    if "*" not in path.name:
        return [path]
    try:
        return sorted(path.parent.glob(path.name))
    except OSError:
        return []


def _runs(program: Path) -> bool:
    try:
        return program.is_file() and os.access(program, os.X_OK)
    except OSError:
        return False


def _backends(program: Path | None, engine: InstalledEngine | None) -> tuple[str, ...] | None:
    """Return the backends that an engine has beside the processor's, by the plug-ins in its folder.

    Nothing is started for it: listing devices would wake a GPU that sleeps.
    """
    if program is None:
        return ("cpu",)
    if engine and engine.manifest:
        return (engine.manifest.backend,)
    try:
        found = {match[1] for each in program.resolve().parent.iterdir() if (match := _PLUG_IN.fullmatch(each.name))}
    except OSError:
        return None
    return tuple(sorted(_WORDS.get(name, name) for name in found)) or None
