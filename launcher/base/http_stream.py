"""A part of a remote file, read by a thread of its own at full speed, and ended at any moment by another thread.

It stands on http.client because that reads a body straight from the socket in pieces of any size; httpx passes every
64 KiB through a parser in Python, which takes longer than the hash.
"""

import base64
import http.client
import io
import socket
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from urllib.parse import quote, unquote, urlsplit

from launcher import __version__
from launcher.base.errors import BadOption, Refused, Unreachable
from launcher.base.http import Head
from launcher.base.net import host_of, origin, proxy_for, redirected, tls_context, unreachable

_CONNECT_S = 10.0
_REDIRECTS = 10
_PIECE = 2**17
_HEADERS = {"User-Agent": f"mtp-launcher/{__version__}", "Accept-Encoding": "identity", "Connection": "close"}
_ADDRESS_CHARACTERS = "%/:?#[]@!$&'()*+,;=~"


class RangeStream:
    """One GET of a range of a file. `open` and `readinto` block; `abort` may be called from any thread and wakes them.

    Proxies are the environment's, and certificates the system's. The token goes to the server of `url` and to no other
    that it redirects to. Redirects away from https are refused.

    Raises Unreachable when the server does not answer or breaks off, or is silent for `silence_s` seconds, Untrusted
    for its certificate, Refused when it redirects in circles or answers in an encoding that nobody asked for, BadOption
    for what is no web address or a proxy of a kind that cannot be used. Any status is an answer.
    """

    def __init__(self, url: str, *, token: str | None = None, silence_s: float = 30.0) -> None:
        self._url = url
        self._token = token
        self._silence_s = silence_s
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._answer: http.client.HTTPResponse | None = None
        self._left: int | None = None
        self._primed = False  # once read: what came with the headers is out of the buffer, larger reads bypass it
        self._aborted = False
        self.host = host_of(url)
        """The server that answered, which may be another than was asked."""

    def open(self, begin: int | None, end: int | None = None, *, if_range: str | None = None) -> Head:
        """Ask for the bytes from `begin` up to `end` (exclusive; None is the file's end), if it is still `if_range`.

        Without `begin` the whole file is asked for, as by a client that knows no ranges.
        """
        headers = dict(_HEADERS)
        if begin is not None:
            headers["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"
        if if_range:
            headers["If-Range"] = if_range
        url = self._url
        for _ in range(_REDIRECTS):
            answer = self._get(url, headers)
            location = answer.headers.get("Location")
            if location is None or answer.status not in (301, 302, 303, 307, 308):
                return self._begin(answer)
            self.close()
            url = redirected(url, location)
        raise Refused(f"{host_of(self._url)} sends us in a circle.", "Try again later, or use another server.")

    def readinto(self, view: memoryview) -> int:
        """Read at least a byte into `view`, and what else is there at once; return how many, 0 at the answer's end."""
        n_bytes = self._read_once(view)
        while 0 < n_bytes < min(len(view), _PIECE) and self._more_at_once():
            try:
                further = self._read_once(view[n_bytes:])
            except Unreachable:
                break  # what arrived before counts; the next call meets the same
            if not further:
                break
            n_bytes += further
        return n_bytes

    def _read_once(self, view: memoryview) -> int:
        answer = self._answer
        if answer is None:
            return 0
        try:
            if answer.chunked:
                data = answer.read1(len(view))
                view[: len(data)] = data
                return len(data)
            most = len(view) if self._primed else io.DEFAULT_BUFFER_SIZE
            wanted = min(most, len(view) if self._left is None else self._left)
            n_bytes: int = answer.fp.readinto1(view[:wanted]) if wanted else 0
            self._primed = True
        except TimeoutError as error:
            raise Unreachable(
                f"{self.host} has sent nothing for {self._silence_s:g} s.", "Is this computer still online?"
            ) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise unreachable(f"https://{self.host}", error) from error
        if self._left is not None:
            self._left -= n_bytes
        return n_bytes

    def _more_at_once(self) -> bool:
        """Return whether more has arrived: TLS gives out 16 KiB at a time, too little to write each by itself."""
        sock = self._socket
        return sock is not None and sock.fileno() >= 0 and bool(wait([sock], 0))

    def abort(self) -> None:
        """Break the connection off; whoever reads wakes up."""
        self._aborted = True
        sock = self._socket
        if sock is not None:
            with suppress(OSError):  # SSLSocket.shutdown would go on in plain text: what is encrypted came as data
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, from the thread that reads."""
        for each in (self._answer, self._connection):
            if each is not None:
                each.close()
        self._answer = self._connection = self._socket = None

    def _get(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        self.host = host_of(url)
        try:
            connection, target, extra = self._connection_to(url)
        except (ValueError, http.client.InvalidURL) as error:
            raise BadOption(f"{self.host} is no web address: {error}.", "It begins with https://.") from error
        self._connection = connection
        connecting = True
        try:
            connection.connect()
            self._socket = connection.sock
            connecting = False
            if self._aborted:
                raise Unreachable("The transfer was ended.")
            connection.sock.settimeout(self._silence_s)
            connection.request("GET", target, headers={**headers, **extra})
            self._answer = connection.getresponse()
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.close()
            raise unreachable(url, error, connecting=connecting) from error
        return self._answer

    def _connection_to(self, url: str) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
        """Return a connection that is not made yet, what to ask it for, and headers for this server alone."""
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(f"{parts.scheme or 'nothing'}://")
        path = quote(parts.path or "/", safe=_ADDRESS_CHARACTERS)
        target = f"{path}?{quote(parts.query, safe=_ADDRESS_CHARACTERS)}" if parts.query else path
        extra = {}
        if self._token and origin(url) == origin(self._url):
            extra["Authorization"] = f"Bearer {self._token}"
        elif parts.username:
            extra["Authorization"] = _basic(parts.username, parts.password)
        proxy = proxy_for(url)
        if proxy:
            way = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            if way.scheme != "http" or not way.hostname:
                raise BadOption(
                    f"The proxy {host_of(proxy)} speaks {way.scheme}, which cannot be used.",
                    "Set HTTPS_PROXY to one that begins with http://.",
                )
            to_proxy = {"Proxy-Authorization": _basic(way.username, way.password)} if way.username else {}
            if parts.scheme == "http":
                plain = http.client.HTTPConnection(way.hostname, way.port or 80, timeout=_CONNECT_S)
                netloc = parts.netloc.rpartition("@")[2]
                return plain, f"http://{netloc}{target}", extra | to_proxy
            tunnel = http.client.HTTPSConnection(
                way.hostname, way.port or 80, timeout=_CONNECT_S, context=tls_context()
            )
            tunnel.set_tunnel(host, port or 443, to_proxy)
            return tunnel, target, extra
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_CONNECT_S), target, extra
        return http.client.HTTPSConnection(host, port, timeout=_CONNECT_S, context=tls_context()), target, extra

    def _begin(self, answer: http.client.HTTPResponse) -> Head:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if headers.get("content-encoding", "identity") != "identity":
            raise Refused(f"{self.host} sent the file compressed.", "Use another server.")
        length = headers.get("content-length", "")
        self._left = int(length) if length.isdecimal() and len(length) < 20 and not answer.chunked else None
        return Head(answer.status, headers)


def _basic(user: str, password: str | None) -> str:
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password or '')}".encode()).decode("ascii")
