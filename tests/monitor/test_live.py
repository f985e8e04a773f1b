"""The monitor with the real engine."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from launcher.app.serving.serving import serve
from launcher.app.serving.session import ServerSession
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest, EngineClient
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import ServerState
from launcher.monitor.monitor import MonitorPeriods, MonitorSnapshot
from launcher.monitor.traffic import measure_traffic, parse_counters

QUESTION = ChatRequest(
    [{"role": "user", "content": "What is quantisation?"}], max_tokens=300, seed=1, extra={"ignore_eos": True}
)


@asynccontextmanager
async def serve_model(model: Path, samples: list[MonitorSnapshot] | None = None) -> AsyncIterator[ServerSession]:
    listen = None if samples is None else samples.append
    async with serve(ServeOptions(model=model, built_in=True, threads=1), on_snapshot=listen) as server:
        yield server


async def test_acceptance_by_position_equals_the_counts_of_the_engine(demo_model: Path) -> None:
    async with serve_model(demo_model) as server:
        before = parse_counters(await server.supervisor.client.read_metrics())
        reply = await server.send_request(QUESTION)
        traffic = measure_traffic(before, parse_counters(await server.supervisor.client.read_metrics()))
    assert traffic is not None
    assert reply.timings is not None
    assert traffic.predicted_n == reply.timings.predicted_n == 300
    assert traffic.acceptance.drafted == reply.acceptance.drafted == reply.timings.draft_n
    assert traffic.acceptance.accepted == reply.acceptance.accepted == reply.timings.draft_n_accepted
    assert traffic.acceptance.accepted_by_position == reply.acceptance.accepted_by_position
    first, second = reply.acceptance.rates_by_position
    assert first > second > 0


async def test_samples_come_ten_times_a_second_while_tokens_arrive(demo_model: Path) -> None:
    samples: list[MonitorSnapshot] = []
    async with serve_model(demo_model, samples) as server:
        await server.send_request(QUESTION)
        samples.clear()
        while len(samples) < 12:
            await server.send_request(QUESTION)
        series = server.monitor.series
    times = [sample.time_s for sample in samples]
    assert times == sorted(times)
    assert (times[-1] - times[0]) / (len(times) - 1) == pytest.approx(MonitorPeriods().generating_s, rel=0.5)
    assert len({len(each) for each in series.values()}) == 1
    assert [sample.value for sample in series["tokens_per_second"] if sample.value is not None]
    # The first few drafts of a reply would be a rate of 0 or 100 %.
    assert min(sample.acceptance.drafted for sample in samples if sample.acceptance is not None) >= 24
    assert (series["host_memory_used_mib"].last or 0) > 0
    assert any(20 < (sample.value or 0) < 2_000 for sample in series["engine_memory_mib"])


async def test_unknown_values_have_their_reason(demo_model: Path) -> None:
    async with serve_model(demo_model) as server:
        while not server.monitor.snapshot_count:
            await asyncio.sleep(0)
        power, rate = server.monitor.series["gpu_power_w"], server.monitor.series["tokens_per_second"]
        if power.last is None:
            assert power.absent
        assert rate.last is None
        assert rate.absent == "No reply is being generated."


async def test_another_engine_has_no_earlier_figures(demo_model: Path) -> None:
    samples: list[MonitorSnapshot] = []
    async with serve_model(demo_model, samples) as server:
        server.monitor.periods = MonitorPeriods(visible_s=0.05, reply_valid_s=3_600.0)
        await server.send_request(QUESTION)
        before = server.supervisor.engine_pid
        await server.start(StartRequest(ServeOptions(model=demo_model, built_in=True, threads=1, draft=1)))
        assert server.supervisor.engine_pid != before
        samples.clear()
        while len(samples) < 3:  # the first sample may be older than the change
            await asyncio.sleep(0.01)
    for name in ("tokens_per_second", "acceptance_percent"):
        assert [sample.readings[name].value for sample in samples[1:]] == [None] * (len(samples) - 1)
    assert samples[-1].acceptance is None


async def test_an_ended_reply_has_one_rate(demo_model: Path) -> None:
    samples: list[MonitorSnapshot] = []
    async with serve_model(demo_model, samples) as server:
        server.monitor.periods = MonitorPeriods(visible_s=0.05, metrics_s=0.05)
        counted = asyncio.Event()
        server.monitor.on_traffic = lambda _: counted.set()
        while not counted.is_set():  # the first one may end before the counters were read
            await server.send_request(QUESTION)
            await asyncio.sleep(0.1)
        reply = await server.send_request(QUESTION)
        counted.clear()
        ended_at = len(samples) + 1  # a sample may be on its way
        async with asyncio.timeout(60):
            await counted.wait()
            while samples[-1].readings["tokens_per_second"].value is not None or len(samples) < ended_at + 8:
                await asyncio.sleep(0.01)
    assert reply.timings is not None
    rates = {sample.readings["tokens_per_second"].value for sample in samples[ended_at:]}
    assert rates == {reply.timings.tokens_per_second, None}


async def test_the_rate_of_a_stream_to_another_client_is_known_while_it_goes_on(demo_model: Path) -> None:
    endless = ChatRequest(QUESTION.messages, extra={"ignore_eos": True})
    async with serve_model(demo_model) as server:
        endpoint = server.supervisor.endpoint
        async with EngineClient(endpoint.url, endpoint.api_key) as stranger, stranger.chat(endless) as deltas:
            async for _ in deltas:
                rate = server.monitor.series.get("tokens_per_second")
                if rate is not None and rate.last:
                    break
        assert server.monitor.traffic is None  # the engine's counters do not include the running reply yet
        assert server.monitor.series["acceptance_percent"].absent == (
            "Other clients' drafts are known when their reply ends."
        )


async def test_another_clients_request_makes_the_server_busy(demo_model: Path) -> None:
    async with serve_model(demo_model) as server:
        server.monitor.periods = MonitorPeriods(metrics_s=0.05)
        endpoint = server.supervisor.endpoint
        endless = ChatRequest(QUESTION.messages, extra={"ignore_eos": True})

        async def ask_as_a_stranger() -> None:
            async with EngineClient(endpoint.url, endpoint.api_key) as stranger:
                async with stranger.chat(endless) as deltas:
                    await anext(deltas)
                    await asyncio.wait_for(server.supervisor.wait_for_state(ServerState.BUSY), 60)
                await asyncio.wait_for(server.supervisor.wait_for_state(ServerState.READY), 60)

        # The first one may end before the counters were read, and any before a draft was accepted.
        while server.monitor.traffic is None or not server.monitor.traffic.acceptance.accepted:
            await ask_as_a_stranger()
            await asyncio.sleep(0.1)
        rate, ends_s = server.monitor.series["tokens_per_second"], time.monotonic() + 2
        while rate.last is None:
            await asyncio.sleep(0.01)
            if time.monotonic() > ends_s:  # a busy computer may take no sample while the figures are valid
                await ask_as_a_stranger()
                ends_s = time.monotonic() + 2
        assert rate.last > 0
