"""A scripted Claude Code: sends the requests that version 2.1.330 sends for models that it does not know.

    claude -p QUESTION [-c]      answer a question in the current folder; -c goes on with the last conversation there

It is a real client over a socket: a request for a title and one for the number of tokens, then POST
/v1/messages?beta=true, streamed, with twelve tools, cached blocks of system text, a system message after the first user
message, thinking sent back, and tools that read files but run nothing. A conversation that nears the context that was
set, or that the server refused as too long, is summarised by one more user message with the same tools, and goes on
from the summary. The texts are our own, as long as the original's. ANTHROPIC_* and CLAUDE_CODE_* have their usual
meaning.

A variable of its own:

    CLAUDE_RULES    number of sentences in the system text (default: 150, which makes it as long as the original's)
"""

import hashlib
import http.client
import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

VERSION = "2.1.330"
MOST_TURNS, TRIES = 8, 3
ASSUMED_CONTEXT, MOST_RESERVED, MARGIN = 1_000_000, 20_000, 13_000
"""A conversation is summarised at its context less its longest reply (at most MOST_RESERVED tokens) less MARGIN."""
SUMMARY = (
    "Sum this conversation up: what was asked, what was done, which files were read, and what is left. Call no tool."
)
TOOL_NAMES = (
    "Agent", "Bash", "Edit", "ExitPlanMode", "Glob", "Grep", "NotebookEdit", "Read", "Skill", "TodoWrite", "ToolSearch",
    "Write",
)  # fmt: skip
RULE = (
    "Rule {number}: read a file before you change it, change only what was asked for, and say what you did in one line."
)


def make_tools() -> list[dict[str, Any]]:
    if os.environ.get("CLAUDE_CODE_SIMPLE") == "1":
        return [make_tool(name) for name in ("Bash", "Read", "Edit")]
    return [make_tool(name) for name in TOOL_NAMES]


def make_tool(name: str) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "file_path": {"type": "string", "description": "The absolute path of the file"},
        "limit": {"type": "integer", "description": "Number of lines, for files that are too long to be read at once"},
    }
    about = f"{name}: one of the tools of this session. Its arguments are described by the schema. "
    return {
        "name": name,
        "description": about + "Prefer it to a command of the shell that does the same. " * 24,
        "input_schema": {"type": "object", "properties": properties, "required": ["file_path"]},
    }


def make_system(first_question: str) -> list[dict[str, Any]]:
    """Return the blocks of system text. The first changes with each conversation, unless it is turned off."""
    blocks: list[dict[str, Any]] = []
    if os.environ.get("CLAUDE_CODE_ATTRIBUTION_HEADER") != "0":
        digest = hashlib.sha256(first_question.encode()).hexdigest()[:3]
        blocks.append({"type": "text", "text": f"x-anthropic-billing-header: cc_version={VERSION}.{digest};"})
    simple = os.environ.get("CLAUDE_CODE_SIMPLE") == "1"
    count = 8 if simple else int(os.environ.get("CLAUDE_RULES", "150"))
    rules = "\n".join(RULE.format(number=number) for number in range(1, count + 1))
    cached = {"cache_control": {"type": "ephemeral"}}
    blocks.append({"type": "text", "text": "You are a coding agent that works in a folder of the user.", **cached})
    blocks.append({"type": "text", "text": f"{rules}\nWorking directory: {Path.cwd()}", **cached})
    return blocks


def make_first_messages(question: str) -> list[dict[str, Any]]:
    """Return the first message of the user, and after it a system message, except in the simple mode."""
    reminder = "<system-reminder>The files of this folder may have changed.</system-reminder>"
    parts = [{"type": "text", "text": text} for text in (reminder, question)]
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    if os.environ.get("CLAUDE_CODE_SIMPLE") != "1":
        messages.append({"role": "system", "content": "Tools that are not listed can be found by ToolSearch."})
    return messages


class PromptTooLong(Exception):
    """The server has refused a prompt as longer than its context."""


