"""`mtp-launcher restart`: restart a running server, with other settings if so wished."""

import argparse
import sys

from launcher.cli.output import duration, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        dest="changes",
        help="another setting: ctx, draft, slots, threads, kv, ubatch or n-cpu-moe; may be given more than once",
    )
    parser.add_argument("--url", help="which server, when more than one runs")
    parser.add_argument(
        "--drain", type=duration, default=0.0, metavar="SECONDS", help="let the requests it has end, but no longer"
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f'"{text}" is not KEY=VALUE, such as ctx=65536')
    return name.strip(), value.strip()


async def run(options: argparse.Namespace) -> int:
    """Restart the server and say what it runs with. Exit code 1 also when the old settings are back."""
    from launcher import app

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
