"""`mtp-launcher status`: list the running servers."""

import argparse

from launcher.cli.layout import health_line
from launcher.cli.output import print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("--url", help="only the server at this address")
    parser.add_argument("--show-key", action="store_true", help="print the API keys, too")


async def run(options: argparse.Namespace) -> int:
    """Print one line per server. Exit code 1 if there is none, so that scripts can check."""
    from launcher.app.running import status

    servers = await status(options.url)
    if options.json:
        fields = {
            "settings",
            "url",
            "port",
            "api_key",
            "engine_pid",
            "model",
            "engine",
            "draft",
            "health",
            "shared",
        }
        print_json(
            [
                {
                    "state": server.state,
                    "problem": server.problem,
                    "pid": server.entry.engine_pid,
                    "launcher_pid": server.entry.pid,
                    **server.entry.model_dump(include=fields),
                }
                for server in servers
            ]
        )
    elif not servers:
        print("No server is running. Start one with `mtp-launcher serve --model FILE`.")
    else:
        for server in servers:
            entry = server.entry
            mtp = f"draft length {entry.draft}" if entry.draft else "MTP off"
            about = (server.state, entry.model, mtp, f"{entry.engine} engine", f"pid {entry.engine_pid}")
            print(f"{entry.url}/v1  {'  '.join(about)}")
            if server.problem:
                print(f"  {server.problem}")
            if entry.shared:
                print("  shared with the network until it ends (serve --lan)")
            if options.show_key:
                print(f"  API key  {entry.api_key}")
            for found in entry.health:
                print(f"  {health_line(found)}")
        if not options.show_key:
            print(
                "`mtp-launcher status --show-key` prints the API key, `mtp-launcher export python` a program that asks."
            )
    return 0 if servers else 1
