"""Suggested fixes for a failure, with their commands, as text and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from launcher.base.codec import to_json
from launcher.base.text import one_line
from launcher.cli.output import print_error, print_json

if TYPE_CHECKING:
    from launcher.base.action import Action
    from launcher.base.errors import LauncherError
    from launcher.engine.diagnosis.fix_command import FixCommand

_MAX_FIXES = 3
_MAX_CHARACTERS = 2_000


def actions_json(actions: Iterable[Action], command_for: Callable[[Action], FixCommand]) -> list[dict[str, Any]]:
    """Return suggested fixes as JSON; `command` is None if there is none to type."""
    fixes = [(action, command_for(action)) for action in actions]
    return [to_json(action) | {"command": fix.command, "link": fix.link} for action, fix in fixes]


def format_fixes(actions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines for the first fixes: the label, and below it the command or the link.

    A fix with neither is left out, because the error's hint says the same. But a fix whose `set` is empty is shown: the
    server runs with these settings already.
    """
    offered = (each for each in actions if each["command"] or each.get("link") or each.get("set") == {})
    for number, action in enumerate(islice(offered, _MAX_FIXES)):
        applied = " (the server runs this way already)" if action.get("set") == {} else ""
        yield f"{'Or' if number else 'To do'}: {one_line(str(action['label']), _MAX_CHARACTERS)}{applied}"
        if command := action["command"] or action.get("link"):
            yield f"  {command}"


def print_failure(error: LauncherError, actions: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print a server's failure and the suggested fixes: lines on stderr, or one JSON object on stdout."""
    if as_json:
        print_json({"error": {**to_json(error), "facts": dict(error.facts), "actions": actions}})
        return
    print_error(error, as_json=False)
    if line := error.facts.get("line"):
        print(f"       The log: {one_line(str(line), _MAX_CHARACTERS)}", file=sys.stderr)
    for text in format_fixes(actions):
        print(f"       {text}", file=sys.stderr)
