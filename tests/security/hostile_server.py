"""A hostile server: a small real program. `python hostile_server.py FAULT` prints its port and serves.

With the fault "reply", chat requests get the text of the file REPLY; with any other, they get that fault.
"""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

FAULT = sys.argv[1]
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def send_endlessly(line: socket.socket, block: bytes) -> None:
    while True:
        line.sendall(block)


def body(data: bytes) -> bytes:
    return JSON + b"Content-Length: %d\r\n\r\n" % len(data) + data


def abuse(line: socket.socket, path: str) -> None:
    match FAULT:
        case "endless headers":
            line.sendall(b"HTTP/1.1 200 OK\r\n")
            send_endlessly(line, b"X-More: " + b"a" * 900 + b"\r\n")
        case "one header without end":
            line.sendall(b"HTTP/1.1 200 OK\r\nX-More: ")
            send_endlessly(line, b"a" * 65_536)
        case "slow headers" | "slow body":
            line.sendall(b"HTTP/1.1 200 OK\r\n" if FAULT == "slow headers" else JSON + b"\r\n[")
            while True:
                line.sendall(b"X: y\r\n" if FAULT == "slow headers" else b" ")
                time.sleep(0.2)
        case "silence":
            threading.Event().wait()
        case "endless body":
            line.sendall(JSON + b"\r\n")
            send_endlessly(line, b"[" * 65_536)
        case "zip bomb":
            import gzip

            bomb = gzip.compress(b" " * 2**28)
            line.sendall(JSON + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb)
        case "deep json":
            line.sendall(body(b"[" * 500_000 + b"]" * 500_000))
        case "wrong json":
            line.sendall(body(b'{"choices": 7}'))
        case "no json":
            line.sendall(body(b"<html>\x1b[2J"))
        case "no http":
            line.sendall(b"220 ftp ready\r\n")
        case "nothing":
            pass
        case "redirect":
            line.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        case "acting error":
            result = json.dumps({"error": {"message": "\x1b[2J\nFORGED " + "x" * 10_000, "code": "500"}}).encode()
            line.sendall(body(result).replace(b"200 OK", b"500 No"))


def stream(line: socket.socket) -> None:
    match FAULT:
        case "one event without end":
            line.sendall(STREAM + b"data: ")
            send_endlessly(line, b"x" * 65_536)
        case "one comment without end":
            line.sendall(STREAM + b": ")
            send_endlessly(line, b"x" * 65_536)
        case "an endless reply":
            line.sendall(STREAM)
            send_endlessly(line, event({"choices": [{"delta": {"content": "x" * 100_000}}]}))
        case "wrong events":
            line.sendall(STREAM + b"data: [[1, 2]]\n\n")
        case "wrong timings":
            line.sendall(STREAM + event({"timings": {"predicted_n": "many"}}))
        case "infinite timings":
            line.sendall(STREAM + b'data: {"timings": {"predicted_n": 1e999}}\n\n')
        case "reply":
            words = Path(os.environ["REPLY"]).read_bytes().decode()
            line.sendall(STREAM)
            for begin in range(0, len(words), 50_000):
                part = words[begin : begin + 50_000]
                line.sendall(event({"choices": [{"delta": {"content": part, "reasoning_content": part}}]}))
            line.sendall(event({"choices": [{"delta": {}, "finish_reason": "stop\x1b[31m\n"}]}) + b"data: [DONE]\n\n")
        case _:
            abuse(line, "")


def answer(line: socket.socket) -> None:
    with line:
        try:
            request = b""
            while b"\r\n\r\n" not in request:
                got = line.recv(65_536)
                if not got:
                    return
                request += got
            head, _, sent = request.partition(b"\r\n\r\n")
            received = [each for each in head.lower().split(b"\r\n") if each.startswith(b"content-length:")]
            length = int(received[0].split(b":")[1]) if received else 0
            while len(sent) < length:  # closing a socket with unread data would discard what was sent
                sent += line.recv(65_536)
            path = request.split(b" ", 2)[1].decode()
            stream(line) if request.startswith(b"POST") else abuse(line, path)
        except OSError:
            return


with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()
