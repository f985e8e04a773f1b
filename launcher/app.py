"""The verbs that both faces call, and the only place where the parts are put together."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from launcher.base.errors import EngineFailed
from launcher.base.identity import ProcessId
from launcher.base.paths import expanded
from launcher.engine import registry
from launcher.engine.client import ChatRequest, EngineClient
from launcher.engine.demo import DEMO, demo_preset, unpack_demo_model
from launcher.engine.launch import ServeOptions
from launcher.engine.registry import Entry
from launcher.engine.state import State
from launcher.models.catalogue import SPECULATION, ModelEntry
from launcher.models.catalogue_load import load_catalogue
from launcher.models.library import find_companion
from launcher.models.locate import locate
from launcher.monitor.meter import ReplyMeter
from launcher.session import OnDelta, OnEvent, OnHealth, OnSample, Reply, Session, read_reply

__all__ = ["Reply", "Running", "Session", "chat", "options_for", "serve", "status", "stop"]

_STOP_S = 12.0


@asynccontextmanager
async def serve(
    options: ServeOptions,
    *,
    port: int | None = None,
    on_event: OnEvent | None = None,
    on_sample: OnSample | None = None,
    on_health: OnHealth | None = None,
) -> AsyncIterator[Session]:
    """Run a server for as long as the block lasts; leaving it, however, leaves no process.

    Raises the LauncherError that says why it could not be served.
    """
    session = Session(port=port, on_event=on_event, on_sample=on_sample, on_health=on_health)
    try:
        await session.start(options)
        yield session
    finally:
        await session.stop()


def options_for(model: str, options: Callable[[Path], ServeOptions], *, draft: int | None) -> ServeOptions:
    """Return the options for a model as the user names it: a path, ID[:QUANT], OWNER/NAME:FILE, or "demo".

    What the user leaves open for the demo comes from its preset; a model that the catalogue knows to have no MTP head
    is served without. Raises ModelMissing, also for a model that has to be pulled first, ModelUnknown or ModelBroken.
    """
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


def _with_draft_file(options: ServeOptions, entry: ModelEntry) -> ServeOptions:
    """Return the options for a model without a head inside: with the draft that goes with it, if that is here."""
    way = SPECULATION[entry.speculation] if entry.speculation else None
    draft = find_companion(entry, entry.draft) if way and way.needs_draft_file and entry.draft else None
    if draft is None or way is None:
        return replace(options, draft=0)
    return replace(options, draft_file=draft, spec_type=way.spec_type)


async def chat(request: ChatRequest, *, url: str | None, on_delta: OnDelta | None = None) -> Reply:
    """Ask a running server of ours: the only one, or the one at `url`."""
    entry = await asyncio.to_thread(registry.find, url)
    began_s = time.monotonic()
    async with EngineClient(entry.url, entry.api_key) as client, client.chat(request) as deltas:
        return await read_reply(deltas, began_s, ReplyMeter(), on_delta)


@dataclass(frozen=True, slots=True)
class Running:
    """A registered server and what it is doing now."""

    entry: Entry
    state: str


async def status(url: str | None = None) -> tuple[Running, ...]:
    """Return the servers that run now, or only the one at `url`; ServerNotFound when that does not run."""
    if url is None:
        entries = await asyncio.to_thread(registry.running)
    else:
        entries = (await asyncio.to_thread(registry.find, url),)
    return tuple(await asyncio.gather(*map(_look, entries)))


async def _look(entry: Entry) -> Running:
    if entry.state != State.READY:
        return Running(entry, entry.state)
    async with EngineClient(entry.url, entry.api_key) as client:
        return Running(entry, entry.state if await client.healthy() else "not answering")


async def stop(url: str | None) -> Entry:
    """Stop the only running server, or the one at `url`, and return what it was.

    Its launcher is asked to end (on Windows it is ended, which ends the engine's job). Raises ServerNotFound,
    SeveralServers, or EngineFailed when it still runs after 12 s.
    """
    entry = await asyncio.to_thread(registry.find, url)
    engine = ProcessId.of(entry.engine_pid) if entry.engine_pid else None
    with suppress(psutil.NoSuchProcess):
        psutil.Process(entry.pid).terminate()
    deadline_s = time.monotonic() + _STOP_S
    while entry.launcher.running() or (engine is not None and engine.running()):
        if time.monotonic() > deadline_s:
            raise EngineFailed(f"The server at {entry.url} did not end within {_STOP_S:.0f} s.", "Try again.")
        await asyncio.sleep(0.05)
    registry.running()
    return entry
