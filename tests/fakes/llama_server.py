"""A fake llama-server: a small real program for the faults that the real engine will not produce on demand.

FAKE_FAULTS names its faults, separated by commas:

    silent-start        never listens
    slow-load           reports 0, 50 and 100 % of two stages, and loads until the file FAKE_RELEASE exists
    ignores-term        ignores SIGTERM and its parent's exit line
    no-drafts           /slots says that it speculates, but it makes no drafts
    not-speculative     /slots says it does not speculate
    no-vector           /embeddings answers without a vector
    no-ranks            /v1/rerank answers without ranks
    dies-on-chat        ends with exit code 3 at the first chat request
    dies-loading        says that memory ran out and ends with exit code 1
    dies-soon           ends with exit code 3 a tenth of a second after its first reply
    mute                takes a chat request and never sends a token
    says                prints the file FAKE_SAYS before it loads
    ends                ends with exit code 1 after that
    flood-later         prints FAKE_LINES lines, 50,000 a second, from its first reply on
    endless             a chat reply never ends
    spawns-child        starts a grandchild in its group and writes its pid to FAKE_CHILD
    garbage             prints bytes that are not UTF-8 and a very long line
    old                 knows no --spec-type
    flood               prints 200,000 lines before it listens, and a last one
    half-lines          prints a line in two halves with NULs, and a half line that never ends
    stalls              a chat reply stops in the middle, after the first request
    wedges              the same, while a thread computes, and /slots is answered no more
    fails               answers each request after the first FAKE_REPLIES (by default 1) with the error FAKE_ERROR
    fails-midway        the same, but as an event of the stream after two tokens

It reports FAKE_TOKEN_MS as the time of each token, by default 1. The bodies of requests go to the file FAKE_REQUESTS, a
line each. A word is a token of /tokenize.
"""

import os
import sys

FAULTS = frozenset(filter(None, os.environ.get("FAKE_FAULTS", "").split(",")))
TOKEN_MS = float(os.environ.get("FAKE_TOKEN_MS", "1"))
FLAGS = [
    "--model",
    "--host",
    "--port",
    "--parallel",
    "--ctx-size",
    "--metrics",
    "--alias",
    "--threads",
    "--embeddings",
    "--reranking",
    "--mmproj",
    "--rpc",
]
SPECULATION = ["--spec-type", "--spec-draft-n-max"]


def answer_probe(arguments: list[str]) -> bool:
    """Answer --version, --help and --list-devices; return whether one of them was given."""
    if "--version" in arguments:
        print("version: 0.0.0 (build 1, fake)", file=sys.stderr)
    elif "--help" in arguments:
        print("\n".join(FLAGS if "old" in FAULTS else FLAGS + SPECULATION))
        own = ", turbo3" if "fork" in FAULTS else ""
        print(f"-ctk,  --cache-type-k TYPE   KV cache data type for K\n    allowed values: f32, f16, q8_0, q4_0{own}")
        print("-ctv,  --cache-type-v TYPE\n-fa, --flash-attn [on|off|auto]")
    elif "--list-devices" in arguments:
        print(os.environ.get("FAKE_DEVICES", "Available devices:\n  (none)"))
    else:
        return False
    return True


if __name__ == "__main__" and answer_probe(sys.argv[1:]):
    sys.exit()

