"""`mtp-launcher logs`: print the engine's log."""

import argparse
import asyncio
from pathlib import Path

from launcher.app.serving.running_servers import follow_log
from launcher.base.errors import BadOption
from launcher.base.paths import expand_user
from launcher.base.text import make_visible
from launcher.cli.layout import format_table, format_time
from launcher.cli.options.logs import DEFAULT_LINES
from launcher.cli.output import Result, print_result
from launcher.cli.progress import format_size
from launcher.engine.diagnosis.log_reading import read_log
from launcher.engine.server.logs import list_log_files

_MIN_REPORT_LINES = 5_000
"""Lines to read for a bug report: its diagnosis needs more than the report shows."""


async def run(options: argparse.Namespace) -> Result | int:
    """Print the log of the running server, or of the last one; with --json each line as a string."""
    if options.follow and (options.report or options.file or options.files):
        raise BadOption("--follow goes with a server's log alone.", "Leave --report, --file and --files out.")
    if options.url and (options.file or options.files):
        raise BadOption("--url goes with a server's log alone.", "Leave --file and --files out.")
    if options.files:
        return await asyncio.to_thread(_list_files)
    if options.report:
        return await _make_report(options)
    if options.file:
        for line in await asyncio.to_thread(_read_lines, options.file, options.lines):
            print_result(Result(line, [line]), as_json=options.json)
        return 0
    async for line in follow_log(options.url, lines=options.lines, follow=options.follow):
        print_result(Result(line, [line]), as_json=options.json)
    return 0


async def _make_report(options: argparse.Namespace) -> Result:
    from launcher.app.bug_report import REPORT_LINES, write_bug_report

    if options.file:
        lines = await asyncio.to_thread(_read_lines, options.file)
    else:
        count = max(_MIN_REPORT_LINES, options.lines)
        lines = [line async for line in follow_log(options.url, lines=count, follow=False)]
    text = await write_bug_report(lines, max_lines=REPORT_LINES if options.lines == DEFAULT_LINES else options.lines)
    return Result({"report": text}, [text.removesuffix("\n")])


def _read_lines(path: Path, max_lines: int | None = None) -> list[str]:
    """Return the lines of a log file, the last `max_lines` ones. Raises BadOption if it cannot be read."""
    try:
        lines = make_visible(read_log(expand_user(path))).splitlines()
    except OSError as error:
        hint = "`mtp-launcher logs --files` lists those of our servers."
        raise BadOption(f"{path} cannot be read: {error.strerror or error}.", hint, path=str(path)) from None
    return lines if max_lines is None else lines[max(0, len(lines) - max_lines) :]


def _list_files() -> Result:
    logs = list_log_files()
    files = [
        {
            "path": str(each.path),
            "port": each.port,
            "age": each.age,
            "bytes": each.bytes,
            "modified_s": each.modified_s,
        }
        for each in logs
    ]
    rows = [(str(each.port), format_time(each.modified_s), format_size(each.bytes), str(each.path)) for each in logs]
    table = format_table([("PORT", "WRITTEN", "SIZE", "FILE"), *rows], right={0, 2}, indent="")
    return Result({"files": files}, table if logs else ["No server has run yet, so there is no log."])
