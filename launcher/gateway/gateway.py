"""The gateway itself: takes requests at one address, holds them while no engine is ready, and hands them over."""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientError, ClientTimeout, web

from launcher.gateway.access import (
    GENERATING_PATHS,
    HEADER_TIME_S,
    METRICS_PATH,
    MOST_HEADER_BYTES,
    OPEN_PATHS,
    Access,
    Refusal,
    leave_expectation,
    read_body,
)
from launcher.gateway.continuation import TOKENS, drain_reason, find_mode, is_canonical, make_continuation
from launcher.gateway.encrypted_listener import ContextFor, accept_connections
from launcher.gateway.engine_link import EngineLink, EngineLost, EngineUnreached, open_engine_session
from launcher.gateway.exchange import Exchange, ExchangeState, HandoverOutlook
from launcher.gateway.forwarder import ClientGone, Forwarder
from launcher.gateway.request_metrics import CONTENT_TYPE
from launcher.gateway.saved_slots import SavedSlot, delete_slots, restore_slots, save_slots
from launcher.gateway.turns import MOST_WAITING, Turns, refuse_waiting

_LARGE_BODY_BYTES = 1 << 20
"""Size from which a body is parsed in a thread."""
_FIRST_COMMENT_S, _COMMENT_S = 1.0, 2.0
"""Seconds until a waiting client of a stream gets its headers, and between the comments that keep it waiting. An error
within the first second still has its own HTTP status."""
_WORD_S = 5.0
"""Seconds that streams have at least to reach the end of a word before they are cut."""
_CUT_OFF = "The server was stopped or restarted before the reply was complete"
_STREAMS_GO_ON_S, _POLL_S = 30.0, 0.02
_HEALTH_TIMEOUT = ClientTimeout(total=2.0)
_METRICS_TIMEOUT = ClientTimeout(total=8.0)
"""An engine answers between two batches. Prometheus waits 10 s."""
_log = logging.getLogger(__name__)
_http_log = logging.Logger("aiohttp", logging.CRITICAL + 1)
"""Takes what the HTTP server logs of malformed requests, and drops it: anyone can send such, and it quotes them."""


