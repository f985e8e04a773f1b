"""The program under load: serves the demo and sends it requests as a window does, until its input ends.

Prints a line of JSON when it is ready, and one with its counts at the end.
"""

import asyncio
import json
import os
import random
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace

from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.serving.serving import serve
from launcher.app.serving.session import ServerSession
from launcher.base.errors import LauncherError
from launcher.engine.demo import DEMO
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.client import ChatRequest

QUESTIONS = ("What is MTP?", "What is quantisation?", "Why is the first token late?", "What fits on my card?")
SLOTS = 2
CACHE_MIB = 32
"""Limit of the engine's prompt cache in host memory. With its default of 8,192 MiB memory would grow during the whole
run.
"""
CONTEXT = 4_096
_AT_ONCE = 2


async def _send_requests(session: ServerSession, chance: random.Random, counts: Counter[str]) -> None:
    """Send requests without end: short ones, long ones, conversations, and cancelled ones."""
    talk: list[dict[str, str]] = []
    while True:
        if len(talk) >= 2 * chance.randint(1, 6):
            talk.clear()
        talk.append({"role": "user", "content": chance.choice(QUESTIONS)})
        request = ChatRequest(list(talk), max_tokens=chance.choice((8, 40, 120, 400)), temperature=0.8)
        asking = asyncio.create_task(session.send_request(request))
        try:
            async with asyncio.timeout(chance.uniform(0.01, 0.2) if chance.random() < 0.3 else None):
                reply = await asking
            talk.append({"role": "assistant", "content": reply.text})
            counts["window: replies"] += 1
        except TimeoutError:
            talk.clear()
            counts["window: broken off"] += 1
        except LauncherError as error:
            talk.clear()
            counts[f"window: {error.code}"] += 1
            await asyncio.sleep(0.05)  # a restart


async def _until_input_ends() -> None:
    await asyncio.to_thread(sys.stdin.read)


async def _serve(seed: int) -> None:
    counts: Counter[str] = Counter()
    extra = ("--cache-ram", str(CACHE_MIB))
    found = make_unresolved_options(
        DEMO, lambda path: ServeOptions(model=path, slots=SLOTS, threads=1, context=CONTEXT, extra=extra)
    )
    options = replace(found, draft=2)
    async with serve(options) as session:
        endpoint = session.supervisor.endpoint
        print(json.dumps({"pid": os.getpid(), "url": endpoint.url, "api_key": endpoint.api_key}), flush=True)
        talks = [asyncio.create_task(_send_requests(session, random.Random(seed + i), counts)) for i in range(_AT_ONCE)]
        await _until_input_ends()
        for talk in talks:
            talk.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*talks)
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
