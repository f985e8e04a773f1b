"""Compiles the modules below a folder, with no date in them: python compile_all.py TREE FOLDER.

The Python version that will run the modules must run this script too. Tracebacks name the modules by their paths from
TREE.
"""

import py_compile
import sys
from pathlib import Path

if __name__ == "__main__":
    tree, folder = map(Path, sys.argv[1:3])
    for source in sorted(folder.rglob("*.py")):
        py_compile.compile(
            str(source),
            dfile=source.relative_to(tree).as_posix(),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
