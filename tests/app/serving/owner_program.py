"""A window reduced to its session: serves a given model, prints the address, and waits until it is killed."""

import asyncio
import json
import sys
from pathlib import Path

from launcher.app.serving.remote_session import RemoteSession
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.start_request import StartRequest


async def run_server(model: str, idle_limit_s: str) -> None:
    """Print where the server is as a line of JSON, and wait."""
    session = RemoteSession(idle_limit_s=float(idle_limit_s))
    await session.start(StartRequest(ServeOptions(Path(model), built_in=True, threads=1), model_name="the demo"))
    endpoint, link = session.supervisor.endpoint, session.process
    assert link is not None
    where = {"url": endpoint.url, "key": endpoint.api_key, "engine": session.supervisor.engine_pid, "process": link.pid}
    print(json.dumps(where), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run_server(*sys.argv[1:]))
