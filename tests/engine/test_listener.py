"""Whether a process listens on a port, also if the system reports no owners of connections, as under wine."""

import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from launcher.engine.server import listener


def test_on_windows_a_listener_is_unknown_only_if_the_system_names_no_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        assert listener.is_listening(os.getpid(), port) is True
        table = [each._replace(pid=0) for each in psutil.net_connections(kind="tcp")]
        monkeypatch.setattr(psutil.Process, "net_connections", lambda *_, **__: [])
        assert listener.is_listening(os.getpid(), port) is False
        monkeypatch.setattr(listener, "sys", SimpleNamespace(platform="win32"))
        assert listener.is_listening(os.getpid(), port) is False
        monkeypatch.setattr(psutil, "net_connections", lambda **_: table)
        assert listener.is_listening(os.getpid(), port) is None


def test_an_unreadable_table_of_connections_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_list(*_: object, **__: object) -> list[object]:
        raise RuntimeError("GetExtendedTcpTable failed")  # psutil raises this under load

    monkeypatch.setattr(psutil.Process, "net_connections", fail_to_list)
    with socket.create_server(("127.0.0.1", 0)) as ours:
        assert listener.is_listening(os.getpid(), ours.getsockname()[1]) is None
