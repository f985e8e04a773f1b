"""Helpers of the benchmarks: a home of their own, models, the command, one kind of request."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.base.paths import HOME_VARIABLE, cache_dir
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest

ROOT = Path(__file__).parents[1]
_GENERATOR = "tools.demo_model"
_CONTEXT = 8_192
_CACHE = cache_dir() / "benchmarks"
"""The cache folder of the user, not of the home that a benchmark runs in."""


def command() -> list[str]:
    """Return the words that run `mtp-launcher`: this Python's installed command, else `python -m launcher`."""
    installed = shutil.which("mtp-launcher", path=str(Path(sys.executable).parent))
    return [installed] if installed else [sys.executable, "-m", "launcher"]


@contextmanager
def child(module: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `benchmarks.MODULE` offscreen while the block runs."""
    words = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    environment = os.environ | {"QT_QPA_PLATFORM": "offscreen"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def read_result(process: "subprocess.Popen[str]", seconds: float) -> dict[str, Any]:
    """Return the JSON object that a child prints at its end, which is expected after about `seconds`."""
    try:
        process.wait(60 + 2 * seconds)  # its output fits into the pipe
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    if process.returncode:
        raise RuntimeError(f"The measured window ended with exit code {process.returncode}.")
    assert process.stdout is not None
    measured: dict[str, Any] = json.loads(process.stdout.read())
    return measured


def run_beside_empty_loop(seconds: float, module: str, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results of `benchmarks.MODULE`, which takes `seconds`, and of an empty Qt loop that runs beside it."""
    with child(module, *arguments) as measured, child("window_child", "empty", str(seconds)) as empty:
        return read_result(measured, seconds), read_result(empty, seconds)


def raise_on_signals() -> None:
    """Have Ctrl-C and SIGTERM raise KeyboardInterrupt, also where a script in the background has Ctrl-C ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@contextmanager
def own_home() -> Iterator[None]:
    """Have the program write all its files into a folder that is deleted afterwards."""
    before = os.environ.get(HOME_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="mtp-benchmark-", ignore_cleanup_errors=True) as folder:
        os.environ[HOME_VARIABLE] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[HOME_VARIABLE]
            else:
                os.environ[HOME_VARIABLE] = before


def slow_model() -> Path:
    """Return the demo model with extra blocks that do nothing, so that it streams at the rate of a real one; built once
    and reused.

    One group of such blocks gave 250 tokens/s on one thread, two gave 165.
    """
    folder = ROOT / Path(*_GENERATOR.split("."))
    sources = sorted(path for path in folder.iterdir() if path.is_file())
    version = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    path = _CACHE / f"slow-1-{version}.gguf"
    if not path.is_file():
        print("Making a model that is slow enough (20 s) ...", file=sys.stderr, flush=True)
        _CACHE.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.part")
        try:
            making = [sys.executable, "-m", _GENERATOR, "--slow", "1", "--out", str(draft)]
            subprocess.run(making, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    return path


def slow_options(model: Path, draft: int) -> ServeOptions:
    """Serve on one thread, so that a core stays free for the program that is measured."""
    return ServeOptions(model=model, built_in=True, context=_CONTEXT, draft=draft, threads=1)


def request(tokens: int) -> ChatRequest:
    """Return a request for exactly `tokens` tokens, the same ones each time."""
    return ChatRequest(
        [{"role": "user", "content": "What is MTP?"}],
        max_tokens=tokens,
        temperature=0.0,
        seed=1,
        extra={"ignore_eos": True},
    )
