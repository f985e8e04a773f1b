"""Engines that an earlier run left: its program was killed, and the keeper with it."""

import hashlib
import logging
from contextlib import suppress

import psutil

from launcher.base.identity import ProcessId

_PATIENCE_S = 0.5
_log = logging.getLogger(__name__)


def command_hash(pid: int) -> str | None:
    """Return a hash of a process's command line, None where that cannot be read."""
    try:
        return hashlib.sha256("\0".join(psutil.Process(pid).cmdline()).encode("utf-8", "replace")).hexdigest()
    except (psutil.Error, OSError):
        return None


def end_left_over(engine: ProcessId, port: int, expected_hash: str | None) -> bool:
    """End an engine that nobody looks after any more, with what it started; return whether there was one.

    It is only ended when it is that very process: its pid, the time it was created, and its command line, which names
    the port, must be those that were noted. It is not taken over: nobody holds its output and its input any more.
    """
    if not engine.running():
        return False
    try:
        process = psutil.Process(engine.pid)
        words = process.cmdline()
        if str(port) not in words or expected_hash not in (None, command_hash(engine.pid)):
            return False
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return False
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for each in family:
            with suppress(psutil.Error):
                end(each)
        _, family = psutil.wait_procs(family, timeout=_PATIENCE_S)
        if not family:
            break
    _log.warning(
        "An earlier run was killed and had left its engine (process %d, port %d): it was ended.", engine.pid, port
    )
    return True
