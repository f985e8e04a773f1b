"""A scripted llama-server for coding agents, without a model: a real program over a socket.

It calls the client's first tool, and answers a tool's result with text. It counts a token per word, and remembers one
prompt as an engine remembers its slot. Options name what it does wrong:

    --text-call         a tool call comes as text
    --no-call           it answers with text in place of a call
    --forgets           every prompt is read from its beginning
    --refuses PATH      requests to this path get 404
    --refuses-late      /apply-template refuses a late system message
    --ctx N             tokens of context in /props

The first line that it prints is its address.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


class Handler(BaseHTTPRequestHandler):
    options: argparse.Namespace
    remembered: ClassVar[list[str]] = []

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        answers = {
            "/health": {"status": "ok"},
            "/v1/models": {"data": [{"id": "scripted"}]},
            "/props": {
                "build_info": "scripted",
                "total_slots": 1,
                "default_generation_settings": {"n_ctx": self.options.ctx},
            },
            "/slots": [{"id": 0, "speculative": True}],
        }
        if self.path in answers:
            self.answer(200, answers[self.path])
        else:
            self.refuse(404, "File Not Found")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == self.options.refuses:
            self.refuse(404, "File Not Found")
        elif self.path == "/apply-template":
            self.apply_template(body["messages"])
        elif self.path == "/v1/chat/completions":
            self.chat(body)
        else:
            self.answer(200, {"usage": {"input_tokens": 3, "output_tokens": 1}})

    def apply_template(self, messages: list[dict[str, Any]]) -> None:
        late = any(each["role"] == "system" for each in messages[1:])
        if late and self.options.refuses_late:
            self.refuse(500, "System message must be at the beginning.")
        else:
            self.answer(200, {"prompt": "".join(f"<{each['role']}>{each.get('content')}" for each in messages)})

    def chat(self, body: dict[str, Any]) -> None:
        words = json.dumps(body["messages"]).split()
        cached = 0
        if not self.options.forgets:
            pairs = zip(words, Handler.remembered, strict=False)
            cached = next((at for at, (new, old) in enumerate(pairs) if new != old), len(Handler.remembered))
        Handler.remembered = words
        asks = body["messages"][-1]["role"] == "user" and not any(each["role"] == "tool" for each in body["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": "It returns 42."}
        if asks and not self.options.no_call:
            message = self.call_tool(body["tools"][0]["function"])
        timings = {"cache_n": cached, "prompt_n": len(words) - cached, "predicted_n": 8, "predicted_ms": 80.0}
        timings |= {"draft_n": 10, "draft_n_accepted": 7}
        reason = "tool_calls" if "tool_calls" in message else "stop"
        self.answer(200, {"choices": [{"message": message, "finish_reason": reason}], "timings": timings})

    def call_tool(self, function: dict[str, Any]) -> dict[str, Any]:
        arguments = dict.fromkeys(function["parameters"]["required"], "answer.py")
        call = {"name": function["name"], "arguments": json.dumps(arguments)}
        if self.options.text_call:
            return {"role": "assistant", "content": f"<tool_call>{json.dumps(call)}</tool_call>"}
        return {"role": "assistant", "tool_calls": [{"id": "call-1", "type": "function", "function": call}]}

    def refuse(self, status: int, reason: str) -> None:
        self.answer(status, {"error": {"code": status, "message": reason, "type": "invalid_request_error"}})

    def answer(self, status: int, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--text-call", "--no-call", "--forgets", "--refuses-late"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--refuses")
    parser.add_argument("--ctx", type=int, default=131_072)
    Handler.options = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
