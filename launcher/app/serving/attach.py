"""A server started by others, llama-server or another with OpenAI's API: detection, monitoring and requests."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from launcher.base.errors import BadOption, LauncherError, Refused, ServerNotFound, Unreachable
from launcher.base.messages import FaceName, mark, message
from launcher.base.text import one_line
from launcher.engine.server.address import ServerAddress
from launcher.engine.server.client import ChatRequest, Delta, EngineClient
from launcher.engine.server.state import ServerState, ServerStatus
from launcher.monitor.monitor import MonitoredServer
from launcher.monitor.traffic import Counters, parse_counters

_CHECK_PERIOD_S = 2.0
_NOT_OFFERED = "not offered"
LLAMA_ROUTER, LLAMA_SWAP = "llama-server router", "llama-swap router"
_LOADED = ("loaded", "sleeping")
"""States of a model of llama-server's router that has a server (tools/server/README.md)."""
_MOST_NAMES = 600
"""Characters of a list of models in a message."""
_PROPS = frozenset({"build_info", "total_slots", "default_generation_settings"})
"""Some fields of llama-server's /props (tools/server/README.md), by which it is recognised."""


@dataclass(frozen=True, slots=True)
class ServerFeatures:
    """Features of a server. Unknown values are None; `missing` maps each missing endpoint to the reason.

    `models` are the names of its models, `model_path` is the path of the model's file on the server's computer. Of a
    router, which starts a server for each model, `router` is its name and `loaded` the models that it has loaded.
    `chosen` is the model that the user named, or the only one that a router has loaded.
    `drafts` is whether it speculates, `has_counters` whether it has llama-server's /metrics.
    """

    url: str
    models: tuple[str, ...] = ()
    engine: str | None = None
    context: int | None = None
    slots: int | None = None
    drafts: bool | None = None
    healthy: bool | None = None
    has_counters: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    model_path: str | None = None
    router: str = ""
    loaded: tuple[str, ...] = ()
    chosen: str | None = None

    @property
    def model(self) -> str | None:
        """The model for requests that name none: the chosen one, else the first; None for a router without a choice."""
        return self.chosen or (self.models[0] if self.models and not self.router else None)

    @property
    def is_llama_server(self) -> bool:
        """True if it serves /props like llama-server."""
        return "/props" not in self.missing

    @property
    def kind(self) -> str:
        """The kind of server, for users."""
        return self.router or ("llama-server" if self.is_llama_server else "OpenAI-compatible server")


