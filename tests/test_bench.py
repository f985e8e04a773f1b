"""The real bench: settings become a server's, and a reply's figures are the engine's own."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.errors import BadOption, LauncherError, ModelHasNoHead, Superseded
from launcher.bench import SessionBench, options_with, serving_bench
from launcher.engine import registry
from launcher.engine.client import ChatRequest
from launcher.engine.launch import ServeOptions
from launcher.engine.state import State
from launcher.monitor.meter import total
from launcher.monitor.traffic import between, read_counters
from launcher.tuning.records import Prompt

PROMPT = Prompt("story", (("user", "Tell me of a small boat on a wide river."),), 48, {"temperature": 0.0})


@pytest.fixture
def options(demo_model: Path) -> ServeOptions:
    return ServeOptions(model=demo_model, built_in=True, threads=1, context=1_024)


@pytest.fixture
async def bench(options: ServeOptions) -> AsyncIterator[SessionBench]:
    async with serving_bench(options) as opened:
        yield opened
    assert registry.running() == ()


async def test_settings_are_served_and_a_reply_has_the_engines_own_figures(bench: SessionBench) -> None:
    assert await bench.become({"draft": 2}) > 0
    assert await bench.become({"draft": 2}) == 0
    client = bench.session.supervisor.client
    before = read_counters(await client.metrics())
    runs = [await bench.run(PROMPT, seed=seed) for seed in (1, 2)]
    counted = between(before, read_counters(await client.metrics()))
    assert counted is not None
    for run in runs:
        assert run.counts
        assert run.settings == {"draft": 2}
        assert run.prompt == "story"
        assert run.reply_tokens == 48
        assert run.prompt_tokens > 5
        assert run.cached_tokens == 0  # the second time, too
        assert run.prefill_rate
        assert run.decode_rate
        assert run.first_token_s
        assert 0 < run.first_token_s < run.wall_s
        assert run.began_s <= bench.now_s()
    drafts = total([run.acceptance for run in runs if run.acceptance])
    assert drafts.drafted == counted.acceptance.drafted > 0
    assert drafts.accepted == counted.acceptance.accepted
    assert drafts.accepted_by_position == counted.acceptance.accepted_by_position
    assert sum(run.reply_tokens for run in runs) == counted.predicted_n
    off = await bench.become({"draft": 0})
    assert off > 0
    run = await bench.run(PROMPT, seed=1)
    assert run.counts
    assert run.acceptance is None
    assert run.steps == 48


async def test_the_same_seed_gives_the_same_reply(bench: SessionBench) -> None:
    await bench.become({"draft": 3})
    warm = Prompt("warm", PROMPT.messages, 48, {"temperature": 1.0})
    first, second, other = [await bench.run(warm, seed=seed) for seed in (5, 5, 6)]
    assert first.acceptance == second.acceptance
    assert first.acceptance is not None
    assert other.counts


async def test_what_cannot_be_served_leaves_nothing_and_the_next_is_a_start_of_its_own(
    bench: SessionBench,
) -> None:
    await bench.become({"draft": 0})
    with pytest.raises(LauncherError):
        await bench.become({"draft": 0, "n_cpu_moe": 2})  # the built-in engine has no GPU
    assert bench.session.rests
    run = await bench.run(PROMPT, seed=1)
    assert run.error is not None
    assert not run.counts
    assert await bench.become({"draft": 0}) > 0
    assert (await bench.run(PROMPT, seed=1)).counts


async def test_a_model_without_a_head_is_measured_without_drafts_only(headless_model: Path) -> None:
    async with serving_bench(ServeOptions(model=headless_model, built_in=True, threads=1)) as bench:
        with pytest.raises(ModelHasNoHead):
            await bench.become({"draft": 1})
        await bench.become({"draft": 0})
        assert (await bench.run(PROMPT, seed=1)).reply_tokens


async def test_an_engine_that_dies_is_told_in_the_run(bench: SessionBench) -> None:
    await bench.become({"draft": 0})
    long = Prompt("long", PROMPT.messages, 900)
    asking = asyncio.create_task(bench.run(long, seed=1))
    await bench.session.supervisor.wait_for(State.BUSY)
    process = bench.session.supervisor.process
    assert process is not None
    await process.stop((0.0, 0.0))
    run = await asking
    assert run.error
    assert not run.counts
    assert await bench.become({"draft": 0}) >= 0
    assert (await bench.run(PROMPT, seed=1)).counts


async def test_a_chat_meanwhile_spoils_a_run_and_several_runs_at_once_do_not(options: ServeOptions) -> None:
    async with serving_bench(replace(options, slots=2)) as bench:
        await bench.become({"draft": 0})
        over = asyncio.Event()

        async def chat() -> None:
            while not over.is_set():
                await bench.session.ask(ChatRequest([{"role": "user", "content": "Hello"}], 900))

        chatting = asyncio.create_task(chat())
        await bench.session.supervisor.wait_for(State.BUSY)
        run = await bench.run(PROMPT, seed=1)
        over.set()
        await chatting
        assert run.spoilt == "The server was asked something else meanwhile."
        both = await asyncio.gather(bench.run(PROMPT, seed=1), bench.run(PROMPT, seed=2))
        assert [run.spoilt for run in both] == [None, None]


@pytest.mark.parametrize("how", ["stopped", "changed"])
async def test_somebody_else_may_take_the_server(bench: SessionBench, options: ServeOptions, how: str) -> None:
    await bench.become({"draft": 0})
    await (bench.session.stop() if how == "stopped" else bench.session.start(options))
    if how == "stopped":
        with pytest.raises(Superseded):
            await bench.run(PROMPT, seed=1)
    with pytest.raises(Superseded):
        await bench.become({"draft": 1})


async def test_a_stop_while_it_starts_is_somebody_elses(bench: SessionBench) -> None:
    starting = asyncio.create_task(bench.become({"draft": 0}))
    while bench.session.rests:
        await asyncio.sleep(0.01)
    await bench.session.stop()
    with pytest.raises((Superseded, asyncio.CancelledError)):
        await starting


def test_settings_of_a_measurement_become_options(options: ServeOptions) -> None:
    found = options_with(options, {"draft": 3, "kv": "q8_0", "p_min": 0.75, "ngram": "ngram-simple", "ubatch": None})
    assert (found.draft, found.kv, found.ubatch, found.context) == (3, "q8_0", None, 1_024)
    assert found.spec_type == "draft-mtp,ngram-simple"
    assert found.extra == ("--spec-draft-p-min", "0.75")
    off = options_with(options, {"draft": 0, "p_min": 0.75, "ngram": "ngram-simple"})
    assert (off.extra, off.spec_type) == ((), "draft-mtp")
    assert options_with(options, {"draft": 1, "ngram": "none"}).spec_type == "draft-mtp"
    with pytest.raises(BadOption, match="colour"):
        options_with(options, {"colour": "red"})
    with pytest.raises(BadOption):
        options_with(options, {"draft": 2.5})
    with pytest.raises(BadOption):
        options_with(options, {"draft": -1})


async def test_arguments_reach_the_engine(bench: SessionBench) -> None:
    await bench.become({"draft": 2, "p_min": 0.0, "draft_sampling": "probabilistic"})
    launch = bench.session.supervisor.launch
    assert launch is not None
    assert tuple(launch.command.arguments)[-4:] == (
        "--spec-draft-p-min",
        "0.0",
        "--spec-draft-sampling",
        "probabilistic",
    )
    assert (await bench.run(PROMPT, seed=1)).counts
