"""Contents of the Windows setup program: CPython's embeddable files, and Windows wheels without unused files."""

import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path, PurePosixPath

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from linux.contents import licence  # noqa: E402 -- installer/linux/contents.py

PACKAGES = PurePosixPath("Lib/site-packages")
PATH_FILE = "{library}.zip\r\n.\r\nLib\\site-packages\r\nimport site\r\n"
COMMAND = '@"%~dp0python.exe" -m launcher %*\r\n'

RUNTIME = ("msvcp140.dll", "msvcp140_1.dll", "msvcp140_2.dll", "vcomp140.dll", "vcruntime140.dll", "vcruntime140_1.dll")
"""Microsoft's C++ and OpenMP runtime: one set beside python.exe, for the engine and for Qt."""

_QT_MODULES = ("Core", "Gui", "Network", "OpenGL", "OpenGLWidgets", "Svg", "Widgets")
QT = frozenset(
    {
        "__init__.py",
        "_config.py",
        "_git_pyside_version.py",
        "pyside6.abi3.dll",
        "plugins/iconengines/qsvgicon.dll",
        "plugins/imageformats/qico.dll",
        "plugins/imageformats/qjpeg.dll",
        "plugins/imageformats/qsvg.dll",
        "plugins/platforms/qoffscreen.dll",
        "plugins/platforms/qwindows.dll",
        "plugins/styles/qmodernwindowsstyle.dll",
        "translations/qtbase_zh_CN.qm",
        *(f"Qt6{module}.dll" for module in _QT_MODULES),
        *(f"Qt{module}.pyd" for module in _QT_MODULES),
    }
)
"""All that is kept of PySide6: what the window and pyqtgraph import, and the plugins that these load."""

