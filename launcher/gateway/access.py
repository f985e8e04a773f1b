"""Checks of incoming requests: API key, host, origin, path and headers.

The HTTP server (aiohttp) refuses requests that two programs could read in two ways, such as those with two lengths, a
length beside chunks, folded lines, bare line feeds or control characters. The rest is checked here before the body is
read.
"""

import asyncio
import hmac
import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from aiohttp import HttpVersion11, web

from launcher.gateway.exchange import STREAM_PATHS

GENERATING_PATHS = STREAM_PATHS | {
    "/v1/embeddings",
    "/embeddings",
    "/embedding",
    "/v1/rerank",
    "/rerank",
    "/v1/reranking",
    "/reranking",
}
"""Paths of requests that take a slot of the engine."""
QUICK_PATHS = frozenset(
    {
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/v1/messages/count_tokens",
        "/v1/chat/completions/input_tokens",
        "/chat/completions/input_tokens",
        "/v1/responses/input_tokens",
        "/responses/input_tokens",
    }
)
METRICS_PATH = "/metrics"
MODELS_PATHS = frozenset({"/v1/models", "/models"})
READING_PATHS = frozenset({"/props", "/slots", "/lora-adapters", METRICS_PATH}) | MODELS_PATHS
_POST_PATHS = GENERATING_PATHS | QUICK_PATHS
RETRY_AFTER = "5"
"""Seconds after which a client may try again."""
OPEN_PATHS = frozenset({"/health", "/v1/health"})
"""Paths that need no key, as with llama-server."""
_GET_PATHS = READING_PATHS | OPEN_PATHS
_PAGE_PATH = re.compile(
    r"/(?:(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*\."
    r"(?:html|js|mjs|css|json|svg|png|ico|webp|webmanifest|woff2))?"
)
"""The engine's web page and its files. They are the same for everyone and hold nothing of the user."""
MOST_BODY_BYTES = 256 << 20
MOST_HEADER_BYTES = 64 << 10
BODY_PAUSE_S = 30.0
"""Seconds without a part of a body after which it counts as incomplete. A malformed chunk leads to this, too: the HTTP
server (aiohttp 3.14) does not report that no more will come.
"""
HEADER_TIME_S = 10.0
"""Seconds in which the headers of a request must arrive. A connection may be unused for as long."""
_LOCAL_NAME = re.compile(r"(?:.+\.)?localhost|.+\.internal")
"""Names that no web site can have: `localhost`, and `.internal`, which ICANN reserved for private use in 2024.
Containers reach this computer by `host.docker.internal` and `host.containers.internal`."""
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_LOOPBACK_ORIGIN = re.compile(
    r"https?://(?:(?:[a-z0-9-]+\.)*localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE
)
_APP_ORIGIN = re.compile(
    r"(?:app|tauri|vscode-webview|vscode-file|chrome-extension|moz-extension|safari-web-extension)://[A-Za-z0-9._-]*"
)
"""Origins of extensions of browsers, and of desktop programs that are built like web pages. No page of the web can have
them."""
_PAGE_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
ALLOWED_NAMES_SETTING = "server.allowed_names"
"""The app setting that a refusal names; launcher/app declares it."""
_HEADER_NAMES = re.compile(r"[A-Za-z0-9, -]{0,1024}")
_PREFLIGHT_S = 600
"""Seconds for which a browser may remember the answer to a preflight."""
_OWN_HEADERS: Mapping[str, str] = {"Server": "mtp-launcher", "X-Content-Type-Options": "nosniff"}
MEASUREMENT = "(measurement)"
"""Name of the key of a measurement; no key of a user can have it."""


_ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
"""The type that llama-server's error of a status has; `invalid_request_error` for all others."""


@dataclass(slots=True)
class Refusal(Exception):
    """A request that is refused, with the HTTP status and the reason, and the error's type if it is not the usual."""

    status: int
    reason: str
    kind: str = ""

    def __post_init__(self) -> None:
        """Set the usual type."""
        self.kind = self.kind or _ERROR_TYPES.get(self.status, "invalid_request_error")

    def make_response(self) -> web.Response:
        """Return the response, in the format of OpenAI's errors."""
        error = {"code": self.status, "message": self.reason, "type": self.kind}
        again = {"Retry-After": RETRY_AFTER} if self.status == 503 else {}
        return web.json_response({"error": error}, status=self.status, headers=again)


