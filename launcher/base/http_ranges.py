"""Reads the beginning of a remote file by HTTP range requests, with the interface of a file."""

import re
import time
from collections.abc import Iterator
from typing import Self

import httpx

from launcher.base.errors import Refused, Unreachable
from launcher.base.http import ResponseHead, bearer_header, converted_errors, error_for_status, make_remote_client
from launcher.base.messages import message
from launcher.base.net import host_name, is_sent_token

_FIRST_RANGE, _LARGEST_RANGE = 2**18, 2**22
_CONTENT_RANGE = re.compile(r"bytes (?:(?P<first>\d{1,19})-(?P<last>\d{1,19})|\*)/(?P<size>\d{1,19})")


class RangeReader:
    """The beginning of a remote file, fetched as it is read, in ranges that grow from 256 KiB to 4 MiB.

    Supports read, seek and tell. Everything fetched is kept, and nothing beyond `limit_bytes` is fetched: the file
    appears to end there. A server that ignores ranges is read as one stream, which `close` ends. The token is sent only
    to the server of `url`, not to redirect targets. Uses the environment's proxies.

    Raises Unreachable if the server does not answer, breaks off, or takes longer than `timeout_s` seconds in all.
    Raises Refused if it answers with an error, with other data than was requested, or if the file changed meanwhile.
    """

    def __init__(
        self, url: str, *, token: str | None = None, limit_bytes: int = 2**28, timeout_s: float = 600.0
    ) -> None:
        self._url = url
        self._token = token
        self._limit = limit_bytes
        self._deadline_s = time.monotonic() + timeout_s
        self._range_bytes = _FIRST_RANGE
        self._data = bytearray()
        self._position = 0
        self._size_and_etag: tuple[int, str] | None = None
        self._response: httpx.Response | None = None
        self._body: Iterator[bytes] = iter(())
        self._body_end = 0  # offset in the file at which the response ends
        self._client = make_remote_client()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._close_response()
        self._client.close()

    @property
    def size(self) -> int:
        """The file's size in bytes. Fetches the first range if nothing was read yet."""
        if self._size_and_etag is None:
            self._fetch(1)
        return self._size_and_etag[0] if self._size_and_etag else 0

    def tell(self) -> int:
        """Return the position from the beginning, in bytes."""
        return self._position

    def seek(self, position: int, /) -> int:
        """Set the position from the beginning. Bytes that are skipped are fetched with the next read."""
        self._position = max(position, 0)
        return self._position

    def read(self, count: int, /) -> bytes:
        """Return the next `count` bytes, fewer at the end of the file."""
        end = min(self._position + count, self._limit)
        self._fetch(end)
        data = bytes(self._data[self._position : end])
        self._position += len(data)
        return data

    def _fetch(self, end: int) -> None:
        """Fetch until the first `end` bytes have arrived, or the whole file."""
        with converted_errors(self._url):
            while len(self._data) < end and (self._size_and_etag is None or len(self._data) < self._size_and_etag[0]):
                if time.monotonic() > self._deadline_s:
                    raise Unreachable(
                        message("{url} sends too slowly.", url=host_name(self._url)), message("Try again later.")
                    )
                if self._response is None:
                    self._request_range(max(end, len(self._data) + self._range_bytes))
                    self._range_bytes = min(2 * self._range_bytes, _LARGEST_RANGE)
                piece = next(self._body, b"")
                self._data += piece
                if len(self._data) > self._body_end:
                    raise self._bad_response(message("sent more than was requested"))
                if not piece and len(self._data) < self._body_end:
                    raise Unreachable(
                        message("{url} closed the connection in the middle of the file.", url=host_name(self._url)),
                        message("Try again."),
                    )
                if len(self._data) == self._body_end:
                    self._close_response()

    def _request_range(self, end: int) -> None:
        """Request the range from the end of the fetched data up to `end`."""
        begin = len(self._data)
        headers = {"Range": f"bytes={begin}-{min(end, self._limit) - 1}", **bearer_header(self._token)}
        if self._size_and_etag and self._size_and_etag[1].startswith('"'):  # a weak ETag is not allowed in If-Range
            headers["If-Range"] = self._size_and_etag[1]
        request = self._client.build_request("GET", self._url, headers=headers)
        self._response = response = self._client.send(request, stream=True, follow_redirects=True)
        if not is_sent_token(str(request.url), str(response.url)):
            self._token = None
        self._url = str(response.url)  # the next range goes directly to the redirect target
        size, self._body_end = self._parse_extent(response, begin)
        known = size, response.headers.get("ETag", "")
        if (begin and response.status_code == httpx.codes.OK) or self._size_and_etag not in (None, known):
            raise self._bad_response(message("changed the file during the download"))
        self._size_and_etag = known
        self._body = response.iter_raw()

    def _parse_extent(self, response: httpx.Response, begin: int) -> tuple[int, int]:
        """Return the file's size and the offset at which the response ends."""
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise self._bad_response(message("sent the file compressed"))
        content_range = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        match response.status_code:
            case httpx.codes.PARTIAL_CONTENT:
                if content_range and content_range["first"]:
                    first, last = int(content_range["first"]), int(content_range["last"])
                    if begin == first <= last:
                        return int(content_range["size"]), last + 1
                raise self._bad_response(message("sent a different part of the file than requested"))
            case httpx.codes.OK:
                length = response.headers.get("Content-Length", "")
                if not length.isdecimal():
                    raise self._bad_response(message("does not say how large the file is"))
                return int(length), int(length)
            case httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE if content_range and content_range["size"] == "0":
                return 0, 0
        raise error_for_status(self._url, ResponseHead(response.status_code, response.headers))

    def _close_response(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    def _bad_response(self, predicate: str) -> Refused:
        """Return the error of a server that sent something wrong. `predicate` completes the sentence about it."""
        return Refused(
            message("{url} {what}.", url=host_name(self._url), what=predicate),
            message("Try again. If that does not help, download it from another server."),
        )
