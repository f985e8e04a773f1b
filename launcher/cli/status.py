"""`mtp-launcher status`: list the running servers and their models."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.app.serving.running_servers import read_running_servers
from launcher.cli.layout import health_line
from launcher.cli.output import Result
from launcher.gateway.certificate import certificate_path, read_fingerprint
from launcher.models.drafters import choice_in

if TYPE_CHECKING:
    from launcher.app.serving.running_servers import RegisteredServer
    from launcher.engine.server.registry import ServedModel

_MODEL_FIELDS = {"model", "engine", "draft", "embeddings", "reranking", "engine_pid", "settings"}


async def run(options: argparse.Namespace) -> Result:
    """List the models of all servers. Exit code 1 if there is none, so that scripts can check."""
    servers = await read_running_servers(options.url)
    data = []
    for server in servers:
        entry = server.entry
        fingerprint = read_fingerprint() if entry.encrypted else None
        for model in entry.models:
            is_first = model is entry.first
            data.append(
                {
                    "state": server.state if is_first else model.state,
                    "problem": server.problem if is_first else None,
                    "pid": model.engine_pid,
                    "launcher_pid": entry.pid,
                    "fingerprint": fingerprint,
                    "by_request": model.by_request,
                    "url": entry.url,
                    "port": entry.port,
                    "api_key": entry.api_key,
                    "shared": entry.shared,
                    "encrypted": entry.encrypted,
                    **model.model_dump(include=_MODEL_FIELDS),
                    "health": entry.health if is_first else (),
                    "restored_tokens": server.restored_tokens if is_first else None,
                    "spared_s": server.spared_s if is_first else None,
                }
            )
    return Result(data, _format_servers(servers, show_key=options.show_key), exit_code=0 if servers else 1)


def _format_servers(servers: Sequence[RegisteredServer], *, show_key: bool) -> Iterator[str]:
    if not servers:
        yield "No server is running. Start one with `mtp-launcher serve --model FILE`."
    for server in servers:
        entry = server.entry
        for model in entry.models:
            yield _format_model(entry.url, server.state if model is entry.first else model.state, model)
        if server.problem:
            yield f"  {server.problem}"
        if server.restored_tokens:
            yield f"  {server.restored_tokens:,} tokens came from disk, which saved about {server.spared_s:,.0f} s"
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


def _format_model(url: str, state: str, model: ServedModel) -> str:
    mode: str = choice_in({**model.settings, "draft": model.draft}).describe()
    if model.embeddings:
        mode = "reranking" if model.reranking else "embeddings"
    if model.engine_pid is None and state == "stopped":
        return f"{url}/v1  unloaded  {model.model}  a request for it loads it again"
    facts = [state, model.model, mode, f"{model.engine} engine", f"pid {model.engine_pid}"]
    if model.by_request:
        facts.append("loaded by a request")
    return f"{url}/v1  {'  '.join(facts)}"
