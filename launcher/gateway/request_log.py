"""Log of the clients' requests: figures of the last ones, never their texts."""

import itertools
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from launcher.base.codec import JsonView
from launcher.base.messages import message
from launcher.base.text import storable_text
from launcher.engine.server.reread import Reread
from launcher.gateway.exchange import Exchange, ExchangeState, ReplyFigures
from launcher.gateway.prompt_memory import PromptMemory

MOST_REMEMBERED = 500
_MOST_CHARACTERS = 200
"""Characters of a user agent or a model's name that are kept: clients choose them."""
_LEAST_S = 0.05
"""The shortest reply, in seconds, whose speed is measured by our clock: a shorter one may have come in one piece."""

_NO_LOGPROBS = message(
    "The log probabilities of drafted tokens are missing, or 0 in a reply that was not streamed: the engine computes "
    "none, and no request can turn drafts off. With draft length 0 all tokens have them."
)
OnRecord = Callable[["RequestRecord"], None]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Figures of one request; None is unknown.

    `started_s` is the time in seconds since the epoch. `first_token_s` counts from there, so it includes waiting; of a
    reply that was not streamed it is when the engine generated the token. `tokens_per_second` is the engine's figure,
    or by our clock where the engine gives none or the reply comes from several engines. `gaps_s` are the pauses that
    handovers made in the stream; drafts of a reply with gaps are unknown. `end` is None until the request has ended.
    `reread` is the part of its prompt that the engine had read before and read again. Of a request without a whole
    reply, `status` is the HTTP status, or the code in a stream's error, and `message` the sentence with it. `notice` is
    a sentence about what a whole reply lacks; it is not kept after the server's end. Of the prompt, `restored_tokens`
    came from a state on disk, which took `restored_s` seconds instead of about `spared_s`.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "id started who.key=key_name? who.user_agent=user_agent? model path state prompt_tokens reused_tokens "
        "reply_tokens first_token_s:4 tokens_per_second:2 draft_n=drafted draft_n_accepted=accepted gaps_s:3 handovers "
        "end status message reread notice restored_tokens restored_s:3 spared_s:1"
    )
    id: str
    started_s: float
    key_name: str
    user_agent: str
    model: str | None
    path: str
    state: str
    prompt_tokens: int | None = None
    reused_tokens: int | None = None
    reply_tokens: int | None = None
    first_token_s: float | None = None
    tokens_per_second: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    gaps_s: tuple[float, ...] = ()
    handovers: int = 0
    end: str | None = None
    status: int | None = None
    message: str | None = None
    reread: Reread | None = None
    notice: str | None = None
    restored_tokens: int | None = None
    restored_s: float | None = None
    spared_s: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the figures are final."""
        return self.end is not None

    @property
    def started(self) -> str:
        """The time at which it began, as text."""
        return datetime.fromtimestamp(self.started_s).astimezone().isoformat(timespec="milliseconds")


class RequestLog:
    """The last requests of a server, those in progress included. Belongs to the gateway's asyncio loop.

    `read_model` returns the name of the model that serves a request which begins now, if the request does not name it.
    `count_dropped` returns how many prompts the engine of a model (None: the only one) has dropped from its cache.
    """

    def __init__(
        self,
        read_model: Callable[[], str | None] = lambda: None,
        count_dropped: Callable[[str | None], int] = lambda _: 0,
    ) -> None:
        self._read_model = read_model
        self._count_dropped = count_dropped
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._open: dict[Exchange, tuple[str, str | None]] = {}
        """Requests in progress, with their IDs and models."""
        self._ended: deque[RequestRecord] = deque(maxlen=MOST_REMEMBERED)
        self._listeners: list[OnRecord] = []
        self._prompts = PromptMemory()

    @property
    def records(self) -> list[RequestRecord]:
        """The last requests in the order in which they began, as they are now."""
        current = [_make_record(exchange, *known) for exchange, known in self._open.items()]
        return sorted([*self._ended, *current], key=lambda record: record.started_s)

    def count_states(self) -> Counter[ExchangeState]:
        """Return how many requests wait, run and are paused."""
        return Counter(exchange.state for exchange in self._open)

    def note_engine_start(self) -> None:
        """Record that an engine was started, so that prompts may have to be read again."""
        self._prompts.note_engine_start()

    def note_exchange(self, exchange: Exchange) -> None:
        """Take a request's figures. Call it whenever one begins, is paused or ends."""
        if exchange not in self._open:
            self._open[exchange] = f"{self._prefix}-{next(self._numbers)}", exchange.served_by or self._read_model()
        reread = None
        if has_ended := exchange.state is ExchangeState.ENDED:
            reread = self._prompts.note_prompt(exchange, dropped=self._count_dropped(exchange.served_by))
        record = _make_record(exchange, *self._open[exchange], reread)
        if has_ended:
            del self._open[exchange]
            self._ended.append(record)
        for listener in tuple(self._listeners):
            listener(record)

    def add_listener(self, listener: OnRecord) -> None:
        """Have `listener` called with each request that begins, is paused or ends."""
        self._listeners.append(listener)

    def remove_listener(self, listener: OnRecord) -> None:
        """Undo `add_listener`."""
        self._listeners.remove(listener)

    @contextmanager
    def listening(self, listener: OnRecord) -> Iterator[None]:
        """Have `listener` called within the block."""
        self.add_listener(listener)
        try:
            yield
        finally:
            self.remove_listener(listener)


