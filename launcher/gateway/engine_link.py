"""The gateway's connection to one engine: its address and key, and requests of the gateway's own."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from launcher.gateway.engine_connection import EngineLost, EngineReply, open_reply

_OWN_REQUESTS_S = 30.0
"""Time limit of the gateway's own requests. Saving the slot of a long conversation takes a few seconds."""
_HEALTH_S, _METRICS_S, _PAGE_S = 2.0, 8.0, 10.0
"""Time limits of other requests. An engine answers between two batches; Prometheus waits 10 s for metrics."""


@dataclass(frozen=True, slots=True)
class EngineLink:
    """An engine that serves requests, until it is stopped.

    `slots` is how many requests it works on at once. `slot_folder` is where it saves slots, None if it cannot.
    `state_key` is the same for engines that can restore each other's slots. `reply_limit` is the most tokens of a reply
    whose request names no limit, None without one. `model` is the model's file. `keeps_states` is False where a state
    may not fit later: adapters can be weighed anew at any time.
    """

    url: str
    api_key: str = field(repr=False)
    slots: int
    slot_folder: Path | None
    state_key: str
    reply_limit: int | None = None
    model: Path | None = None
    keeps_states: bool = True

    async def open_reply(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> EngineReply:
        """Send a request; return the reply once its headers have come. Raises EngineLost."""
        access = {"Authorization": f"Bearer {self.api_key}"}
        return await open_reply(self._address, method, path, {**(headers or {}), **access}, body)

    @property
    def _address(self) -> tuple[str, int]:
        return _split_address(self.url)

    async def _fetch(self, method: str, path: str, limit_s: float, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request of the gateway's own; return the status and the whole reply. Raises EngineLost."""
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            async with asyncio.timeout(limit_s):
                with closing(await self.open_reply(method, path, headers, body)) as reply:
                    return reply.status, await reply.read_whole()
        except TimeoutError as error:
            raise EngineLost from error

    async def request_json(
        self, path: str, body: Mapping[str, Any], *, limit_s: float = _OWN_REQUESTS_S
    ) -> tuple[int, dict[str, Any]]:
        """Send a request of the gateway's own; return the status and the JSON object. Raises EngineLost."""
        status, reply = await self._fetch("POST", path, limit_s, json.dumps(body).encode())
        try:
            data = json.loads(reply) if reply.strip() else None
        except ValueError as error:
            raise EngineLost from error
        return status, data if isinstance(data, dict) else {}

    async def answers(self) -> bool:
        """Return whether the engine has loaded its model and answers."""
        try:
            return (await self._fetch("GET", "/health", _HEALTH_S))[0] == 200
        except EngineLost:
            return False

    async def read_metrics(self) -> bytes:
        """Return the engine's metrics; nothing if it does not answer."""
        try:
            status, metrics = await self._fetch("GET", "/metrics", _METRICS_S)
        except EngineLost:
            return b""
        return metrics.rstrip() + b"\n" if status == 200 else b""

    async def read_model(self) -> Mapping[str, Any]:
        """Return the engine's own entry of /v1/models; nothing if it does not answer."""
        try:
            entry = json.loads((await self._fetch("GET", "/v1/models", _HEALTH_S))[1])["data"][0]
        except (EngineLost, ValueError, LookupError, TypeError):
            return {}
        return entry if isinstance(entry, dict) else {}

    async def read_slots(self) -> list[dict[str, Any]]:
        """Return what the engine says of its slots; nothing if it does not tell. Raises EngineLost."""
        status, reply = await self._fetch("GET", "/slots", _HEALTH_S)
        try:
            slots = json.loads(reply) if status == 200 else []
        except ValueError as error:
            raise EngineLost from error
        return [each for each in slots if isinstance(each, dict) and isinstance(each.get("id"), int)]

    async def read_page_file(self, path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        """Ask for a file of the engine's web page, without the key; return status, headers and content.

        Raises EngineLost.
        """
        try:
            async with asyncio.timeout(_PAGE_S):
                with closing(await open_reply(self._address, "GET", path, headers)) as reply:
                    return reply.status, reply.headers, await reply.read_whole()
        except TimeoutError as error:
            raise EngineLost from error

    async def render_prompt(self, body: Mapping[str, Any]) -> str | None:
        """Return the text that the engine makes of a chat request; None if it refuses the request."""
        status, data = await self.request_json("/apply-template", body)
        prompt = data.get("prompt")
        return prompt if status == 200 and isinstance(prompt, str) else None

    async def count_prompt(self, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of the prompt of a request in Anthropic's format; None if the engine refuses it."""
        status, data = await self.request_json("/v1/messages/count_tokens", body)
        count = data.get("input_tokens")
        return count if status == 200 and isinstance(count, int) else None

    async def detokenize(self, tokens: list[int]) -> str:
        """Return the text of tokens, special ones included."""
        _, data = await self.request_json("/detokenize", {"tokens": tokens})
        return str(data.get("content", ""))

    async def tokenize(self, text: str) -> list[int]:
        """Return the tokens that `text` is made of."""
        _, data = await self.request_json("/tokenize", {"content": text})
        tokens = data.get("tokens")
        return tokens if isinstance(tokens, list) else []

    async def token_pieces(self, text: str) -> list[object]:
        """Return the texts of the tokens that `text` is made of; a piece that is not valid UTF-8 is a list of bytes."""
        _, data = await self.request_json("/tokenize", {"content": text, "with_pieces": True})
        tokens = data.get("tokens")
        return [token.get("piece") for token in tokens] if isinstance(tokens, list) else []


@lru_cache(maxsize=16)
def _split_address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80
