"""A malicious program on the server's port: an error in one sentence, in bounded time and memory."""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from launcher.base import http
from launcher.base.errors import LauncherError, Refused, Unreachable
from launcher.engine.server.client import ChatRequest, EngineClient
from tests.security.conftest import CONTROL_CHARACTERS

PROGRAM = Path(__file__).with_name("hostile_server.py")
HELLO = ChatRequest([{"role": "user", "content": "hello"}])
ANSWERS = [
    "endless headers", "one header without end", "endless body", "zip bomb", "deep json", "no json", "no http",
    "nothing", "redirect", "acting error", "slow headers", "slow body", "silence",
]  # fmt: skip
STREAMS = [
    "one event without end", "one comment without end", "wrong events", "wrong timings", "infinite timings",
    "endless headers", "no http", "no json", "nothing", "redirect", "acting error", "zip bomb", "slow headers",
]  # fmt: skip


@pytest.fixture
def hostile() -> Iterator[Callable[[str], str]]:
    """Starts the program with a fault and gives its address."""
    with ExitStack() as stack:

        def start(fault: str) -> str:
            command = [sys.executable, str(PROGRAM), fault]
            program = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(program.kill)
            assert program.stdout
            return f"http://127.0.0.1:{int(program.stdout.readline())}"

        yield start


@pytest.fixture(autouse=True)
def at_little_cost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the block within a minute and 200 MiB more than before. The program's timeouts are 1 s here."""
    monkeypatch.setattr(http, "_REPLY_S", 1.0)
    monkeypatch.setattr(http, "_SILENCE_S", 1.0)
    began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.monotonic() - began_s < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


async def characters_of(client: EngineClient, seen: list[int]) -> None:
    async with client.chat(HELLO) as deltas:
        async for delta in deltas:
            seen += [len(delta.content)]


def check_explained(error: LauncherError) -> None:
    assert error.title.endswith(".")
    assert error.hint or isinstance(error, Refused)
    assert not CONTROL_CHARACTERS.search(str(error))
    assert "\n" not in error.title
    assert len(str(error)) < 600


@pytest.mark.cases(4)
@pytest.mark.parametrize("fault", ANSWERS)
async def test_invalid_answers_are_explained(hostile: Callable[[str], str], fault: str) -> None:
    async with EngineClient(hostile(fault), "key") as client:
        with pytest.raises((Refused, Unreachable)) as raised:
            await client.drafts_tokens()
        check_explained(raised.value)


@pytest.mark.cases(4)
@pytest.mark.parametrize("fault", ANSWERS)
async def test_an_invalid_health_answer_is_not_healthy(hostile: Callable[[str], str], fault: str) -> None:
    async with EngineClient(hostile(fault), "key") as client:
        healthy = await client.is_healthy()
    assert healthy == (fault in ("no json",))


@pytest.mark.cases(4)
@pytest.mark.parametrize("fault", STREAMS)
async def test_an_invalid_stream_is_explained(hostile: Callable[[str], str], fault: str) -> None:
    async with EngineClient(hostile(fault), "key") as client:
        with pytest.raises((Refused, Unreachable)) as raised:
            await characters_of(client, [])
        check_explained(raised.value)


async def test_an_endless_reply_is_ended(hostile: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.engine.server.client._MOST_CHARACTERS", 2**21)
    characters: list[int] = []
    async with EngineClient(hostile("an endless reply"), "key") as client:
        with pytest.raises(Refused, match="does not end"):
            await characters_of(client, characters)
    assert 2**21 - 100_000 <= sum(characters) <= 2**21


async def test_the_key_goes_to_no_other_server_by_a_redirect(hostile: Callable[[str], str]) -> None:
    async with EngineClient(hostile("redirect"), "key") as client:
        with pytest.raises(Refused, match="redirects are not followed"):
            await client.read_metrics()