# Only a server needs these, and probes are many.
import json  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    loaded = threading.Event()
    request_count = 0
    wedged = False

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if not self.loaded.is_set():
            self.answer(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})
        elif self.path == "/health":
            self.answer(200, {"status": "ok"})
        elif self.path == "/slots":
            if Handler.wedged:
                threading.Event().wait()
            self.answer(200, [{"id": 0, "speculative": "not-speculative" not in FAULTS}])
        else:
            self.answer(404, {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/tokenize":
            self.answer(200, {"tokens": list(range(len(json.loads(body)["content"].split())))})
            return
        if requests := os.environ.get("FAKE_REQUESTS"):
            with Path(requests).open("ab") as file:
                file.write(body.replace(b"\n", b" ") + b"\n")
        if "dies-on-chat" in FAULTS:
            abort_engine()
        if self.path == "/embeddings":
            if "mute" in FAULTS:
                threading.Event().wait()
            self.answer(200, [] if "no-vector" in FAULTS else [{"index": 0, "embedding": [[0.6, 0.8]]}])
            return
        if self.path == "/v1/rerank":
            if "mute" in FAULTS:
                threading.Event().wait()
            self.answer(200, {"results": [] if "no-ranks" in FAULTS else [{"index": 0, "relevance_score": 0.5}]})
            return
        Handler.request_count += 1
        fails = Handler.request_count > int(os.environ.get("FAKE_REPLIES", "1"))
        error = {"error": {"code": 500, "message": os.environ.get("FAKE_ERROR", ""), "type": "server_error"}}
        if fails and "fails" in FAULTS:
            self.answer(500, error)
            return
        fails = fails and "fails-midway" in FAULTS
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tokens = 0
        while tokens < 8 or "endless" in FAULTS:
            if fails and tokens == 2:
                self.event(error)
                self.chunk(b"")
                return
            if "mute" in FAULTS:
                threading.Event().wait()
            tokens += 1
            timings: dict[str, Any] = {"predicted_n": tokens, "predicted_ms": tokens * TOKEN_MS}
            timings["predicted_per_second"] = 1_000 / TOKEN_MS
            if "no-drafts" not in FAULTS:
                timings |= {"draft_n": tokens, "draft_n_accepted": tokens - 1}
            self.event({"choices": [{"delta": {"content": "word "}}], "timings": timings})
            time.sleep(0.002)
            if "wedges" in FAULTS and Handler.request_count > 1 and tokens > 2:
                Handler.wedged = True
                while True:
                    pass
            if "stalls" in FAULTS and Handler.request_count > 1 and tokens > 2:
                threading.Event().wait()
        self.event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")
        if "dies-soon" in FAULTS:
            threading.Timer(0.1, abort_engine).start()
        if "flood-later" in FAULTS and Handler.request_count == 1:
            threading.Thread(target=flood, daemon=True).start()

    def event(self, data: object) -> None:
        self.chunk(f"data: {json.dumps(data)}\n\n".encode())

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def answer(self, status: int, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A client that leaves is no error."""


def abort_engine() -> None:
    print("0.01.000 E ggml_abort: GGML_ASSERT(false) failed", file=sys.stderr, flush=True)
    os._exit(3)


def flood() -> None:
    """Print the lines of a hundredth of a second at once, and wait for the next; a full pipe slows it down."""
    left, batch = int(os.environ["FAKE_LINES"]), 500
    next_s = time.monotonic()
    while left > 0:
        first = int(os.environ["FAKE_LINES"]) - left
        lines = (f"0.09.{n % 1_000:03} I srv  update_slots: line {n}" for n in range(first, first + min(batch, left)))
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
        left -= batch
        next_s += 0.01
        time.sleep(max(0.0, next_s - time.monotonic()))


def report(stage: str, value: float) -> None:
    payload = {"stages": ["text_model", "spec_model"], "current": stage, "value": value}
    print("cmd_child_to_router:state:" + json.dumps({"state": "loading", "payload": payload}), flush=True)


def load() -> None:
    if "slow-load" in FAULTS:
        for stage in ("text_model", "spec_model"):
            for value in (0.0, 0.5, 1.0):
                report(stage, value)
        release = Path(os.environ["FAKE_RELEASE"])
        while not release.exists():
            time.sleep(0.01)
    Handler.loaded.set()


def main(arguments: list[str]) -> None:
    if "ignores-term" in FAULTS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "spawns-child" in FAULTS:
        child = subprocess.Popen(["sleep", "600"])
        Path(os.environ["FAKE_CHILD"]).write_text(str(child.pid))
    if "garbage" in FAULTS:
        sys.stderr.buffer.write(b"\xff\xfe broken \x80\n" + b"x" * 200_000 + b"\nafter the long line\n")
        sys.stderr.flush()
    if "flood" in FAULTS:
        for number in range(2_000):
            sys.stderr.write("".join(f"line {number * 100 + each} {'x' * 60}\n" for each in range(100)))
        print("the flood is over", file=sys.stderr, flush=True)
    if "half-lines" in FAULTS:
        for part in ("first half, \0", "second half\n", "no end"):
            print(part, end="", file=sys.stderr, flush=True)
            time.sleep(0.01)
    if "says" in FAULTS:
        sys.stderr.write(Path(os.environ["FAKE_SAYS"]).read_text("utf-8"))
        sys.stderr.flush()
    if "ends" in FAULTS:
        sys.exit(1)
    if "silent-start" in FAULTS:
        threading.Event().wait()
    if "dies-loading" in FAULTS:
        print("0.01.000 E failed to allocate buffer for kv cache", file=sys.stderr, flush=True)
        sys.exit(1)
    server = Server(("127.0.0.1", int(arguments[arguments.index("--port") + 1])), Handler)
    threading.Thread(target=load, daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
