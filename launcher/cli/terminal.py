"""What is printed to a terminal: whatever text comes from elsewhere, the terminal shows it and obeys nothing of it."""

import io
import sys

from launcher.base.text import visible


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


def guard() -> None:
    """Put a Terminal in the place of standard output and error, where these are one.

    Files and pipes get what is printed as it is: an exported script must name a file exactly.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            encoding, errors = stream.encoding, stream.errors or "replace"
            setattr(sys, name, Terminal(stream.detach(), encoding, errors, line_buffering=True))
