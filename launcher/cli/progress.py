"""A server's states as they pass, on stderr."""

import sys

from launcher.base.text import one_line
from launcher.cli.terminal import rewrite
from launcher.engine.state import Event, Notice, State, Status

_WORDS = {
    State.PREPARING: "Preparing",
    State.LOADING: "Loading the model",
    State.WARMING_UP: "Warming up",
    State.READY: "Ready",
    State.DRAINING: "Ending what was begun",
    State.RESTARTING: "Restarting",
    State.STOPPING: "Stopping",
    State.STOPPED: "Stopped",
}


class StateLine:
    """Prints each state once; on a terminal the percentage moves in place."""

    def __init__(self) -> None:
        self._last: State | None = None
        self._moves = sys.stderr.isatty()

    def show(self, event: Event) -> None:
        """Take in an event of the supervisor."""
        if isinstance(event, Notice):
            self._last = None
            sys.stderr.write(f"{one_line(event.text, 2_000)}\n")
            sys.stderr.flush()
        if not isinstance(event, Status) or event.state not in _WORDS:
            return
        if event.state is self._last:
            if self._moves and event.percent is not None:
                rewrite(f"{_WORDS[event.state]} {event.percent:.0f} %")
            return
        self._last = event.state
        line = f"{_WORDS[event.state]:<24}\n"
        if self._moves:
            rewrite(line)
        else:
            sys.stderr.write(line)
            sys.stderr.flush()
