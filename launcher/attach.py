"""A server that we did not start, llama-server or another with OpenAI's API: what it offers, watching and asking it."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from launcher.base.errors import BadOption, LauncherError, Refused, ServerNotFound, Unreachable
from launcher.base.text import one_line
from launcher.engine.client import ChatRequest, Delta, EngineClient
from launcher.engine.launch import Launch
from launcher.engine.logs import LogBook
from launcher.engine.state import State, Status
from launcher.monitor.traffic import Counters, read_counters

_PERIOD_S = 2.0
_NOT_OFFERED = "not offered"
_PROPS = frozenset({"build_info", "total_slots", "default_generation_settings"})
"""What llama-server's /props has (tools/server/README.md)."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is: `url` without the /v1 at its end. `local` when it is on this computer."""

    url: str
    local: bool

    @property
    def open_key(self) -> bool:
        """Whether a key would travel where others can read it."""
        return not self.local and self.url.startswith("http://")


def address_of(text: str) -> Address:
    """Read an address as users write it. Raises BadOption for what is none, or holds a password."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadOption(f"{one_line(text)} is no address: {error}.", "Write it like http://127.0.0.1:8080.") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise BadOption(f"{one_line(text)} is no address of a server.", "Write it like http://127.0.0.1:8080.")
    if parts.username is not None or parts.query or parts.fragment:
        raise BadOption(
            "The address holds more than a server and a path.", "Give a key with --api-key-env or --key-file."
        )
    path = parts.path.rstrip("/").removesuffix("/v1").removesuffix("/chat/completions").removesuffix("/v1")
    return Address(urlunsplit((parts.scheme, parts.netloc, path, "", "")), _is_local(host))


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server offers. A figure is None when it does not tell it; `missing` says what it lacks, and how we know.

    `model` is the first of `models`, by which it is asked. `drafts` is whether it says that it speculates, `model_path`
    where its model lies, on its computer.
    """

    url: str
    models: tuple[str, ...] = ()
    engine: str | None = None
    context: int | None = None
    slots: int | None = None
    drafts: bool | None = None
    healthy: bool | None = None
    counts: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    model_path: str | None = None

    @property
    def model(self) -> str | None:
        """The model that is asked where none is named."""
        return self.models[0] if self.models else None

    @property
    def is_llama_server(self) -> bool:
        """Whether it tells its own properties, as llama-server does."""
        return "/props" not in self.missing


