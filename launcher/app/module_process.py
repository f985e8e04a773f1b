"""Runs a module in a short process of its own, such as one with Qt, or one that reads files of strangers."""

import asyncio
import sys
from pathlib import Path

import launcher

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); import runpy; runpy.run_module(sys.argv[2], run_name='__main__')"
"""Started with -P, so that no file of the current folder is imported in place of a module."""


class ModuleFailed(Exception):
    """The process failed; the text is the last line of what it printed as an error."""


async def run_module(module: str, order: bytes = b"", *, limit_s: float) -> bytes:
    """Run `module` with `order` as its standard input, and return what it prints.

    Raises ModuleFailed if it fails, and TimeoutError if it takes longer than `limit_s` seconds.
    """
    root = Path(launcher.__file__).parents[1]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", _PROGRAM, str(root), module, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(limit_s):
            printed, errors = await process.communicate(order)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ModuleFailed((errors.decode("utf-8", "replace").strip().splitlines() or ["?"])[-1])
    return printed
