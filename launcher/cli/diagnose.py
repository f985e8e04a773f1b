"""`mtp-launcher diagnose`: why an engine failed, from its log, and the command that mends it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from launcher.cli.layout import filled
from launcher.cli.output import print_json
from launcher.cli.to_do import actions_json, to_do

if TYPE_CHECKING:
    from launcher.engine.started import LastStart

_UNNAMED = "The log names no cause that is known."


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "log",
        metavar="LOGFILE",
        nargs="?",
        help="what llama-server wrote, plain or JSON lines; - for standard input (default: the last server's log)",
    )
    parser.add_argument(
        "--exit-code", type=int, metavar="N", help="how it ended, if you know: negative or 128 + N for signal N"
    )


async def run(options: argparse.Namespace) -> int:
    """Print the first cause that the log names. Exit code 1 when it names none."""
    from launcher.engine.diagnosis import diagnose, last_error
    from launcher.engine.way import way

    last = await asyncio.to_thread(_last_of, options.log)
    name = options.log if options.log is not None or last is None else str(last.log)
    text = await asyncio.to_thread(_read, name)
    exit_code = options.exit_code if options.exit_code is not None or last is None else last.exit_code
    found = diagnose(text, exit_code=exit_code)
    if found is None:
        said = last_error(text)
        if options.json:
            print_json({"code": None, "title": _UNNAMED, "cause": None, "action": None, "actions": [], "line": said})
        else:
            print(filled(_UNNAMED))
            if said:
                print(filled(said, "  It says: "))
        return 1
    actions = last.actions if last is not None and last.diagnosis == found.code else found.actions
    start = last.start if last else None
    if options.json:
        print_json(
            {
                "code": found.code,
                "title": found.title,
                "cause": found.cause,
                "action": actions[0].as_json() if actions else None,
                "actions": actions_json(actions, lambda action: way(action, start)),
                "hint": found.hint,
                "severity": found.severity,
                "other_actions": [action.as_json() for action in actions[1:]],
                "facts": dict(found.facts),
                "line": found.line,
            }
        )
        return 0
    print(filled(found.title))
    print(filled(found.cause, "  Why: "))
    print(filled(found.hint, "  What to do: "))
    if found.line:
        print(filled(found.line, "  The log: "))
    for line in to_do(actions, lambda action: way(action, start)):
        print(f"  {line}")
    return 0


def _last_of(name: str | None) -> LastStart | None:
    """Return the last start, unless the named log is another one's. Raises ServerNotFound when no log is here."""
    from launcher.base.errors import ServerNotFound
    from launcher.base.paths import expanded
    from launcher.engine.started import last_start

    last = last_start()
    if name is None:
        if last is None or not last.log.exists():
            raise ServerNotFound("No server has run yet, so there is no log.", "Name the file that the engine wrote.")
        return last
    return last if last is not None and name != "-" and expanded(name).absolute() == last.log else None


def _read(name: str) -> str:
    from launcher.base.errors import BadOption
    from launcher.base.paths import expanded
    from launcher.engine.diagnosis_log import read_log

    try:
        return read_log(sys.stdin.buffer if name == "-" else expanded(name))
    except OSError as error:
        hint = "Give the file that `serve` names, or - to read standard input."
        raise BadOption(f"{name} cannot be read: {error.strerror or error}.", hint, path=name) from None
