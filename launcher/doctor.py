"""What this machine has, what the program needs, and how to get what is missing."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import LauncherError
from launcher.engine.build import Build, Device, find_on_path, list_devices, probe
from launcher.engine.demo import unpack_demo_model
from launcher.engine.environment import system_settings
from launcher.machine.gpu import Gpu
from launcher.machine.host import Host
from launcher.machine.libraries import Library, install_line, missing_libraries
from launcher.machine.machine import Machine, read_machine

_PURPOSES = ("engine", "window", "xcb", "wayland")


@dataclass(frozen=True, slots=True)
class EngineFound:
    """An engine that was looked at: its build and devices, or the error that it gave."""

    place: str
    build: Build | None
    devices: tuple[Device, ...]
    error: LauncherError | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know or to do; `blocks` names what cannot work without it, if anything."""

    title: str
    hint: str
    blocks: str | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole report."""

    host: Host
    gpus: tuple[Gpu, ...]
    no_gpu_because: str | None
    engines: tuple[EngineFound, ...]
    missing: tuple[Library, ...]
    findings: tuple[Finding, ...]

    @property
    def demo_can_run(self) -> bool:
        """Whether the demo can run here."""
        return not any(finding.blocks == "demo" for finding in self.findings)


async def diagnose() -> Diagnosis:
    """Look at everything. Nothing that is missing makes it fail."""
    machine = read_machine()
    on_path = find_on_path()
    places: list[tuple[str, Path | None]] = [("built-in", None)]
    if on_path is not None:
        places.append((str(on_path), on_path))
    engines = tuple(await asyncio.gather(*(_look(place, engine) for place, engine in places)))
    missing = tuple(library for purpose in _PURPOSES for library in missing_libraries(purpose))
    findings = tuple(_findings(machine, engines, missing))
    return Diagnosis(machine.host, machine.gpus, machine.no_gpu_because, engines, missing, findings)


async def _look(place: str, engine: Path | None) -> EngineFound:
    try:
        build = await probe(engine)
        return EngineFound(place, build, await list_devices(build), None)
    except LauncherError as error:
        return EngineFound(place, None, (), error)
    except OSError as error:
        unwritable = LauncherError(f"{error.filename} cannot be written: {error.strerror}.", "Check that folder.")
        return EngineFound(place, None, (), unwritable)


def _findings(machine: Machine, engines: tuple[EngineFound, ...], missing: tuple[Library, ...]) -> list[Finding]:
    findings = []
    built_in = engines[0]
    if built_in.error is not None:
        findings.append(Finding(built_in.error.title, built_in.error.hint, "demo"))
    try:
        unpack_demo_model()
    except LauncherError as error:
        findings.append(Finding(error.title, error.hint, "demo"))
    except OSError as error:
        findings.append(
            Finding(
                f"The demo model cannot be unpacked: {error.strerror}.", "Check its folder and the disk space.", "demo"
            )
        )
    for engine in engines[1:]:
        if engine.error is not None:
            findings.append(Finding(engine.error.title, engine.error.hint, engine.place))
        elif machine.gpus and not engine.devices:
            findings.append(
                Finding(
                    f"{engine.place} does not see the GPU ({machine.gpus[0].name}).",
                    "Its GPU backend or the CUDA runtime beside it is missing: it would run on the processor.",
                    None,
                )
            )
    window = tuple(library for library in missing if library.purpose != "engine")
    if window:
        names = ", ".join(library.soname for library in window)
        findings.append(Finding(f"A window would need {names}.", f"Install: {install_line(window)}", "window"))
    if machine.host.display is None:
        findings.append(Finding("There is no display.", "The demo runs in the terminal, without its window.", None))
    settings = system_settings()
    if settings is not None:
        findings.append(
            Finding(f"{settings} changes every llama-server on this computer.", "Move it away if it surprises.", None)
        )
    return findings
