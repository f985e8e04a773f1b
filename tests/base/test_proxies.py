"""Proxies of the environment: which one a request has, for both ways in which we send requests."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from launcher.base import http, http_stream
from launcher.base.errors import ProxyUnusable, Unreachable
from launcher.base.http import ServerClient, fetch_file
from launcher.base.http_stream import RangeStream
from launcher.base.net import Proxy, find_proxy
from tests.fakes.socks import SocksServer

BODY = b"all of it"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Answering:
    """A server that notes the first line of each connection and sends the same answer to all."""

    def __init__(self, answer: bytes) -> None:
        self.lines: list[bytes] = []
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # `close` has closed the listener
                return
            with suppress(OSError), client:
                client.settimeout(10)
                self.lines.append(client.recv(2**16).partition(b"\r\n")[0])
                client.sendall(self._answer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(3)


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], Answering]]:
    servers: list[Answering] = []

    def start(answer: bytes) -> Answering:
        servers.append(Answering(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def web(answering: Callable[[bytes], Answering]) -> Answering:
    return answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(BODY), BODY))


def fetch_by_httpx(url: str) -> bytes:
    return fetch_file(url, limit_bytes=1000)[1] or b""


def fetch_by_stream(url: str) -> bytes:
    stream, view = RangeStream(url), memoryview(bytearray(1000))
    try:
        stream.open(None)
        return bytes(view[: stream.readinto(view)])
    finally:
        stream.close()


both_clients = pytest.mark.parametrize("fetch", [fetch_by_httpx, fetch_by_stream])


@both_clients
@pytest.mark.parametrize("scheme", ["socks", "socks5", "socks5h", "SOCKS5"])
@pytest.mark.parametrize("variable", ["all_proxy", "ALL_PROXY", "http_proxy"])
def test_a_socks_proxy_resolves_the_name_and_connects(
    fetch: Callable[[str], bytes], scheme: str, variable: str, web: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SocksServer() as proxy:
        monkeypatch.setenv(variable, f"{scheme}://{proxy.netloc}/")
        assert fetch(f"http://hub.example:{web.port}/file") == BODY
        assert proxy.asked == [f"hub.example:{web.port}"]


async def test_an_attached_server_is_reached_through_a_socks_proxy(
    answering: Callable[[bytes], Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    with SocksServer() as proxy:
        monkeypatch.setenv("all_proxy", f"socks://{proxy.netloc}")
        async with ServerClient(f"http://hub.example:{server.port}", remote=True) as client:
            assert await client.get_json("/props") == {}
        assert proxy.asked == [f"hub.example:{server.port}"]
        async with ServerClient("http://elsewhere.example", remote=True) as client:
            with pytest.raises(Unreachable, match=r"The proxy 127\.0\.0\.1 does not connect to elsewhere\.example"):
                await client.get_json("/props")


@both_clients
def test_a_login_with_any_characters_is_sent_to_a_socks_proxy(
    fetch: Callable[[str], bytes], web: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SocksServer(login=("me@corp", "p#s/s:w@rd%")) as proxy:
        monkeypatch.setenv("all_proxy", f"socks5://me@corp:p#s/s:w@rd%25@{proxy.netloc}")
        assert fetch(f"http://hub.example:{web.port}/file") == BODY


@both_clients
@pytest.mark.parametrize("login", ["", "me:wrong@"])
def test_a_proxy_that_wants_another_login_is_named_once(
    fetch: Callable[[str], bytes], login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SocksServer(login=("me", "right")) as proxy:
        monkeypatch.setenv("all_proxy", f"socks5://{login}{proxy.netloc}")
        with pytest.raises(ProxyUnusable, match=r"The proxy 127\.0\.0\.1 does not connect to hub\.example") as error:
            fetch("http://hub.example/file")
    assert "USER:PASSWORD" in error.value.hint


@both_clients
def test_the_reason_of_a_socks_proxy_is_passed_on(
    fetch: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with SocksServer() as proxy:
        monkeypatch.setenv("all_proxy", f"socks5://{proxy.netloc}")
        with pytest.raises(Unreachable, match=r"does not connect to nowhere\.example: .*[Hh]ost unreachable"):
            fetch("http://nowhere.example/file")


@both_clients
def test_an_http_proxy_that_is_taken_for_a_socks_proxy_is_named(
    fetch: Callable[[str], bytes], answering: Callable[[bytes], Answering], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = answering(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    monkeypatch.setenv("all_proxy", f"socks5://127.0.0.1:{proxy.port}")
    with pytest.raises(Unreachable, match=r"The proxy 127\.0\.0\.1 does not connect to hub\.example"):
        fetch("https://hub.example/file")


@both_clients
def test_a_silent_socks_proxy_is_not_waited_for(fetch: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_stream, "_CONNECT_S", 0.05)
    monkeypatch.setattr(http, "_REMOTE_CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("all_proxy", f"socks5://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(Unreachable, match="did not respond in time") as error:
            fetch("https://hub.example/file")
    assert error.value.hint == "The connection uses the proxy 127.0.0.1."


@both_clients
@pytest.mark.parametrize("other", ["socks://127.0.0.1:1/", "socks4://127.0.0.1:1", "nonsense://x", "::::"])
def test_a_proxy_for_all_is_ignored_beside_one_for_the_scheme(
    fetch: Callable[[str], bytes],
    other: str,
    answering: Callable[[bytes], Answering],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = answering(b"HTTP/1.1 502 no way out\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("all_proxy", other)
    with pytest.raises(Unreachable, match=r"The proxy 127\.0\.0\.1 does not connect to hub\.example: 502 no way out"):
        fetch("https://hub.example/file")
    assert proxy.lines[0].startswith(b"CONNECT hub.example:443 ")


@both_clients
@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_a_proxy_without_an_address_is_named_and_not_the_server(
    fetch: Callable[[str], bytes], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", f"{scheme}://proxy.invalid:3128")
    with pytest.raises(Unreachable, match=r"^The proxy proxy\.invalid cannot be reached: ") as error:
        fetch("https://hub.example/file")
    assert "hub.example" not in error.value.title
    assert "HTTPS_PROXY" in error.value.hint


@both_clients
@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("socks4://proxy.example:1", r"The proxy proxy\.example uses socks4, which is not supported"),
        ("https://proxy.example:1", r"The proxy proxy\.example uses https, which is not supported"),
        ("nonsense://127.0.0.1", "uses nonsense, which is not supported"),
        ("http://127.0.0.1:x", "address of the proxy set in the environment is not valid"),
        ("http://127.0.0.1:99999", "address of the proxy set in the environment is not valid"),
        ("http://", "address of the proxy set in the environment is not valid"),
    ],
)
def test_a_wrong_proxy_is_named_in_one_sentence(
    fetch: Callable[[str], bytes], address: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", address)
    with pytest.raises(ProxyUnusable, match=why) as error:
        fetch("https://hub.example/file")
    assert "HTTPS_PROXY" in error.value.hint
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("address", "proxy"),
    [
        ("127.0.0.1:8080", Proxy("http", "127.0.0.1", 8080)),
        ("proxy.example", Proxy("http", "proxy.example", 80)),
        ("http://proxy.example:3128/", Proxy("http", "proxy.example", 3128)),
        ("me:p%40ss@proxy.example:1", Proxy("http", "proxy.example", 1, "me", "p@ss")),
        ("http://CORP\\me:a:b/c@proxy.example:1", Proxy("http", "proxy.example", 1, "CORP\\me", "a:b/c")),
        ("http://token@proxy.example:1", Proxy("http", "proxy.example", 1, "token")),
        ("socks5h://[::1]:1081", Proxy("socks5", "::1", 1081)),
        ("socks://proxy.example", Proxy("socks5", "proxy.example", 1080)),
        (" http://proxy.example:1 ", Proxy("http", "proxy.example", 1)),
    ],
)
def test_the_address_of_a_proxy_is_read(address: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", address)
    assert find_proxy("https://hub.example/") == proxy


@pytest.mark.parametrize(
    ("exceptions", "url", "is_direct"),
    [
        ("localhost,127.0.0.0/8,::1", "http://127.0.0.1:8080/", True),  # as GNOME writes it
        ("localhost,127.0.0.0/8,::1", "http://[::1]:8080/", True),
        ("localhost,127.0.0.0/8,::1", "http://128.0.0.1/", False),
        ("10.0.0.0/8 192.168.0.0/16", "http://192.168.7.7/", True),
        ("fd00::/8", "http://[fd00::7]/", True),
        ("hub.example:8080", "http://hub.example:8080/", True),
        ("hub.example:8080", "http://hub.example/", False),
        ("hub.example:443", "https://hub.example/", True),
        ("[::1]:8080", "http://[::1]:8080/", True),
        ("*.corp.example", "http://HUB.corp.example/", True),
        (".corp.example", "http://hub.corp.example/", True),
        ("corp.example", "http://uncorp.example/", False),
        ("other.example, *", "http://hub.example/", True),
        (",", "http://hub.example/", False),
    ],
)
def test_exceptions_are_reached_without_a_proxy(
    exceptions: str, url: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", "http://proxy.example:1")
    monkeypatch.setenv("NO_PROXY", exceptions)
    assert (find_proxy(url) is None) == is_direct
