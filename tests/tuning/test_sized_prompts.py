"""Prompts of an exact size, by the real engine's own count, and by vocabularies that are harder to hit."""

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from launcher.app.serving.serving import serve
from launcher.base.errors import BadOption, NothingMeasured
from launcher.engine.serve_options import ServeOptions
from launcher.tuning.records import Prompt
from launcher.tuning.sized_prompts import fill_prompts, journal_entries, make_filler
from launcher.tuning.timed_request import build_request

ASKED = Prompt("ask", (("system", "Be brief."), ("user", "What came in?")), tokens=4)
SIZES = (60, 61, 62, 333, 1_000, 1_499)


async def test_the_engine_reads_exactly_as_many_tokens_as_were_asked_for(demo_model: Path) -> None:
    options = ServeOptions(model=demo_model, built_in=True, threads=1, context=2_048)
    async with serve(options) as session:
        client = session.supervisor.client
        wanted = [replace(ASKED, name=str(size), size=size) for size in SIZES]
        for prompt in await fill_prompts([*wanted, replace(ASKED, name="thinking", thinking=True, size=400)], client):
            reply = await session.send_request(build_request(prompt, seed=1))
            assert reply.timings is not None
            assert reply.timings.prompt_n + reply.timings.cache_n == prompt.size, prompt.name
        assert await fill_prompts([ASKED], client) == (ASKED,)
        again = await fill_prompts(wanted[-1:], client)
        assert again == await fill_prompts(wanted[-1:], client)
        assert again != await fill_prompts(wanted[-1:], client, begin=7)
        with pytest.raises(BadOption, match="shortest prompt has"):
            await fill_prompts([replace(ASKED, size=3)], client)


async def test_a_plain_text_is_exact_by_tokenize(demo_model: Path) -> None:
    async with serve(ServeOptions(model=demo_model, built_in=True, threads=1, context=2_048)) as session:
        client = session.supervisor.client

        async def count(text: str) -> int:
            return len((await client.request_json("/tokenize", {"content": text}))["tokens"])

        for tokens in (1, 2, 17, 5_000):
            assert await count(await make_filler(tokens, count)) == tokens


@pytest.mark.parametrize(
    "pattern",
    [r".", r"\s?\w+|[^\w]", r"\s?\w{1,3}|[^\w]", r"\w+\s?|[^\w]\s?"],
    ids=["bytes", "words", "parts", "after"],
)
@pytest.mark.parametrize("tokens", [1, 2, 99, 1_000, 20_003])
async def test_other_tokenizers_reach_the_size_too(pattern: str, tokens: int) -> None:
    request_count = 0

    async def count(text: str) -> int:
        nonlocal request_count
        request_count += 1
        return len(re.findall(pattern, text, re.DOTALL))

    text = await make_filler(tokens, count)
    assert await count(text) == tokens
    assert request_count < 40


async def test_an_unreachable_size_is_reported() -> None:
    async def count(text: str) -> int:
        return 2 * len(text)

    with pytest.raises(NothingMeasured, match="exactly 9 tokens"):
        await make_filler(9, count)


def test_entries_of_the_journal_differ() -> None:
    found = list(islice(journal_entries(), 5_000))
    assert len({entry.partition(".")[2] for entry in found}) == len(found)
    assert list(islice(journal_entries(4_990), 10)) == found[4_990:]
