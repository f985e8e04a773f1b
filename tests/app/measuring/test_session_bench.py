"""The bench on a real server: settings are served, and the figures of a reply are those of the engine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.measuring.attach_bench import attached_bench
from launcher.app.measuring.session_bench import SessionBench, options_with_settings
from launcher.app.serving.attach import attach_server
from launcher.app.serving.session import ServerSession
from launcher.base.errors import BadOption, LauncherError, ModelHasNoHead, Superseded
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.address import parse_address
from launcher.engine.server.client import ChatRequest, EngineClient
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import ServerState
from launcher.monitor.meter import sum_acceptance
from launcher.monitor.traffic import measure_traffic, parse_counters
from launcher.tuning.measured_speed import measure_speed
from launcher.tuning.other_requests import OTHER_REQUESTS_SEEN
from launcher.tuning.records import Prompt, Run

PROMPT = Prompt("story", (("user", "Tell me of a small boat on a wide river."),), 48, {"temperature": 0.0})


@asynccontextmanager
async def serving_bench(options: ServeOptions) -> AsyncIterator[SessionBench]:
    bench = SessionBench(ServerSession(), options)
    try:
        yield bench
    finally:
        await bench.close()


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=1_024)


@pytest.fixture
async def bench(options: ServeOptions) -> AsyncIterator[SessionBench]:
    async with serving_bench(options) as opened:
        yield opened
    assert registry.list_entries() == ()


async def test_settings_are_served_and_a_reply_has_the_figures_of_the_engine(bench: SessionBench) -> None:
    assert await bench.become({"draft": 2}) > 0
    assert await bench.become({"draft": 2}) == 0
    client = bench.session.supervisor.client
    before = parse_counters(await client.read_metrics())
    runs = [await bench.run(PROMPT, seed=seed) for seed in (1, 2)]
    counted = measure_traffic(before, parse_counters(await client.read_metrics()))
    assert counted is not None
    for run in runs:
        assert run.is_counted
        assert run.settings == {"draft": 2}
        assert run.prompt == "story"
        assert run.reply_tokens == 48
        assert run.prompt_tokens > 5
        assert run.cached_tokens == 0  # also when the same prompt was sent before
        assert run.prefill_rate
        assert run.decode_rate
        assert run.first_token_s
        assert 0 < run.first_token_s < run.wall_s
        assert run.began_s <= bench.now_s()
    drafts = sum_acceptance([run.acceptance for run in runs if run.acceptance])
    assert drafts.drafted == counted.acceptance.drafted > 0
    assert drafts.accepted == counted.acceptance.accepted
    assert drafts.accepted_by_position == counted.acceptance.accepted_by_position
    assert sum(run.reply_tokens for run in runs) == counted.predicted_n
    off = await bench.become({"draft": 0})
    assert off > 0
    run = await bench.run(PROMPT, seed=1)
    assert run.is_counted
    assert run.acceptance is None
    assert run.steps == 48


async def test_the_same_seed_gives_the_same_reply(bench: SessionBench) -> None:
    await bench.become({"draft": 3})
    warm = Prompt("warm", PROMPT.messages, 48, {"temperature": 1.0})
    first, second, other = [await bench.run(warm, seed=seed) for seed in (5, 5, 6)]
    assert first.acceptance == second.acceptance
    assert first.acceptance is not None
    assert other.is_counted


async def test_settings_that_fail_leave_no_process_and_the_next_trial_starts_anew(
    bench: SessionBench,
) -> None:
    await bench.become({"draft": 0})
    with pytest.raises(LauncherError):
        await bench.become({"draft": 0, "n_cpu_moe": 2})  # the built-in engine has no GPU
    assert bench.session.is_idle
    run = await bench.run(PROMPT, seed=1)
    assert run.error is not None
    assert not run.is_counted
    assert await bench.become({"draft": 0}) > 0
    assert (await bench.run(PROMPT, seed=1)).is_counted


@pytest.mark.thorough
async def test_a_model_without_a_head_is_measured_without_drafts(headless_model: Path) -> None:
    async with serving_bench(ServeOptions(model=headless_model, built_in=True, threads=1)) as bench:
        with pytest.raises(ModelHasNoHead):
            await bench.become({"draft": 1})
        await bench.become({"draft": 0})
        assert (await bench.run(PROMPT, seed=1)).reply_tokens


async def test_an_engine_crash_is_recorded_in_the_run(bench: SessionBench) -> None:
    await bench.become({"draft": 0})
    long = Prompt("long", PROMPT.messages, 6_000, sampling={"ignore_eos": True})
    asking = asyncio.create_task(bench.run(long, seed=1))
    await bench.session.supervisor.wait_for_state(ServerState.BUSY)
    process = bench.session.supervisor.process
    assert process is not None
    await process.stop((0.0, 0.0))
    run = await asking
    assert run.error
    assert not run.is_counted
    assert await bench.become({"draft": 0}) >= 0
    assert (await bench.run(PROMPT, seed=1)).is_counted


def make_stranger(bench: SessionBench) -> EngineClient:
    """Return another program, with connections of its own."""
    endpoint = bench.session.supervisor.endpoint
    return EngineClient(endpoint.url, endpoint.api_key)


async def ask_as(stranger: EngineClient, tokens: int, begun: asyncio.Event | None = None) -> None:
    """Send a request from another program and read the whole reply: after an aborted one the engine is busy for a
    while."""
    request = ChatRequest([{"role": "user", "content": "Hello"}], tokens, extra={"ignore_eos": True})
    async with stranger.chat(request) as deltas:
        async for _ in deltas:
            if begun is not None:
                begun.set()


@asynccontextmanager
async def others_asking(bench: SessionBench, tokens: int = 400, programs: int = 1) -> AsyncIterator[asyncio.Event]:
    """Send requests from other programs repeatedly, until the event is set or the block ends."""
    begun, over = asyncio.Event(), asyncio.Event()

    async def chat() -> None:
        async with make_stranger(bench) as stranger:
            while not over.is_set():
                await ask_as(stranger, tokens, begun)

    strangers = [asyncio.create_task(chat()) for _ in range(programs)]
    await begun.wait()
    try:
        yield over
    finally:
        over.set()
        await asyncio.gather(*strangers)


async def run_disturbed(bench: SessionBench, asking: Awaitable[Run], tokens: int = 400, programs: int = 1) -> Run:
    """Run our request while other programs send theirs, before, during and after it."""
    async with others_asking(bench, tokens, programs):
        return await asking


@pytest.mark.parametrize("slots", [1, pytest.param(2, marks=pytest.mark.thorough)])
# With three programs, one of their requests waits at any time.
@pytest.mark.parametrize(("tokens", "programs"), [(4, 3), (400, 1)])
async def test_a_request_of_another_program_during_a_run_spoils_it(
    options: ServeOptions, slots: int, tokens: int, programs: int
) -> None:
    async with serving_bench(replace(options, slots=slots)) as bench:
        await bench.become({"draft": 0})
        assert (await run_disturbed(bench, bench.run(PROMPT, seed=1), tokens, programs)).spoilt == OTHER_REQUESTS_SEEN
        assert (await bench.run(PROMPT, seed=1)).spoilt is None
        async with make_stranger(bench) as stranger:
            await ask_as(stranger, 4)  # a request between two runs disturbs neither
        assert (await bench.run(PROMPT, seed=1)).spoilt is None


@pytest.mark.thorough
async def test_only_a_request_of_another_program_spoils_runs_at_the_same_time(
    options: ServeOptions,
) -> None:
    async with serving_bench(replace(options, slots=3)) as bench:
        await bench.become({"draft": 2})
        both = await asyncio.gather(bench.run(PROMPT, seed=1), bench.run(PROMPT, seed=2))
        assert [run.spoilt for run in both] == [None, None]
        both = await asyncio.gather(bench.run(PROMPT, seed=1), run_disturbed(bench, bench.run(PROMPT, seed=2)))
        # At least the run that ended last is spoilt, mostly both are.
        assert OTHER_REQUESTS_SEEN in [run.spoilt for run in both]


@pytest.mark.thorough
async def test_a_spoilt_run_is_repeated(options: ServeOptions) -> None:
    # A slot for each: none of the others' requests waits until they are over, and then goes on.
    async with serving_bench(replace(options, slots=4, context=4_096)) as bench:
        await bench.become({"draft": 0})
        async with others_asking(bench, tokens=4, programs=3) as over:
            measured = await measure_speed(
                bench, [PROMPT], least_rounds=1, most_rounds=1, on_run=lambda _, number: over.set() if number else None
            )
        *spoilt, last = measured.runs
        assert [run.spoilt for run in spoilt] == [OTHER_REQUESTS_SEEN] * len(spoilt)
        assert spoilt
        assert measured.counted == (last,)


@pytest.mark.parametrize("counts", ["metrics", pytest.param("slots", marks=pytest.mark.thorough), "neither"])
async def test_requests_of_others_are_seen_on_a_server_that_others_started(options: ServeOptions, counts: str) -> None:
    async with serving_bench(replace(options, slots=2)) as ours:
        await ours.become({"draft": 0})
        endpoint = ours.session.supervisor.endpoint
        async with (
            attach_server(parse_address(endpoint.url), endpoint.api_key) as server,
            attached_bench(server) as bench,
        ):
            if counts != "metrics":
                server.features = replace(server.features, has_counters=False)
            if counts == "neither":
                server.features = replace(server.features, missing={"/slots": "not offered"})
            run = await run_disturbed(ours, bench.run(PROMPT, seed=1))
            assert counts == "slots" or run.spoilt == (None if counts == "neither" else OTHER_REQUESTS_SEEN)
            result = await server.read_counters()
            assert (result is None) is (counts == "neither")
            assert result is None or (result.predicted_n > 0) is (counts == "metrics")
            assert result is None or result.processing == 0
            assert (await bench.run(PROMPT, seed=1)).spoilt is None


@pytest.mark.parametrize("how", ["stopped", "changed"])
async def test_another_user_of_the_session_may_take_the_server(
    bench: SessionBench, options: ServeOptions, how: str
) -> None:
    await bench.become({"draft": 0})
    await (bench.session.stop() if how == "stopped" else bench.session.start(StartRequest(options)))
    if how == "stopped":
        with pytest.raises(Superseded):
            await bench.run(PROMPT, seed=1)
    with pytest.raises(Superseded):
        await bench.become({"draft": 1})


async def test_a_stop_during_a_start_belongs_to_another_user_of_the_session(bench: SessionBench) -> None:
    starting = asyncio.create_task(bench.become({"draft": 0}))
    while bench.session.is_idle:
        await asyncio.sleep(0.01)
    await bench.session.stop()
    with pytest.raises((Superseded, asyncio.CancelledError)):
        await starting


def test_settings_of_a_measurement_become_options(options: ServeOptions) -> None:
    found = options_with_settings(
        options, {"draft": 3, "kv": "q8_0", "p_min": 0.75, "ngram": "ngram-simple", "ubatch": None}
    )
    assert (found.draft, found.kv, found.ubatch, found.context) == (3, "q8_0", None, 1_024)
    assert (found.ngram, found.p_min, found.extra, found.spec_type) == ("ngram-simple", 0.75, (), "draft-mtp")
    with pytest.raises(BadOption, match="colour"):
        options_with_settings(options, {"colour": "red"})
    with pytest.raises(BadOption):
        options_with_settings(options, {"draft": 2.5})
    with pytest.raises(BadOption):
        options_with_settings(options, {"draft": -1})


@pytest.mark.thorough
async def test_arguments_reach_the_engine(bench: SessionBench) -> None:
    await bench.become({"draft": 2, "p_min": 0.0, "draft_sampling": "probabilistic"})
    launch = bench.session.supervisor.launch
    assert launch is not None
    assert "--spec-draft-p-min 0.0 --spec-draft-sampling probabilistic" in " ".join(launch.command.arguments)
    await bench.become({"draft": 0, "p_min": 0.0, "draft_sampling": "probabilistic"})
    launch = bench.session.supervisor.launch
    assert launch is not None
    assert "--spec" not in " ".join(launch.command.arguments)
    await bench.become({"draft": 2})
    assert (await bench.run(PROMPT, seed=1)).is_counted
