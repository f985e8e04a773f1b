"""Which measured speeds `prove` calls good evidence."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from launcher.app.measuring.machine_proof import _with_length, check_nothing_runs, find_doubts, measure_reply_rate
from launcher.app.measuring.saved_tunes import TuneUnderWay, hold_tune_lock
from launcher.app.serving.session import ServerSession
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest
from launcher.monitor.reply import Reply
from launcher.tuning.records import Prompt, Run
from launcher.tuning.statistics import Pair
from launcher.tuning.timed_request import build_request


def reply(rate: float | None, spoilt: str | None = None) -> Run:
    return Run("code", {}, began_s=0, wall_s=1, decode_rate=rate, spoilt=spoilt)


STEADY = [[reply(50.0), reply(52.0)], [reply(30.0), reply(29.0)]]
CALM = [Pair(50.0, 49.0), Pair(51.0, 51.0)]


def test_steady_replies_are_good_evidence() -> None:
    assert find_doubts(STEADY, CALM) == ""
    assert find_doubts(STEADY, []) == ""


@pytest.mark.parametrize(
    ("replies", "pairs", "doubt"),
    [
        ([STEADY[0], [reply(30.0), reply(15.0)]], CALM, "vary by 47 %"),
        (STEADY, [Pair(2722.7, 900.0), Pair(532.5, 660.0), Pair(1500.0, 1500.0)], "vary by 69 %"),
        ([STEADY[0], [reply(30.0)]], CALM, "a single reply"),
        ([STEADY[0], [reply(30.0), reply(30.0, "Another program uses the GPU.")]], CALM, "disturbed"),
        ([[reply(50.0), reply(None)]], CALM, "disturbed"),
    ],
)
def test_doubts_name_unsteady_disturbed_and_single_replies(
    replies: list[list[Run]], pairs: list[Pair], doubt: str
) -> None:
    assert doubt in find_doubts(replies, pairs)


def test_nothing_is_measured_beside_a_tune() -> None:
    with hold_tune_lock(), pytest.raises(TuneUnderWay):
        check_nothing_runs()
    check_nothing_runs()


def test_replies_of_a_load_do_not_end_before_their_length() -> None:
    prompt = Prompt("code", (("user", "Write a parser."),), 160, sampling={"temperature": 0.7, "top_p": 0.9})
    asked = build_request(_with_length(prompt, 700), seed=1).body()
    wanted = {"max_tokens": 700, "ignore_eos": True, "temperature": 0, "top_p": 0.9}
    assert {name: asked[name] for name in wanted} == wanted


async def test_a_reply_is_timed_with_and_without_the_monitor(
    demo_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ServerSession()
    monitor, send, taken = session.monitor, session.send_request, list[int]()

    async def send_and_wait(*given: Any, **named: Any) -> Reply:  # noqa: ANN401
        before = monitor.snapshot_count
        reply = await send(*given, **named)
        async with asyncio.timeout(60):
            while taken and monitor.snapshot_count == before:
                await asyncio.sleep(0.01)
        taken.append(monitor.snapshot_count - before)
        return reply

    monkeypatch.setattr(session, "send_request", send_and_wait)
    try:
        await session.start(StartRequest(ServeOptions(demo_model, built_in=True, threads=1, context=2_048)))
        await monitor.end()
        request = build_request(Prompt("code", (("user", "Write a parser."),), 32), seed=1)
        for monitored in (False, True):
            assert await measure_reply_rate(session, request, monitored=monitored) > 0
    finally:
        await session.stop()
    assert taken[0] == 0 < taken[1]
