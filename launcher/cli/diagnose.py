"""`mtp-launcher diagnose`: why an engine failed, from its log."""

import argparse
import asyncio
import sys

from launcher.cli.layout import filled
from launcher.cli.output import print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "log", metavar="LOGFILE", help="what llama-server wrote, plain or JSON lines; - for standard input"
    )
    parser.add_argument(
        "--exit-code", type=int, metavar="N", help="how it ended, if you know: negative or 128 + N for signal N"
    )


async def run(options: argparse.Namespace) -> int:
    """Print the first cause that the log names. Exit code 1 when it names none."""
    from launcher.engine.diagnosis import diagnose, last_error

    text = await asyncio.to_thread(_read, options.log)
    found = diagnose(text, exit_code=options.exit_code)
    if found is None:
        said = last_error(text)
        if options.json:
            print_json({"code": None, "title": "The log names no cause that is known.", "line": said})
        else:
            print(filled("The log names no cause that is known."))
            if said:
                print(filled(said, "  It says: "))
        return 1
    if options.json:
        print_json(
            {
                "code": found.code,
                "title": found.title,
                "cause": found.cause,
                "action": found.action.as_json(),
                "hint": found.hint,
                "severity": found.severity,
                "other_actions": [action.as_json() for action in found.actions[1:]],
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
    return 0


def _read(name: str) -> str:
    from launcher.base.errors import BadOption
    from launcher.base.paths import expanded
    from launcher.engine.diagnosis_log import read_log

    try:
        return read_log(sys.stdin.buffer if name == "-" else expanded(name))
    except OSError as error:
        hint = "Give the file that `serve` names, or - to read standard input."
        raise BadOption(f"{name} cannot be read: {error.strerror or error}.", hint, path=name) from None
