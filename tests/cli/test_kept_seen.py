"""What `serve` and `status` say of the conversations on disk, as a user sees it."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.base.paths import cache_dir
from tests import forked

LONG = " ".join(f"Line {number} of a long prompt about draft heads." for number in range(200))


@contextmanager
def serve_demo(*arguments: str) -> Iterator[dict[str, Any]]:
    with forked.start("serve", "demo", "--json", *arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(120)


def ask(ready: dict[str, Any], prompt: str) -> None:
    body = json.dumps({"prompt": prompt, "max_tokens": 4}).encode()
    headers = {"Authorization": f"Bearer {ready['api_key']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{ready['url']}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        reply.read()


def read_status() -> tuple[dict[str, Any], str]:
    (data,) = json.loads(forked.run("status", "--json").stdout)
    return data, forked.run("status").stdout


def test_a_start_says_what_it_kept_and_status_what_that_saved(home: Path) -> None:
    with serve_demo() as ready:
        assert "kept" not in ready
        ask(ready, LONG)
        data, text = read_status()
        assert (data["restored_tokens"], data["spared_s"]) == (0, 0.0)
        assert "from disk" not in text
    with serve_demo() as ready:
        assert ready["kept"]["states"] == 1
        ask(ready, f"{LONG} And then?")
        data, text = read_status()
        assert data["restored_tokens"] > 1_000
        assert data["spared_s"] > 0.5
        assert f"{data['restored_tokens']:,} tokens came from disk, which saved about" in text
        assert " s instead of " in forked.run("requests").stdout


def test_a_start_prints_what_it_kept(home: Path) -> None:
    with serve_demo() as ready:
        ask(ready, LONG)
    with forked.start("serve", "demo", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.decode() if isinstance(line, bytes) else line)
            if "Ctrl-C" in lines[-1]:
                break
        process.terminate()
        process.wait(120)
    assert lines[-2].startswith("Kept on disk: 1 conversation, ")
    assert lines[-2].endswith(" What is kept need not be read again.\n")


def test_status_says_that_nothing_can_be_kept(home: Path) -> None:
    cache_dir().mkdir(parents=True, exist_ok=True)
    (cache_dir() / "states").write_text("in the way")
    with serve_demo() as ready:
        ask(ready, LONG)
        texts = (read_status()[1] for _ in range(200))  # the health is checked every two seconds
        assert any("Conversations are not kept on disk: " in text for text in texts)
        assert [each["code"] for each in read_status()[0]["health"]] == ["nothing_kept"]
