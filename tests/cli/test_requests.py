"""`requests`: the clients' requests as a table and as JSON, followed live, and listed after the server has ended."""

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from typing import Any

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
