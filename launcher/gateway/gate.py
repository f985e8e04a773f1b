"""The gate of one model: holds its requests while no engine is ready, and hands them over from engine to engine."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from launcher.base.errors import GAVE_WAY
from launcher.engine.diagnosis.explain import diagnose_reply_error
from launcher.engine.server.state import FailedReplies, OpenReply, ReplyProgress
from launcher.gateway.access import GENERATING_PATHS, Refusal
from launcher.gateway.continuation import TOKENS, drain_reason, is_canonical, make_continuation
from launcher.gateway.engine_connection import EngineLost, EngineUnreached
from launcher.gateway.engine_link import EngineLink
from launcher.gateway.exchange import DrainReason, Exchange, ExchangeState, HandoverOutlook, Prospect, RequestFailure
from launcher.gateway.forwarder import ClientGone, Forwarder, RepeatDiffers
from launcher.gateway.state_keeper import SavedSlot, StateKeeper
from launcher.gateway.turns import TurnRecalled, Turns

_FIRST_COMMENT_S, _COMMENT_S = 1.0, 2.0
"""Seconds until a waiting client of a stream gets its headers, and between the comments that keep it waiting. An error
within the first second still has its own HTTP status."""
_WORD_S = 5.0
"""Seconds that streams have at least to reach the end of a word before they are cut."""
_LONGEST_WAIT_S = 540.0
"""Seconds that a client which gets no comments waits for a model: it gives up after 600 s (openai 3.54)."""
_NOT_NOW, _NOT_SUPPORTED = (429, 503), 501
"""HTTP statuses of an engine that will answer later, and of one that was not started for such requests."""
_TAKEN_UP_S = 5.0
"""Seconds that an engine has at most to begin with replies whose slots it has, before it gets other requests."""
_KEEP_AFTER_S, _KEEP_AT_END_S = 10.0, 10.0
"""Seconds without a request after which conversations are kept on disk, and seconds for it before an engine is stopped.
"""
_KEEP_SOON_S, _KEEP_EVERY_S = 1.0, 120.0
"""Seconds without a request that suffice where nothing was kept for `_KEEP_EVERY_S` seconds."""
_FORESEE_S = 2.0
"""Time limit in seconds for the outlook that users see before a restart. Rendering a long prompt takes milliseconds."""
_CUT_OFF = "The server was stopped or restarted before the reply was complete"
_STREAMS_GO_ON_S, _POLL_S = 30.0, 0.02
_PAGE_ASKED = ("Accept-Encoding", "If-None-Match")
_PAGE_ANSWERED = (
    "Content-Type",
    "Content-Encoding",
    "ETag",
    "Cache-Control",
    "Cross-Origin-Embedder-Policy",
    "Cross-Origin-Opener-Policy",
)
_PAGE_RULES = {"Content-Security-Policy": "frame-ancestors 'none'"}
"""No page of others may show the engine's within itself, to have the user click there."""


_Mode = tuple[str, str]
"""A request's prompt, and the field by which its template continues a reply: see continuation.find_mode."""


