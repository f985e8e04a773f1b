"""The part of `mtp-launcher serve` that loads its model at a server that runs already."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.app.serving.running_servers import find_control_address
from launcher.app.serving.verbs import Join, send_verb
from launcher.base.errors import LauncherError
from launcher.base.paths import expand_user
from launcher.cli.given_options import given_settings, make_serve_options
from launcher.cli.output import Note, Result, print_result
from launcher.cli.progress import StateLine
from launcher.cli.suggested_fixes import print_failure
from launcher.engine.server.last_start import save_last_model
from launcher.engine.server.state import ServerState, ServerStatus
from launcher.models.drafters import choice_in

if TYPE_CHECKING:
    from launcher.engine.server.registry import ServerEntry


async def join_running_server(entry: ServerEntry, model: str, options: argparse.Namespace) -> int:
    """Load the model at a running server, and unload it on a signal. Exit code 1 if that or the server fails."""
    states = StateLine()
    ready: Mapping[str, Any] | None = None
    try:
        join = await asyncio.to_thread(_make_request, model, options)
        async with aclosing(send_verb(await find_control_address(entry), join)) as answers:
            async for value in answers:
                if "ready" in value:
                    ready = value["ready"]
                    await asyncio.to_thread(save_last_model, model)
                    data = {name: ready[name] for name in ("url", "api_key", "pid", "model", "server_pid")}
                    data = {"state": "ready", **data, "launcher_pid": os.getpid()}
                    print_result(Result(data, _describe_ready(ready)), as_json=options.json)
                elif "ended" in value:
                    return _report_end(ready, value.get("error"), options)
                elif not options.json:
                    states.show_event(ServerStatus(ServerState(value["state"]), value.get("percent")))
    except asyncio.CancelledError:
        if ready is not None:
            return 0  # SIGINT and SIGTERM are the normal end
        stopped = Result({"state": "stopped"}, [Note("Stopped before the model was ready.")])
        print_result(stopped, as_json=options.json)
        raise
    except LauncherError as error:
        print_failure(error, [], as_json=options.json)
        return 1
    return 1


def _make_request(model: str, options: argparse.Namespace) -> Join:
    def locate(path: Path | None) -> Path | None:
        return path.absolute() if path is not None and path.exists() else path

    if (path := expand_user(model)).exists():  # the server's program runs in another folder
        model = str(path.absolute())
    base = make_serve_options(options, Path(model))
    base = replace(
        base,
        engine=locate(base.engine),
        draft_file=locate(base.draft_file),
        mmproj=locate(base.mmproj),
        chat_template_file=locate(base.chat_template_file),
    )
    return Join(
        model,
        given_settings(options),
        base,
        use_kept=not options.defaults,
        use_tuned=not options.no_preset,
        vision=options.vision,
    )


def _describe_ready(ready: Mapping[str, Any]) -> Iterator[str]:
    settings = ready["settings"]
    slots = settings.get("slots")
    mode: str = choice_in(settings).describe(mode=True)
    if ready["embeddings"]:
        mode = "reranking" if ready["reranking"] else "embeddings"
    yield from ready["notices"]
    yield f"\n{ready['name']}, {ready['engine']}, at the server that runs already"
    rows = {
        "address": f"{ready['url']}/v1",
        "model": ready["model"],
        "API key": ready["api_key"],
        "settings": f"{mode}, context {settings.get('ctx')}, {slots} slot{'' if slots == 1 else 's'}",
        "memory": f"KV cache {settings.get('kv') or 'f16'}, ubatch {settings.get('ubatch')}",
        "limits": ready["limits"] and f"{ready['limits']}, as this computer allows",
        "tuned": ready["tuned"],
        "kept": ready["kept"] and f"{ready['kept']}, from the last start; --defaults ignores that",
        "note": ready["note"],
        "log": ready["log"],
    }
    yield from (f"  {name:<8} {text}" for name, text in rows.items() if text)
    yield "Ctrl-C unloads this model. The server goes on."


def _report_end(ready: Mapping[str, Any] | None, error: str | None, options: argparse.Namespace) -> int:
    name = ready["model"] if ready else "The model"
    text = f"{name} failed: {error}" if error else f"{name} was unloaded."
    result = Result({"state": "failed" if error else "stopped", "error": error}, [Note(text)], 1 if error else 0)
    return print_result(result, as_json=options.json)
