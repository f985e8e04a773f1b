"""Single-instance lock: one window per user. A second start passes its request to the first one and raises it.

They communicate over a socket in the state folder (a named pipe on Windows) that only this user may open. Messages
contain a token from a file that only this user may read. Where the socket is not in the state folder, its name is a
hash of the token, so that other users cannot guess it.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QDeadlineTimer, QLockFile, QObject, QThread

from launcher.base.files import make_private_folder, write_atomically
from launcher.base.kept_files import KeptFile
from launcher.base.paths import state_dir

if TYPE_CHECKING:
    from PySide6.QtNetwork import QLocalServer  # at run time it is imported late: the first window paints before that

_ANSWER_MS = 5_000
"""Time within which the first window has to answer, once it listens."""
_STARTING_S = 30.0
"""Seconds that a starting window may take on a busy computer until it answers."""
_LONGEST_REQUEST = 65_536
"""The most bytes of a request."""
_LONGEST_PATH = 100
"""The most bytes of the socket's path; the system allows 108 (unix(7))."""
_TOKEN_PATTERN = re.compile(r"[\w-]{43}", re.ASCII)


class SingleInstance(QObject):
    """The lock for the one window. `is_first` is whether this process holds it."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        folder = make_private_folder(state_dir())
        self._token = _read_token(folder / "window.token")
        self._name = _socket_name(folder, self._token)
        self._lock_file = folder / "window.lock"
        self._lock = QLockFile(str(self._lock_file))
        self._lock.setStaleLockTime(0)
        self._server: QLocalServer | None = None
        self.is_first = self._lock.tryLock(0)

    def listen(self, on_request: Callable[[Path | None, bool], None]) -> None:
        """Call `on_request` with (file or None, demo) when another start requests the window."""
        from PySide6.QtNetwork import QLocalServer

        QLocalServer.removeServer(self._name)
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(lambda: self._answer_start(on_request))
        self._server.listen(self._name)

    def raise_first_window(self, file: Path | None, *, demo: bool) -> bool:
        """Ask the first window to come to the front. Returns whether it answered."""
        from PySide6.QtNetwork import QLocalSocket

        socket = QLocalSocket()
        deadline = QDeadlineTimer(_ANSWER_MS)
        socket.connectToServer(self._name)
        while not socket.waitForConnected(_ANSWER_MS):
            if deadline.hasExpired() and not self._first_is_starting():
                return False
            QThread.msleep(20)  # the first window holds the lock and is about to listen
            socket.connectToServer(self._name)
        request = {"file": str(file) if file else None, "demo": demo, "token": self._token}
        socket.write(json.dumps(request).encode() + b"\n")
        socket.flush()
        while not socket.waitForReadyRead(_ANSWER_MS):
            connected = socket.state() is QLocalSocket.LocalSocketState.ConnectedState
            if not connected or not self._first_is_starting():
                return False
        return bytes(socket.readLine().data()) == b"raised\n"

    def _first_is_starting(self) -> bool:
        """Return whether the lock file is so new that the first window may still be starting."""
        with suppress(OSError):
            return time.time() - self._lock_file.stat().st_mtime < _STARTING_S
        return False

    def _answer_start(self, on_request: Callable[[Path | None, bool], None]) -> None:
        import hmac  # imported late, as hashlib below

        socket = self._server.nextPendingConnection() if self._server else None
        if socket is None:
            return

        def read_request() -> None:
            if not socket.canReadLine():
                if socket.bytesAvailable() > _LONGEST_REQUEST:
                    socket.abort()
                return
            try:
                request = json.loads(bytes(socket.readLine().data()))
                file, demo, token = request["file"], bool(request["demo"]), str(request["token"])
            except (ValueError, KeyError, TypeError, RecursionError):
                socket.abort()
                return
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                socket.abort()
                return
            on_request(Path(file) if file else None, demo)
            socket.write(b"raised\n")
            socket.disconnectFromServer()

        socket.readyRead.connect(read_request)
        socket.disconnected.connect(socket.deleteLater)
        read_request()


def _read_token(path: Path) -> str:
    """Return the token that this user's windows share. The first start creates it."""
    lock = QLockFile(f"{path}.lock")
    lock.lock()
    try:
        with suppress(OSError):
            if stored := _TOKEN_FILE.load(path):
                return stored
        import secrets  # imported late, as hashlib below: only the first start makes a secret

        token = secrets.token_urlsafe(32)
        write_atomically(path, token.encode())
        return token
    finally:
        lock.unlock()


def _parse_token(data: bytes) -> str:
    token = data.decode("ascii")
    if not _TOKEN_PATTERN.fullmatch(token):
        raise ValueError("it holds no secret")
    return token


_TOKEN_FILE: KeptFile[str | None] = KeptFile(
    "The secret of this user's windows", _parse_token, lambda: None, private=True
)


def _socket_name(folder: Path, token: str) -> str:
    """Return a path in `folder`, or an unguessable name on Windows and where the path would be too long."""
    path = folder / "window.socket"
    if sys.platform != "win32" and len(os.fsencode(path)) < _LONGEST_PATH:
        return str(path)
    import hashlib  # imported late: it loads OpenSSL, and most folders do without

    return "mtp-launcher-" + hashlib.sha256(f"{folder}\0{token}".encode()).hexdigest()[:32]