class AttachedServer(MonitoredServer):
    """A server started by others. It belongs to one asyncio loop."""

    def __init__(
        self,
        address: ServerAddress,
        api_key: str | None = None,
        *,
        engine_pid: int | None = None,
        client: EngineClient | None = None,
        model: str | None = None,
    ) -> None:
        """`model` is the one that the user named, None if none."""
        remote = not address.local or address.url.startswith("https://")
        self.address = address
        self.features = ServerFeatures(address.url)
        self._client = client or EngineClient(address.url, api_key, remote=remote)
        self._status = ServerStatus(ServerState.PREPARING)
        self._has_key = api_key is not None
        self._engine_pid = engine_pid
        self._wanted_model = model

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine. Known only if another program of ours started it."""
        return self._engine_pid

    @property
    def status(self) -> ServerStatus:
        """State of the server, as far as it is known."""
        return self._status

    @property
    def client(self) -> EngineClient:
        """HTTP client of the server. Raises ServerNotFound if it has no counters."""
        if not self.features.has_counters:
            raise ServerNotFound(
                message("The server has no metrics endpoint."), message("Start llama-server with --metrics.")
            )
        return self._client

    def note_requests(self, processing: int) -> None:
        """Update the state from the number of requests in progress."""
        self._status = ServerStatus(ServerState.BUSY if processing else ServerState.READY)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def detect_features(self) -> ServerFeatures:
        """Request every endpoint that a model server may have, and keep the result as `features`.

        Raises Unreachable when nothing answers, Refused when it wants another key or offers no known endpoint,
        BadOption if it does not have the model that the user named.
        """
        missing: dict[str, str] = {}
        models = await self._get_endpoint("/v1/models", missing)
        props = await self._get_endpoint("/props", missing)
        names = _model_names(models, missing)
        facts = props if isinstance(props, dict) and _PROPS & props.keys() else {}
        if not facts and "/props" not in missing:
            missing["/props"] = "its answer is not that of llama-server"
        router, loaded = await self._find_router(models, facts)
        chosen = self._choose_model(models, names, loaded)
        slots, has_counters = None, False
        if not router or chosen in loaded:  # another model would be loaded by these requests
            if router and chosen is not None:
                self._client.name_model(chosen)
                child = await self._get_endpoint("/props", {})
                if isinstance(child, dict) and _PROPS & child.keys():
                    facts = {**facts, **child}
                    missing.pop("/props", None)  # llama-swap answers for a model only
            slots = await self._get_endpoint("/slots", missing)
            has_counters = await self._has_counters(missing)
        else:
            missing |= dict.fromkeys(("/slots", "/metrics"), "only for a model that is loaded, named with --model")
        usable_slots = [slot for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []
        if not usable_slots and "/slots" not in missing:
            missing["/slots"] = "its answer is not that of llama-server"
        healthy = True if await self._client.is_healthy() else None
        if healthy is None:
            missing["/health"] = _NOT_OFFERED
        if not names and not facts:
            why = dict.fromkeys(missing[path].rstrip(".") for path in ("/v1/models", "/props") if path in missing)
            raise Refused(
                message(
                    "{url} is not a llama-server, and has no OpenAI interface: it has neither /v1/models nor /props"
                    " ({why}).",
                    url=self.address.url,
                    why="; ".join(why) or "its lists are empty",
                ),
                message("Check the address."),
            )
        settings = facts.get("default_generation_settings")
        self.features = ServerFeatures(
            url=self.address.url,
            models=names,
            engine=_clean_text(facts.get("build_info")),
            context=_positive_int(settings.get("n_ctx")) if isinstance(settings, dict) else None,
            slots=_positive_int(facts.get("total_slots")),
            drafts=any(slot.get("speculative") is True for slot in usable_slots) if usable_slots else None,
            healthy=healthy,
            has_counters=has_counters,
            missing=missing,
            model_path=path if isinstance(path := facts.get("model_path"), str) else None,
            router=router,
            loaded=loaded,
            chosen=chosen,
        )
        self._status = ServerStatus(ServerState.READY)
        return self.features

    async def _find_router(self, models: object, facts: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Return what kind of router the server is, "" for none, and the models that it has loaded."""
        if facts.get("role") == "router":
            return LLAMA_ROUTER, tuple(
                name
                for name, model in _list_models(models)
                if isinstance(status := model.get("status"), dict) and status.get("value") in _LOADED
            )
        running = None if facts else await self._get_endpoint("/running", {})
        running = running.get("running") if isinstance(running, dict) else None
        if not isinstance(running, list):
            return "", ()
        entries = [each for each in running if isinstance(each, dict) and each.get("state") == "ready"]
        return LLAMA_SWAP, tuple(name for each in entries if (name := _clean_text(each.get("model"))))

    def _choose_model(self, models: object, names: tuple[str, ...], loaded: tuple[str, ...]) -> str | None:
        """Return the model that the user named, else the only one that is loaded; None otherwise. Raises BadOption."""
        wanted = self._wanted_model
        if wanted is None:
            return loaded[0] if len(loaded) == 1 else None
        if wanted not in names and not any(wanted in _list_aliases(model) for _, model in _list_models(models)):
            raise BadOption(
                message(
                    "{url} has no model {model}. It has: {names}.",
                    url=self.address.url,
                    model=wanted,
                    names=one_line(", ".join(names), _MOST_NAMES) or "-",
                ),
                message("Use one of these names."),
            )
        return wanted

    def require_model(self) -> None:
        """Raise BadOption for a router of which no model was chosen."""
        features = self.features
        if not features.router or features.model is not None:
            return
        raise BadOption(
            message(
                "{url} is a {router}, which has {count} models. Loaded: {loaded}. Others: {others}.",
                url=features.url,
                router=features.router,
                count=len(features.models),
                loaded=one_line(", ".join(features.loaded), _MOST_NAMES) or message("none"),
                others=one_line(", ".join(name for name in features.models if name not in features.loaded), _MOST_NAMES)
                or message("none"),
            ),
            message(
                "[Name one with {option}.][{instead}]",
                option=FaceName("--model"),
                instead=FaceName(None, mark("Load one of them there.")),
            ),
        )

    async def _get_endpoint(self, path: str, missing: dict[str, str]) -> Any:  # noqa: ANN401 -- the caller checks the shape
        """Return the reply of an endpoint; if it is missing, return None and add the reason to `missing`."""
        try:
            return await self._client.request_json(path)
        except Refused as error:
            if error.status == 401:
                raise self._key_error() from error
            if error.status == 503:
                raise
            missing[path] = _NOT_OFFERED if error.status in (404, 405, 501) else one_line(error.title, 200)
            return None

    async def _has_counters(self, missing: dict[str, str]) -> bool:
        try:
            text = await self._client.read_metrics()
            parse_counters(text)
        except Refused as error:
            missing["/metrics"] = _NOT_OFFERED if error.status in (404, 405, 501) else one_line(error.title, 200)
        except ValueError:
            missing["/metrics"] = "its answer is not Prometheus text"
        else:
            if "llamacpp:" in text:
                return True
            missing["/metrics"] = "its counters are not those of llama-server"
        return False

    def _key_error(self) -> Refused:
        if self._has_key:
            return Refused(
                message("{url} rejected the API key.", url=self.address.url), message("Check it."), status=401
            )
        hint = message("Pass its API key with --api-key-env NAME or --key-file FILE.")
        return Refused(message("{url} requires an API key.", url=self.address.url), hint, status=401)

    async def follow_health(self, *, period_s: float = _CHECK_PERIOD_S) -> None:
        """Check the server every `period_s` until cancelled. Its status is FAILED while it does not answer."""
        while True:
            await asyncio.sleep(period_s)
            if self.features.healthy is None:
                continue
            if await self._client.is_healthy():
                if self._status.state is ServerState.FAILED:
                    self._status = ServerStatus(ServerState.READY)
            else:
                gone = Unreachable(
                    message("{url} stopped responding.", url=self.address.url), message("Was it stopped?")
                )
                self._status = ServerStatus(ServerState.FAILED, error=gone)

    async def read_counters(self) -> Counters | None:
        """Return the server's counters; if it has only slots, just the number of working ones; None without either."""
        if self.features.has_counters:
            return parse_counters(await self._client.read_metrics())
        if "/slots" in self.features.missing:
            return None
        return Counters(0.0, 0.0, 0, 0, 0, (), processing=await self._client.count_working_slots())

    async def count_tokens(self, request: ChatRequest) -> int:
        """Return the number of tokens of a request. See EngineClient.count_tokens.

        Raises Refused unless it is a llama-server.
        """
        if not self.features.is_llama_server:
            raise Refused(
                message("{url} does not report the number of tokens in a prompt.", url=self.address.url),
                message("The launcher cannot build prompts of an exact size for it. Use another workload."),
            )
        return await self._client.count_tokens(request)

    @asynccontextmanager
    async def chat(self, request: ChatRequest, *, measured: bool = False) -> AsyncIterator[AsyncIterator[Delta]]:  # noqa: ARG002 -- there is one way
        """Stream a reply, with a request in the form that this server accepts. See EngineClient.chat."""
        self.require_model()
        if not self.features.is_llama_server and not isinstance(request, PlainRequest):
            request = PlainRequest.from_request(request)
        if self.features.model:
            request = replace(request, extra={"model": self.features.model, **request.extra})
        try:
            async with self._client.chat(request) as deltas:
                yield deltas
        except Refused as error:
            if error.status == 401:
                raise self._key_error() from error
            raise


