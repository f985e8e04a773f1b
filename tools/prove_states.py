"""Proves that conversations outlive stops and crashes: what is restored from disk, in what time, with which words.

    python -m tools.prove_states [--tokens 30000] [--llama-server PATH] [--shape hybrid] ...

Serves models of three shapes, the demo's (recurrent layers) and two with random weights (attention alone, sliding
windows), with the built-in engine and with another. A conversation is read once; then the model is unloaded, the server
stopped, its engine killed, the program killed, or a reboot simulated (the program killed, its runtime folder deleted),
and the next turn is asked again. Prints a table, and ends with exit code 1 if a reply has other words than before, or
less than 95 % of its prompt came from disk.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import gguf
import numpy as np
import psutil

from tools.markdown import format_table

SHAPES = ("hybrid", "attention", "sliding")
_WIDTH, _LAYERS, _HEAD = 256, 6, 64
_START_S, _KEEP_S = 120.0, 60.0
_LEAST_SHARE = 0.95
_BESIDE = "beside"


def write_random(demo: Path, path: Path, *, sliding: bool) -> None:
    """Write a small model with random weights and the demo's vocabulary: Qwen3's shape, or Gemma 3's with windows."""
    known, heads, rng = gguf.GGUFReader(demo).fields, _WIDTH // _HEAD, np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "gemma3" if sliding else "qwen3")
    writer.add_context_length(262_144)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(2 * _WIDTH)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads // 2)
    writer.add_key_length(_HEAD)
    writer.add_value_length(_HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    if sliding:
        writer.add_sliding_window(512)
    for name, field in known.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    vocabulary = len(known["tokenizer.ggml.tokens"].data)

    def add_weight(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        values = rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)
        writer.add_tensor(f"{name}.weight", values.astype(np.float16))

    def add_norms(place: str, **widths: int) -> None:
        for name, width in widths.items():
            writer.add_tensor(f"{place}{name}.weight", np.ones(width, np.float32))

    add_weight("token_embd", vocabulary, _WIDTH, scale=16.0)
    add_weight("output", vocabulary, _WIDTH, scale=3.0)
    add_norms("", output_norm=_WIDTH)
    for number in range(_LAYERS):
        place = f"blk.{number}."
        norms = {"attn_norm": _WIDTH, "attn_q_norm": _HEAD, "attn_k_norm": _HEAD, "ffn_norm": _WIDTH}
        add_norms(place, **norms, **({"post_attention_norm": _WIDTH, "post_ffw_norm": _WIDTH} if sliding else {}))
        add_weight(f"{place}attn_q", heads * _HEAD, _WIDTH, scale=3.0)
        add_weight(f"{place}attn_k", heads // 2 * _HEAD, _WIDTH, scale=3.0)
        add_weight(f"{place}attn_v", heads // 2 * _HEAD, _WIDTH)
        add_weight(f"{place}attn_output", _WIDTH, heads * _HEAD, scale=2.0)
        for name, rows, columns in (("gate", 2, 1), ("up", 2, 1), ("down", 1, 2)):
            add_weight(f"{place}ffn_{name}", rows * _WIDTH, columns * _WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Server:
    """A server of the program, in a home of its own."""

    def __init__(self, model: Path, home: Path, engine: str | None, context: int, extra: Sequence[str] = ()) -> None:
        variables = {"MTP_LAUNCHER_HOME": str(home), "MTP_LAUNCHER_MODELS": str(model.parent)}
        self.name, self.home, self.environment = model.stem, home, os.environ | variables
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._command = [sys.executable, "-m", "launcher", "serve", str(model), "--defaults", "--port", str(self.port)]
        self._command += ["--ctx", str(context), "--json", *(["--engine", engine] if engine else []), *extra]
        self.start()

    def start(self) -> None:
        """Start the program, and wait until it is ready."""
        self._log = (self.home / "serve.log").open("wb")
        self.program = psutil.Popen(self._command, stdout=self._log, stderr=self._log, env=self.environment)
        end_s = time.monotonic() + _START_S
        while time.monotonic() < end_s:
            if b'"ready"' in (text := (self.home / "serve.log").read_bytes()):
                ready = next(json.loads(line) for line in text.splitlines() if b'"ready"' in line)
                self.key = ready.get("api_key", "")
                return
            if self.program.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"The server did not start: {(self.home / 'serve.log').read_text()[-2_000:]}")

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 -- JSON
        """Send a request and return the answer."""
        data = None if body is None else json.dumps(body).encode()
        head = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        with urlopen(Request(f"http://127.0.0.1:{self.port}{path}", data, head), timeout=600) as reply:
            return json.load(reply)

    def read_requests(self) -> list[dict[str, Any]]:
        """Return the log of requests."""
        command = [sys.executable, "-m", "launcher", "requests", "--json"]
        done = subprocess.run(command, env=self.environment, capture_output=True, check=True)
        return list(json.loads(done.stdout)["requests"])

    def list_kept(self) -> set[Path]:
        """Return the files of the states that are kept."""
        return set((self.home / "cache" / "states").glob("*.state"))

    def stop(self, number: int = signal.SIGINT) -> None:
        """End the program by a signal, and its processes with it."""
        processes = [self.program, *self.program.children(recursive=True)]
        self.program.send_signal(number)
        psutil.wait_procs(processes, timeout=60)
        for each in processes:
            if each.is_running():
                each.kill()
        self._log.close()

    def kill_engine(self) -> None:
        """Kill the engine, and wait for the next one."""
        engine = max(self.program.children(recursive=True), key=lambda each: each.memory_info().rss)
        engine.kill()
        time.sleep(3)


def _unload(server: Server) -> None:
    # A server ends with its last model: so another one is loaded beside it.
    server.ask("/v1/completions", {"model": _BESIDE, "prompt": "Hello", "max_tokens": 1})
    command = [sys.executable, "-m", "launcher", "stop", server.name, "--url", f"http://127.0.0.1:{server.port}"]
    subprocess.run(command, env=server.environment, capture_output=True, check=True)


def _restart(server: Server) -> None:
    server.stop()
    server.start()


def _kill_program(server: Server) -> None:
    server.stop(signal.SIGKILL)
    server.start()


def _reboot(server: Server) -> None:
    server.stop(signal.SIGKILL)
    for name in ("run", "runtime"):
        shutil.rmtree(server.home / name, ignore_errors=True)
    server.start()


_EVENTS: dict[str, Callable[[Server], None]] = {
    "unload": _unload,
    "stop and start": _restart,
    "engine killed": Server.kill_engine,
    "program killed": _kill_program,
    "reboot": _reboot,
}


@contextmanager
def _serving(model: Path, engine: str | None, context: int) -> Iterator[Server]:
    home = Path(tempfile.mkdtemp(prefix="states-"))
    server = Server(model, home, engine, context)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def _prove_shape(model: Path, engine: str | None, tokens: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for each event: prompt, share from disk, seconds to restore and to the first token, and the words."""
    with _serving(model, engine, tokens + 8_192) as server:
        sentence = "Line {} of a long prompt about draft heads. "
        text = "".join(sentence.format(number) for number in range(tokens // 15))
        turn = [{"role": "user", "content": text}]
        body: dict[str, Any] = {
            "model": model.stem,
            "messages": turn,
            "temperature": 0,
            "max_tokens": 48,
            "ignore_eos": True,
        }
        first = server.ask("/v1/chat/completions", body)
        answer = first["choices"][0]["message"].get("content") or "-"
        body["messages"] = [*turn, {"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
        expected = server.ask("/v1/chat/completions", body)["choices"][0]["message"]
        read_s = first["timings"]["prompt_ms"] / 1_000
        end_s = time.monotonic() + _KEEP_S
        while not server.list_kept() and time.monotonic() < end_s:
            time.sleep(0.2)
        for name, event in _EVENTS.items():
            event(server)
            answered = server.ask("/v1/chat/completions", body)
            record = server.read_requests()[-1]
            prompt, restored = record["prompt_tokens"], record["restored_tokens"] or 0
            same = answered["choices"][0]["message"] == expected
            share = restored / prompt
            times = [record["restored_s"] or 0.0, record["first_token_s"] or 0.0]
            verdict = "same" if same and share >= _LEAST_SHARE else "OTHER WORDS" if not same else "READ AGAIN"
            figures = f"{prompt:,}", f"{read_s:.1f} s", f"{share:.1%}", *(f"{each:.2f} s" for each in times)
            yield name, *figures, verdict


def main() -> None:
    """Run the proof."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--llama-server", metavar="PATH", help="also with this engine")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    options = parser.parse_args()
    from launcher.engine.demo import unpack_demo_model

    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        demo = unpack_demo_model()
        shutil.copyfile(demo, Path(folder) / f"{_BESIDE}.gguf")
        for shape in options.shape or SHAPES:
            model = Path(folder) / f"{shape}.gguf"
            if shape == "hybrid":
                shutil.copyfile(demo, model)
            else:
                write_random(demo, model, sliding=shape == "sliding")
            for engine in (None, *([options.llama_server] if options.llama_server else [])):
                for row in _prove_shape(model, engine, options.tokens):
                    rows.append((shape, "llama-server" if engine else "built-in", *row))
                    print(" ".join(rows[-1]), flush=True)
    head = ("shape", "engine", "after", "prompt", "read in", "from disk", "restored in", "first token", "words")
    print(format_table(head, rows))
    sys.exit(any(row[-1] != "same" for row in rows))


if __name__ == "__main__":
    main()
