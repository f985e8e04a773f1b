"""Forwards one request to the engine, and its reply to the client, through as many engines as handovers need."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientError, HttpVersion11, web

from launcher.base.errors import INTERRUPTED
from launcher.gateway.access import RETRY_AFTER, Refusal
from launcher.gateway.continuation import (
    Continuation,
    continue_text,
    drain_reason,
    find_mode,
    is_canonical,
    may_cut_here,
    may_repeat,
    repeat_reply,
)
from launcher.gateway.engine_connection import EngineReply
from launcher.gateway.engine_error import find_error, read_error
from launcher.gateway.engine_link import EngineLink
from launcher.gateway.exchange import (
    COMPLETIONS_PATH,
    MESSAGES_PATH,
    DrainReason,
    Exchange,
    ExchangeState,
    RequestFailure,
)
from launcher.gateway.frames import (
    COMMENT,
    FRAME_END,
    AlikeFrames,
    FrameSplitter,
    ReplyPart,
    begins_reply,
    drop_text,
    find_object,
    format_event,
    parse_event,
    read_part,
)
from launcher.gateway.prompt_progress import ASK_FIELD, HiddenProgress
from launcher.gateway.rejoined_stream import RejoinedStream

_EVENT_STREAM = "text/event-stream"
_DELTA = b'.delta"'
"""Events of /v1/responses that add text to the reply have this in their type."""
_LAST_FRAMES = (b"data: [DONE]", b"event: message_stop", b"event: response.completed")
"""First bytes of a stream's last frame: in chat completions, messages, and responses."""
_PASSED_ON = ("Content-Type", "Accept", "User-Agent")
_PASSED_BACK = ("Content-Type", "Retry-After")
_MOST_UNSENT_BYTES = 64 << 10
"""Bytes of a stream that wait for a slow client before more of it is read from the engine."""
_WITHIN_MESSAGE = ("content_block_delta", "content_block_stop")
"""Events of Anthropic's API that may come between two parts of a reply."""
_LONGEST_REPEAT_S = 120.0
"""A reply that has taken longer is not written again from its beginning: its client would wait as long once more."""
_COMMENT_S = 2.0
"""Seconds between two comments to a client that waits until a reply is repeated."""
_LEAST_BETWEEN_LOSSES = 256
"""A reply that lost its engine must grow by this many pieces (mostly tokens) before it may survive another loss."""
_SEVERAL_REPLIES = (DrainReason.CHOICES, DrainReason.PROMPT)
"""Requests that may have several replies in one stream, between which the engine's reports on prompts change events."""
MODEL_HEADER = "X-Served-By-Model"
"""Header with the name of the model that replies, if the request names another model or there are several."""


class ClientGone(Exception):
    """The client has closed its connection."""


class RepeatDiffers(Exception):
    """An engine that was to write a part of the reply again has written something else."""


