"""HTTP clients for llama-server and for the web. Only the modules http*.py use httpx, so it can be replaced."""

from __future__ import annotations

import asyncio
import email.utils
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from launcher.base.errors import GAVE_WAY, INTERRUPTED, GaveWay, RateLimited, Refused, Unreachable
from launcher.base.late import LateModule
from launcher.base.messages import FaceName, command_name, mark, message
from launcher.base.net import (
    CONVERSATION_HEADER,
    GIVE_PROXY_LOGIN,
    USER_AGENT,
    connection_error,
    find_proxy,
    host_name,
    is_sent_token,
    make_tls_context,
    proxy_error,
    redirect_target,
    setup_error,
    strip_secrets,
)
from launcher.base.text import one_line

# Its command line would import rich and click where they are installed, for 0.1 s.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
if TYPE_CHECKING:
    import httpx

    from launcher.base import http_proxies
else:  # most who import this module send no request
    httpx, http_proxies = LateModule("httpx"), LateModule("launcher.base.http_proxies")

# Server-sent events, the subset that llama-server sends. See
# https://html.spec.whatwg.org/multipage/server-sent-events.html; event names, IDs, retry times and lines that end in CR
# alone are not supported. The server may be hostile, so sizes are limited.


async def read_events(parts: AsyncIterator[bytes], max_bytes: int, url: str) -> AsyncIterator[str]:
    """Yield the data of each event from the pieces of a body.

    Raises Refused for an event of more than `max_bytes`; `url` is the server's, for the error.
    """
    line = bytearray()
    data: list[bytes] = []
    n_bytes = 0
    async for part in parts:
        *line_ends, rest = part.split(b"\n")
        for piece in line_ends:
            line += piece
            n_bytes += len(piece) + 1
            if n_bytes > max_bytes:
                raise _event_too_long(max_bytes, url)
            text = bytes(line).removesuffix(b"\r")
            line.clear()
            if text.startswith(b"data:"):
                data.append(text[5:].removeprefix(b" "))
            elif not text:
                if data:
                    yield b"\n".join(data).decode("utf-8", "replace")
                data, n_bytes = [], 0
        line += rest
        n_bytes += len(rest)
        if n_bytes > max_bytes:
            raise _event_too_long(max_bytes, url)


def _event_too_long(max_bytes: int, url: str) -> Refused:
    return Refused(
        message(
            "{where} sent more than {most:,} bytes at once, which llama-server never does.", where=url, most=max_bytes
        ),
        message("Check that the address belongs to a llama-server."),
    )


# Errors of llama-server.

_REDIRECTS = (301, 302, 303, 307, 308)


def llama_server_error(data: object, status: int | None, url: str, location: str | None = None) -> Refused:
    """Return the error for `data`, llama-server's `{"error": {"code", "message", "type"}}`, with a next step.

    `url` is the requested URL, `location` the Location header.
    """
    if location and status in _REDIRECTS:
        target = one_line(strip_secrets(redirect_target(url, location)), 200)
        title = message(
            "{where} redirects to {target}; redirects are not followed.", where=host_name(url), target=target
        )
        return Refused(title, message("Use that address instead if you trust it."), status=status)
    error = data.get("error") if isinstance(data, dict) else None
    error = error if isinstance(error, dict) else {"message": error}
    reason = one_line(str(error.get("message") or f"HTTP status {status}"))
    hints = {
        401: message(
            "The API key is wrong: {command} shows the right one.",
            command=command_name("status --json", mark("Settings")),
        ),
        503: message("The model is still loading. Try again in a moment."),
    }
    hint = hints.get(status or 0, "")
    if error.get("type") == "exceed_context_size_error":
        hint = message(
            "Shorten the prompt, or start the server with a larger {ctx}.", ctx=FaceName("--ctx", mark("Context"))
        )
    return Refused(
        message("The server refused the request: {said}.", said=reason.rstrip(".")), hint, status=status, where=url
    )


