"""`mtp-launcher restart`: restart a running server, optionally with other settings."""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from launcher.app.serving.running_servers import preview_restart, restart_server
from launcher.base.errors import LauncherError
from launcher.cli.layout import wrap_text
from launcher.cli.output import Note, Result
from launcher.cli.progress import Reporter
from launcher.cli.suggested_fixes import print_failure
from launcher.models.server_settings import ROWS, format_settings

_UNKNOWN = "not known"
_PREVIEW_S = 10.0


async def run(options: argparse.Namespace) -> Result | int:
    """Restart the server and return its settings. Exit code 1 also if it went back to the old settings.

    With --dry-run return a preview; exit code 1 if the new settings are too big.
    """
    if options.dry_run:
        preview = await preview_restart(options.url, dict(options.changes))
        return Result(preview, _describe_preview(preview), exit_code=1 if preview["status"] == "TOO BIG" else 0)
    reporter = Reporter(as_json=options.json)
    has_begun = False

    def show_state(state: str, _percent: float | None) -> None:
        nonlocal has_begun
        has_begun = True
        reporter.show_event(None, [Note(state.capitalize())], topic="state", state=state)

    if options.changes and (warning := await _find_size_warning(options)):
        reporter.show_event(None, [Note(wrap_text(warning, "Note: "))])
    try:
        server = await restart_server(options.url, dict(options.changes), drain_s=options.drain, on_state=show_state)
    except asyncio.CancelledError:
        if has_begun:
            note = "The restart goes on in the process that runs the server: `mtp-launcher status` shows the result."
            reporter.show_event(None, [Note(note)])
        raise
    except LauncherError as error:
        print_failure(error, _list_fixes(error, options.url), as_json=options.json)
        return 1
    settings = {name: value for name, value in server["settings"].items() if name in ROWS and value is not None}
    extra = server["settings"].get("extra")
    own_arguments = f" and {shlex.join(extra)}" if extra else ""
    lines = [f"{server['url']} is {server['state']} with {format_settings(settings)}{own_arguments}."]
    return Result(server, [*lines, *_describe_handover(server)])


def _describe_handover(server: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the restart meant for the clients' requests; nothing if there were none."""
    if not server.get("streams"):
        return
    gap = "" if server["gap_s"] is None else f", with a pause of {server['gap_s']:.2f} s at most"
    counts = {
        "went on with the new settings" + gap: server["continued"],
        "had received nothing yet and started again": server["streams"]
        - server["continued"]
        - server["drained"]
        - server["cut"],
        "ended before the restart": server["drained"],
        "were cut off": server["cut"],
    }
    for what, count in counts.items():
        if count:
            yield f"{count} {'request' if count == 1 else 'requests'} {what}."
    if server["uncertain"]:
        yield "Some go on from other tokens than were generated, so their text may differ at temperature 0."


async def _find_size_warning(options: argparse.Namespace) -> str | None:
    """Return a warning if the new settings do not fit into memory; None if they may, or if that is unknown."""
    with suppress(LauncherError, TimeoutError):  # the restart itself will report errors
        async with asyncio.timeout(_PREVIEW_S):
            preview = await preview_restart(options.url, dict(options.changes))
        if preview["status"] == "TOO BIG":
            needed, available = f"{preview['needed_mib']:,}", f"{preview['available_mib']:,} MiB ({preview['place']})"
            largest = f"{preview['largest_context']:,} tokens" if preview["largest_context"] else "none"
            return (
                f"This is too big: it needs {needed} of {available}. It is tried anyway; if it fails, the previous"
                f" settings come back. Largest context that fits: {largest}."
            )
    return None


def _list_fixes(error: LauncherError, url: str | None) -> list[dict[str, Any]]:
    """Return the suggested fixes of an error as JSON, each with its command.

    The process that runs the server does not know by which options the user named it. It sends a fix that changes
    settings as pairs in `set`, and the command is made here.
    """
    actions = error.facts.get("actions")
    server_option = ["--url", url] if url else []
    fixes = []
    for action in actions if isinstance(actions, list) else ():
        command = action.get("command")
        if pairs := action.get("set"):
            words = [word for name, value in pairs.items() for word in ("--set", f"{name}={value}")]
            command = shlex.join(["mtp-launcher", "restart", *words, *server_option])
        fixes.append({**action, "command": command})
    return fixes


def _describe_preview(preview: Mapping[str, Any]) -> Iterator[str]:
    """Yield the changes, the memory and the time of a restart that was not carried out."""
    for change in preview["changes"]:
        old, new = (_format_value(change[name]) for name in ("old", "new"))
        yield wrap_text(f"{change['name'].replace('_', '-')} {old} -> {new}: {change['consequence']}")
    if not preview["changes"]:
        is_loading = preview.get("state") in ("preparing", "restarting", "loading", "warming up")
        yield f"The server {'is loading' if is_loading else 'runs'} with these settings already."
    if preview["status"] is None:
        yield wrap_text(f"memory   {_UNKNOWN}: {preview['unknown'] or '; '.join(preview['notes'])}")
    else:
        missing = f", {preview['missing_mib']:,} MiB too few" if preview["missing_mib"] else ""
        yield (
            f"memory   {preview['status']}: needs {preview['needed_mib']:,} of {preview['available_mib']:,} MiB"
            f" ({preview['place']}){missing}"
        )
        largest = f"{preview['largest_context']:,} tokens" if preview["largest_context"] else "none"
        yield f"context  largest that fits with these settings, {preview['margin_mib']:,} MiB left free: {largest}"
    seconds, measured = preview["restart_s"], preview["restart_measured"]
    if seconds is None:
        yield f"restart  {_UNKNOWN}: never measured here"
    else:
        source = f"the median of {measured} restarts" if measured > 1 else "as the last time"
        yield f"restart  about {seconds:g} s, {source}"
    yield from _describe_outlook(preview)
    for warning in preview["warnings"]:
        yield wrap_text(warning, "Note: ")
    yield "Nothing was changed."


def _describe_outlook(preview: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a restart would mean for the requests that run now; nothing if there are none."""
    replies, pause = preview.get("replies"), preview.get("pause")
    meanings = {"go_on": "goes on", "uncertain": "may end first, or go on with other words", "end_first": "ends first"}
    several = {**meanings, "go_on": "go on", "end_first": "end first"}
    for name, count in (replies or {}).items():
        if count:
            what = f"1 reply {meanings[name]}" if count == 1 else f"{count} replies {several[name]}"
            yield wrap_text(what, "replies  ")
    for reason in preview.get("reasons") or ():
        yield wrap_text(reason, "         ")
    if pause is None or pause["seconds"] is None:
        return
    parts = [f"{pause['load_s']:g} s to load"]
    if pause["slots_s"]:
        parts.append(f"{pause['slots_s']:g} s for saved conversations")
    if tokens := pause["tokens_read"]:
        takes = "unknown time" if pause["reading_s"] is None else f"{pause['reading_s']:g} s"
        parts.append(f"{takes} to read {tokens:,} tokens again" + (", prompts included" * pause["reads_prompts"]))
    yield wrap_text(f"about {pause['seconds']:g} s: {', '.join(parts)}", "pause    ")


def _format_value(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)
