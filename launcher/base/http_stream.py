"""Reading a range of a remote file at full speed, in a thread; another thread can abort it at any time.

Uses http.client, which reads a body straight from the socket in pieces of any size. httpx passes every 64 KiB through a
parser in Python, which takes longer than hashing.
"""

import base64
import http.client
import io
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit

from launcher.base.errors import BadOption, Refused, Unreachable
from launcher.base.http import ResponseHead
from launcher.base.late import LateModule
from launcher.base.messages import message
from launcher.base.net import (
    USER_AGENT,
    Proxy,
    connection_error,
    find_proxy,
    host_name,
    is_sent_token,
    make_tls_context,
    proxy_error,
    redirect_target,
)

if TYPE_CHECKING:
    import python_socks
    import python_socks.sync as socks
else:
    python_socks, socks = LateModule("python_socks"), LateModule("python_socks.sync")

_CONNECT_S = 10.0
_REDIRECTS = 10
_PIECE = 2**17
_HEADERS = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", "Connection": "close"}
_ADDRESS_CHARACTERS = "%/:?#[]@!$&'()*+,;=~"
"""Characters of a URL that are not percent-encoded again."""
_NO_TUNNEL = "Tunnel connection failed: "
"""How http.client begins the error of a proxy that refused; its status and reason follow."""