_CONNECT_S, _REMOTE_CONNECT_S, _REPLY_S, _SILENCE_S = 2.0, 10.0, 10.0, 75.0
"""Time limits: to connect, to connect to another computer, for a whole reply, and between two parts of a stream."""
_MAX_BYTES, _MAX_EVENT_BYTES, _MAX_ERROR_BYTES = 2**23, 2**22, 2**16
"""Limits for a body, an event and an error body. llama-server's largest bodies are metrics and slots, some 100 KB."""
# Messages of h11 and httpcore for a connection closed by the server.
_CLOSED = ("peer closed connection", "Server disconnected")


class ServerClient:
    """A client for JSON and event streams of a llama-server.

    A server on this computer is never reached through a proxy. With `remote` the server may be on another computer: its
    certificate is verified and the environment's proxy is used. Redirects are not followed. Requests raise Unreachable
    if the server does not answer, is too slow or closes the connection early, Refused if it answers with an error or
    with more data than a llama-server sends.
    """

    def __init__(self, url: str, *, api_key: str | None = None, remote: bool = False) -> None:
        self.url = url
        self._remote = remote
        self._headers = {"User-Agent": USER_AGENT, "Cache-Control": "no-store"}
        """Headers of the requests, but not of get_status, which needs no key. What they ask is not kept on disk."""
        self.set_api_key(api_key)
        self._connect_s = _REMOTE_CONNECT_S if remote else _CONNECT_S
        # TLS is not used on loopback, and loading certificates would take 20 ms.
        self._tls = make_tls_context() if remote else None
        self._clients: WeakSet[httpx.AsyncClient] = WeakSet()
        try:
            httpx.Request("GET", url)  # raises for an invalid host name
            self._client = self._open_client()
        except (ValueError, httpx.InvalidURL) as error:
            raise setup_error(error, url) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def set_api_key(self, api_key: str | None) -> None:
        """Send this API key with further requests, none if None."""
        self._headers.pop("Authorization", None)
        self._headers |= bearer_header(api_key)

    def set_purpose(self, purpose: str) -> None:
        """State this purpose in further requests, so that the server's log distinguishes them from those of clients."""
        self._headers |= _purpose_header(purpose)

    async def close(self) -> None:
        """Close every connection, including open streams."""
        for client in list(self._clients):
            await client.aclose()

    def _open_client(self) -> httpx.AsyncClient:
        client = httpx.AsyncClient(
            base_url=self.url,
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
            trust_env=False,
            verify=False,
            transport=http_proxies.open_async_transport(find_proxy(self.url), self._tls) if self._tls else None,
            timeout=httpx.Timeout(10.0, connect=self._connect_s),
        )
        self._clients.add(client)
        return client

    async def get_status(self, path: str, *, timeout_s: float) -> int | None:
        """Return the HTTP status of a GET without the API key. None without an answer within `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s), self._client.stream("GET", path) as response:
                # Read to the end, so that the connection can be reused.
                await _read_body(response, _MAX_ERROR_BYTES, self.url)
                return response.status_code
        except (httpx.HTTPError, TimeoutError, Refused):
            return None

    async def get_text(self, path: str, body: Mapping[str, Any] | None = None, *, unlimited: bool = False) -> str:
        """Send a GET, or a POST if there is a JSON `body`; return the body of the response as text.

        `unlimited` lets the response take any time.
        """
        limit_s = None if unlimited else _REPLY_S
        timeout = httpx.Timeout(limit_s, connect=self._connect_s)
        method = "POST" if body else "GET"
        request = self._client.stream(method, path, json=body, headers=self._headers, timeout=timeout)
        with self._converted_errors():
            async with asyncio.timeout(limit_s), request as response:
                await self._raise_for_status(response)
                return (await _read_body(response, _MAX_BYTES, self.url)).decode("utf-8", "replace")

    async def get_json(self, path: str, body: Mapping[str, Any] | None = None, *, unlimited: bool = False) -> Any:  # noqa: ANN401 -- the caller checks
        """Send a GET, or a POST if there is a JSON `body`; return the parsed JSON of the response. See `get_text`."""
        return _parse_json(await self.get_text(path, body, unlimited=unlimited), self.url + path)

    @asynccontextmanager
    async def stream_events(
        self, path: str, body: dict[str, Any], purpose: str = "", kept_as: str | None = None
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """POST `body` and yield the parsed JSON of each server-sent event until `[DONE]`.

        A `purpose` is stated in this request alone: see set_purpose. The conversation may be kept on disk as `kept_as`,
        with "" without a name; with None it is not.

        Leaving the block closes the connection, which makes llama-server cancel the request. The server sends a ping
        every 30 s; after 75 s without data (two missed pings) or without response headers it counts as hung.
        """
        timeout = httpx.Timeout(_REPLY_S, connect=self._connect_s, read=_SILENCE_S)
        headers = {**self._headers, "Accept": "text/event-stream"}
        if kept_as is not None:
            del headers["Cache-Control"]
            headers |= {CONVERSATION_HEADER: kept_as} if kept_as else {}
        headers |= _purpose_header(purpose) if purpose else {}
        # A client of its own, because httpcore keeps cancelled streams in a shared pool.
        async with self._open_client() as client, AsyncExitStack() as stack:
            with self._converted_errors():
                async with asyncio.timeout(_SILENCE_S):
                    request = client.stream("POST", path, json=body, headers=headers, timeout=timeout)
                    response = await stack.enter_async_context(request)
                    await self._raise_for_status(response)
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise Refused(
                    message("{url}{path} did not send an event stream.", url=self.url, path=path),
                    message("Check that the address belongs to a llama-server."),
                )
            yield self._parse_events(response)

    async def _parse_events(self, response: httpx.Response) -> AsyncIterator[Any]:
        with self._converted_errors(message("in the middle of the reply")):
            async for event in read_events(response.aiter_raw(), _MAX_EVENT_BYTES, self.url):
                if event == "[DONE]":
                    return
                data = _parse_json(event, self.url)
                if isinstance(data, dict) and "error" in data:
                    self._raise_gateway_error(data)
                    raise llama_server_error(data, None, self.url)
                yield data

    async def _raise_for_status(self, response: httpx.Response) -> None:
        """Raise the error of an unsuccessful response."""
        if response.is_success:
            return
        try:
            data = json.loads(await _read_body(response, _MAX_ERROR_BYTES, self.url))
        except (ValueError, RecursionError, Refused):
            data = None
        self._raise_gateway_error(data)
        raise llama_server_error(data, response.status_code, str(response.url), response.headers.get("Location"))

    @contextmanager
    def _converted_errors(self, when: str = message("before the reply was complete")) -> Iterator[None]:
        """Turn errors of httpx into Unreachable; `when` says at which moment a closed connection was lost."""
        try:
            yield
        except httpx.ConnectError as error:
            if self._remote:
                hint = message("Check the address, and whether the server runs.")
                raise connection_error(self.url, error, connecting=True, hint=hint) from error
            raise Unreachable(
                message("No server responds at {url}.", url=self.url), message("Is the server still running?")
            ) from error
        except (httpx.TimeoutException, TimeoutError) as error:
            raise Unreachable(
                message("{url} did not respond in time.", url=self.url), message("See its log.")
            ) from error
        except httpx.ProxyError as error:
            raise proxy_error(self.url, str(error)) from error
        except httpx.HTTPError as error:
            was_closed = isinstance(error, httpx.NetworkError) or str(error).startswith(_CLOSED)
            why = when if was_closed else message("because the reply was not HTTP")
            raise self._lost_connection(why) from error

    def _raise_gateway_error(self, data: object) -> None:
        """Raise Unreachable or GaveWay for the errors by which our gateway tells why a reply has ended."""
        error = data.get("error") if isinstance(data, dict) else None
        if isinstance(error, dict) and error.get("type") == INTERRUPTED:
            raise self._lost_connection(message("in the middle of the reply"))
        if isinstance(error, dict) and error.get("type") == GAVE_WAY:
            raise GaveWay(message("A client uses the server, so the measurement waits."))

    def _lost_connection(self, why: str) -> Unreachable:
        return Unreachable(
            message("The connection to {url} was lost {why}.", url=self.url, why=why), message("See the server's log.")
        )


async def _read_body(response: httpx.Response, max_bytes: int, url: str) -> bytes:
    """Return a body of up to `max_bytes`, without unpacking compressed data, which could be far larger.

    Raises Refused for a larger one; `url` is the server's, for the error.
    """
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > max_bytes:
            raise Refused(
                message(
                    "{where} sent more than {most:,} bytes, which llama-server never does.", where=url, most=max_bytes
                ),
                message("Check that the address belongs to a llama-server."),
            )
    return bytes(body)


def _parse_json(
    text: str | bytes | bytearray, url: str, hint: str = message("Check that the address belongs to a llama-server.")
) -> Any:  # noqa: ANN401 -- the caller checks the shape
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(message("{where} sent something that is not JSON.", where=url), hint) from error


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The status and headers of a response, without its body. Header names are in lower case.

    `url` is the address that sent it, which after a redirect is not the requested one.
    """

    status: int
    headers: Mapping[str, str]
    url: str = ""


