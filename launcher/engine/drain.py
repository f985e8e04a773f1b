"""Letting a server end what it has begun."""

import asyncio
from contextlib import suppress

from launcher.base.errors import LauncherError
from launcher.engine.client import EngineClient

_LOOK_S = 1.5
"""Between two looks at /slots: asked more often than once a second, the engine would not notice clients that left."""


async def drain(client: EngineClient, streams_left: asyncio.Event, limit_s: float) -> None:
    """Wait until our own streams have ended and no slot works, but no longer than `limit_s` seconds.

    The engine itself cannot be told to take nothing new: what other clients begin meanwhile counts as well.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await streams_left.wait()
            while await _working(client):  # noqa: ASYNC110 -- nothing tells
                await asyncio.sleep(_LOOK_S)


async def _working(client: EngineClient) -> bool:
    try:
        return await client.working_slots() > 0
    except LauncherError:
        return False  # an engine that does not answer ends nothing any more
