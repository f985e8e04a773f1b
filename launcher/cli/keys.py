"""`mtp-launcher keys`: list or replace the API keys of this program's servers."""

import argparse
import asyncio

from launcher.cli.output import print_json
from launcher.cli.quantities import parse_int


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("what", nargs="?", choices=("list", "replace"), default="list", help="(default: list)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--port", type=parse_int, metavar="P", help="replace the key of this port")
    which.add_argument("--all", action="store_true", help="replace the keys of all ports")
    parser.add_argument("--show-key", action="store_true", help="print the keys, too")


async def run(options: argparse.Namespace) -> int:
    """List the ports with keys, or replace their keys and print which servers still use the old one."""
    from launcher.base.errors import BadOption
    from launcher.engine.server import registry
    from launcher.engine.server.endpoint import replace_keys, saved_endpoints

    endpoints = await asyncio.to_thread(saved_endpoints)
    replaces = options.what == "replace"
    if not replaces and (options.port is not None or options.all):
        raise BadOption("--port and --all say which key to replace.", "Write `mtp-launcher keys replace`.")
    if replaces:
        if len(endpoints) > 1 and options.port is None and not options.all:
            ports = ", ".join(str(each.port) for each in endpoints)
            raise BadOption(f"There are keys for the ports {ports}.", "Say which: --port P, or --all.")
        endpoints = await asyncio.to_thread(replace_keys, options.port)
    running = {entry.port: entry.api_key for entry in await asyncio.to_thread(registry.list_running)}
    if options.json:
        told = [{"port": each.port, "url": each.url, "running": each.port in running} for each in endpoints]
        keys = [{"api_key": each.api_key} if options.show_key else {} for each in endpoints]
        print_json({"replaced": replaces, "keys": [one | key for one, key in zip(told, keys, strict=True)]})
        return 0
    if not endpoints:
        print("There are no keys yet: a port gets one with its first server.")
    for each in endpoints:
        about = "replaced" if replaces else "running" if each.port in running else "not running"
        print(f"{each.url}/v1  {about}{f'  API key  {each.api_key}' if options.show_key else ''}")
        if running.get(each.port, each.api_key) != each.api_key:
            print("  It still runs with the key before: `mtp-launcher stop`, then `serve`, takes the new one.")
    return 0
