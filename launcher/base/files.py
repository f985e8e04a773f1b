"""Files written whole or not at all."""

import os
import sys
import tempfile
import time
from pathlib import Path

_READERS_S = 1.0
"""How long a reader may keep a file of ours from being replaced (Windows)."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write `data` beside `path`, flush it to disk and rename it over `path`; readers see the old or the new.

    Raises OSError, and then leaves `path` as it was and nothing beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(mode)
        replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def replace(draft: Path, path: Path) -> None:
    """Rename `draft` to `path`, over what is there. Raises OSError."""
    deadline_s = time.monotonic() + _READERS_S
    while sys.platform == "win32":  # an open file cannot be replaced there: wait for its reader to finish
        try:
            draft.replace(path)
            return
        except PermissionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.005)
    draft.replace(path)
