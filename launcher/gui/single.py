"""One window per user: a second start hands over what it was asked and raises the first.

They talk over a socket in the state folder, or a pipe of Windows, that only this user may use; its name, where others
can see such names, and what is said hold a secret that only files of this user have.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from PySide6.QtCore import QDeadlineTimer, QLockFile, QObject, QThread
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from launcher.base.files import private_folder, read_private, write_atomically
from launcher.base.paths import state_dir

_ANSWER_MS = 5_000
_STARTING_S = 30.0
"""So long may a window take, on a busy computer, from its start until it answers."""
_MOST_BYTES = 65_536
_LONGEST_PATH = 100
"""Of the 108 bytes that the address of a socket takes (unix(7))."""
_SECRET = re.compile(r"[\w-]{43}", re.ASCII)


class SingleInstance(QObject):
    """The right to be the one window. `first` says whether this process has it."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        folder = private_folder(state_dir())
        self._token = _token(folder / "window.token")
        self._name = _name(folder, self._token)
        self._lock_file = folder / "window.lock"
        self._lock = QLockFile(str(self._lock_file))
        self._lock.setStaleLockTime(0)
        self._server: QLocalServer | None = None
        self._tell: Callable[[Path | None, bool], None] = lambda _file, _demo: None
        self.first = self._lock.tryLock(0)

    def listen(self) -> None:
        """Hear other starts from now on; they are answered once `tell` says how."""
        QLocalServer.removeServer(self._name)
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.listen(self._name)

    def tell(self, asked: Callable[[Path | None, bool], None]) -> None:
        """Call `asked` when another start asks for the window, with its file, if any, and whether it is the demo."""
        self._tell = asked
        if self._server is not None:
            self._server.newConnection.connect(self._answer)
            while self._server.hasPendingConnections():
                self._answer()

    def raise_first(self, file: Path | None, *, demo: bool) -> bool:
        """Ask the first window to come to the front; return whether it did."""
        socket = QLocalSocket()
        deadline = QDeadlineTimer(_ANSWER_MS)
        socket.connectToServer(self._name)
        while not socket.waitForConnected(_ANSWER_MS):
            if deadline.hasExpired():
                return False
            QThread.msleep(20)  # it has the lock and is about to listen
            socket.connectToServer(self._name)
        asked = {"file": str(file) if file else None, "demo": demo, "token": self._token}
        socket.write(json.dumps(asked).encode() + b"\n")
        socket.flush()
        while not socket.waitForReadyRead(_ANSWER_MS):
            gone = socket.state() is not QLocalSocket.LocalSocketState.ConnectedState
            if gone or not self._first_is_starting():
                return False
        return bytes(socket.readLine().data()) == b"raised\n"

    def _first_is_starting(self) -> bool:
        """Whether the window that has the right was started so lately that it need not answer yet."""
        with suppress(OSError):
            return time.time() - self._lock_file.stat().st_mtime < _STARTING_S
        return False

    def _answer(self) -> None:
        socket = self._server.nextPendingConnection() if self._server else None
        if socket is None:
            return

        def read() -> None:
            if not socket.canReadLine():
                if socket.bytesAvailable() > _MOST_BYTES:
                    socket.abort()
                return
            try:
                asked = json.loads(bytes(socket.readLine().data()))
                file, demo, token = asked["file"], bool(asked["demo"]), str(asked["token"])
            except (ValueError, KeyError, TypeError):
                socket.abort()
                return
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                socket.abort()
                return
            self._tell(Path(file) if file else None, demo)
            socket.write(b"raised\n")
            socket.disconnectFromServer()

        socket.readyRead.connect(read)
        socket.disconnected.connect(socket.deleteLater)
        read()


def _token(path: Path) -> str:
    """Return the secret of this user's windows; the first start makes it."""
    lock = QLockFile(f"{path}.lock")
    lock.lock()
    try:
        with suppress(FileNotFoundError):
            kept = read_private(path).decode("ascii", "replace")
            if _SECRET.fullmatch(kept):
                return kept
        token = secrets.token_urlsafe(32)
        write_atomically(path, token.encode())
        return token
    finally:
        lock.unlock()


def _name(folder: Path, token: str) -> str:
    path = folder / "window.socket"
    if sys.platform != "win32" and len(os.fsencode(path)) < _LONGEST_PATH:
        return str(path)
    return "mtp-launcher-" + hashlib.sha256(f"{folder}\0{token}".encode()).hexdigest()[:32]
