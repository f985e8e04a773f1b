"""One client's request and its progress: state, delivered text and figures."""

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, NamedTuple, Self

from launcher.base.messages import message
from launcher.engine.server.reread import Reread
from launcher.gateway.engine_error import shorten_error
from launcher.gateway.frames import ReplyPart

CHAT_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})
COMPLETIONS_PATH = "/v1/completions"
MESSAGES_PATH = "/v1/messages"
STREAM_PATHS = CHAT_PATHS | {
    COMPLETIONS_PATH,
    MESSAGES_PATH,
    "/completions",
    "/completion",
    "/infill",
    "/v1/responses",
    "/responses",
}
"""Paths of requests that can have a stream as their reply."""
TOO_LONG = "too long"
"""The end of a request whose prompt is longer than the context. The engine has read nothing of it."""
_LEAST_READ = 32
"""Fewest prompt tokens whose reading time gives a speed."""
_numbers = itertools.count(1)


class ExchangeState(Enum):
    """The state of a request: it waits for the engine, runs in it, is paused by a handover, or has ended."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


def begins_word(piece: str) -> bool:
    """Return whether a token's text begins a word: tokenizers never join the space before a word to what precedes it.

    They do join line ends to the full stop before them, so white space alone begins nothing.
    """
    return piece[:1] == " " and piece[1:2].isalpha()


class Prospect(Enum):
    """Prospect of a running request at a handover."""

    GOES_ON = "goes on"
    ENDS_FIRST = "ends first"
    UNCERTAIN = "uncertain"


class DrainReason(StrEnum):
    """Why a running reply cannot continue across a handover, or perhaps only with other words."""

    API = "api"
    PROMPT = "prompt"
    CHOICES = "choices"
    SEED = "seed"
    GRAMMAR = "grammar"
    TOOL_CALL = "tool_call"
    PREFILL = "prefill"
    IMAGE = "image"
    TEMPLATE = "template"
    WORDS = "words"


DRAIN_SENTENCES: Mapping[DrainReason, str] = {
    DrainReason.API: message(
        "Only streams of /v1/chat/completions, /v1/messages and /v1/completions can go on after a restart."
    ),
    DrainReason.PROMPT: message("A completion can go on only if its prompt is a text, without echo and suffix."),
    DrainReason.CHOICES: message("A reply with several choices cannot go on after a restart."),
    DrainReason.SEED: message("A reply with a seed and a temperature would go on with other random numbers."),
    DrainReason.GRAMMAR: message("The engine would begin the reply's grammar again in the middle of the reply."),
    DrainReason.TOOL_CALL: message("A tool call that has begun is not interrupted."),
    DrainReason.PREFILL: message("A reply that its client has begun cannot go on after a restart."),
    DrainReason.IMAGE: message("A conversation with images cannot go on in the middle of a reply."),
    DrainReason.TEMPLATE: message("The model's chat template cannot continue a reply."),
    DrainReason.WORDS: message("The text so far can also be made of other tokens, after which other words may follow."),
}


@dataclass(frozen=True, slots=True)
class HandoverOutlook:
    """The effect of a handover on the requests that run: how many would go on, and how many must end first.

    The `uncertain` ones get time to end first, too, and go on after it, but perhaps with other words. `reasons` are
    those of both, as far as they are known, with the number of requests. Those that go on have `prompt_tokens` and
    `reply_tokens` together. `reading_speed` is how fast the engine reads prompts, in tokens/s, `slot_speed` how many
    bytes of slots it saves and restores in a second; None before the first ones.
    """

    going_on: int = 0
    ending: int = 0
    uncertain: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    reading_speed: float | None = None
    slot_speed: float | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def reason_sentences(self) -> list[str]:
        """Why some requests cannot go on, or perhaps only with other words: a sentence for each reason."""
        return [sentence for reason, sentence in DRAIN_SENTENCES.items() if self.reasons.get(reason)]


@dataclass(slots=True)
class DeliveredText:
    """The text that a client of a stream has received, in the pieces in which it came.

    A piece is a token, or several that make a character. `word_at` is the index of the piece with which the last word
    begins.
    """

    reasoning_pieces: list[str] = field(default_factory=list)
    content_pieces: list[str] = field(default_factory=list)
    calls_tool: bool = False
    word_at: int = 0

    @property
    def reasoning(self) -> str:
        """The whole thinking."""
        return "".join(self.reasoning_pieces)

    @property
    def content(self) -> str:
        """The whole answer."""
        return "".join(self.content_pieces)

    @property
    def last_pieces(self) -> list[str]:
        """The pieces of the kind that came last, thinking or answer."""
        return self.content_pieces or self.reasoning_pieces

    @property
    def piece_count(self) -> int:
        """The number of pieces that have come."""
        return len(self.reasoning_pieces) + len(self.content_pieces)

    def add_part(self, part: ReplyPart) -> None:
        """Add the part of the reply that an event of the stream has."""
        self.calls_tool = self.calls_tool or part.calls_tool
        if part.reasoning:
            self._add_piece(self.reasoning_pieces, part.reasoning)
        if part.content:
            self._add_piece(self.content_pieces, part.content)

    def _add_piece(self, pieces: list[str], text: str) -> None:
        if begins_word(text) or not pieces:
            self.word_at = len(pieces)
        pieces.append(text)


@dataclass(slots=True)
class ReplyFigures:
    """Figures of a reply, None while unknown. Drafts of a part that was cut by a handover are not counted."""

    prompt_tokens: int | None = None
    reused_tokens: int | None = None
    reply_tokens: int | None = None
    tokens_per_second: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    reading_speed: float | None = None
    """Tokens/s at which the engine read the prompt, if it read enough of it to tell."""
    restored_tokens: int | None = None
    """Tokens that were to come from a state on disk. It took `restored_s` seconds to restore, and reading the tokens
    would have taken about `spared_s`."""
    restored_s: float | None = None
    spared_s: float | None = None
    unused_state: Reread | None = None
    """What is kept on disk of the conversation, and why it was not used. Without tokens nothing can be kept."""

    def add_progress(self, progress: Mapping[str, Any]) -> None:
        """Take the counts of the prompt from the engine's first progress report of a request, and the speed from all.

        `processed` tokens include those from the cache.
        """
        read, reading_ms = progress.get("processed", 0) - progress.get("cache", 0), progress.get("time_ms")
        if read >= _LEAST_READ and reading_ms:
            self.reading_speed = 1_000 * read / reading_ms
        if self.prompt_tokens is None:
            self.prompt_tokens = int(progress.get("total", 0))
            self.reused_tokens = int(progress.get("cache", 0))

    def add_timings(self, timings: Mapping[str, Any], tokens_before: int = 0) -> None:
        """Take the engine's timings at the end of a reply; `tokens_before` were generated before a handover."""
        total = _sum_counts(timings, "cache_n", "prompt_n")
        progress = {"total": total, "cache": timings.get("cache_n", 0), "processed": total}
        self.add_progress({**progress, "time_ms": timings.get("prompt_ms")})
        generated = int(timings.get("predicted_n", 0))
        self.reply_tokens = tokens_before + generated
        self.tokens_per_second = timings.get("predicted_per_second") if generated > 1 else None
        if timings.get("draft_n") is not None:
            self.drafted = int(timings["draft_n"])
            self.accepted = int(timings.get("draft_n_accepted") or 0)

    def add_usage(self, usage: Mapping[str, Any]) -> None:
        """Take the counts of a reply without timings, by the names of OpenAI's APIs or of Anthropic's.

        Anthropic's `input_tokens` leave out what came from the cache, OpenAI's do not.
        """
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        left_out = usage.get("cache_read_input_tokens")
        prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
        if prompt is not None:
            self.prompt_tokens = prompt + (left_out or 0)
            self.reused_tokens = details.get("cached_tokens", left_out)
        if generated := usage.get("completion_tokens", usage.get("output_tokens")):  # 0 as a message begins
            self.reply_tokens = generated


