"""The terminal that `mtp-launcher code` shares with the agent."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.cli.layout import wrap_text
from launcher.cli.progress import StateLine
from launcher.engine.server.state import Notice, ServerEvent, ServerStatus


class SharedTerminal:
    """Prints a server's states and notices, but not while the agent has the terminal, because a line would disturb its
    screen.

    What has gone wrong meanwhile is printed when the agent has ended.
    """

    def __init__(self) -> None:
        self._line = StateLine()
        self._held: list[str] | None = None

    def show_event(self, event: ServerEvent) -> None:
        """Print an event of the supervisor, or keep it if it tells of a problem."""
        held = self._held
        if held is None:
            self._line.show_event(event)
        elif isinstance(event, Notice):
            held.append(f"{time.strftime('%H:%M')} {event.text}")
        elif isinstance(event, ServerStatus) and event.error is not None:
            held.append(f"{time.strftime('%H:%M')} {event.error}")

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Leave the terminal to the agent within the block."""
        self._held = []
        try:
            yield
        finally:
            held, self._held = self._held, None
            for text in dict.fromkeys(held):
                print(wrap_text(text), file=sys.stderr, flush=True)
