"""One button: what an error or a finding proposes is done by another start, on the real engine."""

import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher import app
from launcher.base.action import Action, ActionKind
from launcher.base.errors import (
    ActionImpossible,
    EngineUnsuitable,
    LauncherError,
    ModelHasNoHead,
    PortBusy,
    ServerNotFound,
    SettingsFailed,
)
from launcher.engine.launch import Launch, ServeOptions
from launcher.engine.settings import remembered
from launcher.engine.state import Event, State, Status


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=4_096)


@pytest.fixture
async def session() -> AsyncIterator[app.Session]:
    opened = app.Session()
    yield opened
    await opened.stop()


def running(session: app.Session) -> Launch:
    assert session.supervisor.status.state is State.READY
    launch = session.supervisor.launch
    assert launch is not None
    return launch


async def test_what_a_failed_start_proposes_is_done_to_it(session: app.Session, options: ServeOptions) -> None:
    with pytest.raises(EngineUnsuitable) as failed:
        await session.start(replace(options, extra=("--warp-speed", "9")), chosen={"ctx": 4_096})
    first = failed.value.actions[0]
    assert (first.kind, dict(first.parameters)) == (ActionKind.REMOVE_FLAG, {"flag": "--warp-speed"})
    await session.fix(first)
    assert running(session).options.extra == ()
    assert running(session).context == 4_096


async def test_new_settings_that_failed_are_mended_and_not_the_old_ones(
    session: app.Session, options: ServeOptions
) -> None:
    await session.start(options)
    with pytest.raises(SettingsFailed) as failed:
        await session.start(replace(options, context=2_048, extra=("--warp-speed", "9")))
    assert running(session).context == 4_096
    await session.fix(failed.value.actions[0])
    assert (running(session).context, running(session).options.extra) == (2_048, ())


async def test_a_finding_is_mended_in_what_runs_and_kept(session: app.Session, options: ServeOptions) -> None:
    await session.start(replace(options, context=None))
    before = running(session).context
    await session.fix(Action(ActionKind.SMALLER_CONTEXT, "Halve the context"))
    assert running(session).context == before // 2
    assert remembered(options.model)["ctx"] == before // 2
    old = session.supervisor.engine_pid
    await session.fix(Action(ActionKind.RESTART, "Restart the server"))
    assert running(session).context == before // 2
    assert session.supervisor.engine_pid != old


async def test_a_port_that_is_taken_is_exchanged(options: ServeOptions) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        session = app.Session(port=port)
        try:
            with pytest.raises(PortBusy) as failed:
                await session.start(options)
            assert session.way(failed.value.actions[0]).command is not None
            assert "--port" not in str(session.way(failed.value.actions[0]).command)
            await session.fix(failed.value.actions[0])
            assert running(session)
            assert session.supervisor.endpoint.port != port
        finally:
            await session.stop()


async def test_a_model_without_a_head_is_served_without_drafts(session: app.Session, headless_model: Path) -> None:
    with pytest.raises(ModelHasNoHead) as failed:
        await session.start(ServeOptions(headless_model, built_in=True, threads=1, context=2_048))
    await session.fix(failed.value.actions[0])
    assert running(session).options.draft == 0


async def test_what_is_no_start_is_pointed_to(session: app.Session, options: ServeOptions) -> None:
    install = Action(ActionKind.OTHER_ENGINE_BUILD, "Install the current build")
    with pytest.raises(ServerNotFound):
        await session.fix(install)
    await session.start(options)
    with pytest.raises(ActionImpossible, match="mtp-launcher engine install"):
        await session.fix(install)
    with pytest.raises(ActionImpossible):
        await session.fix(Action(ActionKind.REMOVE_FLAG, "Start without it", {"flag": "--nothing"}))
    assert running(session).options == options


async def test_a_crash_carries_its_actions_to_the_listener(
    fake_engine: Path, options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    session = app.Session(on_event=events.append)
    monkeypatch.setenv("FAKE_FAULTS", "dies-loading")
    with pytest.raises(LauncherError) as failed:
        await session.start(replace(options, engine=fake_engine))
    (told,) = [event.error for event in events if isinstance(event, Status) and event.state is State.FAILED]
    assert told is failed.value
    smaller = next(each for each in told.actions if each.kind is ActionKind.SMALLER_CONTEXT)
    assert smaller.parameters == {"context": 2_048}
    assert told.facts["actions"] == [each.as_json() for each in told.actions]
    await session.stop()


async def test_each_start_is_ready_once(session: app.Session, options: ServeOptions) -> None:
    ready: list[object] = []

    def note(event: Event) -> None:
        if isinstance(event, Status) and event.state is State.READY:
            ready.append(session.supervisor.launch)

    with session.listening(note):
        await session.start(options)
        await session.start(options)
        await session.start(replace(options, draft=1))
    assert len({id(launch) for launch in ready}) == 2
