"""The folders of the store: one is prepared aside and gets its name when it is whole, and goes in one step."""

import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from launcher.base.errors import EngineBusy
from launcher.base.files import private_folder
from launcher.base.paths import data_dir

_READERS_S = 2.0
"""How long a virus scanner may hold what is new (Windows)."""


def store_dir() -> Path:
    """Return the folder of the store."""
    return data_dir() / "engines"


def name_of(program: Path) -> str | None:
    """Return the name of the installed engine that a program belongs to, or None."""
    return program.parent.name if program.parent.parent == store_dir() else None


@contextmanager
def installing() -> Iterator[Path]:
    """Give a new folder inside the store to prepare an engine in; only one program at a time has one.

    What earlier installations and removals left behind is cleared away. Raises EngineBusy.
    """
    private_folder(store_dir())  # whoever could write there could exchange what is run
    lock = FileLock(store_dir() / "install.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise EngineBusy("Another program is installing an engine.", "Wait until it is done.") from None
    try:
        for left in (*store_dir().glob(".new-*"), *store_dir().glob(".old-*")):
            shutil.rmtree(left, ignore_errors=True)
        folder = store_dir() / f".new-{secrets.token_hex(4)}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        lock.release()


def discard(folder: Path) -> None:
    """Remove a folder of the store in one step. Raises EngineBusy when a program has it open (Windows)."""
    trash = store_dir() / f".old-{secrets.token_hex(4)}"
    try:
        move(folder, trash)
    except PermissionError:
        raise EngineBusy(f"{folder.name} is being used, so it stays.", "End the programs that use it.") from None
    shutil.rmtree(trash, ignore_errors=True)  # what is left of it is cleared away by the next installation


def move(folder: Path, target: Path) -> None:
    """Give a folder of the store another name there."""
    deadline_s = time.monotonic() + _READERS_S
    while sys.platform == "win32":  # a virus scanner reads what is new, and an open file holds its folder
        try:
            folder.rename(target)
            return
        except PermissionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
    folder.rename(target)
