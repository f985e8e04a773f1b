"""A benchmark of a server that runs: its counts are the engine's own."""

import asyncio
import json
from pathlib import Path

import pytest

from launcher.app.measuring.attach_bench import attached_bench
from launcher.app.measuring.benchmark import (
    BenchmarkRequest,
    attached_target,
    compare_targets,
    run_benchmark,
    running_target,
    serve_target,
)
from launcher.app.serving.attach import attach_server
from launcher.app.serving.session import ServerSession
from launcher.base.errors import BadOption, NothingMeasured
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.address import parse_address
from launcher.engine.server.start_request import StartRequest
from launcher.monitor.meter import sum_acceptance
from launcher.monitor.traffic import measure_traffic, parse_counters
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment
from launcher.tuning.records import Prompt, Run
from launcher.tuning.session_file import anonymize, session_json
from launcher.tuning.workloads import Workload
from tests.app.measuring.test_attach_bench import answer_in_events
from tests.app.serving.test_attach import KEY, MODELS, Answer, serve_answers

PROMPTS = (
    Prompt("one", (("user", "What is MTP?"),), 70, {"temperature": 1.0}),
    Prompt("two", (("user", "What happens to a draft that is wrong?"),), 70, {"temperature": 0.0}),
    Prompt("sized", (("user", "What came in?"),), 30, size=500),
)
WORK = Workload("boats", "Our trips", 1, PROMPTS, "this test")


async def test_acceptance_and_tokens_are_exactly_the_counts_of_the_engine(demo_model: Path) -> None:
    session = ServerSession()
    received: list[tuple[int, Run]] = []
    try:
        await session.start(
            StartRequest(ServeOptions(model=demo_model, built_in=True, threads=1, context=2_048, draft=4))
        )
        client, launch = session.supervisor.client, session.supervisor.launch
        before = parse_counters(await client.read_metrics())
        async with running_target(registry.find_server(None)) as target:
            made = await run_benchmark(
                target, BenchmarkRequest(WORK, rounds=3), lambda run, number: received.append((number, run))
            )
        counted = measure_traffic(before, parse_counters(await client.read_metrics()))
    finally:
        await session.stop()
    assert counted is not None
    drafts = sum_acceptance([run.acceptance for _, run in received if run.acceptance])
    assert drafts.drafted == counted.acceptance.drafted > 0
    assert drafts.accepted == counted.acceptance.accepted > 0
    assert drafts.accepted_by_position == counted.acceptance.accepted_by_position
    assert sum(run.reply_tokens for _, run in received) == counted.predicted_n
    found = made.measured
    assert found.runs == tuple(run for number, run in received if number), "all but the reply that warms up"
    assert found.acceptance == sum_acceptance([run.acceptance for run in found.runs if run.acceptance])
    assert {run.prompt_tokens for run in found.runs if run.prompt == "sized"} == {500}
    assert not any(run.cached_tokens for run in found.runs)
    assert made.environment.model.name == "MTP demo"
    assert made.settings["draft"] == 4
    assert launch is not None
    own = Environment.for_launch(launch)
    assert (made.environment.engine, made.environment.engine_version) == (own.engine, own.engine_version)
    with History() as history:
        kept = history.load(made.history_id or "")
    assert kept.runs == found.runs
    assert f"tokens/s for {WORK.name} with draft 4." in str(kept.result["sentence"])
    shared = anonymize(kept)
    assert {run.prompt for run in shared.runs} == {"prompt 1", "prompt 2", "prompt 3"}
    assert [word for word in ("boats", "trips") if word in session_json(shared)] == []
    assert kept.result["acceptance"] == found.acceptance.rate


