"""A SOCKS5 server on 127.0.0.1 (RFC 1928 and 1929). It knows one host name, `hub.example`, which nobody else does."""

import select
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

NAMES = {"hub.example": "127.0.0.1"}


class SocksServer:
    """A server in this process; `login` is the user and password that it demands. `asked` holds each HOST:PORT."""

    def __init__(self, login: tuple[str, str] | None = None) -> None:
        self.asked: list[str] = []
        self._login = login
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.netloc = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._thread, *self._threads):
            thread.join(3)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # `__exit__` has closed the listener
                return
            self._threads.append(threading.Thread(target=self._serve, args=(client,)))
            self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(10)
        with suppress(OSError, EOFError), client:
            version, count = read(client, 2)
            offered = read(client, count)
            wanted = 0 if self._login is None else 2
            if version != 5 or wanted not in offered:
                return client.sendall(b"\x05\xff")
            client.sendall(bytes([5, wanted]))
            if self._login is not None:
                user = read(client, read(client, 2)[1])
                password = read(client, read(client, 1)[0])
                if (user.decode(), password.decode()) != self._login:
                    return client.sendall(b"\x01\x01")
                client.sendall(b"\x01\x00")
            kind = read(client, 4)[3]
            host = read(client, read(client, 1)[0]).decode() if kind == 3 else socket.inet_ntoa(read(client, 4))
            [port] = struct.unpack(">H", read(client, 2))
            self.asked.append(f"{host}:{port}")
            if kind == 3 and host not in NAMES:
                return client.sendall(b"\x05\x04\x00\x01" + bytes(6))  # host unreachable
            with socket.create_connection((NAMES.get(host, host), port), 10) as server:
                client.sendall(b"\x05\x00\x00\x01" + bytes(6))
                pump(client, server)
        return None


def read(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = source.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def pump(one: socket.socket, other: socket.socket) -> None:
    """Copy between two sockets until one of them is closed."""
    while ready := select.select([one, other], [], [], 10)[0]:
        for source in ready:
            data = source.recv(2**16)
            if not data:
                return
            (other if source is one else one).sendall(data)
