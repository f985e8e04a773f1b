"""The highest speed of a running server that the GPU's memory bandwidth allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.base.errors import GeometryUnknown
from launcher.base.messages import message
from launcher.engine.builds.build import BUILT_IN
from launcher.machine.gpu import Reading
from launcher.machine.gpus import find_gpus
from launcher.models.geometry import read_geometry
from launcher.models.memory import PlanSettings
from launcher.models.speed import bytes_per_token
from launcher.models.weights import read_weights
from launcher.monitor.health_watch import has_gpu_backend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.engine.server.launch import Launch
    from launcher.machine.gpu import Gpu

_PLACEMENT_FLAGS = frozenset(
    {"-dev", "--device", "-ngl", "--gpu-layers", "--n-gpu-layers", "-ot", "--override-tensor"}
    | {"-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"}
)
"""Arguments of llama-server that place layers on devices."""


def find_speed_limit(launch: Launch) -> Reading:
    """Return the most tokens per second without MTP, or why that is unknown.

    The limit is the memory bandwidth divided by the bytes that one pass reads (models.speed): every active weight is
    read once for each token. MTP may exceed it, because one pass then yields several tokens. Blocks while it queries
    the drivers.
    """
    why = _explain_no_limit(launch)
    return Reading.unknown(why) if why else limit_on_gpus(launch, find_gpus().gpus)


def limit_on_gpus(launch: Launch, gpus: Sequence[Gpu]) -> Reading:
    """Return the limit of a server that runs on these `gpus`."""
    cards = [gpu for gpu in gpus if gpu.unified is not True] or list(gpus[:1])
    if not cards:
        return Reading.unknown(message("No driver here reports a GPU, so the memory bandwidth is unknown."))
    if len(cards) > 1:
        return Reading.unknown(message("There are several GPUs, and the split of the model between them is unknown."))
    gpu = cards[0]
    if gpu.memory_bandwidth_gb_s is None:
        reason = gpu.absent.get("memory_bandwidth_gb_s", message("The driver does not report it."))
        return Reading.unknown(
            message("The memory bandwidth of the {name} is unknown: {reason}", name=gpu.name, reason=reason)
        )
    try:
        geometry = read_geometry(launch.header)
    except GeometryUnknown as error:
        return Reading.unknown(str(error.title))
    weights = read_weights(launch.header, geometry)
    total_bytes = weights.output + weights.sum_rest() + weights.sum_experts()
    if gpu.memory_bytes is not None and total_bytes > gpu.memory_bytes:
        return Reading.unknown(message("The weights are larger than the GPU's memory: some are read from the host."))
    bytes_read = bytes_per_token(geometry, weights, PlanSettings(context=launch.context))
    return Reading(gpu.memory_bandwidth_gb_s * 1e9 / bytes_read)


def _explain_no_limit(launch: Launch) -> str:
    """Return why the limit is unknown, as far as the launch alone tells; empty if it may be known."""
    options = launch.options
    if launch.build.name == BUILT_IN or has_gpu_backend(launch.build) is False:
        return message("The engine runs on the CPU, and no driver reports the bandwidth of system memory.")
    if options.n_cpu_moe:
        return message(
            "The experts of {n_cpu_moe} layers are read from the host's memory.", n_cpu_moe=options.n_cpu_moe
        )
    if options.rpc:
        return message("Other computers run part of the model, and their memory bandwidth is unknown.")
    if any(word.split("=")[0] in _PLACEMENT_FLAGS for word in options.extra):
        return message("Your extra arguments place layers by hand, so the amount read from each memory is unknown.")
    return ""
