"""Requests find their model, and an alias adds its settings."""

import asyncio
from typing import Any

import httpx
import pytest

from launcher.gateway.access import Refusal
from launcher.gateway.exchange import Exchange
from launcher.gateway.gate import Gate
from launcher.gateway.model_router import Body, Route
from launcher.gateway.request_log import RequestLog, RequestRecord
from launcher.gateway.system_text import add_system_text
from tests.gateway.test_access import KEY, Front, open_gateway

USER = {"role": "user", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Mine."}


@pytest.mark.parametrize(
    ("path", "body", "changed"),
    [
        ("/v1/chat/completions", {"messages": [USER]}, {"messages": [{**SYSTEM, "content": "Ours."}, USER]}),
        ("/v1/chat/completions", {"messages": [SYSTEM, USER]}, None),
        ("/v1/chat/completions", {"messages": [{**SYSTEM, "role": "developer"}, USER]}, None),
        ("/v1/chat/completions", {"messages": "Hello"}, None),
        ("/v1/messages", {"messages": [USER]}, {"messages": [USER], "system": "Ours."}),
        ("/v1/messages", {"messages": [USER], "system": "Mine."}, None),
        ("/v1/responses", {"input": "Hello"}, {"input": "Hello", "instructions": "Ours."}),
        ("/v1/responses", {"input": [SYSTEM, USER]}, None),
        ("/v1/responses", {"input": "Hello", "instructions": "Mine."}, None),
        ("/v1/completions", {"prompt": "Hello"}, None),
    ],
)
def test_the_system_text_of_an_alias_is_added_to_conversations_without_one(
    path: str, body: Body, changed: Body | None
) -> None:
    assert add_system_text(path, body, "Ours.") == (body if changed is None else changed)


class TwoModels:
    """Sends requests for "other" through a second gate, once `ready` is done."""

    def __init__(self, front: Front) -> None:
        self.first, self.second = front.gateway.gate, front.gateway.open_gate()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.calls: list[tuple[str | None, Body | None]] = []

    @property
    def gates(self) -> tuple[Gate, ...]:
        return self.first, self.second

    async def find_route(self, name: str | None, body: Body | None, /) -> Route:
        self.calls.append((name, body))
        if name == "nobody":
            raise Refusal(404, "There is no such model", "not_found_error")
        return Route(self.second, "other", self.ready) if name == "other" else Route(self.first, "one")

    def find_loaded_gate(self, name: str, /) -> Gate | None:
        return {"one": self.first}.get(name)

    async def list_models(self) -> list[dict[str, Any]]:
        return [{"id": "one"}, {"id": "other"}]

    async def is_healthy(self) -> bool:
        return False


async def test_a_request_waits_for_its_model_and_goes_through_its_gate() -> None:
    seen: list[Exchange] = []
    async with open_gateway() as front:
        router = front.gateway.router = TwoModels(front)
        front.gateway.gate._on_exchange = seen.append
        headers = {"Authorization": f"Bearer {KEY}"}
        url = f"http://127.0.0.1:{front.port}"
        async with asyncio.timeout(60), httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client:
            assert (await client.get("/v1/models")).json() == {
                "object": "list",
                "data": [{"id": "one"}, {"id": "other"}],
            }
            assert (await client.get("/health")).status_code == 503
            refused = await client.post("/v1/completions", json={"prompt": "Hello", "model": "nobody"})
            assert (refused.status_code, refused.json()["error"]["type"]) == (404, "not_found_error")
            waiting = asyncio.create_task(client.post("/v1/completions", json={"prompt": "Hello", "model": "other"}))
            while not router.second.is_in_use:
                await asyncio.sleep(0.01)
            assert not router.first.is_in_use
            router.ready.set_exception(Refusal(500, "It does not load", "server_error"))
            failed = await waiting
            assert (failed.status_code, failed.json()["error"]["message"]) == (500, "It does not load")
            assert "Retry-After" not in failed.headers
            assert not router.second.is_in_use
            assert (await client.get("/props", params={"model": "one"})).status_code == 200
        assert [name for name, _ in router.calls] == ["nobody", "other", "one"]
        assert not seen


async def test_a_request_that_is_refused_at_once_is_noted_once() -> None:
    log, noted = RequestLog(), list[RequestRecord]()
    log.add_listener(noted.append)
    async with open_gateway() as front:
        router = front.gateway.router = TwoModels(front)
        router.second._on_exchange = log.note_exchange
        router.ready.set_exception(Refusal(500, "It does not load", "server_error"))
        body = b'{"prompt": "Hello", "model": "other"}'
        assert (await front.ask("POST /v1/completions", body=body)).status == 500
    assert [(each.end, each.status) for each in noted] == [("refused", 500)]
    assert not log.count_states()
