"""Speed limit of a running server by the GPU's memory bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.base.errors import GeometryUnknown
from launcher.base.messages import message
from launcher.engine.builds.build import BUILT_IN
from launcher.machine.gpu import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.engine.server.launch import Launch
    from launcher.machine.gpu import Gpu

_PLACING = frozenset(
    {"-dev", "--device", "-ngl", "--gpu-layers", "--n-gpu-layers", "-ot", "--override-tensor"}
    | {"-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"}
)
"""Arguments of llama-server that place layers on devices."""


def speed_limit(launch: Launch) -> Reading:
    """Return the most tokens per second that passes of one token can reach, or why that is unknown.

    It is bandwidth over the bytes that one pass reads (models.speed): every active weight is read once for each token.
    MTP may exceed it, because one pass then yields several tokens. Asks the drivers, so it belongs on a thread.
    """
    from launcher.machine.gpus import find_gpus

    why = _not_by_one_gpu(launch)
    return Reading.unknown(why) if why else limit_on(launch, find_gpus().gpus)


def limit_on(launch: Launch, gpus: Sequence[Gpu]) -> Reading:
    """Return the limit on the given GPUs."""
    from launcher.models.geometry import read_geometry
    from launcher.models.memory import PlanSettings
    from launcher.models.speed import bytes_per_token
    from launcher.models.weights import read_weights

    own = [gpu for gpu in gpus if gpu.unified is not True] or list(gpus[:1])
    if not own:
        return Reading.unknown(message("No GPU driver here reports its memory bandwidth."))
    if len(own) > 1:
        return Reading.unknown(message("There are several GPUs, and the split of the model between them is unknown."))
    gpu = own[0]
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
    read = bytes_per_token(geometry, weights, PlanSettings(context=launch.context))
    if (
        gpu.memory_bytes is not None
        and weights.output + sum(b.rest + b.experts for b in weights.blocks) > gpu.memory_bytes
    ):
        return Reading.unknown(message("The weights are larger than the GPU's memory: some are read from the host."))
    return Reading(gpu.memory_bandwidth_gb_s * 1e9 / read)


def _not_by_one_gpu(launch: Launch) -> str:
    """Return why not all weights are read from one GPU's memory, before any driver is asked. Empty if they may be."""
    from launcher.monitor.health_watch import has_gpu_backend

    options = launch.options
    if launch.build.name == BUILT_IN or has_gpu_backend(launch.build) is False:
        return message("The engine runs on the CPU, and no driver reports the bandwidth of system memory.")
    if options.n_cpu_moe:
        return message(
            "The experts of {n_cpu_moe} layers are read from the host's memory.", n_cpu_moe=options.n_cpu_moe
        )
    if options.rpc:
        return message("Other computers run part of the model, and their memory bandwidth is unknown.")
    if any(word.split("=")[0] in _PLACING for word in options.extra):
        return message("Your extra arguments place layers by hand, so the amount read from each memory is unknown.")
    return ""
