"""What is said to one llama-server over HTTP, in our types."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from launcher.base.errors import Refused
from launcher.base.http import LoopbackClient
from launcher.base.text import one_line

_MOST_CHARACTERS = 2**25
"""Of a reply: some ten million tokens."""
_FIRST_RATE_TOKENS = 5
"""The engine reports 0.001 ms for the first token, so a rate over fewer tokens than this means nothing."""
_TEMPLATE_FIELDS = ("messages", "chat_template_kwargs")


@dataclass(frozen=True, slots=True)
class Timings:
    """The engine's own account of a reply so far: tokens, milliseconds, drafts.

    `draft_n` and `draft_n_accepted` are None until the first draft, and stay None without speculation.
    """

    prompt_n: int
    cache_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int | None
    draft_n_accepted: int | None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Build it from the `timings` object of a reply; what is absent there is 0, drafts are None."""
        return cls(
            prompt_n=int(data.get("prompt_n", 0)),
            cache_n=int(data.get("cache_n", 0)),
            prompt_ms=float(data.get("prompt_ms", 0.0)),
            predicted_n=int(data.get("predicted_n", 0)),
            predicted_ms=float(data.get("predicted_ms", 0.0)),
            predicted_per_second=float(data.get("predicted_per_second", 0.0)),
            draft_n=_count(data.get("draft_n")),
            draft_n_accepted=_count(data.get("draft_n_accepted")),
        )

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens a second, None while there are too few to tell."""
        return self.predicted_per_second if self.predicted_n >= _FIRST_RATE_TOKENS else None

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens that the model accepted, 0 to 1; None without a draft."""
        return (self.draft_n_accepted or 0) / self.draft_n if self.draft_n else None


@dataclass(frozen=True, slots=True)
class Delta:
    """One event of a streamed reply. An event is not a token: count by `timings`.

    `prompt_tokens` and `completion_tokens` are OpenAI's `usage`, which comes once, at the end, if it was asked for.
    """

    content: str = ""
    reasoning: str = ""
    timings: Timings | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request: messages of role and content, and what may change without a restart.

    None leaves a value to the server. `thinking` switches the model's reasoning on or off.
    """

    messages: Sequence[Mapping[str, str]]
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    thinking: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the JSON body; always streamed, because the engine cancels only streams."""
        body: dict[str, Any] = {
            "messages": [dict(message) for message in self.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            "timings_per_token": True,
            "return_progress": True,
        }
        optional = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed}
        body.update({name: value for name, value in optional.items() if value is not None})
        if self.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        return {**body, **self.extra}


class EngineClient:
    """One llama-server's HTTP. Raises Unreachable and Refused: see base.http.

    `remote` is for one that may be on another computer.
    """

    def __init__(self, url: str, api_key: str | None, *, remote: bool = False) -> None:
        self._http = LoopbackClient(url, api_key=api_key, remote=remote)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection, open streams included."""
        await self._http.close()

    async def healthy(self) -> bool:
        """Return whether the model is loaded and the server answers."""
        return await self._http.status("/health", timeout_s=2.0) == 200

    async def speculative(self) -> bool:
        """Return whether the first slot drafts, as /slots says."""
        slots = await self._http.json("/slots")
        return bool(isinstance(slots, list) and slots and isinstance(slots[0], dict) and slots[0].get("speculative"))

    async def working_slots(self) -> int:
        """Return how many slots work on a request, as /slots says. Not more often than every 1.5 s: see monitor."""
        slots = await self._http.json("/slots")
        return sum(bool(slot.get("is_processing")) for slot in slots if isinstance(slot, dict)) if slots else 0

    async def answer(self, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 -- the caller checks
        """Return what a GET of `path` answers, or a POST of `body`, as parsed JSON."""
        return await self._http.json(path, body)

    async def count_tokens(self, request: ChatRequest) -> int:
        """Return how many tokens the model is to read for a request: messages, template and all.

        Raises Refused, too, where the server has no /apply-template and /tokenize.
        """
        asked = request.body()
        told = await self._http.json("/apply-template", {n: asked[n] for n in _TEMPLATE_FIELDS if n in asked})
        text = told.get("prompt") if isinstance(told, dict) else None
        body = {"content": text, "add_special": True, "parse_special": True}
        found = await self._http.json("/tokenize", body) if isinstance(text, str) else None
        tokens = found.get("tokens") if isinstance(found, dict) else None
        if not isinstance(tokens, list):
            raise Refused("The server does not tell how many tokens a prompt has.", "Is it a llama-server?")
        return len(tokens)

    async def metrics(self) -> str:
        """Return /metrics as text (Prometheus 0.0.4). Not more often than every 1.5 s: see monitor."""
        return await self._http.text("/metrics")

    @asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        """Send a chat request and yield its deltas; leaving the block cancels what is not finished."""
        async with self._http.events("/v1/chat/completions", request.body()) as events:
            yield _deltas(events)


def _text(value: object) -> str:
    """Return a text that can be sent back: JSON may hold halves of characters."""
    return str(value or "").encode("utf-8", "replace").decode()


def _count(value: object) -> int | None:
    return None if value is None else int(str(value))


async def _deltas(events: AsyncIterator[Any]) -> AsyncIterator[Delta]:
    left = _MOST_CHARACTERS
    async for event in events:
        try:
            delta = _delta(event)
            left -= len(delta.content) + len(delta.reasoning)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise Refused("The server sent something that is no part of a reply.", "Is it a llama-server?") from error
        if left < 0:
            raise Refused("The server's reply has no end.", "Ask for less with --max-tokens.")
        yield delta


def _delta(event: Mapping[str, Any]) -> Delta:
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    timings = event.get("timings")
    finish_reason = choices[0].get("finish_reason")
    usage = event.get("usage") or {}
    return Delta(
        content=_text(delta.get("content")),
        reasoning=_text(delta.get("reasoning_content")),
        timings=Timings.parse(timings) if timings else None,
        finish_reason=one_line(str(finish_reason), 40) if finish_reason else None,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
    )
