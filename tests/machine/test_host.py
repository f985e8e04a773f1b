"""Facts of the host, read from proc trees like those of real computers."""

import os
import platform
import sys
from pathlib import Path

import psutil
import pytest

from launcher.machine.host import read_host

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
    def test_the_first_processor_speaks_for_all(self, proc: Path) -> None:
        (proc / "cpuinfo").write_text(DESKTOP)
        host = read_host(proc.parent)
        assert (host.cpu, host.avx2) == ("AMD Ryzen 7 5800X 8-Core Processor", True)
        assert host.runs_built_in_engine

    def test_avx_alone_is_not_avx2(self, proc: Path) -> None:
        (proc / "cpuinfo").write_text(OLD_DESKTOP)
        host = read_host(proc.parent)
        assert host.avx2 is False
        assert not host.runs_built_in_engine

    def test_without_cpuinfo_nothing_is_claimed(self, proc: Path) -> None:
        host = read_host(proc.parent)
        assert host.avx2 is None
        assert host.cpu == (platform.processor() or None)
        assert host.runs_built_in_engine

    @pytest.mark.parametrize("content", ["", "\n\n", "no colon here", BOARD])
    def test_a_cpuinfo_without_flags_claims_nothing(self, proc: Path, content: str) -> None:
        (proc / "cpuinfo").write_text(content)
        host = read_host(proc.parent)
        assert (host.cpu, host.avx2) == (None, None)

    def test_strange_bytes_do_no_harm(self, proc: Path) -> None:
        (proc / "cpuinfo").write_bytes(b"model name\t: Odd\xff\nflags\t: avx2\n")
        assert read_host(proc.parent).avx2 is True

    def test_avx2_means_nothing_elsewhere(self, proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        (proc / "cpuinfo").write_text(OLD_DESKTOP)
        host = read_host(proc.parent)
        assert host.avx2 is None
        assert host.runs_built_in_engine


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
    def test_the_kernels_release_tells(self, proc: Path, release: str, version: int | None) -> None:
        (proc / "sys" / "kernel" / "osrelease").write_text(release)
        assert read_host(proc.parent).wsl == version

    def test_without_a_release_there_is_none(self, proc: Path) -> None:
        assert read_host(proc.parent).wsl is None


class TestDisplay:
    @pytest.mark.parametrize(
        ("wayland", "x11", "display"),
        [("wayland-0", ":0", "wayland-0"), ("", ":0", ":0"), ("", "", None)],
        ids=["both", "X11", "none"],
    )
    def test_wayland_comes_before_x11(
        self, monkeypatch: pytest.MonkeyPatch, proc: Path, wayland: str, x11: str, display: str | None
    ) -> None:
        monkeypatch.setenv("WAYLAND_DISPLAY", wayland)
        monkeypatch.setenv("DISPLAY", x11)
        assert read_host(proc.parent).display == display


class TestThisComputer:
    def test_it_has_memory_and_a_system(self) -> None:
        host = read_host()
        assert host.memory_bytes == psutil.virtual_memory().total > 2**20
        assert platform.release() in host.system
        assert host.machine == os.uname().machine

    def test_avx2_is_what_the_kernel_lists(self) -> None:
        if platform.machine() == "x86_64":
            assert read_host().avx2 == ("avx2" in Path("/proc/cpuinfo").read_text().split())
        else:
            assert read_host().avx2 is None
