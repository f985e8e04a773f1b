"""What this machine has, what the program needs, and how to get what is missing."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import EngineMissing, LauncherError
from launcher.base.paths import cache_dir, models_dir, refusal, state_dir
from launcher.engine.build import Build, Device, find_on_path, list_devices, probe
from launcher.engine.demo import unpack_demo_model
from launcher.engine.environment import system_settings
from launcher.engine.installed import InstalledEngine, current
from launcher.engine.known_bad import build_number, fault_of
from launcher.machine.advice import advise
from launcher.machine.backend import BackendChoice, choose_backend
from launcher.machine.disks import Disk, read_disks
from launcher.machine.engine_view import disagreements, is_gpu
from launcher.machine.gpu import Activity
from launcher.machine.gpus import inspect_gpus
from launcher.machine.host import read_host
from launcher.machine.libraries import Library, install_line, missing_libraries, window_purposes
from launcher.machine.machine import Machine, read_machine
from launcher.machine.reading import Reading
from launcher.machine.wsl import WslSettings, read_settings
from launcher.machine.wsl_suggestion import Suggestion, WslOnly, suggest
from launcher.machine_presets import Found, outdated

_FIRST_GOOD = 10749
"""The oldest build that this program was made with."""
_ASLEEP = "A GPU sleeps, and listing its devices would wake it."


@dataclass(frozen=True, slots=True)
class EngineFound:
    """An engine that was looked at: its build and devices, or the error that it gave.

    Without devices, `devices_absent` says why they were not asked for.
    """

    place: str
    build: Build | None
    devices: tuple[Device, ...] | None
    devices_absent: str | None
    error: LauncherError | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know or to do; `blocks` names what cannot work without it, if anything."""

    title: str
    hint: str
    blocks: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole report. `inspected` holds each GPU's readings and activity by its id; `wslconfig` is what WSL's file of
    settings should be, None where it is good as it is."""

    machine: Machine
    inspected: Mapping[str, tuple[Mapping[str, Reading], Activity]]
    disks: Mapping[str, Disk]
    wsl_settings: tuple[WslSettings, ...]
    wslconfig: Suggestion | None
    backend: BackendChoice
    engines: tuple[EngineFound, ...]
    missing: tuple[Library, ...]
    findings: tuple[Finding, ...]

    @property
    def demo_can_run(self) -> bool:
        """Whether the demo can run here."""
        return not any(finding.blocks == "demo" for finding in self.findings)


async def diagnose(*, models: Path | None = None, wake: bool = False) -> Diagnosis:
    """Look at everything. Nothing that is missing makes it fail.

    `models` is where model files are kept, by default the folder that they are pulled into. A GPU that sleeps is only
    looked at with `wake`.
    """
    machine = read_machine(wake=wake)
    folders = {"program": cache_dir(), "logs": state_dir(), "models": models or models_dir()}
    disks = dict(zip(folders, read_disks(folders.values()), strict=True))
    settings = read_settings() if machine.host.wsl else ()
    on_path = find_on_path()
    asleep = any(gpu.asleep for gpu in machine.gpus)
    places: list[tuple[str, Path | None]] = [("built-in", None)]
    chosen, gone = _chosen()
    if chosen is not None:
        places.append((chosen.name, chosen.program))
    if on_path is not None:
        places.append((str(on_path), on_path))
    looks = [_look(place, engine, _ASLEEP if asleep and engine else None) for place, engine in places]
    engines = tuple(await asyncio.gather(*looks))
    devices = [device for engine in engines[1:] for device in engine.devices or ()]
    if devices:
        machine = read_machine(devices, wake=wake)
    inspected = inspect_gpus(machine.gpus, wake=wake)
    missing = tuple(library for purpose in ("engine", *window_purposes()) for library in missing_libraries(purpose))
    findings = [
        *_demo_findings(engines[0]),
        *map(_preset_finding, await outdated(machine)),
        *gone,
        *(finding for engine in engines[1:] for finding in _engine_findings(engine, machine)),
        *(Finding(each.title, each.hint) for each in advise(machine, settings, [disks["models"]])),
        *_window_findings(machine, missing),
    ]
    backend = choose_backend(machine.gpus)
    wslconfig = suggest(machine.host, settings)
    return Diagnosis(machine, inspected, disks, settings, wslconfig, backend, engines, missing, tuple(findings))


def wslconfig() -> Suggestion:
    """Return what WSL's file of settings should be. Raises WslOnly elsewhere and where there is nothing to change."""
    host = read_host()
    if host.wsl != 2:
        raise WslOnly("This is not WSL 2, which alone has a .wslconfig.", "Run it in the distribution that is meant.")
    found = suggest(host, read_settings())
    if found is None:
        raise WslOnly("There is nothing to change in .wslconfig for this program.")
    return found


