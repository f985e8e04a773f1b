"""`serve` and `up` start the settings that `plan` has recommended, on the real built-in engine."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.engine.settings import load_model_settings, save_model_settings
from tests import forked
from tests.plumbing import leave_out_start_flags

pytestmark = pytest.mark.usefixtures("no_engine_here")


@contextmanager
def engine_arguments(*arguments: str) -> Iterator[list[str]]:
    """The arguments of the engine that a command starts."""
    with forked.start(*arguments, "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            status: dict[str, Any] = {}
            while "pid" not in status:
                status = json.loads(process.stdout.readline())
            yield common_arguments(psutil.Process(status["pid"]).cmdline())
        finally:
            process.terminate()
            process.wait(120)


def common_arguments(command: Sequence[str]) -> list[str]:
    """The arguments that a plan and its server have in common, without the program and what differs between runs."""
    return leave_out_start_flags(command[next(at for at, word in enumerate(command) if word.startswith("--")) :])


def plan_arguments(file: Path, *arguments: str) -> tuple[dict[str, Any], list[str]]:
    result = forked.run("plan", file, *arguments, "--json")
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)["plans"][0]
    assert plan["argv"][plan["argv"].index("--model") + 1] == str(file)
    return plan, sorted(common_arguments(plan["argv"]))


@pytest.mark.parametrize("verb", ["serve", "up"])
def test_the_plan_of_a_file_is_what_starts(verb: str, demo_model: Path) -> None:
    plan, wanted = plan_arguments(demo_model)
    assert (plan["status"], plan["ctx"], plan["draft"]) == ("FITS", 32_768, 2)
    with engine_arguments(verb, str(demo_model)) as arguments:
        assert sorted(arguments) == wanted
    assert load_model_settings(demo_model) == {}  # what is recommended is not the user's choice


def test_settings_of_the_user_are_in_plan_and_start(demo_model: Path) -> None:
    settings = {"ctx": 4_096, "draft": 1, "ubatch": 256}
    save_model_settings(demo_model, settings)
    plan, wanted = plan_arguments(demo_model)
    assert (plan["ctx"], plan["draft"], plan["ubatch"]) == (4_096, 1, 256)
    assert plan["reasons"][0].startswith("As last served: ctx 4096, draft 1, ubatch 256;")
    with engine_arguments("serve", str(demo_model)) as arguments:
        assert sorted(arguments) == wanted
    assert load_model_settings(demo_model) == settings
    plan, wanted = plan_arguments(demo_model, "--ctx", "2K")
    assert (plan["ctx"], plan["draft"]) == (2_048, 1)
    assert plan_arguments(demo_model, "--defaults")[0]["ctx"] == 32_768
    with engine_arguments("serve", str(demo_model), "--ctx", "2K") as arguments:
        assert sorted(arguments) == wanted
    assert load_model_settings(demo_model) == settings | {"ctx": 2_048}


def test_a_file_without_a_head_is_planned_and_started_with_mtp_off(headless_model: Path) -> None:
    plan, wanted = plan_arguments(headless_model)
    assert plan["draft"] == 0
    with engine_arguments("serve", str(headless_model)) as arguments:
        assert sorted(arguments) == wanted
    assert not [word for word in wanted if word.startswith("--spec")]


def test_the_demo_is_planned_by_the_served_path() -> None:
    plan = json.loads(forked.run("plan", "demo", "--json").stdout)["plans"][0]
    with engine_arguments("serve", "demo") as arguments:
        assert sorted(arguments) == sorted(common_arguments(plan["argv"]))


def test_a_setting_that_is_left_out_once_stays_kept(demo_model: Path) -> None:
    save_model_settings(demo_model, {"ctx": 4_096})
    with engine_arguments("serve", str(demo_model), "--defaults", "--ubatch", "256") as arguments:
        assert "4096" not in arguments
    assert load_model_settings(demo_model) == {"ctx": 4_096, "ubatch": 256}


def test_an_overridden_setting_is_not_reported_as_kept(demo_model: Path) -> None:
    save_model_settings(demo_model, {"ctx": 9_000, "draft": 1})
    plan, _ = plan_arguments(demo_model, "--ctx", "4096")
    assert (plan["ctx"], plan["draft"]) == (4_096, 1)
    assert plan["reasons"][0] == "As last served: draft 1; --defaults ignores that."


def test_a_truncated_file_is_not_planned(demo_model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(demo_model.read_bytes()[:3_000_000])
    result = forked.run("plan", str(cut))
    assert result.returncode == 1
    assert "cut.gguf is incomplete" in result.stderr
