"""Suggested fixes for a failure, with their commands, as text and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line

if TYPE_CHECKING:
    from launcher.base.action import Action
    from launcher.base.errors import LauncherError
    from launcher.engine.diagnosis.fix_command import FixCommand

_SHOWN = 3
_MOST = 2_000
Ways = Callable[["Action"], "FixCommand"]


def actions_json(actions: Iterable[Action], ways: Ways) -> list[dict[str, Any]]:
    """Return suggested fixes as JSON; `command` is None if there is none to type."""
    return [each.as_json() | {"command": ways(each).command, "link": ways(each).link} for each in actions]


def fix_lines(actions: Iterable[Action], ways: Ways) -> Iterator[str]:
    """Yield lines for the first fixes: the label, and below it the command or the link.

    Fixes with neither are covered by the error's hint.
    """
    found = ((action, ways(action)) for action in actions)
    offered = ((action, how) for action, way in found if (how := way.command or way.link))
    for number, (action, how) in enumerate(islice(offered, _SHOWN)):
        yield f"{'To do' if number == 0 else 'Or'}: {one_line(action.label, _MOST)}"
        yield f"  {how}"


def print_failure(error: LauncherError, ways: Ways, *, as_json: bool) -> None:
    """Print a server's failure and the suggested fixes: lines on stderr, or one JSON object on stdout."""
    from launcher.cli.output import print_error, print_json

    if as_json:
        told = {"code": error.code, "message": error.title, "hint": error.hint, "facts": dict(error.facts)}
        print_json({"error": told | {"actions": actions_json(error.actions, ways)}})
        return
    print_error(error, as_json=False)
    if line := error.facts.get("line"):
        print(f"       The log: {one_line(str(line), _MOST)}", file=sys.stderr)
    for text in fix_lines(error.actions, ways):
        print(f"       {text}", file=sys.stderr)
