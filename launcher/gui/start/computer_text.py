"""Facts about this computer and advice for its card, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from launcher.base.messages import join_messages
from launcher.gui.labels import display_path
from launcher.gui.start.text import memory_needs_text, plan_title
from launcher.gui.translation import join_sentences, render, tr

if TYPE_CHECKING:
    from launcher.gui.start.queries import Computer, PlanResult
    from launcher.machine.gpu import Gpu, GpuProcess
    from launcher.machine.host import Host
    from launcher.models.situation import Situation

_MIB, _GIB, _GB = 2**20, 2**30, 10**9
_MOST_PROGRAMS = 4
"""Other programs whose GPU memory is listed."""
_DESKTOP_PROCESSES = frozenset(
    {
        "cinnamon",
        "dwm.exe",
        "explorer.exe",
        "gnome-shell",
        "hyprland",
        "kwin_wayland",
        "kwin_x11",
        "plasmashell",
        "sway",
        "xorg",
        "xwayland",
    }
)
"""Processes of the desktop itself, which the user should not close."""


class Fact(NamedTuple):
    """A fact about this computer: subject, value, secondary text and warnings."""

    subject: str
    value: str
    detail: str = ""
    warnings: tuple[str, ...] = ()


def list_facts(result: PlanResult) -> tuple[Fact, ...]:
    """Return the card's facts, each piece of advice with the fact that it concerns."""
    computer, situation = result.computer, result.situation
    gpus, host, advice = computer.machine.gpus, computer.machine.host, list(computer.advice)

    def take_advice(*words: str) -> tuple[str, ...]:
        """Remove and return the advice whose title contains one of `words`."""
        matching = [each for each in advice if any(word in each.title for word in words)]
        for each in matching:
            advice.remove(each)
        return tuple(render(join_messages(each.title, each.hint)) for each in matching)

    facts: list[Fact] = []
    power_advice = take_advice("battery")
    if result.request.described is not None and situation is not None:
        facts.append(_described_gpu_fact(situation))
    else:
        for number, gpu in enumerate(gpus, 1):
            subject = tr("GPU {number}", number=number) if len(gpus) > 1 else tr("GPU")
            warnings = take_advice(gpu.name)
            if computer.backend.gpu is gpu and computer.backend.better:
                warnings += (computer.backend.better,)
            facts.append(Fact(subject, gpu.name, _gpu_text(gpu), warnings))
        if not gpus:
            warnings = take_advice("GPU", "cannot be used")
            facts.append(Fact(tr("GPU"), tr("No usable GPU"), render(computer.machine.no_gpu_reason or ""), warnings))
        facts += _memory_users(computer, situation)
    facts.append(_host_fact(host))
    facts.append(_disk_fact(result, take_advice(str(computer.disk.folder))))
    facts.append(_system_fact(host, power_advice + take_advice("")))  # every title contains "": all that is left
    return tuple(facts)


def _gpu_text(gpu: Gpu) -> str:
    memory = tr("memory unknown")
    if gpu.memory_bytes is not None:
        memory = tr("{size:,.0f} MiB", size=gpu.memory_bytes / _MIB)
        if gpu.free_bytes is not None:
            memory = tr("{size:,.0f} MiB, {free:,.0f} free", size=gpu.memory_bytes / _MIB, free=gpu.free_bytes / _MIB)
    parts = [
        memory,
        tr("shares system memory") if gpu.unified else "",
        tr("driver {version}", version=gpu.driver) if gpu.driver else tr("driver unknown"),
        tr("{speed:,.0f} GB/s", speed=gpu.memory_bandwidth_gb_s) if gpu.memory_bandwidth_gb_s else "",
        tr("asleep") if gpu.asleep else "",
    ]
    return " · ".join(filter(None, parts))


def _described_gpu_fact(situation: Situation) -> Fact:
    size = tr("A GPU of {size:g} GiB", size=situation.nominal_gb)
    if situation.gpus > 1:
        size = tr("{count} GPUs of {size:g} GiB together", count=situation.gpus, size=situation.nominal_gb)
    elif situation.unified:
        size = tr("A GPU that shares {size:g} GiB with the system", size=situation.nominal_gb)
    return Fact(tr("GPU"), size, tr("{free:,} MiB free · described, not read", free=situation.free_mib))


