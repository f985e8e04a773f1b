"""`mtp-launcher serve`: serve a model until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli.layout import health_line, wrap_text
from launcher.cli.machine_options import add_engine_option, add_setting_option, given_settings, make_serve_options
from launcher.cli.output import Note, Result, add_extra_arguments, print_result
from launcher.cli.quantities import parse_int, parse_workers
from launcher.models.server_settings import ROWS, format_settings

if TYPE_CHECKING:
    from launcher.app.session import Session
    from launcher.app.start_settings import Start
    from launcher.models.memory import PlanSettings
    from launcher.monitor.health_event import HealthEvent

_MOST_FIXES = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument(
        "what",
        nargs="?",
        metavar="ID[:QUANT] | FILE",
        help='a model that was pulled, a .gguf file, or "demo" for the demo model',
    )
    model.add_argument("--model", metavar="ID[:QUANT] | FILE", help="the same")
    model.add_argument("--last", action="store_true", help="the model that was served last")
    add_engine_option(parser)
    for row in ROWS.values():
        add_setting_option(parser, row, default=row.default)
    parser.add_argument("--mmproj", type=Path, metavar="FILE", help="a vision projector, for images")
    parser.add_argument(
        "--chat-template-file", type=Path, metavar="FILE", help="a chat template in place of the model's own"
    )
    parser.add_argument("--port", type=parse_int, metavar="P", help="port to listen on (default: the last one)")
    parser.add_argument(
        "--lan", action="store_true", help="share with the local network while it runs; clients need the API key"
    )
    parser.add_argument(
        "--rpc", type=parse_workers, default=(), metavar="HOST:PORT,...", help="llama.cpp's RPC workers to use"
    )
    parser.add_argument("--defaults", action="store_true", help="ignore the settings of this model's last start")
    parser.add_argument("--no-preset", action="store_true", help="ignore tuned settings")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="after a failed start, apply the suggested change and try again, three times at most",
    )
    add_extra_arguments(parser)


async def run(options: argparse.Namespace) -> int:
    """Serve until a signal; a failure of the engine that is not fixed ends it with exit code 1.

    Ctrl-C and SIGTERM are the normal end of a ready server; before that they count as an interruption.
    """
    from launcher.app.session import Session
    from launcher.app.start_settings import resolve_start
    from launcher.app.use_counting import UseCounting
    from launcher.base.errors import LauncherError
    from launcher.cli.bar import StateLine
    from launcher.cli.suggested_fixes import actions_json, print_failure
    from launcher.engine.server.started import require_last_model, save_last_start

    model = require_last_model() if options.last else options.what or options.model
    try:
        resolved = await resolve_start(
            model,
            given_settings(options),
            lambda path: make_serve_options(options, path),
            use_kept=not options.defaults,
            use_tuned=not options.no_preset,
        )
    except LauncherError as error:
        save_last_start(None, None, error)
        raise
    on_event, on_health = (None, None) if options.json else (StateLine().show_event, _print_health)
    session = Session(port=options.port, shared=options.lan, on_event=on_event, on_health=on_health)
    counting = UseCounting(session)
    try:
        start = partial(
            session.start,
            resolved.options,
            chosen=resolved.chosen,
            set_aside=resolved.set_aside,
            named=model,
            notices=resolved.notices,
        )
        await _start_and_wait(session, start, resolved, options)
    except asyncio.CancelledError:
        ended = Result({"state": "stopped"}, [Note("Stopped before the server was ready.")])
        print_result(ended, as_json=options.json)
        raise
    except LauncherError as error:
        print_failure(error, actions_json(error.actions, session.command_for_action), as_json=options.json)
        return 1
    finally:
        await session.stop()
        await counting.close()
    return 0


def _print_health(event: HealthEvent) -> None:
    print(health_line(event.finding.as_json(), cleared=event.cleared), file=sys.stderr, flush=True)


async def _start_and_wait(
    session: Session,
    start: Callable[[], Awaitable[None]],
    resolved: Start,
    options: argparse.Namespace,
) -> None:
    """Start, announce and wait for the end; with --fix apply suggested changes of settings after a failure."""
    from launcher.base.errors import LauncherError
    from launcher.engine.diagnosis.actions import changes_settings
    from launcher.engine.server.started import save_last_model

    fixes = _MOST_FIXES if options.fix else 0
    while True:
        try:
            await start()
            await asyncio.to_thread(save_last_model, resolved.named)
            ready = Result(_ready_json(session, resolved), _describe_server(session, resolved))
            print_result(ready, as_json=options.json)
            try:
                await _print_advice(session, as_json=options.json)
                error = await session.wait_until_ended()
            except asyncio.CancelledError:
                return  # SIGINT and SIGTERM are the normal end
            if error is None:
                return
            raise error
        except LauncherError as failed:
            able = (
                each for each in failed.actions if changes_settings(each) and session.command_for_action(each).steps
            )
            if not options.fix or (action := next(able, None)) is None:
                raise
            if not fixes:
                print(f"--fix tries {_MOST_FIXES} changes at most, and all were tried.", file=sys.stderr, flush=True)
                raise
            fixes -= 1
            print(f"{failed.title}\nFixed by: {action.label}.", file=sys.stderr, flush=True)
            start = partial(session.fix, action)


def _ready_json(session: Session, start: Start) -> dict[str, Any]:
    from launcher.app.sharing import shared_urls
    from launcher.app.start_settings import Origin

    supervisor, endpoint = session.supervisor, session.supervisor.endpoint
    ready = {"state": "ready", "url": endpoint.url, "api_key": endpoint.api_key, "pid": supervisor.engine_pid}
    shared = {"lan": shared_urls(endpoint.port)} if endpoint.shared else {}
    tuned = {"settings": start.settings_from(Origin.TUNED), "note": start.preset_line}
    preset = {"preset": tuned} if start.preset_line else {}
    notices = {"notices": [asdict(notice) for notice in start.notices]} if start.notices else {}
    return {**ready, "launcher_pid": os.getpid(), **shared, **preset, **notices}


def _describe_server(session: Session, start: Start) -> Iterator[str]:
    from launcher.app.start_settings import Origin

    endpoint, launch = session.supervisor.endpoint, session.supervisor.launch
    if launch is None:
        return
    limits, kept = format_settings(launch.limits), format_settings(start.settings_from(Origin.KEPT))
    draft = launch.options.draft
    setting = launch.setting("cpu")
    mtp = f"MTP on, draft length {draft}" if draft else "MTP off"
    yield f"\n{launch.header.name}, {launch.build.name} engine {launch.build.version}"
    rows = {
        "address": f"{endpoint.url}/v1",
        "API key": endpoint.api_key,
        "settings": f"{mtp}, context {launch.context}, {setting.slots} slot{'' if setting.slots == 1 else 's'}",
        "context": _describe_full_context(setting, launch.options.extra),
        "memory": f"KV cache {setting.kv}, ubatch {setting.ubatch}",
        "limits": limits and f"{limits}, to fit into host memory",
        "workers": launch.options.rpc and f"{', '.join(launch.options.rpc)} (RPC)",
        "preset": start.preset_line,
        "kept": kept and f"{kept}, from the last start; --defaults ignores that",
        "yours": shlex.join(launch.options.extra),
        "note": launch.note,
        "log": session.supervisor.log.path,
    }
    yield from (f"  {name:<8} {text}" for name, text in rows.items() if text)
    if endpoint.shared:
        yield describe_sharing(endpoint.port)
    yield "Ctrl-C stops it."


async def _print_advice(session: Session, *, as_json: bool) -> None:
    """Print advice from earlier use with these settings, if there is any."""
    from launcher.app.use_counting import find_advice

    launch = session.supervisor.launch
    advice = await asyncio.to_thread(find_advice, launch) if launch is not None and not as_json else None
    if advice is not None:
        retry = f"`mtp-launcher restart --set draft={advice.better}` tries it, `mtp-launcher tune` measures."
        print(f"Advice: {advice.sentence} {retry}", file=sys.stderr, flush=True)


def _describe_full_context(setting: PlanSettings, extra: Sequence[str]) -> str:
    """Return a sentence on what happens when a slot's context is full."""
    each = f"{setting.slot_context} tokens{' per slot' if setting.slots > 1 else ''}"
    if "--context-shift" in extra:
        return f"{each}; when full, the oldest half is dropped (--context-shift)"
    return f"{each}; when full, the reply ends, and nothing of the chat is dropped"


def describe_sharing(port: int) -> str:
    """Return the addresses for other computers, and what sharing means for security."""
    from launcher.app.sharing import read_share_info

    info = read_share_info(port)
    urls = [f"{url}/v1" for url in info.urls]
    where = f" with the network: {' and '.join(urls)}." if urls else ", but this computer has no address in a network."
    meaning = (
        f"Shared{where} Anyone with the API key can use the server. The traffic is not encrypted: others on the"
        " network can read the key and all messages, so share only where you trust everyone. Sharing ends when the"
        " server stops."
    )
    return "\n".join(filter(None, [wrap_text(meaning), info.hint]))