@dataclass(frozen=True, slots=True)
class PlainRequest(ChatRequest):
    """A chat request without llama-server's own fields; other servers refuse unknown fields."""

    @classmethod
    def from_request(cls, request: ChatRequest) -> "PlainRequest":
        """Return a copy of a request in this form."""
        return cls(**{each.name: getattr(request, each.name) for each in fields(request)})

    def body(self) -> dict[str, Any]:
        """Return the JSON body of the streamed request."""
        llama_server_fields = {"timings_per_token", "return_progress", "chat_template_kwargs", "stream_options"}
        return {name: value for name, value in ChatRequest.body(self).items() if name not in llama_server_fields}


@asynccontextmanager
async def attach_server(
    address: ServerAddress, api_key: str | None = None, *, engine_pid: int | None = None, model: str | None = None
) -> AsyncIterator[AttachedServer]:
    """Yield a server after detecting its features, and keep its status up to date.

    `model` is the one that the user named. Raises what `detect_features` raises.
    """
    server = AttachedServer(address, api_key, engine_pid=engine_pid, model=model)
    following: asyncio.Task[None] | None = None
    try:
        await server.detect_features()
        following = asyncio.create_task(server.follow_health())
        yield server
    finally:
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError, LauncherError):
                await following
        await server.close()


def _model_names(answer: object, missing: dict[str, str]) -> tuple[str, ...]:
    if not isinstance(answer, dict) or not isinstance(answer.get("data"), list):
        missing.setdefault("/v1/models", "its answer is not a list of models")
    return tuple(name for name, _ in _list_models(answer))


def _list_models(answer: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the entry of each model in an answer of /v1/models."""
    data = answer.get("data") if isinstance(answer, dict) else None
    for each in data[:1_000] if isinstance(data, list) else ():
        if isinstance(each, dict) and (name := _clean_text(each.get("id"))):
            yield name, each


def _list_aliases(model: Mapping[str, Any]) -> list[Any]:
    aliases = model.get("aliases")
    return aliases if isinstance(aliases, list) else []


def _clean_text(value: object) -> str | None:
    return one_line(value, 200) if isinstance(value, str) and value else None


def _positive_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
