"""Why a reply broke off, as the one who supervises its engine finds out."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.base.errors import Unreachable
from launcher.engine.state import SERVING, State

if TYPE_CHECKING:
    from launcher.engine.supervisor import Supervisor

_WHY_S = 3.0
"""How long a reply that broke off waits for the reason. The end of an engine is seen and explained within a second."""


async def explain_break(server: Supervisor, error: Unreachable) -> Unreachable:
    """Return the error that says what ended the engine; `error` as it is while the engine goes on, or was stopped."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_WHY_S):
            while server.status.state in SERVING:
                await server.wait_for_change()
    status = server.status
    if status.state in SERVING or status.error is None:
        return error
    hint = "It is being started again: ask again then." if status.state is State.RESTARTING else status.error.hint
    return Unreachable(f"The engine ended in the middle of the reply. {status.error.title}", hint)
