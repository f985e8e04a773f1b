"""The gateway: takes the clients' requests at one address, checks them, and passes them through a model's gate."""

import asyncio
import ipaddress
import json
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from launcher.base.net import CONVERSATION_HEADER
from launcher.gateway.access import (
    GENERATING_PATHS,
    HEADER_TIME_S,
    MEASUREMENT,
    METRICS_PATH,
    MODELS_PATHS,
    MOST_HEADER_BYTES,
    OPEN_PATHS,
    Access,
    Refusal,
    is_page_path,
    read_body,
)
from launcher.gateway.encrypted_listener import ContextFor, accept_connections
from launcher.gateway.exchange import Exchange, ExchangeState, RequestFailure
from launcher.gateway.gate import Gate, refuse_measurement
from launcher.gateway.model_router import ModelRouter, OneModelRouter
from launcher.gateway.request_metrics import CONTENT_TYPE
from launcher.gateway.state_keeper import StateKeeper
from launcher.gateway.system_text import add_system_text
from launcher.gateway.turns import MOST_WAITING, refuse_waiting

_LARGE_BODY_BYTES = 1 << 20
"""Size from which a body is parsed in a thread."""
_UNKNOWN_CLIENT_S = 60.0
"""Seconds until another request without a valid key is noted: else anybody could push all others out of the log."""
_MOST_NAME = 64
"""Most characters of a conversation's name that are kept: clients choose it."""
_log = logging.getLogger(__name__)
_http_log = logging.Logger("aiohttp", logging.CRITICAL + 1)
"""Takes what the HTTP server logs of malformed requests, and drops it: anyone can send such, and it quotes them."""


