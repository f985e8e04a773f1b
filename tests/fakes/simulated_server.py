"""A llama-server with the speed of a simulated machine: a real program with real HTTP, in virtual time.

    simulated_server.py MACHINE FLAGS...

It takes llama-server's flags for draft length, KV type, batch and threads. If these settings need more memory than the
machine has, it prints llama.cpp's error and ends with exit code 1. It answers chat requests at once, with the timings
that the machine would have. FAKE_NOW is the virtual time at which it starts, in seconds, FAKE_STARTS how many starts
there were before.
"""

import asyncio
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from launcher.base.errors import EngineFailed
from launcher.tuning.records import Run
from launcher.tuning.space import draft_length
from tools.tuner_simulation.bench import SimulatedBench, make_prompts
from tools.tuner_simulation.machine import draw_machine

FLAGS = {
    "--cache-type-k": ("kv", str),
    "--ubatch-size": ("ubatch", int),
    "--n-cpu-moe": ("n_cpu_moe", int),
    "--threads": ("threads", int),
    "--spec-draft-n-max": ("draft", int),
    "--spec-draft-p-min": ("p_min", float),
    "--spec-type": ("ngram", lambda text: "simple" if "ngram" in text else "none"),
}
BENCH: SimulatedBench


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        body = b'{"status": "ok"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = request["messages"][0]["content"]
        prompt = next(prompt for prompt in make_prompts() if prompt.name == name)
        run = asyncio.run(BENCH.run(prompt, seed=request["seed"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for timings in step_timings(run):
            self.event({"choices": [{"delta": {"content": "word "}}], "timings": timings})
        self.event({"choices": [{"delta": {}, "finish_reason": "length"}], "spoilt": run.spoilt})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, data: object) -> None:
        self.chunk(f"data: {json.dumps(data)}\n\n".encode())

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def step_timings(run: Run) -> list[dict[str, Any]]:
    """Return the engine's timings after each verification step."""
    assert run.decode_rate
    assert run.prefill_rate
    draft = draft_length(run.settings)
    hits = [*(run.acceptance.accepted_by_position if run.acceptance else ()), 0]
    count = run.steps or 1
    lengths = [sum(step < hit for hit in hits) for step in range(count)]
    step_ms = 1_000 * run.reply_tokens / run.decode_rate / count
    result, tokens = [], 0
    for number, length in enumerate(lengths, start=1):
        tokens += 1 + length
        timings: dict[str, Any] = {
            "prompt_n": run.prompt_tokens,
            "prompt_ms": 1_000 * run.prompt_tokens / run.prefill_rate,
            "predicted_n": tokens,
            "predicted_ms": number * step_ms,
            "predicted_per_second": 1_000 * tokens / (number * step_ms),
        }
        if draft:
            timings |= {"draft_n": number * draft, "draft_n_accepted": tokens - number}
        result.append(timings)
    return result


def main(arguments: list[str]) -> None:
    global BENCH
    machine = draw_machine(int(arguments[0]))
    settings = {**machine.space().baseline_settings()}
    for flag, value in zip(arguments[1::2], arguments[2::2], strict=True):
        if flag in FLAGS:
            name, read = FLAGS[flag]
            settings[name] = read(value)
    BENCH = SimulatedBench(machine, seed=int(os.environ["FAKE_STARTS"]))
    BENCH.advance_time(float(os.environ["FAKE_NOW"]))
    try:
        took_s = asyncio.run(BENCH.become(settings, reliable=True))
    except EngineFailed:
        print("0.01.000 E ggml_backend_cuda_buffer_type_alloc_buffer: out of memory", file=sys.stderr, flush=True)
        sys.exit(1)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(json.dumps({"port": server.server_address[1], "took_s": took_s}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
