"""What the card of this computer says, each piece of advice beside what it is about: pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.gui.labels import shown_path
from launcher.gui.sentences import say
from launcher.gui.start.said import needs_of, plan_title
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.gui.start.looking import Computer, Found
    from launcher.machine.gpu import Gpu
    from launcher.machine.host import Host
    from launcher.models.situation import Situation

_MIB, _GIB, _GB = 2**20, 2**30, 10**9
_OTHERS_SHOWN = 4
_DESKTOP = frozenset(
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
"""What shows the desktop itself: nobody closes that."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing about this computer: what it is about, what it is, the rest in a lighter line, and warnings."""

    subject: str
    what: str
    more: str = ""
    warnings: tuple[str, ...] = ()


def facts_of(found: Found) -> tuple[Fact, ...]:
    """Return what the card of this computer shows, each piece of advice beside what it is about."""
    computer, described = found.computer, found.situation if found.question.described is not None else None
    host, disk, advice = computer.machine.host, computer.disk, list(computer.advice)

    def taken(*words: str) -> tuple[str, ...]:
        """Take what is about one of `words` out of the advice."""
        mine = [each for each in advice if any(word in each.title for word in words)]
        for each in mine:
            advice.remove(each)
        return tuple(say(f"{each.title} {each.hint}".strip()) for each in mine)

    facts: list[Fact] = []
    power = taken("battery")
    if described is not None:
        facts.append(_described(described))
    for number, gpu in enumerate(computer.machine.gpus if described is None else (), 1):
        subject = tr("GPU {number}", number=number) if len(computer.machine.gpus) > 1 else tr("GPU")
        better = computer.backend.better if computer.backend.gpu is gpu else None
        facts.append(Fact(subject, gpu.name, _gpu(gpu), taken(gpu.name) + ((better,) if better else ())))
    if described is None and not computer.machine.gpus:
        told = taken("GPU", "cannot be used")
        facts.append(Fact(tr("GPU"), tr("None that can be used"), say(computer.machine.no_gpu_because or ""), told))
    facts += [] if described is not None else _others(computer)
    facts.append(_host(host))
    facts.append(_disk(found, taken(str(disk.folder))))
    facts.append(_system(host, power + taken("")))
    return tuple(facts)


def _gpu(gpu: Gpu) -> str:
    memory = tr("memory unknown")
    if gpu.memory_bytes is not None:
        memory = tr("{size:,.0f} MiB", size=gpu.memory_bytes / _MIB)
        if gpu.free_bytes is not None:
            memory = tr("{size:,.0f} MiB, {free:,.0f} free", size=gpu.memory_bytes / _MIB, free=gpu.free_bytes / _MIB)
    parts = [
        memory,
        tr("shares the computer's memory") if gpu.unified else "",
        tr("driver {version}", version=gpu.driver) if gpu.driver else tr("driver unknown"),
        tr("{speed:,.0f} GB/s", speed=gpu.memory_bandwidth_gb_s) if gpu.memory_bandwidth_gb_s else "",
        tr("asleep") if gpu.asleep else "",
    ]
    return " · ".join(filter(None, parts))


def _described(situation: Situation) -> Fact:
    size = tr("A GPU of {size:g} GiB", size=situation.nominal_gb)
    return Fact(tr("GPU"), size, tr("{free:,} MiB free · described, not read", free=situation.free_mib))


def _others(computer: Computer) -> Iterator[Fact]:
    """Who uses GPU memory now, the largest first."""
    for gpu in computer.machine.gpus:
        activity = computer.activities.get(gpu.id)
        processes = [each for each in (activity.processes or () if activity else ()) if each.used_bytes]
        if not processes and not gpu.used_bytes:
            continue
        processes.sort(key=lambda each: -(each.used_bytes or 0))
        named = [
            tr(
                "{name} {size:,.0f} MiB",
                name=each.name or tr("process {pid}", pid=each.pid),
                size=(each.used_bytes or 0) / _MIB,
            )
            for each in processes[:_OTHERS_SHOWN]
        ]
        used = tr("{size:,.0f} MiB", size=gpu.used_bytes / _MIB) if gpu.used_bytes else ""
        more = ""
        closable = [each for each in processes if (each.name or "").lower() not in _DESKTOP]
        if closable:
            largest = closable[0]
            more = tr(
                "closing {name} would free {size:,.0f} MiB",
                name=largest.name or tr("process {pid}", pid=largest.pid),
                size=(largest.used_bytes or 0) / _MIB,
            )
        elif activity is not None and activity.processes is None:
            more = say(activity.absent.get("processes", ""))
        subject = tr("Used by others")
        if len(computer.machine.gpus) > 1:
            subject = tr("Used by others, {name}", name=gpu.name)
        yield Fact(subject, ", ".join(named) or used, more)


def _host(host: Host) -> Fact:
    cores = tr("{count} cores", count=host.physical_cores) if host.physical_cores else tr("cores unknown")
    memory = tr("{size:,.1f} GiB", size=host.memory_bytes / _GIB)
    what = ", ".join((host.cpu or host.machine, cores, memory))
    more = tr("{size:,.1f} GiB of memory available", size=host.available_bytes / _GIB)
    if host.memory_limit_bytes:
        more += " · " + tr("all that its control group allows")
    lacking = ", ".join(host.lacks).upper()
    warning = tr("The processor lacks {names}, which the built-in engine needs.", names=lacking)
    return Fact(tr("Computer"), what, more, (warning,) if lacking else ())


def _disk(found: Found, advice: tuple[str, ...]) -> Fact:
    disk = found.computer.disk
    if disk.free_bytes is None:
        return Fact(tr("Disk for models"), tr("Free space unknown"), say(disk.absent.get("free_bytes", "")), advice)
    size = found.plans[0].file.size_bytes if found.plans else None
    if size and disk.free_bytes < size:
        short = tr("The recommended model needs {size:.1f} GB.", size=size / _GB)
        where = tr("Make room, or set MTP_LAUNCHER_MODELS to a folder on another disk.")
        advice = (f"{short} {where}", *advice)
    free = tr("{free:,.1f} GB free", free=disk.free_bytes / _GB)
    return Fact(tr("Disk for models"), free, shown_path(disk.folder), advice)


def _system(host: Host, advice: tuple[str, ...]) -> Fact:
    system, _, kernel = host.system.partition(", ")
    inside = [
        tr("in WSL{version}", version=host.wsl) if host.wsl else "",
        tr("in {name}", name=host.container) if host.container else "",
        tr("on battery") if host.on_battery else "",
    ]
    return Fact(tr("System"), " ".join(filter(None, (system, *inside))), kernel, advice)


def report_of(found: Found) -> str:
    """Return what the card shows as text, for a report."""
    lines = []
    for fact in facts_of(found):
        lines.append(f"{fact.subject}: {fact.what}" + (f" ({fact.more})" if fact.more else ""))
        lines += [f"  ! {warning}" for warning in fact.warnings]
    for plan in found.plans[:1]:
        lines.append(tr("Recommended: {plan}. {needs}", plan=plan_title(plan), needs=needs_of(plan, None)))
    return "\n".join(lines) + "\n"
