"""HTTP, met in the modules http*.py and nowhere else, so that the library behind it can be exchanged."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakSet

import httpx

from launcher import __version__
from launcher.base.errors import Refused, Unreachable
from launcher.base.events import read_events
from launcher.base.net import host_of, origin, redirected, tls_context, unreachable, unusable
from launcher.base.refusal import refusal_in
from launcher.base.words import part

_CONNECT_S, _REMOTE_CONNECT_S, _ANSWER_S, _PINGS_S = 2.0, 10.0, 10.0, 75.0
_MOST_BYTES, _MOST_EVENT_BYTES, _MOST_ERROR_BYTES = 2**23, 2**22, 2**16
"""Of an answer, an event and an error. A llama-server's largest are its metrics and slots, some 100 KB."""
_CUT = ("peer closed connection", "Server disconnected")  # h11's and httpcore's words for an end by the other side


class LoopbackClient:
    """JSON and event streams with a server on this computer, never through a proxy.

    With `remote` the server may be elsewhere: its certificate is checked and the environment's proxy is used. No
    redirect is followed. Raises Unreachable when the server does not answer, is too slow or breaks off, Refused when it
    answers with an error or with more than a server of models has to say.
    """

    def __init__(self, url: str, *, api_key: str | None = None, remote: bool = False) -> None:
        self.url = url
        self._remote = remote
        self._key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._connect_s = _REMOTE_CONNECT_S if remote else _CONNECT_S
        # On loopback, where plain HTTP is spoken, loading certificates would take 20 ms for nothing.
        self._verify = tls_context() if remote else False
        self._clients: WeakSet[httpx.AsyncClient] = WeakSet()
        try:
            httpx.Request("GET", url)  # which a host's name that is none would not survive
            self._client = self._opened()
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            raise unusable(error, url) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection, streams included."""
        for client in list(self._clients):
            await client.aclose()

    def _opened(self) -> httpx.AsyncClient:
        client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Accept-Encoding": "identity"},
            trust_env=self._remote,
            verify=self._verify,
            timeout=httpx.Timeout(10.0, connect=self._connect_s),
        )
        self._clients.add(client)
        return client

    async def status(self, path: str, *, timeout_s: float) -> int | None:
        """Return the HTTP status of a GET without the key, or None when nothing answers within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s), self._client.stream("GET", path) as response:
                await _content(response, _MOST_ERROR_BYTES, self.url)  # so that the connection can be used again
                return response.status_code
        except (httpx.HTTPError, TimeoutError, Refused):
            return None

    async def text(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """GET a body as text, or POST `body` as JSON for it."""
        asked = self._client.stream("POST" if body else "GET", path, json=body, headers=self._key)
        with self._translated():
            async with asyncio.timeout(_ANSWER_S), asked as response:
                await self._check(response)
                return (await _content(response, _MOST_BYTES, self.url)).decode("utf-8", "replace")

    async def json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 -- the caller checks
        """GET parsed JSON, or POST `body` for it."""
        return _parsed(await self.text(path, body), self.url + path)

    @asynccontextmanager
    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[Any]]:
        """POST `body` and yield the parsed JSON of each server-sent event, up to `[DONE]`.

        Leaving the block closes the connection, which makes llama-server cancel the request.
        The server sends a ping every 30 s; two missed pings count as a hang. Its headers may take as long in all.
        """
        timeout = httpx.Timeout(_ANSWER_S, connect=self._connect_s, read=_PINGS_S)
        headers = {**self._key, "Accept": "text/event-stream", "Cache-Control": "no-store"}
        async with self._opened() as client, AsyncExitStack() as stack:  # a pool keeps cancelled ones in httpcore
            with self._translated():
                async with asyncio.timeout(_PINGS_S):
                    asked = client.stream("POST", path, json=body, headers=headers, timeout=timeout)
                    response = await stack.enter_async_context(asked)
                    await self._check(response)
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise Refused(f"{self.url}{path} sent something that is no stream.", "Is it a llama-server?")
            yield self._parsed_events(response)

    async def _parsed_events(self, response: httpx.Response) -> AsyncIterator[Any]:
        with self._translated(part("in the middle of the reply")):
            async for event in read_events(response.aiter_raw(), _MOST_EVENT_BYTES, self.url):
                if event == "[DONE]":
                    return
                data = _parsed(event, self.url)
                if isinstance(data, dict) and "error" in data:
                    raise refusal_in(data, None, self.url)
                yield data

    async def _check(self, response: httpx.Response) -> None:
        """Raise the error that a response tells."""
        if response.is_success:
            return
        try:
            data = json.loads(await _content(response, _MOST_ERROR_BYTES, self.url))
        except (ValueError, RecursionError, Refused):
            data = None
        raise refusal_in(data, response.status_code, str(response.url), response.headers.get("Location"))

    @contextmanager
    def _translated(self, when: str = part("before its answer was whole")) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            if self._remote:
                raise unreachable(self.url, error, connecting=True) from error
            raise Unreachable(f"Nothing answers at {self.url}.", "Is the server still running?") from error
        except (httpx.TimeoutException, TimeoutError) as error:
            raise Unreachable(f"{self.url} did not answer in time.", "See its log.") from error
        except httpx.HTTPError as error:
            cut = isinstance(error, httpx.NetworkError) or str(error).startswith(_CUT)
            why = when if cut else part("because what came is no HTTP")
            raise Unreachable(f"The connection to {self.url} broke off {why}.", "See the server's log.") from error


