"""Rules of the house that a linter does not know."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [path for folder in ("launcher", "tests", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py")]


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(told.stdout.split())


def test_the_command_line_never_loads_qt() -> None:
    loaded = modules_after(
        "import launcher.cli.main, launcher.cli.demo, launcher.cli.serve, launcher.app, launcher.doctor"
    )
    assert "launcher.app" in loaded
    assert not {"PySide6", "pyqtgraph", "numpy"} & loaded


def test_the_version_costs_nothing_that_it_does_not_need() -> None:
    loaded = modules_after("import launcher.cli.main as m; m._parser(['--version'])")
    assert not {"asyncio", "pydantic", "psutil", "httpx", "platformdirs"} & loaded


def test_a_file_has_one_subject() -> None:
    assert SOURCES
    long = {
        str(path.relative_to(ROOT)): lines
        for path in SOURCES
        if (lines := len(path.read_text("utf-8").splitlines())) > 400
    }
    assert not long
