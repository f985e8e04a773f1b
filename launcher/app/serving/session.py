"""A session: one server that the window or the command line starts, uses and stops, possibly several times."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from launcher.app import settings
from launcher.app.serving.memory_guard import MemoryGuard
from launcher.app.serving.model_pool import ModelPool, PooledModel, read_pool_rules
from launcher.app.serving.published_server import PublishedServer
from launcher.app.serving.request_keeping import RequestKeeping
from launcher.app.serving.serving_session import OnHealth, OnSnapshot, ServingSession
from launcher.app.serving.session_control import SessionControl
from launcher.app.settings_file import settings_path
from launcher.base.action import Action, ActionKind
from launcher.base.errors import (
    ActionImpossible,
    BadOption,
    LauncherError,
    ModelMissing,
    PortBusy,
    ServerNotFound,
    Superseded,
)
from launcher.base.messages import message
from launcher.engine.diagnosis.actions import apply_action, restarts_server
from launcher.engine.diagnosis.fix_command import FixCommand, command_for
from launcher.engine.diagnosis.fixes import attach_fixes
from launcher.engine.serve_options import ServeOptions, check_options
from launcher.engine.server.endpoint import saved_endpoints
from launcher.engine.server.last_start import RepeatableStart, save_last_start
from launcher.engine.server.launch import api_model_name, check_model
from launcher.engine.server.reread import DroppedPrompts
from launcher.engine.server.start_request import StartRequest
from launcher.engine.server.state import (
    ADDRESS_CHANGED,
    SERVING,
    EngineStarted,
    Listener,
    ModelsChanged,
    ModelStatus,
    Notice,
    PromptRead,
    ServerEvent,
    ServerState,
    ServerStatus,
    StreamsContinued,
)
from launcher.engine.server.supervisor import Supervisor
from launcher.engine.settings import keep_choices, load_model_settings
from launcher.gateway.client_side import GatewayAddress
from launcher.gateway.exchange import HandoverOutlook
from launcher.gateway.request_log import RequestLog, RequestRecord
from launcher.models.server_settings import Value

if TYPE_CHECKING:
    from launcher.gateway.gate import HandoverReport

_MAX_PORTS = 4
"""Number of ports that one start tries, if the user did not choose one."""
_POLL_S = 0.05
_SETTLE_S = 0.5
"""Seconds in which further changes of a running server are combined with the first, for one restart."""
_PUBLISH_TIMEOUT_S = 2.0
"""Seconds to wait until the registry entry of a ready server is written."""


class _ServedStart(NamedTuple):
    """The last start that succeeded, with the user's choices: see StartRequest."""

    start: RepeatableStart
    chosen: dict[str, Value]
    set_aside: dict[str, Value] | None


