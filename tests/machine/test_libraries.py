"""System libraries: a real list, looked up by the real dynamic linker."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.machine.libraries import Library, install_line, known_libraries

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
def test_missing_is_what_the_linker_does_not_find_and_the_purpose_needs(tmp_path: Path) -> None:
    base, machine = ("__init__.py", "errors.py", "paths.py"), ("__init__.py", "libraries.py")
    for name in ("__init__.py", *(f"base/{each}" for each in base), *(f"machine/{each}" for each in machine)):
        (tmp_path / "launcher" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "launcher" / name, tmp_path / "launcher" / name)
    resources = tmp_path / "launcher" / "_data" / "resources"
    resources.mkdir(parents=True)
    (resources / "system-libraries.txt").write_text(LIST)
    said = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=20
    )
    assert json.loads(said.stdout) == {
        "engine": ["libno-such-engine.so.9"],
        "window": ["libno-such-window.so.1"],
        "test": [],
    }


def test_the_shipped_list_names_what_engine_and_window_need() -> None:
    libraries = known_libraries()
    assert {"engine", "window"} <= {library.purpose for library in libraries}
    assert all(".so." in library.soname and library.package.startswith("lib") for library in libraries)
    assert len({(library.purpose, library.soname) for library in libraries}) == len(libraries)


def test_a_package_is_installed_once_though_it_brings_two_libraries() -> None:
    two = (Library("window", "liba.so.1", "libone"), Library("window", "libb.so.1", "libone"))
    other = Library("engine", "libc.so.1", "libother")
    assert install_line((*two, other)) == "sudo apt-get install --no-install-recommends libone libother"