_DROPPED_FOLDERS = re.compile(
    r"(^|/)(tests|examples|include|cmake)/|^numpy/(distutils|f2py|_pyinstaller|typing/tests)/|^shiboken6/(lib|doc)/"
)
_DROPPED_FILES = re.compile(r"\.(pyi|pxd|pyx|lib|h|c|cpp|a)$|/RECORD$|/sboms/|^(shiboken6|PySide6)/[^/]*140[^/]*\.dll$")


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel in the setup program."""

    name: str
    version: str
    licence: str
    wheel: str
    sha256: str


class BuildError(Exception):
    """The setup program cannot be built; the text is the reason."""


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_kept(name: str) -> bool:
    """Whether the setup program contains a file of a wheel, by its path from site-packages."""
    if name.startswith("PySide6/"):
        inside = name.removeprefix("PySide6/")
        return inside in QT or (inside.startswith("support/") and name.endswith(".py"))
    return not (_DROPPED_FOLDERS.search(name) or _DROPPED_FILES.search(name))


def locked_python() -> tuple[str, dict[str, str]]:
    """Return the name of the library of the Python in python.lock, such as "python311", and the hashes of its files."""
    lines = (HERE / "python.lock").read_text().splitlines()
    files = {name: digest for digest, name in (line.split("  ") for line in lines if not line.startswith("#"))}
    [library] = (name.removesuffix(".dll") for name in files if re.fullmatch(r"python3\d+\.dll", name))
    return library, files


def minor_version(library: str) -> str:
    """Return "3.11" of "python311"."""
    return f"3.{library.removeprefix('python3')}"


def unpack_python(archive: Path, tree: Path) -> str:
    """Unpack CPython's embeddable files from an archive that holds them in one folder, and check their hashes.

    Returns the version in their resources. Raises BuildError if a file of python.lock is missing or differs.
    """
    library, wanted = locked_python()
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist() if name.rpartition("/")[2] == f"{library}.dll"]
        if len(names) != 1:
            raise BuildError(
                f"{archive} does not hold one copy of CPython {minor_version(library)}, which python.lock names."
            )
        folder = names[0].removesuffix(f"{library}.dll")
        for name, digest in wanted.items():
            data = opened.read(folder + name) if folder + name in opened.NameToInfo else b""
            if hashlib.sha256(data).hexdigest() != digest:
                raise BuildError(f"{name} in {archive} is not the file that python.lock names.")
            if name != f"{library}._pth":
                (tree / name).write_bytes(data)
    (tree / f"{library}._pth").write_bytes(PATH_FILE.format(library=library).encode())
    return product_version((tree / f"{library}.dll").read_bytes())


def product_version(image: bytes) -> str:
    """Return the version in the resources of a Windows program or library."""
    name = "ProductVersion\0".encode("utf-16-le")
    at = image.find(name)
    if at < 0:
        raise BuildError("This file does not tell its version.")
    text = image[at + len(name) : at + len(name) + 64].decode("utf-16-le", "replace").lstrip("\0")
    return text.partition("\0")[0]


def unpack_wheel(wheel: Path, tree: Path) -> tuple[Package, list[str]]:
    """Unpack the files of a wheel that are kept; return the package, and the names of the files that were left out."""
    left_out = []
    with zipfile.ZipFile(wheel) as opened:
        for name in sorted(opened.namelist()):
            target = name if not re.match(r"[^/]+\.data/", name) else name.split("/", 2)[2]
            runtime = target.removeprefix("Scripts/")
            if wheel.name.startswith("msvc_runtime-") and runtime in RUNTIME and runtime != target:
                _write(tree / runtime, opened.read(name))
            elif name.endswith("/"):
                continue
            elif target == name and is_kept(name):
                _write(tree / PACKAGES / name, opened.read(name))
            else:
                left_out.append(name)
        [about] = (name for name in opened.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        fields = Parser().parsestr(opened.read(about).decode("utf-8"), headersonly=True)
    package = Package(fields["Name"], fields["Version"], licence(fields), wheel.name, sha256(wheel))
    return package, left_out


def add_own_files(tree: Path) -> None:
    """Add the command, the icon, and the licences that no wheel brings."""
    (tree / "mtp-launcher.cmd").write_bytes(COMMAND.encode())
    shutil.copy(HERE / "mtp-launcher.ico", tree)
    licences = tree / "licences"
    licences.mkdir()
    (tree / "LICENSE.txt").rename(licences / "Python.txt")
    shutil.copy(HERE.parents[1] / "LICENSE", tree / "LICENSE.txt")
    for path in sorted((HERE / "licences").iterdir()):
        shutil.copy(path, licences)


def compile_modules(tree: Path, compiler: Path) -> None:
    """Compile every module, so that the first start need not, and two builds give the same bytes.

    `compiler` is a Python of the same minor version as the tree's. Raises BuildError for a module that cannot be
    compiled.
    """
    command = [str(compiler), "-I", "-S", str(HERE / "compile_all.py"), str(tree), str(tree / PACKAGES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"A module cannot be compiled: {done.stderr.strip()}")


def settle(tree: Path, epoch_s: int) -> list[Path]:
    """Give all files one date and return them, sorted by their names as bytes."""
    files = sorted(
        (path for path in tree.rglob("*") if path.is_file()), key=lambda path: path.relative_to(tree).as_posix()
    )
    for path in files:
        path.chmod(0o644)
        os.utime(path, (epoch_s, epoch_s))
    return files


def check_libraries(files: list[Path], left_out: list[str]) -> None:
    """Raise BuildError if a kept file needs a library that was left out."""
    kept = {path.name.lower() for path in files}
    dropped = {PurePosixPath(name).name.lower() for name in left_out if name.endswith((".dll", ".pyd"))} - kept
    for path in files:
        if path.suffix.lower() in (".dll", ".pyd", ".exe"):
            for library in imported(path.read_bytes()):
                if library.lower() in dropped:
                    raise BuildError(f"{path.name} wants {library}, which is left out.")


def imported(image: bytes) -> Iterator[str]:
    """Yield the names of the libraries that a 64-bit Windows program or library imports (PE format: import table)."""
    header = struct.unpack_from("<I", image, 0x3C)[0]
    count, optional_size = struct.unpack_from("<H12xH", image, header + 6)
    optional = header + 24
    if image[header : header + 4] != b"PE\0\0" or struct.unpack_from("<H", image, optional)[0] != 0x20B:
        raise BuildError("This is no 64-bit Windows program.")
    sections = [struct.unpack_from("<IIII", image, optional + optional_size + 40 * each + 8) for each in range(count)]

    def at(address: int) -> int:
        for size, start, raw_size, raw in sections:
            if start <= address < start + max(size, raw_size):
                return raw + address - start
        raise BuildError("An address in this program leads nowhere.")

    directory = struct.unpack_from("<I", image, optional + 112 + 8)[0]
    entry = at(directory) if directory else None
    while entry is not None and (name := struct.unpack_from("<I", image, entry + 12)[0]):
        start = at(name)
        yield image[start : image.index(b"\0", start)].decode("ascii")
        entry += 20


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
