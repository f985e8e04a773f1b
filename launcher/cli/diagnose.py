"""`mtp-launcher diagnose`: find the cause of an engine failure in its log, and the command that fixes it."""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import TYPE_CHECKING

from launcher.cli.layout import wrap_text
from launcher.cli.output import print_json
from launcher.cli.to_do import actions_json, fix_lines

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.base.errors import LauncherError
    from launcher.engine.diagnosis.explain import Diagnosis
    from launcher.engine.server.registry import Entry
    from launcher.engine.server.started import LastStart

_UNNAMED = "The log names no cause that is known."
_NO_TEXT = "This is no log: it is not a text."
_BEGINNING = ("preparing", "loading", "warming up")
_EXIT_CODES = range(-(2**31), 2**32)
"""Exit codes of Windows have 32 bits and are written with or without a sign."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "log",
        metavar="LOGFILE",
        nargs="?",
        help="what llama-server wrote, plain or JSON lines; - for standard input (default: the last start's log)",
    )
    which.add_argument("--url", help="the log of the server at this address")
    parser.add_argument(
        "--exit-code", type=_exit_code, metavar="N", help="how it ended, if you know: negative or 128 + N for signal N"
    )


def _exit_code(text: str) -> int:
    try:
        code = int(text)
    except ValueError:
        code = _EXIT_CODES.stop
    if code not in _EXIT_CODES:
        raise argparse.ArgumentTypeError(f"{text} is not an exit code, such as 1, 137 or -11")
    return code


async def run(options: argparse.Namespace) -> int:
    """Print the first known cause in the log, or the error of a failed start. Exit code 1 if no cause is known."""
    from launcher.base.threads import run_in_thread
    from launcher.engine.diagnosis.explain import diagnose_log, last_error
    from launcher.engine.diagnosis.log_reading import is_text

    last, begins = await asyncio.to_thread(_last_of, options.log, options.url)
    asked = options.log is not None or options.exit_code is not None
    if last is not None and last.why is not None and not last.explained_by_log and not asked:
        _print(_untold(last, last.why), last, options)
        return 0
    name = options.log if options.log is not None or last is None else str(last.log)
    text = await run_in_thread(lambda: _read(name), "log")  # in a thread, because reading a pipe may never end
    exit_code = options.exit_code if options.exit_code is not None or last is None else last.exit_code
    found = diagnose_log(text, exit_code=exit_code)
    if found is None or (begins is not None and found.severity != "fatal"):
        title, said = (_UNNAMED, last_error(text)) if is_text(text) else (_NO_TEXT, None)
        if begins is not None:
            title = f"The server at {begins.url} is {begins.state}, and nothing in its log says that it fails."
        if options.json:
            unknown = dict.fromkeys(("code", "cause", "action"))
            print_json({**unknown, "title": title, "actions": [], "line": said, "log": name})
        else:
            print(wrap_text(title))
            if said:
                print(wrap_text(said, "  It says: "))
            _print_source(name, options)
        return 1
    _print(found, last, options, said=found.line or last_error(text) or "")
    return 0


def _print(found: Diagnosis, last: LastStart | None, options: argparse.Namespace, *, said: str = "") -> None:
    """Print a cause and the suggested fixes."""
    from launcher.engine.diagnosis.fix_command import command_for

    actions = last.actions if last is not None and last.diagnosis == found.code else found.actions
    start = last.start if last else None
    log = options.log or (str(last.log) if last and last.log else None)
    if options.json:
        print_json(
            {
                "code": found.code,
                "title": found.title,
                "cause": found.cause,
                "action": actions[0].as_json() if actions else None,
                "actions": actions_json(actions, lambda action: command_for(action, start)),
                "hint": found.hint,
                "severity": found.severity,
                "other_actions": [action.as_json() for action in actions[1:]],
                "facts": dict(found.facts),
                "line": said,
                "log": log,
            }
        )
        return
    print(wrap_text(found.title))
    print(wrap_text(found.cause, "  Why: "))
    if found.hint:
        print(wrap_text(found.hint, "  What to do: "))
    if said:
        print(wrap_text(said, "  The log: "))
    for line in fix_lines(actions, lambda action: command_for(action, start)):
        print(f"  {line}")
    _print_source(log, options)


def _print_source(log: str | None, options: argparse.Namespace) -> None:
    if options.log is None and log is not None:
        print(f"  Read: {log}")


def _untold(last: LastStart, why: LauncherError) -> Diagnosis:
    """Return the diagnosis of a start whose log names no cause, from the error that its user saw."""
    from launcher.engine.diagnosis.explain import Diagnosis

    title = "The last start failed." if last.log else "The last start failed before an engine was run."
    return Diagnosis(why.code, 0, "fatal", why.code, title, why.title, why.hint, last.actions)


def _last_of(name: str | None, url: str | None) -> tuple[LastStart | None, Entry | None]:
    """Return the last start, unless another file is named, and its server while that is starting.

    Without a name or an address it is the last attempted start, or if that is unknown, the newest log. Raises
    ServerNotFound if there is no log, or nothing runs at the address, and SeveralServers if the last start is serving
    beside others.
    """
    from launcher.base.errors import ServerNotFound
    from launcher.base.paths import expand_user
    from launcher.engine.server import registry
    from launcher.engine.server.logs import list_log_files, log_path
    from launcher.engine.server.started import LastStart, load_last_start

    last = load_last_start()
    if name is not None:
        own = last is not None and name != "-" and expand_user(name).absolute() == last.log
        return (last if own else None), None
    entry = registry.find_server(url) if url is not None else _server_of(last.log if last else None)
    if url is not None and entry is not None:
        log = log_path(entry.port)
        last = last if last is not None and last.log == log else LastStart(None, log)
    elif last is None and (files := list_log_files()):
        last = LastStart(None, files[0].path)
    if last is None:
        raise ServerNotFound("No server has run yet, so there is no log.", "Name the file that the engine wrote.")
    return last, entry if entry is not None and entry.state in _BEGINNING else None


def _server_of(log: Path | None) -> Entry | None:
    """Return the running server that writes a log. Raises SeveralServers if it serves beside others."""
    from launcher.engine.server import registry
    from launcher.engine.server.logs import log_path

    entry = next((each for each in registry.list_running() if log_path(each.port) == log), None)
    return registry.find_server(None) if entry is not None and entry.state not in _BEGINNING else entry


def _read(name: str) -> str:
    from launcher.base.errors import BadOption
    from launcher.base.paths import expand_user
    from launcher.engine.diagnosis.log_reading import read_log

    try:
        if name != "-":
            return read_log(expand_user(name))
        with os.fdopen(0, "rb", buffering=0, closefd=False) as standard_input:
            return read_log(standard_input)
    except OSError as error:
        hint = "Give the file that `serve` names, or - to read standard input."
        raise BadOption(f"{name} cannot be read: {error.strerror or error}.", hint, path=name) from None
