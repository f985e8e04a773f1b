"""Versions of the program, the system, the engines and the drivers, for bug reports. No user data."""

import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher import __version__
from launcher.base.errors import LauncherError
from launcher.base.messages import message
from launcher.engine.builds.build import find_llama_server_on_path
from launcher.engine.builds.installed import engine_in_use
from launcher.engine.builds.probe import probe_engine
from launcher.machine.machine import read_machine


@dataclass(frozen=True, slots=True)
class Version:
    """A component and its version. `absent` is the reason if the version is unknown."""

    component: str
    version: str | None
    absent: str | None = None

    def __str__(self) -> str:
        return f"{self.component}: {self.version or f'not known ({self.absent})'}"


async def read_versions() -> tuple[Version, ...]:
    """Return the versions of the program, the system, the engines and the drivers. Sleeping GPUs are not woken."""
    machine = read_machine(wake=False)
    versions = [
        Version("MTP Launcher", __version__),
        Version("Python", platform.python_version()),
        Version(message("System"), f"{machine.host.system}, {machine.host.machine}"),
    ]
    programs: list[Path | None] = [None]  # the built-in engine
    with suppress(LauncherError, OSError):
        chosen = engine_in_use()
        if chosen is not None:
            programs.append(chosen.program)
    on_path = find_llama_server_on_path()
    if on_path is not None and on_path not in programs:
        programs.append(on_path)
    for program in programs:
        name = message("Built-in engine") if program is None else message("Engine {name}", name=program.name)
        try:
            build = await probe_engine(program)
        except (LauncherError, OSError) as error:
            versions.append(Version(name, None, str(getattr(error, "title", error))))
        else:
            if program is not None:
                name = message("Engine {name}", name=build.name)
            versions.append(Version(name, build.version))
    versions += [
        Version(message("Driver of {name}", name=gpu.name), gpu.driver, gpu.absent.get("driver", ""))
        for gpu in machine.gpus
    ]
    if not machine.gpus:
        versions.append(Version("GPU", None, machine.no_gpu_reason or message("not found")))
    return tuple(versions)


def versions_text(versions: Sequence[Version]) -> str:
    """Return the versions as lines, for a report."""
    return "\n".join(map(str, versions))