@dataclass(slots=True)
class Access:
    """The keys that open the gateway, by name, and the names by which clients reach it.

    A request must name this computer: a page of the web can have its own name point to this computer (DNS rebinding),
    but cannot change the name that the browser sends. An address in numbers needs no DNS and may be one that a router,
    WSL, Docker or SSH forwards from, also with a port of its own, so any will do. A shared gateway also answers to
    `own_names`. `read_allowed` returns the further names, and the origins of pages, that the user allows; it is asked
    only for those that are not allowed otherwise. A measurement to which the server is lent has a `measurement_key`.
    """

    keys: Mapping[str, str] = field(repr=False)
    own_names: Collection[str] = ()
    measurement_key: str | None = field(default=None, repr=False)
    read_allowed: Callable[[], Collection[str]] = tuple

    @property
    def open_keys(self) -> Mapping[str, str]:
        """All keys that open the gateway now, by name."""
        return {**self.keys, MEASUREMENT: self.measurement_key} if self.measurement_key else self.keys

    def check_request(self, request: web.BaseRequest) -> str:
        """Return the name of the key that a request was sent with, "" where none is needed.

        Raises Refusal for a request that is not passed on.
        """
        self._check_origin(request)
        path = request.raw_path.partition("?")[0]
        if path in OPEN_PATHS or is_page_path(path):
            check_path(request.method, path)
            return ""
        key_name = self._find_key_name(request)
        check_path(request.method, path)
        _check_body_headers(request)
        return key_name

    def answer_preflight(self, request: web.BaseRequest) -> web.Response:
        """Return the answer to a browser that asks whether a page may send a request. Raises Refusal."""
        self._check_origin(request)
        if not request.path.startswith("/"):  # OPTIONS * asks about the whole server
            raise _refuse_path()
        if "Origin" not in request.headers or "Access-Control-Request-Method" not in request.headers:
            raise Refusal(405, "OPTIONS is for browsers that ask whether a page may send a request")
        names = request.headers.get("Access-Control-Request-Headers", "")
        answer = {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": names if _HEADER_NAMES.fullmatch(names) else "",
            "Access-Control-Max-Age": str(_PREFLIGHT_S),
        }
        return web.Response(headers=answer)

    def own_headers(self, request: web.BaseRequest) -> Mapping[str, str]:
        """Return the headers that every response has, also one that refuses the request."""
        origin = request.headers.get("Origin")
        if origin is None or not self._allows_origin(origin, request):
            return _OWN_HEADERS
        return {**_OWN_HEADERS, "Access-Control-Allow-Origin": origin, "Vary": "Origin"}

    def _check_origin(self, request: web.BaseRequest) -> None:
        """Raise Refusal for headers that are too long or no text, and unless host and origin are allowed."""
        block = b"".join(name + value for name, value in request.raw_headers)
        if len(block) > MOST_HEADER_BYTES:
            raise Refusal(431, "The request's headers are too long")
        try:
            block.decode()
        except UnicodeDecodeError:
            raise Refusal(400, "The request's headers are not valid UTF-8") from None
        host = request.headers.get("Host", "")
        if not self._allows_host(host):
            parts = _HOST.fullmatch(host)
            raise Refusal(421, "This server does not answer to that host name" + _name_setting(parts and parts["name"]))
        origins = request.headers.getall("Origin", [])
        if len(origins) > 1 or not all(self._allows_origin(each, request) for each in origins):
            named = origins[0].lower() if _PAGE_ORIGIN.fullmatch(origins[0].lower()) else None
            raise Refusal(403, "Pages of other origins may not use this server" + _name_setting(named))

    def _allows_host(self, host: str) -> bool:
        name = _host_name(host)
        if name is None:
            return False
        return _is_local_or_address(name) or name in self.own_names or name in self.read_allowed()

    def _allows_origin(self, origin: str, request: web.BaseRequest) -> bool:
        if _LOOPBACK_ORIGIN.fullmatch(origin) or _APP_ORIGIN.fullmatch(origin):
            return True
        scheme, _, host = origin.partition("://")
        is_own = scheme in ("http", "https") and host == request.headers.get("Host") and self._allows_host(host)
        return is_own or origin.lower() in self.read_allowed()

    def _find_key_name(self, request: web.BaseRequest) -> str:
        given = _sent_key(request).encode()
        found = [name for name, key in self.open_keys.items() if hmac.compare_digest(given, key.encode())]
        if not found:
            raise Refusal(401, "Invalid API key")
        return found[0]


