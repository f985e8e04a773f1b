"""What a restart costs: timed by what a supervisor tells, kept by model and engine."""

from dataclasses import replace
from pathlib import Path

from launcher.base.errors import EngineFailed
from launcher.engine.endpoint import Endpoint
from launcher.engine.launch import Launch, ServeOptions, plan
from launcher.engine.load_times import LoadClock, keep_load_time, load_time
from launcher.engine.state import LogAdded, State, Status


def timed(*events: tuple[float, Status]) -> float | None:
    now = 0.0
    clock = LoadClock(lambda: now)
    for now, event in events:  # noqa: B007 -- the clock reads it
        clock.note(event)
        clock.note(LogAdded("a line between"))
    return clock.take()


def test_a_first_start_is_timed_from_its_process_on() -> None:
    ready = Status(State.READY)
    states = (
        (0.0, Status(State.PREPARING)),
        (2.0, Status(State.LOADING)),
        (5.0, Status(State.LOADING, 50.0)),
        (9.5, ready),
    )
    assert timed(*states) == 7.5


def test_a_restart_is_timed_from_the_end_of_the_service_before() -> None:
    states = (
        (0.0, State.BUSY),
        (1.0, State.DRAINING),
        (4.0, State.RESTARTING),
        (5.0, State.LOADING),
        (10.0, State.READY),
    )
    assert timed(*((when, Status(state)) for when, state in states)) == 6.0


def test_waiting_after_a_crash_is_not_counted() -> None:
    crashed = Status(State.RESTARTING, error=EngineFailed("It crashed.", ""))
    assert timed((0.0, crashed), (8.0, Status(State.LOADING)), (9.0, Status(State.READY))) == 1.0


def test_what_failed_or_never_loaded_has_no_time_and_a_time_is_told_once() -> None:
    assert timed((0.0, Status(State.LOADING)), (3.0, Status(State.FAILED)), (9.0, Status(State.READY))) is None
    assert timed((0.0, Status(State.READY)), (1.0, Status(State.BUSY)), (2.0, Status(State.READY))) is None
    clock = LoadClock(lambda: 1.0)
    clock.note(Status(State.LOADING))
    clock.note(Status(State.READY))
    assert (clock.take(), clock.take()) == (0.0, None)


async def launch_of(model: Path) -> Launch:
    return await plan(ServeOptions(model=model, built_in=True), Endpoint("127.0.0.1", 1, "key"))


async def test_times_are_kept_by_model_and_engine_and_their_median_counts(demo_model: Path, home: Path) -> None:
    launch = await launch_of(demo_model)
    assert load_time(launch) is None
    for seconds in (60.0, 60.0, 3.0, 9.0, 4.0, 5.0, 4.5):  # the first two are the oldest, and count no more
        keep_load_time(launch, seconds)
    found = load_time(launch)
    assert found is not None
    assert (found.seconds, found.measured) == (4.5, 5)
    keep_load_time(launch, -1.0)
    assert load_time(launch) == found
    assert load_time(replace(launch, build=replace(launch.build, version="another"))) is None
    (home / "state" / "load-times.json").write_text("{")
    assert load_time(launch) is None
    keep_load_time(launch, 2.0)
    again = load_time(launch)
    assert again is not None
    assert again.seconds == 2.0
