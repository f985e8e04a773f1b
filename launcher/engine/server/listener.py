"""Check of the process that listens on a port, so that an API key is sent only to the engine it belongs to."""

import sys

import psutil

from launcher.base.errors import NotOurEngine, PortBusy, Unreachable
from launcher.base.messages import command_name, message
from launcher.engine.server.endpoint import OTHER_PORT, is_port_free
from launcher.engine.server.registry import ServerEntry


def is_listening(pid: int, port: int) -> bool | None:
    """Return whether a process or one of its children listens on a TCP port; None if the system does not report it."""
    try:
        process = psutil.Process(pid)
        if _process_listens(process, port) or any(
            _process_listens(child, port) for child in process.children(recursive=True)
        ):
            return True
        return None if sys.platform == "win32" and _has_no_owner(port) else False
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, RuntimeError):  # RuntimeError: Windows could not list the connections just then
        return None


def _process_listens(process: psutil.Process, port: int) -> bool:
    connections = process.net_connections(kind="tcp")
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections)


def _has_no_owner(port: int) -> bool:
    """Return whether a port has a listener without a known process, as Wine reports for every port."""
    listeners = (each for each in psutil.net_connections(kind="tcp") if each.status == psutil.CONN_LISTEN)
    return any(each.pid == 0 and each.laddr and each.laddr.port == port for each in listeners)


def check_port_owner(engine_pid: int, port: int) -> None:
    """Check that the engine itself listens on its port.

    Raises PortBusy if another program does, because that program would get the API key.
    """
    if is_listening(engine_pid, port) is False:
        raise PortBusy(
            message("Another program took port {port} before the engine did.", port=port),
            OTHER_PORT,
            port=port,
        )


def verified_api_key(entry: ServerEntry) -> str:
    """Return the API key of a registered server after checking who listens on its port. Use it at once.

    Raises NotOurEngine if another program listens on the port, Unreachable if none does.
    """
    behind_gateway = entry.first.engine_port not in (None, entry.port)
    if behind_gateway and entry.launcher.is_running() and is_listening(entry.pid, entry.port) is not False:
        return entry.api_key
    engine = entry.first.engine_process
    if engine is not None and engine.is_running() and is_listening(engine.pid, entry.port) is not False:
        return entry.api_key
    if is_port_free(entry.port):
        raise Unreachable(
            message("No server responds at {url}.", url=entry.url),
            message("[See {command}, and ]try again.", command=command_name("status")),
        )
    raise NotOurEngine(
        message(
            "Another program uses port {port}, so the engine of {url} is not listening there.",
            port=entry.port,
            url=entry.url,
        ),
        message("No data and no API key were sent to it. Stop the server and start it again to use another port."),
        port=entry.port,
    )
