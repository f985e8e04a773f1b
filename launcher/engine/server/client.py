"""HTTP client for one llama-server: chat streams, slots, metrics, token counts and default sampling parameters."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlencode

from launcher.base.errors import LauncherError, Refused
from launcher.base.http import ServerClient
from launcher.base.messages import FaceName, message
from launcher.base.text import one_line

_MOST_CHARACTERS = 2**25
"""Maximum length of a reply, about ten million tokens."""
_FIRST_RATE_TOKENS = 5
"""Minimum number of tokens for a rate, because llama-server reports only 0.001 ms for the first token."""
_TEMPLATE_FIELDS = ("messages", "chat_template_kwargs")


@dataclass(frozen=True, slots=True)
class Timings:
    """The engine's timings of a reply so far, in its own field names.

    `prompt_n`, `cache_n` and `predicted_n` count prompt tokens that were processed, prompt tokens taken from the cache,
    and generated tokens; `*_ms` are milliseconds. `draft_n` and `draft_n_accepted` count draft tokens; they are None
    until the first draft, and always None without speculative decoding.
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
        """Parse the `timings` object of a reply; absent fields are 0, absent draft fields None."""
        return cls(
            prompt_n=int(data.get("prompt_n", 0)),
            cache_n=int(data.get("cache_n", 0)),
            prompt_ms=float(data.get("prompt_ms", 0.0)),
            predicted_n=int(data.get("predicted_n", 0)),
            predicted_ms=float(data.get("predicted_ms", 0.0)),
            predicted_per_second=float(data.get("predicted_per_second", 0.0)),
            draft_n=_parse_count(data.get("draft_n")),
            draft_n_accepted=_parse_count(data.get("draft_n_accepted")),
        )

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens per second; None while there are too few for a rate."""
        return self.predicted_per_second if self.predicted_n >= _FIRST_RATE_TOKENS else None

    @property
    def acceptance(self) -> float | None:
        """Draft acceptance: accepted divided by drafted tokens, 0 to 1; None without a draft."""
        return (self.draft_n_accepted or 0) / self.draft_n if self.draft_n else None


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A part of the call of a tool: which call of the reply it belongs to, and what it adds to name and arguments.

    The arguments of all parts together are a JSON object.
    """

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """One event of a streamed reply. An event is not always one token: count tokens by `timings`.

    `tool_calls` are parts of calls that the engine has parsed. `prompt_tokens` and `completion_tokens` are OpenAI's
    `usage`, which arrives once, at the end, if requested.
    """

    content: str = ""
    reasoning: str = ""
    timings: Timings | None = None
    tool_calls: tuple[ToolCallPart, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request: messages (role, and content as text or as OpenAI's parts) and generation parameters.

    None leaves a value to the server. `thinking` turns the model's reasoning on or off. `extra` holds further fields of
    the JSON body and overrides the others. A `purpose` is stated to the server: see EngineClient.set_purpose. What the
    model has read of the conversation may be kept on disk as `kept_as`, with "" without a name; with None it is not.
    """

    messages: Sequence[Mapping[str, Any]]
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    thinking: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    purpose: str = ""
    kept_as: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the JSON body. It always requests a stream, because the engine cannot cancel other replies."""
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
    """HTTP client for one llama-server. Its methods raise Unreachable and Refused: see base.http.

    Set `remote` if the server may be on another computer.
    """

    def __init__(self, url: str, api_key: str | None, *, remote: bool = False) -> None:
        self._http = ServerClient(url, api_key=api_key, remote=remote)
        self._model: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection, open streams included."""
        await self._http.close()

    def set_api_key(self, api_key: str) -> None:
        """Send this API key with further requests."""
        self._http.set_api_key(api_key)

    def set_purpose(self, purpose: str) -> None:
        """State this purpose in further requests: see ServerClient.set_purpose."""
        self._http.set_purpose(purpose)

    def name_model(self, model: str) -> None:
        """Name this model in further requests that name none, as a router needs it."""
        self._model = model

    async def _get_json(self, path: str, body: Mapping[str, Any] | None = None, *, unlimited: bool = False) -> Any:  # noqa: ANN401 -- the caller checks
        body = body and self._name_in_body(body)
        return await self._http.get_json(path if body else self._name_in_path(path), body, unlimited=unlimited)

    def _name_in_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {**body, "model": body.get("model") or self._model} if self._model else dict(body)

    def _name_in_path(self, path: str) -> str:
        return f"{path}?{urlencode({'model': self._model})}" if self._model else path

    async def is_healthy(self) -> bool:
        """Return whether the model is loaded and the server answers."""
        return await self.read_health() == 200

    async def read_health(self) -> int | None:
        """Return the HTTP status of /health, asked without the API key; None if nothing answers."""
        return await self._http.get_status("/health", timeout_s=2.0)

    async def drafts_tokens(self) -> bool:
        """Return whether the first slot uses speculative decoding, according to /slots."""
        slots = await self._get_json("/slots")
        return bool(isinstance(slots, list) and slots and isinstance(slots[0], dict) and slots[0].get("speculative"))

    async def count_working_slots(self) -> int:
        """Return the number of slots that process a request, from /slots.

        Call it at most every 1.5 s: polled more often than once a second, llama-server does not notice when a client
        disconnects, and goes on with its request.
        """
        slots = await self._get_json("/slots")
        return sum(bool(slot.get("is_processing")) for slot in slots if isinstance(slot, dict)) if slots else 0

    async def request_json(self, path: str, body: Mapping[str, Any] | None = None, *, unlimited: bool = False) -> Any:  # noqa: ANN401 -- the caller checks
        """Send a GET to `path`, or a POST if `body` is given, and return the parsed JSON reply.

        With `unlimited` it may take any time, as the generation of a reply does.
        """
        return await self._get_json(path, body, unlimited=unlimited)

    async def count_tokens(self, request: ChatRequest) -> int:
        """Return the number of prompt tokens of a request, including the chat template.

        Also raises Refused if the server lacks /apply-template or /tokenize.
        """
        chat = request.body()
        templated = await self._get_json(
            "/apply-template", {name: chat[name] for name in _TEMPLATE_FIELDS if name in chat}
        )
        prompt = templated.get("prompt") if isinstance(templated, dict) else None
        body = {"content": prompt, "add_special": True, "parse_special": True}
        tokenized = await self._get_json("/tokenize", body) if isinstance(prompt, str) else None
        return self._count_list(tokenized)

    async def count_text_tokens(self, text: str) -> int:
        """Return the number of a text's tokens, without a chat template. Raises Refused if the server does not report
        it.
        """
        tokenized = await self._get_json("/tokenize", {"content": text})
        return self._count_list(tokenized)

    @staticmethod
    def _count_list(tokenized: object) -> int:
        tokens = tokenized.get("tokens") if isinstance(tokenized, dict) else None
        if not isinstance(tokens, list):
            raise Refused(
                message("The server does not report the number of tokens in a prompt."),
                message("Check that the address belongs to a llama-server."),
            )
        return len(tokens)

    async def embed_text(self, text: str) -> Sequence[object]:
        """Return a text's vector, or those of its tokens. There is no time limit. Raises Refused if the reply has none.

        llama-server's own path also answers with the pooling type `none`, for which OpenAI's API has no format.
        """
        reply = await self._get_json("/embeddings", {"input": text}, unlimited=True)
        try:
            vector = reply[0]["embedding"]
        except (IndexError, KeyError, TypeError):
            vector = None
        if not isinstance(vector, list) or not vector:
            raise Refused(
                message("The server sent no vector for a text."),
                message("Check that the address belongs to a llama-server."),
            )
        return vector

    async def rank_texts(self, query: str, texts: Sequence[str]) -> Sequence[object]:
        """Return the rank of each text for a query. There is no time limit. Raises Refused if the reply has none."""
        body = {"query": query, "documents": texts}
        reply = await self._get_json("/v1/rerank", body, unlimited=True)
        ranks = reply.get("results") if isinstance(reply, dict) else None
        if not isinstance(ranks, list) or len(ranks) != len(texts):
            raise Refused(
                message("The server ranked no text."), message("Check that the address belongs to a llama-server.")
            )
        return ranks

    async def read_metrics(self) -> str:
        """Return /metrics as text (Prometheus 0.0.4). Call it at most every 1.5 s: see count_working_slots."""
        return await self._http.get_text(self._name_in_path("/metrics"))

    @asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        """Send a chat request and yield the events of its reply; leaving the block cancels an unfinished reply."""
        path = "/v1/chat/completions"
        body = self._name_in_body(request.body())
        async with self._http.stream_events(path, body, request.purpose, request.kept_as) as events:
            yield _parse_deltas(events)


def _clean_text(value: object) -> str:
    """Return text that can be encoded as UTF-8 again: JSON strings may contain lone surrogates."""
    return str(value or "").encode("utf-8", "replace").decode()


def _parse_count(value: object) -> int | None:
    return None if value is None else int(str(value))


async def _parse_deltas(events: AsyncIterator[Any]) -> AsyncIterator[Delta]:
    characters_left = _MOST_CHARACTERS
    async for event in events:
        try:
            delta = _parse_delta(event)
            characters_left -= len(delta.content) + len(delta.reasoning)
            characters_left -= sum(len(part.name) + len(part.arguments) for part in delta.tool_calls)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise Refused(
                message("The server sent an invalid reply."),
                message("Check that the address belongs to a llama-server."),
            ) from error
        if characters_left < 0:
            raise Refused(
                message("The server's reply does not end."),
                message("Limit the reply[ with {option}].", option=FaceName("--max-tokens")),
            )
        yield delta


def _parse_delta(event: Mapping[str, Any]) -> Delta:
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    timings = event.get("timings")
    finish_reason = choices[0].get("finish_reason")
    usage = event.get("usage") or {}
    return Delta(
        content=_clean_text(delta.get("content")),
        reasoning=_clean_text(delta.get("reasoning_content")),
        timings=Timings.parse(timings) if timings else None,
        tool_calls=tuple(map(_parse_tool_call, delta.get("tool_calls") or ())),
        finish_reason=one_line(str(finish_reason), 40) if finish_reason else None,
        prompt_tokens=_parse_count(usage.get("prompt_tokens")),
        completion_tokens=_parse_count(usage.get("completion_tokens")),
    )


def _parse_tool_call(part: Mapping[str, Any]) -> ToolCallPart:
    function = part.get("function") or {}
    return ToolCallPart(
        int(part.get("index") or 0), _clean_text(function.get("name")), _clean_text(function.get("arguments"))
    )


# The server's default sampling parameters, from /props.

SAMPLING_PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "max_tokens")
_SAMPLING_DIGITS = 4
"""Decimal places kept, because the engine's values are single precision: 0.8 arrives as 0.800000011920929."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Default sampling values by their request parameter; unknown ones are absent.

    `thinks` is whether the chat template has a switch for thinking, None if unknown.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    thinks: bool | None = None


async def read_sampling_defaults(client: EngineClient) -> SamplingDefaults:
    """Request a server's default sampling parameters; empty if it does not answer."""
    try:
        props = await client.request_json("/props")
    except LauncherError:
        return SamplingDefaults()
    if not isinstance(props, dict):
        return SamplingDefaults()
    settings = props.get("default_generation_settings")
    parameters = settings.get("params") if isinstance(settings, dict) else None
    values = {}
    if isinstance(parameters, dict):
        for name in SAMPLING_PARAMETERS:
            value = parameters.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                values[name] = round(value, _SAMPLING_DIGITS)
    template = props.get("chat_template")
    return SamplingDefaults(values, "enable_thinking" in template if isinstance(template, str) else None)
