"""Real use counted on the real engine, and advice from it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

import pytest

from launcher.app import settings
from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.serving import use_counting
from launcher.app.serving.session import ServerSession
from launcher.app.serving.use_counting import UseCounting, find_advice, settings_for_history
from launcher.app.settings_declared import ADVICE, VALUE_AUTO
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import Launch, prepare_launch
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import ReplyProgress
from launcher.monitor.meter import Acceptance
from launcher.monitor.monitor import MonitorPeriods
from launcher.monitor.traffic import Counters, Traffic, parse_counters
from launcher.tuning.history import History, history_file
from launcher.tuning.history_environment import Environment
from launcher.tuning.use_counts import UseCounts, use_counts_key
from tests.tuning.test_advice import accepted_by_position, runs_at, use_counts

PATIENCE_S = 30.0


def demo() -> ServeOptions:
    return replace(make_unresolved_options("demo", ServeOptions), draft=2)


@pytest.fixture
async def session() -> AsyncIterator[ServerSession]:
    serving = ServerSession()
    serving.monitor.periods = MonitorPeriods(metrics_s=0.05, metrics_rest_s=0.05)
    yield serving
    await serving.stop()


async def counters_after(session: ServerSession, known: Counters | None) -> Counters:
    """Wait until the monitor has read counters other than these."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (now := session.monitor._counters) is None or (known and now.predicted_n == known.predicted_n):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
    return now


async def generate_reply(session: ServerSession, before: Counters) -> Counters:
    """Generate a reply, and return the counters after it."""
    await session.send_request(
        ChatRequest([{"role": "user", "content": "Count."}], max_tokens=64, temperature=0.0, seed=1)
    )
    return await counters_after(session, before)


async def test_counts_are_those_of_the_engine(session: ServerSession) -> None:
    counting = UseCounting(session)
    await session.start(StartRequest(demo()))
    before = await counters_after(session, None)
    after = await generate_reply(session, before)
    own = parse_counters(await session.supervisor.client.read_metrics())
    launch = session.supervisor.launch
    assert launch is not None
    with session.monitor.pause_traffic_reports():
        await generate_reply(session, after)
    await session.stop()
    await counting.close()
    assert session.monitor.on_traffic is None
    with History() as history:
        (counts,) = history.load_use(use_counts_key(Environment.for_launch(launch)))
    assert counts.settings == settings_for_history(launch)
    assert counts.settings["draft"] == 2
    assert counts.tokens == own.predicted_n - before.predicted_n
    assert counts.tokens - counts.steps == own.accepted - before.accepted
    grown = tuple(b - a for a, b in zip((*before.accepted_by_position, 0, 0), own.accepted_by_position, strict=False))
    assert counts.accepted == grown
    assert counts.seconds == pytest.approx(own.predicted_s - before.predicted_s)


class SessionWithLaunch:
    """A session that only has a launch."""

    is_idle = is_lent = False

    def __init__(self, launch: Launch) -> None:
        self.supervisor = self
        self.launch = launch
        self.monitor = self
        self.on_traffic = None


@pytest.fixture
async def launch() -> Launch:
    return await prepare_launch(demo(), Endpoint(0, ""))


class SessionThatStarts(SessionWithLaunch):
    """A session whose server starts at once with what it is told. Nobody waits; `on_quiet` is called once before."""

    held_requests = 0
    chosen: Mapping[str, object] = {}

    def __init__(self, launch: Launch, on_quiet: Callable[[], None]) -> None:
        super().__init__(launch)
        self.health_watch, self.notices, self._on_quiet = self, list[str](), on_quiet
        self.advice = None

    @property
    def reply_progress(self) -> ReplyProgress:
        self._on_quiet()
        self._on_quiet = lambda: None
        return ReplyProgress()

    async def start(self, request: StartRequest) -> None:
        self.launch = replace(self.launch, options=request.options)
        self.notices += [notice.text for notice in request.notices]


def traffic_at(draft: int, step_s: float) -> Traffic:
    """Return the traffic of 300 steps with this draft length."""
    accepted = accepted_by_position(300, draft)
    tokens = 300 + sum(accepted)
    return Traffic(tokens, tokens / (300 * step_s), Acceptance(300 * draft, sum(accepted), (300,) * draft, accepted))


