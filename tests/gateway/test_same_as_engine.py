"""The same bytes sent to the engine and to the gateway in front of it: the answers are the same, byte for byte.

Only what differs between two requests to the engine itself is left out: IDs, times, and counts of the cache.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from launcher.app.serving.session import ServerSession
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest

CHAT, COMPLETIONS, MESSAGES, RESPONSES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
)
QUESTION: Mapping[str, Any] = {"messages": [{"role": "user", "content": "How does bread rise?"}]}
PREFILL = {"messages": [*QUESTION["messages"], {"role": "assistant", "content": "It rises"}]}
SCHEMA = {"type": "object", "properties": {"kind": {"type": "string", "maxLength": 9}}, "required": ["kind"]}
FUNCTION = {"name": "bake", "description": "Bake.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
GRAMMAR = 'root ::= "yes" | "no"'
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}

CHATS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "one token": {"max_tokens": 1},
    "usage": {"stream_options": {"include_usage": True}},
    "timings per token": {"timings_per_token": True},
    "progress": {"return_progress": True},
    "no progress": {"return_progress": False},
    "raw thinking": {"reasoning_format": "none"},
    "raw thinking, one token": {"reasoning_format": "none", "max_tokens": 1},
    "raw thinking, usage": {"reasoning_format": "none", "stream_options": {"include_usage": True}},
    "raw thinking, choices": {"reasoning_format": "none", "n": 2},
    "legacy thinking": {"reasoning_format": "deepseek-legacy"},
    "no thinking": NO_THINKING,
    "prefill": PREFILL,
    "raw thinking, prefill": {**PREFILL, "reasoning_format": "none"},
    "choices": {"n": 2},
    "stop": {"stop": ["question", " of"]},
    "seed": {"temperature": 0.9, "seed": 4},
    "penalties": {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "logit bias": {"logit_bias": {"9": -100}},
    "grammar": {"grammar": GRAMMAR, **NO_THINKING},
    "schema": {"response_format": FORMAT},
    "tool": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200},
    "tool, auto": {"tools": [TOOL]},
    "wrong grammar": {"grammar": "root ::= ("},
    "wrong type": {"temperature": "warm"},
    "wrong role": {"messages": [{"role": "baker", "content": "Hello"}]},
    "no messages": {"messages": None},
    "image": {"messages": [{"role": "user", "content": [IMAGE]}]},
    "too long": {"messages": [{"role": "user", "content": "bread " * 20_000}]},
}
PROMPTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "progress": {"return_progress": True},
    "usage": {"stream_options": {"include_usage": True}},
    "echo": {"echo": True},
    "choices": {"n": 2},
    "tokens": {"prompt": [1, 20, 30]},
    "texts": {"prompt": ["Bread is", "Dough is"]},
    "one text": {"prompt": ["Bread is"]},
    "stop": {"stop": [" a"]},
    "logprobs": {"logprobs": 2},
    "grammar": {"grammar": GRAMMAR},
    "schema": {"json_schema": SCHEMA},
    "no prompt": {"prompt": None},
}
ASKED = [
    *((CHAT, {**QUESTION, **fields}, name) for name, fields in CHATS.items()),
    *((COMPLETIONS, {"prompt": "Bread is", **fields}, name) for name, fields in PROMPTS.items()),
    ("/chat/completions", QUESTION, "plain"),
    ("/completion", {"prompt": "Bread is"}, "plain"),
    ("/completions", {"prompt": "Bread is"}, "plain"),
    ("/infill", {"input_prefix": "Bread ", "input_suffix": " rises."}, "plain"),
    (MESSAGES, QUESTION, "plain"),
    (MESSAGES, {**QUESTION, "system": "Be brief.", "stop_sequences": [" is"]}, "stop"),
    (MESSAGES, {**QUESTION, "thinking": {"type": "disabled"}}, "no thinking"),
    (MESSAGES, {**QUESTION, "tools": [{"name": "bake", "input_schema": SCHEMA}]}, "tool"),
    (MESSAGES, {"messages": []}, "no messages"),
    (RESPONSES, {"input": "How does bread rise?"}, "plain"),
    ("/responses", {"input": "How does bread rise?"}, "plain"),
    (RESPONSES, {}, "no input"),
]
QUESTIONS = [
    ("/tokenize", {"content": "Bread rises.", "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 20, 30]}),
    ("/apply-template", QUESTION),
    ("/v1/messages/count_tokens", QUESTION),
    ("/v1/chat/completions/input_tokens", QUESTION),
    ("/chat/completions/input_tokens", QUESTION),
    ("/v1/responses/input_tokens", {"input": "How does bread rise?"}),
    ("/responses/input_tokens", {"input": "How does bread rise?"}),
    ("/v1/embeddings", {"input": "Bread"}),
    ("/v1/rerank", {"query": "Bread", "documents": ["Dough"]}),
    ("/v1/no-such-path", {}),
]
DIFFERENT = (
    rb'"id":"[^"]*"',
    rb'"(?:item_id|call_id|response_id)":"[^"]*"',
    rb'"(?:created|created_at|completed_at)":\d+',
    rb'"(?:id_slot|id_task|tokens_cached)":-?\d+',
    rb'"(?:cached_tokens|cache_read_input_tokens|input_tokens)":\d+',
    rb'"timings":\{[^}]*\}',
    rb'"prompt_progress":\{[^}]*\}',
)


def leave_out_differences(data: bytes) -> bytes:
    for pattern in DIFFERENT:
        data = re.sub(pattern, b"", data)
    frames = data.split(b"\n\n")
    if b'"index":1' in data:  # the engine's slots take turns as they can
        frames.sort(key=lambda frame: re.findall(rb'"index":\d', frame))
    # How often the engine reports depends on what it has in its cache.
    return b"\n\n".join(each for number, each in enumerate(frames) if not number or each != frames[number - 1])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def addresses(demo_model: Path) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of the gateway and of the engine behind it."""
    session = ServerSession()
    try:
        await session.start(
            StartRequest(ServeOptions(model=demo_model, built_in=True, threads=1, slots=2, draft=2, alias="demo"))
        )
        clients = [
            httpx.AsyncClient(
                base_url=each.url,
                headers={"Authorization": f"Bearer {each.api_key}"},
                timeout=60,
                trust_env=False,
            )
            for each in (session.supervisor.endpoint, session.supervisor.engine_endpoint)
        ]
        yield clients
        for each in clients:
            await each.aclose()
    finally:
        await session.stop()