class RequestFailure(NamedTuple):
    """Why a request got no whole reply: the HTTP status, or the code in a stream's error, and one short sentence.

    Both are as the engine, or the gateway in its place, has sent them; the status is None if the error names none.
    """

    status: int | None
    message: str

    @classmethod
    def from_text(cls, status: int | None, text: str) -> Self:
        """Return the failure with what may be kept of a text."""
        return cls(status, shorten_error(text))


def _sum_counts(data: Mapping[str, Any], *names: str) -> int:
    return sum(int(data.get(name, 0)) for name in names)


@dataclass(eq=False, slots=True)
class Exchange:
    """One request of a client, and its reply so far.

    `body` is the request's JSON object, None if it has none, `raw` the bytes as they came. `key_name` and `user_agent`
    say who sent it. `served_by` is the name of the model that answers, None if there is only one. One that `gives_way`
    is a measurement's, and ends as soon as a client sends a request. One that `may_be_kept` may be kept on disk, by the
    name that the client gave the `conversation`, if any. Times are by time.time(), `gaps_s` the pauses that handovers
    made in the stream. `handovers` counts those that have sent the request on to another engine.
    """

    path: str
    raw: bytes
    body: Mapping[str, Any] | None
    key_name: str = ""
    user_agent: str = ""
    served_by: str | None = None
    gives_way: bool = False
    may_be_kept: bool = True
    conversation: str = ""
    number: int = field(default_factory=lambda: next(_numbers))
    state: ExchangeState = ExchangeState.WAITING
    started: float = field(default_factory=time.time)
    first_token: float | None = None
    last_token: float | None = None
    heard_s: float = 0.0
    """When the engine last sent anything of the reply, by time.monotonic()."""
    writes: bool = False
    """The engine has begun to write: it has read the prompt."""
    parts: int = 0
    """Parts of the stream that were delivered. A part is a token, or several that make a character."""
    text: DeliveredText = field(default_factory=DeliveredText)
    figures: ReplyFigures = field(default_factory=ReplyFigures)
    gaps_s: list[float] = field(default_factory=list)
    handovers: int = 0
    gap_open: bool = False
    """A handover has cut the stream, and nothing was delivered since."""
    end: str | None = None
    failure: RequestFailure | None = None
    sent_again: bool = False
    pauses_at_word: bool = False
    """A handover waits until this stream can be cut."""
    left_engine: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the engine does not work on this request."""
    streams: bool = field(init=False)
    """Whether the client asked for a stream; for the engine, anything but true is no."""
    may_go_on: bool = field(init=False)
    """Whether the reply is a stream in a format that the gateway can continue with another engine."""

    def __post_init__(self) -> None:
        """Find out what kind of reply is asked for."""
        self.streams = self.path in STREAM_PATHS and self.body is not None and self.body.get("stream") is True
        self.may_go_on = self.streams and (self.path in CHAT_PATHS or self.path in (COMPLETIONS_PATH, MESSAGES_PATH))

    @property
    def model(self) -> str | None:
        """The model that the client named."""
        name = self.body.get("model") if self.body else None
        return name if isinstance(name, str) else None

    @property
    def has_failed(self) -> bool:
        """Whether the engine has answered with an error."""
        return self.end in ("error", TOO_LONG)

    def note_error(self, error: Mapping[str, Any]) -> None:
        """Record that the engine has answered with an error."""
        self.end = "error"
        code, text = error.get("code"), error.get("message")
        self.failure = RequestFailure.from_text(
            code if isinstance(code, int) else None, text if isinstance(text, str) else ""
        )
        if error.get("type") == "exceed_context_size_error":
            self.end = TOO_LONG
            tokens = error.get("n_prompt_tokens")
            if isinstance(tokens, int) and self.figures.prompt_tokens is None:
                self.figures.prompt_tokens = tokens

    def note_whole_reply(self, generating_s: float | None) -> None:
        """Record that a whole reply has come, and that the engine took `generating_s` for it after the first token."""
        self.last_token = time.time()
        self.first_token = None if generating_s is None else self.last_token - generating_s

    def note_run(self) -> None:
        """Record that the request goes to an engine now, which may have to read its prompt first."""
        self.state = ExchangeState.RUNNING
        self.left_engine.clear()
        self.heard_s, self.writes = time.monotonic(), False

    def note_token(self) -> None:
        """Record that a part of the reply is being delivered now."""
        now = time.time()
        self.heard_s, self.writes = time.monotonic(), True
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        self.parts += 1
