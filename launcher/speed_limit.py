"""The limit that the memory bandwidth of this computer's GPU sets to a server that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.base.errors import GeometryUnknown
from launcher.engine.build import BUILT_IN
from launcher.machine.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.engine.launch import Launch
    from launcher.machine.gpu import Gpu

_PLACING = frozenset(
    {"-dev", "--device", "-ngl", "--gpu-layers", "--n-gpu-layers", "-ot", "--override-tensor"}
    | {"-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"}
)
"""Arguments of llama-server that say where layers go."""


def speed_limit(launch: Launch) -> Reading:
    """Return the most tokens per second that passes of one token can reach, or why that is not known.

    It is bandwidth over the bytes that one pass reads (models.speed): every active weight is read once for each token.
    MTP may get past it, because one pass then yields several tokens. Asks the drivers, so it belongs on a thread.
    """
    from launcher.machine.gpus import find_gpus

    why = _not_by_one_gpu(launch)
    return Reading.unknown(why) if why else limit_on(launch, find_gpus().gpus)


def limit_on(launch: Launch, gpus: Sequence[Gpu]) -> Reading:
    """Return the limit on the GPUs that are here."""
    from launcher.models.geometry import geometry_of
    from launcher.models.memory import Setting
    from launcher.models.speed import bytes_per_token
    from launcher.models.weights import weights_of

    own = [gpu for gpu in gpus if gpu.unified is not True] or list(gpus[:1])
    if not own:
        return Reading.unknown("There is no GPU whose driver tells its memory bandwidth.")
    if len(own) > 1:
        return Reading.unknown("There are several GPUs, and how the model is split between them is not known.")
    gpu = own[0]
    if gpu.memory_bandwidth_gb_s is None:
        reason = gpu.absent.get("memory_bandwidth_gb_s", "The driver does not tell it.")
        return Reading.unknown(f"The memory bandwidth of the {gpu.name} is not known: {reason}")
    try:
        geometry = geometry_of(launch.header)
    except GeometryUnknown as error:
        return Reading.unknown(str(error.title))
    weights = weights_of(launch.header, geometry)
    read = bytes_per_token(geometry, weights, Setting(context=launch.context))
    if (
        gpu.memory_bytes is not None
        and weights.output + sum(b.rest + b.experts for b in weights.blocks) > gpu.memory_bytes
    ):
        return Reading.unknown("The weights are larger than the GPU's memory: some are read from the host.")
    return Reading(gpu.memory_bandwidth_gb_s * 1e9 / read)


def _not_by_one_gpu(launch: Launch) -> str:
    """Return why not all weights are read from one GPU's memory, as far as that is known before asking a driver."""
    from launcher.monitor.health_setup import has_gpu_backend

    options = launch.options
    if launch.build.name == BUILT_IN or has_gpu_backend(launch.build) is False:
        return "The engine computes on the processor, whose memory bandwidth no driver tells."
    if options.n_cpu_moe:
        return f"The experts of {options.n_cpu_moe} layers are read from the host's memory."
    if options.rpc:
        return "Other computers take part, and the bandwidth of their memory is not known."
    if any(word.split("=")[0] in _PLACING for word in options.extra):
        return "Arguments of your own say where layers go, so it is not known what is read from where."
    return ""
