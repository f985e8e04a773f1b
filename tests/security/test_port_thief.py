"""A program that took a port of ours and answers like a llama-server: it is recognised, and gets no key."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from launcher.base.errors import PortBusy
from launcher.base.identity import ProcessId
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.endpoint import Endpoint, claim_endpoint
from launcher.engine.server.logs import LogBook
from launcher.engine.server.supervisor import Supervisor
from tests import forked

EVENT = b'data: {"choices": [{"delta": {"content": "stolen"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
ANSWERS: dict[str, Any] = {
    "/health": {"status": "ok"},
    "/v1/models": {"data": [{"id": "demo"}]},
    "/props": {"build_info": "b9999", "total_slots": 1, "default_generation_settings": {"n_ctx": 4096}},
    "/slots": [{"id": 0, "speculative": True}],
}


@dataclass
class Thief:
    """The requests that a thief received, with their headers."""

    requests: list[str] = field(default_factory=list)

    def saw(self, key: str) -> bool:
        return any(key in request for request in self.requests)


@contextmanager
def listen_as_thief(port: int) -> Iterator[Thief]:
    """Listen on a port, answer everything as a llama-server would, and keep what comes."""
    thief = Thief()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, kind: str, body: bytes) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            thief.requests.append(f"{self.requestline}\n{self.headers}\n{sent!r}")
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/metrics":
                return self.answer("text/plain", b"llamacpp:requests_processing 0\n")
            return self.answer("application/json", json.dumps(ANSWERS.get(self.path)).encode())

        def do_POST(self) -> None:
            self.answer("text/event-stream", EVENT)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield thief
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def registered_server() -> Iterator[Endpoint]:
    """A server that other commands see, whose engine is a process that listens nowhere (yet, or any more)."""
    endpoint, registration = registry.register_server(
        None, registry.ServedModel(model="demo", engine="built-in", draft=2)
    )
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as engine:
        identity = ProcessId.from_pid(engine.pid)
        assert identity
        registration.update_first(state="ready", engine_pid=identity.pid, engine_created_s=identity.created_s)
        assert registration.wait_written(60)
        yield endpoint
        assert engine.stdin
        engine.stdin.close()
    registration.remove()


def command(*arguments: str) -> tuple[int, Any]:
    result = forked.run(*arguments, "--json")
    assert "Traceback" not in result.stderr
    return result.returncode, json.loads(result.stdout)


@pytest.mark.parametrize("verb", ["chat", "attach", "attach by name", "bench"])
def test_a_program_on_our_port_gets_no_key(registered_server: Endpoint, verb: str) -> None:
    by_name = registered_server.url.replace("127.0.0.1", "localhost")
    arguments = {
        "chat": ["chat", "Hello"],
        "attach": ["attach", f"{registered_server.url}/v1", "--once"],
        "attach by name": ["attach", by_name, "--once"],
        "bench": ["attach", registered_server.url, "--bench", "--runs", "1"],
    }
    with listen_as_thief(registered_server.port) as thief:
        code, result = command(*arguments[verb])
    assert (code, result["error"]["code"]) == (1, "not_our_engine")
    assert str(registered_server.port) in result["error"]["message"]
    assert thief.requests == []


def test_status_sends_no_key_to_another_program(registered_server: Endpoint) -> None:
    with listen_as_thief(registered_server.port) as thief:
        code, (server,) = command("status")
    assert (code, server["url"]) == (0, registered_server.url)
    assert [request.split()[1] for request in thief.requests] == ["/health"]
    assert not thief.saw(registered_server.api_key)


@pytest.mark.parametrize("engine", ["none", "gone", "another"])
def test_a_missing_engine_does_not_make_the_port_trusted(registered_server: Endpoint, engine: str) -> None:
    entry = registry.find_server(None)
    own = ProcessId.from_pid(os.getpid())
    assert own
    changes: dict[str, dict[str, Any]] = {
        "none": {"engine_pid": None},
        "gone": {"engine_created_s": 1.0},
        "another": {"engine_pid": own.pid, "engine_created_s": own.created_s + 100},  # the thief's pid, by chance
    }
    other = registry.Registration(entry)
    other.update(**changes[engine])
    assert other.wait_written(60)
    with listen_as_thief(registered_server.port) as thief:
        code, result = command("chat", "Hello")
    assert (code, result["error"]["code"]) == (1, "not_our_engine")
    assert thief.requests == []


def test_a_default_port_in_use_is_skipped(demo_model: Path) -> None:
    usual = claim_endpoint(None)
    with listen_as_thief(usual.port) as thief:
        serve = ["serve", "demo", "--json"]
        with forked.start(*serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
            assert program.stdout
            ready = json.loads(program.stdout.readline())
            _, result = command("chat", "Hello", "--max-tokens", "4")
            program.terminate()
            program.wait(120)
    assert ready["url"] != usual.url
    assert ready["api_key"] != usual.api_key
    assert result["text"] != "stolen"
    assert thief.requests == []


async def test_a_port_taken_during_the_load_is_detected(
    fake_engine: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine does not listen yet, and the thief answers that it is healthy."""
    monkeypatch.setenv("FAKE_FAULTS", "silent-start")
    endpoint = claim_endpoint(None)
    supervisor = Supervisor(endpoint, LogBook.for_port(endpoint.port))
    with listen_as_thief(endpoint.port) as thief:
        with pytest.raises(PortBusy, match="before the engine did"):
            await supervisor.become(ServeOptions(model=demo_model, engine=fake_engine))
        await supervisor.become(None)
    supervisor.log.close()
    assert {request.split()[1] for request in thief.requests} == {"/health"}
    assert not thief.saw(endpoint.api_key)
