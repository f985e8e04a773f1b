"""The gateway: takes the clients' requests at one address, checks them, and passes them through a model's gate."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from launcher.gateway.access import (
    HEADER_TIME_S,
    METRICS_PATH,
    MOST_HEADER_BYTES,
    OPEN_PATHS,
    Access,
    Refusal,
    leave_expectation,
    read_body,
)
from launcher.gateway.encrypted_listener import ContextFor, accept_connections
from launcher.gateway.engine_link import open_engine_session
from launcher.gateway.exchange import Exchange
from launcher.gateway.gate import Gate
from launcher.gateway.request_metrics import CONTENT_TYPE
from launcher.gateway.turns import MOST_WAITING, refuse_waiting

_LARGE_BODY_BYTES = 1 << 20
"""Size from which a body is parsed in a thread."""
_log = logging.getLogger(__name__)
_http_log = logging.Logger("aiohttp", logging.CRITICAL + 1)
"""Takes what the HTTP server logs of malformed requests, and drops it: anyone can send such, and it quotes them."""


class Gateway:
    """Serves clients at one address, through the gate of a model.

    Belongs to one asyncio loop. `on_exchange` is called whenever a request for a reply begins, is paused or
    ends. `own_metrics` returns the gateway's part of /metrics, which follows the engine's.
    """

    def __init__(
        self,
        access: Access,
        on_exchange: Callable[[Exchange], None] | None = None,
        own_metrics: Callable[[], str] | None = None,
    ) -> None:
        self.access = access
        self._own_metrics = own_metrics
        self._http = open_engine_session()
        self.gate = Gate(self._http, on_exchange)
        self._reading = 0
        self._runner: web.AppRunner | None = None
        self._accepting: list[asyncio.Task[None]] = []

    async def listen(self, sockets: Sequence[socket.socket], context_for: ContextFor | None = None) -> None:
        """Accept requests on listening sockets; with `context_for`, those of other computers with TLS only."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle_request, expect_handler=leave_expectation)
        app.on_response_prepare.append(self.access.add_headers)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=0.2,
            logger=_http_log,
            auto_decompress=False,
            max_field_size=MOST_HEADER_BYTES,
            keepalive_timeout=HEADER_TIME_S,
        )
        await self._runner.setup()
        for each in sockets:
            if context_for is None:
                await web.SockSite(self._runner, each).start()
                continue
            assert self._runner.server is not None  # noqa: S101 -- set up
            accepting = accept_connections(each, self._runner.server, context_for)
            self._accepting.append(asyncio.create_task(accepting))

    async def close(self) -> None:
        """Stop listening, end all requests and delete saved slots."""
        for each in self._accepting:
            each.cancel()
        if self._accepting:
            await asyncio.wait(self._accepting)
        if self._runner is not None:
            await self._runner.cleanup()
        await self._http.close()
        self.gate.close()

    def set_keys(self, keys: Mapping[str, str]) -> None:
        """Let requests with these keys in from now on. Those of a name that is gone end, even within a reply."""
        self.access.keys = dict(keys)
        self.gate.revoke_keys(keys)

    async def _handle_request(self, request: web.Request) -> web.StreamResponse:
        try:
            if request.method == "OPTIONS":
                return self.access.answer_preflight(request)
            key_name = self.access.check_request(request)
            if request.path in OPEN_PATHS:
                return await self._report_health()
            if request.path == METRICS_PATH and self._own_metrics is not None:
                return await self._report_metrics(self._own_metrics())
            raw = await self._read_body(request)
            body = await _parse_body(raw)
            if key_name not in self.access.keys:  # revoked meanwhile
                raise Refusal(401, "Invalid API key", "authentication_error")
            exchange = Exchange(
                request.path,
                raw,
                body,
                key_name=key_name,
                user_agent=request.headers.get("User-Agent", ""),
            )
            return await self.gate.serve_exchange(request, exchange)
        except Refusal as refusal:
            return refusal.make_response()
        except ConnectionError:
            raise
        except Exception:
            _log.exception("A request to %s failed.", request.path)
            raise

    async def _read_body(self, request: web.Request) -> bytes:
        """Return the body of a request. Raises Refusal, also when too many requests wait or arrive."""
        if self._reading + self.gate.waiting_requests >= MOST_WAITING:
            raise refuse_waiting()
        self._reading += 1
        try:
            return await read_body(request)
        finally:
            self._reading -= 1

    async def _report_health(self) -> web.Response:
        if await self.gate.is_healthy():
            return web.json_response({"status": "ok"})
        reason = "The engine does not answer" if self.gate.has_engine else "Loading model"
        error = {"code": 503, "message": reason, "type": "unavailable_error"}
        return web.json_response({"error": error}, status=503)

    async def _report_metrics(self, own: str) -> web.Response:
        """Return the engine's metrics, if one answers, and the gateway's own."""
        engines = await self.gate.read_metrics()
        return web.Response(body=engines.lstrip() + own.encode(), headers={"Content-Type": CONTENT_TYPE})


async def _parse_body(raw: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a request; None if it has no body or another one."""
    if not raw:
        return None
    try:
        body = json.loads(raw) if len(raw) < _LARGE_BODY_BYTES else await asyncio.to_thread(json.loads, raw)
    except (ValueError, RecursionError):
        raise Refusal(400, "The request's body is not valid JSON") from None
    return body if isinstance(body, dict) else None
