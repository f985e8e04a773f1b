"""Runs the tests that a Windows Python can run here: tests.py TESTING CHECKOUT, by the installed program's python.exe.

TESTING holds pytest and its plugins. Left out are tests of the window, of POSIX programs, and of what wine does
otherwise than Windows; the rest runs against the installed program.
"""

import os
import sys
from pathlib import Path

SUBSET = ["tests/base", "tests/conversations", "tests/export", "tests/models", "tests/monitor", "tests/tuning"]
SETTINGS = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""
LEFT_OUT = []


def main(testing: Path, checkout: Path) -> int:
    """Run them."""
    sys.path[:0] = [str(testing), str(checkout)]
    import pytest

    os.chdir(checkout)
    settings = testing / "pytest.ini"
    settings.write_text(SETTINGS, "utf-8")
    options = [
        "-c",
        str(settings),
        "--rootdir",
        str(checkout),
        "--import-mode=importlib",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    left_out = [word for name in LEFT_OUT for word in (("--deselect" if "::" in name else "--ignore"), name)]
    return int(pytest.main([*options, "--tb=line", "-rfE", *left_out, *(sys.argv[3:] or SUBSET)]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
