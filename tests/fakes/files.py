"""A fake file server with faults: `python files.py FOLDER` serves its files, and prints its addresses as JSON.

It is two servers, `origin` and `store`, on two ports. An address is /RUN/FAULTS/FILE: RUN is any word, and has counters
of its own; FAULTS is `none` or some of these, separated by commas:

    redirect          to the store by a signed link      expires=N      the link serves N requests, a new one is given
    circle            redirects to itself                downgrade      redirects to http://127.0.0.1:1 (say, from TLS)
    drops=N           closes after N bytes of an answer  drops=N*M      the same for the first M requests
    stalls=N          N bytes of each, then silence      stalls=N*M     the same for the first M requests
    STATUS            that status for everything         STATUS*M       the same for the first M requests
    after=N           the statuses only after N requests retry=TEXT     their Retry-After; `date` is tomorrow
    only-ranges       the statuses for later ranges only (`Range: bytes=N-` with N above 0)
    ignores-range     the whole file, with 200           wrong-range    another range than asked for
    generous          all from where the range begins    no-total       Content-Range ends in /*
    etag=MODE         none, weak, or `new`: another one with each request, whatever If-Range says of the one before
    changes=N         another content (and ETag) of the same size after N requests; `grows=N`: of another size
    wrong             other bytes of the same size       error=N        the Nth answer is a few words of text with 200
    page              a web page with 200                page=N         the same for the Nth answer only
    short             announces and sends half the file  long           1,000 bytes more than there are
    chunked           in chunks, without a length        endless        without a length or an end
    compressed        says that it is compressed         header         a header line without an end
    slow=N            N bytes a second per connection    busy=M         a 503 for more than M connections at once
    wait=N            N milliseconds before it answers

The store answers 400 to a request that carries a token. GET /record/RUN returns the requests and the number of body
bytes sent, as JSON.
"""

import email.utils
import functools
import gzip
import json
import re
import socket
import sys
import threading
import time
import zlib
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

FOLDER = Path(sys.argv[1])
ADDRESSES: dict[str, str] = {}
PAGE = b"<!DOCTYPE html><html><title>Hotel</title><body>Please log in.</body></html>"
PIECE = 2**14


@functools.cache
def load_file(path: Path, _changed_ns: int) -> bytes:
    return path.read_bytes()


