"""`mtp-launcher doctor`: report this machine's hardware, drivers and engines, and what is missing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.app.first.doctor import examine_machine, list_gpu_devices, suggested_wslconfig
from launcher.base.codec import JsonView, to_json
from launcher.base.text import make_visible
from launcher.cli.layout import wrap_text
from launcher.cli.output import Result
from launcher.machine.wsl import RESTART_HINT, WSLCONFIG_PATH, copy_to_clipboard
from launcher.models.situation import MEMORY_VIEW

if TYPE_CHECKING:
    from launcher.app.first.doctor import DoctorReport, EngineCheck
    from launcher.machine.disks import Disk
    from launcher.machine.gpu import Gpu
    from launcher.machine.host import Host
    from launcher.machine.wsl import WslconfigSuggestion
    from launcher.models.situation import Situation

_MIB, _GB = 2**20, 10**9

_ENGINE_FIT = JsonView("backend gpu=gpu.name reason better")
_ENGINE = JsonView("place=name version=build.version devices devices_absent error=error.title")
_READING = JsonView("value:1 absent")


async def run(options: argparse.Namespace) -> Result:
    """Examine the machine and report. Exit code 1 if the demo cannot run here."""
    if options.copy_wslconfig:
        return _copy_wslconfig()
    report = await examine_machine(models=options.models, wake=options.wake)
    return Result(_as_json(report), _format_report(report), exit_code=0 if report.demo_can_run else 1)


def _copy_wslconfig() -> Result:
    suggestion = suggested_wslconfig()
    copy_to_clipboard(suggestion)
    instruction = f"It is on the Windows clipboard. In Windows, run `notepad {WSLCONFIG_PATH}`, and paste it."
    return Result(suggestion, [*_format_wslconfig(suggestion), wrap_text(f"{instruction} {RESTART_HINT}")])


def _format_report(report: DoctorReport) -> Iterator[str]:
    for label, line in _list_facts(report):
        yield wrap_text(line, f"{label:<11}")
    for problem in report.problems:
        yield f"\n{wrap_text(problem.title)}\n{wrap_text(problem.hint, '  ')}"
    if report.wslconfig is not None:
        yield from _format_wslconfig(report.wslconfig)
        yield "`mtp-launcher doctor --copy-wslconfig` copies it to the Windows clipboard. It changes no file."
    yield "\nThe demo can run." if report.demo_can_run else "\nThe demo cannot run yet."


def _format_wslconfig(suggestion: WslconfigSuggestion) -> Iterator[str]:
    yield f"\nSuggested for {WSLCONFIG_PATH}:\n"
    yield "".join(f"    {make_visible(line)}\n" for line in suggestion.text.splitlines())
    for change in suggestion.changes:
        yield wrap_text(make_visible(change), "  ")


def _list_facts(report: DoctorReport) -> list[tuple[str, str]]:
    host, machine = report.machine.host, report.machine
    lines = [
        ("System", _describe_system(host)),
        ("Processor", _describe_processor(host)),
        ("Memory", _describe_host_memory(host)),
    ]
    for gpu in machine.gpus:
        lines += [("GPU", text) for text in _describe_gpu(gpu, report)]
    if machine.no_gpu_reason:
        lines.append(("GPU", f"none: {machine.no_gpu_reason}"))
    if report.situation is not None:
        summary, *notes = _describe_model_memory(report.situation)
        lines += [("For models", summary), *(("", note) for note in notes)]
    lines.append(
        ("Backend", f"{report.backend.backend or 'unknown'}. {report.backend.reason} {report.backend.better or ''}")
    )
    lines += [("Engine", _describe_engine(engine)) for engine in report.engines]
    lines += [("Disk", _describe_disk(use, disk)) for use, disk in report.disks.items()]
    lines.append(("Display", host.display or "none"))
    return [(label, line.rstrip()) for label, line in lines]


def _describe_system(host: Host) -> str:
    inside = [f"WSL{host.wsl}" if host.wsl else "", f"in {host.container}" if host.container else ""]
    power = "on battery" if host.on_battery else ""
    return ", ".join([host.system, *filter(None, [*inside, power])])


def _describe_processor(host: Host) -> str:
    if host.cpu_features is None:
        features = f"instructions unknown: {host.absent['cpu_features']}"
    else:
        features = ", ".join(name.upper() for name in host.cpu_features) or "no useful instructions"
    lacks = f"; lacks {', '.join(host.missing_features).upper()}" if host.missing_features else ""
    cores = f"{host.physical_cores or 'unknown'} cores"
    if host.cpu_limit is not None:
        cores += f", {host.cpu_limit:g} usable (the limit of its control group)"
    return f"{host.cpu or host.machine}, {cores}, {features}{lacks}"


def _describe_host_memory(host: Host) -> str:
    limit = " (the limit of its control group)" if host.memory_limit_bytes else ""
    return f"{host.memory_bytes / _MIB:,.0f} MiB{limit}, {host.available_bytes / _MIB:,.0f} MiB available"


def _describe_gpu(gpu: Gpu, report: DoctorReport) -> list[str]:
    memory = f"memory unknown ({gpu.absent.get('memory_bytes', '')})"
    if gpu.memory_bytes is not None:
        free = "" if gpu.free_bytes is None else f", {gpu.free_bytes / _MIB:,.0f} MiB free"
        memory = f"{gpu.memory_bytes / _MIB:,.0f} MiB{free}"
    facts = [
        gpu.name,
        memory,
        "shares the computer's memory" if gpu.unified else "",
        f"driver {gpu.driver or 'unknown'}",
        f"CUDA {gpu.cuda_version}" if gpu.cuda_version else "",
        "compute capability {}.{}".format(*gpu.compute_capability) if gpu.compute_capability else "",
        f"{gpu.memory_bandwidth_gb_s:,.0f} GB/s" if gpu.memory_bandwidth_gb_s else "",
        "asleep" if gpu.asleep else "",
        "drives a display" if gpu.display_active else "",
    ]
    hidden = [f"  {report.hidden[gpu.id]}"] if gpu.id in report.hidden else []
    return [", ".join(filter(None, facts)), *hidden, *_describe_activity(gpu, report)]


def _describe_model_memory(situation: Situation) -> tuple[str, ...]:
    """Return sentences: the memory available for models, as plans count it, and the part that our own servers use."""
    where = "of host memory" if situation.backend == "cpu" else "of GPU memory"
    summary = f"{situation.free_mib:,} MiB {where}, {situation.margin_mib:,} of them to stay free"
    return (summary, *situation.own_notes)


def _describe_activity(gpu: Gpu, report: DoctorReport) -> list[str]:
    """Return the GPU's current readings and programs, if any are known."""
    readings, activity = report.inspected.get(gpu.id, ({}, None))
    templates = {
        "gpu_temperature_c": "{:.0f} °C",
        "gpu_power_w": "{:.0f} W",
        "gpu_power_limit_w": "limit {:.0f} W",
        "gpu_clock_mhz": "{:,.0f} MHz",
        "gpu_use_percent": "{:.0f} % busy",
    }
    known = {name: reading.value for name, reading in readings.items() if reading.value is not None}
    facts = [template.format(known[name]) for name, template in templates.items() if name in known]
    if activity is not None and activity.throttled_by:
        facts.append(f"held back by: {', '.join(activity.throttled_by)}")
    processes = activity.processes if activity is not None else None
    for process in processes or ():
        used = "memory unknown" if process.used_bytes is None else f"{process.used_bytes / _MIB:,.0f} MiB"
        ours = " (ours)" if report.situation and process.pid in report.situation.own_pids else ""
        facts.append(f"{process.name or 'process'} ({process.pid}){ours}: {used}")
    return [f"  now: {', '.join(facts)}"] if facts else []