class Gateway:
    """Serves clients at one address. A request goes through the gate of the model that it names.

    `gate` is the gate of the model that the server was started with; `open_gate` makes further ones. `router` finds the
    gate for a request; a server that can load several models replaces it. Belongs to one asyncio loop. `on_exchange` is
    called whenever a request for a reply begins, is paused or ends. `own_metrics` returns the gateway's part of
    /metrics, which follows the engine's part. `make_keeper` makes what keeps a model's conversations on disk.
    """

    def __init__(
        self,
        access: Access,
        on_exchange: Callable[[Exchange], None] | None = None,
        own_metrics: Callable[[], str] | None = None,
        make_keeper: Callable[[], StateKeeper] = StateKeeper,
    ) -> None:
        self.access = access
        self._make_keeper = make_keeper
        self._own_metrics = own_metrics
        self._on_exchange = on_exchange
        self.gate = self.open_gate()
        self.router: ModelRouter = OneModelRouter(self.gate)
        self._reading = 0
        self._unknown_client_s = float("-inf")
        self._runner: web.ServerRunner | None = None
        self._accepting: list[asyncio.Task[None]] = []

    async def listen(self, sockets: Sequence[socket.socket], context_for: ContextFor | None = None) -> None:
        """Accept requests on listening sockets. With `context_for`, other computers must use TLS."""
        runner = self._runner or await self._open_runner()
        for each in sockets:
            if context_for is None:
                await web.SockSite(runner, each).start()
                continue
            assert runner.server is not None  # noqa: S101 -- `setup` has made the server
            self._accepting.append(asyncio.create_task(accept_connections(each, runner.server, context_for)))

    async def _open_runner(self) -> web.ServerRunner:
        # A web.Application would look for a route, though all requests take the same one.
        server = web.Server(
            self._answer_request,
            access_log=None,
            handler_cancellation=True,
            logger=_http_log,
            auto_decompress=False,
            max_field_size=MOST_HEADER_BYTES,
            keepalive_timeout=HEADER_TIME_S,
        )
        self._runner = runner = web.ServerRunner(server, shutdown_timeout=0.2)
        await runner.setup()
        return runner

    async def stop_listening(self) -> None:
        """Accept no more connections, and close connections to other computers. This computer's own requests go on."""
        accepting, self._accepting = self._accepting, []
        for each in accepting:
            each.cancel()
        if accepting:
            await asyncio.wait(accepting)
        if self._runner is None or self._runner.server is None:
            return
        for site in list(self._runner.sites):
            await site.stop()
        for connection in self._runner.server.connections:
            peer = connection.transport.get_extra_info("peername") if connection.transport is not None else None
            if peer is not None and not ipaddress.ip_address(peer[0]).is_loopback:
                connection.force_close()

    def open_gate(self) -> Gate:
        """Return the gate of a further model."""
        return Gate(self._on_exchange, self._make_keeper())

    async def close(self) -> None:
        """Stop listening, end all requests and delete saved slots."""
        await self.stop_listening()
        if self._runner is not None:
            await self._runner.cleanup()
        for gate in self.router.gates:
            await gate.close()

    def set_keys(self, keys: Mapping[str, str]) -> None:
        """Accept these keys from now on. Requests with a key whose name is gone end, even within a reply."""
        self.access.keys = dict(keys)
        for gate in self.router.gates:
            gate.revoke_keys(self.access.open_keys)

    def set_measurement_key(self, key: str | None) -> None:
        """Accept a measurement's requests with this key, or none any more (None). They give way to all others."""
        self.access.measurement_key = key
        if key is None:
            self._end_measurements()

    def _give_way(self, exchange: Exchange) -> None:
        """If `exchange` is a client's request for a reply, end the measurements' requests, which give way to it.

        Raises Refusal if `exchange` is a measurement's request, and clients' requests wait or run.
        """
        if exchange.path not in GENERATING_PATHS:
            return
        if not exchange.gives_way:
            self._end_measurements()
        elif any(gate.is_asked for gate in self.router.gates):
            raise refuse_measurement()

    def _end_measurements(self) -> None:
        for gate in self.router.gates:
            gate.end_measurements()

    async def _answer_request(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = self.access.own_headers(request)
        response = await self._handle_request(request, headers)
        if not response.prepared:
            response.headers.update(headers)
        return response

    async def _handle_request(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
        key_name, body = "", None
        try:
            if request.method == "OPTIONS":
                return self.access.answer_preflight(request)
            key_name = self.access.check_request(request)
            if request.path in OPEN_PATHS:
                return await self._report_health()
            if is_page_path(request.path):
                return await self._send_page_file(request)
            if request.path == METRICS_PATH and self._own_metrics is not None:
                return await self._report_metrics(request, self._own_metrics())
            if request.path in MODELS_PATHS and (models := await self.router.list_models()) is not None:
                return web.json_response({"object": "list", "data": models})
            raw = await self._read_body(request)
            body = await _parse_body(raw)
            if key_name not in self.access.open_keys:  # revoked meanwhile
                raise Refusal(401, "Invalid API key")
            route = await self.router.find_route(_find_model_name(request, body), body)
            if body is not None and route.system_text:
                changed = add_system_text(request.path, body, route.system_text)
                if changed is not body:
                    raw, body = json.dumps(changed).encode(), dict(changed)
            exchange = Exchange(
                request.path,
                raw,
                body,
                key_name=key_name,
                user_agent=request.headers.get("User-Agent", ""),
                served_by=route.model,
                gives_way=key_name == MEASUREMENT,
                may_be_kept="no-store" not in request.headers.get("Cache-Control", "").lower(),
                conversation=request.headers.get(CONVERSATION_HEADER, "")[:_MOST_NAME],
            )
            self._give_way(exchange)
            return await route.gate.serve_exchange(request, exchange, headers, route.ready)
        except Refusal as refusal:
            self._note_refusal(request, key_name, body, refusal)
            return refusal.make_response()
        except ConnectionError:
            raise
        except Exception:
            _log.exception("A request to %s failed.", request.path)
            raise

    def _note_refusal(
        self, request: web.BaseRequest, key_name: str, body: dict[str, Any] | None, refusal: Refusal
    ) -> None:
        """Note a request for a reply that is refused before it gets to a model."""
        if self._on_exchange is None or request.path not in GENERATING_PATHS or key_name == MEASUREMENT:
            return
        if not key_name:
            now_s = time.monotonic()
            if now_s - self._unknown_client_s < _UNKNOWN_CLIENT_S:
                return
            self._unknown_client_s = now_s
        exchange = Exchange(
            request.path, b"", body, key_name=key_name, user_agent=request.headers.get("User-Agent", "")
        )
        exchange.state, exchange.end = ExchangeState.ENDED, "refused"
        exchange.failure = RequestFailure.from_text(refusal.status, refusal.reason)
        self._on_exchange(exchange)

    async def _read_body(self, request: web.BaseRequest) -> bytes:
        """Return the body of a request. Raises Refusal, also when too many requests wait or arrive."""
        if self._reading + sum(gate.waiting_requests for gate in self.router.gates) >= MOST_WAITING:
            raise refuse_waiting()
        self._reading += 1
        try:
            return await read_body(request)
        finally:
            self._reading -= 1

    async def _report_health(self) -> web.Response:
        if await self.router.is_healthy():
            return web.json_response({"status": "ok"})
        reason = "The engine does not answer" if self.gate.has_engine else "Loading model"
        error = {"code": 503, "message": reason, "type": "unavailable_error"}
        return web.json_response({"error": error}, status=503)

    async def _send_page_file(self, request: web.BaseRequest) -> web.Response:
        """Return a file of the engine's web page. The engine is asked without a key, so it shows what anybody may see.

        Raises Refusal if no engine answers.
        """
        gates = (self.gate, *self.router.gates)
        page_file = None
        for gate in gates:
            page_file = page_file or await gate.read_page_file(request)
        if page_file is None:
            raise Refusal(503, "No engine answers now")
        return page_file

    async def _report_metrics(self, request: web.BaseRequest, own: str) -> web.Response:
        """Return the metrics of an engine, if it answers, and the gateway's own."""
        name = request.query.get("model")
        gate = self.router.find_loaded_gate(name) if name else self.gate
        engines = await gate.read_metrics() if gate else b""
        return web.Response(body=engines.lstrip() + own.encode(), headers={"Content-Type": CONTENT_TYPE})


def _find_model_name(request: web.BaseRequest, body: Mapping[str, Any] | None) -> str | None:
    """Return the model that a request names, in its body or, without one, in its query; None if it names none."""
    name = request.query.get("model") if body is None else body.get("model")
    return name if isinstance(name, str) and name.strip() else None


async def _parse_body(raw: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a request's body; None if there is no body, or its JSON is no object."""
    if not raw:
        return None
    try:
        body = json.loads(raw) if len(raw) < _LARGE_BODY_BYTES else await asyncio.to_thread(json.loads, raw)
    except (ValueError, RecursionError):
        raise Refusal(400, "The request's body is not valid JSON") from None
    return body if isinstance(body, dict) else None
