"""The choice of an engine build, for a table of computers."""

import platform
import re

import pytest

from launcher.engine.builds.assets import BuildName, TargetComputer, choose_builds, describe_computer
from launcher.engine.builds.install_errors import EngineUnfit
from launcher.machine.gpu import Gpu
from launcher.machine.machine import read_machine

TAG = "b11434"
NAMES = [
    f"llama-{TAG}-bin-win-cpu-x64.zip",
    f"llama-{TAG}-bin-win-cpu-arm64.zip",
    f"llama-{TAG}-bin-win-cuda-12.4-x64.zip",
    f"llama-{TAG}-bin-win-cuda-13.4-x64.zip",
    f"llama-{TAG}-bin-win-cuda-13.4-arm64.zip",
    f"llama-{TAG}-bin-win-vulkan-x64.zip",
    f"llama-{TAG}-bin-win-vulkan-arm64.zip",
    f"llama-{TAG}-bin-win-rocm-10.0-x64.zip",
    f"llama-{TAG}-bin-win-sycl-x64.zip",
    f"llama-{TAG}-bin-win-openvino-2026.4.1-x64.zip",
    f"llama-{TAG}-bin-win-opencl-adreno-arm64.zip",
    "cudart-llama-bin-win-cuda-12.4-x64.zip",
    "cudart-llama-bin-win-cuda-13.4-x64.zip",
    "cudart-llama-bin-win-cuda-13.4-arm64.zip",
    f"llama-{TAG}-bin-ubuntu-x64.tar.gz",
    f"llama-{TAG}-bin-ubuntu-arm64.tar.gz",
    f"llama-{TAG}-bin-ubuntu-s390x.tar.gz",
    f"llama-{TAG}-bin-ubuntu-vulkan-x64.tar.gz",
    f"llama-{TAG}-bin-ubuntu-vulkan-arm64.tar.gz",
    f"llama-{TAG}-bin-ubuntu-cuda-12.8-x64.tar.gz",
    f"llama-{TAG}-bin-ubuntu-cuda-13.4-x64.tar.gz",
    f"llama-{TAG}-bin-ubuntu-cuda-13.4-arm64.tar.gz",
    f"llama-{TAG}-bin-ubuntu-rocm-10.0-x64.tar.gz",
    f"llama-{TAG}-bin-ubuntu-sycl-fp32-x64.tar.gz",
    f"llama-{TAG}-bin-ubuntu-sycl-fp16-x64.tar.gz",
    f"llama-{TAG}-bin-ubuntu-openvino-2026.4.1-x64.tar.gz",
    f"llama-{TAG}-bin-linux-arm64-snapdragon.tar.gz",
    f"cudart-llama-{TAG}-bin-ubuntu-cuda-12.8-x64.tar.gz",
    f"cudart-llama-{TAG}-bin-ubuntu-cuda-13.4-x64.tar.gz",
    f"cudart-llama-{TAG}-bin-ubuntu-cuda-13.4-arm64.tar.gz",
    f"llama-{TAG}-bin-macos-arm64.tar.gz",
    f"llama-{TAG}-bin-macos-x64.tar.gz",
    f"llama-{TAG}-bin-android-arm64.tar.gz",
    f"llama-{TAG}-xcframework.zip",
    f"llama-{TAG}-ui.tar.gz",
]
"""The files of build b11434, as its release workflow names them."""


def nvidia(name: str, capability: tuple[int, int] | None, driver: str | None, cuda: str | None = None) -> Gpu:
    return Gpu("nvidia", 0, name, "GPU-1", compute_capability=capability, driver=driver, cuda_version=cuda)


ADA = nvidia("GeForce RTX 4090", (8, 9), "580.65", "13.0")
TURING = nvidia("GeForce RTX 2080", (7, 5), "580.65", "13.0")
TURING_NEW = nvidia("GeForce RTX 2080", (7, 5), "590.10", "13.4")
TURING_UNKNOWN = nvidia("GeForce RTX 2080", (7, 5), "590.10")
HOPPER = nvidia("H100", (9, 0), "580.65", "13.0")
PASCAL = nvidia("GeForce GTX 1080", (6, 1), "580.65", "13.0")
KEPLER = nvidia("GeForce GTX 780", (3, 5), "470.10", "11.4")
BLACKWELL = nvidia("GeForce RTX 5090", (12, 0), "575.10", "12.9")
OLD_DRIVER = nvidia("GeForce RTX 4090", (8, 9), "535.10", "12.2")
OLDER_DRIVER = nvidia("GeForce RTX 4090", (8, 9), "515.10", "11.7")
OLD_VOLTA = nvidia("V100", (7, 0), "535.10", "12.2")
UNKNOWN_CAPABILITY = nvidia("NVIDIA GPU", None, "580.65")
RADEON = Gpu("amd", 0, "Radeon RX 7900", "0000:03:00.0")
ARC = Gpu("intel", 0, "Arc B580", "0000:03:00.0")

NEW, MIDDLE, OLD, NONE = (2, 41), (2, 36), (2, 31), None

