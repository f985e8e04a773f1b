"""Checks LiteLLM's proxy in front of several gateways: routing by model, a killed gateway, the gateways' counts."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from tools.prove_exports.checks import COMMAND, OPENER, Proofs, ensure, export, free_port, get, run, serve_model

_KEY = "sk-proof"
_STARTS_S = 240


def prove_gateways(proofs: Proofs, folder: Path, model: Path) -> None:
    """Serve the demo twice and another model once, each in a home of its own, and put LiteLLM in front."""
    venv = folder / "litellm-venv"

    def install() -> str:
        if not venv.exists():
            ensure(run(sys.executable, "-m", "venv", venv))
        ensure(run(venv / "bin/python", "-m", "pip", "install", "--quiet", "litellm[proxy]"))
        code = "from importlib.metadata import version; print(version('litellm'))"
        return ensure(run(venv / "bin/python", "-c", code)).stdout.strip()

    proofs("litellm: its proxy from PyPI", install)
    other = folder / "other.gguf"
    shutil.copyfile(model, other)
    homes = [folder / f"home-{number}" for number in (1, 2, 3)]
    models = ("demo", "demo", str(other))
    with ExitStack() as stack:
        ready = [
            stack.enter_context(serve_model("--model", each, "--port", str(free_port()), home=home))
            for each, home in zip(models, homes, strict=True)
        ]
        keys = {f"LLAMA_API_KEY_{number}": each["api_key"] for number, each in enumerate(ready, 1)}
        os.environ.update(keys)
        config = folder / "litellm.yaml"
        config.write_text(export("litellm", "--peers", ",".join(each["url"] for each in ready)))
        for key in keys:
            assert keys[key] not in config.read_text()
        port = stack.enter_context(_run_proxy(venv / "bin/litellm", config, folder))

        def routes() -> str:
            for name in ("demo", "other", "demo"):
                _send_request(port, name)
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda _: _send_request(port, "demo", tokens=400), range(4)))
            counts = [_count_requests(home) for home in homes]
            assert sum(each["demo"] for each in counts) == 6, counts
            assert sum(each["demo"] > 0 for each in counts) > 1, counts
            assert [each["other"] for each in counts] == [0, 0, 1], counts
            return f"by gateway: {', '.join(str(dict(each)) for each in counts)}"

        def check_takeover() -> str:
            before, began_s = [_count_requests(home)["demo"] for home in homes], time.monotonic()
            psutil.Process(ready[0]["launcher_pid"]).kill()
            for _ in range(5):
                _send_request(port, "demo")
            counts = [_count_requests(home)["demo"] - earlier for home, earlier in zip(homes, before, strict=True)]
            assert sum(counts[1:]) == 5, counts
            return f"5 requests in {time.monotonic() - began_s:.1f} s, by gateway: {counts}"

        proofs("litellm: requests go to the gateway with the model, and are counted there", routes)
        proofs("litellm: one gateway killed, its requests go to the other", check_takeover)


@contextmanager
def _run_proxy(program: Path, config: Path, folder: Path) -> Iterator[int]:
    """Run LiteLLM for as long as the block lasts; yield its port."""
    port = free_port()
    environment = {**os.environ, "LITELLM_MASTER_KEY": _KEY, "HOME": str(folder), "PYTHONPATH": ""}
    words = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with (
        (folder / "litellm.log").open("w") as log,
        subprocess.Popen(words, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            deadline = time.monotonic() + _STARTS_S
            while get(f"http://127.0.0.1:{port}/health/liveliness")[0] != 200:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"it did not start: {(folder / 'litellm.log').read_text()[-500:]}")
                time.sleep(0.5)
            yield port
        finally:
            process.terminate()
            process.wait(30)


def _send_request(port: int, model: str, *, tokens: int = 8) -> None:
    """Send a request to LiteLLM and read the whole stream of its reply."""
    body: dict[str, Any] = {"model": model, "stream": True, "max_tokens": tokens}
    body["messages"] = [{"role": "user", "content": "What is MTP?"}]
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {_KEY}", "Content-Type": "application/json"},
    )
    with OPENER.open(request, timeout=60) as reply:
        text = reply.read().decode()
    assert text.rstrip().endswith("data: [DONE]"), text[-200:]


def _count_requests(home: Path) -> Counter[str]:
    """Return how many requests the gateway of a home has completed, by model."""
    result = ensure(run(*COMMAND, "requests", "--json", env={"MTP_LAUNCHER_HOME": str(home)}))
    return Counter(each["model"] for each in json.loads(result.stdout)["requests"] if each["end"] == "complete")
