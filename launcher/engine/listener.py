"""Whose port it is, so that a key goes to no other program than the engine that it opens."""

import sys

import psutil

from launcher.base.errors import NotOurEngine, PortBusy, Unreachable
from launcher.base.identity import ProcessId
from launcher.engine.endpoint import is_free
from launcher.engine.registry import Entry


def listens(pid: int, port: int) -> bool | None:
    """Return whether a process, or one that it started, listens on a TCP port; None when the system does not tell."""
    try:
        process = psutil.Process(pid)
        if _listens(process, port) or any(_listens(child, port) for child in process.children(recursive=True)):
            return True
        return None if sys.platform == "win32" and _has_no_owner(port) else False
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return None


def _listens(process: psutil.Process, port: int) -> bool:
    return any(
        each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in process.net_connections(kind="tcp")
    )


def _has_no_owner(port: int) -> bool:
    """Whether the system knows that a port is listened at, but not by whom; so does wine for each of them."""
    listeners = (each for each in psutil.net_connections(kind="tcp") if each.status == psutil.CONN_LISTEN)
    return any(each.pid == 0 and each.laddr and each.laddr.port == port for each in listeners)


def check_port(engine_pid: int, port: int) -> None:
    """Raise PortBusy when an engine is said to answer at a port, but another program does: it would get the key."""
    if listens(engine_pid, port) is False:
        raise PortBusy(
            f"Another program took port {port} before the engine did.",
            "Choose another one with --port, or leave --port out.",
            port=port,
        )


def key_of(entry: Entry) -> str:
    """Return the key of a registered server, to be sent to it at once.

    Raises NotOurEngine when another program has its port, Unreachable when none has.
    """
    engine = (
        ProcessId(entry.engine_pid, entry.engine_created_s) if entry.engine_pid and entry.engine_created_s else None
    )
    if engine is not None and engine.running() and listens(engine.pid, entry.port) is not False:
        return entry.api_key
    if is_free(entry.port):
        raise Unreachable(f"Nothing answers at {entry.url} now.", "See `mtp-launcher status`, and try again.")
    raise NotOurEngine(
        f"Another program has taken port {entry.port}: the engine of {entry.url} does not listen there.",
        "Nothing was sent to it, no key either. Stop the server and start it again: it takes another port.",
        port=entry.port,
    )
