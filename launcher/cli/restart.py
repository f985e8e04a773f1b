"""`mtp-launcher restart`: restart a running server, optionally with other settings."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.cli.layout import wrap_text
from launcher.cli.output import parse_seconds, print_error, print_json
from launcher.cli.subject_options import add_changes
from launcher.models.server_settings import ROWS, format_settings

if TYPE_CHECKING:
    from launcher.base.errors import LauncherError

_UNKNOWN = "not known"
_PREVIEW_S = 10.0
_SHOWN, _LONGEST = 3, 200


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_changes(
        parser,
        f"another setting: {', '.join(row.spelling for row in ROWS.values())} or extra (arguments of your own, as one"
        " line); may be given more than once",
    )
    parser.add_argument("--url", help="which server, when more than one runs")
    parser.add_argument(
        "--drain", type=parse_seconds, default=0.0, metavar="SECONDS", help="let the requests it has end, but no longer"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="change nothing: say what it would cost, whether it fits, how long it takes",
    )


async def run(options: argparse.Namespace) -> int:
    """Restart the server and print its settings. Exit code 1 also if the old settings are back."""
    from launcher.app.running import preview as preview_restart
    from launcher.app.running import restart
    from launcher.base.errors import LauncherError

    if options.dry_run:
        told = await preview_restart(options.url, dict(options.changes))
        if options.json:
            print_json(told)
        else:
            _print_preview(told)
        return 1 if told["status"] == "TOO BIG" else 0
    shown = ""

    def show(state: str, _percent: float | None) -> None:
        nonlocal shown
        if state != shown and not options.json:
            print(state.capitalize(), file=sys.stderr, flush=True)
        shown = state

    if options.changes and (warning := await _too_big(options)):
        print(wrap_text(warning, "Note: "), file=sys.stderr, flush=True)
    try:
        told = await restart(options.url, dict(options.changes), drain_s=options.drain, on_state=show)
    except asyncio.CancelledError:
        if shown:
            print("The server's program goes on with it: `mtp-launcher status` tells with what.", file=sys.stderr)
        raise
    except LauncherError as error:
        actions = _with_commands(error, options.url)
        if options.json:
            told = {"code": error.code, "message": error.title, "hint": error.hint, "facts": dict(error.facts)}
            print_json({"error": told | {"actions": actions}})
            return 1
        print_error(error, as_json=False)
        for line in _to_do(actions):
            print(f"       {line}", file=sys.stderr)
        return 1
    if options.json:
        print_json(told)
    else:
        settings = {name: value for name, value in told["settings"].items() if name in ROWS and value is not None}
        extra = told["settings"].get("extra")
        yours = f" and {shlex.join(extra)}" if extra else ""
        print(f"{told['url']} is {told['state']} with {format_settings(settings)}{yours}.")
    return 0


async def _too_big(options: argparse.Namespace) -> str | None:
    """Return a warning if the settings do not fit into memory; None if they may, or if that is unknown."""
    from launcher.app.running import preview as preview_restart
    from launcher.base.errors import LauncherError

    with suppress(LauncherError, TimeoutError):  # the restart itself reports errors
        async with asyncio.timeout(_PREVIEW_S):
            told = await preview_restart(options.url, dict(options.changes))
        if told["status"] == "TOO BIG":
            return (
                f"This is too big: it needs {told['needed_mib']:,} of {told['available_mib']:,} MiB ({told['place']})."
                " It is tried all the same; the settings before come back if it fails. Largest context that fits: "
                + (f"{told['largest_context']:,} tokens." if told["largest_context"] else "none.")
            )
    return None


def _with_commands(error: LauncherError, url: str | None) -> list[dict[str, Any]]:
    """Return the suggested fixes for settings that failed, each with its command, usually another restart."""
    proposed = error.facts.get("actions")
    where = ["--url", url] if url else []
    actions = []
    for action in proposed if isinstance(proposed, list) else ():
        pairs = [word for pair in (action.get("set") or {}).items() for word in ("--set", "=".join(pair))]
        command = shlex.join(["mtp-launcher", "restart", *pairs, *where]) if pairs else action.get("command")
        actions.append({**action, "command": command})
    return actions


def _to_do(actions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines for the first fixes, with their command or link, or a note that they are already applied."""
    offered = (each for each in actions if each["command"] or each.get("link") or each.get("set") == {})
    for number, action in enumerate(islice(offered, _SHOWN)):
        done = " (so it runs already)" if action.get("set") == {} else ""
        yield f"{'Or' if number else 'To do'}: {one_line(str(action['label']), _LONGEST)}{done}"
        if how := action["command"] or action.get("link"):
            yield f"  {how}"


def _print_preview(told: Mapping[str, Any]) -> None:
    """Print a preview: changes, memory, restart time. Nothing has been changed."""
    for change in told["changes"]:
        old, new = (_word(change[name]) for name in ("old", "new"))
        print(wrap_text(f"{change['name'].replace('_', '-')} {old} -> {new}: {change['consequence']}"))
    if not told["changes"]:
        loads = told.get("state") in ("preparing", "restarting", "loading", "warming up")
        print(f"These settings are what {'is being loaded' if loads else 'runs already'}.")
    if told["status"] is None:
        print(wrap_text(f"memory   {_UNKNOWN}: {told['unknown'] or '; '.join(told['notes'])}"))
    else:
        short = f", {told['missing_mib']:,} MiB too few" if told["missing_mib"] else ""
        print(
            f"memory   {told['status']}: needs {told['needed_mib']:,} of {told['available_mib']:,} MiB"
            f" ({told['place']}){short}"
        )
        largest = f"{told['largest_context']:,} tokens" if told["largest_context"] else "none"
        print(f"context  largest that fits with these settings, {told['margin_mib']:,} MiB left free: {largest}")
    seconds = told["restart_s"]
    times = (
        f"the median of {told['restart_measured']} here" if told["restart_measured"] > 1 else "as the last time here"
    )
    print(f"restart  {f'about {seconds:g} s, {times}' if seconds is not None else f'{_UNKNOWN}: never measured here'}")
    for warning in told["warnings"]:
        print(wrap_text(warning, "Note: "))
    print("Nothing was changed.")


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "default" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
