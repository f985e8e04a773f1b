"""What every verb prints in the same way: JSON, errors, figures."""

import argparse
import json
import math
import sys
from typing import Any

from launcher.base.errors import LauncherError
from launcher.base.text import escaped_json, one_line

_MOST = 2_000
"""Characters of an error's sentence: it may quote what a server or a file says."""


def print_json(data: Any) -> None:  # noqa: ANN401 -- any JSON value
    """Print one JSON value on one line of stdout."""
    print(escaped_json(json.dumps(data, ensure_ascii=False, default=str)), flush=True)


def print_error(error: LauncherError, *, as_json: bool) -> None:
    """Print an error: a sentence and the next step on stderr, or one JSON object on stdout."""
    if as_json:
        facts = dict(error.facts)
        print_json({"error": {"code": error.code, "message": error.title, "hint": error.hint, "facts": facts}})
        return
    print(f"Error: {one_line(error.title, _MOST)}", file=sys.stderr)
    if error.hint:
        print(f"       {one_line(error.hint, _MOST)}", file=sys.stderr)


def take_extra(parser: argparse.ArgumentParser) -> None:
    """Declare that the verb takes arguments of the user's own for the engine, behind `--`."""
    parser.set_defaults(extra=[])
    parser.epilog = "What follows -- goes to llama-server as it is, after all other arguments."


def rounded(value: float | None, digits: int = 1) -> float | None:
    """Round a figure for --json; unknown stays None."""
    return None if value is None else round(value, digits)


def finite(text: str) -> float:
    """Read a number for argparse; not a number and infinity are none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f'"{text}" is not a number')
    return value


def duration(text: str) -> float:
    """Read a number of seconds for argparse."""
    value = finite(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than nothing")
    return value


def count(text: str) -> int:
    """Read a number of things for argparse, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number, 0 or more")
    return int(text)
