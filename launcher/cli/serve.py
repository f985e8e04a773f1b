"""`mtp-launcher serve`: serve a model until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.health_line import health_line
from launcher.cli.machine_options import to_serve
from launcher.cli.output import print_json, take_extra
from launcher.cli.quantities import tokens, whole, workers

if TYPE_CHECKING:
    from launcher.app import Session


_MOST_FIXES = 3


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a start takes beside what was asked: choices of the last time, a preset's settings, what to say of that."""

    last_time: Mapping[str, object]
    preset: Mapping[str, object]
    line: str


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
    parser.add_argument(
        "--engine", type=Path, metavar="PATH", help="a llama-server, an installed engine, or built-in (default: in use)"
    )
    parser.add_argument(
        "--ctx", type=tokens, metavar="N", help="context in tokens: 131072, 128K (default 8192, or less if trained so)"
    )
    parser.add_argument("--draft", type=whole, metavar="N", help="draft length in tokens, 0 is MTP off (default 2)")
    parser.add_argument("--port", type=whole, metavar="P", help="port to listen on (default: the one of last time)")
    parser.add_argument(
        "--lan", action="store_true", help="let other computers of the network in, with the key, until this run ends"
    )
    parser.add_argument("--slots", type=whole, metavar="N", help="requests served at once (default 1)")
    parser.add_argument("--kv", metavar="TYPE", help="type of the KV cache: f16, q8_0, q4_0, ... (default: f16)")
    parser.add_argument("--ubatch", type=tokens, metavar="N", help="tokens of a prompt computed at once (default 512)")
    parser.add_argument("--n-cpu-moe", type=whole, metavar="N", help="keep the experts of N layers in host memory")
    parser.add_argument(
        "--rpc", type=workers, default=(), metavar="HOST:PORT,...", help="llama.cpp's RPC workers to use"
    )
    parser.add_argument("--threads", type=whole, metavar="N", help="processor threads (default: the engine's choice)")
    parser.add_argument(
        "--defaults", action="store_true", help="do not take the settings that this model was served with the last time"
    )
    parser.add_argument(
        "--no-preset", action="store_true", help="do not take the settings that a tune of this machine found best"
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="when it fails, change the settings as is proposed and start again, three times at most",
    )
    take_extra(parser)


