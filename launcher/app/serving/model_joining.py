"""A second start at an address that is served already: its model is loaded there, until that start ends."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from launcher.app.planning.start_settings import ResolvedStart, SettingOrigin
from launcher.app.serving.model_pool import JoinRequest, ModelPool, PooledModel
from launcher.base.control import send_request
from launcher.base.errors import BadOption, LauncherError
from launcher.base.messages import message
from launcher.base.validation import TypeAdapter, ValidationError
from launcher.engine.server import registry
from launcher.engine.server.endpoint import preferred_port
from launcher.engine.server.registry import ServerEntry
from launcher.engine.server.state import Notice, ServerState
from launcher.engine.settings import launched_settings, save_model_settings
from launcher.models.server_settings import format_settings

_REQUEST = TypeAdapter(JoinRequest)
_ANSWER_S = 5.0


async def find_server_to_join() -> ServerEntry | None:
    """Return the server of this user at the default address, if other starts can load their models there.

    One whose program does not answer is left alone: a start beside it gets another address.
    """
    entry = await asyncio.to_thread(_find_default_server)
    if entry is None or entry.control_address is None:
        return None
    with suppress(LauncherError, TimeoutError):
        async with asyncio.timeout(_ANSWER_S), aclosing(send_request(entry.control_address, "status")) as answers:
            await anext(answers)
        return entry
    return None


def _find_default_server() -> ServerEntry | None:
    with suppress(LauncherError, OSError):
        port = preferred_port()
        return next((each for each in registry.list_entries() if each.port == port and each.takes_models), None)
    return None


async def join_server(entry: ServerEntry, request: JoinRequest) -> AsyncGenerator[Mapping[str, Any]]:
    """Load a model at a server, and keep it there until the caller closes this generator.

    Yield the states of the model, then a description of its server, then its end. Raises what a start raises, and
    Unreachable if the server's program ends.
    """
    address = entry.control_address
    if address is None:
        return
    fields = {"start": _REQUEST.dump_python(request, mode="json")}
    async with aclosing(send_request(address, "join", **fields)) as answers:
        async for value in answers:
            yield value


async def serve_joined_model(pool: ModelPool, fields: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    """Do what `join_server` asks for, as long as its program keeps the connection open."""
    try:
        request = _REQUEST.validate_python(fields.get("start"))
    except ValidationError:
        raise BadOption(
            message("The running server does not understand this start."), message("Is it an older version?")
        ) from None
    model, start = await pool.join_model(request)
    is_loaded = model.is_loaded
    ended = asyncio.ensure_future(model.ended.wait())
    loading = asyncio.ensure_future(pool.load_model(model, keeps_others=request.keeps_others))
    try:
        while not loading.done():
            status = model.supervisor.status
            if status.state is not ServerState.STOPPED:
                yield {"state": status.state.value, "percent": status.percent}
            change = asyncio.ensure_future(model.supervisor.wait_for_change())
            try:
                await asyncio.wait({loading, change}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                change.cancel()
        await loading
        if is_loaded and request.settings:
            text = message("{model} is loaded already, and keeps its settings.", model=model.name)
            start = replace(start, notices=(*start.notices, Notice("model_shared", text)))
        elif not is_loaded and start.chosen is not None:
            chosen = {**start.set_aside, **start.chosen}
            await asyncio.to_thread(save_model_settings, start.options.model, chosen)
        yield {"ready": _describe_model(model, start)}
        await ended
        error = model.supervisor.status.error
        yield {"ended": True, "error": str(error) if error else None}
    finally:
        ended.cancel()
        pool.leave_model(model)


def _describe_model(model: PooledModel, start: ResolvedStart) -> dict[str, Any]:
    """Return what the other program prints of a model that is ready."""
    launch, supervisor = model.supervisor.launch, model.supervisor
    return {
        "model": model.name,
        "url": supervisor.endpoint.url,
        "api_key": supervisor.endpoint.api_key,
        "pid": supervisor.engine_pid,
        "server_pid": os.getpid(),
        "name": launch.header.name if launch else model.name,
        "engine": f"{launch.build.name} engine {launch.build.version}" if launch else "",
        "settings": launched_settings(launch) if launch else {},
        "embeddings": bool(launch and launch.options.embeddings),
        "reranking": bool(launch and launch.options.reranking),
        "limits": format_settings(launch.limits) if launch else "",
        "kept": format_settings(start.settings_from(SettingOrigin.KEPT)),
        "tuned": start.tuned_line,
        "note": launch.note if launch else "",
        "notices": [each.text for each in start.notices],
        "log": str(supervisor.log.path),
    }
