"""Headers on the hub, which make plans exact once the user has agreed."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.app import settings
from launcher.app.planning import hub_headers
from launcher.app.settings_declared import READ_HEADERS, VALUE_ASK, VALUE_OFF, VALUE_ON
from launcher.models.catalogue_load import load_catalogue
from launcher.models.plan import Plan, PlanCriteria, make_plans
from launcher.models.situation import describe_machine
from tests import forked
from tests.conftest import Hub

pytestmark = pytest.mark.usefixtures("forked_commands")
MODEL = "qwen3.5-4b-mtp"
ARGUMENTS = (MODEL, "--quant", "Q4_K_M", "--gpu-memory", "8")


@pytest.fixture(autouse=True)
def repository(hub: Hub, demo_model: Path) -> Iterator[Path]:
    """The repository of a model whose sizes the catalogue does not list; its files are the demo model."""
    entry = load_catalogue(hub_figures=False).find(MODEL)
    file = entry.file("Q4_K_M")
    assert file
    assert file.size_bytes is None
    assert entry.repo
    folder = hub.folder / entry.repo
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(demo_model, folder / file.file)
    yield folder
    shutil.rmtree(folder)


def plan() -> Plan:
    (found,) = make_plans(load_catalogue(), describe_machine((8,)), PlanCriteria(MODEL, quant="Q4_K_M"))
    return found


def test_exact_figures_replace_the_estimate(demo_model: Path) -> None:
    estimated = plan()
    assert (estimated.file.size_bytes, estimated.estimate.weights_exact) == (None, False)
    assert hub_headers.find_estimated_plans([estimated, estimated]) == (estimated,)
    assert asyncio.run(hub_headers.read_headers([estimated])) is None
    known = plan()
    assert (known.file.size_bytes, known.estimate.weights_exact) == (demo_model.stat().st_size, True)
    assert hub_headers.find_estimated_plans([known]) == ()


def test_a_file_that_was_replaced_on_the_hub_is_read_once_more(repository: Path) -> None:
    for each in repository.iterdir():
        each.unlink()
    (repository / "README.md").write_text("gone")
    estimated = plan()
    assert asyncio.run(hub_headers.read_headers([estimated])) is not None
    assert hub_headers.find_estimated_plans([plan()]) == ()


def test_a_network_error_leaves_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    estimated = plan()
    error = asyncio.run(hub_headers.read_headers([estimated]))
    assert error is not None
    assert error.code == "unreachable"
    assert hub_headers.find_estimated_plans([plan()]) == (plan(),)
    hub_headers.keep_answer(agreed=True)
    assert not hub_headers.may_read()  # a plan must not wait for the network each time
    monkeypatch.setattr(hub_headers, "_PAUSE_S", 0.0)
    assert hub_headers.may_read()


def test_nothing_is_read_from_the_hub_when_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (hub_headers.should_ask(), hub_headers.may_read()) == (True, False)
    hub_headers.keep_answer(agreed=True)
    assert (hub_headers.should_ask(), hub_headers.may_read()) == (False, True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert (hub_headers.should_ask(), hub_headers.may_read()) == (False, False)


def run_on_terminal(typed: str, *arguments: str) -> tuple[str, str]:
    """Run `plan` with a terminal for questions; return its output and the text on the terminal."""
    ours, its = os.openpty()
    with forked.start("plan", *ARGUMENTS, *arguments, stdin=its, stderr=its, stdout=subprocess.PIPE) as program:
        os.close(its)
        os.write(ours, typed.encode())
        assert program.stdout
        output = program.stdout.read()
        assert program.wait() == 0
    question = b""
    try:
        while block := os.read(ours, 4_096):
            question += block
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return output, question.decode()


@pytest.mark.parametrize(("typed", "kept", "is_exact"), [("y\n", VALUE_ON, True), ("\n", VALUE_OFF, False)])
def test_the_user_is_asked_once_and_the_answer_is_stored(typed: str, kept: str, is_exact: bool, hub: Hub) -> None:
    output, question = run_on_terminal(typed)
    assert "Read headers of such files from Hugging Face" in question
    assert settings.stored_value(READ_HEADERS) == kept
    assert ("about 2.5 GiB" in output) is not is_exact
    assert bool(hub.requests()) is is_exact
    output, question = run_on_terminal("")
    assert "Hugging Face" not in question
    assert ("about 2.5 GiB" in output) is not is_exact
    assert hub.requests() == []


def test_the_question_is_not_asked_in_json_output(hub: Hub) -> None:
    _, question = run_on_terminal("", "--json")
    assert "Hugging Face" not in question
    output = forked.run("plan", *ARGUMENTS, input=b"")
    assert (output.returncode, output.stderr) == (0, "")
    assert settings.stored_value(READ_HEADERS) == VALUE_ASK
    assert hub.requests() == []
