"""Starts the scripted server of tests/fakes/agent_server.py."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = Path(__file__).parent.parent / "fakes" / "agent_server.py"


@contextmanager
def scripted_server(*faults: str, context: int = 131_072) -> Iterator[str]:
    """Run the server within the block; its address."""
    environment = os.environ | {"AGENT_FAULTS": ",".join(faults), "AGENT_CONTEXT": str(context)}
    command = [sys.executable, str(PROGRAM)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
