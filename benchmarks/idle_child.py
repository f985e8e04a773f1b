"""Serves the demo without sampling until SIGTERM; prints a line when it is ready."""

import asyncio

from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.serving.serving import serve
from launcher.engine.demo import DEMO
from launcher.engine.serve_options import ServeOptions


async def main() -> None:
    options = make_unresolved_options(DEMO, lambda path: ServeOptions(model=path))
    async with serve(options) as session:
        await session.monitor.end()
        print("ready", flush=True)
        await session.wait_until_ended()


if __name__ == "__main__":
    asyncio.run(main())
