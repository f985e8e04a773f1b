"""Facts of the host, read from proc trees like those of real computers."""

import os
import platform
import sys
from pathlib import Path

import psutil
import pytest

from launcher.machine.host import read_host
from tests.machine.conftest import write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a proc file system is Linux's")

DESKTOP = """\
processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD Ryzen 7 5800X 8-Core Processor
flags\t\t: fpu fma sse4_2 avx f16c avx2 bmi2
bugs\t\t: spectre_v1

processor\t: 1
model name\t: another
flags\t\t: fpu
"""
OLD_DESKTOP = """\
processor\t: 0
model name\t: Intel(R) Core(TM) i7-3770 CPU @ 3.40GHz
flags\t\t: fpu sse4_2 avx f16c
"""
BOARD = """\
processor\t: 0
Features\t: fp asimd evtstrm aes
CPU implementer\t: 0x41
"""


@pytest.fixture(autouse=True)
def outside_wsl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the folder trees of these tests decide whether this is WSL."""
    for name in ("WSL_DISTRO_NAME", "WSL_INTEROP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "sys" / "kernel").mkdir(parents=True)
    return folder


@pytest.fixture
def x86(monkeypatch: pytest.MonkeyPatch) -> None:
    """This computer counts as one with an x86-64 processor."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.usefixtures("x86")