def _memory_users(computer: Computer, situation: Situation | None) -> Iterator[Fact]:
    """Yield the users of GPU memory: our own servers, then other programs, the largest first."""
    own = () if situation is None or situation.backend == "cpu" else situation.own
    own_texts = []
    for each in own:
        if each.by_device is None:
            own_texts.append(tr("{name}, size unknown", name=each.model))
        elif each.mib:
            own_texts.append(tr("{name} {size:,.0f} MiB", name=each.model, size=each.mib))
    if own_texts:
        yield Fact(tr("Used by this server"), ", ".join(own_texts), tr("freed when you load another model"))
    own_pids = situation.own_pids if situation else frozenset()
    for gpu in computer.machine.gpus:
        activity = computer.activities.get(gpu.id)
        listed = []
        if activity is not None:
            listed = [each for each in activity.processes or () if each.used_bytes]
        processes = [each for each in listed if each.pid not in own_pids]
        own_bytes = sum(each.used_bytes or 0 for each in listed if each.pid in own_pids)
        if not own_bytes and len(computer.machine.gpus) == 1:  # the driver does not report it: use the estimate
            own_bytes = sum(each.mib for each in own) * _MIB
        others_bytes = max(0, (gpu.used_bytes or 0) - own_bytes)
        if not processes and not others_bytes:
            continue
        processes.sort(key=lambda each: -(each.used_bytes or 0))
        program_texts = [
            tr("{name} {size:,.0f} MiB", name=_process_name(each), size=(each.used_bytes or 0) / _MIB)
            for each in processes[:_MOST_PROGRAMS]
        ]
        used = tr("{size:,.0f} MiB", size=others_bytes / _MIB) if others_bytes else ""
        detail = ""
        closable = [each for each in processes if (each.name or "").lower() not in _DESKTOP_PROCESSES]
        if closable:
            largest = closable[0]
            detail = tr(
                "close {name} to free {size:,.0f} MiB",
                name=_process_name(largest),
                size=(largest.used_bytes or 0) / _MIB,
            )
        elif activity is not None and activity.processes is None:
            detail = render(activity.absent.get("processes", ""))
        detail = " · ".join(filter(None, (_reserved_text(gpu), detail)))
        subject = tr("Used by others")
        if len(computer.machine.gpus) > 1:
            subject = tr("Used by others, {name}", name=gpu.name)
        yield Fact(subject, ", ".join(program_texts) or used, detail)


def _reserved_text(gpu: Gpu) -> str:
    """Return the memory that the driver keeps to itself, as text; "" if there is none, or if it is not known."""
    if gpu.memory_bytes is None or gpu.free_bytes is None or gpu.used_bytes is None:
        return ""
    reserved = gpu.memory_bytes - gpu.free_bytes - gpu.used_bytes
    return tr("and {size:,.0f} MiB by the driver", size=reserved / _MIB) if reserved >= _MIB else ""


def _process_name(process: GpuProcess) -> str:
    return process.name or tr("process {pid}", pid=process.pid)


def _host_fact(host: Host) -> Fact:
    cores = tr("{count} cores", count=host.physical_cores) if host.physical_cores else tr("cores unknown")
    memory = tr("{size:,.1f} GiB", size=host.memory_bytes / _GIB)
    limit = tr("{count:g} usable", count=host.cpu_limit) if host.cpu_limit is not None else ""
    value = ", ".join(filter(None, (host.cpu or host.machine, cores, limit, memory)))
    detail = tr("{size:,.1f} GiB of memory available", size=host.available_bytes / _GIB)
    if host.memory_limit_bytes:
        detail += " · " + tr("limit of its control group")
    warnings = []
    if host.missing_features:
        lacking = ", ".join(host.missing_features).upper()
        warnings.append(tr("The CPU lacks {names}, which the built-in engine needs.", names=lacking))
    return Fact(tr("Computer"), value, detail, tuple(warnings))


def _disk_fact(result: PlanResult, advice: tuple[str, ...]) -> Fact:
    disk = result.computer.disk
    if disk.free_bytes is None:
        return Fact(tr("Disk for models"), tr("Free space unknown"), render(disk.absent.get("free_bytes", "")), advice)
    size = result.plans[0].file.size_bytes if result.plans else None
    if size and disk.free_bytes < size:
        short = tr("The recommended model needs {size:.1f} GB.", size=size / _GB)
        where = tr("Free disk space, or choose a folder on another disk in Settings.")
        advice = (join_sentences(short, where), *advice)
    free = tr("{free:,.1f} GB free", free=disk.free_bytes / _GB)
    return Fact(tr("Disk for models"), free, display_path(disk.folder), advice)


def _system_fact(host: Host, advice: tuple[str, ...]) -> Fact:
    system, _, kernel = host.system.partition(", ")
    inside = [
        tr("in WSL{version}", version=host.wsl) if host.wsl else "",
        tr("in {name}", name=host.container) if host.container else "",
        tr("on battery") if host.on_battery else "",
    ]
    return Fact(tr("System"), " ".join(filter(None, (system, *inside))), kernel, advice)


def format_report(result: PlanResult) -> str:
    """Return the card's content as text, for a report."""
    lines = []
    for fact in list_facts(result):
        lines.append(f"{fact.subject}: {fact.value}" + (f" ({fact.detail})" if fact.detail else ""))
        lines += [f"  ! {warning}" for warning in fact.warnings]
    for plan in result.plans[:1]:
        lines.append(tr("Recommended: {plan}. {needs}", plan=plan_title(plan), needs=memory_needs_text(plan, None)))
    return "\n".join(lines) + "\n"
