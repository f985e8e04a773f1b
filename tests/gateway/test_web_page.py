"""The engine's own web page at the gateway's address: the built-in engine has it."""

import re
from pathlib import Path

import httpx

from launcher.engine.serve_options import ServeOptions
from tests.gateway.test_handover import serve_model

CHAT = {"messages": [{"role": "user", "content": "What is a draft?"}], "max_tokens": 8, "stream": True}


async def test_the_page_and_its_files_need_no_key_but_its_requests_do(demo_model: Path) -> None:
    async with serve_model(ServeOptions(demo_model, built_in=True, threads=1, alias="demo")) as (_, client):
        key = {"Authorization": client.headers.pop("Authorization")}  # a browser sends none by itself
        await check_page(client, key)


async def check_page(client: httpx.AsyncClient, key: dict[str, str]) -> None:
    page = await client.get("/")
    assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    files = re.findall(r'(?:href=|import\()"\.?/?([A-Za-z0-9_./-]+\.(?:js|css|svg|ico|png|webmanifest))"', page.text)
    assert any(each.endswith(".js") for each in files)
    assert any(each.endswith(".css") for each in files)
    for each in {*[each for each in files if "splash" not in each], "sw.js"}:
        reply = await client.get(f"/{each}")
        assert (reply.status_code, len(reply.content) > 100) == (200, True), each
        if "ETag" in reply.headers:
            again = await client.get(f"/{each}", headers={"If-None-Match": reply.headers["ETag"]})
            assert again.status_code in (200, 304)
    # The calls that the page's script makes.
    for path in ("/props", "/slots", "/v1/models"):
        assert (await client.get(path)).status_code == 401
        assert (await client.get(path, headers=key)).status_code == 200
    assert (await client.get("/props?model=demo&autoload=false", headers=key)).json()["default_generation_settings"]
    conversation = {"X-Conversation-Id": "1b4e28ba-2fa1-11d2-883f-0016d3cca427"}
    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 401
    reply = await client.post("/v1/chat/completions", json=CHAT, headers={**key, **conversation})
    assert reply.status_code == 200
    assert reply.text.rstrip().endswith("data: [DONE]")
    # The page works without these: tools of the engine, and continuing a reply after a reload.
    for method, path in (("GET", "/tools"), ("POST", "/v1/streams/lookup")):
        assert (await client.request(method, path, headers=key, json={})).status_code == 404


async def test_the_page_can_be_turned_off(demo_model: Path) -> None:
    options = ServeOptions(demo_model, built_in=True, threads=1, alias="demo", extra=("--no-ui",))
    async with serve_model(options) as (_, client):
        assert (await client.get("/")).status_code == 404
