"""Serves the demo without sampling until SIGTERM; prints a line when it is ready."""

import asyncio

from launcher import app
from launcher.engine.demo import DEMO
from launcher.engine.launch import ServeOptions


async def main() -> None:
    options = app.options_for(DEMO, lambda path: ServeOptions(model=path), draft=None)
    async with app.serve(options) as session:
        await session.monitor.end()
        print("ready", flush=True)
        await session.wait_until_ended()


if __name__ == "__main__":
    asyncio.run(main())