@dataclass(slots=True)
class HandoverReport:
    """Effect of a handover on the clients: streams that go on, that could end before it, and that were cut off.

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
        refused = any(each.gap_open and each.has_failed for each in self.continued)
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


async def _keeps_words(link: EngineLink, exchange: Exchange, found: _Mode) -> bool:
    """Return whether a reply goes on with the words that the old engine would have chosen. Raises EngineLost.

    Above temperature 0 the old engine would have chosen at random, so any words will do. If the reply has thinking and
    an answer, a slot folder is needed: only a saved slot has the mark between them as the model wrote it.
    """
    body, text = exchange.body or {}, exchange.text
    if found[1] == TOKENS or body.get("temperature") != 0:
        return True
    has_marks = link.slot_folder is not None or not (text.reasoning and text.content)
    return has_marks and await is_canonical(link, text, found)


def _is_silent(exchange: Exchange) -> bool:
    return exchange.gap_open and exchange.state is not ExchangeState.ENDED


class Gate:
    """Serves the requests for one model, whichever engine is behind it.

    A supervisor drives it through ClientSide. `on_exchange` is called whenever a request for a reply begins, is paused
    or ends, `on_use` whenever any request begins or ends. Belongs to one asyncio loop.
    """

    def __init__(
        self, on_exchange: Callable[[Exchange], None] | None = None, keeper: StateKeeper | None = None
    ) -> None:
        self.report: HandoverReport | None = None
        self.failed_replies = FailedReplies()
        self.on_use: Callable[[], None] = lambda: None
        self._on_exchange = on_exchange
        self._keeper = keeper or StateKeeper()
        self._keeping: asyncio.TimerHandle | None = None
        self._kept_s = -math.inf
        """When conversations were last kept while idle, by the loop's time."""
        self._background: set[asyncio.Task[None]] = set()
        self._link: EngineLink | None = None
        self._lost_link: EngineLink | None = None
        self._loss_reason = ""
        """Why the last engine that was lost has ended; empty until its supervisor has said so."""
        self._turns = Turns()
        self._engine_ready = asyncio.Event()
        self._forwarders: set[Forwarder] = set()
        self._waiting_for_model: set[Forwarder] = set()
        self._next_load: asyncio.Future[None] | None = None
        self._saved: list[SavedSlot] = []
        self._model_entry: tuple[EngineLink, Mapping[str, Any]] | None = None
        self._set_aside: list[SavedSlot] | None = None
        """The clients' slots while a measurement uses the engine's; None while they are in the engine."""
        self._slots_lock = asyncio.Lock()
        self._saving_s = 0.0
        self._reading_speed: float | None = None
        self._slot_speed: float | None = None
        self._ended_parts = self._ended_requests = 0
        self._pausing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    async def close(self) -> None:
        """Wait until what is kept on disk is there, saved slots included. All requests must have ended."""
        self._stop_keeping()
        if self._background:
            await asyncio.wait(self._background, timeout=_KEEP_AT_END_S)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._keeper.keep_saved([*self._saved, *(self._set_aside or ())])
        await self._keeper.close()

    # The engine's side: a supervisor calls these.

    async def foresee_handover(self) -> HandoverOutlook:
        """Return what a handover would mean now. It asks the engine the same as a handover does, and changes nothing.

        A reply about which the engine has not answered within `_FORESEE_S` seconds counts as uncertain.
        """
        link = self._link
        running = [each for each in self._running() if not each.exchange.gives_way]
        prospects = dict.fromkeys(running, Prospect.UNCERTAIN)
        reasons: Counter[str] = Counter()
        with suppress(EngineLost, TimeoutError):
            async with asyncio.timeout(_FORESEE_S):
                for forwarder in running:
                    prospects[forwarder], reason = await self._foresee_reply(link, forwarder)
                    if reason is not None:
                        reasons[reason.value] += 1
        counts = Counter(prospects.values())
        going_on = [each.exchange for each, prospect in prospects.items() if prospect is not Prospect.ENDS_FIRST]
        return HandoverOutlook(
            counts[Prospect.GOES_ON],
            counts[Prospect.ENDS_FIRST],
            counts[Prospect.UNCERTAIN],
            prompt_tokens=sum(each.figures.prompt_tokens or 0 for each in going_on),
            reply_tokens=sum(each.text.piece_count for each in going_on),
            reading_speed=next(filter(None, (each.figures.reading_speed for each in going_on)), self._reading_speed),
            slot_speed=self._slot_speed,
            reasons=dict(reasons),
        )

    async def _foresee_reply(
        self, link: EngineLink | None, forwarder: Forwarder
    ) -> tuple[Prospect, DrainReason | None]:
        """Return what a handover would mean for a running request, and the reason if it may not go on.

        Raises EngineLost.
        """
        if not forwarder.has_delivered:
            return Prospect.GOES_ON, None
        exchange = forwarder.exchange
        reason = drain_reason(exchange)
        if link is None or reason is not None:
            return Prospect.ENDS_FIRST, reason
        found = await forwarder.find_mode(link)
        if found is None:
            return Prospect.ENDS_FIRST, DrainReason.TEMPLATE
        if await _keeps_words(link, exchange, found):
            return Prospect.GOES_ON, None
        return Prospect.UNCERTAIN, DrainReason.WORDS

    async def pause_requests(self, drain_s: float, *, same_model: bool = True) -> None:
        """Prepare for the end of the engine: hold new requests, cut those that can go on, and save the slots.

        Replies that cannot go on get up to `drain_s` seconds to end. If the call is cancelled, this still completes; a
        second call waits for it, and with 0 seconds for no more replies. With another model no reply goes on.
        """
        if self._pausing is None or self._pausing.done():
            self._hurry.clear()
            self._pausing = asyncio.ensure_future(self._pause_requests(drain_s, same_model=same_model))
        elif not drain_s:
            self._hurry.set()
        await asyncio.shield(self._pausing)

    async def _pause_requests(self, drain_s: float, *, same_model: bool) -> None:
        link = self._link
        if link is None:
            return
        self._turns.set_limit(0)
        self._engine_ready.clear()
        self.end_measurements()
        await self._wait_until_left([each for each in self._running() if each.exchange.gives_way], _WORD_S)
        running = self._running()
        self.report = HandoverReport([])
        found = await self._cut_streams(link, running, drain_s, same_model=same_model)
        began_s = time.monotonic()
        async with self._slots_lock:  # a request may be restoring them just now
            self._saved = await self._take_slots(link)
        if not same_model:
            self._keeper.keep_saved(self._saved)
            self._saved = []
        self._saving_s = time.monotonic() - began_s
        left = [*self._saved]
        # Of several requests with the same words, each goes on with a slot of its own: the longest reply fits fewest.
        for forwarder, mode in sorted(found.items(), key=lambda each: -each[0].exchange.text.piece_count):
            if not await self._prepare_continuation(link, forwarder, mode, left):
                self._give_up(forwarder)
            elif (going_on := forwarder.continuation) is not None:
                left = [each for each in left if each.number != going_on.slot]
        self._link = None

    async def _prepare_continuation(
        self, link: EngineLink, forwarder: Forwarder, mode: _Mode | None, saved: list[SavedSlot]
    ) -> bool:
        """Have a stream that was cut go on with the next engine, with one of the saved slots; return whether it can.

        One that is written again needs no slot. Without a mode its engine was lost before that could be asked.
        """
        earlier, forwarder.continuation = forwarder.continuation, None
        if forwarder.is_broken_off:
            return True
        if mode is not None:
            with suppress(EngineLost):
                forwarder.continuation = await make_continuation(link, forwarder.exchange, mode, saved, earlier)
                return forwarder.continuation is not None
        return forwarder.break_off_at_loss()

    async def _take_slots(self, link: EngineLink) -> list[SavedSlot]:
        """Return the clients' saved slots: those that were set aside, else as the engine has them now."""
        aside, self._set_aside = self._set_aside, None
        return await self._keeper.save_slots(link) if aside is None else aside

    async def _prepare_slots(self, link: EngineLink, forwarder: Forwarder) -> None:
        """Save the clients' slots before a measurement uses the engine, and restore them before a client uses it again.

        Otherwise the conversations that the engine remembers would have to be read again.
        """
        async with self._slots_lock:
            gives_way = forwarder.exchange.gives_way
            if gives_way is (self._set_aside is not None):
                pass
            elif gives_way:
                self._set_aside = await self._keeper.save_slots(link)
                forwarder.check_refused()
            else:
                await self._keeper.restore_slots(link, await self._take_slots(link))
            forwarder.slot = None
            if not gives_way and not forwarder.has_delivered and forwarder.continuation is None:
                forwarder.slot = await self._keeper.restore_for(link, forwarder.exchange, self._count_in_engine)
                if forwarder.slot is None and not self._count_in_engine():
                    await self._keeper.keep_before(link, forwarder.exchange)
            forwarder.is_in_engine = True

    def _count_in_engine(self) -> int:
        """Return how many requests were sent to the engine and have not ended, as far as clients take their replies."""
        return sum(each.is_in_engine and not each.waits_for_client for each in self._forwarders)

    def _keep_later(self) -> None:
        """Have the conversations in the slots kept on disk once no request has come for a while.

        A busy agent leaves the engine alone for seconds at most: what was not kept for long is kept sooner.
        """
        self._stop_keeping()
        if not self._forwarders and self._link is not None:
            loop = asyncio.get_running_loop()
            after_s = _KEEP_AFTER_S if loop.time() - self._kept_s < _KEEP_EVERY_S else _KEEP_SOON_S
            self._keeping = loop.call_later(min(after_s, _KEEP_AFTER_S), self._begin_keeping)

    def _begin_keeping(self) -> None:
        self._kept_s = asyncio.get_running_loop().time()
        self._do_in_background(self._keep_while_idle())

    def _do_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _keep_while_idle(self) -> None:
        await self._keep_slots(self._is_idle)
        if self._link is not None and self._is_idle():
            await self._keeper.prepare_prompt(self._link, self._slots_lock, self._is_idle)

    def prepare_for(self, client: str) -> None:
        """Restore what the next session of a client, such as a coding agent, probably begins with."""
        if self._link is not None and self._is_idle():
            self._do_in_background(self._keeper.restore_ahead(self._link, self._slots_lock, client, self._is_idle))

    def _is_idle(self) -> bool:
        return not self._forwarders and self._engine_ready.is_set() and self._set_aside is None

    def _stop_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()

    async def _keep_slots(self, may_go_on: Callable[[], bool], *, last: bool = False) -> None:
        link = self._link

        def may_keep() -> bool:
            return self._link is link and self._set_aside is None and may_go_on()

        if link is not None:
            await self._keeper.keep_slots(link, self._slots_lock, may_keep, last=last)

    async def _leave_slots(self, forwarder: Forwarder) -> bool:
        """Wait until the engine has begun with the replies whose slots were restored; return whether it may go on.

        It might put another request into such a slot, and the reply would have to wait for that one's end. With fewer
        slots than before, such a reply may still need a turn: it gets this one, and the request has to wait again.
        """
        others = [each for each in self._forwarders if forwarder.taken_up.is_set() and not each.taken_up.is_set()]
        if not others:
            return True
        keeps_turn = all(each.has_turn for each in others)
        with nullcontext() if keeps_turn else self._turns.lend_turn(), suppress(TimeoutError):
            async with asyncio.timeout(_TAKEN_UP_S):
                for each in others:
                    await each.taken_up.wait()
        forwarder.check_refused()
        return keeps_turn

    def _running(self) -> list[Forwarder]:
        return [each for each in self._forwarders if each.exchange.state is ExchangeState.RUNNING]

    async def _cut_streams(
        self, link: EngineLink, running: list[Forwarder], drain_s: float, *, same_model: bool
    ) -> dict[Forwarder, _Mode | None]:
        """Cut the running requests, or let them end; return those to continue, with their prompts and modes.

        A request whose engine is lost meanwhile is cut at once, and has no mode. One whose last words, before it was
        cut, can also be made of other tokens is written again.
        """
        report = self.report or HandoverReport([])
        modes: dict[Forwarder, _Mode | None] = {}
        uncertain: list[Forwarder] = []
        for forwarder in running:
            if not forwarder.has_delivered:
                forwarder.cut()
                report.again += 1
                continue
            exchange = forwarder.exchange
            if not same_model or drain_reason(exchange) is not None:
                continue
            try:
                mode = await forwarder.find_mode(link)
                if mode is None:
                    continue
                keeps_words = await _keeps_words(link, exchange, mode)
            except EngineLost:  # its forwarder may not have met the error yet
                modes[forwarder] = None
                forwarder.cut()
                continue
            modes[forwarder] = mode
            if keeps_words:
                exchange.pauses_at_word = True
            else:
                uncertain.append(forwarder)
        draining = [each for each in running if each.has_delivered and each not in modes]
        await self._wait_until_left([*draining, *uncertain], drain_s)
        for forwarder in uncertain:
            forwarder.exchange.pauses_at_word = True
        await self._wait_until_left(modes, _WORD_S)
        calling = [each for each in modes if not each.was_cut and drain_reason(each.exchange)]
        for forwarder in calling:  # these replies have begun a tool call meanwhile
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
        for forwarder, mode in continued.items():
            if mode is None or forwarder in uncertain:
                continue
            with suppress(EngineLost):
                if not await _keeps_words(link, forwarder.exchange, mode):
                    forwarder.break_off_at_cut()
        report.continued = [each.exchange for each in continued]
        for exchange in report.continued:
            exchange.gap_open = True
        report.drained = len(running) - report.again - report.cut - len(continued)
        return continued

    def _give_up(self, forwarder: Forwarder) -> None:
        """End a stream that was cut and cannot be continued exactly."""
        forwarder.exchange.end = "cut"
        forwarder.exchange.gap_open = False
        if self.report is not None and forwarder.exchange in self.report.continued:
            self.report.continued.remove(forwarder.exchange)
            self.report.cut += 1

    async def _wait_until_left(self, forwarders: Collection[Forwarder], limit_s: float) -> None:
        """Wait until the engine works on none of these requests, for at most `limit_s` seconds, or until `_hurry` is
        set.
        """
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
        began_s = time.monotonic()
        restored = await self._keeper.restore_slots(link, self._saved)
        if restored and len(restored) == len(self._saved):
            seconds = self._saving_s + time.monotonic() - began_s
            self._slot_speed = sum(slot.size for slot in self._saved) / seconds
        self._saved = []
        for forwarder in self._forwarders:
            if forwarder.continuation is None:
                continue
            if forwarder.model != link.model:  # a further change has replaced the model since the reply was cut
                self._give_up(forwarder)
            elif forwarder.continuation.slot in restored:
                forwarder.taken_up.clear()
            else:
                forwarder.continuation = forwarder.continuation.without_slot()
        self._link = link
        self.failed_replies = FailedReplies()
        self._engine_ready.set()
        self._turns.set_limit(link.slots)

    def lose_engine(self, reason: str = "") -> None:
        """Hold requests, because the engine has ended. `resume_requests` goes on, `close` ends them."""
        if self._link is not None or reason:
            self._loss_reason = reason
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
        running = self._running()
        await self._wait_until_left(running, drain_s)
        for forwarder in running:
            if forwarder.exchange.state is ExchangeState.RUNNING:
                forwarder.exchange.end = "cut"
                forwarder.cut()
        await self._wait_until_left(running, _WORD_S)
        until_s = time.monotonic() + _KEEP_AT_END_S
        with suppress(TimeoutError):
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + _KEEP_AT_END_S):
                await self._keep_slots(lambda: time.monotonic() < until_s, last=True)
        self._link = None

    # The clients' side.

    @property
    def waiting_requests(self) -> int:
        """The number of requests that wait for a slot of the engine, or for an engine."""
        return sum(each.exchange.state is ExchangeState.WAITING for each in self._forwarders)

    @property
    def reply_progress(self) -> ReplyProgress:
        """The progress of all replies, also of measurements' replies."""
        replies = [each.exchange for each in self._forwarders if each.exchange.path in GENERATING_PATHS]
        running = sum(each.state is ExchangeState.RUNNING for each in replies)
        parts = self._ended_parts + sum(each.parts for each in replies)
        return ReplyProgress(parts, running, self._ended_requests, time.monotonic())

    @property
    def open_replies(self) -> list[OpenReply]:
        """The replies that the engine owes now; not those of which a client has to take the parts that have come."""
        return [
            OpenReply(each.exchange.heard_s, each.exchange.writes, each.has_reports)
            for each in self._running()
            if each.exchange.path in GENERATING_PATHS and not each.waits_for_client
        ]

    @property
    def kept_problem(self) -> str:
        """Why no conversation can be kept on disk; empty if they can."""
        return self._keeper.problem

    @property
    def is_in_use(self) -> bool:
        """Whether requests wait or run."""
        return bool(self._forwarders)

    @property
    def is_engine_in_use(self) -> bool:
        """Whether requests run or wait for a turn; those that wait until the model is loaded do not count."""
        return len(self._forwarders) > len(self._waiting_for_model)

    def recall_waiting(self, next_load: "asyncio.Future[None]") -> None:
        """Have the requests that wait for a turn wait for the next load of the model, because it is to be unloaded."""
        self._next_load = next_load
        self._turns.recall_waiting()

    @property
    def is_asked(self) -> bool:
        """Whether clients' requests for replies wait or run."""
        return any(_is_client_request(each.exchange) for each in self._forwarders)

    def end_measurements(self) -> None:
        """End the requests that give way to clients."""
        for forwarder in self._forwarders:
            if forwarder.exchange.gives_way:
                forwarder.refuse(refuse_measurement())

    def revoke_keys(self, remaining: Collection[str]) -> None:
        """End the requests whose key's name is not among `remaining`, even within a reply."""
        for forwarder in self._forwarders:
            if forwarder.exchange.key_name not in remaining:
                forwarder.refuse(Refusal(401, "The API key was revoked"))

    async def is_healthy(self) -> bool:
        """Return whether an engine answers, or a handover has only paused it."""
        link = self._link
        # A handover is no reason for a client to go elsewhere.
        return (link is None and self.report is not None) or (link is not None and await link.answers())

    @property
    def has_engine(self) -> bool:
        """Whether an engine has been ready and was not lost."""
        return self._link is not None

    async def read_metrics(self) -> bytes:
        """Return the engine's metrics; nothing if it does not answer."""
        return b"" if self._link is None else await self._link.read_metrics()

    async def read_model(self) -> Mapping[str, Any]:
        """Return the engine's own entry of /v1/models; nothing while no engine answers. Each engine is asked once."""
        link = self._link
        if link is None:
            return {}
        if self._model_entry is None or self._model_entry[0] is not link:
            self._model_entry = link, await link.read_model()
        return self._model_entry[1]

    async def read_page_file(self, request: web.BaseRequest) -> web.Response | None:
        """Return the engine's answer to a request for a file of its web page; None if it does not answer."""
        if self._link is None:
            return None
        asked = {name: request.headers[name] for name in _PAGE_ASKED if name in request.headers}
        try:
            status, headers, content = await self._link.read_page_file(request.path, asked)
        except EngineLost:
            return None
        answered = {name: headers[name.lower()] for name in _PAGE_ANSWERED if name.lower() in headers}
        return web.Response(status=status, body=content, headers=answered | _PAGE_RULES)

    async def serve_exchange(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        headers: Mapping[str, str],
        ready: "asyncio.Future[None] | None" = None,
    ) -> web.StreamResponse:
        """Forward a request to its end once `ready` is done, and return the response to the client, with `headers`."""
        forwarder = Forwarder(request, exchange, headers)
        self._forwarders.add(forwarder)
        self.on_use()
        # Usually a turn is free, and the request is sent at once. The engine works while the request is noted.
        asyncio.get_running_loop().call_soon(self._note_begin, exchange)
        try:
            await self._forward_to_end(forwarder, ready)
            exchange.end = exchange.end or "complete"
        except ClientGone:
            exchange.end = exchange.end if exchange.has_failed else _judge_end(forwarder)
        except Refusal as refusal:
            exchange.end = "refused"
            await forwarder.fail(refusal.status, refusal.reason, refusal.kind)
        except asyncio.CancelledError:
            exchange.end = exchange.end if exchange.has_failed else _judge_end(forwarder)
            raise
        finally:
            exchange.state = ExchangeState.ENDED
            exchange.left_engine.set()
            forwarder.taken_up.set()
            self._forwarders.discard(forwarder)
            self._count_failure(forwarder)
            self._ended_parts += exchange.parts
            self._ended_requests += exchange.path in GENERATING_PATHS
            self._reading_speed = exchange.figures.reading_speed or self._reading_speed
            self._keeper.note_end(exchange)
            self._keep_later()
            self._note_change(exchange)
            self.on_use()
        return forwarder.response

    async def _forward_to_end(self, forwarder: Forwarder, ready: "asyncio.Future[None] | None") -> None:
        """Forward a request until its reply has ended, with as many engines as that takes."""
        exchange = forwarder.exchange
        takes_turn = exchange.path in GENERATING_PATHS
        while True:
            await self._wait_for_engine(forwarder, ready, takes_turn=takes_turn)
            link, forwarder.has_turn = self._link, takes_turn
            try:
                if exchange.end == "cut":
                    await forwarder.fail(503, _CUT_OFF)
                    return
                is_shut = not (self._turns.limit if takes_turn else self._engine_ready.is_set())
                if link is None or is_shut:  # lost, or a handover has begun, since the turn was given
                    await asyncio.sleep(0)
                    continue
                if forwarder.is_broken_off and not await forwarder.continue_broken_reply(link):
                    await self._fail_broken(forwarder)
                    return
                if takes_turn:
                    if not await self._leave_slots(forwarder):
                        continue
                    await self._prepare_slots(link, forwarder)
                    if self._link is not link or not self._turns.limit:  # a handover has begun meanwhile
                        continue
                if not await forwarder.forward(link):
                    return
            except EngineUnreached:
                self._keeper.note_loss(exchange)
                if self._link is link:
                    self.lose_engine()
            except RepeatDiffers:
                if not forwarder.break_off_at_difference():
                    await self._fail_broken(forwarder)
                    return
            except EngineLost:
                if not await self._survives_loss(forwarder, link):
                    await self._fail_broken(forwarder)
                    return
            finally:
                forwarder.has_turn = forwarder.is_in_engine = False
                if takes_turn:
                    self._turns.end_turn()
            forwarder.check_refused()
            if exchange.end == "cut":
                await forwarder.fail(503, _CUT_OFF)
                return
            exchange.handovers += forwarder.was_cut
            self._note_change(exchange)

    async def _survives_loss(self, forwarder: Forwarder, link: EngineLink | None) -> bool:
        """Return whether a request goes on after its connection to an engine broke.

        A reply of which the client has a part goes on by its text. A request without any reply yet is sent again once,
        also because llama-server drops a connection now and then; after a crash only if the client can no longer be
        told to send it again itself. There are limits, because any request may be the cause of a crash.
        """
        exchange = forwarder.exchange
        has_ended = await self._has_ended(link)
        if forwarder.has_delivered:
            was_replaced = forwarder.is_broken_off and not has_ended and self._link is not link
            return was_replaced or forwarder.break_off_at_loss()
        if exchange.sent_again or (has_ended and not forwarder.has_begun):
            return False
        exchange.sent_again = True
        self._keeper.note_loss(exchange)
        return True

    async def _wait_for_engine(
        self, forwarder: Forwarder, ready: "asyncio.Future[None] | None", *, takes_turn: bool
    ) -> None:
        """Wait for `ready` and a turn, or only for an engine; a client of a stream gets comments meanwhile."""
        exchange = forwarder.exchange
        first = exchange.state is not ExchangeState.WAITING
        if ready is None or ready.done():
            if ready is not None:
                ready.result()
            forwarder.check_refused()
            # Usually nothing is waited for, and a task of its own would take a tenth of a request's processor time.
            if self._turns.take_free_turn() if takes_turn else self._engine_ready.is_set():
                return

        async def wait() -> None:
            load = ready
            while True:
                if load is not None:
                    await self._wait_for_model(forwarder, load)
                if not takes_turn:
                    await self._engine_ready.wait()
                    return
                try:
                    await self._turns.take_turn(first=first)
                except TurnRecalled:
                    load = self._next_load
                else:
                    return

        waiting = asyncio.ensure_future(wait())
        pause_s = _FIRST_COMMENT_S
        try:
            waits = (waiting, forwarder.refused)
            while not (await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED))[0]:
                if exchange.streams:
                    await forwarder.send_comment()
                    pause_s = _COMMENT_S
            forwarder.check_refused()
            waiting.result()
        except BaseException:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None and takes_turn:
                self._turns.end_turn()
            waiting.cancel()
            raise

    async def _wait_for_model(self, forwarder: Forwarder, load: "asyncio.Future[None]") -> None:
        """Wait for a model's load. Raises what that raises, and Refusal where the client has no comments and gives
        up."""
        self._waiting_for_model.add(forwarder)
        self.on_use()
        try:
            async with asyncio.timeout(None if forwarder.exchange.streams else _LONGEST_WAIT_S):
                await asyncio.shield(load)
        except TimeoutError:
            raise Refusal(503, "The model is still being loaded") from None
        finally:
            self._waiting_for_model.discard(forwarder)

    async def _has_ended(self, link: EngineLink | None) -> bool:
        """Return whether an engine has crashed; False if it answers, or a handover has ended it."""
        if link is not None and self._link is link and not await link.answers():
            self.lose_engine()
        return link is self._lost_link

    async def _fail_broken(self, forwarder: Forwarder) -> None:
        """End a reply that cannot go on because the connection to its engine broke."""
        forwarder.exchange.end = "engine ended"
        if self._link is not None and forwarder.link is self._link:  # the engine goes on
            reason = "The engine closed the connection before the reply was complete"
        else:
            reason = ": ".join(filter(None, ("The engine ended before the reply was complete", self._loss_reason)))
        await forwarder.fail(502, reason)

    def _count_failure(self, forwarder: Forwarder) -> None:
        """Count a request that the present engine has failed; its first reply to a client ends the count."""
        exchange = forwarder.exchange
        if forwarder.link is None or forwarder.link is not self._link or not _is_client_request(exchange):
            return
        if exchange.end == "complete":
            self.failed_replies = FailedReplies(has_replied=True)
        elif exchange.failure is not None and (exchange.has_failed or exchange.end == "engine ended"):
            self.failed_replies = _add_failure(self.failed_replies, exchange.failure)

    def _note_begin(self, exchange: Exchange) -> None:
        if exchange.state is not ExchangeState.ENDED:  # a request that is refused at once has its end noted only
            self._note_change(exchange)

    def _note_change(self, exchange: Exchange) -> None:
        if self._on_exchange is not None and _is_client_request(exchange):
            self._on_exchange(exchange)


def _is_client_request(exchange: Exchange) -> bool:
    """Return whether a request is a client's for a reply."""
    return exchange.path in GENERATING_PATHS and not exchange.gives_way


def refuse_measurement() -> Refusal:
    """Return the refusal of a measurement's request when a client sends one."""
    return Refusal(409, "A client uses the server, so the measurement waits", GAVE_WAY)


def _judge_end(forwarder: Forwarder) -> str:
    """Return how an exchange ended when its client closed the connection."""
    return "complete" if forwarder.has_passed_end else "client left"


def _add_failure(before: FailedReplies, failure: RequestFailure) -> FailedReplies:
    """Return the count with one more failure. An engine that is still loading, or asks to wait, has not failed."""
    status = failure.status
    if status in _NOT_NOW:
        return before
    found = diagnose_reply_error(failure.message)
    refused = status is not None and (status < 500 or status == _NOT_SUPPORTED)
    if found is not None and not refused:
        refused = found.severity == "request"
    broken = found is not None and found.severity == "fatal" and not refused
    return before._replace(
        total=before.total + 1,
        refused=before.refused + refused,
        broken=before.broken + broken,
        status=status,
        message=failure.message,
    )
