"""Workflows of GitHub: the scripts that they run exist, actions are pinned. `.ci/workflows` runs actionlint on them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read_workflow(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return content


def commands(workflow: dict[str, Any]) -> Iterator[str]:
    """Yield the shell commands of all steps. A step that runs `matrix.proof` stands for the proofs of its matrix."""
    for job in workflow["jobs"].values():
        proofs = [each["proof"] for each in job.get("strategy", {}).get("matrix", {}).get("include", ())]
        for step in job["steps"]:
            yield from proofs if step.get("run") == "${{ matrix.proof }}" else [step.get("run", "")]


def test_there_are_workflows_for_changes_nights_and_releases() -> None:
    assert [path.stem for path in WORKFLOWS] == ["nightly", "release", "test"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_script_of_a_workflow_exists(path: Path) -> None:
    named = {
        each
        for line in commands(read_workflow(path))
        for each in re.findall(r"(?<!\S)(?:\./|\.ci/|installer/)\S+", line)
    }
    assert named
    for name in named:
        assert os.access(ROOT / name, os.X_OK) or name.endswith(".ps1")
        assert (ROOT / name).is_file()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_action_is_pinned_and_each_job_has_least_permissions(path: Path) -> None:
    workflow = read_workflow(path)
    assert workflow["permissions"] == {"contents": "read"}
    for line in path.read_text("utf-8").splitlines():
        if "uses:" in line:
            assert re.search(r"@[0-9a-f]{40} # v\d", line) or "# by version:" in line
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 120
        assert [step["with"]["persist-credentials"] for step in job["steps"] if "checkout" in step.get("uses", "")] == [
            False
        ]
