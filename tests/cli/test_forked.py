"""A forked command behaves like a command of a user: the same output, exit code, and ways to end it."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import forked

pytestmark = pytest.mark.usefixtures("no_engine_here")


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "line",
    [
        "--version",
        "nonsense",
        "chats",
        "compare a b",
        "diagnose",
        "downloads",
        "engine list",
        "estimate qwen3.6-35b-a3b-mtp",
        "export curl",
        "history --json",
        "keys",
        "models --json",
        "plan --gpu-memory 24",
        "preset",
        "settings",
        "status",
        "stop",
        "tune --budget 0",
        "versions",
    ],
)
def test_a_forked_command_prints_the_same_as_a_new_process(line: str, home: Path) -> None:
    """The new process has imported nothing, so an import that a verb lacks is found here."""
    # Without the variables that importing readline sets.
    words, environment = [*forked.COMMAND, *line.split()], dict(os.environ)
    alone = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment)
    result = forked.run(*line.split())
    assert vars(result) == vars(alone)
    assert result.stdout or result.stderr


def test_a_forked_command_has_the_given_environment_and_folder(tmp_path: Path) -> None:
    (tmp_path / "some.log").write_text("CUDA error: out of memory\n")
    assert "memory" in forked.run("diagnose", "some.log", cwd=tmp_path).stdout
    elsewhere = tmp_path / "elsewhere"
    assert str(elsewhere) in forked.run("settings", env=os.environ | {"MTP_LAUNCHER_HOME": str(elsewhere)}).stdout


def test_standard_input_reaches_a_forked_command() -> None:
    assert "memory" in forked.run("diagnose", "-", input=b"CUDA error: out of memory\n").stdout


def test_a_forked_command_that_takes_too_long_is_killed(demo_model: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run("serve", str(demo_model), timeout=0.01)


def test_a_command_with_other_libraries_is_started_as_a_new_process(tmp_path: Path) -> None:
    result = forked.run("versions", env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)})
    assert result.returncode == 0
    assert vars(result) == vars(forked.run("versions"))
