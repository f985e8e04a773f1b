"""`mtp-launcher restart`: restart a running server, with other settings if so wished."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from launcher.cli.layout import filled
from launcher.cli.output import duration, print_json

_UNKNOWN = "not known"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        dest="changes",
        help="another setting: ctx, draft, slots, threads, kv, ubatch, n-cpu-moe or extra (arguments of your own, as"
        " one line); may be given more than once",
    )
    parser.add_argument("--url", help="which server, when more than one runs")
    parser.add_argument(
        "--drain", type=duration, default=0.0, metavar="SECONDS", help="let the requests it has end, but no longer"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="change nothing: say what it would cost, whether it fits, how long it takes",
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f'"{text}" is not KEY=VALUE, such as ctx=65536')
    return name.strip(), value.strip()


async def run(options: argparse.Namespace) -> int:
    """Restart the server and say what it runs with. Exit code 1 also when the old settings are back."""
    from launcher import app

    if options.dry_run:
        told = await app.preview(options.url, dict(options.changes))
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

    told = await app.restart(options.url, dict(options.changes), drain_s=options.drain, on_state=show)
    if options.json:
        print_json(told)
    else:
        settings = ", ".join(f"{name} {value}" for name, value in told["settings"].items() if value not in (None, []))
        print(f"{told['url']} is {told['state']} with {settings}.")
    return 0


def _print_preview(told: Mapping[str, Any]) -> None:
    """Print a preview: the changes, the memory, the time. Nothing has been changed."""
    for change in told["changes"]:
        old, new = (_word(change[name]) for name in ("old", "new"))
        print(filled(f"{change['name'].replace('_', '-')} {old} -> {new}: {change['consequence']}"))
    if not told["changes"]:
        print("These settings are what runs already.")
    if told["status"] is None:
        print(filled(f"memory   {_UNKNOWN}: {told['unknown'] or '; '.join(told['notes'])}"))
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
        print(filled(warning, "Note: "))
    print("Nothing was changed.")


def _word(value: object) -> str:
    return "default" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
