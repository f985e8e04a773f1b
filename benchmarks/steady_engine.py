"""A small llama-server that streams tokens at a steady rate, each with the time at which it was sent.

The request's `max_tokens` and `rate` (tokens a second; 0: all at once) set the number and the speed. A frame is as long
as llama-server's. The first one is sent without delay, as if the prompt were in the cache.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # an engine gets no PYTHONPATH of ours

from tests.fakes import llama_server


class Handler(llama_server.Handler):
    """Streams times of time.monotonic_ns(), one a token."""

    disable_nagle_algorithm = True  # llama-server does so, too

    def do_POST(self) -> None:  # noqa: N802 -- http.server's name
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        most, rate = int(asked.get("max_tokens") or 8), float(asked.get("rate") or 0.0)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        began_s = time.monotonic()
        for number in range(most):
            if rate:
                time.sleep(max(0.0, began_s + number / rate - time.monotonic()))
            self.frame({"content": f" {time.monotonic_ns()}"}, None)
        timings = {"prompt_n": 1, "predicted_n": most, "predicted_ms": 1_000 * (time.monotonic() - began_s)}
        self.frame({}, "stop", timings={**timings, "draft_n": most, "draft_n_accepted": most - 1})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def frame(self, delta: dict[str, str], finish_reason: str | None, **more: object) -> None:
        """Send a frame of chat completions."""
        self.event(
            {
                "choices": [{"finish_reason": finish_reason, "index": 0, "delta": delta}],
                "created": 1_795_404_810,
                "id": "chatcmpl-Ek40xXsGwrPyS3Z0cLeQ72YP6vqj0uti",
                "model": "steady",
                "system_fingerprint": "b11669-0123456789",
                "object": "chat.completion.chunk",
                **more,
            }
        )


if __name__ == "__main__" and not llama_server.answer_probe(sys.argv[1:]):
    llama_server.Handler = Handler  # type: ignore[misc]
    llama_server.main(sys.argv[1:])