class TestProcessor:
    def test_flags_of_the_first_processor_are_read(self, proc: Path) -> None:
        (proc / "cpuinfo").write_text(DESKTOP)
        host = read_host(proc.parent)
        assert (host.cpu, host.avx2) == ("AMD Ryzen 7 5800X 8-Core Processor", True)
        assert host.cpu_features == ("sse4_2", "avx", "avx2", "fma", "f16c", "bmi2")
        assert host.can_run_built_in_engine

    def test_avx_alone_is_not_avx2(self, proc: Path) -> None:
        (proc / "cpuinfo").write_text(OLD_DESKTOP)
        host = read_host(proc.parent)
        assert host.avx2 is False
        assert host.missing_features == ("avx2", "fma", "bmi2")
        assert not host.can_run_built_in_engine

    def test_a_virtual_processor_may_lack_extensions_beside_avx2(self, proc: Path) -> None:
        (proc / "cpuinfo").write_text(DESKTOP.replace(" fma", ""))
        host = read_host(proc.parent)
        assert (host.avx2, host.missing_features, host.can_run_built_in_engine) == (True, ("fma",), False)

    def test_a_missing_cpuinfo_leaves_avx2_unknown(self, proc: Path) -> None:
        host = read_host(proc.parent)
        assert host.avx2 is None
        assert host.absent["cpu_features"] == "The system does not list them."
        assert host.cpu == (platform.processor() or None)
        assert host.can_run_built_in_engine

    @pytest.mark.parametrize("content", ["", "\n\n", "no colon here", BOARD])
    def test_a_cpuinfo_without_flags_leaves_avx2_unknown(self, proc: Path, content: str) -> None:
        (proc / "cpuinfo").write_text(content)
        host = read_host(proc.parent)
        assert (host.cpu, host.avx2) == (None, None)

    def test_undecodable_bytes_are_read(self, proc: Path) -> None:
        (proc / "cpuinfo").write_bytes(b"model name\t: Odd\xff\nflags\t: avx2\n")
        assert read_host(proc.parent).avx2 is True

    def test_avx2_is_unknown_on_other_processors(self, proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        (proc / "cpuinfo").write_text(OLD_DESKTOP)
        host = read_host(proc.parent)
        assert host.avx2 is None
        assert host.can_run_built_in_engine


class TestWindowsSubsystem:
    @pytest.mark.parametrize(
        ("release", "version"),
        [
            ("5.15.153.1-microsoft-standard-WSL2\n", 2),
            ("4.19.104-microsoft-standard\n", 2),
            ("4.4.0-19041-Microsoft\n", 1),
            ("6.12.9+deb13-amd64\n", None),
            ("", None),
        ],
        ids=["WSL2", "early WSL2", "WSL1", "Debian", "empty"],
    )
    def test_wsl_is_recognised_by_the_kernel_release(self, proc: Path, release: str, version: int | None) -> None:
        (proc / "sys" / "kernel" / "osrelease").write_text(release)
        assert read_host(proc.parent).wsl == version

    def test_a_missing_release_is_not_wsl(self, proc: Path) -> None:
        host = read_host(proc.parent)
        assert host.wsl is None
        assert host.absent["wsl"] == "This is not the Windows Subsystem for Linux."

    def test_wsl_2_with_a_custom_kernel_is_recognised_by_its_files(
        self, proc: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(proc, {"sys/kernel/osrelease": "6.9.1-mine"})
        assert read_host(proc.parent).wsl is None
        monkeypatch.setenv("WSL_DISTRO_NAME", "Ubuntu")
        assert read_host(proc.parent).wsl == 2
        monkeypatch.delenv("WSL_DISTRO_NAME")  # a systemd service does not have it
        interop = "sys/fs/binfmt_misc/WSLInterop"
        write(proc, {interop: "enabled"})
        assert read_host(proc.parent).wsl == 2
        (proc / interop).unlink()
        write(proc.parent, {"dev/dxg": ""})
        host = read_host(proc.parent)
        assert (host.wsl, host.wsl_gpu) == (2, True)

    def test_a_container_on_wsl_2_is_both(self, proc: Path) -> None:
        write(proc, {"sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2"})
        write(proc.parent, {".dockerenv": ""})
        host = read_host(proc.parent)
        assert (host.wsl, host.container) == (2, "docker")


class TestContainer:
    @pytest.mark.parametrize(
        ("files", "name"),
        [
            ({".dockerenv": ""}, "docker"),
            ({"run/.containerenv": 'engine="podman-4.9"'}, "podman"),
            ({"run/systemd/container": "lxc"}, "lxc"),
            ({"run/systemd/container": "wsl"}, None),
            ({"proc/self/cgroup": "0::/system.slice/docker-0a1b.scope"}, "docker"),
            ({"proc/self/cgroup": "12:memory:/kubepods/besteffort/pod1/2"}, "kubernetes"),
            ({"proc/self/cgroup": "0::/user.slice/user-1000.slice/session-2.scope"}, None),
            ({}, None),
        ],
    )
    def test_a_container_is_recognised_by_its_files(
        self, root: Path, files: dict[str, str | bytes], name: str | None
    ) -> None:
        write(root, files)
        host = read_host(root)
        assert host.container == name
        assert ("container" in host.absent) == (name is None)


class TestMemoryLimit:
    MIB = 2**20

    def test_a_cgroup_v2_container_has_the_memory_of_its_limit(self, root: Path) -> None:
        write(
            root,
            {
                "proc/self/cgroup": "0::/",
                "sys/fs/cgroup/memory.max": str(512 * self.MIB),
                "sys/fs/cgroup/memory.current": str(300 * self.MIB),
                "sys/fs/cgroup/memory.stat": f"anon {100 * self.MIB}\ninactive_file {200 * self.MIB}",
            },
        )
        host = read_host(root)
        assert host.memory_bytes == host.memory_limit_bytes == 512 * self.MIB
        assert host.available_bytes == 412 * self.MIB  # the system gives back memory that only caches files

    def test_the_smallest_limit_of_nested_cgroups_counts(self, root: Path) -> None:
        write(
            root,
            {
                "proc/self/cgroup": "0::/user.slice/limited.scope",
                "sys/fs/cgroup/user.slice/memory.max": str(256 * self.MIB),
                "sys/fs/cgroup/user.slice/memory.current": str(16 * self.MIB),
                "sys/fs/cgroup/user.slice/limited.scope/memory.max": str(512 * self.MIB),
                "sys/fs/cgroup/user.slice/limited.scope/memory.current": str(16 * self.MIB),
            },
        )
        host = read_host(root)
        assert (host.memory_bytes, host.available_bytes) == (256 * self.MIB, 240 * self.MIB)

    def test_a_cgroup_v1_container_reads_its_own_group(self, root: Path) -> None:
        write(
            root,
            {
                "proc/self/cgroup": "4:memory:/docker/0a1b\n1:name=systemd:/docker/0a1b",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(512 * self.MIB),
                "sys/fs/cgroup/memory/memory.usage_in_bytes": str(112 * self.MIB),
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0",
            },
        )
        host = read_host(root)
        assert (host.memory_bytes, host.available_bytes) == (512 * self.MIB, 400 * self.MIB)

    @pytest.mark.parametrize("version", [1, 2])
    def test_files_that_were_read_several_times_are_not_used_memory(self, root: Path, version: int) -> None:
        if version == 1:
            folder, limit, usage = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            folder, limit, usage = "sys/fs/cgroup", "memory.max", "memory.current"
        sizes = {"anon": 64, "shmem": 16, "inactive_file": 8, "active_file": 2_500, "unevictable": 2}
        prefix = "total_" if version == 1 else ""
        write(
            root,
            {
                "proc/self/cgroup": "4:memory:/" if version == 1 else "0::/",
                f"{folder}/{limit}": str(5_120 * self.MIB),
                f"{folder}/{usage}": str(2_590 * self.MIB),
                f"{folder}/memory.stat": "\n".join(f"{prefix}{name} {mib * self.MIB}" for name, mib in sizes.items()),
            },
        )
        assert read_host(root).available_bytes == (5_120 - 2_590 + 2_508) * self.MIB

    def test_memory_above_which_programs_are_slowed_down_is_a_limit(self, root: Path) -> None:
        write(
            root,
            {
                "proc/self/cgroup": "0::/",
                "sys/fs/cgroup/memory.max": "max",
                "sys/fs/cgroup/memory.high": str(512 * self.MIB),
                "sys/fs/cgroup/memory.current": str(100 * self.MIB),
            },
        )
        host = read_host(root)
        assert (host.memory_limit_bytes, host.available_bytes) == (512 * self.MIB, 412 * self.MIB)

    def test_the_cache_of_zfs_is_not_used_memory(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        memory = psutil.virtual_memory()._replace(total=64 << 30, available=10 << 30)
        monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
        assert read_host(root).available_bytes == 10 << 30
        head = "13 1 0x01 123 33456 8812345678 912345678901234\nname                            type data\n"
        write(root, {"proc/spl/kstat/zfs/arcstats": f"{head}size 4 {30 << 30}\nc_min 4 {2 << 30}\nc_max 4 {32 << 30}"})
        assert read_host(root).available_bytes == 38 << 30

    @pytest.mark.parametrize("limit", ["max", "9223372036854771712", "", "odd"])
    def test_no_cgroup_limit_is_unlimited(self, root: Path, limit: str) -> None:
        write(root, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": limit})
        host = read_host(root)
        assert host.memory_limit_bytes is None
        assert host.absent["memory_limit_bytes"] == "No control group limits it."
        assert host.memory_bytes == psutil.virtual_memory().total


class TestProcessorLimit:
    """Control groups and affinity leave a process fewer CPUs than the computer has, which an engine counts."""

    @pytest.fixture(autouse=True)
    def many_processors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.cpu_count", lambda: 128)
        monkeypatch.setattr("psutil.cpu_count", lambda *, logical=True: 128 if logical else 64)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(128)), raising=False)

    @pytest.mark.parametrize(
        ("files", "limit", "threads"),
        [
            ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "400000 100000"}, 4, 4),
            ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5, 1),
            ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "9600000 100000"}, 96, None),
            ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None, None),
            ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "odd"}, None, None),
            (
                {
                    "proc/self/cgroup": "0::/kubepods/pod1/2",
                    "sys/fs/cgroup/kubepods/cpu.max": "max 100000",
                    "sys/fs/cgroup/kubepods/pod1/cpu.max": "350000 100000",
                    "sys/fs/cgroup/kubepods/pod1/2/cpu.max": "1600000 100000",
                },
                3.5,
                3,
            ),
            (
                {
                    "proc/self/cgroup": "4:cpu,cpuacct:/docker/0a1b\n3:memory:/docker/0a1b",
                    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "600000",
                    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                },
                6,
                6,
            ),
            (
                {
                    "proc/self/cgroup": "4:cpu:/",
                    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                },
                None,
                None,
            ),
            ({}, None, None),
        ],
        ids=[
            "four",
            "half of one",
            "more than cores",
            "no quota",
            "odd",
            "nested",
            "version 1",
            "no quota in v1",
            "none",
        ],
    )
    def test_the_smallest_quota_counts(
        self, root: Path, files: dict[str, str | bytes], limit: float | None, threads: int | None
    ) -> None:
        write(root, files)
        host = read_host(root)
        assert (host.cpu_limit, host.threads) == (limit, threads)
        assert ("cpu_limit" in host.absent) == (limit is None)

    @pytest.mark.skipif(sys.platform != "linux", reason="read on Linux only")
    def test_the_processors_of_a_cpuset_are_a_limit(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 64, 65})
        assert (read_host(root).cpu_limit, read_host(root).threads) == (4, 4)


