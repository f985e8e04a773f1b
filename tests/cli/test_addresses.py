"""Addresses of servers as users type them: with a password, invalid ones, and servers of another kind."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.cli.in_process import run

WITH_URL = [
    ["agent-check"],
    ["bench"],
    ["chat", "hi"],
    ["code", "opencode", "--print"],
    ["diagnose"],
    ["export", "env"],
    ["logs"],
    ["requests"],
    ["restart"],
    ["status"],
    ["stop"],
    ["tune", "--when-idle"],
]


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


class _OtherServer(_QuietHandler):
    """A server with OpenAI's interface that refuses a request without the name of its model, as Ollama does."""

    def do_GET(self) -> None:
        found = self.path == "/v1/models"
        self._answer(200 if found else 404, {"data": [{"id": "some-model"}]} if found else {"error": "not found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("model") != "some-model":
            self._answer(400, {"error": {"message": "model is required"}})
            return
        self._answer(200, {"choices": [{"message": {"role": "assistant", "content": "Hello."}}]})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def web_server(handler: type[_QuietHandler] = _QuietHandler) -> Iterator[str]:
    """Run a web server, by default Python's own, which knows no POST; its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("words", WITH_URL, ids=lambda words: words[0])
def test_a_password_in_an_address_is_not_shown(home: object, words: list[str]) -> None:
    for login in ("http://user:hunter2@", "user:hunter2@", "http://user:p/hunter2@"):
        refused = run(*words, "--url", f"{login}127.0.0.1:1", "--json")
        assert refused.returncode == 1
        assert '"error"' in refused.stdout or "--json belongs to" in refused.stdout
        assert "hunter2" not in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    "words",
    [["attach"], ["plan"], ["estimate"], ["serve", "--model"], ["models", "show"], ["export", "litellm", "--peers"]],
    ids=lambda words: words[0],
)
def test_a_password_in_a_model_address_is_not_shown(home: object, words: list[str]) -> None:
    refused = run(*words, "http://user:hunter2@127.0.0.1:1/model.gguf")
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: ")
    assert "hunter2" not in refused.stdout + refused.stderr


def test_a_password_in_an_unknown_argument_is_not_shown(home: object) -> None:
    refused = run("status", "http://user:hunter2@127.0.0.1:1")
    assert refused.returncode == 2
    assert "unrecognized arguments: http://***@127.0.0.1:1\n" in refused.stderr


def test_a_web_server_is_not_a_model_server(home: object) -> None:
    with web_server() as url:
        refused = run("agent-check", "--url", url)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"Error: {url} is not a llama-server, and has no OpenAI interface: ")
    assert "HTTP status" not in refused.stderr


def test_the_model_name_of_another_programs_server_is_used(home: object) -> None:
    with web_server(_OtherServer) as url:
        verdict = json.loads(run("agent-check", "--url", url, "--json").stdout)
    assert "answered with text" in verdict["sentence"]


@pytest.mark.parametrize(
    "words",
    [["agent-check"], ["chat", "hi"], ["code", "opencode", "--print"], ["status"], ["stop"], ["requests"]],
)
def test_a_single_word_is_not_an_address(home: object, words: list[str]) -> None:
    refused = run(*words, "--url", "nonsense")
    assert refused.stderr.splitlines() == [
        "Error: `nonsense` is not the address of a server.",
        "       Write it like http://127.0.0.1:8080.",
    ]
