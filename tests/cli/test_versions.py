"""`mtp-launcher versions` as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

from launcher import __version__


def run_text(*options: str) -> str:
    command = [sys.executable, "-m", "launcher", "versions", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_versions_are_printed_without_personal_data(home: Path) -> None:
    lines = run_text().splitlines()
    assert lines[0] == f"MTP Launcher: {__version__}"
    assert any(line.startswith("Built-in engine: ") for line in lines)
    assert str(home) not in "\n".join(lines)
    assert str(Path.home()) not in "\n".join(lines)


def test_an_unknown_version_has_a_reason() -> None:
    for each in json.loads(run_text("--json")):
        assert each["version"] or each["absent"], each
