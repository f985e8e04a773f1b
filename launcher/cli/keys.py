"""`mtp-launcher keys`: list or replace the API keys of this program's servers."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.cli.output import Result
from launcher.cli.quantities import parse_int

if TYPE_CHECKING:
    from launcher.engine.server.endpoint import Endpoint


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("action", nargs="?", choices=("list", "replace"), default="list", help="(default: list)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--port", type=parse_int, metavar="P", help="replace the key of this port")
    which.add_argument("--all", action="store_true", help="replace the keys of all ports")
    parser.add_argument("--show-key", action="store_true", help="print the keys, too")


async def run(options: argparse.Namespace) -> Result:
    """List the ports with keys, or replace their keys and list which servers still use the old one."""
    from launcher.base.errors import BadOption
    from launcher.engine.server import registry
    from launcher.engine.server.endpoint import replace_keys, saved_endpoints

    endpoints = await asyncio.to_thread(saved_endpoints)
    replace = options.action == "replace"
    if not replace and (options.port is not None or options.all):
        raise BadOption("--port and --all say which key to replace.", "Write `mtp-launcher keys replace`.")
    if replace:
        if len(endpoints) > 1 and options.port is None and not options.all:
            ports = ", ".join(str(each.port) for each in endpoints)
            raise BadOption(f"There are keys for the ports {ports}.", "Choose: --port P, or --all.")
        endpoints = await asyncio.to_thread(replace_keys, options.port)
    running = {entry.port: entry.api_key for entry in await asyncio.to_thread(registry.list_entries)}
    keys = [
        {"port": each.port, "url": each.url, "running": each.port in running}
        | ({"api_key": each.api_key} if options.show_key else {})
        for each in endpoints
    ]
    lines = _format_keys(endpoints, running, replaced=replace, show_key=options.show_key)
    return Result({"replaced": replace, "keys": keys}, lines)


def _format_keys(
    endpoints: Sequence[Endpoint], running: Mapping[int, str], *, replaced: bool, show_key: bool
) -> Iterator[str]:
    """Yield a line for each port. `running` are the keys that running servers use, by port."""
    if not endpoints:
        yield "There are no keys yet: a port gets one with its first server."
    for each in endpoints:
        state = "running" if each.port in running else "not running"
        api_key = f"  API key  {each.api_key}" if show_key else ""
        yield f"{each.url}/v1  {'replaced' if replaced else state}{api_key}"
        if running.get(each.port, each.api_key) != each.api_key:
            yield "  It still uses the old key: `mtp-launcher stop`, then `serve`, starts it with the new one."
