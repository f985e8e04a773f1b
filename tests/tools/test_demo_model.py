"""The demo model: its tokenizer, its own arithmetic, the files its generator makes, and the one that is shipped."""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.quick_demo_model import ONE_OF, make_model
from tools.demo_model import fit, network, text
from tools.demo_model.network import Trunk
from tools.demo_model.tensors import Shape
from tools.demo_model.tokenizer import Tokenizer, split

RESOURCES = Path(__file__).parents[2] / "resources" / "demo"
HEAD = "blk.4.nextn.eh_proj.weight"
HEAD_COUNT = "qwen35moe.nextn_predict_layers"


@pytest.fixture(scope="module")
def corpus() -> text.Corpus:
    return text.read_corpus()


@pytest.fixture(scope="module")
def tokenizer(corpus: text.Corpus) -> Tokenizer:
    return Tokenizer.train(text.list_vocabulary_texts(corpus), text.SPECIAL_TOKENS)


@pytest.fixture(scope="module")
def trunk(corpus: text.Corpus, tokenizer: Tokenizer) -> Trunk:
    return Trunk.make(tokenizer, corpus, rows=len(tokenizer), seed=1)


@pytest.fixture(scope="module")
def shipped_model(tmp_path_factory: pytest.TempPathFactory) -> gguf.GGUFReader:
    path = tmp_path_factory.mktemp("shipped") / "demo.gguf"
    path.write_bytes(lzma.decompress((RESOURCES / "demo.gguf.xz").read_bytes()))
    return gguf.GGUFReader(path)


def tensor_names(reader: gguf.GGUFReader) -> set[str]:
    return {tensor.name for tensor in reader.tensors}


def read_value(reader: gguf.GGUFReader, key: str) -> object:
    field = reader.get_field(key)
    assert field is not None, key
    contents: object = field.contents()
    return contents


