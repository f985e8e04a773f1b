"""Command line: `python -m benchmarks [--quick] [--only NAME]`.

The benchmarks run in a process that ends with this one, as an engine does, with all that it has started. The server
process of a window would otherwise go on for ten minutes after a benchmark that was broken off.
"""

import asyncio
import os
import sys

from benchmarks.workplace import ROOT, raise_on_signals
from launcher.engine.server.process import EngineCommand, Stream, start_process

_STOP_PATIENCE_S = (10.0, 2.0)


def _print_line(stream: Stream, line: str) -> None:
    print(line, file=sys.stdout if stream == "stdout" else sys.stderr, flush=True)


async def run_suite(arguments: list[str]) -> int:
    """Run suite.py with these arguments, print what it prints, and return its exit code."""
    words = [sys.executable, "-m", "benchmarks.suite", *arguments]
    process = await start_process(EngineCommand(words, os.environ, ROOT), _print_line)
    try:
        return (await asyncio.shield(process.exited)).code
    except asyncio.CancelledError:
        await process.stop(_STOP_PATIENCE_S)
        raise


if __name__ == "__main__":
    raise_on_signals()
    try:
        sys.exit(asyncio.run(run_suite(sys.argv[1:])))
    except KeyboardInterrupt:
        sys.exit(130)
