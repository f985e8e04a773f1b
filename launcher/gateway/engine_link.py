"""The gateway's connection to one engine: its address and key, and requests of the gateway's own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

_OWN_TIMEOUT = ClientTimeout(total=30.0)
"""Time limit of the gateway's own requests. Saving the slot of a long conversation takes a few seconds."""


class EngineLost(Exception):
    """The engine did not answer, or the connection to it broke."""


class EngineUnreached(EngineLost):
    """The engine took no connection, so it has seen nothing of the request."""


@dataclass(frozen=True, slots=True)
class EngineLink:
    """An engine that serves requests, until it is stopped.

    `slots` is how many requests it works on at once. `slot_folder` is where it saves slots, None if it cannot.
    `state_key` is the same for engines that can restore each other's slots.
    """

    url: str
    api_key: str = field(repr=False)
    slots: int
    slot_folder: Path | None
    state_key: str
    http: ClientSession = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Headers that give access to the engine."""
        return {"Authorization": f"Bearer {self.api_key}"}

    async def request_json(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Send a request of the gateway's own; return the status and the JSON object. Raises EngineLost."""
        try:
            async with self.http.post(self.url + path, json=body, headers=self.headers, timeout=_OWN_TIMEOUT) as reply:
                data = await reply.json(content_type=None)
                return reply.status, data if isinstance(data, dict) else {}
        except (ClientError, OSError, TimeoutError, ValueError) as error:
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

    async def token_pieces(self, text: str) -> list[object]:
        """Return the texts of the tokens that `text` is made of; a piece that is no valid UTF-8 is a list of bytes."""
        _, data = await self.request_json("/tokenize", {"content": text, "with_pieces": True})
        tokens = data.get("tokens")
        return [token.get("piece") for token in tokens] if isinstance(tokens, list) else []


def open_engine_session() -> ClientSession:
    """Return a client session for engines.

    Each request gets a new connection: on reused ones llama-server dropped 2 of 30 streamed requests without an answer
    (tried with b11669). Replies are passed on as they are, so they are not decompressed.
    """
    return ClientSession(
        connector=TCPConnector(limit=0, force_close=True),
        timeout=ClientTimeout(total=None, sock_connect=5.0),
        auto_decompress=False,
    )
