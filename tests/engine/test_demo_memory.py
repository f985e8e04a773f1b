"""The built-in engine's KV cache and slot files: the demo model's replies depend on them.

So other tests get another text if a KV cache type or a slot is wrong.
"""

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.test_builtin import KEY, serve_model
from tools.demo_model.text import Corpus, make_exchange, make_prompt, read_corpus

MTP = ("--spec-type", "draft-mtp", "--spec-draft-n-max", "2")
MORE = make_prompt("Tell me more.") + "\n"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return read_corpus()


def post(client: httpx.Client, path: str, **body: object) -> dict[str, Any]:
    answer = client.post(path, json=body, headers={"Authorization": f"Bearer {KEY}"})
    assert answer.is_success, answer.text
    return dict(answer.json())


def tokens(client: httpx.Client, text: str) -> list[int]:
    return list(post(client, "/tokenize", content=text, parse_special=True)["tokens"])


def reply(client: httpx.Client, prompt: str | list[int], count: int = 30) -> str:
    return str(post(client, "/completion", prompt=prompt, n_predict=count, temperature=0)["content"])


def next_tokens(client: httpx.Client, prompt: str) -> dict[int, float]:
    """The 100 most likely next tokens with the logarithms of their probabilities."""
    result = post(client, "/completion", prompt=prompt, n_predict=1, n_probs=100, temperature=0)
    return {each["id"]: each["logprob"] for each in result["completion_probabilities"][0]["top_logprobs"]}


def divergence(right: dict[int, float], other: dict[int, float]) -> float:
    """Kullback-Leibler divergence in nats; what `other` does not list counts as its least likely."""
    least = min(other.values())
    return sum(math.exp(value) * (value - other.get(token, least)) for token, value in right.items())


def test_more_continues_with_the_last_topic(demo_model: Path, corpus: Corpus) -> None:
    with serve_model(demo_model, *MTP) as (_, client):
        for place in (0, 7, 12):
            before, after = corpus.topics[place], corpus.topics[place + 1]
            result = reply(client, make_exchange(before) + MORE)
            assert result.startswith(f"The question is about {after.title}."), before.title


def test_early_messages_influence_a_reply(demo_model: Path, corpus: Corpus) -> None:
    small_talk = f"<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\nHi!{' Hi!' * 60}<|im_end|>\n"
    with serve_model(demo_model) as (_, client):
        result = reply(client, make_exchange(corpus.topics[7]) + small_talk + MORE)
        assert corpus.topics[8].title in result


@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_a_long_context_does_not_overflow(demo_model: Path, corpus: Corpus, flash_attention: str) -> None:
    with serve_model(demo_model, "-c", "4096", "-fa", flash_attention) as (_, client):
        result = reply(client, "Hi! " * 300 + make_exchange(corpus.topics[7]) + MORE)
        assert corpus.topics[8].title in result


def test_a_quantised_kv_cache_changes_probabilities(demo_model: Path, corpus: Corpus) -> None:
    prompts = [make_exchange(topic) + MORE + "The question is about" for topic in corpus.topics[:6]]
    seen: dict[str, list[dict[int, float]]] = {}
    for kind in ("f16", "q8_0", "q4_0"):
        with serve_model(demo_model, "-ctk", kind, "-ctv", kind, "-fa", "on") as (_, client):
            seen[kind] = [next_tokens(client, prompt) for prompt in prompts]
    found = {kind: mean([divergence(*pair) for pair in zip(seen["f16"], seen[kind], strict=True)]) for kind in seen}
    assert found["f16"] == pytest.approx(0, abs=1e-6)
    assert 0 < found["q8_0"] < 0.05 < found["q4_0"]
    likeliest = {kind: [max(each, key=lambda token: each[token]) for each in item] for kind, item in seen.items()}
    assert likeliest["q4_0"] != likeliest["f16"]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("flags", [MTP, ()], ids=["mtp", "no-mtp"])
def test_the_state_of_another_conversation_changes_a_reply(
    demo_model: Path, corpus: Corpus, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with serve_model(demo_model, *flags, "--slot-save-path", str(tmp_path)) as (_, client):
        first, second = (tokens(client, make_exchange(corpus.topics[place])) for place in (0, 7))
        length = min(len(first), len(second))
        first, second, more = first[-length:], second[-length:], tokens(client, MORE)
        for name, conversation in (("first", first), ("second", second)):
            reply(client, conversation, 0)
            post(client, "/slots/0?action=save", filename=name)
        right = {name: reply(client, known + more) for name, known in (("first", first), ("second", second))}
        assert right["first"] != right["second"]

        ours, theirs = (struct.pack(f"<{length}I", *conversation) for conversation in (first, second))
        foreign = (tmp_path / "second").read_bytes()
        assert foreign.count(theirs) == 1
        (tmp_path / "foreign").write_bytes(foreign.replace(theirs, ours))
        values = {}
        for name in ("first", "foreign"):
            reply(client, "Hello", 1)
            assert post(client, "/slots/0?action=restore", filename=name)["n_restored"] == length
            values[name] = reply(client, first + more)
        assert values == {"first": right["first"], "foreign": right["second"]}