async def test_a_slower_change_is_undone_though_a_reply_ended_just_before_it_and_long_after_nobody_asked(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use_counting, "_QUIET_S", 0.0)
    settings.change_setting(ADVICE, VALUE_AUTO)
    launch = replace(launch, options=replace(launch.options, draft=1))
    with History() as history:
        times = {1: 0.02, 2: 0.0201, 4: 0.0202}
        history.add_runs(
            history.begin_session("tune", Environment.for_launch(launch), {"draft": 0}),
            runs_at((1, 2, 4), times=times, kv=None),
        )
    now_s, step_s = 0.0, 0.02
    session = SessionThatStarts(launch, lambda: counting.add_traffic(traffic_at(1, 0.02)))
    counting = UseCounting(session, clock=lambda: now_s)  # type: ignore[arg-type]

    async def pass_minutes(minutes: int, notices: int) -> None:
        nonlocal now_s
        for _ in range(minutes):
            if len(session.notices) == notices:
                return
            now_s += 60.1
            counting.add_traffic(traffic_at(session.launch.options.draft, step_s))
            assert counting._writing is not None
            await counting._writing

    await pass_minutes(15, 1)
    assert session.launch.options.draft == 4
    now_s, step_s = now_s + 600.0, 0.06
    await pass_minutes(70, 2)
    assert session.launch.options.draft == 1
    assert [notice.split(".")[0] for notice in session.notices] == ["Draft 4 from now on", "Draft 1 again"]
    await counting.close()


TRAFFIC = Traffic(100, 50.0, Acceptance(80, 60, (40, 40), (35, 25)))


async def test_counts_are_saved_once_a_minute(launch: Launch) -> None:
    now_s = 1.0
    counting = UseCounting(SessionWithLaunch(launch), clock=lambda: now_s)  # type: ignore[arg-type]
    place = use_counts_key(Environment.for_launch(launch))
    counting.add_traffic(TRAFFIC)
    now_s = 59.0
    counting.add_traffic(TRAFFIC)
    with History() as history:
        assert history.load_use(place) == ()
    now_s = 61.0
    counting.add_traffic(TRAFFIC)
    with History() as history:
        async with asyncio.timeout(60):
            while not history.load_use(place):
                await asyncio.sleep(0.01)
        assert history.load_use(place) == (UseCounts(settings_for_history(launch), 300, 6.0, 120, (105, 75)),)
    now_s = 62.0
    counting.add_traffic(TRAFFIC)
    await counting.close()
    with History() as history:
        assert history.load_use(place)[0].tokens == 400


async def test_nothing_is_counted_or_advised_while_the_setting_is_off(launch: Launch) -> None:
    store_use_and_runs(launch)
    assert find_advice(launch) is not None
    settings.change_setting(ADVICE, False)
    assert find_advice(launch) is None
    counting = UseCounting(SessionWithLaunch(launch))  # type: ignore[arg-type]
    place = use_counts_key(Environment.for_launch(launch))
    with History() as history:
        before = history.load_use(place)
    counting.add_traffic(TRAFFIC)
    await counting.close()
    with History() as history:
        assert history.load_use(place) == before


async def test_no_file_is_written_without_use(launch: Launch) -> None:
    counting = UseCounting(SessionWithLaunch(launch))  # type: ignore[arg-type]
    await counting.close()
    assert not history_file().exists()


async def test_a_write_error_is_only_logged(launch: Launch, caplog: pytest.LogCaptureFixture) -> None:
    history_file().mkdir(parents=True)
    counting = UseCounting(SessionWithLaunch(launch))  # type: ignore[arg-type]
    counting.add_traffic(TRAFFIC)
    await counting.close()
    assert "cannot be saved" in caplog.text
    assert find_advice(launch) is None


def store_use_and_runs(launch: Launch) -> None:
    """Store use with draft length 2, where most drafts were accepted, and measurements with draft lengths 1, 2 and
    4."""
    here = Environment.for_launch(launch)
    with History() as history:
        counts = use_counts(2)
        mine = UseCounts(settings_for_history(launch), counts.tokens, counts.seconds, counts.steps, counts.accepted)
        history.add_use(use_counts_key(here), [mine])
        history.add_runs(history.begin_session("tune", here, {"draft": 0}), runs_at((1, 2, 4), kv=None))


async def test_advice_is_for_this_machine_and_these_settings(launch: Launch) -> None:
    assert find_advice(launch) is None
    store_use_and_runs(launch)
    advice = find_advice(launch)
    assert advice is not None
    assert (advice.draft, advice.better) == (2, 4)
    assert (
        find_advice(
            await prepare_launch(replace(make_unresolved_options("demo", ServeOptions), draft=1), Endpoint(0, ""))
        )
        is None
    )