async def test_settings_that_do_not_fit_are_recorded_as_a_failure(demo_model: Path) -> None:
    session = ServerSession()
    options = ServeOptions(model=demo_model, built_in=True, threads=1, context=512)
    try:
        long = Workload("long", "Long", 1, (Prompt("long", (("user", "What?"),), 8, size=900),), "this test")
        with pytest.raises(BadOption, match=r"context of 512 tokens is too small for long .900 to read, 8 to write"):
            await serve_target(session, options, "demo", workload=long)
        target = await serve_target(session, options, "demo")
        with pytest.raises(NothingMeasured, match="context"):
            await run_benchmark(target, BenchmarkRequest(long, rounds=1), lambda *_: None)
        small = Workload("small", "Small", 1, (Prompt("small", (("user", "What?"),), 8, size=2),), "this test")
        with pytest.raises(BadOption, match="shortest prompt has"):
            await run_benchmark(target, BenchmarkRequest(small, rounds=1), lambda *_: None)
    finally:
        await session.stop()
    with History() as history:
        (kept,) = history.find_sessions()
    assert kept.sentence is not None
    assert "context" in kept.sentence


async def test_a_memory_finding_about_the_server_process_ends_the_measurement(demo_model: Path) -> None:
    session = ServerSession()
    spilled = {"code": "spill", "sentence": "300 MiB lie in host memory."}
    try:
        await session.start(StartRequest(ServeOptions(model=demo_model, built_in=True, threads=1, context=2_048)))
        assert session._published is not None
        session._published.registration.update(health=(spilled,))
        assert session._published.registration.wait_written(20.0)
        work = Workload("test", "Test", 1, PROMPTS[:1], "this test")
        with pytest.raises(NothingMeasured, match="300 MiB lie in host memory"):
            async with running_target(registry.find_server(None)) as target:
                await run_benchmark(target, BenchmarkRequest(work, rounds=1), lambda *_: None)
    finally:
        await session.stop()


async def test_the_machine_is_monitored_while_the_server_of_another_program_is_measured(demo_model: Path) -> None:
    session = ServerSession()
    try:
        await session.start(StartRequest(ServeOptions(model=demo_model, built_in=True, threads=1, context=2_048)))
        entry = registry.find_server(None)
        async with (
            attach_server(parse_address(entry.url), entry.api_key, engine_pid=entry.first.engine_pid) as server,
            attached_bench(server) as bench,
        ):
            async with asyncio.timeout(60):
                while bench.monitor.health_watch.activity is None:
                    await bench.run(PROMPTS[0], seed=1)
            assert bench.monitor.health_watch.health is not None
    finally:
        await session.stop()


async def test_another_kind_of_server_and_ours_are_measured_by_the_same_clock(demo_model: Path) -> None:
    session = ServerSession()
    routes: dict[str, Answer] = {"/v1/models": MODELS, "/v1/chat/completions": answer_in_events(usage=True)}
    turns: list[tuple[str, int]] = []
    try:
        options = ServeOptions(model=demo_model, built_in=True, threads=1, context=2_048)
        async with serve_answers(routes) as (url, requests), attached_target(url, KEY) as other:
            ours = await serve_target(session, options, "demo")
            found = await compare_targets([ours, other], WORK, 2, lambda name, _, number: turns.append((name, number)))
            with pytest.raises(BadOption, match="with itself"):
                await compare_targets([other, other], WORK, 2, lambda *_: None)
    finally:
        await session.stop()
    mine, theirs = found
    assert [each.name for each in found] == [ours.url, url]
    assert turns == [
        *((each, 0) for each in (ours.url, url)),
        *((each, 1) for each in (ours.url, url) for _ in PROMPTS),
        *((each, 2) for each in (url, ours.url) for _ in PROMPTS),
    ]
    assert mine.measured
    assert theirs.measured
    assert mine.measured.clock == theirs.measured.clock == "wall"
    assert mine.measured.acceptance
    assert theirs.measured.acceptance is None
    bodies = [json.loads(each.partition(b"\r\n\r\n")[2]) for each in requests if each.startswith(b"POST")]
    sized_to = [run.prompt_tokens for run in mine.measured.runs if run.prompt == "sized"]
    assert sized_to == [500, 500]
    assert max(len(body["messages"][0]["content"]) for body in bodies) > 900, "theirs has the same text"
    with History() as history:
        kept = {each.model: history.load(each.id) for each in history.find_sessions()}
    assert {each.runs[0].clock for each in kept.values()} == {"engine", "wall"}
    assert kept["some/model"].environment.engine == "another server"
