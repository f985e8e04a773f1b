"""Whose the memory of the watched GPU is: the engine's, other programs', and how much there is."""

from launcher.machine.gpus import GpuLook
from launcher.machine.reading import Reading

NAMES = ("engine_vram_mib", "others_vram_mib", "vram_total_mib")
_MIB = 2**20
_NOT_ASKED = "Not asked yet: the engine is asked about every 2 s once it is ready."
_SHARED = "This GPU has no memory of its own: it shares the host's."
_SEVERAL = "Windows counts a program's memory over all GPUs together."
_NOT_LISTED = "The driver does not list the engine among the GPU's programs."
_NOT_TOLD = "The driver does not tell the memory of single programs."


def not_asked() -> dict[str, Reading]:
    """Return NAMES without values, as it is before the first look at a server."""
    return dict.fromkeys(NAMES, Reading.unknown(_NOT_ASKED))


def whose(look: GpuLook, engine_pid: int | None, used: Reading) -> dict[str, Reading]:
    """Return the readings of NAMES, in MiB. `used` is what all programs have of the GPU together.

    A driver tells the memory of single programs on Linux only; on Windows the system's own counters do, not for each
    GPU. In a container the numbers of programs are the host's, so that none is known to be the engine.
    """
    ours = _engines(look, engine_pid)
    if ours.value is None or used.value is None:
        others = Reading.unknown((ours.absent if ours.value is None else used.absent) or _NOT_TOLD)
    else:
        others = Reading(max(0.0, used.value - ours.value))
    return {"engine_vram_mib": ours, "others_vram_mib": others, "vram_total_mib": _total(look)}


def _engines(look: GpuLook, engine_pid: int | None) -> Reading:
    counted = look.readings.get("engine_vram_mib")
    if counted is not None and (counted.value is None or look.alone):
        return counted
    if counted is not None:
        return Reading.unknown(_SEVERAL)
    processes = look.activity.processes
    if processes is None:
        return Reading.unknown(look.activity.absent.get("processes") or _NOT_TOLD)
    entry = next((each for each in processes if each.pid == engine_pid and each.name is not None), None)
    if entry is None:
        return Reading.unknown(_NOT_LISTED)
    return Reading.unknown(_NOT_TOLD) if entry.used_bytes is None else Reading(entry.used_bytes / _MIB)


def _total(look: GpuLook) -> Reading:
    gpu = look.gpu
    if gpu is None:
        return Reading.unknown(look.activity.absent.get("processes") or "There is no GPU.")
    if gpu.unified:
        return Reading.unknown(_SHARED)
    if gpu.memory_bytes is None:
        return Reading.unknown(gpu.absent.get("memory_bytes") or "The driver does not tell its size.")
    return Reading(gpu.memory_bytes / _MIB)
