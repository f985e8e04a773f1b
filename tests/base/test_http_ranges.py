"""The beginning of a remote file, read in ranges from a hub that redirects to another server."""

import random
import socket
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pytest

from launcher.base.errors import Refused, Unreachable
from launcher.base.http import send_head_request
from launcher.base.http_ranges import RangeReader

KIB, MIB = 2**10, 2**20
CONTENT = random.Random(1).randbytes(9 * MIB)
PATH = "/ranges/model/resolve/main/file.gguf"


class Hub(Protocol):
    url: str
    folder: Path
    with_faults: Callable[..., str]
    requests: Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def content(hub: Hub) -> None:
    path = hub.folder / "ranges" / "model" / "file.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)


def file_address(hub: Hub, *faults: str) -> str:
    return (hub.with_faults(*faults) if faults else hub.url) + PATH


def reader(hub: Hub, *faults: str) -> RangeReader:
    return RangeReader(file_address(hub, *faults))


def read_in_steps(file: RangeReader, count: int) -> bytes:
    return b"".join(iter(lambda: file.read(min(100_000, count - file.tell())), b""))


def ranges(hub: Hub) -> list[str]:
    return [request["Range"] for request in hub.requests() if request["server"] == "store"]


class TestReading:
    def test_a_remote_file_supports_read_seek_and_tell(self, hub: Hub) -> None:
        with reader(hub) as file:
            assert (file.read(4), file.tell()) == (CONTENT[:4], 4)
            assert file.seek(300 * KIB) == 300 * KIB
            assert (file.read(7), file.tell()) == (CONTENT[300 * KIB :][:7], 300 * KIB + 7)
            file.seek(2)
            assert file.read(1_000_000) == CONTENT[2:1_000_002]
            assert file.size == len(CONTENT)

    def test_reading_to_the_end_and_beyond_it(self, hub: Hub) -> None:
        with reader(hub) as file:
            assert file.read(10 * MIB) == CONTENT
            assert file.read(1) == b""
            file.seek(20 * MIB)
            assert file.read(1) == b""

    def test_the_ranges_grow_and_nothing_is_fetched_twice(self, hub: Hub) -> None:
        with reader(hub) as file:
            assert read_in_steps(file, 9 * MIB) == CONTENT
            file.seek(0)
            file.read(9 * MIB)
        steps = [0, 256, 768, 1792, 3840, 7936, 12032]
        assert ranges(hub) == [f"bytes={begin * KIB}-{end * KIB - 1}" for begin, end in pairwise(steps)]

    def test_the_size_is_known_from_the_first_range(self, hub: Hub) -> None:
        with reader(hub) as file:
            assert file.size == len(CONTENT)
            file.read(256 * KIB)
        assert len(ranges(hub)) == 1

    def test_nothing_beyond_the_limit_is_fetched(self, hub: Hub) -> None:
        with RangeReader(file_address(hub), limit_bytes=100_000) as file:
            assert file.read(MIB) == CONTENT[:100_000]
            assert file.read(1) == b""
        assert ranges(hub) == ["bytes=0-99999"]

    def test_later_ranges_are_requested_at_the_redirected_address(self, hub: Hub) -> None:
        with reader(hub) as file:
            read_in_steps(file, MIB)
        assert [request["server"] for request in hub.requests()] == ["hub", "store", "store", "store"]

    def test_later_ranges_require_the_same_content(self, hub: Hub) -> None:
        with reader(hub) as file:
            read_in_steps(file, MIB)
        conditions = [request.get("If-Range") for request in hub.requests()]
        assert conditions[:2] == [None, None]
        assert len(set(conditions[2:])) == 1

    @pytest.mark.parametrize("fault", ["ignores-range", "clips", "generous"])
    def test_ranges_of_other_lengths_are_read(self, hub: Hub, fault: str) -> None:
        with reader(hub, fault) as file:
            assert file.read(50_000) == CONTENT[:50_000]
            assert file.read(10) == CONTENT[50_000:50_010]
            assert file.size == len(CONTENT)

    def test_a_server_that_ignores_ranges_is_requested_once(self, hub: Hub) -> None:
        with reader(hub, "ignores-range") as file:
            assert file.read(9 * MIB) == CONTENT
        assert len(ranges(hub)) == 1

    def test_an_empty_file(self, hub: Hub) -> None:
        with reader(hub, "empty") as file:
            assert (file.size, file.read(4)) == (0, b"")


class TestToken:
    def test_requests_go_to_the_named_server_only(self, hub: Hub) -> None:
        with RangeReader(file_address(hub), token="hf_s3cret") as file:
            read_in_steps(file, MIB)
        received = [(request["server"], request.get("Authorization")) for request in hub.requests()]
        assert received == [("hub", "Bearer hf_s3cret")] + [("store", None)] * 3

    def test_a_head_request_sends_the_token_and_follows_no_redirect(self, hub: Hub) -> None:
        answer = send_head_request(hub.url + PATH, token="hf_s3cret")
        assert (answer.status, answer.headers["x-linked-size"]) == (302, str(len(CONTENT)))
        assert [request.get("Authorization") for request in hub.requests()] == ["Bearer hf_s3cret"]

    def test_signatures_of_addresses_are_not_shown_in_errors(self, hub: Hub) -> None:
        with reader(hub, "gone") as file, pytest.raises(Refused) as refused:
            file.read(4)
        assert "s3cret" not in f"{refused.value} {refused.value.facts}"


