"""Suggested fixes of errors and findings, applied by another start on the real engine."""

import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.serving.session import ServerSession
from launcher.base.action import Action, ActionKind
from launcher.base.codec import to_json
from launcher.base.errors import (
    ActionImpossible,
    EngineUnsuitable,
    LauncherError,
    ModelHasNoHead,
    ModelMissing,
    PortBusy,
    ServerNotFound,
    SettingsFailed,
)
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.last_start import load_last_start
from launcher.engine.server.launch import Launch
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import ServerEvent, ServerState, ServerStatus
from launcher.engine.settings import load_model_settings, save_model_settings


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=4_096)


@pytest.fixture
async def session() -> AsyncIterator[ServerSession]:
    opened = ServerSession()
    yield opened
    await opened.stop()


def running_launch(session: ServerSession) -> Launch:
    assert session.supervisor.status.state is ServerState.READY
    launch = session.supervisor.launch
    assert launch is not None
    return launch


async def test_the_action_of_a_failed_start_is_applied(session: ServerSession, options: ServeOptions) -> None:
    with pytest.raises(EngineUnsuitable) as failed:
        await session.start(StartRequest(replace(options, extra=("--warp-speed", "9")), chosen={"ctx": 4_096}))
    first = failed.value.actions[0]
    assert (first.kind, dict(first.parameters)) == (ActionKind.REMOVE_FLAG, {"flag": "--warp-speed"})
    await session.apply_fix(first)
    assert running_launch(session).options.extra == ()
    assert running_launch(session).context == 4_096


@pytest.mark.thorough
async def test_an_action_changes_the_settings_that_failed_and_not_the_old_ones(
    session: ServerSession, options: ServeOptions
) -> None:
    await session.start(StartRequest(options))
    with pytest.raises(SettingsFailed) as failed:
        await session.start(StartRequest(replace(options, context=2_048, extra=("--warp-speed", "9"))))
    assert running_launch(session).context == 4_096
    await session.apply_fix(failed.value.actions[0])
    assert (running_launch(session).context, running_launch(session).options.extra) == (2_048, ())


async def test_a_model_that_fails_does_not_stop_the_running_one(
    session: ServerSession, options: ServeOptions, tmp_path: Path
) -> None:
    await session.start(StartRequest(options, chosen={"threads": 1}, set_aside={"ctx": 4_096}, model_name="demo"))
    other = tmp_path / "other.gguf"
    shutil.copyfile(options.model, other)
    broken = replace(options, model=other, extra=("--warp-speed", "9"))
    with pytest.raises(SettingsFailed) as failed:
        await session.start(StartRequest(broken, chosen={"ctx": 1_024}, set_aside={}))
    kept = load_last_start()
    assert kept is not None
    assert kept.start is not None
    assert (kept.start.model, kept.start.options.model) == ("demo", options.model)

    await session.start(StartRequest(replace(options, draft=0), chosen={"draft": 0}))
    assert load_model_settings(options.model) == {"ctx": 4_096, "threads": 1, "draft": 0}
    with pytest.raises(ModelMissing):
        await session.start(StartRequest(replace(options, model=tmp_path / "gone.gguf"), chosen={}))
    await session.start(StartRequest(replace(options, draft=1), chosen={"draft": 1}))
    assert load_model_settings(options.model) == {"ctx": 4_096, "threads": 1, "draft": 1}

    with pytest.raises(SettingsFailed) as failed:
        await session.start(StartRequest(broken, chosen={"ctx": 1_024}))
    await session.apply_fix(failed.value.actions[0])  # the proposed fix changes the start that failed
    assert (running_launch(session).options.model, running_launch(session).options.extra) == (other, ())


async def test_a_repeated_start_keeps_the_kept_settings(session: ServerSession, options: ServeOptions) -> None:
    save_model_settings(options.model, {"ctx": 4_096})
    await session.start(StartRequest(options, set_aside={}))
    await session.start(StartRequest(replace(options, draft=0), chosen={"draft": 0}))
    assert load_model_settings(options.model) == {"ctx": 4_096, "draft": 0}


@pytest.mark.thorough
async def test_the_action_of_a_finding_is_applied_to_the_running_server_and_stored(
    session: ServerSession, options: ServeOptions
) -> None:
    await session.start(StartRequest(replace(options, context=None)))
    before = running_launch(session).context
    await session.apply_fix(Action(ActionKind.SMALLER_CONTEXT, "Halve the context"))
    assert running_launch(session).context == before // 2
    assert load_model_settings(options.model)["ctx"] == before // 2
    old = session.supervisor.engine_pid
    await session.apply_fix(Action(ActionKind.RESTART, "Restart the server"))
    assert running_launch(session).context == before // 2
    assert session.supervisor.engine_pid != old


async def test_a_port_in_use_is_replaced(options: ServeOptions) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        session = ServerSession(port=port)
        try:
            with pytest.raises(PortBusy) as failed:
                await session.start(StartRequest(options))
            assert session.command_for_action(failed.value.actions[0]).command is not None
            assert "--port" not in str(session.command_for_action(failed.value.actions[0]).command)
            await session.apply_fix(failed.value.actions[0])
            assert running_launch(session)
            assert session.supervisor.endpoint.port != port
        finally:
            await session.stop()


async def test_a_model_without_a_head_is_served_without_drafts(session: ServerSession, headless_model: Path) -> None:
    with pytest.raises(ModelHasNoHead) as failed:
        await session.start(StartRequest(ServeOptions(headless_model, built_in=True, threads=1, context=2_048)))
    await session.apply_fix(failed.value.actions[0])
    assert running_launch(session).options.draft == 0


async def test_an_action_that_is_no_start_is_refused_with_its_command(
    session: ServerSession, options: ServeOptions
) -> None:
    install = Action(ActionKind.OTHER_ENGINE_BUILD, "Install the current build")
    with pytest.raises(ServerNotFound):
        await session.apply_fix(install)
    await session.start(StartRequest(options))
    with pytest.raises(ActionImpossible, match="mtp-launcher engine install"):
        await session.apply_fix(install)
    with pytest.raises(ActionImpossible):
        await session.apply_fix(Action(ActionKind.REMOVE_FLAG, "Start without it", {"flag": "--nothing"}))
    assert running_launch(session).options == options


async def test_a_crash_passes_its_actions_to_the_listener(
    fake_engine: Path, options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[ServerEvent] = []
    session = ServerSession(on_event=events.append)
    monkeypatch.setenv("FAKE_FAULTS", "dies-loading")
    with pytest.raises(LauncherError) as failed:
        await session.start(StartRequest(replace(options, engine=fake_engine)))
    (failure,) = [
        event.error for event in events if isinstance(event, ServerStatus) and event.state is ServerState.FAILED
    ]
    assert failure is failed.value
    smaller = next(each for each in failure.actions if each.kind is ActionKind.SMALLER_CONTEXT)
    assert smaller.parameters == {"context": 2_048}
    assert failure.facts["actions"] == to_json(failure.actions)
    await session.stop()


async def test_each_start_is_reported_ready_once(session: ServerSession, options: ServeOptions) -> None:
    ready: list[object] = []

    def note(event: ServerEvent) -> None:
        if isinstance(event, ServerStatus) and event.state is ServerState.READY:
            ready.append(session.supervisor.launch)

    with session.listening(note):
        await session.start(StartRequest(options))
        await session.start(StartRequest(options))
        await session.start(StartRequest(replace(options, draft=1)))
    assert len({id(launch) for launch in ready}) == 2