def _name_setting(name: str | None) -> str:
    """Return how a user allows `name`, to follow a refusal; "" for None, which cannot be allowed."""
    if name is None:
        return ""
    return (
        f". To allow it, add it to {ALLOWED_NAMES_SETTING}, a list of names with spaces between them: "
        f'mtp-launcher settings set {ALLOWED_NAMES_SETTING} "{name}"'
    )


def _host_name(host: str) -> str | None:
    parts = _HOST.fullmatch(host)
    return None if parts is None else parts["name"].lower()


@lru_cache(maxsize=64)
def _is_local_or_address(name: str) -> bool:
    if _LOCAL_NAME.fullmatch(name):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _sent_key(request: web.BaseRequest) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return request.headers.get("X-Api-Key", "")


def is_page_path(path: str) -> bool:
    """Return whether a path belongs to the engine's web page. Neither the gateway nor the engine asks a key for it."""
    return _PAGE_PATH.fullmatch(path) is not None


def check_path(method: str, path: str) -> None:
    """Raise Refusal unless requests of `method` to `path` pass through.

    The path is compared as it was sent, so another spelling of a listed path is refused. Requests to other paths never
    reach the engine: those that load models or LoRA adapters, change properties or save slots.
    """
    if method == "POST" and path in _POST_PATHS:
        return
    if method in ("GET", "HEAD") and (path in _GET_PATHS or is_page_path(path)):
        return
    known = path in _POST_PATHS or path in _GET_PATHS or is_page_path(path)
    raise Refusal(405, f"{path} takes no {method}") if known else _refuse_path()


def _refuse_path() -> Refusal:
    return Refusal(404, "This server has no such path")


def _check_body_headers(request: web.BaseRequest) -> None:
    """Raise Refusal unless the headers announce a body that is accepted."""
    # Other types of content can be sent by any page of the web without asking first.
    if request.method == "POST" and request.content_type != "application/json":
        raise Refusal(415, "Content-Type must be application/json")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refusal(415, "A compressed body is not accepted")
    if request.headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
        raise Refusal(501, "The only Transfer-Encoding that is accepted is chunked")
    if "Transfer-Encoding" in request.headers and request.version < HttpVersion11:
        raise Refusal(400, "HTTP/1.0 has no Transfer-Encoding")
    if (request.content_length or 0) > MOST_BODY_BYTES:
        raise _refuse_length()
    if request.headers.get("Expect", "100-continue").lower() != "100-continue":
        raise Refusal(417, "The only Expect that is accepted is 100-continue")


async def read_body(request: web.BaseRequest) -> bytes:
    """Return the body of a request that `Access.check_request` has let pass. Raises Refusal."""
    if "Expect" in request.headers:  # the client waits for this answer before it sends the body
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    body, content = bytearray(), request.content
    try:
        while not content.at_eof():
            if content.is_eof():  # all of it is here: a small body comes with its headers
                body += content.read_nowait()
            else:
                async with asyncio.timeout(BODY_PAUSE_S):
                    body += await content.readany()
            if len(body) > MOST_BODY_BYTES:
                raise _refuse_length()
    except TimeoutError:
        raise Refusal(408, "The request's body did not arrive") from None
    except web.RequestPayloadError:
        raise Refusal(400, "The request's body is malformed") from None
    return bytes(body)


def _refuse_length() -> Refusal:
    return Refusal(413, f"The request's body is longer than {MOST_BODY_BYTES >> 20} MiB")