def send_head_request(url: str, *, token: str | None = None) -> ResponseHead:
    """Send a HEAD request through the environment's proxies; redirects are not followed.

    A response of any status is returned. Raises Unreachable if there is none.
    """
    with make_remote_client() as client, converted_errors(url):
        return _response_head(client.head(url, headers=bearer_header(token)))


def _response_head(response: httpx.Response) -> ResponseHead:
    return ResponseHead(response.status_code, dict(response.headers), str(response.url))  # names are in lower case


@dataclass(frozen=True, slots=True)
class JsonPage:
    """One page of a JSON API: the response head, and the parsed content, None if the status is not a success."""

    head: ResponseHead
    data: Any


def fetch_json_pages(
    url: str, *, token: str | None = None, headers: Mapping[str, str] | None = None, limit_bytes: int = 2**25
) -> Iterator[JsonPage]:
    """GET JSON through the environment's proxies, and the following pages by `Link: rel="next"` (RFC 8288).

    `headers` are sent with each request. Redirects are followed, but the token is sent only to the server of `url`. A
    page of any status is yielded; after an unsuccessful one the iteration ends. Raises Unreachable if there is no
    response or an incomplete one, Refused if it is not JSON or if all pages together exceed `limit_bytes`.
    """
    page_url, bytes_left = url, limit_bytes
    with make_remote_client() as client, converted_errors(url):
        while page_url:
            page_headers = {
                **(headers or {}),
                **bearer_header(token if is_sent_token(url, page_url) else None),
            }
            with client.stream("GET", page_url, headers=page_headers, follow_redirects=True) as response:
                _check_encrypted(page_url, response)
                head = _response_head(response)
                if not response.is_success:
                    yield JsonPage(head, None)
                    return
                body = _read_limited(response, host_name(url), bytes_left, limit_bytes)
                bytes_left -= len(body)
                next_link = response.links.get("next", {}).get("url")
                page_url = str(response.url.join(next_link)) if next_link else ""
            yield JsonPage(head, _parse_json(body, host_name(head.url), message("Check the address.")))


