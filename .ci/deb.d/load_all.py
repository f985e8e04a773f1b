"""Loads each shared object below a folder, each in a process of its own: load_all.py FOLDER, run by the tree's Python.

Prints the files that the loader refuses, and how many can be loaded. Libraries that a wheel's package loads first are
loaded first here, too.
"""
# ruff: noqa: T201

import ctypes
import os
import sys
from pathlib import Path

import PySide6.QtCore  # noqa: F401, TID251 -- with its own libraries, which the other bindings and plugins need
import xllamacpp  # noqa: F401


def main(folder: Path) -> int:
    """Load each shared object below `folder`; return 1 if the loader refuses any."""
    files = [each for each in sorted(folder.rglob("*.so*")) if each.is_file() and not each.is_symlink()]
    refused = 0
    for each in files:
        child = os.fork()
        if not child:
            try:
                ctypes.CDLL(str(each), os.RTLD_NOW)
            except OSError as error:
                os.write(1, f"{each.relative_to(folder)}: {error}\n".encode())
                os._exit(1)
            os._exit(0)
        refused += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    print(f"{len(files) - refused} of {len(files)} shared objects can be loaded")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
