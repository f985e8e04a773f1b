"""What is printed to a terminal: whatever text comes from elsewhere, the terminal shows it and obeys nothing of it."""

import io
import sys

from launcher.base.text import one_line, visible


class Terminal(io.TextIOWrapper):
    """A stream to a terminal that makes control characters visible."""

    def write(self, text: str, /) -> int:
        """Write text; see launcher.base.text.visible."""
        super().write(visible(text))
        return len(text)

    def rewrite(self, text: str) -> None:
        """Write text over the line that stands there."""
        super().write(f"\r{visible(text)}")


def rewrite(text: str) -> None:
    """Write text over the line that stands on standard error, a terminal."""
    if isinstance(sys.stderr, Terminal):
        sys.stderr.rewrite(text)
    else:
        sys.stderr.write(f"\r{text}")
    sys.stderr.flush()


class InPlace:
    """A line on standard error that is written over again and again; none where that is no terminal, or `quiet`."""

    def __init__(self, *, quiet: bool) -> None:
        self._shows = not quiet and sys.stderr.isatty()
        self._shown = 0

    def show(self, text: str) -> None:
        """Write text over what stands there, as much of it as a line holds."""
        if self._shows:
            line = one_line(text, 78)
            rewrite(line.ljust(self._shown))
            self._shown = len(line)

    def clear(self) -> None:
        """Leave an empty line."""
        if self._shown:
            rewrite(" " * self._shown)
            rewrite("")
            self._shown = 0


def guard() -> None:
    """Put a Terminal in the place of standard output and error, where these are one.

    Files and pipes get what is printed as it is: an exported script must name a file exactly.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            encoding, errors = stream.encoding, stream.errors or "replace"
            setattr(sys, name, Terminal(stream.detach(), encoding, errors, line_buffering=True))