def fetch_file(url: str, *, limit_bytes: int) -> tuple[ResponseHead, bytes | None]:
    """GET a small file through the environment's proxies. Its content is None if the status is not a success.

    Raises Unreachable if there is no response or an incomplete one, Refused if it is larger than `limit_bytes`.
    """
    with (
        make_remote_client() as client,
        converted_errors(url),
        client.stream("GET", url, follow_redirects=True) as response,
    ):
        _check_encrypted(url, response)
        head = _response_head(response)
        if not response.is_success:
            return head, None
        return head, bytes(_read_limited(response, host_name(url), limit_bytes, limit_bytes))


def _check_encrypted(url: str, response: httpx.Response) -> None:
    """Raise Refused if an encrypted request was redirected to an unencrypted address."""
    if url.startswith("https:") and response.url.scheme != "https":
        raise Refused(
            message("{following} redirects to an unencrypted address.", following=host_name(url)),
            message("Try again later."),
        )


def _read_limited(response: httpx.Response, host: str, bytes_left: int, limit_bytes: int) -> bytearray:
    """Return a response's body. Raises Refused if it has more than `bytes_left`; `limit_bytes` is named."""
    body = bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > bytes_left:
            raise Refused(
                message("{url} sent more than {limit_bytes:,} bytes.", url=host, limit_bytes=limit_bytes),
                message("Try again later."),
            )
    return body


