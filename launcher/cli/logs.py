"""`mtp-launcher logs`: print the engine's log."""

import argparse
import asyncio
import time
from pathlib import Path

from launcher.cli.output import parse_count, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes, until the server ends")
    parser.add_argument(
        "--lines", type=parse_count, default=200, metavar="N", help="how many lines to begin with (200)"
    )
    parser.add_argument("--url", help="which server, when more than one runs")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--files", action="store_true", help="list the log files that lie here")
    other.add_argument("--file", type=Path, metavar="PATH", help="show this log file")
    parser.add_argument(
        "--report", action="store_true", help="print what a bug report should hold, without keys, tokens and names"
    )


async def run(options: argparse.Namespace) -> int:
    """Print the log of the running server, or of the last one; with --json one string per line."""
    from launcher.app.running import logs
    from launcher.base.errors import BadOption

    if options.follow and (options.report or options.file or options.files):
        raise BadOption("--follow goes with a server's log alone.", "Leave --report, --file and --files out.")
    if options.url and (options.file or options.files):
        raise BadOption("--url goes with a server's log alone.", "Leave --file and --files out.")
    if options.files:
        return _list(as_json=options.json)
    if options.report:
        return await _report(options)
    if options.file:
        for line in await asyncio.to_thread(_lines_of, options.file, options.lines):
            _print(line, as_json=options.json)
        return 0
    async for line in logs(options.url, lines=options.lines, follow=options.follow):
        _print(line, as_json=options.json, at_once=options.follow)
    return 0


def _print(line: str, *, as_json: bool, at_once: bool = False) -> None:
    if as_json:
        print_json(line)
    else:
        print(line, flush=at_once)


async def _report(options: argparse.Namespace) -> int:
    from launcher.app.bug_report import REPORT_LINES, bug_report
    from launcher.app.running import logs

    if options.file:
        lines = await asyncio.to_thread(_lines_of, options.file, None)
    else:
        lines = [line async for line in logs(options.url, lines=max(5_000, options.lines), follow=False)]
    text = await bug_report(lines, most=options.lines if options.lines != 200 else REPORT_LINES)
    if options.json:
        print_json({"report": text})
    else:
        print(text, end="")
    return 0


def _lines_of(path: Path, most: int | None) -> list[str]:
    from launcher.base.errors import BadOption
    from launcher.base.paths import expand_user
    from launcher.base.text import make_visible
    from launcher.engine.diagnosis.log_reading import read_log

    try:
        lines = make_visible(read_log(expand_user(path))).splitlines()
    except OSError as error:
        hint = "`mtp-launcher logs --files` lists those of our servers."
        raise BadOption(f"{path} cannot be read: {error.strerror or error}.", hint, path=str(path)) from None
    return lines if most is None else lines[max(0, len(lines) - most) :]


def _list(*, as_json: bool) -> int:
    from launcher.cli.bar import format_size
    from launcher.cli.layout import print_table
    from launcher.engine.server.logs import list_log_files

    found = list_log_files()
    if as_json:
        print_json(
            {
                "files": [
                    {
                        "path": str(each.path),
                        "port": each.port,
                        "age": each.age,
                        "bytes": each.bytes,
                        "modified_s": each.modified_s,
                    }
                    for each in found
                ]
            }
        )
    elif not found:
        print("No server has run yet, so there is no log.")
    else:
        rows = [(str(each.port), _when(each.modified_s), format_size(each.bytes), str(each.path)) for each in found]
        print_table([("PORT", "WRITTEN", "SIZE", "FILE"), *rows], right={0, 2}, indent="")
    return 0


def _when(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(time_s))
