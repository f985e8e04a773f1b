"""A small llama-server whose reply has STREAM_LENGTH tokens and comes at STREAM_RATE tokens a second, in steps of
three: prose with emphasis, lists, and now and then a block of code, as models write."""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # an engine gets no PYTHONPATH of ours

from tests.fakes import llama_server

_TEXT = (
    "A **mixture** of experts sends each token to a few of its many blocks so most weights rest at each step .\n"
    "- one point of a list that is `short`\n- and another *one*\n\n"
    "The check of three tokens reads little more than the check of one , and that is why drafting pays .\n\n"
) * 6 + "```python\ndef accepted ( drafts ) :\n    return sum ( drafts )\n```\n\n"
_STEP = 3


def _make_tokens() -> "list[str]":
    return [f"{word} " if not word.endswith("\n") else word for word in _TEXT.replace("\n", " \n ").split(" ") if word]


class Handler(llama_server.Handler):
    """Streams the text over and over."""

    def do_POST(self) -> None:  # noqa: N802 -- http.server's name
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        most = asked.get("max_tokens") or int(os.environ["STREAM_LENGTH"])
        rate = float(os.environ["STREAM_RATE"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        words, began_s = _make_tokens(), time.monotonic()
        for number in range(most):
            step = number // _STEP
            if number % _STEP == 0:
                time.sleep(max(0.0, began_s + number / rate - time.monotonic()))
            timings = {"predicted_n": number + 1, "predicted_ms": 1_000 * (step + 1) * _STEP / rate}
            timings |= {"predicted_per_second": rate, "draft_n": 2 * step + 2, "draft_n_accepted": 2 * step + 1}
            self.event({"choices": [{"delta": {"content": words[number % len(words)]}}], "timings": timings})
        self.event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")


if __name__ == "__main__" and not llama_server.answer_probe(sys.argv[1:]):
    llama_server.Handler = Handler  # type: ignore[misc]
    llama_server.main(sys.argv[1:])
