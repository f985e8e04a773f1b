"""The verbs that both faces call, and the only place where the parts are put together."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from launcher.attach import Address, Attached, address_of
from launcher.base.errors import ModelMissing, ServerNotFound, Unreachable
from launcher.base.paths import expanded
from launcher.engine import registry
from launcher.engine.client import ChatRequest, EngineClient
from launcher.engine.demo import DEMO, demo_preset, unpack_demo_model
from launcher.engine.launch import ServeOptions
from launcher.engine.listener import key_of
from launcher.engine.settings import OPTIONS, Value, remembered, with_settings
from launcher.models.catalogue import SPECULATION, ModelEntry
from launcher.models.catalogue_load import load_catalogue
from launcher.models.library import find_companion
from launcher.models.locate import locate, refuse_damaged
from launcher.monitor.meter import ReplyMeter
from launcher.monitor.reply import OnDelta, Reply, read_reply
from launcher.running import Running, explain_break, held_engine, logs, preview, restart, status, stop
from launcher.session import OnEvent, OnHealth, OnSample, Session

__all__ = [
    "Reply",
    "Running",
    "Session",
    "chat",
    "logs",
    "options_for",
    "preview",
    "restart",
    "serve",
    "status",
    "stop",
    "usual_options",
]


@asynccontextmanager
async def serve(
    options: ServeOptions,
    *,
    port: int | None = None,
    shared: bool = False,
    on_event: OnEvent | None = None,
    on_sample: OnSample | None = None,
    on_health: OnHealth | None = None,
    chosen: Mapping[str, Value] | None = None,
) -> AsyncIterator[Session]:
    """Run a server for as long as the block lasts; leaving it, however, leaves no process.

    `shared` lets other computers of the network in, with the key; it holds for this run alone. `chosen` are the
    settings to keep for the model's next start: see Session.start. Raises the LauncherError that says
    why it could not be served.
    """
    session = Session(port=port, shared=shared, on_event=on_event, on_sample=on_sample, on_health=on_health)
    try:
        await session.start(options, chosen=chosen)
        yield session
    finally:
        await session.stop()


def options_for(model: str, options: Callable[[Path], ServeOptions], *, draft: int | None) -> ServeOptions:
    """Return the options for a model as the user names it: a path, ID[:QUANT], OWNER/NAME:FILE, or "demo".

    What the user leaves open for the demo comes from its preset; a model that the catalogue knows to have no MTP head
    is served without. Raises ModelMissing, also for a model that has to be pulled first, ModelUnknown or ModelBroken.
    """
    if "://" in model:  # as a path it would lose a slash
        hint = f"Get it first: `mtp-launcher pull {model}`."
        raise ModelMissing(f"{model} is an address, not a model on this computer.", hint, wanted=model)
    if model != DEMO:
        named = locate(model, load_catalogue())
        chosen = options(named.path if named else expanded(model))
        if named and named.entry and named.file and not named.entry.has_head(named.file):
            chosen = _with_draft_file(chosen, named.entry)
        return chosen if draft is None else replace(chosen, draft=draft)
    preset = demo_preset()
    chosen = options(unpack_demo_model())
    return replace(
        chosen,
        context=preset.context if chosen.context is None else chosen.context,
        threads=preset.threads if chosen.threads is None else chosen.threads,
        draft=preset.draft if draft is None else draft,
        alias=DEMO,
        built_in=chosen.engine is None,
    )


def usual_options(model: str, options: Callable[[Path], ServeOptions] = ServeOptions) -> ServeOptions:
    """Return how a model would be served now: as its user chose the last time. Raises what options_for raises.

    `options` makes those that are asked for, of the model's file; what it sets is as it says.
    """
    found = options_for(model, options, draft=None)
    asked = options(found.model)
    open_, kept = ServeOptions(found.model), remembered(found.model)
    return with_settings(
        found, {name: kept[name] for name in kept if getattr(asked, OPTIONS[name]) == getattr(open_, OPTIONS[name])}
    )


def _with_draft_file(options: ServeOptions, entry: ModelEntry) -> ServeOptions:
    """Return the options for a model without a head inside: with the draft that goes with it, if that is here."""
    way = SPECULATION[entry.speculation] if entry.speculation else None
    draft = find_companion(entry, entry.draft) if way and way.needs_draft_file and entry.draft else None
    if draft is None or way is None:
        return replace(options, draft=0)
    refuse_damaged(draft)
    return replace(options, draft_file=draft, spec_type=way.spec_type)


async def chat(
    request: ChatRequest, *, url: str | None, api_key: str | None = None, on_delta: OnDelta | None = None
) -> Reply:
    """Ask a running server of ours, the only one or the one at `url`, or another at `url`, which `api_key` opens."""
    try:
        entry = await asyncio.to_thread(registry.find, url)
    except ServerNotFound as error:
        if url is None:
            raise
        return await _chat_elsewhere(request, address_of(url), api_key, on_delta, error)
    if held := await asyncio.to_thread(held_engine, entry):
        raise held
    key = await asyncio.to_thread(key_of, entry)
    began_s = time.monotonic()
    try:
        async with EngineClient(entry.url, key) as client, client.chat(request) as deltas:
            return await read_reply(deltas, began_s, ReplyMeter(), on_delta)
    except Unreachable as error:
        raise await explain_break(entry, error) from error


async def _chat_elsewhere(
    request: ChatRequest, address: Address, api_key: str | None, on_delta: OnDelta | None, ours: ServerNotFound
) -> Reply:
    server = Attached(address, api_key)
    try:
        try:
            await server.look()
        except Unreachable as error:
            if address.local:
                raise ours from error
            raise
        began_s = time.monotonic()
        async with server.chat(request) as deltas:
            return await read_reply(deltas, began_s, ReplyMeter(), on_delta)
    finally:
        await server.close()