class Attached:
    """A server that others started, as the monitor watches it. Belongs to one asyncio loop."""

    def __init__(self, address: Address, api_key: str | None = None, *, engine_pid: int | None = None) -> None:
        remote = not address.local or address.url.startswith("https://")
        self.address = address
        self.offer = Offer(address.url)
        self._client = EngineClient(address.url, api_key, remote=remote)
        self._status = Status(State.PREPARING)
        self._has_key = api_key is not None
        self._engine_pid = engine_pid

    @property
    def engine_pid(self) -> int | None:
        """Known only where another program of ours started it."""
        return self._engine_pid

    @property
    def launch(self) -> Launch | None:
        """Not known: we did not start it."""
        return None

    @property
    def log(self) -> LogBook | None:
        """Not known: others keep it."""
        return None

    @property
    def status(self) -> Status:
        """What it is doing, as far as it tells."""
        return self._status

    @property
    def client(self) -> EngineClient:
        """Its HTTP. Raises ServerNotFound for counters that it does not offer."""
        if not self.offer.counts:
            raise ServerNotFound("The server offers no counters.", "llama-server does with --metrics.")
        return self._client

    def note_requests(self, processing: int) -> None:
        """Take note of how many requests it is working on."""
        self._status = Status(State.BUSY if processing else State.READY)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def look(self) -> Offer:
        """Ask for all that a server may offer, and keep what it does.

        Raises Unreachable when nothing answers, Refused when it wants another key or offers nothing that we know.
        """
        missing: dict[str, str] = {}
        models = await self._asked("/v1/models", missing)
        props = await self._asked("/props", missing)
        slots = await self._asked("/slots", missing)
        names = _names(models, missing)
        facts = props if isinstance(props, dict) and _PROPS & props.keys() else {}
        if not facts and "/props" not in missing:
            missing["/props"] = "its answer is none of llama-server's"
        told = [slot for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []
        if not told and "/slots" not in missing:
            missing["/slots"] = "its answer is none of llama-server's"
        counts = await self._counts(missing)
        healthy = True if await self._client.healthy() else None
        if healthy is None:
            missing["/health"] = _NOT_OFFERED
        if not names and not facts:
            why = dict.fromkeys(missing[path].rstrip(".") for path in ("/v1/models", "/props") if path in missing)
            raise Refused(
                f"{self.address.url} is no server of models that we know: it offers neither /v1/models nor /props"
                f" ({'; '.join(why) or 'its lists are empty'}).",
                "Check the address.",
            )
        settings = facts.get("default_generation_settings")
        self.offer = Offer(
            url=self.address.url,
            models=names,
            engine=_text(facts.get("build_info")),
            context=_count(settings.get("n_ctx")) if isinstance(settings, dict) else None,
            slots=_count(facts.get("total_slots")),
            drafts=any(slot.get("speculative") is True for slot in told) if told else None,
            healthy=healthy,
            counts=counts,
            missing=missing,
            model_path=path if isinstance(path := facts.get("model_path"), str) else None,
        )
        self._status = Status(State.READY)
        return self.offer

    async def _asked(self, path: str, missing: dict[str, str]) -> Any:  # noqa: ANN401 -- the caller checks the shape
        """Return what an endpoint answers; None when it is not offered, which is noted."""
        try:
            return await self._client.answer(path)
        except Refused as error:
            if error.status == 401:
                raise self._wrong_key() from error
            if error.status == 503:
                raise
            missing[path] = _NOT_OFFERED if error.status in (404, 405, 501) else one_line(error.title, 200)
            return None

    async def _counts(self, missing: dict[str, str]) -> bool:
        try:
            text = await self._client.metrics()
            read_counters(text)
        except Refused as error:
            missing["/metrics"] = _NOT_OFFERED if error.status in (404, 405, 501) else one_line(error.title, 200)
        except ValueError:
            missing["/metrics"] = "its answer is no Prometheus text"
        else:
            if "llamacpp:" in text:
                return True
            missing["/metrics"] = "its counters are none of llama-server's"
        return False

    def _wrong_key(self) -> Refused:
        if self._has_key:
            return Refused(f"{self.address.url} does not accept the API key.", "Check it.", status=401)
        hint = "Give its key with --api-key-env NAME or --key-file FILE."
        return Refused(f"{self.address.url} wants an API key.", hint, status=401)

    async def follow(self) -> None:
        """Keep the status up to date for as long as it is awaited: FAILED with the reason while it does not answer."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            if self.offer.healthy is None:
                continue
            if await self._client.healthy():
                if self._status.state is State.FAILED:
                    self._status = Status(State.READY)
            else:
                gone = Unreachable(f"{self.address.url} does not answer any more.", "Was it stopped?")
                self._status = Status(State.FAILED, error=gone)

    async def counters(self) -> Counters | None:
        """Return its counters now; where it has none, but slots, only how many of these work. None without either."""
        if self.offer.counts:
            return read_counters(await self._client.metrics())
        if "/slots" in self.offer.missing:
            return None
        return Counters(0.0, 0.0, 0, 0, 0, (), processing=await self._client.working_slots())

    async def count_tokens(self, request: ChatRequest) -> int:
        """See EngineClient.count_tokens. Raises Refused for what is no llama-server."""
        if not self.offer.is_llama_server:
            raise Refused(
                f"{self.address.url} does not tell how many tokens a prompt has.",
                "Prompts of an exact size cannot be made for it: take another workload.",
            )
        return await self._client.count_tokens(request)

    @asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        """Stream a reply, asked for in the way that this server knows. See EngineClient.chat."""
        plain = isinstance(request, PlainRequest)
        asked = request if self.offer.is_llama_server or plain else PlainRequest.of(request)
        if self.offer.model:
            asked = replace(asked, extra={"model": self.offer.model, **asked.extra})
        try:
            async with self._client.chat(asked) as deltas:
                yield deltas
        except Refused as error:
            if error.status == 401:
                raise self._wrong_key() from error
            raise


@dataclass(frozen=True, slots=True)
class PlainRequest(ChatRequest):
    """A chat request without what only llama-server knows; others refuse fields of no standard."""

    @classmethod
    def of(cls, request: ChatRequest) -> "PlainRequest":
        """Return a request of the same words."""
        return cls(**{each.name: getattr(request, each.name) for each in fields(request)})

    def body(self) -> dict[str, Any]:
        """Return the JSON body, streamed as well."""
        own = {"timings_per_token", "return_progress", "chat_template_kwargs", "stream_options"}
        return {name: value for name, value in ChatRequest.body(self).items() if name not in own}


@asynccontextmanager
async def attached(
    address: Address, api_key: str | None = None, *, engine_pid: int | None = None
) -> AsyncIterator[Attached]:
    """Yield a server after a look at it, its status kept up to date. Raises what `look` raises."""
    server = Attached(address, api_key, engine_pid=engine_pid)
    following: asyncio.Task[None] | None = None
    try:
        await server.look()
        following = asyncio.create_task(server.follow())
        yield server
    finally:
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError, LauncherError):
                await following
        await server.close()


def _names(answer: object, missing: dict[str, str]) -> tuple[str, ...]:
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list):
        missing.setdefault("/v1/models", "its answer is no list of models")
        return ()
    names = (_text(each.get("id")) for each in data[:1_000] if isinstance(each, dict))
    return tuple(name for name in names if name)


def _text(value: object) -> str | None:
    return one_line(value, 200) if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
