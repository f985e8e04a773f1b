"""Speed of attached servers: by the timings of the engine if it reports any, else by our clock; unknown figures."""

import asyncio
import json
from pathlib import Path

import pytest

from launcher.app.measuring.attach_bench import attached_bench, measure_attached, unknown_reasons
from launcher.app.measuring.saved_tunes import hold_tune_lock
from launcher.app.serving.attach import AttachedServer, attach_server
from launcher.app.serving.session import ServerSession
from launcher.base.errors import Refused
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.address import parse_address
from launcher.engine.server.start_request import StartRequest
from launcher.tuning.measured_speed import MeasuredSpeed
from launcher.tuning.records import Run
from launcher.tuning.workloads import load_workload
from tests import forked
from tests.app.serving.test_attach import KEY, MODELS, Answer, reply, serve_answers

MIXED = load_workload("mixed")
STANDARD = {"messages", "model", "stream", "stream_options", "max_tokens", "temperature", "seed", "top_p"}


def event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def answer_in_events(*, usage: bool, pause_s: float = 0.005) -> Answer:
    """A reply of ten words, 20 tokens by its own count."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for _ in range(10):
            await asyncio.sleep(pause_s)
            writer.write(event({"choices": [{"delta": {"content": "word "}}]}))
            await writer.drain()
        if usage:
            writer.write(event({"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 20}}))
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()

    return answer


async def measure_answer(answer: Answer, runs: int = 2) -> tuple[MeasuredSpeed, list[bytes]]:
    routes: dict[str, Answer] = {"/v1/models": MODELS, "/v1/chat/completions": answer}
    async with (
        serve_answers(routes) as (url, requests),
        attach_server(parse_address(url), KEY) as server,
        attached_bench(server) as bench,
    ):
        result = await measure_attached(bench, MIXED, runs=runs)
    return result, [each for each in requests if each.startswith(b"POST")]


async def test_another_server_is_measured_by_wall_time_and_its_token_counts() -> None:
    result, requests = await measure_answer(answer_in_events(usage=True))
    assert result.clock == "wall"
    assert result.decode
    assert result.prefill
    assert result.first_token
    assert result.decode.n == result.prefill.n == 2 * len(MIXED.prompts)
    assert 0 < result.decode.mean <= 19 / (9 * 0.005)  # no faster than the server sent the tokens
    assert 0 < result.prefill.mean <= 50 / 0.005
    assert result.first_token.mean >= 0.005
    assert result.acceptance is None
    assert "no drafts" in unknown_reasons(result)["acceptance"]
    assert len(requests) == 1 + 2 * len(MIXED.prompts), "one reply warms up"
    bodies = [json.loads(each.partition(b"\r\n\r\n")[2]) for each in requests]
    assert all(body["stream_options"] == {"include_usage": True} for body in bodies)
    assert len({body["messages"][0]["content"][:8] for body in bodies}) == 3, "no round begins as another"
    assert {"max_tokens", "temperature", "seed"} < bodies[0].keys() <= STANDARD


async def test_a_reply_without_an_end_is_reported() -> None:
    async def send_endless_events(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        while True:
            writer.write(event({"choices": [{"delta": {"content": "word " * 1_000}}]}))
            await writer.drain()

    with pytest.raises(Refused, match="did not stop after the requested 24 tokens") as raised:
        await measure_answer(send_endless_events)
    assert "--max-tokens" not in str(raised.value)


async def test_events_are_not_counted_as_tokens() -> None:
    result, _ = await measure_answer(answer_in_events(usage=False), runs=1)
    assert (result.prefill, result.decode) == (None, None)
    assert "no token counts" in unknown_reasons(result)["decode"]
    assert result.first_token


async def test_a_server_that_refuses_token_counts_is_asked_without_them() -> None:
    plain = answer_in_events(usage=False)
    requests: list[int] = []

    async def refuse_stream_options(writer: asyncio.StreamWriter) -> None:
        requests.append(1)
        if len(requests) == 1:
            writer.write(reply({"error": {"message": "unknown field stream_options"}}, "400 Bad Request"))
            await writer.drain()
        else:
            assert not isinstance(plain, bytes)
            await plain(writer)

    result, bodies = await measure_answer(refuse_stream_options, runs=1)
    assert result.decode is None
    assert b"stream_options" in bodies[0]
    assert not [each for each in bodies[1:] if b"stream_options" in each]


async def test_other_refusals_are_reported() -> None:
    with pytest.raises(Refused, match="too long"):
        await measure_answer(reply({"error": {"message": "the prompt is too long"}}, "413 Too Large"))


@pytest.mark.usefixtures("forked_commands")
@pytest.mark.thorough
async def test_the_real_engine_is_measured_by_its_own_timings(demo_model: Path) -> None:
    session = ServerSession()
    try:
        await session.start(StartRequest(ServeOptions(model=demo_model, built_in=True, threads=1, context=4_096)))
        endpoint = session.supervisor.endpoint
        server = AttachedServer(parse_address(endpoint.url), endpoint.api_key)
        await server.detect_features()
        seen: list[int] = []

        def note_number(_run: Run, number: int) -> None:
            seen.append(number)

        async with attached_bench(server) as bench:
            result = await measure_attached(bench, MIXED, runs=1, on_run=note_number)
        await server.close()
        command = await asyncio.to_thread(forked.run, "attach", f"{endpoint.url}/v1", "--bench", "--runs", "1")
    finally:
        await session.stop()
    assert result.clock == "engine"
    assert result.decode
    assert result.prefill
    assert result.decode.mean > 0
    assert result.prefill.mean > result.decode.mean, "a prompt is read in batches"
    assert result.acceptance is not None
    assert result.acceptance.rate
    assert unknown_reasons(result) == {}
    assert seen == [0, 1, 1, 1]
    words = command.stdout
    assert "Timed by the server" in words
    assert "% accepted" in words
    assert command.returncode == 0


@pytest.mark.usefixtures("forked_commands")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--runs", "3"], 1), (["--workload", "code"], 1), (["--bench", "--runs", "0"], 2), (["--bench", "--once"], 2)],
)
def test_contradictory_options_are_refused(arguments: list[str], code: int) -> None:
    result = forked.run("attach", "http://127.0.0.1:9", *arguments)
    assert result.returncode == code
    assert "Traceback" not in result.stderr


@pytest.mark.usefixtures("forked_commands")
@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1:9", "tune is already running"), ("nowhere.invalid", "invalid")]
)
def test_a_server_on_this_computer_is_not_measured_during_a_tune(host: str, expected: str) -> None:
    with hold_tune_lock():
        result = forked.run("attach", f"http://{host}", "--bench")
    assert result.returncode == 1
    assert expected in result.stderr
