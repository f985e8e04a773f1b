"""`mtp-launcher serve`: serve a model until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.app.planning.start_settings import SettingOrigin, resolve_start
from launcher.app.serving.running_servers import find_server_to_join
from launcher.app.serving.server_process import find_process
from launcher.app.serving.session import ServerSession
from launcher.app.serving.session_host import SessionHost
from launcher.app.serving.sharing import read_share_info, shared_urls
from launcher.app.serving.use_counting import UseCounting, find_advice
from launcher.app.settings import read_kept
from launcher.base.codec import to_json
from launcher.base.errors import BadOption, LauncherError
from launcher.cli.given_options import given_settings, make_serve_options
from launcher.cli.joining import join_running_server
from launcher.cli.layout import health_line, wrap_text
from launcher.cli.output import Note, Result, print_result
from launcher.cli.progress import StateLine
from launcher.cli.suggested_fixes import actions_json, print_failure
from launcher.engine.diagnosis.actions import changes_settings
from launcher.engine.server.last_start import require_last_model, save_last_model, save_last_start
from launcher.gateway.certificate import certificate_path, read_fingerprint
from launcher.models.server_settings import format_settings
from launcher.monitor.monitor import UNSEEN

if TYPE_CHECKING:
    from launcher.app.planning.start_settings import ResolvedStart
    from launcher.engine.serve_options import ServeOptions
    from launcher.models.memory import PlanSettings
    from launcher.monitor.health_event import HealthEvent

_MAX_FIXES = 3


async def run(options: argparse.Namespace) -> int:
    """Serve until a signal. Exit code 1 if the engine fails, and --fix is not given or does not help.

    Ctrl-C and SIGTERM are the normal end of a ready server; before it is ready they are an interruption. If a server
    runs at the default address already, the model is loaded there.
    """
    _check_options(options)
    model = require_last_model() if options.last else options.what or options.model
    if options.port is None and not (options.direct or options.lan):
        entry = await find_server_to_join()
        if entry is not None:
            return await join_running_server(entry, model, options)
    try:
        start = await resolve_start(
            model,
            given_settings(options),
            lambda path: make_serve_options(options, path),
            use_kept=not options.defaults,
            use_tuned=not options.no_preset,
            vision=options.vision,
        )
    except LauncherError as error:
        save_last_start(None, None, error)
        raise
    if options.for_window and await asyncio.to_thread(find_process) is None:
        return await _serve_for_window(start, options)
    on_event = None if options.json else StateLine().show_event
    on_health = None if options.json else _print_health
    session = ServerSession(
        port=options.port,
        shared=options.lan,
        direct=options.direct,
        encrypted=not options.no_tls,
        takes_models=True,
        memory_limit_mib=options.memory_limit,
        memory_guard=options.memory_guard,
        on_event=on_event,
        on_health=on_health,
    )
    session.monitor.periods = UNSEEN
    counting = UseCounting(session)
    try:
        start_server = partial(session.start, start.request)
        await _start_and_wait(session, start_server, start, options)
    except asyncio.CancelledError:
        stopped = Result({"state": "stopped"}, [Note("Stopped before the server was ready.")])
        print_result(stopped, as_json=options.json)
        raise
    except LauncherError as error:
        print_failure(error, actions_json(error.actions, session.command_for_action), as_json=options.json)
        return 1
    finally:
        await session.stop()
        await counting.close()
    return 0


async def _serve_for_window(start: ResolvedStart, options: argparse.Namespace) -> int:
    """Serve as the server process, so that a window takes the server over instead of starting another one.

    Returns when a window has ended it or it was stopped. Exit code 1 if the engine fails while no window shows why.
    """
    host = SessionHost(None)
    session = host.session
    try:
        await host.listen()
        with session.listening(StateLine().show_event):
            await session.start(start.request)
        await asyncio.to_thread(save_last_model, start.model_name)
        await _print_ready(session, start, options)
        await host.wait_until_unused()
        failure = None if session.is_idle else session.supervisor.status.error
        if failure is not None:
            raise failure
    except asyncio.CancelledError:
        return 0  # SIGINT and SIGTERM are the normal end
    except LauncherError as error:
        print_failure(error, actions_json(error.actions, session.command_for_action), as_json=options.json)
        return 1
    finally:
        await host.close()
    return 0


def _check_options(options: argparse.Namespace) -> None:
    """Raise BadOption for options that do not belong together."""
    if options.no_tls and not options.lan:
        raise BadOption("--no-tls belongs to --lan.", "This computer's own connections are never encrypted.")
    if options.lan and options.direct and not options.no_tls:
        raise BadOption("With --direct nothing is encrypted.", "Add --no-tls, or omit --direct.")
    if options.memory_guard and options.direct:
        raise BadOption("With --direct a restart would end all replies.", "Omit --memory-guard or --direct.")


def _print_health(event: HealthEvent) -> None:
    print(health_line(to_json(event.finding), cleared=event.cleared), file=sys.stderr, flush=True)


async def _start_and_wait(
    session: ServerSession,
    start_server: Callable[[], Awaitable[None]],
    start: ResolvedStart,
    options: argparse.Namespace,
) -> None:
    """Start the server, print its address and wait for its end; with --fix apply suggested changes after a failure."""
    fixes_left = _MAX_FIXES
    while True:
        try:
            await start_server()
            await asyncio.to_thread(save_last_model, start.model_name)
            await _print_ready(session, start, options)
            try:
                await _print_advice(session, as_json=options.json)
                failure = await session.wait_until_ended()
            except asyncio.CancelledError:
                return  # SIGINT and SIGTERM are the normal end
            if failure is None:
                return
            raise failure
        except LauncherError as error:
            fixes = (
                each for each in error.actions if changes_settings(each) and session.command_for_action(each).steps
            )
            if not options.fix or (fix := next(fixes, None)) is None:
                raise
            if not fixes_left:
                print(f"--fix tries {_MAX_FIXES} changes at most, and all were tried.", file=sys.stderr, flush=True)
                raise
            fixes_left -= 1
            print(f"{error.title}\nFixed by: {fix.label}.", file=sys.stderr, flush=True)
            start_server = partial(session.apply_fix, fix)


def _ready_json(session: ServerSession, start: ResolvedStart, options: argparse.Namespace) -> dict[str, Any]:
    supervisor, endpoint = session.supervisor, session.supervisor.endpoint
    data: dict[str, Any] = {
        "state": "ready",
        "url": endpoint.url,
        "api_key": endpoint.api_key,
        "pid": supervisor.engine_pid,
        "launcher_pid": os.getpid(),
    }
    if endpoint.shared:
        data["lan"] = shared_urls(endpoint.port, encrypted=not options.no_tls)
        data |= {} if options.no_tls else {"certificate": certificate_path(), "fingerprint": read_fingerprint()}
    if start.tuned_line:
        data["preset"] = {"settings": start.settings_from(SettingOrigin.TUNED), "note": start.tuned_line}
    if start.notices:
        data["notices"] = to_json(start.notices)
    return data


async def _print_ready(session: ServerSession, start: ResolvedStart, options: argparse.Namespace) -> None:
    """Print what serves where, and what is kept of earlier conversations."""
    launch, kept = session.supervisor.launch, None
    if launch is not None and not options.direct:
        kept = await asyncio.to_thread(read_kept, launch)
    data, lines = _ready_json(session, start, options), [*_describe_server(session, start, options)]
    if kept is not None and kept.states:
        data["kept"] = kept
        lines.insert(-1, f"{kept.sentence} What is kept need not be read again.")
    print_result(Result(data, lines), as_json=options.json)


def _describe_server(session: ServerSession, start: ResolvedStart, options: argparse.Namespace) -> Iterator[str]:
    endpoint, launch = session.supervisor.endpoint, session.supervisor.launch
    if launch is None:
        return
    limits, kept = format_settings(launch.limits), format_settings(start.settings_from(SettingOrigin.KEPT))
    plan_settings = launch.plan_settings("cpu")
    mode: str = launch.options.draft_choice.describe(mode=True)
    texts_path = launch.options.texts_path
    if texts_path:
        mode = "reranking" if launch.options.reranking else "embeddings"
    slots = f"{plan_settings.slots} slot{'' if plan_settings.slots == 1 else 's'}"
    yield f"\n{launch.header.name}, {launch.build.name} engine {launch.build.version}"
    rows = {
        "address": f"{endpoint.url}/v1",
        "API key": endpoint.api_key,
        "example": texts_path and _example_request(endpoint.url + texts_path, endpoint.api_key, launch.options),
        "settings": f"{mode}, context {launch.context}, {slots}",
        "context": "" if texts_path else _describe_full_context(plan_settings, launch.options.extra),
        "texts": texts_path and _describe_longest_text(plan_settings, splits=launch.header.splits_texts),
        "memory": f"KV cache {plan_settings.kv}, ubatch {plan_settings.ubatch}",
        "limits": limits and f"{limits}, as this computer allows",
        "workers": launch.options.rpc and f"{', '.join(launch.options.rpc)} (RPC)",
        "tuned": start.tuned_line,
        "kept": kept and f"{kept}, from the last start; --defaults ignores that",
        "yours": shlex.join(launch.options.extra),
        "note": launch.note,
        "log": session.supervisor.log.path,
    }
    yield from (f"  {name:<8} {text}" for name, text in rows.items() if text)
    if endpoint.shared:
        yield _describe_sharing(endpoint.port, encrypted=not options.no_tls)
    yield "Ctrl-C stops it."


async def _print_advice(session: ServerSession, *, as_json: bool) -> None:
    """Print advice from earlier use with these settings, if there is any; nothing with --json."""
    launch = session.supervisor.launch
    if launch is None or as_json:
        return
    advice = await asyncio.to_thread(find_advice, launch)
    if advice is not None:
        changes = advice.choice.as_settings(launch.options.drafter.spec_type)
        chosen = " --set ".join(f"{name}={value}" for name, value in changes.items() if value is not None)
        commands = f"`mtp-launcher restart --set {chosen}` tries it, `mtp-launcher tune` measures."
        print(f"Advice: {advice.sentence} {commands}", file=sys.stderr, flush=True)


def _example_request(url: str, api_key: str, options: ServeOptions) -> str:
    """Return a request for a text's vector or rank. Its quotes suit bash, PowerShell 7 and cmd."""
    body: dict[str, object] = {"input": "Hello."}
    if options.reranking:
        body = {"query": "Hello?", "documents": ["Hello.", "Bread."]}
    data = json.dumps(body).replace('"', '\\"')
    key = f'-H "Authorization: Bearer {api_key}"'
    return f'curl {url} {key} -H "Content-Type: application/json" -d "{data}"'


