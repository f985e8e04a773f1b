"""One server as both faces use it: start it, ask it, stop it, as often as they like."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from launcher.base.action import Action, ActionKind
from launcher.base.errors import ActionImpossible, LauncherError, PortBusy, ServerNotFound, Superseded
from launcher.base.memory import keep_large_blocks_apart
from launcher.engine.action import apply, starts_again
from launcher.engine.build import BUILT_IN
from launcher.engine.client import ChatRequest
from launcher.engine.diagnosis_actions import advise
from launcher.engine.last import keep_used
from launcher.engine.launch import ServeOptions, check_model, check_options
from launcher.engine.load_times import LoadClock, keep_load_time
from launcher.engine.logs import LogBook
from launcher.engine.settings import Value, remember
from launcher.engine.started import Started, keep_start
from launcher.engine.state import ADDRESS_CHANGED, SERVING, EngineStarted, Event, Notice, State, Status
from launcher.engine.supervisor import Supervisor
from launcher.engine.way import Way, way
from launcher.monitor.health_event import HealthEvent
from launcher.monitor.monitor import Monitor, Sampled
from launcher.monitor.reply import OnDelta, Reply, read_reply
from launcher.planner import learn_from_load
from launcher.presence import Presence

_PORTS_TRIED = 4
_SETTLE_S = 0.05
_SEEN_S = 2.0
_log = logging.getLogger(__name__)

OnEvent = Callable[[Event], None]
OnSample = Callable[[Sampled], None]
OnHealth = Callable[[HealthEvent], None]


class Session:
    """One server for as long as a face wants one: started, restarted, asked and stopped as often as it likes.

    The address stays the same while the session lasts, unless no `port` was asked for and another program takes it.
    A `shared` one listens on every address of this computer, for as long as it lasts or until `share` changes that.
    Belongs to one asyncio loop; the listeners are called there.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        shared: bool = False,
        on_event: OnEvent | None = None,
        on_sample: OnSample | None = None,
        on_health: OnHealth | None = None,
    ) -> None:
        keep_large_blocks_apart()
        self.monitor = Monitor(on_sample, on_health=self._note_health)
        self._on_health = on_health
        self._port, self._may_move = port, port is None
        self.shared = shared
        self._on_event = on_event
        self._also: list[OnEvent] = []
        self._hides_lost_port = False
        self._lost_port: int | None = None
        self._requests = 0
        self._supervisor: Supervisor | None = None
        self._presence: Presence | None = None
        self._chosen: dict[str, Value] = {}
        self._tried: Started | None = None
        self._proposed: tuple[Action, ...] = ()
        self._load_clock = LoadClock()
        self._putting_away = asyncio.Lock()

    @property
    def supervisor(self) -> Supervisor:
        """The server's supervisor. Raises ServerNotFound before the first start and after the last stop."""
        if self._supervisor is None:
            raise ServerNotFound("The server is not running.", "Start it first.")
        return self._supervisor

    @contextmanager
    def listening(self, listener: OnEvent) -> Iterator[None]:
        """Tell `listener`, too, of every event for as long as the block lasts."""
        self._also.append(listener)
        try:
            yield
        finally:
            self._also.remove(listener)

    async def start(
        self,
        options: ServeOptions,
        *,
        again: bool = False,
        drain_s: float = 0.0,
        chosen: Mapping[str, Value] | None = None,
        named: str | None = None,
    ) -> None:
        """Serve `options`, in place of what is served now. See Supervisor.become.

        `chosen` are the settings that the user chose; once they serve, they are kept for the model's next start.
        `named` is the model as the user named it, for commands that start it again (None: its path).
        A port that nobody asked for, and that another program takes before the engine does, is exchanged for another.
        The error that it fails with carries what can be done about it, for `fix` or by `way`.
        """
        self._proposed = ()
        if self._tried is not None:
            if self._tried.options.model != options.model:
                self._chosen = {}
            elif named is None:
                named = self._tried.model
        self._tried = tried = Started.of(
            options,
            named=named,
            chosen=None if chosen is None else {**self._chosen, **chosen},
            port=None if self._may_move else self._port,
            shared=self.shared,
        )
        try:
            await self._start(options, again=again, drain_s=drain_s)
        except LauncherError as error:
            advise(error, options)
            if self._tried is tried:  # no engine was run for it
                self._proposed = error.actions
                if not self._serves and not isinstance(error, Superseded):
                    await asyncio.to_thread(keep_start, tried, None, error)
            raise
        if chosen is not None:
            self._chosen |= chosen
            await asyncio.to_thread(remember, options.model, dict(self._chosen))

    async def fix(self, action: Action, *, drain_s: float = 0.0) -> None:
        """Do what an error or a finding proposes, and start again: by other settings, on another port, or as it was.

        What the last error proposed is done to the start that failed, all else to what runs. Settings that it changes
        count as chosen. Raises ActionImpossible for what is not done by another start (see `way`) or changes nothing,
        ServerNotFound when nothing was started yet, else as `start`.
        """
        base = self._base(action)
        if base is None:
            raise ServerNotFound("Nothing has been started yet.", "Start a model first.")
        if not starts_again(action):
            how = way(action, base)
            hint = f"`{how.command}` does it." if how.command else how.link or "It is for you to do."
            raise ActionImpossible(f"{action.label}: this is not done by another start.", hint, kind=action.kind.value)
        if action.kind is ActionKind.OTHER_PORT:
            await self.stop()  # what runs has the port; mostly nothing does
            self._port, self._may_move = None, True
        elif action.kind is not ActionKind.RESTART:
            base = base.changed(apply(action, base.options, context=base.context))
        await self.start(base.options, again=True, drain_s=drain_s, chosen=base.settings, named=base.model)

    @property
    def requests(self) -> int:
        """How often a start or a stop was asked for: by it one who measures sees that somebody else did."""
        return self._requests

    @property
    def rests(self) -> bool:
        """Whether nothing is served, nor about to be."""
        return self._supervisor is None

    async def share(self, shared: bool, *, drain_s: float = 0.0) -> None:
        """Let other computers of the network in, with the key, or not any more: what is served starts again for that.

        Where that fails, what was served is started again as it was, and the error is raised. Raises what `start` does.
        """
        if shared == self.shared:
            return
        self.shared = shared
        running, tried = self._supervisor, self._tried
        if running is None or running.options is None or tried is None:
            return
        base = tried.changed(running.options)
        await self.stop(drain_s=drain_s)  # another address is another process
        try:
            await self.start(base.options, chosen=base.settings, named=base.model)
        except LauncherError as error:
            if not shared or isinstance(error, Superseded):
                raise
            self.shared = False
            await self.start(base.options, chosen=base.settings, named=base.model)
            raise

    def way(self, action: Action) -> Way:
        """Return the command that carries an action out, or the address to open; neither when only the user can."""
        return way(action, self._base(action))

    @property
    def _serves(self) -> bool:
        return self._supervisor is not None and self._supervisor.status.state in SERVING

    def _base(self, action: Action) -> Started | None:
        """Return what an action is done to: the start that failed, if its error proposed it, else what runs."""
        running = self._supervisor
        if self._tried is None or action in self._proposed or running is None or running.launch is None:
            return self._tried
        if not self._serves or running.options is None:
            return self._tried
        return replace(self._tried.changed(running.options), context=running.launch.context)

    async def _start(self, options: ServeOptions, *, again: bool, drain_s: float) -> None:
        self._requests += 1
        request = self._requests
        check_options(options)
        await asyncio.to_thread(check_model, options)  # before a port is claimed
        for moves_left in reversed(range(_PORTS_TRIED if self._may_move else 1)):
            try:
                await self._become(options, request, moves_left, again=again, drain_s=drain_s)
            except PortBusy:
                if not moves_left:
                    raise
                self._lost_port, self._port = self._port, None
            else:
                break

    async def _become(
        self, options: ServeOptions, request: int, moves_left: int, *, again: bool, drain_s: float
    ) -> None:
        async with self._putting_away:  # else the new one's monitor and control line would be put away, too
            self._check_newest(request)
            self._hides_lost_port = moves_left > 0
            supervisor = self._supervisor or await self._open(options)
            self.monitor.begin(supervisor)
        try:
            self._check_newest(request)
            await supervisor.become(options, again=again, drain_s=drain_s)
        except BaseException:
            await self._settle()
            raise
        finally:
            if request == self._requests:
                self._hides_lost_port = False  # it is not moved any more
        await self._learn(supervisor)

    def _check_newest(self, request: int) -> None:
        if request != self._requests:
            raise Superseded("A newer request to this server took the place of this one.")

    async def _learn(self, supervisor: Supervisor) -> None:
        """Let plans to come know what this load took, of time and of the GPU; nothing depends on its success."""
        launch, pid = supervisor.launch, supervisor.engine_pid
        if launch is not None and (seconds := self._load_clock.take()) is not None:
            await asyncio.to_thread(keep_load_time, launch, seconds)
        if launch is not None:
            await asyncio.to_thread(keep_used, launch.options.model)
        if self._presence is not None:  # who is told that it serves may ask for it by another command
            await asyncio.to_thread(self._presence.registration.settle, _SEEN_S)
        if launch is None or pid is None or launch.build.name == BUILT_IN:
            return
        with suppress(Exception):
            await asyncio.to_thread(learn_from_load, launch, pid, supervisor.log.last())

    def _note_health(self, event: HealthEvent) -> None:
        """Let other programs of this user see what stands, and tell it."""
        if self._presence is not None:
            standing = tuple(found.as_json() for found in self.monitor.watch.standing)
            self._presence.registration.update(health=standing)
        if self._on_health is not None:
            _tell(self._on_health, event)

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Stop the server, if one runs or is about to; it may end the requests it has for up to `drain_s` seconds."""
        self._requests += 1
        async with self._putting_away:  # what is being opened or put away is that by then
            supervisor = self._supervisor
        if supervisor is not None:
            try:
                await supervisor.become(None, drain_s=drain_s)
            finally:
                await self._settle()

    async def wait_until_ended(self) -> LauncherError | None:
        """Wait until the server runs no more and nobody starts it; return why, None when it was stopped."""
        while (supervisor := self._supervisor) is not None:
            status = await supervisor.wait_for(State.STOPPED, State.FAILED)
            if not supervisor.changing and self._supervisor in (supervisor, None):
                return status.error
            await asyncio.sleep(_SETTLE_S)  # a start that moves to another port
        return None

    async def ask(self, request: ChatRequest, on_delta: OnDelta | None = None) -> Reply:
        """Ask for a reply and return it whole; the monitor follows it. See Supervisor.chat for the errors."""
        meter = self.monitor.reply_started()
        began_s = time.monotonic()
        try:
            async with self.supervisor.chat(request) as deltas:
                return await read_reply(deltas, began_s, meter, on_delta)
        finally:
            self.monitor.reply_ended(meter)

    async def _open(self, options: ServeOptions) -> Supervisor:
        presence = await Presence.begin(self, self._port, options, shared=self.shared)
        endpoint = presence.endpoint

        def listen(event: Event) -> None:
            self._load_clock.note(event)
            presence.take(event, supervisor)
            if isinstance(event, EngineStarted):
                return
            self._note(event, supervisor)
            lost = isinstance(event, Status) and isinstance(event.error, PortBusy) and self._hides_lost_port
            for tell in (self._on_event, *self._also):
                if tell is not None and not lost:
                    _tell(tell, event)

        self._presence, self._port = presence, endpoint.port
        self._supervisor = supervisor = Supervisor(endpoint, LogBook.for_port(endpoint.port), listen)
        lost, self._lost_port = self._lost_port or endpoint.in_place_of, None
        if lost is not None and lost != endpoint.port:
            listen(
                Notice(
                    ADDRESS_CHANGED,
                    f"Port {lost} is in use by another program, so the address is another one this time:"
                    f" {endpoint.url}. Programs that were told the old address need the new one.",
                )
            )
        return supervisor

    def _note(self, event: Event, supervisor: Supervisor) -> None:
        """Keep what is started, and why it failed: for `fix`, and for `diagnose` in another process."""
        launch, tried = supervisor.launch, self._tried
        if not isinstance(event, Status) or launch is None or tried is None:
            return
        if event.state is State.LOADING and event.percent is None:
            begun = replace(tried.changed(supervisor.options or tried.options), context=launch.context)
            if supervisor.options == tried.options:  # and not what ran before again
                self._tried = begun
            keep_start(begun, supervisor.log.path)
        elif event.error is not None:
            advise(event.error, launch.options)
            self._proposed = event.error.actions
            keep_start(tried, supervisor.log.path, event.error)

    async def _settle(self) -> None:
        """Put everything away, unless a newer start is under way. Cancelled, it does so all the same."""
        settling = asyncio.ensure_future(self._put_away())
        try:
            await asyncio.shield(settling)
        except asyncio.CancelledError:
            await asyncio.wait([settling])
            raise

    async def _put_away(self) -> None:
        async with self._putting_away:
            supervisor = self._supervisor
            resting = supervisor is not None and supervisor.status.state in (State.STOPPED, State.FAILED)
            if supervisor is None or supervisor.changing or not resting:
                return
            presence, self._presence, self._supervisor = self._presence, None, None
            supervisor.log.close()
            if presence is not None:
                await presence.end()
            await self.monitor.end()


def _tell(listener: Callable[[Any], None], event: object) -> None:
    """Tell a listener. That it fails, since its terminal is gone say, must not end what looks after the server."""
    try:
        listener(event)
    except Exception:  # noqa: BLE001 -- whatever it is
        _log.exception("A listener failed: %s", type(event).__name__)
