"""Prints results and errors of verbs, as text or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from launcher.base.codec import to_json
from launcher.base.errors import LauncherError
from launcher.base.text import escape_json, one_line

_MAX_MESSAGE = 2_000
"""Characters of an error message, which may quote a server or a file."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a verb: a JSON value, and the same as lines. A generator of lines runs only if they are printed."""

    data: Any
    lines: Iterable[str] = ()
    exit_code: int = 0


class Note(str):
    """A line for stderr; other lines of a result go to stdout."""

    __slots__ = ()


def print_result(result: Result, *, as_json: bool) -> int:
    """Print a result and return its exit code."""
    if as_json:
        print_json(result.data)
        return result.exit_code
    for line in result.lines:
        print(line, file=sys.stderr if isinstance(line, Note) else sys.stdout)
    sys.stdout.flush()
    return result.exit_code


def print_json(data: Any) -> None:  # noqa: ANN401 -- any JSON value
    """Print a JSON value on one line of stdout."""
    print(escape_json(json.dumps(data, ensure_ascii=False, default=_convert_value)), flush=True)


def _convert_value(value: object) -> object:
    try:
        return to_json(value)
    except TypeError:
        return str(value)  # facts of an error may be anything


def print_error(error: LauncherError, *, as_json: bool) -> None:
    """Print an error: its title and hint on stderr, or one JSON object on stdout."""
    if as_json:
        print_json({"error": {**to_json(error), "facts": dict(error.facts)}})
        return
    print(f"Error: {one_line(error.title, _MAX_MESSAGE)}", file=sys.stderr)
    if error.hint:
        print(f"       {one_line(error.hint, _MAX_MESSAGE)}", file=sys.stderr)


def add_extra_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare that the verb accepts arguments for the engine after `--`."""
    parser.set_defaults(extra=[])
    parser.epilog = "What follows -- goes to llama-server as it is, after all other arguments."


def round_figure(value: float | None, digits: int = 1) -> float | None:
    """Round a number for --json; None stays None."""
    return None if value is None else round(value, digits)