def _describe_engine(engine: EngineCheck) -> str:
    if engine.build is None:
        return f"{engine.name}: cannot be used"
    devices = ", ".join(f"{each.name} {each.description}" for each in list_gpu_devices(engine)) or "processor only"
    return f"{engine.name}: {engine.build.version}, {engine.devices_absent or devices}"


def _describe_disk(use: str, disk: Disk) -> str:
    free = disk.absent.get("free_bytes") if disk.free_bytes is None else f"{disk.free_bytes / _GB:,.1f} GB free"
    return f"{use}: {disk.folder}, {free}" + (f", {disk.file_system}" if disk.file_system else "")


def _as_json(report: DoctorReport) -> dict[str, object]:
    machine = report.machine
    return {
        "demo_can_run": report.demo_can_run,
        "host": to_json(machine.host) | {"avx2": machine.host.avx2, "lacks": machine.host.missing_features},
        "gpus": [
            to_json(gpu) | {"hidden": report.hidden.get(gpu.id)} | _activity_json(gpu, report) for gpu in machine.gpus
        ],
        "memory": to_json(report.situation, MEMORY_VIEW),
        "no_gpu_because": machine.no_gpu_reason,
        "gpus_absent": dict(machine.absent),
        "gpus_without_driver": machine.unusable_cards,
        "engine_fit": to_json(report.backend, _ENGINE_FIT),
        "engines": to_json(report.engines, _ENGINE),
        "disks": report.disks,
        "wsl_settings": report.wsl_settings,
        "wslconfig": report.wslconfig,
        "missing_libraries": report.missing,
        "findings": report.problems,
    }


def _activity_json(gpu: Gpu, report: DoctorReport) -> dict[str, object]:
    if gpu.id not in report.inspected:
        return {"readings": None, "activity": None}
    readings, activity = report.inspected[gpu.id]
    return {"readings": {name: to_json(each, _READING) for name, each in readings.items()}, "activity": activity}