class TestTokenizer:
    @settings(deadline=None)
    @given(st.text())
    def test_any_text_comes_back_as_it_was(self, tokenizer: Tokenizer, text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    @given(st.text())
    def test_splitting_loses_nothing(self, text: str) -> None:
        assert "".join(split(text)) == text

    def test_every_word_of_an_answer_is_one_token(self, corpus: text.Corpus, tokenizer: Tokenizer) -> None:
        for topic in corpus.topics:
            assert len(tokenizer.encode(topic.answer)) == len(split(topic.answer))

    def test_special_tokens_are_recognised_inside_text(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.encode("a<think>b")[1] == tokenizer.ids["<think>"]


class TestCorpus:
    def test_paragraphs_are_distinguished_by_their_first_word(self, corpus: text.Corpus, tokenizer: Tokenizer) -> None:
        openings = {tokenizer.encode(topic.answer)[0] for topic in corpus.topics}
        assert len(openings) == len(corpus.topics)

    def test_paragraphs_have_60_to_110_words(self, corpus: text.Corpus) -> None:
        assert all(60 <= len(topic.answer.split()) <= 110 for topic in corpus.topics)


class TestNetwork:
    def test_every_embedding_has_the_same_length(self, trunk: Trunk) -> None:
        lengths = (trunk.embedding**2).sum(1)
        assert np.allclose(lengths, network.WIDTH * trunk.rms(0) ** 2)

    def test_inverse_silu_undoes_silu(self) -> None:
        points = np.linspace(0, 6, 50)
        assert np.allclose(network.inverse_silu(network.silu(points)), points)

    def test_a_new_question_wipes_the_memory_of_the_last(self, trunk: Trunk, tokenizer: Tokenizer) -> None:
        question = text.make_prompt("What is the KV cache?")
        alone = trunk.memory(np.array(tokenizer.encode(question)))[-1]
        later = trunk.memory(np.array(tokenizer.encode(text.make_prompt("Why is my card hot?") + question)))[-1]
        assert np.allclose(alone, later, atol=0.02)

    def test_the_memory_holds_mostly_the_topic_of_the_question(
        self, corpus: text.Corpus, trunk: Trunk, tokenizer: Tokenizer
    ) -> None:
        topic = [topic.title for topic in corpus.topics].index("heat and power")
        memory = trunk.memory(np.array(tokenizer.encode(text.make_prompt("Why is my laptop so hot?"))))[-1]
        assert memory[: network.TOPICS].argmax() == topic

    def test_the_attention_finds_the_last_topic_where_a_question_names_none(
        self, corpus: text.Corpus, trunk: Trunk, tokenizer: Tokenizer
    ) -> None:
        older, newer = (text.make_exchange(corpus.topics[place]) for place in (3, 9))
        result = older + newer + text.make_prompt("Tell me more.")
        ids = np.array(tokenizer.encode(result))
        assert trunk.remembered(ids)[-1].argmax() == 9
        assert trunk.memory(ids)[-1].argmax() == network.BACKGROUND

    def test_no_query_sees_what_comes_later(self, trunk: Trunk, tokenizer: Tokenizer) -> None:
        ids = np.array(tokenizer.encode(text.make_prompt("What is a draft?")))
        assert np.allclose(trunk.remembered(ids[:8]), trunk.remembered(ids)[:8])

    def test_every_target_is_a_distribution(
        self, corpus: text.Corpus, trunk: Trunk, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fit, "list_dialogues", lambda corpus: text.list_dialogues(corpus)[::ONE_OF])
        found = fit.make_examples(tokenizer, corpus, trunk)
        assert np.allclose(found.targets.sum(1), 1, atol=1e-5)
        assert (found.targets >= 0).all()


class TestGenerator:
    def test_the_same_recipe_gives_the_same_bytes(self, tmp_path: Path) -> None:
        first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
        for path in (first, second):
            make_model(path, "--slow", "1")
        assert first.read_bytes() == second.read_bytes()
        # A slow model has more blocks, and its head behind them.
        reader = gguf.GGUFReader(first)
        assert read_value(reader, "qwen35moe.block_count") == Shape(dead_groups=1).blocks == 9
        assert "blk.8.nextn.eh_proj.weight" in tensor_names(reader)

    def test_a_model_without_head_has_no_trace_of_one(self, tmp_path: Path) -> None:
        make_model(tmp_path / "headless.gguf", "--no-mtp")
        reader = gguf.GGUFReader(tmp_path / "headless.gguf")
        assert reader.get_field(HEAD_COUNT) is None
        assert not any("nextn" in name for name in tensor_names(reader))
        assert read_value(reader, "qwen35moe.block_count") == 4


class TestShippedModel:
    def test_the_description_of_the_model_agrees_with_its_files(self) -> None:
        facts = json.loads((RESOURCES / "demo.json").read_text(encoding="utf-8"))
        packed = (RESOURCES / "demo.gguf.xz").read_bytes()
        model = lzma.decompress(packed)
        assert facts["size_bytes"] == len(model)
        assert facts["sha256"] == hashlib.sha256(model).hexdigest()
        assert facts["compressed_sha256"] == hashlib.sha256(packed).hexdigest()
        assert facts["license"] == "MIT"

    def test_the_packed_model_is_below_4_mb(self) -> None:
        assert (RESOURCES / "demo.gguf.xz").stat().st_size < 4_000_000

    def test_it_has_a_draft_head(self, shipped_model: gguf.GGUFReader) -> None:
        assert read_value(shipped_model, "general.architecture") == "qwen35moe"
        assert read_value(shipped_model, HEAD_COUNT) == 1
        assert HEAD in tensor_names(shipped_model)

    def test_it_carries_its_template_and_licence(self, shipped_model: gguf.GGUFReader) -> None:
        assert read_value(shipped_model, "tokenizer.chat_template") == text.TEMPLATE_FILE.read_text(encoding="utf-8")
        assert read_value(shipped_model, "general.license") == "MIT"
        assert read_value(shipped_model, "general.name") == "MTP demo"

    def test_it_speaks_the_language_of_this_corpus(self, shipped_model: gguf.GGUFReader, tokenizer: Tokenizer) -> None:
        tokens = read_value(shipped_model, "tokenizer.ggml.tokens")
        assert isinstance(tokens, list)
        assert tokens[: len(tokenizer)] == [*tokenizer.tokens, *tokenizer.special]