def _make_record(exchange: Exchange, id_: str, model: str | None, reread: Reread | None = None) -> RequestRecord:
    figures, ended = exchange.figures, exchange.state is ExchangeState.ENDED
    parts_unknown = bool(exchange.gaps_s)
    return RequestRecord(
        id_,
        exchange.started,
        exchange.key_name,
        storable_text(exchange.user_agent[:_MOST_CHARACTERS]),
        None if model is None else storable_text(model[:_MOST_CHARACTERS]),
        exchange.path,
        exchange.state.value,
        prompt_tokens=figures.prompt_tokens,
        reused_tokens=figures.reused_tokens,
        reply_tokens=figures.reply_tokens,
        first_token_s=None if exchange.first_token is None else max(0.0, exchange.first_token - exchange.started),
        tokens_per_second=_find_speed(exchange),
        drafted=None if parts_unknown else figures.drafted,
        accepted=None if parts_unknown else figures.accepted,
        gaps_s=tuple(exchange.gaps_s),
        handovers=exchange.handovers,
        end=(exchange.end or "error") if ended else None,
        status=exchange.failure.status if exchange.failure else None,
        message=exchange.failure.message if exchange.failure else None,
        reread=reread,
        notice=_NO_LOGPROBS if figures.drafted and _asks_logprobs(exchange) else None,
        restored_tokens=figures.restored_tokens and min(figures.restored_tokens, figures.reused_tokens or 0),
        restored_s=figures.restored_s,
        spared_s=_find_spared(figures),
    )


def _find_spared(figures: ReplyFigures) -> float | None:
    """Return about how long it would have taken to read what came from disk."""
    if figures.spared_s is None or not figures.restored_tokens:
        return None
    return figures.spared_s * min(1.0, (figures.reused_tokens or 0) / figures.restored_tokens)


def _asks_logprobs(exchange: Exchange) -> bool:
    return any((exchange.body or {}).get(name) for name in ("logprobs", "n_probs"))


def _find_speed(exchange: Exchange) -> float | None:
    """Return tokens/s: the engine's figure for a reply from one engine, else by our clock without the gaps."""
    figures, first, last = exchange.figures, exchange.first_token, exchange.last_token
    if figures.tokens_per_second is not None and not exchange.gaps_s:
        return figures.tokens_per_second
    if not exchange.streams or first is None or last is None or not figures.reply_tokens:
        return None
    seconds = last - first - sum(exchange.gaps_s)
    return (figures.reply_tokens - 1) / seconds if seconds >= _LEAST_S and figures.reply_tokens > 1 else None
