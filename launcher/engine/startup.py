"""An engine from its start to its first reply: when it is ready, and when it will never be."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from launcher.base.errors import DraftsInert, EngineFailed, LauncherError, Refused, Unreachable
from launcher.engine.client import ChatRequest, EngineClient, Timings
from launcher.engine.diagnosis import explain_refusal
from launcher.engine.launch import ServeOptions
from launcher.engine.process import EngineProcess, Exit

_FIRST_POLL_S, _LAST_POLL_S = 0.02, 0.25
LOADING_LINE = "cmd_child_to_router:state:"
_SELF_TEST = ChatRequest(
    [{"role": "user", "content": "Hello."}], max_tokens=8, temperature=0.0, extra={"ignore_eos": True}
)
_T = TypeVar("_T")


async def until_healthy(client: EngineClient, heard_s: Callable[[], float], limit_s: float, hint: str) -> None:
    """Wait until /health says that the model is loaded.

    `heard_s` tells when the engine last said anything, by the monotonic clock. Raises EngineFailed when that is longer
    ago than `limit_s`.
    """
    pause_s = _FIRST_POLL_S
    while not await client.healthy():
        if time.monotonic() - heard_s() > limit_s:
            raise EngineFailed(f"The engine said nothing for {limit_s:.0f} s while loading the model.", hint)
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _LAST_POLL_S)


async def answer_first_request(
    client: EngineClient, options: ServeOptions, limit_s: float, hint: str, said: Callable[[], list[str]]
) -> None:
    """Have one short request answered, and see that drafts are made when they were asked for.

    Raises DraftsInert when none are, EngineFailed when there is no reply within `limit_s`, what the
    engine's log (`said`) names when the request is refused, else Refused.
    """
    timings: Timings | None = None
    try:
        async with asyncio.timeout(limit_s), client.chat(_SELF_TEST) as deltas:
            async for delta in deltas:
                timings = delta.timings or timings
    except Refused as refused:
        raise explain_refusal(refused, said()) from None
    except TimeoutError:
        raise EngineFailed(
            f"The engine says that it is ready, but its first reply of 8 tokens was not there after {limit_s:.0f} s.",
            hint,
        ) from None
    if not options.draft:
        return
    speculative = await client.speculative()
    if not speculative or timings is None or not timings.draft_n:
        raise DraftsInert(
            "The engine runs, but its MTP drafts nothing.",
            "Start it with --draft 0, or use another build or another file of the model.",
            speculative=speculative,
        )


async def unless_ended(process: EngineProcess, work: Awaitable[_T], explained: Callable[[Exit], LauncherError]) -> _T:
    """Await `work`, but raise the engine's own reason, as `explained` by how it ended, when it ends first."""
    task = asyncio.ensure_future(work)
    either: set[asyncio.Future[Any]] = {task, process.exited}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        failed = task.done() and isinstance(task.exception(), Unreachable)
        if failed:  # the engine may have broken off because it is ending
            await asyncio.wait([process.exited], timeout=2.0)
        if process.exited.done() and (failed or not task.done()):
            raise explained(process.exited.result())
        return await task
    finally:
        task.cancel()
        await asyncio.wait([task])


def loading_percent(payload: str) -> float | None:
    """Return how far an engine has loaded, 0 to 100, from its parent protocol's JSON; None if it is not said."""
    try:
        report = json.loads(payload)
        if report["state"] != "loading":
            return None
        loading = report["payload"]
        stages = loading["stages"]
        done = stages.index(loading["current"]) + float(loading["value"])
        return float(100.0 * done / len(stages))
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return None