@dataclass(slots=True)
class HandoverReport:
    """What a handover meant for the clients: streams that go on, that could end before it, and that were cut off.

    Requests of which nothing had been delivered are only in `again`. Of the streams that go on, `uncertain` may do so
    with other words than without the handover.
    """

    continued: list[Exchange]
    uncertain: int = 0
    drained: int = 0
    cut: int = 0
    again: int = 0

    @property
    def outcome(self) -> str:
        """The outcome for the client that noticed most: "seamless", "drained" or "cut".

        A stream that the new engine refuses, because its context is too small, was cut, too.
        """
        refused = any(each.gap_open and each.end == "error" for each in self.continued)
        return "cut" if self.cut or refused else "drained" if self.drained else "seamless"

    async def wait_for_streams(self) -> None:
        """Wait until the streams that go on have done so or have ended, for at most `_STREAMS_GO_ON_S` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STREAMS_GO_ON_S):
                while any(map(_is_silent, self.continued)):  # noqa: ASYNC110 -- each goes on at a moment of its own
                    await asyncio.sleep(_POLL_S)

    @property
    def gap_s(self) -> float | None:
        """The longest pause in a stream that went on, in seconds; None if there was none."""
        return max((each.gaps_s[-1] for each in self.continued if each.gaps_s), default=None)


def _is_silent(exchange: Exchange) -> bool:
    return exchange.gap_open and exchange.state is not ExchangeState.ENDED


class Gateway:
    """Serves one model's clients at one address, whichever engine is behind it.

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
        self.report: HandoverReport | None = None
        self._on_exchange = on_exchange
        self._own_metrics = own_metrics
        self._http = open_engine_session()
        self._link: EngineLink | None = None
        self._lost_link: EngineLink | None = None
        self._turns = Turns()
        self._engine_ready = asyncio.Event()
        self._forwarders: set[Forwarder] = set()
        self._reading = 0
        self._saved: list[SavedSlot] = []
        self._pausing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
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
        delete_slots(self._saved)

    def make_link(self, url: str, api_key: str, **details: Any) -> EngineLink:  # noqa: ANN401 -- EngineLink's own
        """Return the connection to an engine. See EngineLink."""
        return EngineLink(url, api_key, http=self._http, **details)

    # The engine's side: a supervisor calls these.

    def foresee_handover(self) -> HandoverOutlook:
        """Return what a handover would mean now, as far as the requests tell, without asking the engine."""
        running = [each for each in self._forwarders if each.exchange.state is ExchangeState.RUNNING]
        ending = sum(each.has_delivered and drain_reason(each.exchange) is not None for each in running)
        return HandoverOutlook(len(running) - ending, ending)

    async def pause_requests(self, drain_s: float, *, same_model: bool = True) -> None:
        """Prepare for the end of the engine: hold new requests, cut those that can go on, and save the slots.

        Replies that cannot go on get up to `drain_s` seconds to end. If the call is cancelled, this still completes; a
        second call waits for it, and for no more replies. With another model no reply goes on.
        """
        if self._pausing is None or self._pausing.done():
            self._hurry.clear()
            self._pausing = asyncio.ensure_future(self._pause_requests(drain_s, same_model=same_model))
        else:
            self._hurry.set()
        await asyncio.shield(self._pausing)

    async def _pause_requests(self, drain_s: float, *, same_model: bool) -> None:
        link = self._link
        if link is None:
            return
        self._turns.set_limit(0)
        self._engine_ready.clear()
        running = [each for each in self._forwarders if each.exchange.state is ExchangeState.RUNNING]
        self.report = HandoverReport([])
        with suppress(EngineLost):
            found = await self._cut_streams(link, running, drain_s, same_model=same_model)
            self._saved = await save_slots(link) if same_model else []
            for forwarder, mode in found.items():
                forwarder.continuation = await make_continuation(
                    link, forwarder.exchange, mode, self._saved, forwarder.continuation
                )
                if forwarder.continuation is None:
                    self._give_up(forwarder)
        self._link = None

    async def _cut_streams(
        self, link: EngineLink, running: list[Forwarder], drain_s: float, *, same_model: bool
    ) -> dict[Forwarder, tuple[str, str]]:
        """Cut the running requests, or let them end; return those to continue, with their prompts and modes."""
        report = self.report or HandoverReport([])
        modes: dict[Forwarder, tuple[str, str]] = {}
        uncertain: list[Forwarder] = []
        for forwarder in running:
            if not forwarder.has_delivered:
                forwarder.cut()
                report.again += 1
                continue
            exchange = forwarder.exchange
            if not same_model or drain_reason(exchange) is not None or exchange.body is None:
                continue
            mode = await find_mode(link, exchange)
            if mode is None:
                continue
            modes[forwarder] = mode
            is_exact = mode[1] == TOKENS or exchange.body.get("temperature") != 0
            if not is_exact and not await is_canonical(link, exchange.text):
                uncertain.append(forwarder)
            else:
                exchange.pauses_at_word = True
        draining = [each for each in running if each not in modes]
        await self._wait_until_left([*draining, *uncertain], drain_s)
        for forwarder in uncertain:
            forwarder.exchange.pauses_at_word = True
        await self._wait_until_left(modes, _WORD_S)
        calling = [each for each in modes if not each.was_cut and drain_reason(each.exchange)]
        for forwarder in calling:  # a tool, since they were looked at
            del modes[forwarder]
            forwarder.exchange.pauses_at_word = False
        draining += calling
        if calling:
            await self._wait_until_left(calling, drain_s)
        for forwarder in running:
            if forwarder.exchange.state is ExchangeState.RUNNING:
                if forwarder in draining:
                    report.cut += 1
                    forwarder.exchange.end = "cut"
                forwarder.cut()
        self._hurry.clear()
        await self._wait_until_left(running, _WORD_S)
        report.uncertain = sum(each.was_cut for each in uncertain)
        continued = {each: mode for each, mode in modes.items() if each.was_cut}
        report.continued = [each.exchange for each in continued]
        for exchange in report.continued:
            exchange.gap_open = True
        report.drained = len(running) - report.again - report.cut - len(continued)
        return continued

    def _give_up(self, forwarder: Forwarder) -> None:
        """End a stream that was cut and cannot be continued exactly."""
        forwarder.exchange.end = "cut"
        forwarder.exchange.gap_open = False
        if self.report is not None:
            self.report.continued.remove(forwarder.exchange)
            self.report.cut += 1

    async def _wait_until_left(self, forwarders: Collection[Forwarder], limit_s: float) -> None:
        """Wait until the engine works on none of these requests, for at most `limit_s` seconds, and not in a hurry."""
        hurry = asyncio.ensure_future(self._hurry.wait())
        left = asyncio.gather(*(each.exchange.left_engine.wait() for each in forwarders))
        waits: set[asyncio.Future[Any]] = {left, hurry}
        try:
            await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            with suppress(asyncio.CancelledError):
                await left

    async def resume_requests(self, link: EngineLink) -> None:
        """Send the held requests to a new engine that is ready, and accept others."""
        restored = await restore_slots(link, self._saved)
        self._saved = []
        for forwarder in self._forwarders:
            if forwarder.continuation is not None and forwarder.continuation.slot not in restored:
                forwarder.continuation = forwarder.continuation.without_slot()
        self._link = link
        self._engine_ready.set()
        self._turns.set_limit(link.slots)

    def lose_engine(self) -> None:
        """Hold requests, because the engine has ended. `resume_requests` goes on, `close` ends them."""
        self._lost_link = self._link or self._lost_link
        self._link = self.report = None
        self._engine_ready.clear()
        self._turns.set_limit(0)

    async def end_requests(self, reason: str, drain_s: float) -> None:
        """Refuse waiting and new requests with `reason`; running ones get up to `drain_s` seconds to end."""
        self._hurry.set()
        if self._pausing is not None:
            await asyncio.wait([self._pausing])
        self._hurry.clear()
        self._turns.refuse_all(reason)
        self._engine_ready.clear()
        running = [each for each in self._forwarders if each.exchange.state is ExchangeState.RUNNING]
        await self._wait_until_left(running, drain_s)
        for forwarder in running:
            if forwarder.exchange.state is ExchangeState.RUNNING:
                forwarder.exchange.end = "cut"
                forwarder.cut()
        await self._wait_until_left(running, _WORD_S)
        self._link = None

    # The clients' side.

    @property
    def waiting_requests(self) -> int:
        """How many requests wait for a slot of the engine, or for an engine."""
        return sum(each.exchange.state is ExchangeState.WAITING for each in self._forwarders)

    def set_keys(self, keys: Mapping[str, str]) -> None:
        """Let requests with these keys in from now on. Those of a name that is gone end, even within a reply."""
        self.access.keys = dict(keys)
        for forwarder in self._forwarders:
            if forwarder.exchange.key_name not in keys:
                forwarder.revoke()

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
            return await self._serve_exchange(request, exchange)
        except Refusal as refusal:
            return refusal.make_response()
        except ConnectionError:
            raise
        except Exception:
            _log.exception("A request to %s failed.", request.path)
            raise

    async def _read_body(self, request: web.Request) -> bytes:
        """Return the body of a request. Raises Refusal, also when too many requests wait or arrive."""
        if self._reading + self.waiting_requests >= MOST_WAITING:
            raise refuse_waiting()
        self._reading += 1
        try:
            return await read_body(request)
        finally:
            self._reading -= 1

    async def _report_health(self) -> web.Response:
        link = self._link
        # A handover is no reason for a client to go elsewhere.
        if (link is None and self.report is not None) or (link is not None and await self._answers(link)):
            return web.json_response({"status": "ok"})
        reason = "Loading model" if link is None else "The engine does not answer"
        error = {"code": 503, "message": reason, "type": "unavailable_error"}
        return web.json_response({"error": error}, status=503)

    async def _report_metrics(self, own: str) -> web.Response:
        """Return the engine's metrics, if one answers, and the gateway's own."""
        link, engines = self._link, b""
        if link is not None:
            with suppress(ClientError, OSError, TimeoutError):
                url = link.url + METRICS_PATH
                async with self._http.get(url, headers=link.headers, timeout=_METRICS_TIMEOUT) as reply:
                    if reply.status == 200:
                        engines = (await reply.read()).rstrip() + b"\n"
        return web.Response(body=engines.lstrip() + own.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _serve_exchange(self, request: web.Request, exchange: Exchange) -> web.StreamResponse:
        forwarder = Forwarder(request, exchange)
        self._forwarders.add(forwarder)
        self._note_change(exchange)
        try:
            await self._forward_to_end(forwarder)
            exchange.end = exchange.end or "complete"
        except ClientGone:
            exchange.end = "client left"
        except Refusal as refusal:
            exchange.end = "refused"
            await forwarder.fail(refusal.status, refusal.reason)
        except asyncio.CancelledError:
            exchange.end = "client left"
            raise
        finally:
            exchange.state = ExchangeState.ENDED
            exchange.left_engine.set()
            self._forwarders.discard(forwarder)
            self._note_change(exchange)
        return forwarder.response

    async def _forward_to_end(self, forwarder: Forwarder) -> None:
        """Forward a request until its reply has ended, with as many engines as that takes."""
        exchange = forwarder.exchange
        takes_turn = exchange.path in GENERATING_PATHS
        while True:
            await self._wait_for_engine(forwarder, takes_turn=takes_turn)
            link = self._link
            try:
                if exchange.end == "cut":
                    await forwarder.fail(503, _CUT_OFF)
                    return
                is_shut = not (self._turns.limit if takes_turn else self._engine_ready.is_set())
                if link is None or is_shut:  # lost, or a handover has begun, since the turn was given
                    await asyncio.sleep(0)
                    continue
                if not await forwarder.forward(link):
                    return
            except EngineUnreached:
                if self._link is link:
                    self.lose_engine()
            except EngineLost:
                if forwarder.has_delivered or exchange.sent_again or await self._has_ended(link):
                    exchange.end = "engine ended"
                    await forwarder.fail(502, "The engine ended before the reply was complete")
                    return
                exchange.sent_again = True  # llama-server drops a connection now and then
            finally:
                if takes_turn:
                    self._turns.end_turn()
            forwarder.check_key()
            if exchange.end == "cut":
                await forwarder.fail(503, _CUT_OFF)
                return
            exchange.handovers += forwarder.was_cut
            self._note_change(exchange)

    async def _wait_for_engine(self, forwarder: Forwarder, *, takes_turn: bool) -> None:
        """Wait for a turn, or only for an engine; a client of a stream gets comments meanwhile."""
        exchange = forwarder.exchange
        first = exchange.state is not ExchangeState.WAITING
        ready = self._turns.take_turn(first=first) if takes_turn else self._engine_ready.wait()
        waiting = asyncio.ensure_future(ready)
        pause_s = _FIRST_COMMENT_S
        try:
            waits = (waiting, forwarder.revoked)
            while not (await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED))[0]:
                if exchange.streams:
                    await forwarder.send_comment()
                    pause_s = _COMMENT_S
            forwarder.check_key()
            waiting.result()
        except BaseException:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None and takes_turn:
                self._turns.end_turn()
            waiting.cancel()
            raise

    async def _has_ended(self, link: EngineLink | None) -> bool:
        """Return whether an engine has crashed; False if it answers, or a handover has ended it.

        A request in which an engine crashed is not sent again: it may be the cause.
        """
        if link is not None and self._link is link and not await self._answers(link):
            self.lose_engine()
        return link is self._lost_link

    async def _answers(self, link: EngineLink) -> bool:
        try:
            async with self._http.get(f"{link.url}/health", timeout=_HEALTH_TIMEOUT) as reply:
                return reply.status == 200
        except (ClientError, OSError, TimeoutError):
            return False

    def _note_change(self, exchange: Exchange) -> None:
        if self._on_exchange is not None and exchange.path in GENERATING_PATHS:
            self._on_exchange(exchange)


async def _parse_body(raw: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a request; None if it has no body or another one."""
    if not raw:
        return None
    try:
        body = json.loads(raw) if len(raw) < _LARGE_BODY_BYTES else await asyncio.to_thread(json.loads, raw)
    except (ValueError, RecursionError):
        raise Refusal(400, "The request's body is not valid JSON") from None
    return body if isinstance(body, dict) else None