BATTERY = {"type": "Battery", "status": "Discharging", "capacity": "61"}
MOUSE = BATTERY | {"scope": "Device"}


class TestPower:
    @pytest.mark.parametrize(
        ("supplies", "on_battery"),
        [
            ({"BAT0": BATTERY, "AC": {"type": "Mains", "online": "0"}}, True),
            ({"BAT0": BATTERY | {"status": "Charging"}, "AC": {"type": "Mains", "online": "1"}}, False),
            ({"BAT0": BATTERY, "ucsi-source-psy-USBC000:001": {"type": "USB", "online": "1"}}, False),
            ({"BAT0": BATTERY}, True),
            ({"hidpp_battery_0": MOUSE}, False),
            ({"AC": {"type": "Mains", "online": "1"}}, False),
        ],
        ids=["unplugged", "plugged", "plugged by USB", "no adapter", "a mouse", "no battery"],
    )
    def test_battery_and_mains_operation_are_recognised(
        self, root: Path, supplies: dict[str, dict[str, str | bytes]], on_battery: bool
    ) -> None:
        for name, files in supplies.items():
            write(root / "sys/class/power_supply" / name, files)
        assert read_host(root).on_battery is on_battery

    def test_a_computer_without_power_supply_files_is_unknown(self, root: Path) -> None:
        host = read_host(root)
        assert host.on_battery is None
        assert host.absent["on_battery"] == "The kernel lists no power supplies."


class TestDisplay:
    @pytest.mark.parametrize(
        ("wayland", "x11", "display"),
        [("wayland-0", ":0", "wayland-0"), ("", ":0", ":0"), ("", "", None)],
        ids=["both", "X11", "none"],
    )
    def test_wayland_goes_before_x11(
        self, monkeypatch: pytest.MonkeyPatch, proc: Path, wayland: str, x11: str, display: str | None
    ) -> None:
        monkeypatch.setenv("WAYLAND_DISPLAY", wayland)
        monkeypatch.setenv("DISPLAY", x11)
        assert read_host(proc.parent).display == display


class TestThisComputer:
    def test_memory_and_system_are_read(self) -> None:
        host = read_host()
        total = psutil.virtual_memory().total
        assert host.memory_bytes == min(total, host.memory_limit_bytes or total)
        assert 2**20 < host.available_bytes < host.memory_bytes
        assert platform.release() in host.system
        assert host.machine == os.uname().machine

    def test_avx2_follows_the_flags_of_the_kernel(self) -> None:
        if platform.machine() == "x86_64":
            assert read_host().avx2 == ("avx2" in Path("/proc/cpuinfo").read_text().split())
        else:
            assert read_host().avx2 is None
