"""Advice from facts: WSL and its settings file, cards without drivers, power."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.machine.advice import MachineAdvice, list_advice
from launcher.machine.disks import Disk
from launcher.machine.gpu import Gpu
from launcher.machine.gpus import UnusableCard
from launcher.machine.host import Host, read_host
from launcher.machine.machine import Machine
from launcher.machine.nvidia import LOST_IN_CONTAINER
from launcher.machine.wsl import WslSettings, parse_wslconfig, read_wsl_settings
from launcher.models.read_situation import make_situation
from tests.machine.conftest import write

GIB = 2**30
HOST = Host(
    kind="linux",
    system="Debian",
    machine="x86_64",
    cpu="a processor",
    physical_cores=8,
    cpu_features=(),
    memory_bytes=32 * GIB,
    available_bytes=30 * GIB,
    memory_limit_bytes=None,
    wsl=None,
    wsl_gpu=False,
    container=None,
    on_battery=False,
    display=None,
)
GPU = Gpu("nvidia", 0, "NVIDIA GeForce RTX 4070", "GPU-1", 12 * GIB, unified=False, asleep=False)
WSL2 = replace(HOST, wsl=2, wsl_gpu=True)
CONFIG = Path("/mnt/c/Users/me/.wslconfig")
NO_DRIVER = "No NVIDIA driver is installed."


def machine(host: Host = HOST, *gpus: Gpu, unusable_cards: tuple[UnusableCard, ...] = ()) -> Machine:
    return Machine(host, gpus, None if gpus else NO_DRIVER, {}, (), unusable_cards)


def settings(text: str) -> list[WslSettings]:
    return [parse_wslconfig(CONFIG, text)]


def titles(advice: tuple[MachineAdvice, ...]) -> list[str]:
    return [each.title for each in advice]


class TestSettingsFile:
    def test_valid_settings_are_recognised_in_any_case_and_section(self) -> None:
        text = "# mine\n[wsl2]\nMemory=12GB # half\nswap = 8GB\ngpuSupport=true\n[Experimental]\nsparseVhd=true\n"
        (found,) = settings(text)
        assert found.unknown == ()
        assert found.values == {
            "wsl2.memory": "12GB",
            "wsl2.swap": "8GB",
            "wsl2.gpusupport": "true",
            "experimental.sparsevhd": "true",
        }

    def test_unknown_lines_of_wslconfig_are_named(self) -> None:
        (found,) = settings("memory=4GB\n[wsl2]\n\ngpuMemory=8GB\nsparseVhd=true\n[gpu]\nmemory=1GB\n")
        assert [(each.line, each.name) for each in found.unknown] == [
            (1, "memory"),
            (4, "wsl2.gpuMemory"),
            (5, "wsl2.sparseVhd"),
            (7, "gpu.memory"),
        ]
        assert found.values == {}

    def test_the_first_of_two_equal_names_counts(self) -> None:
        assert settings("[wsl2]\nmemory=4GB\nMEMORY=8GB\n")[0].values == {"wsl2.memory": "4GB"}

    def test_wslconfig_of_every_windows_user_is_found(self, root: Path) -> None:
        write(root, {"mnt/c/Users/a/.wslconfig": b"\xef\xbb\xbf[wsl2]\r\nmemory=4GB\r\n", "mnt/c/Users/b/x": ""})
        write(root, {"mnt/c/Users/c/.wslconfig/not-a-file": ""})
        (found,) = read_wsl_settings(root)
        assert found.path == root / "mnt/c/Users/a/.wslconfig"
        assert found.values == {"wsl2.memory": "4GB"}
        assert read_wsl_settings(root / "elsewhere") == ()


class TestWsl:
    def test_an_unknown_setting_is_named(self) -> None:
        (advice,) = list_advice(machine(WSL2, GPU), settings("[wsl2]\ngpuMemory=8GB\n"))
        assert advice.title == f"{CONFIG} line 2: WSL has no setting wsl2.gpuMemory and ignores it."
        assert "does not limit the GPU's memory" in advice.hint

    def test_outside_wsl_2_there_is_no_advice_on_it(self) -> None:
        assert list_advice(machine(HOST, GPU), settings("[wsl2]\ngpuMemory=8GB\n")) == ()

    def test_wsl_1_has_no_gpu(self) -> None:
        (advice,) = list_advice(machine(replace(HOST, wsl=1)))
        assert advice.title == "This is WSL 1, which has no GPU."
        assert "--set-version" in advice.hint

    @pytest.mark.parametrize(
        ("host", "text", "title"),
        [
            (WSL2, "[wsl2]\ngpuSupport=false\n", f"{CONFIG} hides the GPU from WSL: gpuSupport is off."),
            (replace(WSL2, wsl_gpu=False), "", "WSL provides no GPU here: /dev/dxg is missing."),
            (WSL2, "", f"WSL offers a GPU, but none was found: {NO_DRIVER}"),
        ],
    )
    def test_a_missing_gpu_in_wsl_2_is_explained(self, host: Host, text: str, title: str) -> None:
        assert titles(list_advice(machine(host), settings(text))) == [title]

    def test_a_linux_driver_inside_wsl_is_named(self, root: Path) -> None:
        file = root / "usr/lib/x86_64-linux-gnu/libcuda.so.535.274.02"
        inside = {"proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2", "usr/lib/wsl/lib/libcuda.so.1.1": ""}
        write(root, inside)
        assert read_host(root).linux_driver is None
        write(root, {str(file.relative_to(root)): "", "usr/lib/x86_64-linux-gnu/libcuda.so.1": ""})
        host = read_host(root)
        assert host.linux_driver == str(file)
        for gpus in ((), (GPU,)):
            (found, *_) = list_advice(machine(host, *gpus))
            assert found.title.startswith(
                "NVIDIA's Linux driver is installed inside WSL and hides the driver of Windows"
            )
            assert f"dpkg -S {file}" in found.hint
        assert any("NVIDIA's Linux driver" in note for note in make_situation(machine(host)).notes)
        write(root, {"proc/sys/kernel/osrelease": "6.12.0-amd64"})
        assert read_host(root).linux_driver is None

    def test_a_memory_line_is_suggested_when_wsl_is_clearly_too_small(self) -> None:
        (advice,) = list_advice(machine(replace(WSL2, memory_bytes=8 * GIB - 2**28), GPU))
        assert "WSL has 7.8 GiB of memory" in advice.title
        assert "%UserProfile%\\.wslconfig, set memory=12GB under [wsl2]" in advice.hint
        assert "wsl --shutdown" in advice.hint

    def test_an_existing_memory_line_that_is_too_small_is_suggested_to_be_raised(self) -> None:
        small = replace(WSL2, memory_bytes=6 * GIB)
        (advice,) = list_advice(machine(small, GPU), settings("[wsl2]\nmemory=6GB\n"))
        assert f"In {CONFIG}, raise memory=6GB" in advice.hint
        (default,) = list_advice(machine(small, GPU), settings("[wsl2]\nmemory=0\n"))  # 0 stands for the default
        assert "set memory=8GB under [wsl2]" in default.hint
        (least,) = list_advice(machine(replace(small, memory_bytes=4 * GIB), GPU))
        assert "Choose a model that fits completely" in least.hint

    @pytest.mark.parametrize(
        ("memory_gib", "gpu"),
        [(12, GPU), (8, replace(GPU, memory_bytes=24 * GIB)), (8, replace(GPU, memory_bytes=None))],
        ids=["enough memory", "a GPU that holds it all", "a GPU of unknown memory"],
    )
    def test_otherwise_no_memory_line_is_suggested(self, memory_gib: int, gpu: Gpu) -> None:
        assert list_advice(machine(replace(WSL2, memory_bytes=memory_gib * GIB), gpu)) == ()

    def test_models_on_a_windows_drive_are_reported_as_slow_to_load(self) -> None:
        disk = Disk(Path("/mnt/d/models"), None, None, "9p")
        (advice,) = list_advice(machine(WSL2, GPU), (), [disk])
        assert advice.title.startswith("/mnt/d/models is on a Windows drive")
        assert list_advice(machine(HOST, GPU), (), [disk]) == ()


class TestCards:
    def test_a_container_that_lost_its_gpu_is_told_once_what_to_do(self) -> None:
        card = UnusableCard("nvidia", "NVIDIA AD102", "0000:01:00.0", "nvidia", LOST_IN_CONTAINER)
        lost = Machine(
            replace(HOST, container="docker"), (), LOST_IN_CONTAINER, {"nvidia": LOST_IN_CONTAINER}, (), (card,)
        )
        (found,) = list_advice(lost)
        assert found.title == LOST_IN_CONTAINER
        assert "--device /dev/nvidiactl" in found.hint
        assert LOST_IN_CONTAINER in make_situation(lost).notes

    @pytest.mark.parametrize(
        ("vendor", "kernel_driver", "container", "hint"),
        [
            ("nvidia", None, None, "apt-get install nvidia-driver"),
            ("nvidia", "nouveau", None, "apt-get install nvidia-driver"),
            ("nvidia", "nvidia", "docker", "Start the container with --gpus all"),
            ("nvidia", "nouveau", "docker", "there, not in the container. Install NVIDIA's driver and restart: "),
            ("nvidia", None, "podman", "The driver is the host's: "),
            ("amd", "radeon", "docker", "there, not in the container. Its kernel driver is amdgpu."),
            ("nvidia", "nvidia", None, "Restart the computer"),
            ("amd", None, "podman", "--device /dev/dri"),
            ("amd", "radeon", None, "amdgpu"),
            ("intel", None, None, "i915 or xe"),
            ("amd", "vfio-pci", "docker", "virtual machine"),
        ],
    )
    def test_a_card_without_a_driver_is_reported_with_the_way_to_get_one(
        self, vendor: str, kernel_driver: str | None, container: str | None, hint: str
    ) -> None:
        card = UnusableCard(vendor, "Some Card", "0000:01:00.0", kernel_driver, "No driver is loaded for it.")  # type: ignore[arg-type]
        (advice,) = list_advice(machine(replace(HOST, container=container), unusable_cards=(card,)))
        assert advice.title == "The Some Card was found but cannot be used: No driver is loaded for it."
        assert hint in advice.hint

    def test_a_sleeping_gpu_is_reported_with_the_way_to_wake_it(self) -> None:
        (advice,) = list_advice(machine(HOST, replace(GPU, asleep=True)))
        assert "asleep" in advice.title
        assert "--wake" in advice.hint

    def test_a_lost_gpu_is_reported(self) -> None:
        lost = replace(machine(HOST, GPU), failures=("NVIDIA GPU 1: The GPU stopped answering.",))
        assert titles(list_advice(lost)) == ["NVIDIA GPU 1: The GPU stopped answering."]


def test_battery_operation_is_reported() -> None:
    (advice,) = list_advice(machine(replace(HOST, on_battery=True), GPU))
    assert advice.hint.startswith("Plug it in")


def test_a_good_machine_gets_no_advice() -> None:
    assert list_advice(machine(HOST, GPU), (), [Disk(Path("/home/me"), GIB, GIB, "ext4")]) == ()


def test_disabled_resizable_bar_is_reported_with_a_hint() -> None:
    off = replace(GPU, vendor="amd", name="AMD Radeon RX 7900 XTX", small_bar=True)
    (advice,) = list_advice(machine(HOST, off))
    assert (
        advice.title
        == "Resizable BAR is off: the processor reaches only 256 MiB of the AMD Radeon RX 7900 XTX at once."
    )
    assert "Above 4G Decoding" in advice.hint
    assert list_advice(machine(HOST, replace(off, small_bar=False))) == ()
