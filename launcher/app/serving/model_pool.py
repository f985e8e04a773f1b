"""The models behind one gateway: finds the one that a request names, loads it, and makes room for it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from launcher.app import settings
from launcher.app.serving.load_recording import LoadRecorder
from launcher.app.serving.model_names import ModelAlias, names_path, read_model_names
from launcher.app.serving.published_server import engine_name
from launcher.app.serving.verbs import Join
from launcher.app.settings_declared import MEMORY_LIMIT, UNKNOWN_MODEL, UNLOAD_AFTER, VALUE_NONE, VALUE_REFUSE
from launcher.base.errors import LauncherError, ModelMissing, ModelUnknown, NothingFits, ServerNotFound, Superseded
from launcher.base.messages import FaceName, command_name, mark, message
from launcher.engine.demo import DEMO
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import api_model_name, check_model, other_names, plan_settings_of, read_draft_file
from launcher.engine.server.load_times import LoadTimer, expected_load_time
from launcher.engine.server.logs import LogBook, logs_dir
from launcher.engine.server.own_memory import make_formula_inputs
from launcher.engine.server.registry import ServedModel, hash_command
from launcher.engine.server.state import (
    MAIN_UNLOADED,
    SERVING,
    EngineStarted,
    ModelStatus,
    Notice,
    ServerEvent,
    ServerState,
    ServerStatus,
)
from launcher.engine.server.supervisor import Supervisor
from launcher.engine.settings import Settings, change_settings, launched_settings
from launcher.gateway.client_side import GateClientSide, GatewayAddress
from launcher.gateway.request_log import RequestLog
from launcher.models.geometry import read_geometry
from launcher.models.memory import estimate_memory
from launcher.models.server_settings import ROWS
from launcher.models.weights import read_weights

if TYPE_CHECKING:  # planning is imported where it is needed: most servers do without
    from launcher.app.planning.start_settings import ResolvedStart
    from launcher.app.serving.servable_models import ServableModel
    from launcher.gateway.gate import Gate
    from launcher.gateway.model_router import Body, Route

_MIB = 2**20
_LIST_S, _UNKNOWN_S = 3.0, 10.0
"""The fewest seconds between two readings of the list of local models for unknown names, and for the same unknown name.
"""
_FAILURE_S = 10.0
"""Seconds in which a model that could not be loaded is not tried again: clients repeat failed requests at once."""
_LONGEST_WAIT_S = 540.0
"""Seconds that a load waits for room: clients give up after 600 s (openai 3.54, anthropic 2.12)."""
_FAIR_WAIT_S = 20.0
"""Seconds after which a load that waits for models in use gets their room once their running replies have ended:
further requests for them wait until they are loaded again."""
_ENGINE_KEYS = ("architecture", "tags")
"""What an entry of /v1/models has from the engine, besides `meta`."""
_IDLE_CHECKS, _LONGEST_CHECK_S = 10, 5.0
"""Checks within the idle time of a model, and the most seconds between two."""
_USUAL_REPLY_TOKENS, _USUAL_TOKENS_PER_S = 500, 50.0
"""Length and speed that are assumed for a reply until the first one has ended."""
_MOST_LOAD_SHARE = 0.5
"""A switch of settings pays if it takes at most this share of the time that the reply is expected to take."""
_SHOWN_NAMES, _SHOWN_CHARACTERS = 12, 100
_log = logging.getLogger(__name__)


PlanStart = Callable[[Settings, Collection[int]], Awaitable["ResolvedStart"]]
"""Returns the start of a model with the settings asked for, while the engines with these process IDs end."""
OnNotice = Callable[[Notice], None]


@dataclass(frozen=True, slots=True)
class PoolRules:
    """The user's rules. `idle_s` is when a model that requests loaded is unloaded; None: never.

    `memory_limit_mib` is the most that all models together may take by their memory estimates. `refuses_unknown`: a
    name that no model has is never answered by the running one.
    """

    idle_s: float | None = 900.0
    memory_limit_mib: int | None = None
    refuses_unknown: bool = False


def read_pool_rules(memory_limit_mib: int | None = None) -> PoolRules:
    """Return the rules in the app settings; a limit that is given here takes precedence."""
    minutes, limit = settings.stored_value(UNLOAD_AFTER), settings.stored_value(MEMORY_LIMIT)
    if memory_limit_mib is None and limit != VALUE_NONE:
        memory_limit_mib = int(limit)
    return PoolRules(
        60.0 * float(minutes) or None,
        memory_limit_mib,
        settings.stored_value(UNKNOWN_MODEL) == VALUE_REFUSE,
    )


class PoolState(StrEnum):
    """State of a model in a pool. What its engine does meanwhile is in its supervisor's ServerState.

    A loaded model takes requests, now or as soon as its engine is ready, and has its memory. One that waits is loaded
    as soon as there is room for it.
    """

    STOPPED = "stopped"
    WAITING = "waiting"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"


class PooledModel:
    """One model of a server: its supervisor, its side of the gateway (None without one), and who uses it.

    `owners` is how many starts by a person it has, 0 if requests loaded it. `used_s` is when a request last began or
    ended. `task` is done once it is loaded, or has other settings, and raises Refusal. `claimed_by` is the model that
    gets its room as soon as its running replies have ended. `ended` is set when a person or a failure has ended it.
    `asked` are the options of its newest load.
    """

    def __init__(
        self, supervisor: Supervisor, side: GateClientSide | None, name: str | None, path: Path | None = None
    ) -> None:
        self.supervisor = supervisor
        self.side = side
        self.plan_start: PlanStart = partial(_plan_as_chosen, supervisor)
        self.owners = 0
        self.state = PoolState.STOPPED
        self.own_name = name
        self.path = path
        self.asked: ServeOptions | None = None
        self.used_s = 0.0
        self.task: asyncio.Future[None] | None = None
        self.claimed_by: PooledModel | None = None
        self.unloading: asyncio.Future[None] | None = None
        self.failure: tuple[float, LauncherError] | None = None
        self.load_s: float | None = None
        self.load_timer = LoadTimer()
        self.ended = asyncio.Event()

    @property
    def name(self) -> str:
        """The name in the API."""
        options = self.supervisor.options
        return self.own_name or (api_model_name(options) if options else "model")

    @property
    def model_path(self) -> Path | None:
        """The model's first file."""
        options = self.supervisor.options
        return self.path or (options.model.absolute() if options else None)

    @property
    def resolved_options(self) -> ServeOptions | None:
        """The options of its last start, with the context that its engine got; None before the first one."""
        launch = self.supervisor.launch
        return launch.resolved if launch is not None else self.supervisor.options

    @property
    def gate(self) -> Gate:
        """The model's gate. The gateway makes it before it sends a request to the model."""
        assert self.side is not None  # noqa: S101 -- the gateway has a request, so both exist
        assert self.side.gate is not None  # noqa: S101
        return self.side.gate

    @property
    def is_loaded(self) -> bool:
        """Whether it takes requests now, or will as soon as its engine is ready."""
        return self.state is PoolState.LOADED

    async def load(self, options: ServeOptions, *, again: bool = False, drain_s: float = 0.0) -> None:
        """Load it, or restart it with other options. See Supervisor.become."""
        self.state, self.asked = PoolState.LOADED, options
        await self.supervisor.become(options, again=again, drain_s=drain_s)

    def unload(self, drain_s: float) -> asyncio.Future[None]:
        """Begin to unload it, unless that has begun. Requests that come meanwhile wait until it is loaded again."""
        if self.unloading is None:
            self.state = PoolState.UNLOADING
            self.unloading = asyncio.ensure_future(self.supervisor.become(None, drain_s=drain_s))
            self.unloading.add_done_callback(self._finish_unload)
        return self.unloading

    def _finish_unload(self, _ended: asyncio.Future[None]) -> None:
        self.unloading = None
        if self.state is PoolState.UNLOADING:  # else a start has taken its place
            self.state = PoolState.STOPPED

    def fail(self, error: LauncherError | None, time_s: float) -> None:
        """Record that it has ended by a failure, or that its load was given up (None)."""
        self.state = PoolState.STOPPED if error is None else PoolState.FAILED
        self.failure = None if error is None else (time_s, error)

    @property
    def is_idle(self) -> bool:
        """Whether nothing uses it, so that it can be unloaded. The task of a claimed model is its next load."""
        busy = self.side is not None and self.side.gate is not None and self.side.gate.is_engine_in_use
        settled = self.supervisor.status.state is ServerState.READY and not self.supervisor.is_changing
        return settled and not busy and (self.task is None or self.claimed_by is not None)

    def mark_ended(self) -> None:
        """Let the starts that loaded it know that it has ended, and will not be loaded again by itself."""
        ended, self.ended = self.ended, asyncio.Event()
        ended.set()

    def has_name(self, name: str) -> bool:
        """Return whether it has this name in the API."""
        return name == self.name or name in self.given_names

    @property
    def given_names(self) -> Collection[str]:
        """All names that the user's extra arguments give it."""
        options = self.supervisor.options
        return other_names(options) if options and not self.own_name else ()