class ServerSession(ServingSession):
    """One server, which may be started, restarted, used and stopped repeatedly. Its pool has the models.

    Its address stays the same, unless no `port` was given and another program takes it. A `shared` server listens on
    every address of this computer, until `set_shared` changes that; if it is `encrypted`, other computers must use TLS.
    Clients talk to the gateway, so that their streams go on while the engine is restarted, or with `direct` to the
    engine itself. If it `takes_models`, requests can name other models, which are loaded beside the first one,
    `memory_limit_mib` in all: see ModelPool. With `memory_guard` the engine is restarted before host memory is
    used up (None: by the app setting). A session belongs to one asyncio loop, on which listeners are called.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        shared: bool = False,
        direct: bool = False,
        encrypted: bool = False,
        takes_models: bool = False,
        memory_limit_mib: int | None = None,
        memory_guard: bool | None = None,
        on_event: Listener | None = None,
        on_snapshot: OnSnapshot | None = None,
        on_health: OnHealth | None = None,
    ) -> None:
        super().__init__(on_event, on_snapshot, on_health)
        self._port, self._may_change_port = port, port is None
        self.shared = shared
        self._dropped_prompts = DroppedPrompts()
        self.control = SessionControl(self)
        self.request_log = RequestLog(self._served_model, self._count_dropped_prompts)
        self.request_log.add_listener(self._note_request)
        self._request_keeping = RequestKeeping(self.request_log)
        self._direct = direct
        self.encrypted = encrypted
        self._takes_models = takes_models and not direct
        self._memory_limit_mib = memory_limit_mib
        self._memory_guard = MemoryGuard(self._restart_engine, self._notify_listeners, agreed=memory_guard)
        self._pool_watch: asyncio.Task[None] | None = None
        self.pool: ModelPool | None = None
        """None while nothing is served or starting."""
        self._lost_port: int | None = None
        """The port that another program took; None once the user was told."""
        self._hides_lost_port = False
        """Whether to keep the error of a taken port from the listeners, because another port will be tried."""
        self._change_count = 0
        self._published: PublishedServer | None = None
        # The newest start, whether it succeeds or not. For `chosen` and `set_aside` see StartRequest.
        self._newest_start: RepeatableStart | None = None
        self._chosen: dict[str, Value] = {}
        self._set_aside: dict[str, Value] | None = None
        self._served_start: _ServedStart | None = None
        # The last start that failed, and the fixes that its error proposed.
        self._failed_start: RepeatableStart | None = None
        self._proposed_fixes: tuple[Action, ...] = ()
        self._handover: HandoverReport | None = None
        """The newest handover whose streams were waited for."""
        self._waits: set[asyncio.Task[None]] = set()
        self._is_watched = True
        self._lifecycle_lock = asyncio.Lock()

    @property
    def supervisor(self) -> Supervisor:
        """The server's supervisor. Raises ServerNotFound before the first start and after the last stop."""
        if self._supervisor is None:
            raise ServerNotFound(message("The server is not running."), message("Start it first."))
        return self._supervisor

    @property
    def _supervisor(self) -> Supervisor | None:
        return self.pool.main.supervisor if self.pool is not None else None

    @property
    def _gateway(self) -> GatewayAddress | None:
        return self.pool.address if self.pool is not None else None

    @property
    def last_handover(self) -> "HandoverReport | None":
        """Report of the engine's last restart for the clients; None before the first one and without the gateway."""
        side = self.pool.main.side if self.pool is not None else None
        return side.last_handover if side is not None else None

    def prepare_for(self, client: str) -> None:
        """Begin to restore what a client's next session, such as a coding agent's, probably begins with."""
        if self._gateway is not None and self.pool is not None and self.pool.main.is_loaded:
            self.pool.main.gate.prepare_for(client)

    async def foresee_handover(self) -> HandoverOutlook | None:
        """Return what a restart of the engine would mean for clients now; None (unknown) without the gateway."""
        side = self.pool.main.side if self.pool is not None else None
        return await side.foresee_handover() if side is not None else None

    @property
    def model_statuses(self) -> tuple[ModelStatus, ...]:
        """The models at its address, the main one first."""
        return self.pool.model_statuses if self.pool is not None else ()

    async def start(self, request: StartRequest) -> None:
        """Serve other options instead of what is served now. See Supervisor.become.

        A port that the user did not choose is changed if another program takes it before the engine does. The error of
        a failed start has its possible fixes as `actions`, for `apply_fix` or `command_for_action`.
        """
        if request.yields and (self.is_lent or self.request_log.count_states().total()):
            raise Superseded(message("A client uses the server."))
        if request.yields and not self._is_settled:
            raise Superseded(message("The server is being changed."))
        self._proposed_fixes = ()
        if not request.yields:
            self._tell_notices(request)
        options, chosen, model_name = request.options, request.chosen, request.model_name
        if chosen and "draft" in chosen and options.chosen_drafter:  # a length is that of the drafter in use
            chosen = {"drafter": options.chosen_drafter, **chosen}
        if self._newest_start is not None:
            if self._newest_start.options.model != options.model:
                self._chosen, self._set_aside = {}, None
            elif model_name is None:
                model_name = self._newest_start.model
        if chosen is not None and request.set_aside is not None:
            self._set_aside = dict(request.set_aside)
        self._newest_start = this_start = RepeatableStart.from_options(
            options,
            model_name=model_name,
            chosen={**self._chosen, **(chosen or {})} if request.yields or chosen is not None else None,
            port=None if self._may_change_port else self._port,
            shared=self.shared,
        )
        change_number = self._count_change()
        try:
            if request.settles and self._is_serving:
                await self._settle_change(change_number)
            await self._start_on_free_port(request, change_number)
        except LauncherError as error:
            attach_fixes(error, options)
            if self._newest_start is this_start:  # the start failed before it ran an engine
                self._failed_start, self._proposed_fixes = this_start, error.actions
                if not self._is_serving and not isinstance(error, Superseded):
                    await asyncio.to_thread(save_last_start, this_start, None, error)
            if change_number == self._change_count and self._is_serving and self._served_start is not None:
                self._newest_start, self._chosen, self._set_aside = self._served_start  # the previous server goes on
            raise
        if request.yields:
            self._tell_notices(request)
        set_aside, all_chosen = None, dict(chosen or {})
        if self._newest_start.options.model == options.model:  # unless a newer start of another model is in progress
            set_aside, all_chosen = self._set_aside, {**self._chosen, **all_chosen}
            self._chosen = all_chosen
            self._served_start = _ServedStart(self._newest_start, all_chosen, set_aside)
        if chosen is not None:
            await asyncio.to_thread(_remember_choices, options, set_aside, all_chosen)

    async def apply_fix(self, action: Action, *, drain_s: float = 0.0) -> None:
        """Apply a fix of an error or a finding, and start again: with other settings, on another port, or unchanged.

        A fix of the last error changes the start that failed, any other fix the running one. Changed settings count as
        chosen. Raises ActionImpossible for a fix that needs no start (see `command_for_action`) or changes nothing,
        ServerNotFound if nothing was started yet, and what `start` raises.
        """
        base = self._start_to_fix(action)
        if base is None:
            raise ServerNotFound(message("Nothing has been started yet."), message("Start a model first."))
        if not restarts_server(action):
            fix = command_for(action, base)
            hint = fix.link or message("Do this yourself.")
            if fix.command:
                hint = message("Run `{command}`.", command=fix.command)
            raise ActionImpossible(
                message("{label}: restarting does not do this.", label=action.label), hint, kind=action.kind.value
            )
        if action.kind is ActionKind.OTHER_PORT:
            await self.stop()  # a running server would hold the port
            self._port, self._may_change_port = None, True
        elif action.kind is not ActionKind.RESTART:
            options = base.options
            if action.kind is ActionKind.OTHER_DRAFTS:
                from launcher.app.planning.start_settings import with_drafts_here  # imported late, as in the control

                options = await asyncio.to_thread(with_drafts_here, options)
            base = base.with_options(apply_action(action, options, context=base.context))
        await self.start(StartRequest(base.options, True, drain_s=drain_s, chosen=base.settings, model_name=base.model))

    @property
    def requested_options(self) -> ServeOptions | None:
        """The options of the newest start, also before it has succeeded; None before the first one."""
        return self._newest_start.options if self._newest_start else None

    @property
    def served_options(self) -> ServeOptions | None:
        """The options of the last start that succeeded; None before the first one."""
        return self._served_start.start.options if self._served_start else None

    def count_restored(self) -> dict[str, float]:
        """See GatewayAddress.count_restored; nothing without the gateway."""
        return self._gateway.count_restored() if self._gateway is not None else {}

    def set_measurement_key(self, key: str | None) -> None:
        """Accept a measurement's requests with a key of their own. See Gateway.set_measurement_key.

        Raises BadOption if there is no gateway.
        """
        if self._direct:
            raise BadOption(
                message("A server without the gateway does not know when clients use it."),
                message("Start it without --direct."),
            )
        if self._gateway is not None:
            self._gateway.set_measurement_key(key)

    @property
    def is_lent(self) -> bool:
        """See ServingSession."""
        return self.control.is_lent

    @property
    def chosen(self) -> Mapping[str, Value]:
        """See ServingSession."""
        return self._chosen

    def _tell_notices(self, request: StartRequest) -> None:
        for notice in request.notices:
            self._notify_listeners(notice)

    @property
    def _is_settled(self) -> bool:
        """Whether it serves what was requested last, and no start or stop is in progress."""
        is_changing = self.pool is None or self.pool.main.supervisor.is_changing
        return not is_changing and self.requested_options == self.served_options

    def _count_change(self) -> int:
        """Count a start or stop, and return its number."""
        self._change_count += 1
        return self._change_count

    @property
    def change_count(self) -> int:
        """Number of starts and stops requested so far. A measurement compares it to detect those of others."""
        return self._change_count

    @property
    def model_name(self) -> str:
        """The model of the newest start as the user named it; empty before the first one."""
        return self._newest_start.model if self._newest_start else ""

    @property
    def is_idle(self) -> bool:
        """True if nothing is served or starting."""
        return self.pool is None

    async def reload_keys(self) -> bool:
        """Accept clients with the saved API keys of this port, and with no others.

        Replies to a key that was revoked end. Return False if the server cannot change its keys, because there is no
        gateway, or the port is not saved.
        """
        saved = await asyncio.to_thread(saved_endpoints)
        published, pool, gateway = self._published, self.pool, self._gateway
        if published is None or pool is None or gateway is None:
            return False
        kept = next((each for each in saved if each.port == pool.endpoint.port), None)
        if kept is None:
            return False
        endpoint = replace(pool.endpoint, api_key=kept.api_key, named_keys=kept.named_keys)
        gateway.change_keys(endpoint)
        pool.change_keys(endpoint)
        published.registration.update(api_key=endpoint.api_key)
        await asyncio.to_thread(published.registration.wait_written, _PUBLISH_TIMEOUT_S)
        return True

    async def set_shared(self, shared: bool, *, encrypted: bool = True, drain_s: float = 0.0) -> None:
        """Share the server with other computers of the network, or stop sharing it.

        If `encrypted`, other computers must use TLS. This computer's own requests go on; without the gateway, a running
        server is restarted. If it fails, the server goes on as before, and the error is raised: PortBusy, what
        explain_os_error returns if no certificate can be kept, or what `start` raises.
        """
        if shared == self.shared and (encrypted == self.encrypted or not shared):
            return
        before = self.shared, self.encrypted
        self.shared, self.encrypted = shared, encrypted if shared else self.encrypted
        if self._supervisor is None or self._supervisor.options is None:
            return
        try:
            if self._gateway is None:
                await self._restart_at_address(drain_s)
            else:
                await self._change_address(self._gateway)
        except LauncherError as error:
            if isinstance(error, Superseded):
                raise
            self.shared, self.encrypted = before
            if self._gateway is None and shared:
                await self._restart_at_address(0.0)
            raise

    async def _change_address(self, gateway: GatewayAddress) -> None:
        """Have the gateway listen as `shared` and `encrypted` require."""
        async with self._lifecycle_lock:
            published, pool = self._published, self.pool
            if published is None or pool is None or gateway is not self._gateway:
                return  # the server was stopped meanwhile
            endpoint = replace(pool.endpoint, shared=self.shared)
            encrypted = self.encrypted and self.shared
            await gateway.change_address(endpoint, encrypted=encrypted)
            pool.change_keys(endpoint)
            published.registration.update(shared=self.shared, encrypted=encrypted)
        if self._newest_start is not None:
            self._newest_start = replace(self._newest_start, shared=self.shared)
        if self._served_start is not None:
            self._served_start = self._served_start._replace(
                start=replace(self._served_start.start, shared=self.shared)
            )

    async def _restart_at_address(self, drain_s: float) -> None:
        """Restart a server without the gateway, because the address of an engine's process cannot change."""
        if self._newest_start is None:
            return
        options = self._supervisor.options if self._supervisor is not None else None
        base = self._newest_start.with_options(options) if options is not None else self._newest_start
        await self.stop(drain_s=drain_s)
        await self.start(StartRequest(base.options, chosen=base.settings, model_name=base.model))

    def command_for_action(self, action: Action) -> FixCommand:
        """Return the command that applies an action, or the link to open; neither when only the user can do it."""
        return command_for(action, self._start_to_fix(action))

    def _count_dropped_prompts(self, model: str | None) -> int:
        return self._dropped_prompts.count_until_now(self.pool.find_log(model)) if self.pool is not None else 0

    def _note_request(self, record: RequestRecord) -> None:
        if self._is_watched:
            self.monitor.note_requests()
        if self._is_watched and record.has_ended and record.reused_tokens is not None:
            self.monitor.health_watch.note_prompt(record.reread)
        if record.has_ended and record.prompt_tokens and record.reused_tokens is not None:
            if self.pool is not None:
                self.pool.note_prompt(record.model, record.prompt_tokens - record.reused_tokens)
            first_token = record.started_s + (record.first_token_s or 0.0)
            self._notify_listeners(
                PromptRead(
                    record.prompt_tokens - record.reused_tokens,
                    record.reused_tokens,
                    record.reread.tokens if record.reread else 0,
                    record.first_token_s,
                    0.0 if record.first_token_s is None else max(0.0, time.time() - first_token),
                )
            )

    def _served_model(self) -> str | None:
        options = self._supervisor.options if self._supervisor else None
        return api_model_name(options) if options else None

    @property
    def _is_serving(self) -> bool:
        return self._supervisor is not None and self._supervisor.status.state in SERVING

    def _start_to_fix(self, action: Action) -> RepeatableStart | None:
        """Return the start that an action applies to: the failed one if its error proposed it, else the running one."""
        if action in self._proposed_fixes:
            return self._failed_start
        newest_start, supervisor = self._newest_start, self._supervisor
        if newest_start is None or supervisor is None or supervisor.launch is None or supervisor.options is None:
            return newest_start
        if not self._is_serving:
            return newest_start
        return replace(newest_start.with_options(supervisor.options), context=supervisor.launch.context)

    async def _settle_change(self, change_number: int) -> None:
        """Wait until no other change has come for a while. Raises Superseded if one does."""
        try:
            await asyncio.sleep(_SETTLE_S)
        except asyncio.CancelledError:
            if change_number == self._change_count and self._served_start is not None:
                self._newest_start, self._chosen, self._set_aside = self._served_start
            raise
        self._check_not_superseded(change_number)

    async def _start_on_free_port(self, request: StartRequest, change_number: int) -> None:
        check_options(request.options)
        await asyncio.to_thread(check_model, request.options)  # fail before a port is claimed
        for moves_left in reversed(range(_MAX_PORTS if self._may_change_port else 1)):
            try:
                await self._start_supervisor(request, change_number, moves_left)
            except PortBusy:
                if not moves_left:
                    raise
                self._lost_port, self._port = self._port, None
            else:
                break

    async def _start_supervisor(self, request: StartRequest, change_number: int, moves_left: int) -> None:
        options = request.options
        try:
            async with self._lifecycle_lock:  # else a clean-up would end the new monitor and control socket, too
                self._check_not_superseded(change_number)
                self._hides_lost_port = moves_left > 0
                pool = self.pool or await self._open_pool(options)
                if self._is_watched:
                    self.monitor.watch_server(pool.main.supervisor)
                await pool.prepare_main(options.model)
            self._check_not_superseded(change_number)
            recording = await pool.start_model(pool.main, options, again=request.again, drain_s=request.drain_s)
        except BaseException:
            await self._clean_up_shielded()
            raise
        finally:
            if change_number == self._change_count:
                self._hides_lost_port = False  # the server keeps this port from now on
        if self._published is not None:  # other commands must find the server as soon as it is ready
            await asyncio.to_thread(self._published.registration.wait_written, _PUBLISH_TIMEOUT_S)
        await asyncio.wait([recording])

    def _check_not_superseded(self, change_number: int) -> None:
        """Raise Superseded if a start or stop was requested after the one with this number."""
        if change_number != self._change_count:
            raise Superseded(message("A newer request replaced this one."))

    def publish_findings(self, findings: Sequence[Mapping[str, object]]) -> None:
        """Publish health findings, as JSON, to this user's other programs."""
        if self._published is not None:
            self._published.registration.update(health=tuple(findings))
        if not self._direct and self._supervisor is not None:  # without the gateway a restart would end all replies
            self._memory_guard.note_findings(self._supervisor, findings)

    async def _restart_engine(self, supervisor: Supervisor, request: StartRequest) -> None:
        if supervisor is self._supervisor:
            await self.start(request)
        else:
            await supervisor.become(request.options, again=request.again, drain_s=request.drain_s)

    async def set_watched(self, watched: bool) -> None:
        """Have the session's monitor sample the server, or not, while another process does."""
        self._is_watched = watched
        async with self._lifecycle_lock:
            if not watched:
                await self.monitor.end()
            elif self._supervisor is not None and self._is_watched:
                self.monitor.watch_server(self._supervisor)

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Stop the server if it runs or starts. Requests in progress may finish for up to `drain_s` seconds."""
        self._count_change()
        async with self._lifecycle_lock:  # wait for an opening or clean-up in progress
            pool = self.pool
        if pool is not None:
            try:
                await pool.stop(drain_s)
            finally:
                await self._clean_up_shielded()

    async def stop_model(self, name: str, *, drain_s: float = 0.0) -> str:
        """Unload the model that a user names, and return its name. The server ends with its last one.

        Raises ModelMissing if it is not loaded.
        """
        pool = self.pool
        model = await pool.find_loaded(name) if pool is not None else None
        loaded = pool.loaded_names if pool is not None else []
        if pool is None or model is None:
            raise ModelMissing(
                message("{name} is not loaded.", name=name), message("Loaded: {names}.", names=", ".join(loaded))
            )
        if loaded == [model.name]:
            await self.stop(drain_s=drain_s)
            return loaded[0]
        await pool.end_model(model, drain_s)
        return model.name

    async def wait_until_ended(self) -> LauncherError | None:
        """Wait until the server has ended and no start is in progress. Return its error, None when it was stopped."""
        while (pool := self.pool) is not None:
            supervisor = pool.main.supervisor
            status = await supervisor.wait_for_state(ServerState.STOPPED, ServerState.FAILED)
            if self.pool is not None and self.pool.is_main_unloaded:  # the others go on, and this one can come back
                await self.pool.wait_for_change()
                continue
            if not supervisor.is_changing and self.pool in (pool, None):
                return status.error
            await asyncio.sleep(_POLL_S)  # a start may be moving to another port
        return None

    async def _open_pool(self, options: ServeOptions) -> ModelPool:
        """Claim the address, publish the server, and make its pool, with a main model for `options`."""
        endpoint, published = await PublishedServer.publish(self.control, self._port, options, shared=self.shared)
        encrypted = self.encrypted and endpoint.shared
        published.registration.update(encrypted=encrypted, takes_models=self._takes_models)
        try:
            address = None
            if not self._direct:
                address = GatewayAddress(
                    endpoint,
                    self.request_log,
                    encrypted=encrypted,
                    read_allowed=settings.read_allowed_names,
                    open_vault=settings.open_vault,
                    read_left_out=partial(settings.read_left_out, settings_path()),
                )
        except LauncherError:
            await published.withdraw()
            raise
        self._published, self._port = published, endpoint.port
        self.pool = pool = ModelPool(
            endpoint,
            address,
            self.request_log,
            options,
            takes_models=self._takes_models,
            read_rules=partial(read_pool_rules, self._memory_limit_mib),
            on_event=self._handle_event,
            on_notice=self._notify_listeners,
            on_change=self._handle_models,
        )
        if pool.takes_models:
            self._pool_watch = asyncio.create_task(
                self._memory_guard.watch(pool, lambda: self.monitor.health_watch.root)
            )
        lost, self._lost_port = self._lost_port or endpoint.in_place_of, None
        if lost is not None and lost != endpoint.port:
            self._notify_listeners(
                Notice(
                    ADDRESS_CHANGED,
                    message(
                        "Port {lost} is in use by another program, so the server now uses {url}. Update "
                        "programs that use the old address.",
                        lost=lost,
                        url=endpoint.url,
                    ),
                )
            )
        return pool

    def _handle_models(self) -> None:
        """Publish the models, and tell the listeners of them."""
        if self.pool is not None and self._published is not None:
            self._published.update_models(self.pool.describe_models())
            self._notify_listeners(ModelsChanged(self.model_statuses))

    def _handle_event(self, model: PooledModel, event: ServerEvent) -> None:
        """Pass on what the main model's supervisor reports; of the others notices only."""
        if self.pool is None or model is not self.pool.main:
            if isinstance(event, Notice):
                self._notify_listeners(event)
            return
        if isinstance(event, EngineStarted):
            self.request_log.note_engine_start()
            return
        self._record_event(event, model.supervisor)
        is_lost_port = isinstance(event, ServerStatus) and isinstance(event.error, PortBusy)
        if not (is_lost_port and self._hides_lost_port):
            self._notify_listeners(event)

    def _notify_listeners(self, event: ServerEvent) -> None:
        super()._notify_listeners(event)
        report = self.last_handover
        if isinstance(event, ServerStatus) and event.state is ServerState.READY and report is not self._handover:
            self._handover = report
            if report is not None:
                waiting = asyncio.create_task(self._announce_continuation(report))
                self._waits.add(waiting)
                waiting.add_done_callback(self._waits.discard)

    async def _announce_continuation(self, report: "HandoverReport") -> None:
        """Report to the listeners the pause that a handover made, once its streams continue."""
        await report.wait_for_streams()
        if report.gap_s is not None:
            self._notify_listeners(StreamsContinued(report.gap_s))

    def _record_event(self, event: ServerEvent, supervisor: Supervisor) -> None:
        """Record a start or its error, for `apply_fix`, and for `diagnose` in another process."""
        launch, newest = supervisor.launch, self._newest_start
        if not isinstance(event, ServerStatus) or launch is None or newest is None:
            return
        if event.state is ServerState.LOADING and event.percent is None:  # an engine was started
            served = self._served_start.start if self._served_start else newest
            options = supervisor.options or newest.options
            restores_previous = served.options == options != newest.options
            started = replace(served if restores_previous else newest.with_options(options), context=launch.context)
            if options == newest.options:
                self._newest_start = started
            save_last_start(started, supervisor.log.path)
        elif event.state is ServerState.STOPPING:  # a running engine is stopped: its log is the last to ask about
            served = self._served_start.start if self._served_start else newest
            save_last_start(replace(served, context=launch.context), supervisor.log.path, stopped=True)
        elif event.error is not None:
            attach_fixes(event.error, launch.options)
            self._failed_start, self._proposed_fixes = newest, event.error.actions
            save_last_start(newest, supervisor.log.path, event.error)

    async def _clean_up_shielded(self) -> None:
        """Clean up, unless a newer start is in progress. Finishes even when cancelled."""
        clean_up = asyncio.ensure_future(self._clean_up())
        try:
            await asyncio.shield(clean_up)
        except asyncio.CancelledError:
            await asyncio.wait([clean_up])
            raise

    async def _clean_up(self) -> None:
        async with self._lifecycle_lock:
            pool = self.pool
            if pool is None or pool.main.supervisor.is_changing:
                return
            if pool.main.supervisor.status.state not in (ServerState.STOPPED, ServerState.FAILED):
                return
            if self._pool_watch is not None:
                self._pool_watch.cancel()
                await asyncio.wait([self._pool_watch])
                self._pool_watch = None
            await pool.close()
            published, self._published, self.pool = self._published, None, None
            pool.main.supervisor.log.close()
            if pool.address is not None:
                await pool.address.close()
                await self._request_keeping.save_pending()
            if published is not None:
                await published.withdraw()
            await self.monitor.end()


def _remember_choices(
    options: ServeOptions, set_aside: Mapping[str, Value] | None, chosen: Mapping[str, Value]
) -> None:
    """Keep the chosen settings for the model's next start, with the earlier ones that were set aside (None: all)."""
    earlier = load_model_settings(options.model) if set_aside is None else set_aside
    keep_choices(options, {**earlier, **chosen})