async def ask_both(
    addresses: list[httpx.AsyncClient], method: str, path: str, body: Mapping[str, Any] | None = None
) -> list[tuple[int, str, bytes]]:
    answers = []
    for each in addresses:
        sent = None if body is None else json.dumps(body).encode()
        answer = await each.request(method, path, content=sent, headers={"Content-Type": "application/json"})
        kind = answer.headers["Content-Type"].partition(";")[0]
        answers.append((answer.status_code, kind, leave_out_differences(answer.content)))
    return answers


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("path", "fields"), [pytest.param(*each[:2], id=f"{each[0]} {each[2]}") for each in ASKED])
async def test_a_reply_is_that_of_the_engine(
    addresses: list[httpx.AsyncClient], path: str, fields: Mapping[str, Any], stream: bool
) -> None:
    body = {"stream": stream, "temperature": 0, "max_tokens": 12, **fields}
    gateway, engine = await ask_both(addresses, "POST", path, body)
    assert gateway == engine


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("path", "body"), QUESTIONS, ids=[each[0] for each in QUESTIONS])
async def test_a_question_is_answered_as_by_the_engine(
    addresses: list[httpx.AsyncClient], path: str, body: Mapping[str, Any]
) -> None:
    gateway, engine = await ask_both(addresses, "POST", path, body)
    if engine[0] == 404:  # the words are not the same, but the error's code and type are
        errors = [json.loads(each[2])["error"] for each in (gateway, engine)]
        assert [(each["code"], each["type"]) for each in errors] == [(404, "not_found_error")] * 2
    else:
        assert gateway == engine


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", ["/props", "/lora-adapters", "/health", "/v1/health"])
async def test_the_state_is_that_of_the_engine(addresses: list[httpx.AsyncClient], path: str) -> None:
    (status, kind, data), engine = await ask_both(addresses, "GET", path)
    assert (status, kind, json.loads(data)) == (*engine[:2], json.loads(engine[2]))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", ["/v1/models", "/props", "/slots", "/lora-adapters", "/metrics", "/health"])
async def test_the_head_of_a_page_is_that_of_the_engine(addresses: list[httpx.AsyncClient], path: str) -> None:
    gateway, engine = await ask_both(addresses, "HEAD", path)
    assert gateway == engine == (200, engine[1], b"")
    assert (await addresses[0].get("/health")).status_code == 200
