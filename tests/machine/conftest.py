"""Fixtures of the machine's tests: a stand-in for the NVIDIA driver, and trees like those of real kernels."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STUB = Path(__file__).parents[1] / "fakes" / "nvml_stub.c"
SONAME = "libnvidia-ml.so.1"


def compile_driver(folder: Path, *flags: str, source: Path = STUB) -> Path:
    """Compile a stub of NVML into `folder`, and return it."""
    cc = shutil.which("cc")
    assert cc, "a C compiler is needed: ./test installs one"
    command = [cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}", *flags]
    subprocess.run([*command, "-o", folder / SONAME, source], check=True, timeout=60)
    return folder


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library of a present driver."""
    return compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def old_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library that lacks functions."""
    return compile_driver(tmp_path_factory.mktemp("old"), "-DOLD_DRIVER")


@pytest.fixture(scope="session")
def partitioned_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library of a driver whose cards may be partitioned."""
    return compile_driver(tmp_path_factory.mktemp("partitioned"), source=STUB.with_name("nvml_mig.c"))


@pytest.fixture(scope="session")
def no_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library that cannot be loaded, which hides a real one of this computer."""
    folder = tmp_path_factory.mktemp("none")
    (folder / SONAME).touch()
    return folder


def ask_driver(script: str, folder: Path | None, root: Path, **answers: object) -> Any:  # noqa: ANN401 -- any JSON value
    """Run `script` in a process that finds NVML in `folder`, with STUB_ variables for `answers`; return its JSON.

    pynvml keeps the library for the life of its process, so each case has a process of its own.
    """
    library = folder / SONAME if folder else Path("none")
    variables = {f"STUB_{name}": str(answer) for name, answer in answers.items()}
    variables["STUB_ROOT"] = str(root)
    variables["LD_LIBRARY_PATH"] = str(folder or "")
    variables["STUB_LIBRARY"] = str(library) if library.exists() and library.stat().st_size else ""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder in the place of /."""
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def write(root: Path, files: dict[str, str | bytes]) -> None:
    """Write files below `root` by their paths."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())


def pci_card(
    root: Path,
    address: str,
    ids: tuple[int, int],
    driver: str | None,
    files: dict[str, str | bytes] | None = None,
    *,
    status: str = "active",
    control: str = "on",
    kind: str = "0x030000",
) -> Path:
    """Put a card on the PCI bus below `root`, with files of its driver, and return its folder."""
    folder = root / "sys/bus/pci/devices" / address
    base = {
        "vendor": f"0x{ids[0]:04x}",
        "device": f"0x{ids[1]:04x}",
        "class": kind,
        "power/runtime_status": status,
        "power/control": control,
    }
    write(folder, base | (files or {}))
    if driver is not None:
        module = root / "sys/bus/pci/drivers" / driver
        module.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(module)
    return folder
