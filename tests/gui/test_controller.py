"""The controller: of quick requests the last one counts, and no result of an earlier one is reported."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from launcher.app.planning.start_settings import ResolvedStart
from launcher.base.errors import LauncherError
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import Delta
from launcher.engine.server.state import ServerState
from launcher.gui.core_events import DeltaReceived
from launcher.gui.service import DEMO
from launcher.gui.window import Window
from tests.gui.test_journeys import make_replies_endless

FIRST_PAGE = "about"
Wait = Callable[..., None]


def test_a_start_that_is_stopped_at_once_ends_stopped(window: Window, qtbot: QtBot) -> None:
    controller = window.controller
    launches: list[object] = []
    controller.launched.connect(launches.append)
    controller.start(DEMO)
    controller.stop()
    assert controller.inputs.status.state is ServerState.PREPARING
    qtbot.waitUntil(lambda: controller.inputs.status.state is ServerState.STOPPED)
    assert controller.session is not None
    assert controller.session.is_idle
    assert launches == []
    assert controller.view.problem == ""


@pytest.mark.parametrize(
    ("model", "name"),
    [("qwen3.8-27b", "qwen3.8-27b"), ("owner/name:Q4_K_M", "owner/name:Q4_K_M"), ("/models/a-2.5.gguf", "a-2.5")],
)
def test_the_model_that_starts_is_named_as_it_was_requested(window: Window, model: str, name: str) -> None:
    window.controller.start(model)
    assert window.controller.inputs.starting == name


def test_a_start_after_the_stop_of_a_start_that_prepares_runs(window: Window, wait_for: Wait) -> None:
    controller = window.controller
    states: list[ServerState] = []
    controller.view_changed.connect(lambda _view: states.append(controller.inputs.status.state))
    controller.start(DEMO)
    controller.stop()
    controller.start(DEMO)
    wait_for(ServerState.READY)
    assert ServerState.STOPPED not in states


def test_the_failure_of_an_earlier_start_does_not_end_a_newer_one(
    window: Window, wait_for: Wait, tmp_path: Path
) -> None:
    controller = window.controller
    controller.start("not-there", start=ResolvedStart("not-there", ServeOptions(tmp_path / "not-there.gguf")))
    controller.start(DEMO)
    wait_for(ServerState.READY)
    assert controller.view.problem == ""


def test_the_failure_of_an_earlier_start_is_not_shown_for_a_newer_one(
    window: Window, wait_for: Wait, demo_model: Path
) -> None:
    controller = window.controller
    problems: list[str] = []

    def start_again(_view: object) -> None:
        if controller.view.problem:
            problems.append(controller.view.problem)
            controller.start(DEMO)  # started at once, while the events of the earlier server still wait

    controller.view_changed.connect(start_again)
    options = ServeOptions(demo_model, built_in=True, extra=("--no-such-flag",))
    controller.start(str(demo_model), start=ResolvedStart(str(demo_model), options))
    wait_for(ServerState.READY)
    (problem,) = problems
    assert "--no-such-flag" in problem
    assert controller.view.problem == ""


def test_an_earlier_problem_is_not_shown_for_a_new_start(window: Window, wait_for: Wait) -> None:
    controller = window.controller
    controller.show_problem(LauncherError("Something else."))
    problems: list[str] = []
    controller.view_changed.connect(lambda view: problems.append(view.problem))
    controller.start(DEMO)
    assert problems == [""]
    wait_for(ServerState.READY)


def test_a_failure_of_other_work_does_not_fail_a_start(window: Window, wait_for: Wait) -> None:
    async def fail_to_copy() -> None:
        raise LauncherError("The clipboard is gone.")

    controller = window.controller
    states: list[ServerState] = []
    controller.view_changed.connect(lambda _view: states.append(controller.inputs.status.state))
    controller.start(DEMO)
    controller.bridge.run(fail_to_copy)
    wait_for(ServerState.READY)
    assert ServerState.FAILED not in states
    assert controller.view.problem == "The clipboard is gone."


@pytest.mark.thorough
def test_deltas_of_a_stopped_reply_are_not_added_to_the_next(
    demo: Window, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_replies_endless(demo, monkeypatch)
    controller = demo.controller
    came: list[str] = []
    controller.deltas.connect(lambda deltas: came.extend(delta.content for delta in deltas))
    qtbot.waitUntil(lambda: controller.view.can_ask)
    controller.request_reply([{"role": "user", "content": "What is a draft?"}])
    qtbot.waitUntil(lambda: bool(came))
    controller.stop_reply()
    controller.bridge.post(DeltaReceived(1, Delta(content="late")))
    controller.request_reply([{"role": "user", "content": "What is MTP?"}])
    with qtbot.waitSignal(controller.deltas):
        pass
    assert "late" not in came
    controller.stop_reply()
