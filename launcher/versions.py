"""What runs here, by version: what a report about the program needs to say. Nothing of the user's is in it."""

import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher import __version__
from launcher.base.errors import LauncherError
from launcher.base.words import part
from launcher.engine.build import find_on_path, probe
from launcher.engine.installed import current
from launcher.machine.machine import read_machine


@dataclass(frozen=True, slots=True)
class Version:
    """One thing and its version, as it names itself; `absent` says why that is not known."""

    what: str
    version: str | None
    absent: str | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.version or f'not known ({self.absent})'}"


async def versions() -> tuple[Version, ...]:
    """Look at the program, the system, the engines and the drivers. A GPU that sleeps is not woken."""
    machine = read_machine(wake=False)
    told = [
        Version("MTP Launcher", __version__),
        Version("Python", platform.python_version()),
        Version(part("System"), f"{machine.host.system}, {machine.host.machine}"),
    ]
    places: list[Path | None] = [None]
    with suppress(LauncherError, OSError):
        chosen = current()
        places += [chosen.program] if chosen is not None else []
    on_path = find_on_path()
    places += [on_path] if on_path is not None and on_path not in places else []
    for place in places:
        try:
            build = await probe(place)
        except (LauncherError, OSError) as error:
            name = part("Built-in engine") if place is None else part(f"Engine {place.name}")
            told.append(Version(name, None, str(getattr(error, "title", error))))
        else:
            told.append(
                Version(part("Built-in engine") if place is None else part(f"Engine {build.name}"), build.version)
            )
    told += [Version(part(f"Driver of {gpu.name}"), gpu.driver, gpu.absent.get("driver", "")) for gpu in machine.gpus]
    if not machine.gpus:
        told.append(Version("GPU", None, machine.no_gpu_because or part("none was found")))
    return tuple(told)


def as_text(told: Sequence[Version]) -> str:
    """Return versions as lines, to be copied into a report."""
    return "\n".join(map(str, told))