async def run(options: argparse.Namespace) -> int:
    """Serve until the end is asked for; a failure of the engine that is not mended ends it with exit code 1.

    Ctrl-C and SIGTERM are the ordinary end of a server that is ready; before that they are an interruption.
    """
    from launcher import app
    from launcher.base.errors import LauncherError
    from launcher.bench import options_with
    from launcher.cli.progress import StateLine
    from launcher.cli.to_do import print_failure
    from launcher.engine.last import last
    from launcher.engine.settings import OPTIONS, remembered, with_settings
    from launcher.engine.started import keep_start
    from launcher.engine.state import Event
    from launcher.machine_presets import find_preset, settings_kept, settings_used
    from launcher.monitor.health_event import HealthEvent
    from launcher.use_counting import UseCounting

    states = StateLine()

    def show(event: Event) -> None:
        if not options.json:
            states.show(event)

    def show_health(event: HealthEvent) -> None:
        if not options.json:
            print(health_line(event.finding.as_json(), cleared=event.cleared), file=sys.stderr, flush=True)

    model = last() if options.last else options.what or options.model
    try:
        serve_options = app.options_for(model, lambda path: to_serve(options, path), draft=options.draft)
    except LauncherError as error:
        keep_start(None, None, error)
        raise
    asked = {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    kept = {} if options.defaults else remembered(serve_options.model)
    found = await find_preset(serve_options)
    last_time = settings_kept(found, asked, kept)
    preset = {} if options.no_preset else settings_used(found, asked, kept)
    serve_options = options_with(with_settings(serve_options, last_time), preset)
    session = app.Session(port=options.port, shared=options.lan, on_event=show, on_health=show_health)
    counting = UseCounting(session)
    try:
        start = partial(session.start, serve_options, chosen=kept | asked, named=model)
        line = "" if found is None or options.no_preset else found.line
        await _serve(session, start, model, _Taken(last_time, preset, line), options)
    except asyncio.CancelledError:
        if options.json:
            print_json({"state": "stopped"})
        else:
            print("Ended before the server was ready.", file=sys.stderr, flush=True)
        raise
    except LauncherError as error:
        print_failure(error, session.way, as_json=options.json)
        return 1
    finally:
        await session.stop()
        await counting.close()
    return 0


async def _serve(
    session: Session,
    start: Callable[[], Awaitable[None]],
    model: str,
    taken: _Taken,
    options: argparse.Namespace,
) -> None:
    """Start, announce and wait for the end; with --fix do the best that other settings can about a failure."""
    from launcher.base.errors import LauncherError
    from launcher.engine.action import changes_settings
    from launcher.engine.last import keep_last

    fixes = _MOST_FIXES if options.fix else 0
    while True:
        try:
            await start()
            await asyncio.to_thread(keep_last, model)
            _announce(session, taken, as_json=options.json)
            try:
                await _advise(session, as_json=options.json)
                error = await session.wait_until_ended()
            except asyncio.CancelledError:
                return  # SIGINT and SIGTERM are the ordinary end
            if error is None:
                return
            raise error
        except LauncherError as failed:
            able = (each for each in failed.actions if changes_settings(each) and session.way(each).steps)
            if not options.fix or (action := next(able, None)) is None:
                raise
            if not fixes:
                print(f"--fix makes {_MOST_FIXES} changes at most, and has made them.", file=sys.stderr, flush=True)
                raise
            fixes -= 1
            print(f"{failed.title}\nMended by: {action.label}.", file=sys.stderr, flush=True)
            start = partial(session.fix, action)


def _announce(server: Session, taken: _Taken, *, as_json: bool) -> None:
    from launcher.cli.sharing import sharing_words
    from launcher.engine.arguments import USUAL_KV, USUAL_UBATCH
    from launcher.sharing import shared_urls

    supervisor = server.supervisor
    endpoint, launch = supervisor.endpoint, supervisor.launch
    if as_json:
        ready = {"state": "ready", "url": endpoint.url, "api_key": endpoint.api_key, "pid": supervisor.engine_pid}
        shared = {"lan": shared_urls(endpoint.port)} if endpoint.shared else {}
        preset = {"preset": {"settings": dict(taken.preset), "note": taken.line}} if taken.line else {}
        print_json({**ready, "launcher_pid": os.getpid(), **shared, **preset})
        return
    if launch is None:
        return
    draft = launch.options.draft
    mtp = f"MTP on, draft length {draft}" if draft else "MTP off"
    print(
        f"\n{launch.header.name}, {launch.build.name} engine {launch.build.version}"
        f"\n  address  {endpoint.url}/v1"
        f"\n  API key  {endpoint.api_key}"
        f"\n  settings {mtp}, context {launch.context}, {launch.options.slots} slot(s)"
        f"\n  context  {_full(launch.context, launch.options.slots, launch.options.extra)}"
        f"\n  memory   KV cache {launch.options.kv or USUAL_KV}, ubatch {launch.options.ubatch or USUAL_UBATCH}"
        + (f"\n  workers  {', '.join(launch.options.rpc)} (RPC)" if launch.options.rpc else "")
        + (f"\n  preset   {taken.line}" if taken.line else "")
        + (
            f"\n  kept     {_words(taken.last_time)} as the last time; --defaults leaves that out"
            if taken.last_time
            else ""
        )
        + (f"\n  yours    {shlex.join(launch.options.extra)}" if launch.options.extra else "")
        + (f"\n  note     {launch.note}" if launch.note else "")
        + f"\n  log      {supervisor.log.path}"
        + (f"\n{sharing_words(endpoint.port)}" if endpoint.shared else "")
        + "\nCtrl-C stops it.",
        flush=True,
    )


async def _advise(session: Session, *, as_json: bool) -> None:
    """Say what earlier use with these settings tells about them, if it tells anything."""
    from launcher.use_counting import advice_for

    launch = session.supervisor.launch
    advice = await asyncio.to_thread(advice_for, launch) if launch is not None and not as_json else None
    if advice is not None:
        retry = f"`mtp-launcher restart --set draft={advice.better}` tries it, `mtp-launcher tune` measures."
        print(f"Advice: {advice.sentence} {retry}", file=sys.stderr, flush=True)


def _words(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in settings.items())


def _full(context: int, slots: int, extra: Sequence[str]) -> str:
    """Say what happens when a slot is full; llama-server gives each an equal part of the context."""
    each = f"{context // slots} tokens a slot" if slots > 1 else f"{context} tokens"
    if "--context-shift" in extra:
        return f"{each}; the oldest half of a full one is dropped, as you wish"
    return f"{each}; a reply that fills them ends there, nothing of the chat is dropped"
