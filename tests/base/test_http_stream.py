"""A range of a file over a socket: TLS, certificates, redirects, and a blocked reader that is woken."""

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import certifi
import pytest

from launcher.base import net
from launcher.base.errors import BadOption, Refused, Unreachable, Untrusted
from launcher.base.http_stream import RangeStream
from tests.fakes.socks import SocksServer

CERTIFICATE = Path(__file__).parent / "data" / "loopback.pem"
BODY = bytes(range(256)) * 400

Serve = Callable[[socket.socket, bytes], None]


class Server:
    """Accepts connections, over TLS or not, reads one request's head from each, and hands it to a function."""

    def __init__(self, serve: Serve, *, tls: bool) -> None:
        self.heads: list[bytes] = []
        self._serve = serve
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
        if self._context:
            self._context.load_cert_chain(CERTIFICATE)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._listener.getsockname()[1]}/file"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # `close` has closed the listener
                return
            with suppress(OSError), connection:
                if self._context is None:
                    self._answer(connection)
                    continue
                with self._context.wrap_socket(connection, server_side=True) as wrapped:
                    self._answer(wrapped)

    def _answer(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head and (part := connection.recv(4096)):
            head += part
        self.heads.append(head)
        if head:
            self._serve(connection, head)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(3)


def send_range(connection: socket.socket, head: bytes) -> None:
    range_match = re.search(rb"Range: bytes=(\d+)-(\d*)", head)
    begin, end = (int(range_match[1]), int(range_match[2] or len(BODY) - 1) + 1) if range_match else (0, len(BODY))
    answer = f"HTTP/1.1 206 x\r\nContent-Range: bytes {begin}-{end - 1}/{len(BODY)}\r\nContent-Length: {end - begin}"
    connection.sendall(f"{answer}\r\n\r\n".encode() + BODY[begin:end])


def send_five_bytes(connection: socket.socket, _head: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 x\r\nContent-Length: 1000\r\n\r\nbegin")
    connection.recv(1)


@pytest.fixture
def start_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Start servers; no proxy and no certificates of the environment are in the way."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    servers: list[Server] = []

    def start(serve: Serve, *, tls: bool = False) -> Server:
        servers.append(Server(serve, tls=tls))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def read_to_end(stream: RangeStream) -> bytes:
    view, data = memoryview(bytearray(50_000)), b""
    while n_bytes := stream.readinto(view):
        data += view[:n_bytes]
    return data


class TestTls:
    @pytest.fixture(autouse=True)
    def trusted_certificate(self, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG002 -- to run after `start_server`
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))

    def test_a_certificate_named_in_the_environment_is_trusted(self, start_server: Callable[..., Server]) -> None:
        stream = RangeStream(start_server(send_range, tls=True).url)
        assert stream.open(1_000).status == 206
        assert read_to_end(stream) == BODY[1_000:]
        stream.close()

    def test_tls_goes_through_a_socks_proxy(
        self, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = start_server(send_range, tls=True).url
        with SocksServer() as proxy:
            monkeypatch.setenv("all_proxy", f"socks5h://{proxy.netloc}")
            stream = RangeStream(url)
            assert stream.open(1_000).status == 206
            assert read_to_end(stream) == BODY[1_000:]
            stream.close()
            with pytest.raises(Untrusted, match=r"Hostname mismatch"):
                RangeStream(url.replace("127.0.0.1", "hub.example")).open(0)
        assert [address.partition(":")[0] for address in proxy.asked] == ["127.0.0.1", "hub.example"]

    def test_an_unknown_certificate_is_refused(
        self, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(Untrusted, match=r"a secure connection to 127.0.0.1: self-signed certificate"):
            RangeStream(start_server(send_range, tls=True).url).open(0)

    def test_a_certificate_for_another_name_is_refused(self, start_server: Callable[..., Server]) -> None:
        with pytest.raises(Untrusted, match=r"a secure connection to localhost: Hostname mismatch"):
            RangeStream(start_server(send_range, tls=True).url.replace("127.0.0.1", "localhost")).open(0)

    def test_unreadable_certificate_files_are_reported(
        self, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
        with pytest.raises(Unreachable, match="certificates"):
            RangeStream(start_server(send_range, tls=True).url).open(0)

    def test_https_is_not_redirected_to_http(self, start_server: Callable[..., Server]) -> None:
        plain = start_server(send_range)

        def redirect(connection: socket.socket, _head: bytes) -> None:
            connection.sendall(f"HTTP/1.1 302 x\r\nLocation: {plain.url}\r\nContent-Length: 0\r\n\r\n".encode())

        with pytest.raises(Refused, match="to an unencrypted address"):
            RangeStream(start_server(redirect, tls=True).url, token="hf_secret").open(0)
        assert plain.heads == []

    def test_a_reader_is_woken(self, start_server: Callable[..., Server]) -> None:
        check_abort_wakes(start_server(send_five_bytes, tls=True).url)


def check_abort_wakes(url: str) -> None:
    stream = RangeStream(url, silence_s=600.0)
    stream.open(None)
    view = memoryview(bytearray(1000))
    assert stream.readinto(view) == 5
    threading.Timer(0.05, stream.abort).start()
    began_s = time.monotonic()
    with suppress(Unreachable):
        assert stream.readinto(view) == 0
    assert time.monotonic() - began_s < 300
    stream.close()


def test_a_reader_is_woken(start_server: Callable[..., Server]) -> None:
    check_abort_wakes(start_server(send_five_bytes).url)


def test_a_silent_server_times_out(start_server: Callable[..., Server]) -> None:
    stream = RangeStream(start_server(send_five_bytes).url, silence_s=0.05)
    stream.open(None)
    view = memoryview(bytearray(100_000))
    assert stream.readinto(view) == 5  # what came with the headers is not lost in the wait for more
    with pytest.raises(Unreachable, match=r"nothing for 0.05 s"):
        stream.readinto(view)
    stream.close()


def test_a_part_is_requested_by_its_byte_range(start_server: Callable[..., Server]) -> None:
    server = start_server(send_range)
    stream = RangeStream(server.url)
    stream.open(10, 20, if_range='"etag"')
    assert read_to_end(stream) == BODY[10:20]
    assert b"Range: bytes=10-19\r\n" in server.heads[0]
    assert b'If-Range: "etag"\r\n' in server.heads[0]
    stream.close()


def test_a_login_in_the_address_is_sent_to_the_server(start_server: Callable[..., Server]) -> None:
    server = start_server(send_range)
    stream = RangeStream(server.url.replace("://", "://me:pass%20word@"))
    stream.open(0)
    stream.close()
    assert b"Authorization: Basic bWU6cGFzcyB3b3Jk\r\n" in server.heads[0]


@pytest.mark.parametrize(("there", "holds"), [("system.crt", True), ("nothing.crt", False)])
def test_a_system_without_certificates_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, *, holds: bool
) -> None:
    (tmp_path / "system.crt").write_text("")
    paths = ssl.DefaultVerifyPaths(None, None, "", "", "", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    monkeypatch.setattr(net, "_BUNDLES", (str(tmp_path / there),))
    assert net._system_has_certificates() is holds


def test_without_system_certificates_those_of_certifi_are_used(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net, "_system_has_certificates", lambda: False)
    monkeypatch.setattr(certifi, "where", lambda: str(CERTIFICATE))
    stream = RangeStream(start_server(send_range, tls=True).url)
    assert stream.open(0).status == 206
    stream.close()


@pytest.mark.parametrize("location", ["http://[oops", "http://exa mple\x01.org/", "http://a:b/", "ftp://a/b"])
def test_a_redirect_to_an_invalid_address_is_reported(start_server: Callable[..., Server], location: str) -> None:
    def redirect(connection: socket.socket, _head: bytes) -> None:
        connection.sendall(f"HTTP/1.1 302 x\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())

    with pytest.raises((Refused, BadOption), match=r"an invalid address|is not a web address"):
        RangeStream(start_server(redirect).url).open(0)
