"""The choice of an engine build for a GPU."""

from dataclasses import replace

import pytest

from launcher.machine.backend import choose_backend
from launcher.machine.gpu import ASLEEP, Gpu


def nvidia(capability: tuple[int, int] | None, driver: str | None) -> Gpu:
    gpu = Gpu("nvidia", 0, "NVIDIA Card", "GPU-1", compute_capability=capability, driver=driver)
    return gpu.with_reasons(ASLEEP)


@pytest.mark.parametrize(
    ("capability", "driver", "backend", "better"),
    [
        ((8, 9), "580.65.06", "cuda-13", None),
        ((7, 5), "580", "cuda-13", None),
        ((12, 0), "595.10", "cuda-13", None),
        ((8, 9), "579.99", "cuda-12", "driver 580 or newer"),
        ((7, 0), "580.65.06", "cuda-12", None),  # Volta, which CUDA 13 no longer supports
        ((6, 1), "525.60.13", "cuda-12", None),
        ((5, 0), "535.1", "cuda-12", None),
        ((8, 6), "524.99", "vulkan", "driver 525 or newer"),
        ((3, 5), "470.1", "vulkan", None),
        (None, "580.65.06", "vulkan", None),
        ((8, 9), None, "vulkan", None),
        ((8, 9), "odd", "vulkan", None),
    ],
)
def test_an_nvidia_gpu_gets_the_newest_cuda_that_it_supports(
    capability: tuple[int, int] | None, driver: str | None, backend: str, better: str | None
) -> None:
    choice = choose_backend([nvidia(capability, driver)], "Linux")
    assert choice.backend == backend
    assert (choice.better is None) == (better is None)
    assert better is None or better in str(choice.better)
    assert choice.reason.endswith(".")


def test_no_build_is_recommended_for_a_sleeping_gpu() -> None:
    choice = choose_backend([replace(nvidia(None, "580.65.06"), asleep=True)], "Linux")
    assert choice.backend is None
    assert "is asleep" in choice.reason
    assert "doctor --wake" in str(choice.better)


def test_the_first_gpu_determines_the_backend() -> None:
    arc, card = Gpu("intel", 0, "Intel Arc", "0000:03:00.0"), nvidia((8, 9), "580.65.06")
    assert choose_backend([card, arc], "Linux").gpu == card
    assert choose_backend([arc, card], "Windows").backend == "vulkan"


def test_the_backend_without_a_gpu_is_cpu_or_metal_on_a_mac() -> None:
    assert choose_backend([], "Windows").backend == "cpu"
    assert choose_backend([], "Darwin").backend == "metal"


@pytest.mark.parametrize(
    ("name", "memory_gb", "reason", "better"),
    [
        ("AMD Radeon RX 7900 XTX", 24, "85 (Windows) against 63 tokens/s", None),
        ("AMD Radeon RX 9070 XT", 16, "63 against 5 tokens/s", "#26663"),
        ("AMD Instinct MI210", 64, "with its current driver.", "--backend rocm"),
        ("AMD Radeon RX 6800", 16, "with its current driver.", None),
    ],
)
def test_amd_cards_get_vulkan_with_the_measured_reason(
    name: str, memory_gb: int, reason: str, better: str | None
) -> None:
    chosen = choose_backend([Gpu("amd", 0, name, "0000:03:00.0", memory_gb * 2**30)], "Linux")
    assert chosen.backend == "vulkan"
    assert reason in chosen.reason
    assert (better in (chosen.better or "")) if better else chosen.better is None
