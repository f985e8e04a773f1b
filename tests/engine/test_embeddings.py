"""Embedding models: recognised by their header, served with /v1/embeddings, and never asked for text."""

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from gguf import PoolingType

from launcher.app.planning.start_settings import resolve_start
from launcher.app.serving.session import ServerSession
from launcher.base.errors import EngineFailed, ModelHasNoHead, ModelWritesNoText, Refused
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.client import ChatRequest, EngineClient
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.guard import GuardLimits
from launcher.engine.server.launch import prepare_launch
from launcher.engine.server.logs import LogBook
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.supervisor import RestartPolicy, Supervisor
from launcher.models.gguf import read_model
from tests.engine.test_builtin import KEY, free_port, serve_model
from tests.models.tiny_models import write_bert, write_pooled

QUESTION = ChatRequest([{"role": "user", "content": "What is a draft?"}], max_tokens=8)


@pytest.fixture
async def session() -> AsyncIterator[ServerSession]:
    opened = ServerSession()
    yield opened
    await opened.stop()


async def embed(session: ServerSession, *texts: str) -> list[list[float]]:
    endpoint = session.supervisor.endpoint
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, trust_env=False, timeout=60) as client:
        reply = await client.post("/v1/embeddings", json={"input": texts})
    assert reply.status_code == 200, reply.text
    return [each["embedding"] for each in reply.json()["data"]]


async def test_embedding_works_and_completions_are_refused(session: ServerSession, embedding_model: Path) -> None:
    start = await resolve_start(str(embedding_model))
    assert start.options.draft == 0, "its head is not used"
    assert start.notices == ()
    await session.start(StartRequest(start.options))
    one, same, other = await embed(session, "What is a draft?", "What is a draft?", "Tell me more.")
    assert len(one) == read_model(embedding_model).read_count("embedding_length")
    assert math.hypot(*one) == pytest.approx(1.0, abs=1e-3)
    assert one == pytest.approx(same, abs=1e-3)
    assert one != pytest.approx(other, abs=1e-3)
    with pytest.raises(ModelWritesNoText, match="generates none"):
        await session.send_request(QUESTION)
    (entry,) = registry.list_entries()
    assert entry.first.embeddings


async def test_vectors_of_tokens_are_served_if_the_arguments_ask_for_them(
    session: ServerSession, demo_model: Path
) -> None:
    """OpenAI's path refuses the pooling type `none`."""
    extra = ("--embedding", "--pooling", "none", "--alias", "vectors")
    await session.start(
        StartRequest(ServeOptions(demo_model, built_in=True, draft=0, threads=1, alias="demo", extra=extra))
    )
    (entry,) = registry.list_entries()
    assert (entry.first.embeddings, entry.first.model) == (True, "vectors")
    endpoint = session.supervisor.endpoint
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, trust_env=False, timeout=60) as client:
        (reply,) = (await client.post("/embeddings", json={"input": "one two", "model": "vectors"})).json()
        assert len(reply["embedding"]) > 1


async def test_an_encoder_is_served(session: ServerSession, tmp_path: Path) -> None:
    """An encoder has no KV cache, so a chat as its first request would fail."""
    path = tmp_path / "bert.gguf"
    write_bert(path)
    await session.start(StartRequest((await resolve_start(str(path))).options))
    assert len(await embed(session, "w1 w2", "w3")) == 2


async def test_a_text_model_can_replace_an_embedding_model(
    session: ServerSession, embedding_model: Path, demo_model: Path
) -> None:
    await session.start(StartRequest((await resolve_start(str(embedding_model))).options))
    await session.start(StartRequest((await resolve_start(str(demo_model))).options))
    assert (await session.send_request(QUESTION)).reasoning
    (entry,) = registry.list_entries()
    assert not entry.first.embeddings


async def test_a_reranker_ranks_texts(session: ServerSession, reranker: Path) -> None:
    start = await resolve_start(str(reranker))
    assert (start.options.draft, start.notices) == (0, ())
    await session.start(StartRequest(start.options))
    endpoint = session.supervisor.endpoint
    async with EngineClient(endpoint.url, endpoint.api_key) as client:
        assert len(await client.rank_texts("What is a draft?", ["A draft.", "A boat."])) == 2
    with pytest.raises(ModelWritesNoText, match="it ranks texts, but generates none"):
        await session.send_request(QUESTION)
    (entry,) = registry.list_entries()
    assert entry.first.reranking


async def test_drafts_are_refused(embedding_model: Path) -> None:
    with pytest.raises(ModelHasNoHead, match="nothing to draft"):
        await prepare_launch(ServeOptions(embedding_model, draft=2), Endpoint(20_001, "key"))


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("model", "fault", "error", "sentence"),
    [
        ("embedding_model", "no-vector", Refused, "no vector"),
        ("embedding_model", "mute", EngineFailed, "first vector took longer than 1 s"),
        ("reranker", "no-ranks", Refused, "ranked no text"),
        ("reranker", "mute", EngineFailed, "first ranking took longer than 1 s"),
    ],
)
async def test_a_start_fails_without_a_valid_embedding_or_ranking(
    model: str,
    fault: str,
    error: type[Exception],
    sentence: str,
    request: pytest.FixtureRequest,
    fake_engine: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("FAKE_FAULTS", fault)
    limits = replace(GuardLimits(), first_reply_s=1.0)
    log = LogBook(tmp_path / "engine.log")
    supervisor = Supervisor(Endpoint(free_port(), KEY), log, restarts=RestartPolicy(()), limits=limits)
    with pytest.raises(error, match=sentence):
        await supervisor.become(ServeOptions(request.getfixturevalue(model), engine=fake_engine, draft=0))
    await supervisor.become(None)
    log.close()


def test_the_built_in_engine_ranks_texts(demo_model: Path) -> None:
    with serve_model(demo_model, "--reranking") as (_, client):
        body = {"query": "What is a draft?", "documents": ["A draft.", "A boat."]}
        reply = client.post("/v1/rerank", json=body, headers={"Authorization": f"Bearer {KEY}"})
        assert sorted(each["index"] for each in reply.json()["results"]) == [0, 1]


@pytest.mark.parametrize(("pooling", "splits"), [(PoolingType.LAST, True), (PoolingType.MEAN, False)])
def test_only_last_token_pooling_allows_texts_in_batches(
    pooling: PoolingType, splits: bool, demo_model: Path, tmp_path: Path
) -> None:
    """As `serve` reports, the built-in engine then reads 300 tokens with a ubatch of 128."""
    path = tmp_path / "pooled.gguf"
    write_pooled(demo_model, path, pooling)
    assert read_model(path).splits_texts is splits
    with serve_model(path, "--embeddings", "-ub", "128") as (_, client):
        body = {"input": "word " * 300}
        reply = client.post("/v1/embeddings", json=body, headers={"Authorization": f"Bearer {KEY}"})
        assert (reply.status_code == 200) is splits, reply.text
        assert splits or "too large to process" in reply.text
