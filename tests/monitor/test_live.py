"""The monitor over the real engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from launcher import app
from launcher.engine.client import ChatRequest, EngineClient
from launcher.engine.launch import ServeOptions
from launcher.engine.state import State
from launcher.monitor import monitor
from launcher.monitor.monitor import Sampled
from launcher.monitor.traffic import between, read_counters

QUESTION = ChatRequest(
    [{"role": "user", "content": "What is quantisation?"}], max_tokens=300, seed=1, extra={"ignore_eos": True}
)


@asynccontextmanager
async def serving(model: Path, samples: list[Sampled] | None = None) -> AsyncIterator[app.Session]:
    listen = None if samples is None else samples.append
    async with app.serve(ServeOptions(model=model, built_in=True, threads=1), on_sample=listen) as server:
        yield server


async def test_what_the_stream_says_by_position_is_what_the_engine_counts(demo_model: Path) -> None:
    async with serving(demo_model) as server:
        before = read_counters(await server.supervisor.client.metrics())
        reply = await server.ask(QUESTION)
        traffic = between(before, read_counters(await server.supervisor.client.metrics()))
    assert traffic is not None
    assert reply.timings is not None
    assert traffic.predicted_n == reply.timings.predicted_n == 300
    assert traffic.acceptance.drafted == reply.acceptance.drafted == reply.timings.draft_n
    assert traffic.acceptance.accepted == reply.acceptance.accepted == reply.timings.draft_n_accepted
    assert traffic.acceptance.accepted_by_position == reply.acceptance.accepted_by_position
    first, second = reply.acceptance.rates_by_position
    assert first > second > 0


async def test_samples_come_ten_times_a_second_on_one_clock_while_tokens_come(demo_model: Path) -> None:
    samples: list[Sampled] = []
    async with serving(demo_model, samples) as server:
        await server.ask(QUESTION)
        samples.clear()
        while len(samples) < 12:
            await server.ask(QUESTION)
        series = server.monitor.series
    times = [sample.time_s for sample in samples]
    assert times == sorted(times)
    assert (times[-1] - times[0]) / (len(times) - 1) == pytest.approx(monitor.PERIOD_S, rel=0.5)
    assert len({len(each) for each in series.values()}) == 1
    assert [sample.value for sample in series["tokens_per_second"] if sample.value is not None]
    assert (series["host_memory_used_mib"].last or 0) > 0
    assert any(20 < (sample.value or 0) < 2_000 for sample in series["engine_memory_mib"])


async def test_what_cannot_be_known_is_absent_with_its_reason(demo_model: Path) -> None:
    async with serving(demo_model) as server:
        while not server.monitor.samples:
            await asyncio.sleep(0)
        power, rate = server.monitor.series["gpu_power_w"], server.monitor.series["tokens_per_second"]
        if power.last is None:
            assert power.absent
        assert rate.last is None
        assert rate.absent == "No reply is being generated."


async def test_another_clients_request_makes_the_server_busy(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "METRICS_PERIOD_S", 0.05)
    async with serving(demo_model) as server:
        endpoint = server.supervisor.endpoint
        endless = ChatRequest(QUESTION.messages, extra={"ignore_eos": True})
        async with EngineClient(endpoint.url, endpoint.api_key) as stranger:
            async with stranger.chat(endless) as deltas:
                await anext(deltas)
                await asyncio.wait_for(server.supervisor.wait_for(State.BUSY), 10)
            await asyncio.wait_for(server.supervisor.wait_for(State.READY), 10)
        while server.monitor.traffic is None:
            await asyncio.sleep(0.01)
        assert server.monitor.traffic.acceptance.accepted > 0
        rate = server.monitor.series["tokens_per_second"]
        while rate.last is None:
            await asyncio.sleep(0.01)
        assert rate.last == pytest.approx(server.monitor.traffic.tokens_per_second)
