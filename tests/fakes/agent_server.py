"""A scripted llama-server for coding agents, without a model: a real program over a socket.

It speaks the three APIs that agents use, streamed and whole. It answers a question by a call of the client's tool that
reads files, and the tool's result with text. It counts a token per word or sign, and remembers prompts as an engine
remembers its slots. It starts by itself, printing its address, or as an engine: with llama-server's options.

Variables say what it does:

    AGENT_FILE      the path that its tool calls read (default: answer.py)
    AGENT_LOG       a file that gets a JSON line for each request: path, tools, tokens, reused tokens, what was answered
    AGENT_CONTEXT   tokens of context (default: --ctx-size, else 131072)
    AGENT_HOLD      a file; while it is there, a streamed text about the file stops after its first word until the
                    engine is ended, and the file is renamed to *.reached
    AGENT_FAULTS    what it does wrong, comma-separated:
        text-call       a tool call comes as text
        no-call         it answers with text in place of a call
        forgets         every prompt is read from its beginning
        refuses=PATH    requests to this path get 404
        refuses-late    a late system message is refused, also by /apply-template
"""

import json
import os
import re
import sys

FLAGS = """--model --host --port --parallel --ctx-size --metrics --alias --threads --spec-type --spec-draft-n-max
--slots --cache-type-k --cache-type-v --flash-attn --ubatch-size --kv-unified --slot-save-path --chat-template-file
--temp --top-p --top-k --min-p --presence-penalty"""


def answer_probe(arguments: list[str]) -> bool:
    """Answer --version, --help and --list-devices; return whether one of them was given."""
    if "--version" in arguments:
        print("version: 0.0.0 (build 1, scripted)", file=sys.stderr)
    elif "--help" in arguments:
        print(FLAGS.replace(" ", "\n"))
    elif "--list-devices" in arguments:
        print("Available devices:\n  (none)")
    else:
        return False
    return True


if __name__ == "__main__" and answer_probe(sys.argv[1:]):
    sys.exit()

# Only a server needs these, and probes are many.
import argparse  # noqa: E402
import itertools  # noqa: E402
import threading  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, ClassVar  # noqa: E402

FAULTS = frozenset(filter(None, os.environ.get("AGENT_FAULTS", "").split(",")))
READERS = ("read_file", "read", "Read", "read_files", "view", "bash", "Bash", "exec_command", "shell", "run_commands")
"""Names of tools that can read a file, the plainest first."""
TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
LATE = "System message must be at the beginning."
COUNTING = "/v1/messages/count_tokens"
TEXT_DELTAS = ("text_delta", "response.output_text.delta")
MODEL = "scripted"
numbers = itertools.count(1)


@dataclass
class Question:
    """A request in any of the APIs: tools by name with their schemas, the messages, and all of it as text."""

    tools: dict[str, dict[str, Any]]
    messages: list[dict[str, Any]]
    prompt: str

    @property
    def results(self) -> int:
        """Tool results after the user's last words."""
        count = 0
        for each in reversed(self.messages):
            parts = each.get("content")
            is_result = each.get("role") == "tool" or each.get("type") == "function_call_output"
            is_result |= isinstance(parts, list) and any(part.get("type") == "tool_result" for part in parts)
            if not is_result:
                break
            count += 1
        return count