class ModelPool:
    """Owns the models of one server: loads them, unloads them, and finds the one that a request names.

    They are equal, but for the `main` one, with `options`, with which the server was started: requests and starts that
    name none mean it, and the server ends with it. Without an `address`, the gateway's, there is only this one; if the
    pool `takes_models`, it is the router of the gateway, and requests and other starts can bring further ones.
    `read_rules` returns the user's rules. `on_event` gets what the models' supervisors report, `on_notice` what happens
    to models besides, `on_change` is called whenever the models or their states have changed. `clock` returns monotonic
    seconds. Belongs to the gateway's loop.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        address: GatewayAddress | None,
        request_log: RequestLog,
        options: ServeOptions,
        *,
        takes_models: bool,
        read_rules: Callable[[], PoolRules] = read_pool_rules,
        on_event: Callable[[PooledModel, ServerEvent], None],
        on_notice: OnNotice,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.address = address
        self._request_log = request_log
        self.takes_models = takes_models and address is not None
        self._read_rules = read_rules
        self._on_event = on_event
        self._on_notice = on_notice
        self._on_change = on_change
        self._clock = clock
        self._models: list[PooledModel] = []
        self._room = asyncio.Lock()
        self._waiting: list[PooledModel] = []
        """The models that are to be loaded, in the order in which they were asked for."""
        self._changed = asyncio.Event()
        self._listed: tuple[ServableModel, ...] = ()
        self._listed_s: float | None = None
        self._names_path = names_path()
        self._unknown: dict[str, float] = {}
        """The last name that no model had, and when: some clients send the same one each time."""
        self._listing = asyncio.Lock()
        self._idle_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        self._closing: asyncio.Future[None] | None = None
        """Done when `close` has ended all models; None while it was not called."""

        self._recorder = LoadRecorder()
        self.main = self._open_model(None, None)
        self.main.owners, self.main.asked = 1, options  # the server itself is its owner
        if self.takes_models and address is not None:
            address.router = self

    @property
    def is_main_unloaded(self) -> bool:
        """Whether the main model was unloaded here, while the server goes on."""
        return not self.main.is_loaded

    @property
    def supervisors_beside(self) -> dict[str, Supervisor]:
        """The supervisors of the models that are loaded beside the main one, by name."""
        return {each.name: each.supervisor for each in self._models if each.is_loaded and each is not self.main}

    def find_log(self, name: str | None) -> LogBook:
        """Return the log of a loaded model; that of the main one if none has this name."""
        model = next((each for each in self._models if each.is_loaded and each.name == name), self.main)
        return model.supervisor.log

    def describe_models(self) -> list[ServedModel]:
        """Return the main model and those that have an engine beside it, for the registry."""
        return [_describe_served(each) for each in self._models if each is self.main or _has_engine(each)]

    @property
    def model_statuses(self) -> tuple[ModelStatus, ...]:
        """The main model, and those that are loaded or being loaded beside it."""
        return tuple(
            ModelStatus(
                each.name,
                each.supervisor.status.state,
                each is self.main,
                each is self.main and not each.is_loaded,
                each.supervisor.status.percent,
                str(each.model_path or ""),
            )
            for each in self._models
            if each is self.main or _has_engine(each)
        )

    async def wait_for_change(self) -> None:
        """Wait until a model has been loaded or unloaded, or is no longer used."""
        await self._changed.wait()

    # Starts and stops by a person.

    async def prepare_main(self, path: Path) -> None:
        """Prepare a load of the main model with the file at `path`, and unload another one that has it.

        If the main model was unloaded for others, or another one takes its place, the idle models that requests loaded
        are unloaded, too: a person's start comes before them.
        """
        await self._reopen()
        makes_room = not self.main.is_loaded or not _is_same_file(self.main.model_path, path)
        self.main.state = PoolState.LOADED
        self._note_change()
        for model in self._models[1:]:
            yields = makes_room and not model.owners and model.is_idle and self._may_unload(model)
            if model.is_loaded and (yields or _is_same_file(model.model_path, path)):
                await self._unload(model)

    async def start_model(
        self, model: PooledModel, options: ServeOptions, *, again: bool = False, drain_s: float = 0.0
    ) -> asyncio.Future[None]:
        """Load a model, or restart it with other options; return the task that records the load.

        Clients of the model wait for the load, and need not wait for the record. See Supervisor.become.
        """
        await model.load(options, again=again, drain_s=drain_s)
        seconds = model.load_timer.take_seconds()
        model.load_s = seconds or model.load_s
        recording = asyncio.ensure_future(self._recorder.record_load(model.supervisor, seconds))
        self._hold_task(recording)
        return recording

    def change_keys(self, endpoint: Endpoint) -> None:
        """Use the API keys of `endpoint`, which has the same address, for requests to any model."""
        self.endpoint = endpoint
        for model in self._models:
            model.supervisor.change_keys(endpoint)

    def note_prompt(self, name: str | None, tokens: int) -> None:
        """Note that the engine of a model has read `tokens` of a prompt. See LoadRecorder."""
        if self._recorder.awaits_prompt:
            self._hold_task(asyncio.ensure_future(self._recorder.note_prompt(self.find_log(name), tokens)))

    async def stop(self, drain_s: float = 0.0) -> None:
        """Unload all models. See `close`; a start of the main model takes the place of its stop.

        If it is cancelled or superseded, the replies of the others end at once.
        """
        closing = asyncio.ensure_future(self.close(drain_s))
        try:
            await self.main.supervisor.become(None, drain_s=drain_s)
            await closing
        finally:
            closing.cancel()
            await asyncio.wait([closing])

    async def close(self, drain_s: float = 0.0) -> None:
        """Unload all models but the main one, and load none again. Running requests get `drain_s` seconds to end."""
        if self._closing is None:
            self.main.state = PoolState.LOADED  # the server ends with it
            self._closing = asyncio.ensure_future(self._end_models(drain_s))
        try:
            await asyncio.wait([self._closing])
        except asyncio.CancelledError:
            self._hold_task(asyncio.ensure_future(self._end_replies()))
            raise

    async def _reopen(self) -> None:
        """Load models again, because a start takes the place of a stop. What the stop waits for ends at once."""
        if self._closing is None:
            return
        await self._end_replies()
        await asyncio.wait([self._closing])
        for model in self._models[1:]:
            await model.gate.close()
        del self._models[1:]
        self._closing = None

    async def _end_models(self, drain_s: float) -> None:
        tasks = [*self._tasks, *([self._idle_task] if self._idle_task else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        ending = (each.supervisor.become(None, drain_s=drain_s) for each in self._models[1:])
        await asyncio.gather(*ending, return_exceptions=True)
        for model in self._models:
            model.mark_ended()
        for model in self._models[1:]:
            model.supervisor.log.close()
        self._note_change()

    async def _end_replies(self) -> None:
        """Stop all models but the main one without waiting for their replies."""
        ending = (each.supervisor.become(None) for each in self._models[1:])
        await asyncio.gather(*ending, return_exceptions=True)

    # Finding the model of a request. The gateway calls these.

    @property
    def gates(self) -> Collection[Gate]:
        """See ModelRouter."""
        return [each.gate for each in self._models]

    async def is_healthy(self) -> bool:
        """See ModelRouter."""
        return not self.main.is_loaded or await self.main.gate.is_healthy()

    def find_loaded_gate(self, name: str, /) -> Gate | None:
        """See ModelRouter."""
        model = next((each for each in self._models if each.is_loaded and each.has_name(name)), None)
        return model.gate if model else None

    async def find_route(self, name: str | None, body: Body | None, /) -> Route:
        """See ModelRouter. A model that is not loaded is loaded."""
        from launcher.gateway.model_router import Route

        alias = read_model_names(self._names_path).find_alias(name) if name else None
        wanted = alias.model if alias else name
        model = await self._find_model(wanted) if wanted else self._find_running()
        if model is None:
            model = await self._find_stand_in(str(wanted))
        ready = self._prepare(model, alias, body)
        return Route(model.gate, model.name, ready, alias.system if alias else "")

    def _find_running(self) -> PooledModel:
        """Return the model for requests that name none: the main one, or the one that was used last."""
        loaded = [each for each in self._models if each.is_loaded]
        if self.main in loaded or not loaded:
            return self.main
        return max(loaded, key=lambda each: each.used_s)

    async def _find_model(self, name: str) -> PooledModel | None:
        """Return the model of this name, a new one if it is on this machine but was not used yet; else None."""
        known = next((each for each in self._models if each.has_name(name)), None)
        if known is not None or self._is_unknown(name):
            return known
        local = await self._find_local(name)
        return None if local is None else self._add_local(local)

    def _add_local(self, local: ServableModel) -> PooledModel:
        """Return the model of a file, which may be known already by another name."""
        known = self._find_path(local.path)
        if known is not None:
            return known

        def plan_start(asked: Settings, ending: Collection[int]) -> Awaitable[ResolvedStart]:
            options = self.main.supervisor.options  # the start uses the engine of the main model
            engine, rpc = (options.engine, options.rpc) if options else (None, ())
            from launcher.app.planning.start_settings import resolve_start

            make_options = partial(ServeOptions, engine=engine, alias=local.name, rpc=rpc)
            return resolve_start(local.argument, asked, make_options, ending=ending)

        model = self._open_model(local.name, local.path)
        model.plan_start = plan_start
        return model

    def _find_path(self, path: Path) -> PooledModel | None:
        return next((each for each in self._models if _is_same_file(each.model_path, path)), None)

    async def _find_local(self, name: str) -> ServableModel | None:
        found = next((each for each in self._listed if each.has_name(name)), None)
        if found is None and (self._listed_s is None or self._clock() - self._listed_s >= _LIST_S):
            await self._list_local()
            found = next((each for each in self._listed if each.has_name(name)), None)
        return found

    def _is_unknown(self, name: str) -> bool:
        return name in self._unknown and self._clock() - self._unknown[name] < _UNKNOWN_S

    async def _list_local(self) -> tuple[ServableModel, ...]:
        from launcher.app.serving.servable_models import list_servable_models

        async with self._listing:
            try:
                self._listed = await asyncio.to_thread(list_servable_models)
            except (LauncherError, OSError) as error:
                _log.warning("The models on this machine cannot be listed: %s", error)
            self._listed_s = self._clock()
        return self._listed

    async def _find_stand_in(self, name: str) -> PooledModel:
        """Return the running model for an unknown name, if it is the only one that a person started. Raises Refusal."""
        from launcher.app.serving.servable_models import find_absent_model
        from launcher.gateway.access import Refusal

        absent = None
        if not self._is_unknown(name):
            absent = await asyncio.to_thread(find_absent_model, name)
        if absent is None:
            self._unknown = {name: self._clock()}
        started = [each for each in self._models if each.owners]
        if absent is None and len(started) == 1 and not self._read_rules().refuses_unknown:
            return self._find_running()
        names = await self._list_names()
        shown = name[:_SHOWN_CHARACTERS]
        more = "" if len(names) <= _SHOWN_NAMES else f", and {len(names) - _SHOWN_NAMES} more (GET /v1/models)"
        remedy = f" (download it: mtp-launcher pull {absent})" if absent else ""
        raise Refusal(
            404,
            f"There is no model {shown!r} here{remedy}. Models: {', '.join(names[:_SHOWN_NAMES])}{more}",
        )

    async def _list_names(self) -> list[str]:
        names = [each.name for each in self._models] + [each.name for each in await self._list_local()]
        return list(dict.fromkeys([*names, *(each.name for each in read_model_names().aliases)]))

    async def list_models(self) -> Sequence[Body] | None:
        """See ModelRouter."""
        local = {each.path: each for each in await self._list_local()}
        listed: dict[str, dict[str, Any]] = {}
        for model in self._models:
            own = local.pop(model.model_path, None) if model.model_path else None
            listed[model.name] = _add_found(_describe_model(model, own), await model.gate.read_model())
        for each in local.values():
            listed.setdefault(each.name, _describe_absent(each))
        for alias in read_model_names().aliases:
            meant = next((each for each in listed.values() if alias.model in (each["id"], *each["aliases"])), None)
            if meant is not None:
                listed[alias.name] = {**meant, "id": alias.name, "aliases": [], "root": meant["id"]}
        return list(listed.values())

    # Loading and unloading.

    def _open_model(self, name: str | None, path: Path | None) -> PooledModel:
        """Return a new model; the main one has no name of its own. The gateway is open, except for the first one."""
        suffix = f"-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:12]}" if name else ""
        log = LogBook(logs_dir() / f"engine-{self.endpoint.port}{suffix}.log")
        model: PooledModel

        def listen(event: ServerEvent) -> None:
            self._handle_event(model, event)

        side = self.address.open_side(lambda: self._note_use(model), suffix) if self.address is not None else None
        supervisor = Supervisor(self.endpoint, log, listen, client_side=side)
        model = PooledModel(supervisor, side, name, path.absolute() if path is not None else None)
        model.used_s = self._clock()
        self._models.append(model)
        return model

    def _prepare(
        self, model: PooledModel, alias: ModelAlias | None, body: Body | None, *, keeps_others: bool = False
    ) -> asyncio.Future[None] | None:
        """Return the task that a request for a model has to wait for: its load, or a change of its settings. Raises
        Refusal."""
        from launcher.gateway.access import Refusal

        asked = _read_settings(alias)
        if model.task is not None:
            return model.task
        if self._closing is not None:
            raise Refusal(503, "The server is being stopped")
        if not model.is_loaded or model.claimed_by is not None:
            if model.failure is not None and self._clock() - model.failure[0] < _FAILURE_S:
                raise _refuse(model.failure[1])
            return self._begin_task(model, self._load(model, asked, keeps_others=keeps_others))
        if asked and self._pays_switch(model, asked, body):
            return self._begin_task(model, self._switch(model, asked))
        return None

    def _begin_task(self, model: PooledModel, work: Awaitable[None]) -> asyncio.Future[None]:
        async def run() -> None:
            from launcher.gateway.access import Refusal

            try:
                await work
            except LauncherError as error:
                raise _refuse(error) from error
            except asyncio.CancelledError:
                raise Refusal(503, f"{model.name} was unloaded") from None
            finally:
                model.task = None
                self._note_change()

        model.task = task = asyncio.ensure_future(run())
        self._hold_task(task)
        return task

    def _hold_task(self, task: asyncio.Future[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)

    def _forget_task(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, because otherwise asyncio logs that it never was

    async def _load(self, model: PooledModel, asked: Settings, *, keeps_others: bool) -> None:
        """Load a model, by its plan, once there is room for it. Raises Refusal or LauncherError."""
        self._waiting.append(model)
        try:
            while model.claimed_by is not None and model.is_loaded:
                await self._wait_for_change(self._changed)
            if not model.is_loaded:
                model.state = PoolState.WAITING
                await self._load_in_turn(model, asked, keeps_others=keeps_others)
        except BaseException as error:
            model.fail(error if isinstance(error, LauncherError) else None, self._clock())
            raise
        finally:
            self._waiting.remove(model)
            for each in self._models:
                if each.claimed_by is model:
                    each.claimed_by = None
            self._note_change()

    async def _load_in_turn(self, model: PooledModel, asked: Settings, *, keeps_others: bool) -> None:
        """Wait for room and load a model. A model that fits beside the others is loaded at once. Raises Refusal or
        LauncherError."""
        asked_s = self._clock()
        while True:
            changed = self._changed
            async with self._room:
                if model.unloading is not None:
                    await asyncio.wait([model.unloading])
                start = await self._make_room(model, asked, asked_s, keeps_others=keeps_others)
                if start is not None:
                    await self.start_model(model, start.options)
                    break
            await self._wait_for_change(changed)
        model.failure = None
        self._on_notice(Notice("model_loaded", message("{model} was loaded.", model=model.name)))
        self._watch_idle()

    async def _wait_for_change(self, changed: asyncio.Event) -> None:
        """Wait until a model has been loaded or unloaded, or is no longer used; for a few seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_LONGEST_CHECK_S, _FAIR_WAIT_S)):
                await changed.wait()

    async def _make_room(
        self, model: PooledModel, asked: Settings, asked_s: float, *, keeps_others: bool
    ) -> ResolvedStart | None:
        """Unload other models, least recently used first, so that a model has room, and return its start; None if it
        has to wait. Raises Refusal if waiting does not help.

        Only the model that has waited longest, since `asked_s`, takes the room of others, after `_FAIR_WAIT_S` also
        that of models in use. With `keeps_others` no model is unloaded.
        """
        from launcher.gateway.access import Refusal

        others = [each for each in self._models if each is not model and each.is_loaded]
        may_go = [] if keeps_others else filter(self._may_unload, others)
        movable = sorted(may_go, key=lambda each: each.used_s)
        idle = [each for each in movable if each.is_idle]
        is_next = self._waiting[0] is model
        try:
            try:
                start, leaving = await self._plan_beside(model, asked, others, idle)
            except NothingFits:
                waited_s = self._clock() - asked_s
                if len(idle) == len(movable) or waited_s > _LONGEST_WAIT_S:
                    raise
                _, leaving = await self._plan_beside(model, asked, others, movable)
                if is_next and waited_s >= _FAIR_WAIT_S:
                    self._claim_room(model, leaving)
                return None
        except NothingFits as lack:
            beside = f" beside {', '.join(each.name for each in others)}" if others else ""
            reason = f"There is not enough memory for {model.name}{beside}"
            raise Refusal(503, reason) from lack
        # A request may have come for an idle model meanwhile.
        if leaving and not (is_next and all(each.is_idle for each in leaving)):
            return None
        for each in leaving:
            each.state = PoolState.UNLOADING
        await asyncio.gather(*(self._unload(each) for each in leaving))
        for each in leaving:
            text = message("{model} was unloaded to make room for {other}.", model=each.name, other=model.name)
            if each is self.main:
                text = message(
                    "{model} was unloaded to make room for {other}. The next request for it loads it again.",
                    model=each.name,
                    other=model.name,
                )
            self._on_notice(Notice(MAIN_UNLOADED if each is self.main else "model_unloaded", text))
        return start

    def _claim_room(self, model: PooledModel, leaving: Sequence[PooledModel]) -> None:
        """Have `leaving` end for another model: their running replies end, further requests wait for their next
        load."""
        for each in leaving:
            each.claimed_by = model
            if each.task is None and each.gate.waiting_requests:
                each.gate.recall_waiting(self._begin_task(each, self._load(each, {}, keeps_others=False)))

    def _may_unload(self, model: PooledModel) -> bool:
        """Return whether a model may be unloaded for another one."""
        kept = read_model_names().kept
        local = next((each for each in self._listed if each.path == model.model_path), None)
        return not any(name == model.name or (local is not None and local.has_name(name)) for name in kept)

    async def _plan_beside(
        self, model: PooledModel, asked: Settings, others: Sequence[PooledModel], idle: Sequence[PooledModel]
    ) -> tuple[ResolvedStart, Sequence[PooledModel]]:
        """Return the start of a model, and the first of `idle` that have to go for it.

        The model gets the settings that it would have if all of them went, and as few as possible go for that. Raises
        NothingFits if it does not fit even without them.
        """
        limit_mib = self._read_rules().memory_limit_mib
        needs = {each: await asyncio.to_thread(_estimate_mib, each.resolved_options) for each in others}
        best = await self._plan(model, asked, idle)
        # A person may try a start that seems too big.
        if not _fits(best) and not (model.owners and len(idle) == len(others)):
            raise _describe_lack(model, others, best, None)
        need = await asyncio.to_thread(_estimate_mib, best.options) if limit_mib is not None else 0
        for count in range(len(idle) + 1):
            leaving = idle[:count]
            staying = sum(needs[each] for each in others if each not in leaving)
            if limit_mib is not None and staying and need + staying > limit_mib:
                continue
            start = best if count == len(idle) else await self._plan(model, asked, leaving)
            if start is best or (_fits(start) and start.options == best.options):
                return start, leaving
        raise _describe_lack(model, others, best, limit_mib)

    async def _plan(self, model: PooledModel, asked: Settings, leaving: Sequence[PooledModel]) -> ResolvedStart:
        ending = [pid for each in leaving if (pid := each.supervisor.engine_pid) is not None]
        return await model.plan_start(asked, ending)

    async def _unload(self, model: PooledModel, drain_s: float = 0.0) -> None:
        """Unload a model. Requests that come meanwhile wait until it is loaded again."""
        unloading = model.unload(drain_s)
        self._hold_task(unloading)
        unloading.add_done_callback(lambda _: self._note_change())
        await asyncio.wait([unloading])

    async def find_loaded(self, name: str) -> PooledModel | None:
        """Return the model that a user names, perhaps by a path, if it is loaded or being loaded."""
        alias = read_model_names().find_alias(name)
        wanted = alias.model if alias else name
        model = next((each for each in self._models if each.has_name(wanted)), None)
        if model is None:
            local = await self._find_local(wanted)
            model = self._find_path(local.path if local else Path(wanted))
        return model if model is not None and (model.is_loaded or model.task is not None) else None

    async def end_model(self, model: PooledModel, drain_s: float = 0.0) -> None:
        """Unload a model because a person wants that. Running requests get up to `drain_s` seconds to end."""
        if model is not self.main:
            model.owners = 0
        if model.task is not None:
            model.task.cancel()
            await asyncio.wait([model.task])
        await self._unload(model, drain_s)
        model.mark_ended()

    # Models that other starts by a person bring.

    async def join_model(self, request: Join) -> tuple[PooledModel, ResolvedStart]:
        """Take the model of another start, to be loaded by `load_model` and given back by `leave_model`.

        Raises LauncherError.
        """
        if self.address is None or not self.takes_models or self._closing is not None:
            raise ServerNotFound(message("The server is being stopped."), message("Start it again."))
        await self.address.open()
        start = await _resolve_join(request, {}, ())
        model = self._find_path(start.options.model)
        if model is None:
            name = api_model_name(start.options)
            if any(each.name == name for each in self._models):
                name = f"{start.options.model.parent.name}/{name}"
            model = self._open_model(name, start.options.model)
        if model is not self.main and not model.is_loaded:
            named = replace(request, base=replace(request.base, alias=model.name))
            model.plan_start = partial(_resolve_join, named)
        model.owners += 1
        return model, start

    async def load_model(self, model: PooledModel, *, keeps_others: bool = False) -> None:
        """Load a model of another start, unless it is loaded. Raises LauncherError."""
        from launcher.gateway.access import Refusal

        model.failure = None
        try:
            ready = self._prepare(model, None, None, keeps_others=keeps_others)
            if ready is not None:
                await asyncio.shield(ready)
        except Refusal as refusal:
            if isinstance(refusal.__cause__, LauncherError):
                raise refusal.__cause__ from None
            raise Superseded(refusal.reason, "") from None  # it was unloaded, or the server is being stopped

    def leave_model(self, model: PooledModel) -> None:
        """Unload a model when the last start that brought it has ended."""
        model.owners = max(0, model.owners - 1)
        if not model.owners and self._closing is None and (model.is_loaded or model.task is not None):
            self._hold_task(asyncio.ensure_future(self.end_model(model)))

    @property
    def loaded_names(self) -> list[str]:
        """The names of the models that are loaded or being loaded."""
        return [each.name for each in self._models if each.is_loaded or each.task is not None]

    def unload_idle(self) -> None:
        """Unload the models that requests loaded and that none has used for the time that the user set."""
        idle_s = self._read_rules().idle_s
        if idle_s is None:
            return
        for model in self._models:
            since_s = self._clock() - model.used_s
            if not model.owners and model.is_loaded and model.is_idle and since_s >= idle_s and self._may_unload(model):
                self._hold_task(asyncio.ensure_future(self._unload(model)))
                text = message(
                    "{model} was unloaded: no request for {minutes:g} min.",
                    model=model.name,
                    minutes=round(since_s / 60, 1),
                )
                self._on_notice(Notice("model_unloaded", text))

    def _watch_idle(self) -> None:
        if self._idle_task is None or self._idle_task.done():
            self._idle_task = asyncio.create_task(self._unload_while_idle())

    async def _unload_while_idle(self) -> None:
        while any(each.is_loaded and not each.owners for each in self._models):
            idle_s = await asyncio.to_thread(lambda: self._read_rules().idle_s)
            await asyncio.sleep(_LONGEST_CHECK_S if idle_s is None else min(_LONGEST_CHECK_S, idle_s / _IDLE_CHECKS))
            self.unload_idle()

    def _note_use(self, model: PooledModel) -> None:
        model.used_s = self._clock()
        if not model.gate.is_in_use:
            self._wake_waiters()

    # Settings of aliases.

    def _pays_switch(self, model: PooledModel, asked: Settings, body: Body | None) -> bool:
        """Return whether to restart a model with the settings of an alias before a request.

        That pays if no other request uses it, and the restart takes little time compared with the expected reply.
        """
        options = model.supervisor.options
        if options is None or not model.is_idle:
            return False
        if all(ROWS[name].value_in(options) == value for name, value in asked.items() if name in ROWS):
            return False
        load_s, launch = model.load_s, model.supervisor.launch
        if load_s is None and launch is not None and (expected := expected_load_time(launch)) is not None:
            load_s = expected.seconds
        return load_s is not None and load_s <= _MOST_LOAD_SHARE * self._expect_reply_s(model, body)

    def _expect_reply_s(self, model: PooledModel, body: Body | None) -> float:
        """Return how long a reply will take: as many tokens as are asked for, or as the last replies had."""
        ended = [each for each in self._request_log.records if each.model == model.name and each.reply_tokens]
        speeds = [each.tokens_per_second for each in ended if each.tokens_per_second]
        tokens = mean(each.reply_tokens or 0 for each in ended) if ended else _USUAL_REPLY_TOKENS
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"):
            most = (body or {}).get(name)
            if isinstance(most, int) and most > 0:
                tokens = min(tokens, most) if ended else most
        return tokens / (median(speeds) if speeds else _USUAL_TOKENS_PER_S)

    async def _switch(self, model: PooledModel, asked: Settings) -> None:
        """Restart a model with other settings; if that fails, the old ones go on."""
        options = model.supervisor.options
        if options is None:
            return
        try:
            await self.start_model(model, change_settings(options, asked))
        except LauncherError as error:
            if model.supervisor.status.state not in SERVING:
                raise
            self._on_notice(
                Notice(
                    "alias_settings_failed",
                    message("{model} goes on with its settings: {why}", model=model.name, why=error.title),
                )
            )

    # What others see of the models.

    def _handle_event(self, model: PooledModel, event: ServerEvent) -> None:
        model.load_timer.handle_event(event)
        if isinstance(event, ServerStatus | EngineStarted):
            is_failed = isinstance(event, ServerStatus) and event.state is ServerState.FAILED
            # A crash, because nobody has unloaded it. If it is the main model, the server ends with it.
            if is_failed and model.is_loaded and model.task is None and model is not self.main:
                model.fail(model.supervisor.status.error, self._clock())
                if model.side is not None:
                    self._hold_task(asyncio.ensure_future(model.side.end_requests(0.0)))
                model.mark_ended()
            self._note_change()
        self._on_event(model, event)

    def _wake_waiters(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _note_change(self) -> None:
        self._wake_waiters()
        self._on_change()


async def _plan_as_chosen(supervisor: Supervisor, asked: Settings, ending: Collection[int]) -> ResolvedStart:
    """Return the start of the main model: with the settings that a person chose, but for those in `asked`."""
    from launcher.app.planning.start_settings import resolve_start

    options = supervisor.options
    if options is None:
        raise ModelMissing(message("{model} was never loaded.", model="model"), "")
    options = change_settings(options, asked)
    await asyncio.to_thread(check_model, options)
    every = {name: row.value_in(options) for name, row in ROWS.items()}
    named = DEMO if options.alias == DEMO else str(options.model)
    make_options = partial(_replace_path, options)
    start = await resolve_start(named, every, make_options, use_kept=False, use_tuned=False, ending=ending)
    return replace(start, options=options)


async def _resolve_join(request: Join, asked: Settings, ending: Collection[int]) -> ResolvedStart:
    """Return the start of a model that another program brings. Settings in `asked` take precedence over its own."""
    from launcher.app.planning.start_settings import resolve_start

    return await resolve_start(
        request.model,
        {**request.settings, **asked},
        partial(_replace_path, request.base),
        use_kept=request.use_kept,
        use_tuned=request.use_tuned,
        vision=request.vision,
        ending=ending,
    )


def _replace_path(options: ServeOptions, path: Path) -> ServeOptions:
    return replace(options, model=path)


def _is_same_file(one: Path | None, other: Path) -> bool:
    if one is None or one == other.absolute():
        return one is not None
    with suppress(OSError):
        return one.samefile(other)
    return False


def _has_engine(model: PooledModel) -> bool:
    return model.supervisor.status.state not in (ServerState.STOPPED, ServerState.FAILED)


def _describe_served(model: PooledModel) -> ServedModel:
    """Return a model as the registry lists it."""
    supervisor = model.supervisor
    launch, process, state = supervisor.launch, supervisor.process, supervisor.status.state
    options = launch.options if launch else model.asked
    pid = process.identity.pid if process else None
    return ServedModel(
        model=model.own_name or (api_model_name(options) if options else ""),
        # Requests alone do not change the entry: it says READY also while the server is BUSY.
        state=(ServerState.READY if state is ServerState.BUSY else state).value,
        by_request=not model.owners,
        engine=launch.build.name if launch else engine_name(options) if options else "",
        draft=options.draft if options else 0,
        embeddings=bool(options and options.embeddings),
        reranking=bool(options and options.reranking),
        engine_pid=pid,
        engine_created_s=process.identity.created_s if process else None,
        engine_port=supervisor.engine_endpoint.port,
        # A process that was just started may still have the command line of the one that started it.
        command_hash=hash_command(pid) if pid and state is not ServerState.LOADING else None,
        settings=launched_settings(launch) if launch else {},
        formula_inputs=make_formula_inputs(launch) if launch else {},
    )


def _describe_model(model: PooledModel, local: ServableModel | None) -> dict[str, Any]:
    """Return a model that was loaded as an entry of /v1/models."""
    launch = model.supervisor.launch
    state = "loading" if model.task is not None else "loaded" if model.is_loaded else "unloaded"
    context = capabilities = trained = None
    if launch is not None:
        context = launch.plan_settings("cpu").slot_context
        trained = launch.header.trained_context
        capabilities = ["embedding"] if launch.options.embeddings else ["completion"]
        capabilities += ["multimodal"] if launch.options.mmproj else []
    path = model.model_path
    entry = _make_entry(model.name, path, local, state, context=context, trained=trained, capabilities=capabilities)
    return {**entry, "aliases": sorted({*entry["aliases"], *model.given_names} - {model.name})}


def _add_found(entry: dict[str, Any], found: Body) -> dict[str, Any]:
    """Return an entry of /v1/models with what only the engine knows."""
    more = {name: found[name] for name in _ENGINE_KEYS if name in found}
    return {**entry, **more, "meta": {**entry["meta"], **(found.get("meta") or {})}}


def _describe_absent(local: ServableModel) -> dict[str, Any]:
    capabilities = None if local.embeds is None else ["embedding" if local.embeds else "completion"]
    return _make_entry(local.name, local.path, local, "unloaded", capabilities=capabilities)


def _make_entry(
    name: str,
    path: Path | None,
    local: ServableModel | None,
    state: str,
    *,
    context: int | None = None,
    trained: int | None = None,
    capabilities: list[str] | None = None,
) -> dict[str, Any]:
    created = 0
    if path is not None:
        with suppress(OSError):
            created = int(path.stat().st_mtime)
    others = {local.name, *local.other_names} - {name} if local else set()
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "mtp-launcher",
        "aliases": sorted(others),
        "status": {"value": state},
        "context_length": context,
        "capabilities": capabilities,
        "meta": {"n_ctx": context, "n_ctx_train": trained, "size": local.bytes if local else None},
    }


