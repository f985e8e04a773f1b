"""Removes from a tree what the program does not use, and lists the system libraries that the rest needs.

python prune.py TREE            deletes; TREE holds bin/, lib/python3.X/ and site-packages/
python prune.py --needs TREE    prints the Depends field of a Debian package, by the names in dependencies.txt
"""

import argparse
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

STDLIB = """
    config-* distutils ensurepip idlelib lib2to3 pydoc_data site-packages test tkinter turtle.py turtledemo venv
    EXTERNALLY-MANAGED
"""
EXTENSIONS = "_crypt _curses _curses_panel _dbm _gdbm _tkinter nis ossaudiodev readline _test* _xxtest*"
"""Extension modules of the standard library that the program does not import, and that need libraries of their own."""

QT_MODULES = "QtCore QtDBus QtGui QtNetwork QtOpenGL QtOpenGLWidgets QtSvg QtTest QtWidgets"
"""The launcher's, and those that pyqtgraph asks for."""
QT_PLUGINS = """
    iconengines/*  imageformats/libqgif.so imageformats/libqico.so imageformats/libqjpeg.so imageformats/libqsvg.so
    imageformats/libqwebp.so  platforminputcontexts/libcompose* platforminputcontexts/libibus*
    platforms/libqoffscreen.so platforms/libqwayland* platforms/libqxcb.so  platformthemes/libqxdgdesktopportal.so
    wayland-decoration-client/*  wayland-graphics-integration-client/libqt-plugin-wayland-egl.so
    wayland-shell-integration/libxdg-shell.so  xcbglintegrations/*
"""
SITE = """
    bin example.py numpy/distutils numpy/f2py numpy/typing/tests pyqtgraph/examples
    **/tests **/*.pyi **/*.pxd **/*.pyx **/*.h **/*.a **/__pycache__
    *.dist-info/RECORD *.dist-info/INSTALLER *.dist-info/REQUESTED *.dist-info/direct_url.json *.dist-info/sboms
"""
STRIPPED = """
    xllamacpp/*.so  aiohttp/**/*.so frozenlist/*.so multidict/*.so propcache/*.so  cryptography/**/*.so
"""
"""Packages with debugging symbols, which take 80 of the engine's 106 MB, 8 of aiohttp's and its helpers' 9, 3 of 14."""
# Not numpy's OpenBLAS: patchelf has moved its sections, strip then leaves load commands that are not page-aligned, and
# the loader refuses the file. 2 MB would be won.
OPENED = "libEGL.so.1 libGL.so.1 libgomp.so.1"
"""Opened at run time, so that nothing names them as needed."""

_LOAD = 1
"""The type of a program header for a segment that is mapped into memory: PT_LOAD."""
_PAGE = 4096


def prune(tree: Path) -> None:
    """Delete what is not used."""
    site = tree / "site-packages"
    for stdlib in (tree / "lib").glob("python3.*"):
        for pattern in STDLIB.split():
            for each in list(stdlib.glob(pattern)):
                _delete(each)
        for name in EXTENSIONS.split():
            for each in (stdlib / "lib-dynload").glob(f"{name}.*"):
                _delete(each)
    for pattern in SITE.split():
        for each in list(site.glob(pattern)):
            _delete(each)
    _prune_qt(site / "PySide6")
    for pattern in STRIPPED.split():
        for each in site.glob(pattern):
            subprocess.run(["strip", "--strip-unneeded", str(each)], check=True)
    check_load_commands(tree)


def _prune_qt(qt: Path) -> None:
    modules = set(QT_MODULES.split())
    plugins = {each for pattern in QT_PLUGINS.split() for each in (qt / "Qt" / "plugins").glob(pattern)}
    translations = set((qt / "Qt" / "translations").glob("qtbase_*.qm"))
    bindings = {each for each in qt.glob("*.abi3.so") if each.name.split(".")[0] in modules}
    kept = plugins | translations | bindings | set(qt.glob("*.py"))
    libraries = {each.name: each for each in [*qt.glob("lib*.so*"), *(qt / "Qt" / "lib").iterdir()]}
    waiting = [*plugins, *bindings]
    while waiting:
        for name in needed(waiting.pop()):
            if name in libraries and libraries[name] not in kept:
                kept.add(libraries[name])
                waiting.append(libraries[name])
    for each in sorted(qt.rglob("*"), reverse=True):
        if each.is_dir() and not each.is_symlink():
            if not any(each.iterdir()):
                each.rmdir()
        elif each not in kept:
            each.unlink()


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def needed(file: Path) -> list[str]:
    """Return the sonames of the libraries that an ELF file needs."""
    headers = subprocess.run(["objdump", "-p", str(file)], check=True, capture_output=True, text=True).stdout
    return re.findall(r"^ +NEEDED +(\S+)$", headers, re.MULTILINE)


def programs(tree: Path) -> Iterator[Path]:
    """Yield the ELF files of the tree: programs and shared libraries."""
    for each in sorted(tree.rglob("*")):
        if each.is_file() and not each.is_symlink():
            with each.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield each


def check_load_commands(tree: Path) -> None:
    """End the build when the loader would refuse one of the tree's ELF files for its alignment."""
    if refused := [str(each.relative_to(tree)) for each in programs(tree) if not is_aligned(each.read_bytes())]:
        sys.exit(f"The loader would refuse, for load commands that are not page-aligned: {', '.join(refused)}")


def is_aligned(image: bytes) -> bool:
    """Whether all load commands of a 64-bit ELF file are aligned as glibc's loader demands (elf/dl-load.c)."""
    table, entry_size, count = struct.unpack_from("<32xQ14xHH", image)
    for at in range(table, table + entry_size * count, entry_size):
        kind, offset, address, alignment = struct.unpack_from("<I4xQQ24xQ", image, at)
        if kind == _LOAD and (alignment % _PAGE or (address - offset) & (alignment - 1)):
            return False
    return True


def depends(tree: Path) -> str:
    """Return a Depends field for all libraries that the tree needs and does not hold."""
    lines = Path(__file__).with_name("dependencies.txt").read_text("utf-8").splitlines()
    rows = [line for line in lines if line and not line.startswith("#")]
    packages = dict(line.lstrip("?").split(maxsplit=1) for line in rows)
    brought = {line.lstrip("?").split()[0] for line in rows if line.startswith("?")}
    files = list(programs(tree))
    inside = {each.name for each in files}
    wanted = {name for each in files for name in needed(each)} - inside | set(OPENED.split())
    if unknown := sorted(wanted - packages.keys()):
        sys.exit(f"dependencies.txt names no package for {', '.join(unknown)}")
    if unused := sorted(packages.keys() - wanted - brought):
        sys.exit(f"dependencies.txt names what nothing needs: {', '.join(unused)}")
    return ", ".join(sorted({packages[name] for name in wanted}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--needs", action="store_true")
    parser.add_argument("tree", type=Path)
    options = parser.parse_args()
    if options.needs:
        print(depends(options.tree))
    else:
        prune(options.tree)
