"""Runs tests by the installed program's python.exe under wine: tests.py TESTING CHECKOUT [TEST ...].

TESTING is a folder with pytest and its plugins. Without TEST the subset below runs, against the installed program.
"""

import os
import sys
from pathlib import Path

SUBSET = [
    *("tests/base/test_background_file.py", "tests/base/test_errors.py"),
    *("tests/base/test_net.py", "tests/base/test_prompts.py", "tests/base/test_redact.py"),
    "tests/engine/test_process.py",
    *("tests/export/test_clients.py", "tests/export/test_files.py", "tests/export/test_recipe.py"),
    *("tests/models/test_allocation.py", "tests/models/test_catalogue.py", "tests/models/test_choice.py"),
    *("tests/models/test_compute.py", "tests/models/test_fitting.py", "tests/models/test_folders.py"),
    *("tests/models/test_geometry.py", "tests/models/test_header_summary.py"),
]
"""Files whose tests all pass under wine; the others use POSIX permissions, signals or links."""
SETTINGS = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
addopts = -m "not thorough"
markers = thorough: left out
"""


def main(testing: Path, checkout: Path) -> int:
    """Run them."""
    sys.path[:0] = [str(testing), str(checkout)]
    import pytest

    os.chdir(checkout)
    settings = testing / "pytest.ini"
    settings.write_text(SETTINGS, "utf-8")
    options = ["-c", str(settings), "--rootdir", str(checkout), "--import-mode=importlib", "-p", "no:cacheprovider"]
    return int(pytest.main([*options, "-q", "--tb=line", "-rfE", *(sys.argv[3:] or SUBSET)]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