async def _content(response: httpx.Response, most: int, where: str) -> bytes:
    """Read a body of up to `most` bytes. What is packed stays so: it could hold far more."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > most:
            raise Refused(f"{where} sends more than {most:,} bytes, as no llama-server does.", "Is it a llama-server?")
    return bytes(body)


def _parsed(text: str | bytes | bytearray, where: str, hint: str = "Is it a llama-server?") -> Any:  # noqa: ANN401 -- the caller checks the shape
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{where} sent something that is not JSON.", hint) from error


@dataclass(frozen=True, slots=True)
class Head:
    """What a server says of an address, without its content. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]


def head(url: str, *, token: str | None = None) -> Head:
    """Ask with HEAD, through the environment's proxies. No redirect is followed: the first answer has what it says.

    Any status is an answer. Raises Unreachable when there is none.
    """
    with remote_client() as client, reaching(url):
        response = client.head(url, headers=bearer(token))
        return Head(response.status_code, {name.lower(): value for name, value in response.headers.items()})


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a JSON interface: the server's answer, and its content, None unless the answer is a success."""

    head: Head
    data: Any


def json_pages(
    url: str, *, token: str | None = None, headers: Mapping[str, str] | None = None, limit_bytes: int = 2**25
) -> Iterator[Page]:
    """GET JSON, through the environment's proxies, and the pages that follow it by `Link: rel="next"` (RFC 8288).

    `headers` are sent with each request. Redirects are followed, and the token goes to no other server than that of
    `url`. Any status is an answer, an error the last one. Raises Unreachable when there is none or it breaks off,
    Refused when it is not JSON, or when all pages together are longer than `limit_bytes`.
    """
    following, left = url, limit_bytes
    with remote_client() as client, reaching(url):
        while following:
            sent = {**(headers or {}), **bearer(token if origin(url) == origin(following) else None)}
            with client.stream("GET", following, headers=sent, follow_redirects=True) as response:
                if following.startswith("https:") and response.url.scheme != "https":
                    raise Refused(f"{host_of(following)} leads to an address without encryption.", "Try again later.")
                told = Head(response.status_code, {name.lower(): value for name, value in response.headers.items()})
                if not response.is_success:
                    yield Page(told, None)
                    return
                body = bytearray()
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > left:
                        raise Refused(
                            f"{host_of(url)} sends more than {limit_bytes:,} bytes of JSON.", "Try again later."
                        )
                left -= len(body)
                further = response.links.get("next", {}).get("url")
                following = str(response.url.join(further)) if further else ""
            yield Page(told, _parsed(body, host_of(url), "Is its address right?"))


def refusal_of(url: str, answer: Head) -> Refused:
    """Return the error for a status that is none of success, as far as the status alone tells what is wrong."""
    status = answer.status
    wait = answer.headers.get("retry-after", "")
    what, hint = {
        401: (part("wants to know who asks"), "Set the token that it gave you."),
        403: (part("does not let you have this file"), "Ask its owner for access, or set a token that has it."),
        404: (part("has no such file"), "Check the name."),
        410: (part("has this file no longer"), "Check the name."),
        429: (part("has had too many requests"), f"Try again in {wait} s." if wait.isdecimal() else "Try again later."),
    }.get(status, (part(f"answers with HTTP status {status}"), "Try again later." if status >= 500 else ""))
    return Refused(f"{host_of(url)} {what}.", hint, status=status)


def remote_client() -> httpx.Client:
    """Return a client for other computers, through the environment's proxies; it follows no redirect into the clear."""
    headers = {"User-Agent": f"mtp-launcher/{__version__}", "Accept-Encoding": "identity"}
    try:
        return httpx.Client(
            timeout=httpx.Timeout(30.0, connect=10.0),
            headers=headers,
            verify=tls_context(),
            event_hooks={"response": [_check_redirect]},
        )
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:  # socks without its library, a bad scheme
        raise unusable(error) from error


def bearer(token: str | None) -> dict[str, str]:
    """Return the headers that carry a token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def _check_redirect(answer: httpx.Response) -> None:
    if answer.has_redirect_location:
        redirected(str(answer.url), answer.headers["Location"])


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Turn what goes wrong on the way to another computer into Unreachable, by its cause."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise Unreachable(f"There is no web server at such an address: {error}.", "It begins with https://.") from error
    except httpx.HTTPError as error:
        with suppress(RuntimeError):  # there is none when it failed before it was made
            url = str(error.request.url)  # where a redirect led
        timed_out = isinstance(error, httpx.TimeoutException)
        raise unreachable(
            url, TimeoutError() if timed_out else error, connecting=isinstance(error, httpx.ConnectError)
        ) from error
