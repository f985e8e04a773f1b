"""Reasons why a prompt was read again: by hashes of requests, and on the real built-in engine."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.base.codec import to_json
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.reread import BILLING_HEADER, Reread, RereadCause
from launcher.engine.server.start_request import StartRequest
from launcher.gateway.exchange import TOO_LONG, Exchange, ReplyFigures
from launcher.gateway.prompt_memory import PromptMemory, encode_prompt
from tests.gateway.test_handover import serve_model

TOOLS = [{"type": "function", "function": {"name": f"tool{number}", "description": "x" * 400}} for number in range(40)]
SYSTEM = "You are a coding agent. " * 400
TURNS = [
    {"role": "user", "content": "Read the file."},
    {"role": "assistant", "content": "It says: " + "line of code " * 200},
    {"role": "user", "content": "Mend it."},
]
_CHARACTERS_PER_TOKEN = 4


def ended_request(body: Mapping[str, Any], reused: int, client: str = "agent/1") -> Exchange:
    """A request that has ended; `reused` of its tokens came from the cache."""
    raw = json.dumps(body).encode()
    figures = ReplyFigures(prompt_tokens=len(raw) // _CHARACTERS_PER_TOKEN, reused_tokens=reused)
    return Exchange(
        "/v1/chat/completions", raw, body, user_agent=client, figures=figures, started=100.0, first_token=110.0
    )


def chat(turns: int = 1, system: str = SYSTEM) -> dict[str, Any]:
    return {"tools": TOOLS, "messages": [{"role": "system", "content": system}, *TURNS[:turns]]}


def tokens(body: Mapping[str, Any]) -> int:
    return len(json.dumps(body)) // _CHARACTERS_PER_TOKEN


def note(memory: PromptMemory, body: Mapping[str, Any], reused: int = 0, client: str = "agent/1") -> Reread | None:
    return memory.note_prompt(ended_request(body, reused, client))


def test_a_continued_conversation_loses_nothing() -> None:
    memory = PromptMemory()
    assert note(memory, chat(1)) is None
    assert note(memory, chat(3), reused=tokens(chat(1))) is None


def test_a_distant_checkpoint_is_the_cause_without_other_events() -> None:
    memory = PromptMemory()
    note(memory, chat(1))
    found = note(memory, chat(3), reused=100)
    assert found is not None
    assert found.cause is RereadCause.CHECKPOINT
    assert found.tokens == pytest.approx(tokens(chat(1)) - 100, rel=0.02)
    assert found.seconds == pytest.approx(10.0 * found.tokens / (tokens(chat(3)) - 100))


def test_another_conversation_in_the_slot_is_the_cause() -> None:
    memory = PromptMemory()
    note(memory, chat(1))
    note(memory, {"messages": [{"role": "user", "content": "Write a title."}]}, client="other/2")
    found = note(memory, chat(3))
    assert found is not None
    assert found.cause is RereadCause.OTHER_CLIENT


def test_a_restarted_engine_is_the_cause() -> None:
    memory = PromptMemory()
    note(memory, chat(1))
    memory.note_engine_start()
    found = note(memory, chat(3))
    assert found is not None
    assert found.cause is RereadCause.RESTART
    assert note(memory, chat(3), reused=tokens(chat(3)) - 4) is None


def test_a_changed_part_is_the_cause_after_a_restart_with_saved_slots() -> None:
    memory = PromptMemory()
    body = {"tools": TOOLS, "messages": [{"role": "system", "content": "one"}, {"role": "user", "content": SYSTEM * 3}]}
    changed = {**body, "messages": [{"role": "system", "content": "two"}, body["messages"][1]]}
    note(memory, body)
    memory.note_engine_start()
    found = note(memory, changed, reused=tokens({"tools": TOOLS}))
    assert found is not None
    assert (found.cause, found.place) == (RereadCause.CHANGED_PREFIX, "system 1")


def test_a_changing_header_at_the_start_is_named() -> None:
    def claude(number: int) -> dict[str, Any]:
        header = f"{BILLING_HEADER}: cc_version={number};"
        return {"system": [{"type": "text", "text": text} for text in (header, SYSTEM)], "messages": TURNS[:1]}

    memory = PromptMemory()
    note(memory, claude(1))
    found = note(memory, claude(2))
    assert found is not None
    assert (found.cause, found.place) == (RereadCause.CHANGED_PREFIX, BILLING_HEADER)
    assert to_json(found) == {
        "tokens": found.tokens,
        "seconds": pytest.approx(found.seconds, abs=0.01),
        "cause": "changed prefix",
        "place": "x-anthropic-billing-header",
    }


def test_the_ids_of_a_session_are_no_part_of_its_prompt() -> None:
    def items(session: str) -> dict[str, Any]:
        return {"input": [{"id": f"msg_{session}", "role": "user", "content": "Why?"}, {"call_id": "call_1"}]}

    assert encode_prompt(items("one")) == encode_prompt(items("two"))
    assert encode_prompt(items("one")) != encode_prompt({"input": [{"role": "user", "content": "Why?"}]})


def test_unknown_figures_short_prompts_and_new_conversations_are_not_losses() -> None:
    memory = PromptMemory()
    note(memory, chat(1))
    assert memory.note_prompt(replace(ended_request(chat(1), 0), figures=ReplyFigures())) is None
    assert note(memory, {"messages": TURNS[:1]}) is None
    assert note(memory, {"messages": TURNS[:1]}) is None
    another = {"messages": [{"role": "system", "content": "Another agent. " * 800}, *TURNS]}
    assert note(memory, another, client="other/2") is None
    assert memory.note_prompt(Exchange("/v1/models", b"", None)) is None


def test_a_refused_prompt_does_not_count_as_read() -> None:
    memory = PromptMemory()
    refused = replace(ended_request(chat(3), 0), figures=ReplyFigures(prompt_tokens=tokens(chat(3))), end=TOO_LONG)
    assert memory.note_prompt(refused) is None
    assert note(memory, chat(1)) is None


def test_a_full_prompt_cache_is_the_cause_if_the_engine_dropped_prompts() -> None:
    memory = PromptMemory()
    memory.note_prompt(ended_request(chat(1), 0), dropped=3)
    memory.note_prompt(
        ended_request({"messages": [{"role": "user", "content": "Write a title."}]}, 0, "other/2"), dropped=4
    )
    found = memory.note_prompt(ended_request(chat(3), 0), dropped=4)
    assert found is not None
    assert found.cause is RereadCause.CACHE_LIMIT


@pytest.mark.parametrize(("cache_mib", "cause"), [(0, RereadCause.OTHER_CLIENT), (1, RereadCause.CACHE_LIMIT)])
def test_two_conversations_in_one_slot_are_detected_with_a_real_engine(
    demo_model: Path, cache_mib: int, cause: RereadCause
) -> None:
    options = ServeOptions(demo_model, built_in=True, threads=1, context=8192, alias="demo", cache_ram=cache_mib)

    async def send_texts() -> list[Reread | None]:
        async with serve_model(options) as (session, client):
            long = "Explain how bread rises, and why a bicycle stays upright. " * 60
            for text in (long, "Other words stand here, of another kind. " * 60, long):
                body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0}
                headers = {"Cache-Control": "no-store"}  # else the first comes back from disk
                (await client.post("/v1/chat/completions", json=body, headers=headers)).raise_for_status()
            while len(ended := [each for each in session.request_log.records if each.has_ended]) < 3:
                await asyncio.sleep(0.01)
            return [each.reread for each in ended]

    first, second, third = asyncio.run(send_texts())
    assert (first, second) == (None, None)
    assert third is not None
    assert third.cause is cause


def test_prompts_of_idle_slots_survive_a_handover(demo_model: Path) -> None:
    options = ServeOptions(
        demo_model, built_in=True, threads=1, context=8192, alias="demo", slots=2, kv_unified=True, draft=0
    )
    texts = ("Explain how bread rises. " * 120, "Why does a bicycle stay upright? " * 120)

    async def send_texts() -> list[float]:
        async with serve_model(options) as (session, client):
            for again in (False, True):
                for text in texts:
                    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0}
                    (await client.post("/v1/chat/completions", json=body)).raise_for_status()
                if not again:
                    await session.start(StartRequest(replace(options, draft=2), again=True))
            while len(ended := [each for each in session.request_log.records if each.has_ended]) < 4:
                await asyncio.sleep(0.01)
            return [(each.reused_tokens or 0) / (each.prompt_tokens or 1) for each in ended]

    first, second, *later = asyncio.run(send_texts())
    assert (first, second) == (0, 0)
    assert min(later) > 0.95


def test_the_disk_is_blamed_where_a_conversation_should_have_come_from_it() -> None:
    memory = PromptMemory()
    first = ended_request(chat(1), reused=0)
    first.figures.unused_state = Reread(tokens(chat(1)) - 50, None, RereadCause.KEPT_OTHERWISE)
    found = memory.note_prompt(first)
    assert found is not None, "nothing else tells that another engine had read it"
    assert (found.tokens, found.cause) == (tokens(chat(1)) - 50, RereadCause.KEPT_OTHERWISE)
    again = ended_request(chat(1), reused=tokens(chat(1)) - 1)
    again.figures.unused_state = first.figures.unused_state
    assert memory.note_prompt(again) is None, "the engine had it"
    memory.note_engine_start()
    after = ended_request(chat(3), reused=0)
    after.figures.unused_state = Reread(0, None, RereadCause.NOT_KEPT)
    found = memory.note_prompt(after)
    assert found is not None
    assert found.cause is RereadCause.NOT_KEPT
    body = {"messages": [{"role": "system", "content": "one"}, {"role": "user", "content": SYSTEM * 3}]}
    memory.note_prompt(ended_request(body, reused=0))
    changed = ended_request({"messages": [{"role": "system", "content": "two"}, body["messages"][1]]}, reused=0)
    changed.figures.unused_state = Reread(5_000, None, RereadCause.KEPT_SLOW)
    found = memory.note_prompt(changed)
    assert found is not None
    assert found.cause is RereadCause.CHANGED_PREFIX


@pytest.mark.parametrize("cause", list(RereadCause))
def test_each_cause_is_explained_in_a_sentence(cause: RereadCause) -> None:
    assert Reread(1, None, cause, "system 1").explanation.endswith(".")
