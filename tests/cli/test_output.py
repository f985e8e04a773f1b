"""Output of all verbs: closed and full pipes and files, empty values, a home that cannot be used."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

LAUNCHER = f'"{sys.executable}" -m launcher'
PLAN = ["plan", "--gpu-memory", "24"]


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "-c", line],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*arguments, env=os.environ | environment)


class TestOutput:
    @pytest.mark.parametrize("arguments", [PLAN, ["models", "--json"]], ids=" ".join)
    def test_a_closed_output_is_an_error(self, arguments: list[str]) -> None:
        result = shell(f"{LAUNCHER} {shlex.join(arguments)} >&-")
        assert (result.returncode, result.stderr) == (1, "Error: The output could not be written: it is closed.\n")

    @pytest.mark.parametrize("arguments", [PLAN, [*PLAN, "--json"], ["models"], ["models", "--json"]], ids=" ".join)
    def test_a_full_disk_behind_the_output_is_an_error(self, arguments: list[str]) -> None:
        with Path("/dev/full").open("w") as full:
            started = forked.start(*arguments, stdout=full.fileno(), stderr=subprocess.PIPE)
        with started as program:
            _, result = program.communicate()
        why = "No space left on device"
        assert (program.returncode, result) == (1, f"Error: The output could not be written: {why}.\n")

    def test_without_any_output_the_exit_code_reports_the_failure(self) -> None:
        assert shell(f"{LAUNCHER} models >&- 2>&-").returncode == 1
        assert shell(f"{LAUNCHER} models 2>&-").returncode == 0

    def test_a_closed_pipe_is_not_reported_as_an_error(self) -> None:
        result = shell(f'{LAUNCHER} models qwen3.6-35b-a3b-mtp | head -1; echo "${{PIPESTATUS[0]}}"')
        assert result.stdout.splitlines()[0] == "Qwen3.6-35B-A3B with MTP head (qwen3.6-35b-a3b-mtp)"
        # 0 if all output fitted into the pipe before it was closed.
        assert result.stdout.splitlines()[1] in ("141", "0")
        assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([*PLAN, "--quant", ""], "argument --quant"),
        ([*PLAN, "--model="], "argument --model"),
        ([*PLAN, "--ctx", " "], "argument --ctx"),
        (["estimate", ""], "an argument"),
        (["estimate", "x.gguf", "--engine", ""], "argument --engine"),
        (["models", ""], "an argument"),
        (["doctor", "--models", ""], "argument --models"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_empty_value_is_wrong_usage(arguments: list[str], what: str) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"error: {what} is empty: give it a value, or leave it out\n" in result.stderr


def test_an_empty_value_after_the_separator_is_passed_to_the_engine() -> None:
    result = run(*PLAN, "--json", "--", "--alias", "")
    assert json.loads(result.stdout)["plans"][0]["argv"][-2:] == ["--alias", ""]


class TestHome:
    @pytest.mark.parametrize(
        "arguments",
        [PLAN, ["estimate", "x.gguf"], ["models"], ["status"], ["stop"], ["chat", "hi"], ["serve", "--model", "demo"]],
        ids=" ".join,
    )
    def test_a_file_in_place_of_the_home_is_reported_by_every_verb(self, arguments: list[str], tmp_path: Path) -> None:
        blocked = tmp_path / "file"
        blocked.touch()
        result = run(*arguments, MTP_LAUNCHER_HOME=str(blocked))
        assert (result.returncode, result.stdout) == (1, "")
        error, hint = result.stderr.splitlines()
        assert error == f"Error: MTP_LAUNCHER_HOME is {blocked}, but {blocked} is not a folder."
        assert hint.strip().startswith("Set MTP_LAUNCHER_HOME to a writable folder")

    def test_a_file_that_cannot_be_written_is_not_taken_for_the_output(self, tmp_path: Path) -> None:
        line = f"ulimit -f 0; {LAUNCHER} models folders add {shlex.quote(str(tmp_path))}"
        result = shell(line, MTP_LAUNCHER_HOME=str(tmp_path / "home"))
        assert (result.returncode, result.stdout) == (1, "")
        assert f"The system refused: File too large ({tmp_path / 'home/config/model-folders.txt'})" in result.stderr

    def test_a_home_that_cannot_be_created_leaves_the_formula_figures(self, demo_model: Path) -> None:
        words = ("estimate", str(demo_model), "--gpu-memory", "8", "--ask-engine", "--json")
        result = run(*words, MTP_LAUNCHER_HOME="/proc/nothing")
        assert result.returncode == 1
        answer = json.loads(result.stdout)
        assert (answer["engine"], answer["engine_error"]["code"]) == (None, "home_unusable")
        assert "MTP_LAUNCHER_HOME" in answer["engine_error"]["hint"]
        assert answer["total_mib"] > 0
