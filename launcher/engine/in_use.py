"""Which running server has a model file open, so that it is not deleted under it."""

from collections.abc import Iterable
from pathlib import Path

import psutil

from launcher.engine import registry
from launcher.engine.registry import Entry


def server_using(paths: Iterable[Path]) -> Entry | None:
    """Return the first running server of ours whose engine was started with one of `paths`, or None."""
    wanted = {str(path.absolute()) for path in paths}
    for entry in registry.running():
        for pid in filter(None, (entry.engine_pid, entry.pid)):
            try:
                process = psutil.Process(pid)
                words = {word for each in (process, *process.children(recursive=True)) for word in each.cmdline()}
            except psutil.Error:
                continue
            if wanted & words:
                return entry
    return None
