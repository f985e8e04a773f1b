"""`mtp-launcher diagnose`: find the cause of an engine failure in its log, and the command that fixes it."""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import TYPE_CHECKING

from launcher.app.serving.failed_requests import group_failures
from launcher.base.errors import BadOption, LauncherError, ServerNotFound
from launcher.base.paths import expand_user
from launcher.base.threads import run_in_thread
from launcher.cli.layout import health_line, wrap_text
from launcher.cli.output import Result
from launcher.cli.suggested_fixes import actions_json, format_fixes
from launcher.engine.diagnosis.explain import Diagnosis, diagnose_log, find_error_line
from launcher.engine.diagnosis.log_reading import is_text, read_log
from launcher.engine.server import registry
from launcher.engine.server.last_start import LastStart, load_last_start
from launcher.engine.server.logs import list_log_files, log_path
from launcher.engine.server.state import SERVING

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.app.serving.failed_requests import FailureGroup
    from launcher.engine.server.registry import ServerEntry

_NO_KNOWN_CAUSE = "The log shows no known cause."
_NOT_A_LOG = "This is not a log: it is not a text file."
_REQUESTS_READ = 100
"""How many of the last requests are searched for failures."""
_STARTING_STATES = ("preparing", "loading", "warming up")


async def run(options: argparse.Namespace) -> Result:
    """Return the first known cause in the log, the error of the last start, or that the server is healthy.

    Exit code 1 if no cause is known, unless the last server was stopped and none runs.
    """
    last_start, server = await asyncio.to_thread(_find_last_start, options.log, options.url)
    starting_server = server if server is not None and server.first.state in _STARTING_STATES else None
    has_input = options.log is not None or options.exit_code is not None
    if last_start is not None and last_start.error is not None and not last_start.explained_by_log and not has_input:
        return _make_report(_diagnose_failed_start(last_start, last_start.error), last_start, options)
    log_name = options.log if options.log is not None or last_start is None else str(last_start.log)
    # A thread that may be left behind, because reading a pipe may never end.
    text = await run_in_thread(lambda: _read_named_log(log_name), "log")
    exit_code = options.exit_code if options.exit_code is not None or last_start is None else last_start.exit_code
    diagnosis = diagnose_log(text, exit_code=exit_code)
    failed = None
    if starting_server is None and not has_input and (diagnosis is None or diagnosis.severity == "request"):
        failed = await _find_failed_requests(options.url)
    if failed is not None and failed.diagnosis is not None:  # the newest failure is what the user asks about
        return _make_report(failed.diagnosis, last_start, options, failed=failed)
    if diagnosis is not None and (starting_server is None or diagnosis.severity == "fatal"):
        return _make_report(diagnosis, last_start, options, error_line=diagnosis.line or find_error_line(text) or "")
    if server is not None and starting_server is None and not has_input and failed is None:
        healthy = await _check_health(server.url, log_name)
        if healthy is not None:
            return healthy
    title, error_line = (_NO_KNOWN_CAUSE, find_error_line(text)) if is_text(text) else (_NOT_A_LOG, None)
    if failed is not None:
        times = "request" if failed.count == 1 else f"{failed.count} requests"
        title = f"The last {times} that failed did so for no known cause, and the log shows none."
        error_line = failed.message or f"HTTP status {failed.status}"
    was_stopped = server is None and not has_input and last_start is not None and last_start.stopped
    if was_stopped:
        title, error_line = "No server runs. The last one was stopped, and its log shows no failure.", None
    if starting_server is not None:
        title = f"The server at {starting_server.url} is {starting_server.first.state}, and its log shows no failure."
    lines = [wrap_text(title), *([wrap_text(error_line, "  It says: ")] if error_line else [])]
    unknown = dict.fromkeys(("code", "cause", "action"))
    return Result(
        {**unknown, "title": title, "actions": [], "line": error_line, "log": log_name},
        [*lines, *_describe_source(log_name, options)],
        exit_code=0 if was_stopped else 1,
    )


async def _check_health(url: str, log: str) -> Result | None:
    """Return the result for a running server whose log and requests show no failure; None if it does not answer."""
    from launcher.app.serving.running_servers import read_running_servers

    try:
        (server,) = await read_running_servers(url)
    except ServerNotFound:  # it has ended meanwhile
        return None
    if server.state not in [state.value for state in SERVING] or server.problem:
        return None
    findings = server.entry.health
    title = f"The server at {url} {'runs, but its health checks have findings' if findings else 'is healthy'}."
    checked = f"it answers (state: {server.state}), its log shows no failure, none of its last requests failed"
    checked += "" if findings else ", and its health checks have found nothing"
    unknown = dict.fromkeys(("code", "cause", "action", "line"))
    lines = [title, wrap_text(f"{checked}.", "  Checked: "), *(wrap_text(health_line(each), "  ") for each in findings)]
    return Result(
        {**unknown, "title": title, "actions": [], "log": log, "checked": checked, "health": list(findings)},
        [*lines, f"  Read: {log}"],
    )


