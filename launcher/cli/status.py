"""`mtp-launcher status`: list the running servers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.cli.layout import health_line
from launcher.cli.output import Result

if TYPE_CHECKING:
    from launcher.app.running_servers import RegisteredServer


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("--url", help="only the server at this address")
    parser.add_argument("--show-key", action="store_true", help="print the API keys, too")


async def run(options: argparse.Namespace) -> Result:
    """List the servers. Exit code 1 if there is none, so that scripts can check."""
    from launcher.app.running_servers import read_running_servers
    from launcher.gateway.certificate import read_fingerprint

    servers = await read_running_servers(options.url)
    fields = {
        "settings",
        "url",
        "port",
        "api_key",
        "engine_pid",
        "model",
        "engine",
        "draft",
        "embeddings",
        "health",
        "shared",
        "encrypted",
    }
    data = [
        {
            "state": server.state,
            "problem": server.problem,
            "pid": server.entry.engine_pid,
            "launcher_pid": server.entry.pid,
            "fingerprint": read_fingerprint() if server.entry.encrypted else None,
            **server.entry.model_dump(include=fields),
        }
        for server in servers
    ]
    return Result(data, _format_servers(servers, show_key=options.show_key), exit_code=0 if servers else 1)


def _format_servers(servers: Sequence[RegisteredServer], *, show_key: bool) -> Iterator[str]:
    from launcher.gateway.certificate import certificate_path, read_fingerprint

    if not servers:
        yield "No server is running. Start one with `mtp-launcher serve --model FILE`."
    for server in servers:
        entry = server.entry
        mode = f"draft length {entry.draft}" if entry.draft else "embeddings" if entry.embeddings else "MTP off"
        facts = (server.state, entry.model, mode, f"{entry.engine} engine", f"pid {entry.engine_pid}")
        yield f"{entry.url}/v1  {'  '.join(facts)}"
        if server.problem:
            yield f"  {server.problem}"
        if entry.shared:
            yield "  shared with the network until it ends (serve --lan)"
        if entry.encrypted:
            yield f"  certificate  {certificate_path()}\n  SHA-256      {read_fingerprint()}"
        if show_key:
            yield f"  API key  {entry.api_key}"
        for finding in entry.health:
            yield f"  {health_line(finding)}"
    if servers and not show_key:
        yield "`mtp-launcher status --show-key` prints the API key, `mtp-launcher export python` an example program."