class TestRefusals:
    @pytest.mark.parametrize(
        ("fault", "what"),
        [
            ("wrong-range", "sent a different part"),
            ("no-total", "sent a different part"),
            ("changes", "changed the file during the download"),
            ("weak", "changed the file during the download"),
            ("compressed", "sent the file compressed"),
            ("long", "sent more than was requested"),
            ("ignores-range,no-size", "does not say how large the file is"),
            ("gone", "does not have this file"),
            ("401", "requires a token"),
            ("403", "denies access to this file"),
            ("416", "HTTP status 416"),
            ("503", "HTTP status 503"),
        ],
    )
    def test_each_fault_is_reported(self, hub: Hub, fault: str, what: str) -> None:
        with reader(hub, fault) as file, pytest.raises(Refused, match=rf"127\.0\.0\.1 .*{what}") as refused:
            read_in_steps(file, MIB)
        if fault.isdecimal():
            assert refused.value.status == int(fault)

    def test_a_hint_has_the_retry_time_of_a_busy_server(self, hub: Hub) -> None:
        with reader(hub, "429") as file, pytest.raises(Refused, match="too many requests") as refused:
            file.read(4)
        assert (refused.value.status, refused.value.hint) == (429, "Try again in 7 s.")


class TestConnection:
    @pytest.mark.parametrize("fault", ["breaks-off", "breaks-off,ignores-range", "breaks-off,long"])
    def test_a_connection_that_breaks_off_is_reported(self, hub: Hub, fault: str) -> None:
        with reader(hub, fault) as file, pytest.raises(Unreachable, match=r"was lost|closed the connection"):
            file.read(9 * MIB)

    def test_a_refused_connection_is_reported(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}/file"
            with RangeReader(url) as file, pytest.raises(Unreachable, match=r"127\.0\.0\.1 cannot be reached"):
                file.read(4)
            with pytest.raises(Unreachable, match="cannot be reached") as unreachable:
                send_head_request(url)
            assert unreachable.value.hint == "Check the internet connection."

    def test_an_unknown_host_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail_to_resolve(*_: object, **__: object) -> None:
            raise socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", fail_to_resolve)
        with (
            RangeReader("https://hub.example/file") as file,
            pytest.raises(Unreachable, match="cannot be resolved"),
        ):
            file.read(4)

    def test_a_server_without_tls_is_reported(self, hub: Hub) -> None:
        with RangeReader(file_address(hub).replace("http", "https")) as file, pytest.raises(Unreachable) as unreachable:
            file.read(4)
        assert unreachable.value.title.startswith("Cannot make a secure connection to 127.0.0.1: ")
        assert "SSL_CERT_FILE" in unreachable.value.hint

    def test_a_server_that_never_answers_is_reported(self) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            RangeReader(f"http://127.0.0.1:{silent.getsockname()[1]}/file") as file,
        ):
            file._client.timeout = 0.05
            with pytest.raises(Unreachable, match="did not respond in time"):
                file.read(4)

    def test_the_total_time_is_limited(self, hub: Hub) -> None:
        with RangeReader(file_address(hub), timeout_s=-1) as file, pytest.raises(Unreachable, match="too slowly"):
            file.read(4)

    def test_a_redirect_loop_is_refused(self, hub: Hub) -> None:
        url = f"{hub.url}/round/model/resolve/main/file.gguf"
        with RangeReader(url) as file, pytest.raises(Unreachable, match="redirects"):
            file.read(4)

    @pytest.mark.parametrize("url", ["ftp://127.0.0.1/file", "file:///etc/passwd", "nonsense", "http://[::1", ""])
    def test_other_addresses_than_web_addresses_are_refused(self, url: str) -> None:
        with RangeReader(url) as file, pytest.raises(Unreachable, match="Not a valid web address"):
            file.read(4)

    def test_the_proxy_of_the_environment_is_used(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTP_PROXY", hub.url)
        with RangeReader("http://hub.example" + PATH) as file:
            assert file.read(4) == CONTENT[:4]
        assert hub.requests()[0]["target"] == "http://hub.example" + PATH

    @pytest.mark.parametrize("scheme", ["http://", ""])
    def test_an_unreachable_proxy_is_named_without_its_password(
        self, monkeypatch: pytest.MonkeyPatch, scheme: str
    ) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            monkeypatch.setenv("HTTP_PROXY", f"{scheme}me:s3cret@127.0.0.1:{taken.getsockname()[1]}")
            with RangeReader("http://hub.example/file") as file, pytest.raises(Unreachable) as unreachable:
                file.read(4)
        assert unreachable.value.title == "The proxy 127.0.0.1 cannot be reached: Connection refused."
        assert "s3cret" not in str(unreachable.value.__cause__) + unreachable.value.hint

    def test_a_proxy_that_is_not_used_for_a_server_is_not_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
        for exception, title in (("127.0.0.1", "127.0.0.1 cannot be reached"), ("", "The proxy 127.0.0.1 cannot be")):
            monkeypatch.setenv("NO_PROXY", exception)
            with pytest.raises(Unreachable) as unreachable:
                send_head_request("http://127.0.0.1:1/file")
            assert unreachable.value.title.startswith(title)
