"""Times of restarts: measured from a supervisor's events, kept by model and engine."""

from dataclasses import replace
from pathlib import Path

from launcher.base.errors import EngineFailed
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import Launch, prepare_launch
from launcher.engine.server.load_times import LoadTimer, expected_load_time, save_load_time
from launcher.engine.server.state import LogAdded, ServerState, ServerStatus


def measure_load_time(*events: tuple[float, ServerStatus]) -> float | None:
    now = 0.0
    clock = LoadTimer(lambda: now)
    for now, event in events:  # noqa: B007 -- `clock` reads it
        clock.handle_event(event)
        clock.handle_event(LogAdded("a line between"))
    return clock.take_seconds()


def test_a_first_start_is_timed_from_the_start_of_its_process() -> None:
    ready = ServerStatus(ServerState.READY)
    states = (
        (0.0, ServerStatus(ServerState.PREPARING)),
        (2.0, ServerStatus(ServerState.LOADING)),
        (5.0, ServerStatus(ServerState.LOADING, 50.0)),
        (9.5, ready),
    )
    assert measure_load_time(*states) == 7.5


def test_a_restart_is_timed_from_the_end_of_the_earlier_service() -> None:
    states = (
        (0.0, ServerState.BUSY),
        (1.0, ServerState.DRAINING),
        (4.0, ServerState.RESTARTING),
        (5.0, ServerState.LOADING),
        (10.0, ServerState.READY),
    )
    assert measure_load_time(*((when, ServerStatus(state)) for when, state in states)) == 6.0


def test_the_pause_after_a_crash_is_not_counted() -> None:
    crashed = ServerStatus(ServerState.RESTARTING, error=EngineFailed("It crashed.", ""))
    assert (
        measure_load_time(
            (0.0, crashed), (8.0, ServerStatus(ServerState.LOADING)), (9.0, ServerStatus(ServerState.READY))
        )
        == 1.0
    )


def test_a_failed_load_has_no_time_and_each_time_is_reported_once() -> None:
    assert (
        measure_load_time(
            (0.0, ServerStatus(ServerState.LOADING)),
            (3.0, ServerStatus(ServerState.FAILED)),
            (9.0, ServerStatus(ServerState.READY)),
        )
        is None
    )
    assert (
        measure_load_time(
            (0.0, ServerStatus(ServerState.READY)),
            (1.0, ServerStatus(ServerState.BUSY)),
            (2.0, ServerStatus(ServerState.READY)),
        )
        is None
    )
    clock = LoadTimer(lambda: 1.0)
    clock.handle_event(ServerStatus(ServerState.LOADING))
    clock.handle_event(ServerStatus(ServerState.READY))
    assert (clock.take_seconds(), clock.take_seconds()) == (0.0, None)


async def launch_of(model: Path) -> Launch:
    return await prepare_launch(ServeOptions(model=model, built_in=True), Endpoint("127.0.0.1", 1, "key"))


async def test_times_are_kept_by_model_and_engine_and_their_median_counts(demo_model: Path, home: Path) -> None:
    launch = await launch_of(demo_model)
    assert expected_load_time(launch) is None
    for seconds in (60.0, 60.0, 3.0, 9.0, 4.0, 5.0, 4.5):  # the first two are the oldest, and no longer count
        save_load_time(launch, seconds)
    found = expected_load_time(launch)
    assert found is not None
    assert (found.seconds, found.loads) == (4.5, 5)
    save_load_time(launch, -1.0)
    assert expected_load_time(launch) == found
    assert expected_load_time(replace(launch, build=replace(launch.build, version="another"))) is None
    (home / "state" / "load-times.json").write_text("{")
    assert expected_load_time(launch) is None
    save_load_time(launch, 2.0)
    again = expected_load_time(launch)
    assert again is not None
    assert again.seconds == 2.0
