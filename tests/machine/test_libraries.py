"""System libraries: a real list, looked up by the real dynamic linker."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.machine import libraries
from launcher.machine.libraries import SystemLibrary, find_missing_dependency, install_command, known_libraries

ROOT = Path(__file__).parents[2]
LIST = """\
# needed for, soname, package

engine libc.so.6 libc6
engine libno-such-engine.so.9 libno-engine9
window libno-such-window.so.1 libno-window1
"""
LOOK = (
    "import json; from launcher.machine.libraries import missing_libraries as m; "
    "print(json.dumps({p: [l.soname for l in m(p)] for p in ('engine', 'window', 'test')}))"
)


@pytest.mark.skipif(sys.platform != "linux", reason="outside Linux nothing is looked for")
def test_libraries_that_the_linker_does_not_find_are_missing(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "launcher" / "base", tmp_path / "launcher" / "base")
    for name in ("__init__.py", "machine/__init__.py", "machine/libraries.py"):
        (tmp_path / "launcher" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "launcher" / name, tmp_path / "launcher" / name)
    resources = tmp_path / "launcher" / "_data" / "resources"
    resources.mkdir(parents=True)
    (resources / "system-libraries.txt").write_text(LIST)
    readings = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(readings.stdout) == {
        "engine": ["libno-such-engine.so.9"],
        "window": ["libno-such-window.so.1"],
        "test": [],
    }


def test_the_shipped_list_names_libraries_of_engine_and_window() -> None:
    listed = known_libraries()
    assert {"engine", "window"} <= {library.purpose for library in listed}
    assert all(".so." in library.soname and library.package.startswith("lib") for library in listed)
    assert all(library.arch_package for library in listed)
    assert len({(library.purpose, library.soname) for library in listed}) == len(listed)


TWO = (SystemLibrary("window", "liba.so.1", "libone", "one"), SystemLibrary("window", "libb.so.1", "libone", "one"))
THREE = (*TWO, SystemLibrary("engine", "libc.so.1", "libother", "other"))
DEBIAN = "sudo apt-get install --no-install-recommends libone libother"
PROVIDED = "'liba.so.1()(64bit)' 'libb.so.1()(64bit)' 'libc.so.1()(64bit)'"


@pytest.mark.parametrize(
    ("release", "line"),
    [
        ("NAME=Debian\nID=debian\n", DEBIAN),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'\n", DEBIAN),
        ("ID=fedora\n# ID=debian\n", f"sudo dnf install {PROVIDED}"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', f"sudo dnf install {PROVIDED}"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n', f"sudo zypper install {PROVIDED}"),
        ("ID=arch\n", "sudo pacman -S --needed one other"),
        ("ID=manjaro\nID_LIKE=arch\n", "sudo pacman -S --needed one other"),
        ("ID=void\n", "the packages with liba.so.1, libb.so.1, libc.so.1 (on Debian libone libother)"),
        ("", "the packages with liba.so.1, libb.so.1, libc.so.1 (on Debian libone libother)"),
    ],
)
def test_the_install_command_is_that_of_the_distribution_and_names_each_package_once(
    tmp_path: Path, release: str, line: str
) -> None:
    if release:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc" / "os-release").write_text(release)
    assert install_command(THREE, tmp_path) == line


def test_os_release_in_usr_is_read_if_etc_has_none(tmp_path: Path) -> None:
    (tmp_path / "usr" / "lib").mkdir(parents=True)
    (tmp_path / "usr" / "lib" / "os-release").write_text("ID=arch\n")
    assert install_command(TWO, tmp_path) == "sudo pacman -S --needed one"


def test_no_package_is_guessed_for_an_unlisted_library(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text("ID=debian\n")
    unlisted = SystemLibrary("window", "libz.so.9")
    assert install_command((unlisted,), tmp_path) == "the packages with libz.so.9"
    assert install_command((unlisted, *TWO), tmp_path) == (
        "the packages with libz.so.9, liba.so.1, libb.so.1 (on Debian libone)"
    )


def build_library(folder: Path, name: str, *flags: str) -> Path:
    """A real shared library."""
    path = folder / name
    command = ["cc", "-shared", "-fPIC", "-o", str(path), "-x", "c", "-", "-x", "none", f"-Wl,-soname,{name}", *flags]
    subprocess.run(command, input="int here(void) { return 1; }", text=True, check=True)
    return path


def test_libraries_that_a_plugin_cannot_load_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = build_library(tmp_path, "libno-such.so.3")
    plugin = build_library(tmp_path, "libqnone.so", "-Wl,--no-as-needed", str(needed))
    needed.unlink()
    assert find_missing_dependency(plugin) == SystemLibrary("window", "libno-such.so.3")
    assert find_missing_dependency(build_library(tmp_path, "libqwhole.so")) is None
    assert find_missing_dependency(tmp_path / "libqabsent.so") is None
    listed = SystemLibrary("xcb", "libno-such.so.3", "libno-such3", "no-such")
    monkeypatch.setattr(libraries, "known_libraries", lambda: (*TWO, listed))
    assert find_missing_dependency(plugin) == listed