async def _find_failed_requests(url: str | None) -> FailureGroup | None:
    """Return the last failures among the requests to a running server; None if none failed, or no server runs."""
    from launcher.app.serving.running_servers import read_requests

    try:
        await asyncio.to_thread(registry.find_server, url)
        records = [record async for record in read_requests(url, count=_REQUESTS_READ, follow=False)]
    except LauncherError:
        return None
    return next(reversed(group_failures(records)), None)


def _make_report(
    diagnosis: Diagnosis,
    last_start: LastStart | None,
    options: argparse.Namespace,
    *,
    error_line: str = "",
    failed: FailureGroup | None = None,
) -> Result:
    """Return the result for a known cause: the cause and the suggested fixes. `failed` are requests that name it."""
    from launcher.engine.diagnosis.fix_command import command_for

    actions = (
        last_start.actions if last_start is not None and last_start.diagnosis == diagnosis.code else diagnosis.actions
    )
    start = last_start.start if last_start else None
    log = options.log or (str(last_start.log) if last_start and last_start.log else None)
    fixes = actions_json(actions, lambda action: command_for(action, start))
    lines = [wrap_text(diagnosis.title), wrap_text(diagnosis.cause, "  Why: ")]
    if diagnosis.hint:
        lines.append(wrap_text(diagnosis.hint, "  What to do: "))
    if error_line:
        lines.append(wrap_text(error_line, "  The log: "))
    if failed is not None:
        error_line = failed.message
        status = "" if failed.status is None else f" with status {failed.status}"
        lines.append(wrap_text(error_line, f"  {failed.count} failed{status}: "))
    lines += [f"  {line}" for line in format_fixes(fixes)]
    data = {
        "code": diagnosis.code,
        "title": diagnosis.title,
        "cause": diagnosis.cause,
        "action": actions[0] if actions else None,
        "actions": fixes,
        "hint": diagnosis.hint,
        "severity": diagnosis.severity,
        "other_actions": actions[1:],
        "facts": dict(diagnosis.facts),
        "line": error_line,
        "log": log,
        "failed_requests": failed.count if failed is not None else None,
    }
    return Result(data, [*lines, *_describe_source(log, options)])


def _describe_source(log: str | None, options: argparse.Namespace) -> list[str]:
    return [f"  Read: {log}"] if options.log is None and log is not None else []


def _diagnose_failed_start(last_start: LastStart, error: LauncherError) -> Diagnosis:
    """Return the error that the user saw as the diagnosis of a start whose log names no cause."""
    title = "The last start failed." if last_start.log else "The last start failed before an engine was run."
    return Diagnosis(error.code, 0, "fatal", error.code, title, error.title, error.hint, last_start.actions)


def _find_last_start(log_name: str | None, url: str | None) -> tuple[LastStart | None, ServerEntry | None]:
    """Return the start to diagnose, and its server if that runs.

    With `log_name`, the start is the last one if it wrote that log, else None. With `url` it is the start of that
    server. Without both it is the last one that started or was stopped, after a stop one that still runs, or if none is
    recorded, one that has only the newest log. Raises ServerNotFound if there is no log or no such server,
    SeveralServers if the server of the last start runs beside others.
    """
    last_start = load_last_start()
    if log_name is not None:
        wrote_log = last_start is not None and log_name != "-" and expand_user(log_name).absolute() == last_start.log
        return (last_start if wrote_log else None), None
    entry: ServerEntry | None
    if url is not None:
        entry = registry.find_server(url)
        log = log_path(entry.port)
        if last_start is None or last_start.log != log:
            last_start = LastStart(None, log)
    else:
        entry = _find_server_of_log(last_start.log if last_start else None)
        if entry is None and last_start is not None and last_start.stopped and registry.list_entries():
            entry = registry.find_server(None)  # one that was started earlier still runs
            last_start = LastStart(None, log_path(entry.port))
        if last_start is None and (files := list_log_files()):
            last_start = LastStart(None, files[0].path)
    if last_start is None:
        raise ServerNotFound("No server has run yet, so there is no log.", "Give the engine's log file.")
    return last_start, entry


def _find_server_of_log(log: Path | None) -> ServerEntry | None:
    """Return the running server that writes a log, None if there is none.

    Raises SeveralServers if it is ready and other servers run, too: the user may mean any of them.
    """
    entry = next((each for each in registry.list_entries() if log_path(each.port) == log), None)
    if entry is not None and entry.first.state not in _STARTING_STATES:
        return registry.find_server(None)
    return entry


def _read_named_log(log_name: str) -> str:
    try:
        if log_name != "-":
            return read_log(expand_user(log_name))
        with os.fdopen(0, "rb", buffering=0, closefd=False) as standard_input:
            return read_log(standard_input)
    except OSError as error:
        hint = "Give the file that `serve` names, or - to read standard input."
        raise BadOption(f"{log_name} cannot be read: {error.strerror or error}.", hint, path=log_name) from None