class Conversation:
    """A conversation, kept in the folder of CLAUDE_CONFIG_DIR, or ~/.claude."""

    def __init__(self, question: str, *, goes_on: bool) -> None:
        folder = Path(os.environ.get("CLAUDE_CONFIG_DIR", Path.home() / ".claude"))
        self._path = folder / (hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:12] + ".json")
        self.session, self.first_question, self.messages = str(uuid.uuid4()), question, make_first_messages(question)
        self.question, self.tokens = question, 0
        if goes_on:
            kept = json.loads(self._path.read_text())
            self.session, self.first_question, self.tokens = kept["session"], kept["first_question"], kept["tokens"]
            self.messages = [*kept["messages"], {"role": "user", "content": [{"type": "text", "text": question}]}]

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            "session": self.session,
            "first_question": self.first_question,
            "messages": self.messages,
            "tokens": self.tokens,
        }
        self._path.write_text(json.dumps(kept))

    def run(self) -> str:
        """Send requests until an answer calls no tool; return its text."""
        for _ in range(MOST_TURNS):
            if self.tokens > find_limit():
                self._sum_up()
            try:
                blocks, self.tokens = send(self._make_body())
            except PromptTooLong as error:
                if not self.tokens:
                    sys.exit(str(error))
                self._sum_up()
                continue
            self.messages.append({"role": "assistant", "content": blocks})
            calls = [block for block in blocks if block["type"] == "tool_use"]
            if not calls:
                return "".join(block.get("text", "") for block in blocks)
            results = [{"type": "tool_result", "tool_use_id": call["id"], **run_tool(call)} for call in calls]
            self.messages.append({"role": "user", "content": results})
        return "Too many calls of tools."

    def _sum_up(self) -> None:
        """Go on from a summary of the conversation, which the model writes, and with the last question."""
        ends = [index for index, each in enumerate(self.messages, 1) if is_answer(each)]
        messages = self.messages[: ends[-1]] if ends else self.messages
        body = self._make_body()
        request = {"role": "user", "content": [{"type": "text", "text": SUMMARY}]}
        blocks, _ = send({**body, "messages": [*messages, request]})
        text = "".join(block.get("text", "") for block in blocks)
        self.messages, self.tokens = make_first_messages(f"Summary of this session so far: {text}\n{self.question}"), 0

    def send_side_requests(self) -> None:
        """Ask for a title, unless traffic is limited to what is needed, and for the number of tokens so far."""
        model = os.environ["ANTHROPIC_DEFAULT_HAIKU_MODEL"]
        if os.environ.get("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC") != "1":
            text = f"Give this conversation a title of three words: {self.first_question}"
            messages = [{"role": "user", "content": text}]
            send({"model": model, "max_tokens": 64, "stream": True, "messages": messages})
        body = self._make_body()
        counted = {name: body[name] for name in ("model", "system", "tools", "messages")}
        connection = open_connection()
        connection.request("POST", "/v1/messages/count_tokens?beta=true", json.dumps(counted), make_headers(0))
        reply = connection.getresponse()
        if reply.status not in (200, 404):
            sys.exit(f"API Error: {reply.status} {reply.read().decode()}")

    def _make_body(self) -> dict[str, Any]:
        return {
            "model": os.environ["ANTHROPIC_MODEL"],
            "max_tokens": int(os.environ.get("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "32000")),
            "stream": True,
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "metadata": {"user_id": json.dumps({"device_id": "0" * 64, "session_id": self.session})},
            "system": make_system(self.first_question),
            "tools": make_tools(),
            "messages": self.messages,
        }


def is_answer(message: dict[str, Any]) -> bool:
    """Return whether a message ends a turn: of the assistant, without a call of a tool."""
    return message["role"] == "assistant" and all(block["type"] != "tool_use" for block in message["content"])


def find_limit() -> int:
    """Return the number of tokens at which a conversation is summarised."""
    context = int(os.environ.get("CLAUDE_CODE_MAX_CONTEXT_TOKENS", ASSUMED_CONTEXT))
    output = int(os.environ.get("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "32000"))
    return context - min(output, MOST_RESERVED) - MARGIN


def send(body: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Send a request, again after a server error; return the answer's blocks and the tokens of request and answer."""
    reason = ""
    for number in range(TRIES):
        connection = open_connection()
        connection.request("POST", "/v1/messages?beta=true", json.dumps(body), make_headers(number))
        reply = connection.getresponse()
        if reply.status == 200:
            usage: dict[str, int] = {}
            return list(read_blocks(reply, usage)), sum(usage.values())
        reason = f"API Error: {reply.status} {reply.read().decode()}"
        if "exceed_context_size_error" in reason:
            raise PromptTooLong(reason)
        if reply.status < 500:
            break
    sys.exit(reason)


def open_connection() -> http.client.HTTPConnection:
    address = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    return http.client.HTTPConnection(address.hostname or "", address.port, timeout=600)


def make_headers(retries: int) -> dict[str, str]:
    return {
        "accept": "application/json",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,mid-conversation-system",
        "anthropic-dangerous-direct-browser-access": "true",
        "anthropic-version": "2023-06-01",
        "authorization": f"Bearer {os.environ['ANTHROPIC_AUTH_TOKEN']}",
        "content-type": "application/json",
        "user-agent": f"claude-cli/{VERSION} (external, sdk-cli)",
        "x-app": "cli",
        "x-stainless-lang": "js",
        "x-stainless-retry-count": str(retries),
        "x-stainless-timeout": "600",
    }


def read_blocks(reply: http.client.HTTPResponse, usage: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a streamed answer, and set its counts of tokens."""
    block: dict[str, Any] = {}
    arguments = ""
    for line in reply:
        if not line.startswith(b"data:"):
            continue
        event = json.loads(line[5:])
        delta = event.get("delta", {})
        match event["type"], delta.get("type"):
            case "message_start", _:
                usage.update(event["message"]["usage"])
            case "message_delta", _:
                usage.update(event["usage"])
            case "content_block_start", _:
                block, arguments = dict(event["content_block"]), ""
            case _, "text_delta":
                block["text"] += delta["text"]
            case _, "thinking_delta":
                block["thinking"] += delta["thinking"]
            case _, "signature_delta":
                block["signature"] = delta["signature"]
            case _, "input_json_delta":
                arguments += delta["partial_json"]
            case "content_block_stop", _:
                yield block | ({"input": json.loads(arguments or "{}")} if block["type"] == "tool_use" else {})
            case "error", _:
                sys.exit(f"API Error: {event['error']}")
            case "message_stop", _:
                return
    sys.exit("API Error: the answer broke off")


def run_tool(call: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a tool call: the numbered lines of a file."""
    try:
        lines = Path(call["input"]["file_path"]).read_text().splitlines()
    except (KeyError, OSError, TypeError) as error:
        return {"content": f"{type(error).__name__}: {error}", "is_error": True}
    return {"content": "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, start=1))}


def main() -> None:
    arguments = sys.argv[1:]
    if "--version" in arguments:
        sys.exit(print(f"{VERSION} (Claude Code)"))
    question = next(word for word in reversed(arguments) if not word.startswith("-"))
    conversation = Conversation(question, goes_on="-c" in arguments)
    conversation.send_side_requests()
    print(conversation.run())
    conversation.save()


if __name__ == "__main__":
    main()