def error_for_status(url: str, head: ResponseHead) -> Refused:
    """Return the error for the unsuccessful status of a request for a file."""
    status = head.status
    wait = head.headers.get("retry-after", "")
    what, hint = {
        401: (message("requires a token"), message("Set your access token for it.")),
        403: (
            message("denies access to this file"),
            message("Request access from its owner, or set a token that has access."),
        ),
        404: (message("does not have this file"), message("Check the name.")),
        407: (message("is behind a proxy that requires a login"), GIVE_PROXY_LOGIN),
        410: (message("no longer has this file"), message("Check the name.")),
        429: (
            message("received too many requests"),
            message("Try again in {wait} s.", wait=wait) if wait.isdecimal() else message("Try again later."),
        ),
    }.get(
        status,
        (
            message("answers with HTTP status {status}", status=status),
            message("Try again later.") if status >= 500 else "",
        ),
    )
    kind = RateLimited if status == 429 else Refused
    return kind(
        message("{url} {what}.", url=host_name(url), what=what), hint, status=status, wait_s=parse_retry_after(wait)
    )


def parse_retry_after(text: str) -> float | None:
    """Return the seconds to wait by a Retry-After header (RFC 9110, 10.2.3): a number or a date. None if invalid."""
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def make_remote_client() -> httpx.Client:
    """Return a client for other computers that uses the environment's proxies and refuses redirects away from https."""
    return httpx.Client(
        timeout=httpx.Timeout(30.0, connect=_REMOTE_CONNECT_S),
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
        trust_env=False,
        transport=http_proxies.ProxyTransport(make_tls_context()),
        event_hooks={"response": [_check_redirect]},
    )


def _purpose_header(purpose: str) -> dict[str, str]:
    return {"User-Agent": f"{purpose} ({USER_AGENT})"}


def bearer_header(token: str | None) -> dict[str, str]:
    """Return the Authorization header for a token, or no header."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def _check_redirect(response: httpx.Response) -> None:
    """Raise the error of a redirect that must not be followed."""
    if response.has_redirect_location:
        redirect_target(str(response.url), response.headers["Location"])


@contextmanager
def converted_errors(url: str) -> Iterator[None]:
    """Turn errors of httpx in a request to another computer into Unreachable."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise Unreachable(
            message("Not a valid web address: {error}.", error=error),
            message("Use an address that begins with https://."),
        ) from error
    except httpx.HTTPError as error:
        with suppress(RuntimeError):  # httpx raises it if the error has no request yet
            url = str(error.request.url)  # after a redirect, this is the address that failed
        if isinstance(error, httpx.ProxyError):
            raise proxy_error(url, str(error)) from error
        timed_out = isinstance(error, httpx.TimeoutException)
        raise connection_error(
            url, TimeoutError() if timed_out else error, connecting=isinstance(error, httpx.ConnectError)
        ) from error
