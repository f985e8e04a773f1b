"""Serves a model within a block, and chats with a running server."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from launcher.app.serving.attach import AttachedServer
from launcher.app.serving.running_servers import explain_broken_reply, suspended_engine_error
from launcher.app.serving.serving_session import OnHealth, OnSnapshot
from launcher.app.serving.session import ServerSession
from launcher.base.errors import ServerNotFound, Unreachable
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.address import ServerAddress, parse_address
from launcher.engine.server.client import ChatRequest, EngineClient
from launcher.engine.server.listener import verified_api_key
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import Listener
from launcher.models.limits import no_text_error
from launcher.models.server_settings import Value
from launcher.monitor.meter import ReplyMeter
from launcher.monitor.reply import OnDelta, Reply, read_reply


@asynccontextmanager
async def serve(
    options: ServeOptions,
    *,
    port: int | None = None,
    shared: bool = False,
    direct: bool = False,
    on_event: Listener | None = None,
    on_snapshot: OnSnapshot | None = None,
    on_health: OnHealth | None = None,
    chosen: Mapping[str, Value] | None = None,
) -> AsyncIterator[ServerSession]:
    """Run a server within the block, and stop it however the block is left.

    `shared` lets other computers of the network use this server with its key, `direct` leaves the gateway out. `chosen`
    are the settings to keep for the model's next start: see StartRequest. Raises the LauncherError of a failed
    start.
    """
    session = ServerSession(
        port=port, shared=shared, direct=direct, on_event=on_event, on_snapshot=on_snapshot, on_health=on_health
    )
    try:
        await session.start(StartRequest(options, chosen=chosen))
        yield session
    finally:
        await session.stop()


async def request_reply(
    request: ChatRequest, *, url: str | None, api_key: str | None = None, on_delta: OnDelta | None = None
) -> Reply:
    """Return the reply of a running server of this user, else of another server at `url` with `api_key`.

    Raises ModelWritesNoText for a server of this user with an embedding model.
    """
    try:
        entry = await asyncio.to_thread(registry.find_server, url)
    except ServerNotFound as error:
        if url is None:
            raise
        return await _chat_with_other_server(request, parse_address(url), api_key, on_delta, error)
    if entry.first.embeddings:
        raise no_text_error(entry.first.model, is_reranker=entry.first.reranking)
    if suspended := await asyncio.to_thread(suspended_engine_error, entry):
        raise suspended
    key = await asyncio.to_thread(verified_api_key, entry)
    try:
        async with EngineClient(entry.url, key) as client:
            return await read_reply(client.chat(request), ReplyMeter(), on_delta)
    except Unreachable as error:
        raise await explain_broken_reply(entry, error) from error


async def _chat_with_other_server(
    request: ChatRequest,
    address: ServerAddress,
    api_key: str | None,
    on_delta: OnDelta | None,
    not_found: ServerNotFound,
) -> Reply:
    """Return the reply of a server of another program. Raises `not_found` if no local server responds."""
    server = AttachedServer(address, api_key)
    try:
        try:
            await server.detect_features()
        except Unreachable as error:
            if address.local:
                raise not_found from error
            raise
        return await read_reply(server.chat(request), ReplyMeter(), on_delta)
    finally:
        await server.close()