class RangeStream:
    """One GET of a range of a file. `open` and `readinto` block; `abort` may be called from any thread and wakes them.

    Uses the environment's proxies and the system's certificates. The token is sent only to the server of `url`, not to
    redirect targets. Redirects away from https are refused.

    Raises Unreachable if the server does not answer, breaks off, or is silent for `silence_s` seconds, Untrusted for
    its certificate, ProxyUnusable for a proxy that cannot be used, Refused if it redirects in a circle or answers in an
    encoding that was not requested, BadOption for an invalid URL. Any status is returned.
    """

    def __init__(self, url: str, *, token: str | None = None, silence_s: float = 30.0) -> None:
        self._url = url
        self._token = token
        self._silence_s = silence_s
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None
        self._left: int | None = None  # bytes of the body that have not been read; None if unknown
        self._header_buffer_empty = False  # after the first read: larger reads then bypass the buffer
        self._aborted = False
        self.host = host_name(url)
        """The host that answered, which after a redirect is not the host of the URL."""

    def open(self, begin: int | None, end: int | None = None, *, if_range: str | None = None) -> ResponseHead:
        """Request the bytes from `begin` to `end` (exclusive; None: the file's end), and return the response's head.

        With `if_range` the server sends the whole file if its ETag is another one. Without `begin` the whole file is
        requested, as by a client without range support.
        """
        headers = dict(_HEADERS)
        if begin is not None:
            headers["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"
        if if_range:
            headers["If-Range"] = if_range
        url = self._url
        for _ in range(_REDIRECTS):
            response = self._get(url, headers)
            location = response.headers.get("Location")
            if location is None or response.status not in (301, 302, 303, 307, 308):
                return self._begin_body(response)
            self.close()
            url = redirect_target(url, location)
        raise Refused(
            message("{url} redirects in a loop.", url=host_name(self._url)),
            message("Try again later, or use another server."),
        )

    def readinto(self, view: memoryview) -> int:
        """Read at least one byte into `view`, and more if it has arrived.

        Returns the number of bytes, 0 at the end of the response.
        """
        n_bytes = self._read_once(view)
        while 0 < n_bytes < min(len(view), _PIECE) and self._more_has_arrived():
            try:
                n_more = self._read_once(view[n_bytes:])
            except Unreachable:
                break  # return the bytes that arrived; the next call raises the same error
            if not n_more:
                break
            n_bytes += n_more
        return n_bytes

    def _read_once(self, view: memoryview) -> int:
        response = self._response
        if response is None:
            return 0
        try:
            if response.chunked:
                data = response.read1(len(view))
                view[: len(data)] = data
                return len(data)
            most = len(view) if self._header_buffer_empty else io.DEFAULT_BUFFER_SIZE
            wanted = min(most, len(view) if self._left is None else self._left)
            n_bytes: int = response.fp.readinto1(view[:wanted]) if wanted else 0
            self._header_buffer_empty = True
        except TimeoutError as error:
            raise Unreachable(
                message("{host} has sent nothing for {silence_s:g} s.", host=self.host, silence_s=self._silence_s),
                message("Check the internet connection."),
            ) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise connection_error(f"https://{self.host}", error) from error
        if self._left is not None:
            self._left -= n_bytes
        return n_bytes

    def _more_has_arrived(self) -> bool:
        """Return True if more data has arrived. TLS delivers 16 KiB at a time, too little for a write to disk."""
        sock = self._socket
        return sock is not None and sock.fileno() >= 0 and bool(wait([sock], 0))

    def abort(self) -> None:
        """Shut the connection down; a blocked reader wakes up."""
        self._aborted = True
        sock = self._socket
        if sock is not None:
            # SSLSocket.shutdown would drop TLS, and a blocked reader would get encrypted bytes as data.
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, from the reading thread."""
        for each in (self._response, self._connection):
            if each is not None:
                each.close()
        self._response = self._connection = self._socket = None

    def _get(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        self.host = host_name(url)
        try:
            connection, target, extra = self._make_connection(url)
        except (ValueError, http.client.InvalidURL) as error:
            raise BadOption(
                message("{host} is not a web address: {error}.", host=self.host, error=error),
                message("Use an address that begins with https://."),
            ) from error
        self._connection = connection
        connecting = True
        try:
            connection.connect()
            self._socket = connection.sock
            connecting = False
            if self._aborted:
                raise Unreachable(message("The transfer was cancelled."))
            connection.sock.settimeout(self._silence_s)
            connection.request("GET", target, headers={**headers, **extra})
            self._response = connection.getresponse()
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.close()
            if str(error).startswith(_NO_TUNNEL):
                raise proxy_error(url, str(error).removeprefix(_NO_TUNNEL)) from error
            raise connection_error(url, error, connecting=connecting) from error
        return self._response

    def _make_connection(self, url: str) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
        """Return a connection that is not open yet, the request target, and headers for this server only."""
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(f"{parts.scheme or 'nothing'}://")
        path = quote(parts.path or "/", safe=_ADDRESS_CHARACTERS)
        target = f"{path}?{quote(parts.query, safe=_ADDRESS_CHARACTERS)}" if parts.query else path
        extra = {}
        if self._token and is_sent_token(self._url, url):
            extra["Authorization"] = f"Bearer {self._token}"
        elif parts.username:
            extra["Authorization"] = _basic_auth(unquote(parts.username), unquote(parts.password or ""))
        if proxy := find_proxy(url):
            connection, request_target, login = _connect_through_proxy(proxy, parts, target)
            return connection, request_target, extra | login
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_CONNECT_S), target, extra
        return http.client.HTTPSConnection(host, port, timeout=_CONNECT_S, context=make_tls_context()), target, extra

    def _begin_body(self, response: http.client.HTTPResponse) -> ResponseHead:
        """Check the headers of the final answer and return them with the status."""
        headers = {name.lower(): value for name, value in response.headers.items()}
        if headers.get("content-encoding", "identity") != "identity":
            raise Refused(message("{host} sent the file compressed.", host=self.host), message("Use another server."))
        length = headers.get("content-length", "")
        self._left = int(length) if length.isdecimal() and len(length) < 20 and not response.chunked else None
        return ResponseHead(response.status, headers)


class _SocksConnection(http.client.HTTPConnection):
    """A connection through a SOCKS proxy, encrypted if there is a TLS context."""

    def __init__(self, proxy: Proxy, host: str, port: int | None, tls: ssl.SSLContext | None) -> None:
        self.default_port = 443 if tls else 80
        super().__init__(host, port, timeout=_CONNECT_S)
        self._proxy = proxy
        self._tls = tls

    def connect(self) -> None:
        """Connect. Raises OSError; if the proxy refuses, one that begins as that of http.client."""
        proxy = self._proxy
        through = socks.Proxy(python_socks.ProxyType.SOCKS5, proxy.host, proxy.port, proxy.user, proxy.password)
        try:
            self.sock = through.connect(self.host, self.port, _CONNECT_S)
        except python_socks.ProxyError as error:
            raise OSError(f"{_NO_TUNNEL}{error}") from error
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)  # closes it if that fails


def _connect_through_proxy(
    proxy: Proxy, parts: SplitResult, target: str
) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """Return a connection to the server in `parts` through a proxy, the request target, and headers for the proxy."""
    host, tls = parts.hostname or "", make_tls_context() if parts.scheme == "https" else None
    if proxy.kind == "socks5":
        return _SocksConnection(proxy, host, parts.port, tls), target, {}
    login = {} if proxy.user is None else {"Proxy-Authorization": _basic_auth(proxy.user, proxy.password)}
    if tls is None:
        plain = http.client.HTTPConnection(proxy.host, proxy.port, timeout=_CONNECT_S)
        netloc = parts.netloc.rpartition("@")[2]
        return plain, f"http://{netloc}{target}", login
    tunnel = http.client.HTTPSConnection(proxy.host, proxy.port, timeout=_CONNECT_S, context=tls)
    tunnel.set_tunnel(host, parts.port or 443, login)
    return tunnel, target, {}


def _basic_auth(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