def split_continued(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a request without the beginning of the reply that it continues, and that beginning."""
    if body.get("continue_final_message") != "content":
        return body, ""
    *messages, last = body["messages"]
    content = last["content"]
    return {**body, "messages": messages}, content if isinstance(content, str) else content[0]["text"]


@dataclass
class Reply:
    """An answer: a text or a call, and the counts of tokens."""

    text: str = ""
    call: tuple[str, dict[str, Any]] | None = None
    prompt: int = 0
    cached: int = 0
    generated: int = 24
    number: int = field(default_factory=lambda: next(numbers))

    @property
    def timings(self) -> dict[str, Any]:
        counts = {"cache_n": self.cached, "prompt_n": self.prompt - self.cached, "predicted_n": self.generated}
        speeds = {"prompt_ms": 100.0, "predicted_ms": 500.0, "predicted_per_second": 48.0}
        return {**counts, **speeds, "draft_n": 20, "draft_n_accepted": 14}


def split_words(text: str) -> list[str]:
    return re.findall(r"\s*\S+", text)


def read_question(path: str, body: dict[str, Any]) -> Question:
    tools = {}
    for each in body.get("tools") or []:
        function = each.get("function", each)
        schema = function.get("parameters") or function.get("input_schema") or {}
        tools[str(function.get("name"))] = schema
    messages = body.get("messages") or body.get("input") or []
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    head = [body.get(name) for name in ("tools", "system", "instructions") if body.get(name)]
    return Question(tools, messages, "".join(json.dumps(part, ensure_ascii=False) for part in [*head, *messages]))


def choose_call(question: Question) -> tuple[str, dict[str, Any]] | None:
    """Return the call of a tool that reads the file, with arguments by its schema; None if there is no such tool."""
    name = next((each for each in READERS if each in question.tools), None)
    forbids = "call no tool" in json.dumps(question.messages[-1:]).lower()
    if name is None or question.results or forbids or "no-call" in FAULTS:
        return None
    schema = question.tools[name]
    path = os.environ.get("AGENT_FILE", "answer.py")
    names = schema.get("required") or list(schema.get("properties", {}))[:1]
    return name, {each: make_argument(each, schema.get("properties", {}).get(each, {}), path) for each in names}


def make_argument(name: str, schema: dict[str, Any], path: str) -> object:
    kind, is_path = schema.get("type"), "path" in name.lower() or "file" in name.lower()
    if kind == "array":
        item = schema.get("items", {})
        if item.get("type") == "object":
            return [{each: path for each in item.get("properties", {}) if "path" in each.lower()}]
        return [path if is_path else f"cat {path}"]
    if is_path:
        return path
    if name.lower() in ("command", "cmd"):
        return f"cat {path}"
    return {"boolean": False, "integer": 1, "number": 1}.get(str(kind), "to read the file")


# The events of a streamed reply, with their names, and the body of a whole one.

Events = Iterator[tuple[str | None, dict[str, Any]]]


def chat_events(reply: Reply) -> Events:
    base = {"id": f"chat-{reply.number}", "object": "chat.completion.chunk", "created": 1, "model": MODEL}

    def event(delta: dict[str, Any], finish: str | None = None) -> tuple[None, dict[str, Any]]:
        return None, {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield event({"role": "assistant", "content": None})
    if reply.call:
        function = {"name": reply.call[0], "arguments": ""}
        yield event(
            {"tool_calls": [{"index": 0, "id": f"call-{reply.number}", "type": "function", "function": function}]}
        )
        yield event({"tool_calls": [{"index": 0, "function": {"arguments": json.dumps(reply.call[1])}}]})
    for word in split_words(reply.text):
        yield event({"content": word})
    end = event({}, "tool_calls" if reply.call else "stop")[1]
    usage = {"prompt_tokens": reply.prompt, "completion_tokens": reply.generated}
    usage |= {"total_tokens": reply.prompt + reply.generated, "prompt_tokens_details": {"cached_tokens": reply.cached}}
    yield None, {**end, "timings": reply.timings}
    yield None, {**base, "choices": [], "usage": usage, "timings": reply.timings}


def chat_body(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.call:
        function = {"name": reply.call[0], "arguments": json.dumps(reply.call[1])}
        message["tool_calls"] = [{"id": f"call-{reply.number}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.call else "stop"}
    usage = {"prompt_tokens": reply.prompt, "completion_tokens": reply.generated}
    return {"id": f"chat-{reply.number}", "model": MODEL, "choices": [choice], "usage": usage, "timings": reply.timings}


def message_blocks(reply: Reply) -> list[dict[str, Any]]:
    if reply.call:
        return [{"type": "tool_use", "id": f"tool-{reply.number}", "name": reply.call[0], "input": reply.call[1]}]
    return [{"type": "text", "text": reply.text}]


def message_usage(reply: Reply) -> dict[str, int]:
    read = reply.prompt - reply.cached
    return {"input_tokens": read, "cache_read_input_tokens": reply.cached, "output_tokens": reply.generated}


def messages_body(reply: Reply) -> dict[str, Any]:
    values = {
        "id": f"msg-{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "stop_sequence": None,
    }
    reason = "tool_use" if reply.call else "end_turn"
    return {**values, "content": message_blocks(reply), "stop_reason": reason, "usage": message_usage(reply)}


def messages_events(reply: Reply) -> Events:
    def event(kind: str, **rest: object) -> tuple[str, dict[str, Any]]:
        return kind, {"type": kind, **rest}

    whole = messages_body(reply)
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 0}}
    yield event("message_start", message=begun)
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            deltas = [{"type": "text_delta", "text": word} for word in split_words(block["text"])]
        else:
            yield event("content_block_start", index=index, content_block={**block, "input": {}})
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=delta, usage={"output_tokens": reply.generated})
    yield event("message_stop")


def response_item(reply: Reply) -> dict[str, Any]:
    if reply.call:
        arguments = json.dumps(reply.call[1])
        ids = {"id": f"fc-{reply.number}", "call_id": f"call-{reply.number}"}
        return {"type": "function_call", **ids, "name": reply.call[0], "arguments": arguments, "status": "completed"}
    part = {"type": "output_text", "text": reply.text, "annotations": []}
    values = {"type": "message", "id": f"msg-{reply.number}", "role": "assistant", "status": "completed"}
    return {**values, "content": [part]}


def responses_body(reply: Reply) -> dict[str, Any]:
    usage = {"input_tokens": reply.prompt, "output_tokens": reply.generated}
    usage |= {"total_tokens": reply.prompt + reply.generated, "input_tokens_details": {"cached_tokens": reply.cached}}
    values = {
        "id": f"resp-{reply.number}",
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": "completed",
    }
    return {**values, "output": [response_item(reply)], "usage": usage}


def responses_events(reply: Reply) -> Events:
    count = itertools.count()

    def event(kind: str, **rest: object) -> tuple[str, dict[str, Any]]:
        return kind, {"type": kind, "sequence_number": next(count), **rest}

    whole, item = responses_body(reply), response_item(reply)
    at = {"item_id": item["id"], "output_index": 0}
    yield event("response.created", response={**whole, "status": "in_progress", "output": [], "usage": None})
    if reply.call:
        yield event("response.output_item.added", output_index=0, item={**item, "arguments": ""})
        yield event("response.function_call_arguments.delta", **at, delta=item["arguments"])
        yield event("response.function_call_arguments.done", **at, arguments=item["arguments"])
    else:
        part = item["content"][0]
        yield event("response.output_item.added", output_index=0, item={**item, "content": []})
        yield event("response.content_part.added", **at, content_index=0, part={**part, "text": ""})
        for word in split_words(reply.text):
            yield event("response.output_text.delta", **at, content_index=0, delta=word)
        yield event("response.output_text.done", **at, content_index=0, text=reply.text)
        yield event("response.content_part.done", **at, content_index=0, part=part)
    yield event("response.output_item.done", output_index=0, item=item)
    yield event("response.completed", response={**whole, "timings": reply.timings})


APIS = {
    "/v1/chat/completions": (chat_events, chat_body),
    "/v1/messages": (messages_events, messages_body),
    "/v1/responses": (responses_events, responses_body),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    context = 131_072
    slots: ClassVar[list[list[str]]] = [[]]
    lock = threading.Lock()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        settings = {"n_ctx": self.context}
        answers: dict[str, Any] = {
            "/health": {"status": "ok"},
            "/v1/models": {"data": [{"id": MODEL}]},
            "/props": {
                "build_info": "scripted",
                "total_slots": len(self.slots),
                "default_generation_settings": settings,
            },
            "/slots": [{"id": number, "speculative": True} for number in range(len(self.slots))],
        }
        if self.path in answers:
            self.answer(200, answers[self.path])
        else:
            self.refuse(404, "File Not Found", "not_found_error")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.split("?")[0]
        if f"refuses={path}" in FAULTS or path not in (*APIS, COUNTING, "/apply-template", "/tokenize"):
            self.refuse(404, "File Not Found", "not_found_error")
            return
        if path == "/tokenize":
            pieces = enumerate(TOKEN.findall(body["content"]))
            self.answer(200, {"tokens": [{"id": number, "piece": piece} for number, piece in pieces]})
            return
        body, begun = split_continued(body)
        question = read_question(path, body)
        late = any(each.get("role") in ("system", "developer") for each in question.messages[1:])
        if late and "refuses-late" in FAULTS:
            self.refuse(500, LATE, "server_error")
        elif path == "/apply-template":
            self.answer(200, {"prompt": question.prompt + begun})
        elif path == COUNTING:
            note(path=path, tools=[], tokens=0, results=0)
            self.answer(200, {"input_tokens": len(TOKEN.findall(question.prompt + begun))})
        else:
            self.reply(path, body, question, begun)

    def reply(self, path: str, body: dict[str, Any], question: Question, begun: str) -> None:
        tokens = TOKEN.findall(question.prompt + begun)
        values = {"path": path, "tools": list(question.tools), "tokens": len(tokens)}
        if len(tokens) >= self.context:
            note(**values, answered="too long")
            reason = f"the request exceeds the available context size ({self.context} tokens)"
            counts = {"n_prompt_tokens": len(tokens), "n_ctx": self.context}
            self.refuse(400, reason, "exceed_context_size_error", **counts)
            return
        reply = Reply(prompt=len(tokens), cached=self.remember(tokens), call=choose_call(question))
        if reply.call is None:
            # A client without tools sends the file itself.
            found = re.findall(r"return (\d+)", json.dumps(question.messages[-1 if question.tools else 0 :]))
            reply.text = f"The file returns {found[-1]}." if found else "There is nothing to read."
            reply.text = reply.text.removeprefix(begun)
        elif "text-call" in FAULTS:
            call = json.dumps({"name": reply.call[0], "arguments": reply.call[1]})
            reply.text, reply.call = f"<tool_call>{call}</tool_call>", None
        note(**values, reused=reply.cached, answered=reply.call or reply.text, results=question.results)
        events, whole = APIS[path]
        if not body.get("stream"):
            self.answer(200, whole(reply))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for name, event in events(reply):
            self.chunk((f"event: {name}\n" if name else "") + f"data: {json.dumps(event)}\n\n")
            if "returns" in reply.text and is_text(event):
                hold_reply()
        if path == "/v1/chat/completions":
            self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def remember(self, tokens: list[str]) -> int:
        """Put a prompt into the slot that is most like it; return how many of its tokens were there."""
        with self.lock:
            shared = [0 if "forgets" in FAULTS else count_shared(slot, tokens) for slot in self.slots]
            best = max(range(len(shared)), key=lambda number: shared[number])
            if shared[best] < len(tokens) // 10:  # as llama.cpp: the slot that was used longest ago
                best = 0
            self.slots.append(tokens)
            self.slots.pop(best)
            return min(shared[best], len(tokens) - 1)

    def chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def refuse(self, status: int, reason: str, kind: str, **facts: int) -> None:
        self.answer(status, {"error": {"code": status, "message": reason, "type": kind, **facts}})

    def answer(self, status: int, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that leaves is no error."""


def is_text(event: dict[str, Any]) -> bool:
    """Return whether an event in any of the APIs has a part of a text."""
    choices = event.get("choices") or [{}]
    delta = event.get("delta")
    kind = delta.get("type") if isinstance(delta, dict) else event.get("type")
    return kind in TEXT_DELTAS or bool(choices[0].get("delta", {}).get("content"))


def hold_reply() -> None:
    """Hold one reply until this process ends, if AGENT_HOLD is set."""
    path = Path(os.environ.get("AGENT_HOLD", ""))
    if not path.is_file():
        return
    path.replace(f"{path}.reached")
    threading.Event().wait()


def count_shared(old: list[str], new: list[str]) -> int:
    pairs = zip(old, new, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(old), len(new)))


def note(**facts: object) -> None:
    """Write a line about a request into the log, if there is one."""
    if path := os.environ.get("AGENT_LOG"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ctx-size", type=int, default=131_072)
    parser.add_argument("--parallel", type=int, default=1)
    options, _ = parser.parse_known_args()
    Handler.context = int(os.environ.get("AGENT_CONTEXT", options.ctx_size))
    Handler.slots = [[] for _ in range(options.parallel)]
    server = Server(("127.0.0.1", options.port), Handler)
    if "LLAMA_API_KEY" in os.environ:  # an engine of the launcher's ends with its parent's pipe
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