def _read_settings(alias: ModelAlias | None) -> Settings:
    if alias is None or not alias.settings:
        return {}
    try:
        return alias.values
    except LauncherError as error:
        _log.warning("The settings of the alias %s are not used: %s", alias.name, error)
        return {}


def _fits(start: ResolvedStart) -> bool:
    from launcher.models.plan import Status

    return start.plan is None or start.plan.status is not Status.TOO_BIG


def _describe_lack(
    model: PooledModel, others: Sequence[PooledModel], start: ResolvedStart, limit_mib: int | None
) -> NothingFits:
    """Return the error for a model that has no room beside `others`: by its plan, or by the user's limit."""
    name, names = model.name, ", ".join(each.name for each in others)
    if limit_mib is not None:
        title = message(
            "{model} does not fit beside {others}: all models together may take {limit:,} MiB.",
            model=name,
            others=names,
            limit=limit_mib,
        )
    elif start.plan is not None and others and start.plan.needed_mib > start.plan.free_mib:
        title = message(
            "{model} does not fit beside {others}: it needs {need:,} MiB, and {free:,} MiB are free.",
            model=name,
            others=names,
            need=start.plan.needed_mib,
            free=start.plan.free_mib,
        )
    else:
        title = message("There is not enough memory for {model}.", model=name)
    hint = message(
        "[{command} unloads one.][{instead}]",
        command=command_name("stop MODEL"),
        instead=FaceName(None, mark("Unload one first, or start this one in its place.")),
    )
    return NothingFits(title, hint)


def _estimate_mib(options: ServeOptions | None) -> int:
    """Return the MiB that a model takes by its memory estimate: weights, KV cache and buffers; 0 if unknown."""
    if options is None:
        return 0
    try:
        header = check_model(replace(options, draft=0))
        options = replace(options, context=options.context or header.trained_context)
        if options.context is None:
            return 0
        geometry = read_geometry(header)
        draft_model = read_draft_file(options.used_draft_file)
        plan_settings = plan_settings_of(options, "cpu")
        estimate = estimate_memory(geometry, read_weights(header, geometry), plan_settings, draft_model)
    except (LauncherError, OSError):
        return 0
    return -(-estimate.parts.total // _MIB)


def _refuse(error: LauncherError) -> Exception:
    """Return the refusal of a request for a model that cannot be loaded."""
    from launcher.gateway.access import Refusal

    reason = " ".join(filter(None, (error.title, error.hint)))
    if isinstance(error, ModelMissing | ModelUnknown):
        return Refusal(404, reason)
    return Refusal(500, reason)
