"""What becomes of each form of stream at a restart, a crash of the engine, and two quick restarts: a table.

Each form is streamed once without a disturbance and then with each of them, at several places. At temperature 0, and
with a seed, the text must be the same, or the stream must end with an error event.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx  # noqa: TID251 -- a client that sees what others see

from launcher.app.serving.session import ServerSession
from launcher.engine.demo import unpack_demo_model
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import ServerState
from tools.markdown import format_table

_CHAT, _COMPLETIONS, _MESSAGES, _RESPONSES = "chat", "completions", "messages", "responses"
_COMPLETION = "completion"
_PATHS = {name: f"/v1/{name}" for name in (_COMPLETIONS, _MESSAGES, _RESPONSES)} | {
    _CHAT: "/v1/chat/completions",
    _COMPLETION: "/completion",
}
_QUESTION = "Explain why a bicycle stays upright, and how bread rises."
_LONG = {"ignore_eos": True}
_ANSWERS = {"chat_template_kwargs": {"enable_thinking": False}}
_WORDS = r'root ::= "(" [a-z]+ (" " [a-z]+){500} ")"'
_STRINGS = {
    "type": "array",
    "items": {"type": "string", "minLength": 4, "maxLength": 12},
    "minItems": 60,
    "maxItems": 60,
}
_SCHEMA = {"type": "object", "properties": {"words": _STRINGS}, "required": ["words"], "additionalProperties": False}
_FUNCTION = {"name": "bake", "description": "Bake.", "parameters": _SCHEMA}
_TOOL = {"type": "function", "function": _FUNCTION}
_JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}
_PENALTIES = {"repeat_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2, "repeat_last_n": 256}
_DRY = {"dry_multiplier": 0.8, "dry_penalty_last_n": 256}
_PREFILL = {"role": "assistant", "content": "It stays upright"}
_SEED = {"temperature": 0.8, "seed": 7}
_HELD_BACK = 1_500
"""Characters of a stop text over the seam: the engine holds back what may become one."""
_DISTURBANCES = ("restart", "crash", "two restarts")
_ALL = 1_000_000
"""Parts that a reply counts as more when it has ended."""
_BETWEEN_S = 0.1
"""Seconds between two quick restarts."""
_DRAIN_S, _REPLY_S = 60.0, 240.0


@dataclass(frozen=True)
class Form:
    """A kind of request. A stop text of `stop_length` characters begins at the share `stops_at` of its reply."""

    api: str
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    stops_at: float | None = None
    stop_length: int = 12


# In Anthropic's format llama-server takes neither grammars, penalties nor seeds (server-chat.cpp, b11549).
FORMS: Sequence[Form] = (
    Form(_CHAT, "thinking and answer", _LONG),
    Form(_CHAT, "without thinking", {**_LONG, **_ANSWERS}),
    Form(_CHAT, '`reasoning_format: "none"`', {**_LONG, "reasoning_format": "none"}),
    Form(_CHAT, "a limit for thinking", {**_LONG, "thinking_budget_tokens": 400}),
    Form(_CHAT, "`grammar`", {"grammar": _WORDS, **_ANSWERS}),
    Form(_CHAT, "`response_format` with a schema", {"response_format": _JSON_SCHEMA}),
    Form(_CHAT, "the same without thinking", {"response_format": _JSON_SCHEMA, **_ANSWERS}),
    Form(_CHAT, "`json_schema`", {"json_schema": _SCHEMA, **_ANSWERS}),
    Form(_CHAT, "`tools`", {"tools": [_TOOL], **_LONG}),
    Form(_CHAT, '`tool_choice: "required"`', {"tools": [_TOOL], "tool_choice": "required"}),
    Form(_CHAT, "`logprobs`", {**_LONG, "logprobs": True, "top_logprobs": 2}),
    Form(_CHAT, "stop text", _LONG, 0.9),
    Form(_CHAT, "stop text over the seam", _LONG, 0.3, _HELD_BACK),
    Form(_CHAT, "penalties", {**_LONG, **_PENALTIES}),
    Form(_CHAT, "DRY", {**_LONG, **_DRY}),
    Form(_CHAT, "`n: 2`", {**_LONG, "n": 2}),
    Form(_CHAT, "`n_cmpl: 2`", {**_LONG, "n_cmpl": 2}),
    Form(_CHAT, "prefill", {**_LONG, "messages": [{"role": "user", "content": _QUESTION}, _PREFILL]}),
    Form(_CHAT, "`seed`", {**_LONG, **_SEED}),
    Form(_COMPLETIONS, "text", _LONG),
    Form(_COMPLETIONS, "list of one text", {**_LONG, "prompt": [_QUESTION]}),
    Form(_COMPLETIONS, "list of two texts", {**_LONG, "prompt": [_QUESTION, "Bread rises because"]}),
    Form(_COMPLETIONS, "`grammar`", {"grammar": _WORDS}),
    Form(_COMPLETIONS, "`json_schema`", {"json_schema": _SCHEMA}),
    Form(_COMPLETIONS, "`response_format` with a schema", {"response_format": _JSON_SCHEMA}),
    Form(_COMPLETIONS, "`logprobs`", {**_LONG, "logprobs": 2}),
    Form(_COMPLETIONS, "stop text", _LONG, 0.9),
    Form(_COMPLETIONS, "stop text over the seam", _LONG, 0.3, _HELD_BACK),
    Form(_COMPLETIONS, "penalties", {**_LONG, **_PENALTIES}),
    Form(_COMPLETIONS, "`n: 2`", {**_LONG, "n": 2}),
    Form(_COMPLETIONS, "`id_slot`", {**_LONG, "id_slot": 1}),
    Form(_COMPLETIONS, "`echo`", {**_LONG, "echo": True}),
    Form(_COMPLETIONS, "`seed`", {**_LONG, **_SEED}),
    Form(_COMPLETION, "text", _LONG),
    Form(_MESSAGES, "thinking and answer", _LONG),
    Form(_MESSAGES, "without thinking", {**_LONG, "thinking": {"type": "disabled"}}),
    Form(_MESSAGES, "a limit for thinking", {**_LONG, "thinking": {"type": "enabled", "budget_tokens": 400}}),
    Form(_MESSAGES, "`tools`", {"tools": [{"name": "bake", "input_schema": _SCHEMA}], **_LONG}),
    Form(
        _MESSAGES,
        "`tool_choice: any`",
        {"tools": [{"name": "bake", "input_schema": _SCHEMA}], "tool_choice": {"type": "any"}},
    ),
    Form(_MESSAGES, "stop text", _LONG, 0.9),
    Form(_MESSAGES, "prefill", {**_LONG, "messages": [{"role": "user", "content": _QUESTION}, _PREFILL]}),
    Form(_RESPONSES, "thinking and answer", _LONG),
    Form(_RESPONSES, "`tools`", {"tools": [{"type": "function", **_FUNCTION}], **_LONG}),
    Form(_RESPONSES, "schema", {"text": {"format": {"type": "json_schema", "name": "answer", "schema": _SCHEMA}}}),
)


class StreamedReply:
    """What a client of a stream has received: texts by kind and place, the cause of the end, and an error."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.roles = self.parts = 0
        self.finish: str | None = None
        self.error: str | None = None
        self._came = asyncio.Condition()

    @property
    def outcome(self) -> tuple[object, ...]:
        """What must be the same."""
        return self.texts, self.finish, self.roles

    @property
    def longest(self) -> str:
        """The longest of the texts, in which a stop text is looked for."""
        return max(self.texts.values(), key=len)

    async def wait_for_parts(self, count: int) -> None:
        """Wait until the client has `count` parts of the reply, or all."""
        async with self._came:
            await self._came.wait_for(lambda: self.parts >= count)

    async def read(self, client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> None:
        """Send a request, and read its stream to the end."""
        try:
            async with client.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    self.error = f"{response.status_code}: {(await response.aread()).decode()[:200]}"
                    return
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        self._add_event(json.loads(line.removeprefix("data: ")))
                        async with self._came:
                            self._came.notify_all()
        finally:
            self.parts += _ALL
            async with self._came:
                self._came.notify_all()

    def _add_event(self, event: Mapping[str, Any]) -> None:
        if isinstance(error := event.get("error"), dict):
            self.error = str(error.get("type"))
        for choice in event.get("choices") or ():
            self._add_choice(str(choice["index"]), choice)
        if isinstance(event.get("content"), str):
            self._add_text("text", event["content"])
            self.finish = event.get("stop_type") or self.finish
        kind = event.get("type")
        self.roles += kind in ("message_start", "response.created")
        if kind == "content_block_start":
            self._add_text(f"block {event['index']}", event["content_block"]["type"] + ": ", part=False)
        elif kind == "content_block_delta":
            delta = event["delta"]
            self._add_text(f"block {event['index']}", next((str(delta[n]) for n in _TEXTS if delta.get(n)), ""))
        elif kind == "message_delta":
            self.finish = event["delta"]["stop_reason"]
        elif isinstance(kind, str) and kind.endswith(".delta"):
            self._add_text(kind, str(event["delta"]))
        elif kind == "response.completed":
            self.finish = event["response"]["status"]

    def _add_choice(self, index: str, choice: Mapping[str, Any]) -> None:
        self.finish = choice.get("finish_reason") or self.finish
        delta = choice.get("delta") or {}
        self.roles += "role" in delta
        self._add_text(f"{index} thinking", delta.get("reasoning_content") or "")
        self._add_text(f"{index} text", delta.get("content") or choice.get("text") or "")
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            name = function.get("name")
            self._add_text(f"{index} call {call['index']}", f"{name}: " if name else "", part=False)
            self._add_text(f"{index} call {call['index']}", function.get("arguments") or "")

    def _add_text(self, place: str, text: str, *, part: bool = True) -> None:
        if text:
            self.texts[place] = self.texts.get(place, "") + text
            self.parts += part


_TEXTS = ("text", "thinking", "partial_json")


async def prove_forms(options: argparse.Namespace) -> int:
    """Disturb each form of stream, print the table, and return the exit code: 1 if a text was another one."""
    os.environ["MTP_LAUNCHER_HOME"] = str(options.folder / "home")
    options.folder.mkdir(parents=True, exist_ok=True)
    rows, broken = [], 0
    for form in FORMS:
        if options.client not in f"{form.api}, {form.name}":
            continue
        cells: list[str] = []
        async with _serve_demo(options) as (session, client):
            body, whole = await _read_whole(client, form, options.tokens)
            for disturbance in _DISTURBANCES:
                results = Counter(
                    [await _disturb(session, client, form, body, whole, disturbance, at) for at in options.places]
                )
                broken += sum(count for result, count in results.items() if result.startswith("**"))
                several = len(results) > 1
                cells.append(
                    ", ".join(f"{result} ({count})" if several else result for result, count in results.items())
                )
        rows.append((form.api, form.name, *cells))
        print(*rows[-1], sep=" | ", flush=True)
    print(format_table(["API", "form", *_DISTURBANCES], rows))
    return 1 if broken else 0


@asynccontextmanager
async def _serve_demo(options: argparse.Namespace) -> AsyncIterator[tuple[ServerSession, httpx.AsyncClient]]:
    session = ServerSession()
    try:
        await session.start(
            StartRequest(
                ServeOptions(
                    unpack_demo_model(),
                    options.llama_server,
                    options.llama_server is None,
                    threads=1,
                    context=32_768,
                    slots=2,
                    kv_unified=True,
                    alias="demo",
                )
            )
        )
        endpoint = session.supervisor.endpoint
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        async with httpx.AsyncClient(
            base_url=endpoint.url, headers=headers, timeout=_REPLY_S, trust_env=False
        ) as client:
            yield session, client
    finally:
        await session.stop()


async def _disturb(
    session: ServerSession,
    client: httpx.AsyncClient,
    form: Form,
    body: Mapping[str, Any],
    whole: StreamedReply,
    disturbance: str,
    place: float,
) -> str:
    """Return what becomes of a reply that is disturbed after a share of it."""
    reply = StreamedReply()
    reading = asyncio.create_task(reply.read(client, _PATHS[form.api], body))
    await reply.wait_for_parts(
        max(1, int((1.0 if form.stop_length == _HELD_BACK else place) * (whole.parts - _ALL)) - 2)
    )
    options = session.supervisor.options
    assert options is not None
    uncertain, pid = 0, session.supervisor.engine_pid
    if disturbance == "crash":
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    else:
        drafts = [draft for draft in (1, 3, 4) if draft != options.draft]
        changes = []
        for draft in drafts if disturbance == "two restarts" else drafts[:1]:
            changes.append(
                asyncio.create_task(session.start(StartRequest(replace(options, draft=draft), drain_s=_DRAIN_S)))
            )
            await asyncio.sleep(_BETWEEN_S)
        await asyncio.gather(*changes, return_exceptions=True)
        uncertain = session.last_handover.uncertain if session.last_handover else 0
    await asyncio.wait_for(reading, _REPLY_S)
    while disturbance == "crash" and session.supervisor.engine_pid == pid:  # noqa: ASYNC110 -- it is no event
        await asyncio.sleep(_BETWEEN_S)
    await session.supervisor.wait_for_state(ServerState.READY, ServerState.BUSY)
    record = session.request_log.records[-1]
    if reply.error is not None:
        is_beginning = all(whole.texts.get(name, "").startswith(text) for name, text in reply.texts.items())
        return f"ends: `{reply.error}`" if is_beginning else f"**other text**, then `{reply.error}`"
    if reply.outcome == whole.outcome:
        return "goes on" if record.gaps_s else "again" if record.handovers else "ends first"
    if uncertain:
        return "uncertain"
    print(form.name, disturbance, *_first_differences(whole, reply), sep="\n    ", file=sys.stderr, flush=True)
    return f"**other text**, {reply.finish}"


def _first_differences(whole: StreamedReply, reply: StreamedReply) -> Iterator[str]:
    """Yield what surrounds the first difference in each text."""
    for name in {**whole.texts, **reply.texts}:
        texts = whole.texts.get(name, ""), reply.texts.get(name, "")
        same = next((n for n, pair in enumerate(zip(*texts, strict=False)) if len({*pair}) > 1), min(map(len, texts)))
        if same < max(map(len, texts)):
            yield f"{name} at {same}: " + " instead of ".join(
                repr(text[max(0, same - 60) : same + 60]) for text in texts[::-1]
            )
    if whole.outcome[1:] != reply.outcome[1:]:
        yield f"{reply.outcome[1:]} instead of {whole.outcome[1:]}"


def _make_body(form: Form, tokens: int) -> dict[str, Any]:
    asked: dict[str, Any] = {"stream": True, "temperature": 0, "max_tokens": tokens}
    if form.api in (_COMPLETIONS, _COMPLETION):
        asked["prompt"] = _QUESTION
    elif form.api == _RESPONSES:
        asked |= {"input": _QUESTION, "max_output_tokens": tokens}
    else:
        asked["messages"] = [{"role": "user", "content": _QUESTION}]
    return {**asked, **form.fields}


async def _read_whole(client: httpx.AsyncClient, form: Form, tokens: int) -> tuple[dict[str, Any], StreamedReply]:
    """Return the request of a form, and its reply without a disturbance."""
    body, whole = _make_body(form, tokens), StreamedReply()
    await whole.read(client, _PATHS[form.api], body)
    if form.stops_at is not None:
        begin = int(form.stops_at * len(whole.longest))
        stop = whole.longest[begin : begin + form.stop_length]
        body["stop_sequences" if form.api == _MESSAGES else "stop"] = [stop]
        whole = StreamedReply()
        await whole.read(client, _PATHS[form.api], body)
    assert whole.error is None, f"{form}: {whole.error}"
    return body, whole
