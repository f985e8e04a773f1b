"""Starts the scripted server of tests/fakes/agent_server.py."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = Path(__file__).parent.parent / "fakes" / "agent_server.py"


@contextmanager
def scripted_server(*options: str) -> Iterator[str]:
    """Run the server within the block; its address."""
    with subprocess.Popen([sys.executable, str(_PROGRAM), *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
