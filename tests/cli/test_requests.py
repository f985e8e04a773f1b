"""`requests`: the clients' requests as a table and as JSON, followed live, and listed after the server has ended."""

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from launcher.tuning.history import history_file
from tests import forked


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("requests", *arguments)


def send_request(ready: Mapping[str, Any], agent: str) -> None:
    body = {"prompt": "Bread rises because", "max_tokens": 8}
    headers = {
        "Authorization": f"Bearer {ready['api_key']}",
        "Content-Type": "application/json",
        "User-Agent": agent,
    }
    request = urllib.request.Request(f"{ready['url']}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        reply.read()


def test_requests_are_listed_followed_and_kept() -> None:
    assert run().stdout == "No requests yet.\n"
    assert "No server is running" in run("-f").stderr
    with forked.start("serve", "demo", "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert json.loads(run("--json").stdout) == {"requests": []}
        send_request(ready, "first/1.0 (Linux)")
        with forked.start("requests", "-f", "--json", stdout=subprocess.PIPE) as following:
            assert following.stdout is not None
            assert json.loads(following.stdout.readline())["who"]["user_agent"] == "first/1.0 (Linux)"
            send_request(ready, "second/1.0")
            followed = json.loads(following.stdout.readline())
            (last,) = json.loads(run("--json", "-n", "1", "--url", ready["url"]).stdout)["requests"]
            assert last == followed
            assert last["reply_tokens"] > 0
            lines = run().stdout.splitlines()
            assert lines[0].split()[:3] == ["TIME", "WHO", "MODEL"]
            assert [line.split()[-1] for line in lines[1:]] == ["complete", "complete"]
            assert "default, first/1.0 " in lines[1]
            assert "(Linux)" not in lines[1]
            with forked.start("requests", "-f", "-n", "1", stdout=subprocess.PIPE) as table:
                assert table.stdout is not None
                assert table.stdout.readline().startswith("TIME ")
                assert "second/1.0" in table.stdout.readline()
                process.terminate()
                assert process.wait(120) == 0
                assert table.wait(120) == 0
            assert following.wait(120) == 0
    kept = json.loads(run("--json").stdout)["requests"]
    assert [each["who"]["user_agent"] for each in kept] == ["first/1.0 (Linux)", "second/1.0"]
    assert kept[-1] == last


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}


def post(ready: Mapping[str, Any], path: str, body: Mapping[str, Any], key: str | None = None) -> int:
    """Send a request; return the status of the answer."""
    headers = {"Authorization": f"Bearer {key or ready['api_key']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{ready['url']}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return int(reply.status)
    except HTTPError as error:
        with error:
            return error.code


def test_refused_requests_are_explained_with_their_cure() -> None:
    secret = "the plan of the bank robbery"
    with forked.start("serve", "demo", "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        chat = "/v1/chat/completions"
        assert post(ready, chat, {"messages": [{"role": "user", "content": "Hi"}]}, key="wrong") == 401
        assert post(ready, "/v1/embeddings", {"input": secret}) == 501
        assert post(ready, chat, {"messages": [{"content": secret}]}) == 500
        assert post(ready, chat, {"messages": [{"role": "user", "content": secret * 20_000}]}) == 400
        assert post(ready, chat, {"messages": [{"role": "user", "content": [IMAGE]}]}) == 500
        table, listed = run().stdout, run("--json").stdout
        records = json.loads(listed)["requests"]
        assert [(each["status"], each["diagnosis"]["code"]) for each in records] == [
            (401, "key_refused"),
            (501, "endpoint_off"),
            (500, "request_invalid"),
            (400, "context_exceeded"),
            (500, "no_projector"),
        ]
        assert "robbery" not in listed + table
        ends = [line.split("  ")[-1] for line in table.splitlines()[1:6]]
        assert ends == ["refused 401", "error 501", "error 500", "too long 400", "error 500"]
        assert "1 failed (500): image input is not supported" in table
        assert "switch images off in the client" in " ".join(table.split())
        with forked.start("requests", "-f", "-n", "1", stdout=subprocess.PIPE) as following:
            assert following.stdout is not None
            lines = [following.stdout.readline() for _ in range(3)]
            following.terminate()
        assert lines[2].startswith("1 failed (500): image input is not supported")
        text = forked.run("diagnose", "--url", ready["url"]).stdout
        assert "image input" in text.splitlines()[0]
        assert "--vision" in text
        assert "mtp-launcher serve demo --vision" not in text
        report = json.loads(forked.run("diagnose", "--json").stdout)
        assert (report["code"], report["failed_requests"]) == ("no_projector", 1)
        process.terminate()
        assert process.wait(120) == 0
    kept = json.loads(run("--json").stdout)["requests"]
    assert [each["status"] for each in kept] == [401, 501, 500, 400, 500]
    assert b"robbery" not in history_file().read_bytes()


def test_failures_without_a_known_cause_are_named_all_the_same(
    fake_engine: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAULTS", "fails")
    monkeypatch.setenv("FAKE_ERROR", "something odd")
    arguments = ("serve", str(demo_model), "--engine", str(fake_engine), "--json")
    with forked.start(*arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        for _ in range(2):
            assert post(ready, "/v1/chat/completions", {"messages": []}) == 500
        assert "2 failed (500): something odd\n" in run().stdout
        result = forked.run("diagnose")
        assert result.returncode == 1
        assert result.stdout.startswith("The last 2 requests that failed did so for no known cause")
        assert "It says: something odd" in result.stdout
        process.terminate()
        assert process.wait(120) == 0
