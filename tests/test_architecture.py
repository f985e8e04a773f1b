"""Rules of the architecture that no linter checks."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(result.stdout.split())


def test_the_command_line_never_loads_qt() -> None:
    loaded = modules_after(
        "import launcher.cli.main, launcher.cli.demo, launcher.cli.serve, launcher.app.serving.serving, "
        "launcher.app.first.doctor"
    )
    assert "launcher.app.serving.serving" in loaded
    assert not {"PySide6", "pyqtgraph", "numpy"} & loaded


def test_the_version_option_imports_few_modules() -> None:
    loaded = modules_after("import launcher.cli.main as m; m._build_parser(['--version'])")
    assert not {"asyncio", "pydantic", "psutil", "httpx", "platformdirs", "aiohttp", "cryptography"} & loaded


def test_help_and_completion_load_nothing_that_a_verb_runs() -> None:
    loaded = modules_after("import launcher.cli.main as m; m.build_full_parser()")
    assert "launcher.cli.options.serve" in loaded
    assert not {"asyncio", "pydantic", "psutil", "httpx", "sqlite3"} & loaded
    assert not {name for name in loaded if name.startswith(("launcher.app", "launcher.tuning", "launcher.gateway"))}


def test_a_plan_for_a_described_card_loads_few_modules() -> None:
    code = (
        "import sys; from launcher.entry import run; sys.argv[1:] = ['plan', '--gpu-memory', '24', '--json']\n"
        "try: run()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name for name in result.stderr.split() if name.split(".")[0] == "launcher"}
    assert not {"pydantic", "annotated_types", "filelock", "aiohttp", "cryptography"} & set(result.stderr.split())
    assert "launcher.models.plan" in loaded
    assert not {name for name in loaded if name.startswith(("launcher.gui", "launcher.tuning", "launcher.monitor"))}
    assert "launcher.models.file_kinds" not in loaded  # its table takes a tenth of the time, and no plan needs it
    assert len(loaded) <= 72
