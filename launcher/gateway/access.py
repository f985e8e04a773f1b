"""Who may send requests to the gateway, and which of them it passes on."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web

GENERATING_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/completions",
        "/completions",
        "/completion",
        "/infill",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/embeddings",
        "/embedding",
        "/v1/rerank",
        "/rerank",
        "/v1/reranking",
        "/reranking",
    }
)
"""Paths of requests that take a slot of the engine."""
QUICK_PATHS = frozenset({"/tokenize", "/detokenize", "/apply-template", "/v1/messages/count_tokens"})
READING_PATHS = frozenset({"/props", "/v1/models", "/models", "/slots", "/metrics"})
OPEN_PATHS = frozenset({"/health", "/v1/health"})
"""Paths that need no key, as with llama-server."""


@dataclass(slots=True)
class Refusal(Exception):
    """A request that is refused, with the HTTP status and the reason."""

    status: int
    reason: str
    kind: str = "invalid_request_error"

    def make_response(self) -> web.Response:
        """Return the response, in the format of OpenAI's errors."""
        error = {"code": self.status, "message": self.reason, "type": self.kind}
        return web.json_response({"error": error}, status=self.status)


@dataclass(slots=True)
class Access:
    """The keys that open the gateway, by name."""

    keys: Mapping[str, str] = field(repr=False)

    def check_request(self, request: web.Request) -> str:
        """Return the name of the key that a request was sent with, "" where none is needed. Raises Refusal."""
        if request.path in OPEN_PATHS:
            return ""
        given = _sent_key(request).encode()
        for name, key in self.keys.items():
            if hmac.compare_digest(given, key.encode()):
                return name
        raise Refusal(401, "Invalid API key", "authentication_error")


def _sent_key(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return request.headers.get("X-Api-Key", "")


def check_path(method: str, path: str) -> None:
    """Raise Refusal unless requests of `method` to `path` pass through."""
    if method == "POST" and path in GENERATING_PATHS | QUICK_PATHS:
        return
    if method == "GET" and path in READING_PATHS | OPEN_PATHS:
        return
    known = path in GENERATING_PATHS | QUICK_PATHS | READING_PATHS | OPEN_PATHS
    raise Refusal(405 if known else 404, "This server has no such path" if not known else f"{path} takes no {method}")