def _chosen() -> tuple[InstalledEngine | None, list[Finding]]:
    """Return the engine of the store that is in use, or what is wrong with that choice."""
    try:
        return current(), []
    except EngineMissing as error:
        return None, [Finding(error.title, error.hint, "serve")]
    except OSError as error:
        refused = refusal(error)
        return None, [Finding(refused.title, refused.hint, "serve")]


async def _look(place: str, engine: Path | None, devices_absent: str | None) -> EngineFound:
    try:
        build = await probe(engine)
        devices = None if devices_absent else await list_devices(build)
        return EngineFound(place, build, devices, devices_absent, None)
    except LauncherError as error:
        return EngineFound(place, None, None, error.title, error)
    except OSError as error:
        unwritable = LauncherError(f"{error.filename} cannot be written: {error.strerror}.", "Check that folder.")
        return EngineFound(place, None, None, unwritable.title, unwritable)


def _demo_findings(built_in: EngineFound) -> list[Finding]:
    findings = []
    if built_in.error is not None:
        findings.append(Finding(built_in.error.title, built_in.error.hint, "demo"))
    try:
        unpack_demo_model()
    except LauncherError as error:
        findings.append(Finding(error.title, error.hint, "demo"))
    except OSError as error:
        why = f"The demo model cannot be unpacked: {error.strerror}."
        findings.append(Finding(why, "Check its folder and the disk space.", "demo"))
    return findings


def _engine_findings(engine: EngineFound, machine: Machine) -> list[Finding]:
    """Return what is wrong with an engine that would be used for its GPU backend."""
    if engine.error is not None:
        return [Finding(engine.error.title, engine.error.hint, engine.place)]
    findings = []
    if engine.devices is not None:
        findings += [
            Finding(f"{engine.place}: {each.title}", each.hint) for each in disagreements(machine.gpus, engine.devices)
        ]
    number = build_number(engine.build.version) if engine.build else None
    fault = fault_of(number)
    if fault is not None:
        title = f"{engine.place} is b{number}, which is known to be bad: {fault.reason}."
        findings.append(Finding(title, f"Take a build from b{fault.mended} on ({fault.source}).", "MTP"))
    elif number is not None and number < _FIRST_GOOD:
        title = f"{engine.place} is b{number}, which is older than what this program was made with."
        findings.append(Finding(title, f"Take a build from b{_FIRST_GOOD} on."))
    return findings


def _preset_finding(found: Found) -> Finding:
    """Return that a machine preset was measured with other things."""
    used = "is used all the same" if found.used else "is not used"
    title = f"The preset for {found.preset.model.words} {used}: {found.differs}."
    return Finding(title, "Measure again: `mtp-launcher tune`.")


def _window_findings(machine: Machine, missing: tuple[Library, ...]) -> list[Finding]:
    findings = []
    window = tuple(library for library in missing if library.purpose != "engine")
    if window:
        names = ", ".join(library.soname for library in window)
        findings.append(Finding(f"A window would need {names}.", f"Install: {install_line(window)}", "window"))
    if machine.host.display is None:
        findings.append(Finding("There is no display.", "The demo runs in the terminal, without its window."))
    settings = system_settings()
    if settings is not None:
        findings.append(
            Finding(f"{settings} changes every llama-server on this computer.", "Move it away if it surprises.")
        )
    return findings


def gpu_devices(engine: EngineFound) -> tuple[Device, ...]:
    """Return those of an engine's devices that are GPUs."""
    return tuple(device for device in engine.devices or () if is_gpu(device))
