"""One window per user: a second start hands over what it was asked and raises the first."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QDeadlineTimer, QLockFile, QObject, QThread
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from launcher.base.paths import state_dir

_ANSWER_MS = 5_000


class SingleInstance(QObject):
    """The right to be the one window. `first` says whether this process has it."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        folder = state_dir()
        folder.mkdir(parents=True, exist_ok=True)
        self._name = "mtp-launcher-" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        self._lock = QLockFile(str(folder / "window.lock"))
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
        socket.write(json.dumps({"file": str(file) if file else None, "demo": demo}).encode() + b"\n")
        socket.flush()
        return socket.waitForReadyRead(_ANSWER_MS) and bytes(socket.readLine().data()) == b"raised\n"

    def _answer(self) -> None:
        socket = self._server.nextPendingConnection() if self._server else None
        if socket is None:
            return

        def read() -> None:
            if not socket.canReadLine():
                return
            try:
                asked = json.loads(bytes(socket.readLine().data()))
                file, demo = asked["file"], bool(asked["demo"])
            except (ValueError, KeyError, TypeError):
                socket.abort()
                return
            self._tell(Path(file) if file else None, demo)
            socket.write(b"raised\n")
            socket.disconnectFromServer()

        socket.readyRead.connect(read)
        socket.disconnected.connect(socket.deleteLater)
        read()
