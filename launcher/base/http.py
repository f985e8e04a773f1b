"""HTTP, met here and nowhere else, so that the library behind it can be exchanged."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import httpx
import httpx_sse

from launcher.base.errors import Refused, Unreachable

_CONNECT_S = 2.0


class LoopbackClient:
    """JSON and event streams with a server on this computer; never through a proxy.

    Raises Unreachable when the server does not answer or breaks off, Refused when it answers with an error.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self.url = url
        self._key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(
            base_url=url,
            trust_env=False,
            verify=False,  # noqa: S501 -- plain HTTP on loopback: loading certificates would take 20 ms for nothing
            timeout=httpx.Timeout(10.0, connect=_CONNECT_S),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection, streams included."""
        await self._client.aclose()

    async def status(self, path: str, *, timeout_s: float) -> int | None:
        """Return the HTTP status of a GET without the key, or None when nothing answers within `timeout_s`."""
        try:
            return (await self._client.get(path, timeout=timeout_s)).status_code
        except httpx.HTTPError:
            return None

    async def text(self, path: str) -> str:
        """GET a body as text."""
        with self._translated():
            response = await self._client.get(path, headers=self._key)
        _raise_for(response)
        return response.text

    async def json(self, path: str) -> Any:  # noqa: ANN401 -- the caller checks the shape
        """GET a body as parsed JSON."""
        return _parsed(await self.text(path), self.url + path)

    @asynccontextmanager
    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[Any]]:
        """POST `body` and yield the parsed JSON of each server-sent event, up to `[DONE]`.

        Leaving the block closes the connection, which makes llama-server cancel the request.
        The server sends a ping every 30 s; two missed pings count as a hang.
        """
        timeout = httpx.Timeout(10.0, connect=_CONNECT_S, read=75.0)
        with self._translated():
            async with httpx_sse.aconnect_sse(
                self._client, "POST", path, json=body, headers=dict(self._key), timeout=timeout
            ) as source:
                if source.response.is_error:
                    await source.response.aread()
                    _raise_for(source.response)
                yield self._parsed_events(source)

    async def _parsed_events(self, source: httpx_sse.EventSource) -> AsyncIterator[Any]:
        async for event in source.aiter_sse():
            if event.data == "[DONE]":
                return
            data = _parsed(event.data, self.url)
            if isinstance(data, dict) and "error" in data:
                raise _refusal(data, None, self.url)
            yield data

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise Unreachable(f"Nothing answers at {self.url}.", "Is the server still running?") from error
        except httpx.TimeoutException as error:
            raise Unreachable(f"{self.url} did not answer in time.", "See its log.") from error
        except (httpx.HTTPError, httpx_sse.SSEError) as error:
            raise Unreachable(f"The connection to {self.url} broke off: {error}.", "See the server's log.") from error


def _parsed(text: str, where: str) -> Any:  # noqa: ANN401 -- the caller checks the shape
    try:
        return json.loads(text)
    except ValueError as error:
        raise Refused(f"{where} sent something that is not JSON.", "Is it a llama-server?") from error


def _raise_for(response: httpx.Response) -> None:
    if response.is_error:
        try:
            data = response.json()
        except ValueError:
            data = {}
        raise _refusal(data, response.status_code, str(response.url))


def _refusal(data: object, status: int | None, where: str) -> Refused:
    """Turn llama-server's `{"error": {"code", "message", "type"}}` into an error with a next step."""
    error = data.get("error") if isinstance(data, dict) else None
    error = error if isinstance(error, dict) else {"message": error}
    message = str(error.get("message") or f"HTTP status {status}")
    hints = {
        401: "The API key is wrong: `mtp-launcher status --json` shows the right one.",
        503: "It is still loading its model: try again in a moment.",
    }
    hint = hints.get(status or 0, "")
    if error.get("type") == "exceed_context_size_error":
        hint = "Shorten the prompt, or start the server with a larger --ctx."
    return Refused(f"The server refused the request: {message.rstrip('.')}.", hint, status=status, where=where)
