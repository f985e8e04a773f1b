"""`mtp-launcher logs`: the engine's log."""

import argparse

from launcher.cli.output import count, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes, until the server ends")
    parser.add_argument("--lines", type=count, default=200, metavar="N", help="how many lines to begin with (200)")
    parser.add_argument("--url", help="which server, when more than one runs")


async def run(options: argparse.Namespace) -> int:
    """Print the log of the running server, or of the last one; with --json a string a line."""
    from launcher import app

    async for line in app.logs(options.url, lines=options.lines, follow=options.follow):
        if options.json:
            print_json(line)
        else:
            print(line, flush=options.follow)
    return 0