TABLE = [
    # system, machine, glibc, GPU: the builds in their order
    ("linux", "x86_64", NEW, ADA, "cuda-13.4 cuda-12.8 vulkan cpu"),
    ("linux", "x86_64", NEW, BLACKWELL, "cuda-12.8 vulkan cpu"),  # driver 575 is too old for CUDA 13
    ("linux", "x86_64", NEW, TURING, "cuda-12.8 vulkan cpu"),  # compiled by the driver, which knows CUDA 13.0 only
    ("linux", "x86_64", NEW, TURING_NEW, "cuda-13.4 cuda-12.8 vulkan cpu"),
    ("linux", "x86_64", NEW, TURING_UNKNOWN, "cuda-13.4 cuda-12.8 vulkan cpu"),
    ("linux", "x86_64", NEW, HOPPER, "cuda-12.8 vulkan cpu"),
    ("linux", "x86_64", NEW, PASCAL, "cuda-12.8 vulkan cpu"),
    ("linux", "x86_64", NEW, KEPLER, "vulkan cpu"),
    ("linux", "x86_64", NEW, OLD_DRIVER, "cuda-12.8 vulkan cpu"),
    # Its driver, for CUDA 12.2, would have to compile code of CUDA 12.8.
    ("linux", "x86_64", NEW, OLD_VOLTA, "vulkan cpu"),
    ("linux", "x86_64", NEW, OLDER_DRIVER, "vulkan cpu"),
    ("linux", "x86_64", NEW, UNKNOWN_CAPABILITY, "vulkan cpu"),
    ("linux", "x86_64", NEW, RADEON, "vulkan cpu"),
    ("linux", "x86_64", NEW, ARC, "vulkan cpu"),
    ("linux", "x86_64", NEW, None, "cpu"),
    ("linux", "x86_64", MIDDLE, ADA, "vulkan cpu"),  # Debian 12: the CUDA builds need glibc 2.39
    ("linux", "x86_64", MIDDLE, None, "cpu"),
    # The version of glibc is unknown, so the self-test decides.
    ("linux", "x86_64", NONE, ADA, "cuda-13.4 cuda-12.8 vulkan cpu"),
    ("linux", "aarch64", NEW, ADA, "cuda-13.4 vulkan cpu"),
    ("linux", "aarch64", NEW, RADEON, "vulkan cpu"),
    ("linux", "aarch64", NEW, None, "cpu"),
    ("windows", "AMD64", NONE, ADA, "cuda-13.4 cuda-12.4 vulkan cpu"),
    ("windows", "AMD64", NONE, BLACKWELL, "cuda-12.4 vulkan cpu"),
    ("windows", "AMD64", NONE, PASCAL, "cuda-12.4 vulkan cpu"),
    ("windows", "AMD64", NONE, RADEON, "vulkan cpu"),
    ("windows", "AMD64", NONE, None, "cpu"),
    ("windows", "ARM64", NONE, ADA, "cuda-13.4 vulkan cpu"),
    ("windows", "ARM64", NONE, None, "cpu"),
    ("darwin", "arm64", NONE, None, "metal"),
    ("darwin", "x86_64", NONE, None, "cpu"),
]


@pytest.mark.parametrize(("system", "machine", "glibc", "gpu", "builds"), TABLE)
def test_builds_for_a_computer_are_ordered(system, machine, glibc, gpu, builds) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    choices = choose_builds(TargetComputer(system, machine, glibc, (gpu,) if gpu else ()), NAMES)
    assert " ".join(choice.build.label for choice in choices) == builds
    for choice in choices:
        assert all(reason.endswith(".") for reason in choice.reasons)
        assert choice.reasons, "each choice says why"
        assert (choice.build.runtime in NAMES) == (choice.build.backend == "cuda")


@pytest.mark.parametrize(
    ("system", "machine", "glibc"),
    [
        ("linux", "x86_64", OLD),
        ("linux", "aarch64", MIDDLE),
        ("linux", "s390x", NEW),
        ("linux", "i686", NEW),
        ("windows", "x86", NONE),
        ("other", "x86_64", NONE),
    ],
)
def test_a_computer_without_a_build_is_reported(system, machine, glibc) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    with pytest.raises(EngineUnfit, match=r"no build for|needs glibc") as caught:
        choose_builds(TargetComputer(system, machine, glibc), NAMES)
    assert "engine add PATH" in caught.value.hint


@pytest.mark.parametrize(
    ("gpu", "glibc", "reason"),
    [
        (PASCAL, NEW, "CUDA 13.4 needs compute capability 7.5; the GeForce GTX 1080 has 6.1."),
        (OLD_DRIVER, NEW, "CUDA 13.4 needs driver 580; the GeForce RTX 4090 has 535.10."),
        (ADA, MIDDLE, "The CUDA 13.4 build needs glibc 2.39; this system has 2.36."),
        (TURING, NEW, "driver 580.65 can do that up to CUDA 13.0 only."),
        (
            UNKNOWN_CAPABILITY,
            NEW,
            "CUDA 13.4 was skipped: the compute capability or driver of the NVIDIA GPU is unknown.",
        ),
        (ADA, NEW, "CUDA 13.4 runs on the GeForce RTX 4090 with driver 580.65."),
        (RADEON, NEW, "Vulkan runs on the Radeon RX 7900 with its current driver."),
        (None, NEW, "No GPU found, so the engine runs on the CPU."),
    ],
)
def test_the_first_choice_names_the_skipped_builds_and_why(
    gpu: Gpu | None, glibc: tuple[int, int], reason: str
) -> None:
    first = choose_builds(TargetComputer("linux", "x86_64", glibc, (gpu,) if gpu else ()), NAMES)[0]
    assert reason in " ".join(first.reasons)


