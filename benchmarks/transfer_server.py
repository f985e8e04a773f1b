"""A fast file server for loopback: `python -m benchmarks.transfer_server FILE [BYTES_PER_SECOND]`.

It prints its address, answers HEAD and GET, with or without one range, and sends by sendfile in one process per
connection, at most at that rate each. It ends with its standard input.
"""

import hashlib
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

_PIECE = 2**20


def serve(connection: socket.socket, path: Path, etag: str, rate: float | None) -> None:
    size = path.stat().st_size
    with connection, path.open("rb") as file, connection.makefile("rb") as asks:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (line := asks.readline()) not in (b"", b"\r\n"):
            method = line.split(b" ")[0]
            wanted = re.compile(rb"range: *bytes=(\d+)-(\d*)", re.IGNORECASE)
            begin, end, status = 0, size, "200 OK"
            while (header := asks.readline()) not in (b"", b"\r\n"):
                if found := wanted.match(header):
                    begin, end = int(found[1]), min(int(found[2]) + 1, size) if found[2] else size
                    status = "206 Partial Content"
            received = [
                f"HTTP/1.1 {status}",
                f"Content-Length: {end - begin}",
                f'ETag: "{etag}"',
                "Accept-Ranges: bytes",
            ]
            received.append(f"X-Repo-Commit: {'0' * 40}")  # huggingface_hub accepts only servers with this header
            if status.startswith("206"):
                received.append(f"Content-Range: bytes {begin}-{end - 1}/{size}")
            connection.sendall("\r\n".join([*received, "Content-Type: application/octet-stream", "", ""]).encode())
            if method == b"GET":
                send(connection, file.fileno(), begin, end, rate)


def send(connection: socket.socket, file: int, begin: int, end: int, rate: float | None) -> None:
    began_s, first = time.monotonic(), begin
    while begin < end:
        piece = min(_PIECE if rate is None else 2**16, end - begin)
        begin += os.sendfile(connection.fileno(), file, begin, piece)
        if rate is not None:
            time.sleep(max(0.0, (begin - first) / rate - (time.monotonic() - began_s)))


def main() -> None:
    path, rate = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else None
    etag = hashlib.sha256(str(path.stat()).encode()).hexdigest()[:32]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/{path.name}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            try:
                listener.close()
                serve(connection, path, etag, rate)
            except OSError:
                pass  # the client has left
            finally:
                os._exit(0)
        connection.close()


if __name__ == "__main__":
    main()
