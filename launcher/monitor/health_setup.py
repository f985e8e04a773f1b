"""What is known of a server from its start: its settings, its build, what its log says, what was published."""

import re
from collections.abc import Iterable
from pathlib import Path

from launcher.engine.build import BUILT_IN, Build
from launcher.engine.launch import Launch
from launcher.machine.gpus import GpuLook
from launcher.models.catalogue_load import load_catalogue
from launcher.monitor.health_event import Setup

_MIB = 2**20
_BUFFER = re.compile(r"(\w+) +(?:model|KV|RS|output|compute) buffer size = +([\d.]+) MiB")
_WEIGHTS = re.compile(r"load_tensors: +(\w+) model buffer size = +([\d.]+) MiB")
_DEVICE = re.compile(r"common_param: +- (\w+) +: ")
_GPU_LIBRARY = re.compile(r"(?:lib)?ggml-(?:cuda|vulkan|hip|sycl|musa|opencl)\b.*\.(?:so|dll)")
_STARTS = "llama_server: initializing"
_ON_PROCESSOR = ("-dev", "--device", "-ngl", "--gpu-layers", "--n-gpu-layers")


def setup_of(launch: Launch, engine_pid: int, log: Iterable[str], look: GpuLook) -> Setup:
    """Return what is known of a server that has just become ready. `log` are its lines, of earlier starts too."""
    lines = _since_start(list(log))
    weights = _sums(_WEIGHTS, lines)
    on_gpus = {name: mib for name, mib in weights.items() if not _is_host(name)}
    devices = {found[1] for line in lines if (found := _DEVICE.search(line))}
    gpu = look.gpu
    of_its_own = gpu is not None and gpu.unified is False
    one_gpu = of_its_own and look.alone and len(on_gpus) == 1
    on_purpose = any(word.split("=")[0] in _ON_PROCESSOR for word in launch.options.extra)
    return Setup(
        draft=launch.options.draft,
        slots=launch.options.slots,
        engine_pid=engine_pid,
        on_gpu=bool(on_gpus) if weights else None,
        expects_gpu=False if on_purpose else has_gpu_backend(launch.build),
        sees_gpu=any(not _is_host(name) for name in devices) if devices else None,
        weights_mib=sum(on_gpus.values()) if one_gpu else None,
        host_mib=sum(mib for name, mib in _sums(_BUFFER, lines).items() if _is_host(name)) if weights else None,
        vram_total_mib=gpu.memory_bytes / _MIB if gpu is not None and of_its_own and gpu.memory_bytes else None,
        usual_acceptance=published_acceptance(launch.options.model) if launch.options.draft else None,
    )


def has_gpu_backend(build: Build) -> bool | None:
    """Return whether a build brings a backend for GPUs, by the libraries beside its program; None where it has none.

    A build in one piece has no libraries: what it can do is then not known from outside.
    """
    if build.name == BUILT_IN:
        return False
    try:
        names = [path.name for path in Path(build.command[0]).resolve().parent.iterdir()]
    except OSError:
        return None
    if any(map(_GPU_LIBRARY.match, names)):
        return True
    return False if any("ggml-cpu" in name for name in names) else None


def published_acceptance(model: Path) -> float | None:
    """Return the lowest share of accepted drafts that was published for the model of this file, 0 to 1."""
    for entry in load_catalogue().models:
        files = [part.file for file in entry.files for part in file.parts] + [file.file for file in entry.files]
        if model.name in {Path(file).name for file in files}:
            shares = [each.acceptance for each in entry.measurements if each.acceptance and each.trust != "low"]
            return min(shares, default=None)
    return None


def _since_start(lines: list[str]) -> list[str]:
    starts = [index for index, line in enumerate(lines) if _STARTS in line]
    return lines[starts[-1] :] if starts else lines


def _sums(pattern: re.Pattern[str], lines: Iterable[str]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for line in lines:
        if found := pattern.search(line):
            sums[found[1]] = sums.get(found[1], 0.0) + float(found[2])
    return sums


def _is_host(name: str) -> bool:
    """CPU, CPU_Mapped, CPU_REPACK, CUDA_Host, Vulkan_Host, BLAS: all of them lie in host memory."""
    return name.startswith(("CPU", "BLAS", "AMX")) or name.endswith("_Host")