class Run:
    """The counts of one RUN."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.sent_bytes = 0
        self.answers = 0
        self.links: dict[str, int] = {}
        self.connections = 0


RUNS: defaultdict[str, Run] = defaultdict(Run)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.close_connection = True
        path = urlsplit(self.path)
        if path.path.startswith("/record/"):
            run = RUNS[path.path.removeprefix("/record/")]
            result = json.dumps({"requests": run.requests, "sent_bytes": run.sent_bytes}).encode()
            self.head(200, {"Content-Length": len(result)}, result)
            return
        _, name, faults, file = unquote(path.path).split("/", 3)
        self.run = RUNS[name]
        self.faults = dict(part.partition("=")[::2] for part in faults.split(","))
        self.stored = self.server.server_port == urlsplit(ADDRESSES["store"]).port
        with self.run.lock:
            self.run.requests.append(
                {"server": "store" if self.stored else "origin", "target": self.path, **dict(self.headers.items())}
            )
            self.run.connections += 1
            busy = self.run.connections > int(self.faults.get("busy", 10**9))
        try:
            if "wait" in self.faults:
                time.sleep(int(self.faults["wait"]) / 1000)
            if busy:
                self.head(503, {"Content-Length": 0})
            elif self.stored or "redirect" not in self.faults:
                self.answer(FOLDER / file, parse_qs(path.query))
            else:
                self.redirect()
        except OSError:
            pass  # the client has left
        finally:
            with self.run.lock:
                self.run.connections -= 1

    def redirect(self) -> None:
        with self.run.lock:
            signature = f"s3cret{len(self.run.links)}"
            self.run.links[signature] = int(self.faults.get("expires", 10**9))
        target = f"{ADDRESSES['store']}{urlsplit(self.path).path}?signature={signature}"
        self.head(302, {"Location": target, "Content-Length": 0})

    def answer(self, path: Path, query: dict[str, list[str]]) -> None:
        run, faults = self.run, self.faults
        if self.stored:
            if "Authorization" in self.headers:
                self.head(400, {"Content-Length": 0})
                return
            with run.lock:
                signature = query.get("signature", [""])[0]
                run.links[signature] = run.links.get(signature, 0) - 1
                if run.links[signature] < 0:
                    self.head(403, {"Content-Length": 0})
                    return
        with run.lock:
            run.answers += 1
            count = run.answers
        if "circle" in faults or "downgrade" in faults:
            target = self.path if "circle" in faults else "http://127.0.0.1:1/"
            self.head(302, {"Location": target, "Content-Length": 0})
            return
        range_match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if self.refused(count, int(range_match[1]) if range_match else 0):
            return
        if not path.is_file():
            self.head(404, {"Content-Length": 0})
            return
        if faults.get("page") in ("", str(count)):
            self.instead("text/html; charset=utf-8", PAGE)
            return
        if faults.get("error") == str(count):
            self.instead("text/plain", b"proxy error")
            return
        data = self.content(load_file(path, path.stat().st_mtime_ns), count)
        etag = self.etag(data, count)
        if range_match and self.headers.get("If-Range", etag) != etag:
            range_match = None
        self.file(data, etag, None if "ignores-range" in faults else range_match, count)

    def instead(self, kind: str, text: bytes) -> None:
        if "chunked" in self.faults:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)
            self.head(200, {"Content-Type": kind, "Transfer-Encoding": "chunked"}, body)
        else:
            self.head(200, {"Content-Type": kind, "Content-Length": len(text)}, text)

    def refused(self, count: int, begin: int) -> bool:
        for fault in self.faults:
            if status := re.fullmatch(r"(\d{3})(?:\*(\d+))?", fault):
                after = int(self.faults.get("after", 0))
                late = count > after + int(status[2] or 10**9)
                if count <= after or late or ("only-ranges" in self.faults and not begin):
                    return False
                retry = self.faults.get("retry", "")
                if retry == "date":
                    retry = email.utils.formatdate(time.time() + 86_400, usegmt=True)
                self.head(int(status[1]), {"Content-Length": 0} | ({"Retry-After": retry} if retry else {}))
                return True
        return False

    def content(self, data: bytes, count: int) -> bytes:
        faults = self.faults
        if "wrong" in faults or count > int(faults.get("changes", 10**9)):
            return data[::-1]
        if count > int(faults.get("grows", 10**9)):
            return data[::-1] + b"more"
        return data[: len(data) // 2] if "short" in faults else data

    def etag(self, data: bytes, count: int) -> str | None:
        plain = f'"{zlib.crc32(data[:PIECE]):08x}-{len(data)}"'
        return {"none": None, "weak": f"W/{plain}", "new": f'"{count}"'}.get(self.faults.get("etag", ""), plain)

    def file(self, data: bytes, etag: str | None, range_match: re.Match[str] | None, count: int) -> None:
        faults, size = self.faults, len(data)
        begin, end = (int(range_match[1]), int(range_match[2] or size - 1) + 1) if range_match else (0, size)
        headers: dict[str, object] = {"Content-Type": "application/octet-stream"}
        if etag:
            headers["ETag"] = etag
        if range_match and begin >= size:
            self.head(416, {"Content-Range": f"bytes */{size}", "Content-Length": 0})
            return
        end = size if "generous" in faults else min(end, size)
        if "wrong-range" in faults and range_match:
            begin, end = max(begin - 10, 1), max(end - 10, 2)
        body = data[begin:end]
        if range_match:
            total = "*" if "no-total" in faults else size
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{total}"
        if "compressed" in faults:
            headers["Content-Encoding"], body = "gzip", gzip.compress(body)
        if "long" in faults:
            body += bytes(1000)
        if "header" in faults:
            headers["X-Long"] = "x" * 10**5
        if "chunked" in faults:
            headers["Transfer-Encoding"] = "chunked"
        elif "endless" not in faults:
            headers["Content-Length"] = len(body)
        self.head(206 if range_match else 200, headers)
        self.body(body, count)

    def body(self, body: bytes, count: int) -> None:
        faults = self.faults
        stop, then = len(body), ""
        for fault in ("drops", "stalls"):
            n_bytes, _, first = faults.get(fault, "").partition("*")
            if n_bytes and count <= int(first or 10**9) and int(n_bytes) < len(body):
                stop, then = int(n_bytes), fault
        rate, began_s, view, at = int(faults.get("slow", 0)), time.monotonic(), memoryview(body), 0
        while at < stop:
            piece = view[at : min(at + PIECE, stop)]
            if "chunked" in faults:
                self.connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            else:
                self.connection.sendall(piece)
            at += len(piece)
            with self.run.lock:
                self.run.sent_bytes += len(piece)
            if rate:
                time.sleep(max(0.0, at / rate - (time.monotonic() - began_s)))
        if then == "stalls":
            self.connection.recv(1)  # returns when the client leaves
        elif then == "" and "chunked" in faults:
            self.connection.sendall(b"0\r\n\r\n")
        while "endless" in faults:
            self.connection.sendall(bytes(PIECE))
            with self.run.lock:
                self.run.sent_bytes += PIECE

    def head(self, status: int, headers: dict[str, Any], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**headers, "Connection": "close"}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if body:
            self.connection.sendall(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        # Bytes that are counted as sent should arrive soon.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        super().server_bind()

    def handle_error(self, *_: object) -> None:
        raise SystemExit(1)  # a fault of the fake itself; its tests see the connection break


def main() -> None:
    servers = {name: Server(("127.0.0.1", 0), Handler) for name in ("origin", "store")}
    ADDRESSES.update({name: f"http://127.0.0.1:{server.server_port}" for name, server in servers.items()})
    for server in servers.values():
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    print(json.dumps(ADDRESSES), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