class Forwarder:
    """Forwards one exchange.

    `was_cut` is whether a handover has cut its reply, `continuation`, which the handover sets, how the reply goes on.
    `is_broken_off` is whether its engine was lost within the reply; `continue_broken_reply` then goes on with the
    reply. `link` is the engine that it was last sent to, `model` that engine's model file. `refused` gets the refusal
    with which it is to end early. `taken_up` is cleared while an engine has its slot, but has not begun with it.
    `slot` is the one that has its conversation, None if the engine is to choose.
    `has_turn` is whether it has a turn in the engine, `is_in_engine` whether it was or is about to be sent with it,
    `waits_for_client` whether the client has to take a part of the
    reply before the engine is heard any further. `headers` are those that the response has besides the engine's.
    """

    def __init__(self, request: web.BaseRequest, exchange: Exchange, headers: Mapping[str, str]) -> None:
        self.exchange = exchange
        self.continuation: Continuation | None = None
        self.was_cut = False
        self.is_broken_off = False
        self.link: EngineLink | None = None
        self.refused: asyncio.Future[Refusal] = asyncio.get_running_loop().create_future()
        self.taken_up = asyncio.Event()
        self.taken_up.set()
        self.slot: int | None = None
        self.has_turn = self.is_in_engine = self.waits_for_client = False
        self._request, self._headers = request, headers
        self._response: web.StreamResponse | None = None
        self._has_written = False
        self._sends_chunks = request.version >= HttpVersion11
        self._delivered = self._has_passed_end = False
        self._splitter: FrameSplitter  # this and the next two are made for each engine's stream
        self._alike: AlikeFrames
        self._progress: HiddenProgress
        self._task: asyncio.Task[Any] | None = None
        self._is_cut = False
        # The gateway asks for the progress of the prompt, to know its tokens before the end, and keeps the answers to
        # itself unless the client asked, too. In Anthropic's format the first event has the tokens.
        self._may_go_on = exchange.may_go_on
        asks = self._may_go_on and exchange.path != MESSAGES_PATH and drain_reason(exchange) not in _SEVERAL_REPLIES
        asked = (exchange.body or {}).get("return_progress")
        self._asks_progress = asks and (asked is None or asked is False)
        self._stream = RejoinedStream()
        self._frames_waited = 0
        self._mode: tuple[EngineLink, tuple[str, str] | None] | None = None
        self._repeats = True
        self._repeated = ReplyPart()
        """Text that the client has already, and that the engine still has to write again."""
        self._commented_s = 0.0
        self.model: Path | None = None
        self._lost_at: int | None = None
        """Pieces of the reply that the client had when an engine was last lost in it."""

    async def find_mode(self, link: EngineLink) -> tuple[str, str] | None:
        """Return what continuation.find_mode does. It asks each engine once. Raises EngineLost."""
        if self._mode is None or self._mode[0] is not link:
            self._mode = link, await find_mode(link, self.exchange)
        return self._mode[1]

    @property
    def has_delivered(self) -> bool:
        """Whether the client has received a part of the reply; if not, the request can be sent again unnoticed."""
        return self._delivered

    @property
    def has_reports(self) -> bool:
        """Whether the engine sends something after each batch: a part of a stream, or a report on its prompt."""
        return self.exchange.streams and (self.exchange.writes or self._asks_progress)

    @property
    def has_passed_end(self) -> bool:
        """Whether the client has the last event of the stream. Many clients close their connection then."""
        return self._has_passed_end

    @property
    def has_begun(self) -> bool:
        """Whether the client has the status of the response, so that an error can only be an event of the stream."""
        return self._response is not None

    @property
    def response(self) -> web.StreamResponse:
        """The response to the client. Call it after `forward` or `fail`."""
        assert self._response is not None  # noqa: S101 -- `forward` and `fail` both open the response
        return self._response

    async def forward(self, link: EngineLink) -> bool:
        """Send the request to an engine and pass its reply on; return whether a handover has cut it.

        Raises EngineLost if the engine ends, ClientGone if the client leaves.
        """
        self.exchange.note_run()
        self._task = task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a coroutine always runs in a task
        cancelled_before = task.cancelling()
        self.was_cut = False
        self.link, self.model = link, link.model
        self._repeated = self.continuation.repeated if self.continuation else ReplyPart()
        try:
            self.was_cut = await self._pass_reply_on(link)
        except asyncio.CancelledError:
            if not self._is_cut or task.uncancel() > cancelled_before:  # the client has left
                raise
            self.was_cut = True
        finally:
            self._task = None
            self._is_cut = False
            self._frames_waited = 0
            self.exchange.pauses_at_word = False
            self.exchange.state = ExchangeState.PAUSED
            self.exchange.left_engine.set()
            self.taken_up.set()
        return self.was_cut

    def cut(self) -> None:
        """Stop forwarding now, wherever the reply is."""
        if self._task is not None and not self._is_cut:
            self._is_cut = True
            self._task.cancel()

    def refuse(self, refusal: Refusal) -> None:
        """End the reply with a refusal, wherever it is."""
        if not self.refused.done():
            self.refused.set_result(refusal)
        self.cut()

    def break_off_at_loss(self) -> bool:
        """Record that the engine was lost within the reply; return whether another one may go on with it.

        Not twice at nearly the same place, for this reply may be the cause.
        """
        pieces, lost_at = self.exchange.text.piece_count, self._lost_at
        is_near = lost_at is not None and pieces - lost_at < _LEAST_BETWEEN_LOSSES
        if is_near or not (self._may_continue or may_repeat(self.exchange)):
            return False
        self._lost_at = pieces
        self.exchange.handovers += not self.was_cut
        self._break_off(repeats=may_repeat(self.exchange))
        return True

    def break_off_at_cut(self) -> None:
        """Record that a handover has cut the reply at words that the text alone does not tell: it is written again."""
        self._break_off(repeats=True)

    def break_off_at_difference(self) -> bool:
        """Record that an engine has written something else than what it was to repeat; return whether it may go on
        behind that.
        """
        self._break_off(repeats=False)
        return self._may_continue

    @property
    def _may_continue(self) -> bool:
        return drain_reason(self.exchange) is None

    def _break_off(self, *, repeats: bool) -> None:
        """Have another engine go on; with `repeats` it writes again what is needed for the rest to be the same."""
        self.is_broken_off, self._repeats = True, repeats
        self.exchange.gap_open = True

    async def continue_broken_reply(self, link: EngineLink) -> bool:
        """Have an engine go on with a reply whose first engine was lost, and return whether it can.

        No reply goes on with another model. Raises EngineLost.
        """
        going_on = await self._find_continuation(link) if link.model == self.model else None
        if not going_on:
            self.exchange.gap_open = False
            return False
        self.continuation = going_on
        self.is_broken_off = False
        return True

    async def _find_continuation(self, link: EngineLink) -> Continuation | None:
        """Return how a broken reply goes on: by its text if that is enough to go on with the same words.

        Otherwise it is written again from its beginning, unless that would take too long.
        """
        exchange, repeats = self.exchange, self._repeats
        is_short = (exchange.last_token or 0.0) - (exchange.first_token or 0.0) < _LONGEST_REPEAT_S
        if repeats and not self._may_continue:
            return repeat_reply(exchange) if is_short else None
        found = await self.find_mode(link)
        if repeats and is_short and not await is_canonical(link, exchange.text, found):
            return repeat_reply(exchange)
        return found and await continue_text(link, exchange, found, self.continuation, repeats=repeats)

    def check_refused(self) -> None:
        """Raise the refusal that `refuse` was given, if any."""
        if self.refused.done():
            raise self.refused.result()

    async def send_comment(self) -> None:
        """Tell a streaming client that it has to wait. After this, the status of its response is 200."""
        if self._response is None:
            await self._open_response(200, {"Content-Type": _EVENT_STREAM, "Cache-Control": "no-cache"})
        await self._write(COMMENT)

    async def fail(self, status: int, reason: str, kind: str = "unavailable_error") -> None:
        """End the reply with an error, as a response or, if the stream has begun, as an event of it."""
        self.exchange.failure = self.exchange.failure or RequestFailure.from_text(status, reason)
        if status == 502 or (self._response is not None and status > 500):
            kind = INTERRUPTED
        error = {"error": {"code": status, "message": reason, "type": kind}}
        if self._response is None:
            again = {"Retry-After": RETRY_AFTER} if status in (502, 503) else {}
            await self._open_response(status, {"Content-Type": "application/json", **again})
            await self._write(json.dumps(error).encode())
        else:
            named = "error" if self.exchange.path == MESSAGES_PATH else None
            await self._write(format_event({"type": "error", **error} if named else error, name=named) + FRAME_END)

    async def _pass_reply_on(self, link: EngineLink) -> bool:
        sent, body = self._request, self._request_body()
        headers = {name: sent.headers[name] for name in _PASSED_ON if name in sent.headers}
        method = "GET" if sent.method == "HEAD" else sent.method
        with closing(await link.open_reply(method, sent.path_qs, headers, body)) as reply:
            self.taken_up.set()
            if reply.content_type != _EVENT_STREAM:
                await self._pass_whole(reply, await reply.read_whole())
                return False
            if self._response is None:
                await self._open_response(reply.status, _select_headers(reply))
            return await self._pass_frames(link, reply)

    def _request_body(self) -> bytes:
        body = self.exchange.body
        progress: dict[str, object] = {"return_progress": True} if self._asks_progress else {}
        if self.slot is not None and self.continuation is None and body is not None:
            fields = {**body, **progress, "id_slot": self.slot}
            return json.dumps(fields).encode()
        if self.continuation is not None:
            slot = {"id_slot": -1 if self.continuation.slot is None else self.continuation.slot}
            return json.dumps({**self.continuation.request, **slot, **progress}).encode()
        if body is not None and ("id_slot" in body or (progress and "return_progress" in body)):
            # The gateway alone assigns slots. The engine takes the last of two fields of one name.
            return json.dumps(
                {name: value for name, value in {**body, **progress}.items() if name != "id_slot"}
            ).encode()
        if progress:
            brace = self.exchange.raw.index(b"{") + 1  # inserts the field without parsing a large body
            return self.exchange.raw[:brace] + ASK_FIELD + self.exchange.raw[brace:]
        return self.exchange.raw

    async def _pass_whole(self, reply: EngineReply, data: bytes) -> None:
        self._take_whole(reply.status, data)
        if self._response is not None:  # the client was promised a stream by the headers
            named = b"event: error\n" if self.exchange.path == MESSAGES_PATH else b""
            await self._write(named + b"data: " + data.strip() + FRAME_END)
            return
        await self._open_response(reply.status, _select_headers(reply))
        await self._write(data)

    def _take_whole(self, status: int, data: bytes) -> None:
        """Record the content of a reply that is not a stream."""
        exchange = self.exchange
        timings, usage = find_object(data, "timings"), find_object(data, "usage")
        if status >= 400:
            exchange.note_error(read_error(status, data))
        elif timings is not None:
            exchange.figures.add_timings(timings)
        elif usage is not None:
            exchange.figures.add_usage(usage)
        exchange.note_whole_reply(None if timings is None else timings.get("predicted_ms", 0.0) / 1_000)

    async def _pass_frames(self, link: EngineLink, reply: EngineReply) -> bool:
        """Pass the frames of a stream on; return whether it was cut before its end."""
        self._splitter, self._progress, self._alike = FrameSplitter(), HiddenProgress(), AlikeFrames()
        if not reply.has_parts:  # the first one may take as long as the reading of a prompt
            await self._wait_for_client()
        while data := await reply.read_part(self._pass_at_once):
            passed: list[bytes] = []
            for frame in self._splitter.add_bytes(data):
                event = self._read_event(frame)
                if self.exchange.pauses_at_word and event is not None:
                    await self._write_frames(passed)  # before the engine is asked, for it may be lost meanwhile
                    passed = []
                    if await self._may_cut(link, event):
                        return True
                if (taken := self._take_event(event, frame)) is not None:
                    passed.append(taken)
            await self._write_frames(passed)
            await self._wait_for_client()
        return False

    def _pass_at_once(self, data: bytes) -> bool:
        """Pass a part of a stream on; return False if that has to wait, for the client or for the end of a word."""
        client = self._request.transport
        if self.exchange.pauses_at_word or not self._has_written or client is None:
            return False
        if client.get_write_buffer_size() > _MOST_UNSENT_BYTES:
            return False
        taken = [self._take_frame(frame) for frame in self._splitter.add_bytes(data)]
        if passed := [frame for frame in taken if frame is not None]:
            if client.is_closing():
                raise ClientGone
            frames = _join_frames(passed)
            client.write(b"%x\r\n%b\r\n" % (len(frames), frames) if self._sends_chunks else frames)
        return True

    def _take_frame(self, frame: bytes) -> bytes | None:
        """Do what `_take_event` does, without parsing a frame that only has other text than one that was passed on."""
        if (part := self._alike.read_part(frame)) is None:
            return self._take_event(self._read_event(frame), frame)
        self._has_passed_end = False
        self.exchange.heard_s = time.monotonic()
        self.exchange.text.add_part(part)
        self._note_part()
        return frame

    def _read_event(self, frame: bytes) -> dict[str, Any] | None:
        return parse_event(frame) if self._must_read(frame) else None

    def _must_read(self, frame: bytes) -> bool:
        names = (b'"timings"', b'"usage"', b'"error"')
        return self._may_go_on or not self._delivered or any(name in frame for name in names)

    async def _may_cut(self, link: EngineLink, event: dict[str, Any]) -> bool:
        part = read_part(event)
        if part is None or not part.text or any(self._repeated):
            return False
        self._frames_waited += 1
        exact = self.exchange.path == COMPLETIONS_PATH
        return await may_cut_here(link, self.exchange.text, part.text, self._frames_waited, exact=exact)

    def _take_event(self, event: dict[str, Any] | None, frame: bytes) -> bytes | None:
        """Record what an event says; return its frame for the client, None if it is not for the client."""
        received = frame
        self._has_passed_end = frame.startswith(_LAST_FRAMES)
        exchange, continuation = self.exchange, self.continuation
        if not frame.startswith(b":"):  # a comment only says that the connection is there
            exchange.heard_s = time.monotonic()
        if event is None:
            if not self._may_go_on and _DELTA in frame:
                self._note_part()
            return frame
        if isinstance(event.get("prompt_progress"), dict):
            exchange.figures.add_progress(event["prompt_progress"])
        if self._asks_progress:
            hidden = self._progress.take_event(event, frame)
            if hidden is None:
                return None
            frame = hidden
        if any(self._repeated):
            if self._is_repetition(event):
                return self._keep_waiting()
            frame = format_event(event, name=event.get("type"))
        has_timings = isinstance(event.get("timings"), dict) and _ends_reply(event)
        if has_timings:
            exchange.figures.add_timings(event["timings"], continuation.tokens_before if continuation else 0)
        if (error := find_error(event)) is not None:
            exchange.note_error(error)
        if not self._may_go_on:
            if "prompt_progress" not in event:
                self._note_part()
            passed: bytes | None = frame
        else:
            if (part := read_part(event)) is not None:
                exchange.text.add_part(part)
                self._note_part()
            passed = self._stream.take_event(event, frame, continuation)
            if part is not None and passed is received and continuation is None:
                self._alike.learn(frame, part)
        usage = _event_usage(event)
        if passed is not None and usage is not None and not has_timings:
            exchange.figures.add_usage(usage)
        return passed

    def _is_repetition(self, event: dict[str, Any]) -> bool:
        """Return whether the client has all text of an event already; if it has a part, remove that part. Raises
        RepeatDiffers.
        """
        part = read_part(event)
        if part is None:
            if begins_reply(event):
                return False
            if event.get("type") in _WITHIN_MESSAGE:
                return True
            raise RepeatDiffers
        is_thinking = not part.content
        repeated = self._repeated.reasoning if is_thinking else self._repeated.content
        is_early = not is_thinking and self._repeated.reasoning
        if is_early or not part.text or not (repeated.startswith(part.text) or part.text.startswith(repeated)):
            raise RepeatDiffers
        rest = repeated[len(part.text) :]
        if is_thinking:
            self._repeated = self._repeated._replace(reasoning=rest)
        else:
            self._repeated = self._repeated._replace(content=rest)
        drop_text(event, len(repeated))
        return len(part.text) <= len(repeated)

    def _keep_waiting(self) -> bytes | None:
        """Return a comment for a client that has waited for some time, in place of what it has already."""
        now_s = time.monotonic()
        if now_s - self._commented_s < _COMMENT_S:
            return None
        self._commented_s = now_s
        return COMMENT.removesuffix(FRAME_END)

    def _note_part(self) -> None:
        """Record that a part of the reply is delivered now, and the gap that a handover made before it."""
        earlier = self.exchange.last_token
        self.exchange.note_token()
        if self.exchange.gap_open and earlier is not None and self.exchange.last_token is not None:
            self.exchange.gaps_s.append(self.exchange.last_token - earlier)
        self.exchange.gap_open = False
        self._delivered = True

    async def _open_response(self, status: int, headers: dict[str, str]) -> None:
        model = self.exchange.served_by
        if model is not None and model != self.exchange.model and model.isascii() and model.isprintable():
            headers = {**headers, MODEL_HEADER: model}
        self._response = _Response(status=status, headers={**headers, **self._headers})
        with self._client_due():
            await self._response.prepare(self._request)

    async def _write(self, data: bytes) -> None:
        """Write a part of the response; the first one together with its headers. HEAD asks for these alone."""
        self._has_written = True
        if self._request.method == "HEAD":
            return
        with self._client_due():
            await self.response.write(data)

    async def _write_frames(self, frames: list[bytes]) -> None:
        if frames:
            await self._write(_join_frames(frames))

    async def _wait_for_client(self) -> None:
        """Wait until the client has taken most of what was written, the headers included."""
        with self._client_due():
            self._request.writer.send_headers()
            self._has_written = True
            await self._request.writer.drain()

    @contextmanager
    def _client_due(self) -> Iterator[None]:
        """Wait for the client, so that the engine owes nothing meanwhile. Raises ClientGone."""
        self.waits_for_client = True
        try:
            yield
        except (ConnectionError, ClientError) as error:
            raise ClientGone from error
        finally:
            self.waits_for_client = False


class _Response(web.StreamResponse):
    """A response whose headers are sent together with the first part that is there, not before it."""

    _send_headers_immediately = False


def _join_frames(frames: list[bytes]) -> bytes:
    return FRAME_END.join(frames) + FRAME_END


def _select_headers(reply: EngineReply) -> dict[str, str]:
    return {name: reply.headers[name.lower()] for name in _PASSED_BACK if name.lower() in reply.headers}


def _event_usage(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the counts in an event, which Anthropic's API has in the message at its beginning."""
    for place in (event, event.get("response"), event.get("message")):
        if isinstance(place, dict) and isinstance(place.get("usage"), dict):
            return dict(place["usage"])
    return None


def _ends_reply(event: dict[str, Any]) -> bool:
    choices = event.get("choices")
    return not choices or bool(choices[0].get("finish_reason"))