def test_a_requested_backend_is_the_only_choice() -> None:
    target = TargetComputer("linux", "x86_64", NEW, (ADA,))
    for backend, taken in [
        ("cuda", "cuda-13.4 cuda-12.8"),
        ("cuda-12", "cuda-12.8"),
        ("cuda-13.4", "cuda-13.4"),
        ("vulkan", "vulkan"),
        ("cpu", "cpu"),
        ("rocm", "rocm-10.0"),
        ("sycl-fp16", "sycl-fp16"),
        ("openvino", "openvino-2026.4.1"),
    ]:
        assert " ".join(choice.build.label for choice in choose_builds(target, NAMES, backend)) == taken
    (rocm,) = choose_builds(target, NAMES, "rocm")
    assert rocm.reasons == ("The archive does not contain the ROCm libraries. Install ROCm 10.0.",)


@pytest.mark.parametrize(
    ("gpu", "backend", "why"),
    [
        (RADEON, "cuda", "needs an NVIDIA GPU"),
        (PASCAL, "cuda-13", "needs compute capability 7.5"),
        (ADA, "metal", "has no metal build for Linux x64"),
        (ADA, "cuda-1", "has no cuda-1 build"),
    ],
)
def test_a_backend_that_cannot_run_here_is_refused_with_the_reason(gpu: Gpu, backend: str, why: str) -> None:
    with pytest.raises(EngineUnfit, match=re.escape(why)):
        choose_builds(TargetComputer("linux", "x86_64", NEW, (gpu,)), NAMES, backend)


@pytest.mark.parametrize(
    ("backend", "gpu"), [("cuda", ADA), ("rocm", RADEON), ("vulkan", ADA), ("sycl", None), ("cpu", None)]
)
def test_the_first_gpu_that_a_backend_supports_counts(backend: str, gpu: Gpu | None) -> None:
    both = TargetComputer("linux", "x86_64", NEW, (ADA, RADEON))
    assert choose_builds(both, NAMES, backend)[0].gpu == gpu
    turned = TargetComputer("linux", "x86_64", NEW, (RADEON, ADA))
    assert choose_builds(turned, NAMES, "cuda")[0].gpu == ADA


def test_a_cuda_build_without_its_runtime_is_never_used() -> None:
    target = TargetComputer("linux", "x86_64", NEW, (ADA,))
    without = [name for name in NAMES if not name.startswith(f"cudart-llama-{TAG}-bin-ubuntu-cuda-13.4-x64")]
    first = choose_builds(target, without)[0]
    assert first.build.label == "cuda-12.8"
    assert "lacks the runtime cudart-llama-b11434-bin-ubuntu-cuda-13.4-x64.tar.gz" in first.reasons[0]


def test_toolkit_versions_are_compared_as_numbers() -> None:
    names = [name.replace("13.4", "13.10") for name in NAMES] + NAMES
    driver = nvidia("GeForce RTX 4090", (8, 9), "600.10", "14.0")
    choices = choose_builds(TargetComputer("linux", "x86_64", NEW, (driver,)), names)
    assert [choice.build.label for choice in choices][:2] == ["cuda-13.10", "cuda-13.4"]


def test_names_of_builds_are_parsed() -> None:
    read = {name: BuildName.parse(name) for name in NAMES}
    unread = [name for name, build in read.items() if build is None and not name.startswith("cudart")]
    assert [re.sub(f"llama-{TAG}-", "", name) for name in unread] == [
        "bin-win-opencl-adreno-arm64.zip",
        "bin-ubuntu-s390x.tar.gz",
        "bin-linux-arm64-snapdragon.tar.gz",
        "bin-android-arm64.tar.gz",
        "xcframework.zip",
        "ui.tar.gz",
    ]
    cuda = read[f"llama-{TAG}-bin-ubuntu-cuda-13.4-x64.tar.gz"]
    assert cuda is not None
    assert (cuda.tag, cuda.system, cuda.backend, cuda.toolkit, cuda.arch) == (TAG, "linux", "cuda", (13, 4), "x64")
    assert cuda.folder == "b11434-cuda-13.4-x64"


@pytest.mark.parametrize("name", ["", "llama-b1-bin-ubuntu-x64.tar.gz.part", "llama-bx-bin-win-cpu-x64.zip", "../x"])
def test_other_names_are_not_builds(name: str) -> None:
    assert BuildName.parse(name) is None


def test_the_c_library_of_this_computer_is_known() -> None:
    name, version = platform.libc_ver()
    expected = tuple(map(int, version.split(".")[:2])) if name == "glibc" else None
    assert describe_computer(read_machine()).glibc == expected
