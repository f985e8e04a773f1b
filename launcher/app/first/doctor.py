"""Examines this machine: its hardware, its engines, and problems, each with a fix."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.app.planning.planner import MachineDescription, read_situation
from launcher.app.planning.tuned_match import TunedMatch, find_outdated_matches
from launcher.base.errors import EngineMissing, LauncherError
from launcher.base.messages import command_name, join_messages, message
from launcher.base.paths import cache_dir, explain_os_error, models_dir, state_dir
from launcher.engine.builds.build import Device, EngineBuild, find_llama_server_on_path
from launcher.engine.builds.installed import InstalledEngine, engine_in_use
from launcher.engine.builds.known_bad import build_number, find_known_fault
from launcher.engine.builds.probe import list_devices, probe_engine
from launcher.engine.demo import unpack_demo_model
from launcher.engine.environment import system_settings_file
from launcher.machine.advice import list_advice
from launcher.machine.backend import BackendChoice
from launcher.machine.disks import Disk, read_disks
from launcher.machine.engine_devices import find_disagreements, is_gpu
from launcher.machine.gpu import Gpu, GpuActivity, Reading
from launcher.machine.gpus import read_gpu_states
from launcher.machine.host import read_host
from launcher.machine.libraries import SystemLibrary, install_command, missing_libraries, window_purposes
from launcher.machine.machine import Machine, read_machine
from launcher.machine.wsl import WslconfigSuggestion, WslOnly, WslSettings, read_wsl_settings, suggest_wslconfig
from launcher.models.read_situation import choose_visible_backend, explain_hidden_gpus
from launcher.models.situation import Situation

_OLDEST_BUILD = 10749
"""Number of the oldest llama.cpp build that this program supports."""
_ASLEEP = message("A GPU sleeps, and listing its devices would wake it.")


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """An engine that was checked: its build and devices, or its error.

    `name` is its name for users: "built-in", its name in the store, or its path. `devices_absent` is the reason why
    `devices` is None.
    """

    name: str
    build: EngineBuild | None
    devices: tuple[Device, ...] | None
    devices_absent: str | None
    error: LauncherError | None


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, with what to do about it. `blocks` names the functions that do not work until the problem is solved,
    such as "demo" or "MTP"."""

    title: str
    hint: str
    blocks: str | None = None


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The complete report.

    `inspected` has the readings and activity of each GPU by its ID, `hidden` the sentence on each that a variable hides
    from engines. `wslconfig` is the suggested .wslconfig, None if it needs no change. `missing` are system libraries.
    `situation` is the memory for models, None if it cannot be read.
    """

    machine: Machine
    inspected: Mapping[str, tuple[Mapping[str, Reading], GpuActivity]]
    hidden: Mapping[str, str]
    disks: Mapping[str, Disk]
    wsl_settings: tuple[WslSettings, ...]
    wslconfig: WslconfigSuggestion | None
    backend: BackendChoice
    engines: tuple[EngineCheck, ...]
    missing: tuple[SystemLibrary, ...]
    problems: tuple[Problem, ...]
    situation: Situation | None

    @property
    def demo_can_run(self) -> bool:
        """True if the demo can run here."""
        return not any(problem.blocks == "demo" for problem in self.problems)


async def examine_machine(*, models: Path | None = None, wake: bool = False) -> DoctorReport:
    """Check the machine and the engines. Problems are reported, not raised.

    `models` is the folder of model files, by default the one for downloads. Sleeping GPUs are examined only with
    `wake`.
    """
    by_drivers = machine = read_machine(wake=wake)
    folders = {"program": cache_dir(), "logs": state_dir(), "models": models or models_dir()}
    disks = dict(zip(folders, read_disks(folders.values()), strict=True))
    settings = read_wsl_settings() if machine.host.wsl else ()
    on_path = find_llama_server_on_path()
    asleep = any(gpu.asleep for gpu in machine.gpus)
    programs: list[tuple[str, Path | None]] = [("built-in", None)]
    chosen, choice_problems = _find_chosen_engine()
    if chosen is not None:
        programs.append((chosen.name, chosen.program))
    if on_path is not None:
        programs.append((str(on_path), on_path))
    checks = [_check_engine(name, program, _ASLEEP if asleep and program else None) for name, program in programs]
    engines = tuple(await asyncio.gather(*checks))
    # All but the first, because the built-in engine does not use GPUs.
    devices = [device for engine in engines[1:] for device in engine.devices or ()]
    if devices:
        machine = read_machine(devices, wake=wake)
    known = {gpu.id: gpu for gpu in by_drivers.gpus}
    compared = [known.get(gpu.id, gpu) for gpu in machine.gpus]
    inspected = read_gpu_states(machine.gpus, wake=wake)
    missing = tuple(library for purpose in ("engine", *window_purposes()) for library in missing_libraries(purpose))
    problems = [
        *_find_demo_problems(engines[0]),
        *map(_describe_outdated_match, await find_outdated_matches(by_drivers)),
        *choice_problems,
        *(problem for engine in engines[1:] for problem in _find_engine_problems(engine, compared)),
        *(Problem(each.title, each.hint) for each in list_advice(machine, settings, [disks["models"]])),
        *_find_window_problems(machine, missing),
    ]
    hidden = explain_hidden_gpus(machine.gpus, os.environ)
    backend = choose_visible_backend(machine.gpus, hidden)
    wslconfig = suggest_wslconfig(machine.host, settings)
    try:
        situation = await read_situation(MachineDescription(wake=wake))
    except LauncherError:  # the only GPU sleeps, which the report mentions
        situation = None
    return DoctorReport(
        machine, inspected, hidden, disks, settings, wslconfig, backend, engines, missing, tuple(problems), situation
    )


def suggested_wslconfig() -> WslconfigSuggestion:
    """Return the suggested WSL settings file. Raises WslOnly outside WSL 2 and when there is nothing to change."""
    host = read_host()
    if host.wsl != 2:
        raise WslOnly(
            message("This is not WSL 2. Only WSL 2 uses a .wslconfig file."),
            message("Run the command inside your WSL 2 distribution."),
        )
    suggestion = suggest_wslconfig(host, read_wsl_settings())
    if suggestion is None:
        raise WslOnly(message(".wslconfig needs no change for this program."))
    return suggestion


def _find_chosen_engine() -> tuple[InstalledEngine | None, list[Problem]]:
    """Return the engine that the user chose, and problems with it. None without a choice, or if it cannot be used."""
    try:
        return engine_in_use(), []
    except EngineMissing as error:
        return None, [Problem(error.title, error.hint, "serve")]
    except OSError as error:
        refused = explain_os_error(error)
        return None, [Problem(refused.title, refused.hint, "serve")]


async def _check_engine(name: str, program: Path | None, devices_absent: str | None) -> EngineCheck:
    try:
        build = await probe_engine(program)
        devices = None if devices_absent else await list_devices(build)
        return EngineCheck(name, build, devices, devices_absent, None)
    except LauncherError as error:
        return EngineCheck(name, None, None, error.title, error)
    except OSError as error:
        unwritable = LauncherError(
            message("Cannot write {filename}: {strerror}.", filename=error.filename, strerror=error.strerror),
            message("Check that folder."),
        )
        return EngineCheck(name, None, None, unwritable.title, unwritable)


def _find_demo_problems(built_in: EngineCheck) -> list[Problem]:
    problems = []
    if built_in.error is not None:
        problems.append(Problem(built_in.error.title, built_in.error.hint, "demo"))
    try:
        unpack_demo_model()
    except LauncherError as error:
        problems.append(Problem(error.title, error.hint, "demo"))
    except OSError as error:
        why = message("Cannot unpack the demo model: {strerror}.", strerror=error.strerror)
        problems.append(Problem(why, message("Check its folder and the disk space."), "demo"))
    return problems


def _find_engine_problems(engine: EngineCheck, gpus: Sequence[Gpu]) -> list[Problem]:
    """Return the problems of an engine other than the built-in one, among them what it does not see of `gpus`."""
    if engine.error is not None:
        return [Problem(engine.error.title, engine.error.hint, engine.name)]
    problems = []
    if engine.devices is not None:
        problems += [
            Problem(message("{place}: {title}", place=engine.name, title=each.title), each.hint)
            for each in find_disagreements(gpus, engine.devices)
        ]
    number = build_number(engine.build.version) if engine.build else None
    fault = find_known_fault(number)
    if fault is not None:
        title = message(
            "{place} is b{number}, a build with a known bug: {reason}.",
            place=engine.name,
            number=number,
            reason=fault.reason,
        )
        problems.append(
            Problem(
                title,
                join_messages(fault.advice, message("Source: {source}.", source=fault.source)),
                "MTP",
            )
        )
    elif number is not None and number < _OLDEST_BUILD:
        title = message(
            "{place} is b{number}, older than the oldest build that this program supports.",
            place=engine.name,
            number=number,
        )
        problems.append(Problem(title, message("Install build b{first_good} or newer.", first_good=_OLDEST_BUILD)))
    return problems


def _describe_outdated_match(match: TunedMatch) -> Problem:
    """Return the problem about tuned settings that were measured in another environment."""
    facts = {"model": match.tuned.model.label_with_quant, "differs": match.differs}
    if match.used:
        title = message("The tuned settings for {model} are used, but may be out of date: {differs}.", **facts)
    else:
        title = message("The tuned settings for {model} are not used: {differs}.", **facts)
    return Problem(title, message("Measure again[: {command}].", command=command_name("tune")))


def _find_window_problems(machine: Machine, missing: tuple[SystemLibrary, ...]) -> list[Problem]:
    problems = []
    window = tuple(library for library in missing if library.purpose != "engine")
    if window:
        names = ", ".join(library.soname for library in window)
        problems.append(
            Problem(
                message("The window needs {names}.", names=names),
                message("Install: {command}", command=install_command(window)),
                "window",
            )
        )
    if machine.host.display is None:
        problems.append(
            Problem(message("No display found."), message("The demo runs in the terminal, without its window."))
        )
    settings = system_settings_file()
    if settings is not None:
        problems.append(
            Problem(
                message("{settings} affects every llama-server on this computer.", settings=settings),
                message("Move or rename it if you did not intend that."),
            )
        )
    return problems


def list_gpu_devices(engine: EngineCheck) -> tuple[Device, ...]:
    """Return the devices of an engine that are GPUs."""
    return tuple(device for device in engine.devices or () if is_gpu(device))