def _describe_longest_text(plan_settings: PlanSettings, *, splits: bool) -> str:
    """Return a sentence on how long a text may be."""
    if splits or plan_settings.ubatch >= plan_settings.slot_context:
        return f"up to {plan_settings.slot_context} tokens each"
    return f"up to {plan_settings.ubatch} tokens each; --ubatch N allows longer ones"


def _describe_full_context(plan_settings: PlanSettings, extra: Sequence[str]) -> str:
    """Return a sentence on what happens when a slot's context is full."""
    size = f"{plan_settings.slot_context} tokens{' per slot' if plan_settings.slots > 1 else ''}"
    if "--context-shift" in extra:
        return f"{size}; when full, the oldest half is dropped (--context-shift)"
    return f"{size}; when full, the reply ends, and nothing of the chat is dropped"


def _describe_sharing(port: int, *, encrypted: bool) -> str:
    """Return the addresses for other computers, and the certificate, or a warning that nothing is encrypted."""
    info = read_share_info(port, encrypted=encrypted)
    urls = [f"{url}/v1" for url in info.urls]
    where = f" with the network: {' and '.join(urls)}." if urls else ", but this computer has no address in a network."
    text = f"Shared{where} Anyone with the API key can use the server. "
    certificate = ""
    if encrypted:
        text += "Clients must trust its certificate (docs/clients.md). Sharing ends when the server stops."
        certificate = f"  certificate  {certificate_path()}\n  SHA-256      {read_fingerprint()}"
    else:
        text += (
            "The traffic is not encrypted: others on the network can read the key and all messages, so share only"
            " where you trust everyone. Sharing ends when the server stops."
        )
    return "\n".join(filter(None, [wrap_text(text), certificate, info.hint]))
