"""The log files that lie here: of the servers that run, and of earlier ones."""

import re
from dataclasses import dataclass
from pathlib import Path

from launcher.engine.logs import logs_dir

_NAME = re.compile(r"engine-(\d+)\.log(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file: the port of its server, and how many files came after it (0 is the newest of that port).

    `modified_s` counts from the epoch.
    """

    path: Path
    port: int
    age: int
    bytes: int
    modified_s: float


def log_files() -> tuple[LogFile, ...]:
    """Return the engines' log files, the newest first; none where the folder cannot be read."""
    found = []
    try:
        for path in logs_dir().iterdir():
            if named := _NAME.fullmatch(path.name):
                status = path.stat()
                found.append(LogFile(path, int(named[1]), int(named[2] or 0), status.st_size, status.st_mtime))
    except OSError:
        return tuple(found)
    return tuple(sorted(found, key=lambda each: (-each.modified_s, each.port, each.age)))
