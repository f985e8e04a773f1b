"""The window's server session on the core's thread: carries out the controller's requests and posts the results.

The server runs in a process of its own, which a crash of the window leaves running: see app/serving/remote_session.py.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base.errors import LauncherError, ServerNotFound, Superseded
from launcher.base.late import asyncio
from launcher.base.messages import as_message, join_messages, message
from launcher.engine.server.state import ENGINE_SLOWER, SERVING, ModelsChanged, Notice, ServerState, ServerStatus
from launcher.gui.core_events import (
    DeltaReceived,
    DrainAnswer,
    DrainAsked,
    HealthChanged,
    Launched,
    LinkRequested,
    ModelRequest,
    ReplyFinished,
    SharingChanged,
)
from launcher.gui.late import (
    engine_client,
    engine_comparison,
    engine_demo,
    engine_settings,
    fix_commands,
    last_start,
    registry,
    remote_session,
    running_servers,
    server_process,
    server_session,
    start_settings,
    tuned_match,
    use_counting,
    verbs,
)

if TYPE_CHECKING:
    from launcher.app.measuring.engine_comparison import BuildComparison
    from launcher.app.serving.remote_session import RemoteSession
    from launcher.app.serving.use_counting import UseCounting
    from launcher.base.action import Action
    from launcher.engine.server.launch import Launch
    from launcher.engine.server.registry import ServerEntry
    from launcher.engine.server.state import ServerEvent
    from launcher.models.server_settings import Value
    from launcher.monitor.health_event import HealthEvent

_log = logging.getLogger(__name__)
DEMO = "demo"
_ASK_AFTER_S = 10.0
"""Seconds for which a restart waits for replies before the user is asked whether to go on."""
_DRAIN_POLL_S = 0.2
_IDLE_CHECKS = 5
"""Checks in a row at which no server may run before an updated engine is compared with the one before it."""
_REQUEST_FIELDS = ("max_tokens", "temperature", "seed", "thinking")
"""Sampling values for which ChatRequest has fields."""
CHAT_PURPOSE = "window-chat"
"""Purpose that the requests of the window's chat carry; `mtp-launcher requests` lists them under it."""


def name_model(model: str) -> str:
    """Return a model's name for the user: of a file its name without .gguf, else the ID as it is."""
    return Path(model).stem if model.lower().endswith(".gguf") else model


class ServerService:
    """Holds the window's server session from the first start until the window closes.

    `start` creates the session before its first await, so that a `stop` requested right afterwards stops it.
    """

    def __init__(self, post: Callable[[object], None]) -> None:
        self.session: RemoteSession | None = None
        """None before the first start."""
        self.served_name = ""
        """The model as the user named it."""
        self._post = post
        self._visible = True
        self._request_count = 0
        self._posted_launch: Launch | None = None
        self._counting: UseCounting | None = None
        self._drain_answer: asyncio.Future[DrainAnswer] | None = None
        """The user's answer while a restart waits for replies."""
        self._joined: set[asyncio.Task[None]] = set()
        """Tasks, each of which keeps a model loaded beside the first one."""
        self._comparison: asyncio.Task[BuildComparison] | None = None
        """A comparison of an updated engine with the one before it, while nothing is served."""

    async def start(self, request: ModelRequest) -> None:
        """Start a model with the settings that the command line would use: see resolve_start."""
        session = self.open_session()
        if self._comparison is not None:  # a cancelled comparison still has to free its memory
            await asyncio.wait([self._comparison])
        session.prepare()  # while the settings are resolved
        self._request_count += 1
        start, request_number = request.start, self._request_count
        if start is None:
            # The memory of these engines counts as free, because they end before the new one starts.
            ending = () if session.is_idle else await asyncio.to_thread(session.list_yielding_engines)
            start = await start_settings.resolve_start(request.model, {"draft": request.draft}, ending=ending)
            if self._request_count != request_number:  # another request came while the settings were resolved
                raise Superseded(message("A newer request replaced this one."))
        launch_before, self.served_name = self._posted_launch, request.model
        ended = (ServerState.STOPPED, ServerState.FAILED)  # a stop may still be cleaning up
        keeps_address = session.models.is_main_unloaded  # other models are served there
        if session.is_idle or (session.supervisor.status.state in ended and not keeps_address):
            await session.set_shared(False)  # sharing never carries over to a new start
        await session.start(replace(start.request, model_name=request.model))
        self._post(session.supervisor.status)  # the status may not have changed, so no event was sent
        if self._posted_launch is launch_before:  # the same server was already running
            self._post_launched(session)
        await asyncio.to_thread(last_start.save_last_model, request.model)

    async def attach(self) -> None:
        """Take over the server that an earlier window has left, if there is one."""
        if await asyncio.to_thread(server_process.find_process) is not None:
            await self.open_session().attach()

    def open_session(self) -> "RemoteSession":
        """Return the session, creating it if necessary. Ends a comparison of engines."""
        if self._comparison is not None:
            self._comparison.cancel()
        if self.session is None:
            self.session = remote_session.RemoteSession(
                on_event=self._forward_event, on_snapshot=self._post, on_health=self._forward_health
            )
            self._counting = use_counting.UseCounting(self.session)
            self.session.monitor.set_visible(self._visible)
        return self.session

    async def set_visible(self, visible: bool) -> None:
        """Record whether the window is visible."""
        self._visible = visible
        if self.session is not None:
            self.session.monitor.set_visible(visible)

    async def stop(self) -> bool:
        """Stop the server. Returns whether nothing runs and nothing is about to start."""
        self._request_count += 1
        if self.session is None:
            return True
        await self.session.stop()
        await self.session.set_shared(False)
        if self._counting is not None:
            await self._counting.save_counts()
        return self.session.is_idle

    async def stop_model(self, name: str) -> None:
        """Unload one of the models at the server's address."""
        await self._running_session().stop_model(name)

    async def load_beside(self, model: str) -> None:
        """Load a model at the server's address beside the running one, and return when it is ready.

        It stays until it is unloaded, or this program ends. No other model is unloaded for it. Raises NothingFits if
        there is not enough free memory, and what a start raises.
        """
        session = self._running_session()
        entries = await asyncio.to_thread(registry.list_entries)
        entry = next((each for each in entries if each.launcher == session.process and each.takes_models), None)
        if entry is None:
            raise ServerNotFound(message("The server is not running."), message("Start it first."))
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(_hold_joined_model(entry, model, ready))
        self._joined.add(task)
        task.add_done_callback(self._joined.discard)
        try:
            await asyncio.shield(ready)
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def watch_updates(self, check_s: float) -> None:
        """Compare an updated engine with the one before it when nothing was served at several checks. Never ends."""
        idle_checks = 0
        while True:
            await asyncio.sleep(check_s)
            # Not before the first wait: these load half of the program, which would hold up the window's start.
            update = await asyncio.to_thread(engine_comparison.find_uncompared_update)
            idle_checks = idle_checks + 1 if update is not None else 0
            if update is None or idle_checks < _IDLE_CHECKS:
                continue
            idle_checks = 0
            self._comparison = asyncio.create_task(
                engine_comparison.compare_engines(server_session.ServerSession(), *update, is_update=True)
            )
            try:
                await asyncio.wait([self._comparison])
            finally:
                self._comparison.cancel()
            comparison, self._comparison = self._comparison, None
            if comparison.cancelled():
                continue  # the user has started a server: it is repeated later
            if (error := comparison.exception()) is not None:
                _log.warning("The updated engine was not compared with the one before it: %s", error)
                return
            found = comparison.result()
            if found.is_slower:
                again = message("{old} is used again.", old=found.old.name)
                self._post(Notice(ENGINE_SLOWER, join_messages(found.sentence, again)))

    async def close(self) -> None:
        """Stop the server, and end its process."""
        self._request_count += 1
        if self._comparison is not None:
            self._comparison.cancel()
            await asyncio.wait([self._comparison])
        for task in self._joined:
            task.cancel()
        if self.session is not None:
            await self.session.close()
        if self._counting is not None:
            await self._counting.save_counts()

    async def apply_settings(self, changes: "Mapping[str, Value]", drain_s: float, extra: Sequence[str] | None) -> None:
        """Restart with other server settings and extra arguments (None: unchanged).

        Replies that cannot go on after it are waited for until the user decides otherwise, unless `drain_s` is 0.
        """
        from launcher.engine.server.start_request import StartRequest

        session = self._running_session()
        launch = session.supervisor.launch
        if launch is None:
            raise ServerNotFound(
                message("The server was never started, so there are no settings to change."), message("Start it first.")
            )
        request_number, options = self._request_count, session.supervisor.options or launch.options
        options = await asyncio.to_thread(start_settings.with_drafts_here, options)
        options = engine_settings.change_settings(options, changes)
        if extra is not None:
            options = replace(options, extra=tuple(extra))
        answer = await self._wait_for_replies(session) if drain_s else None
        if answer is DrainAnswer.CANCEL:
            return
        if self._request_count != request_number:  # the session's count comes from another process, perhaps later
            raise Superseded(message("A newer request replaced this one."))
        drain_s = 0.0 if answer is DrainAnswer.CUT else drain_s
        await session.start(StartRequest(options, again=True, settles=True, drain_s=drain_s, chosen=changes))

    def answer_drain(self, answer: DrainAnswer) -> None:
        """Record the user's answer, if a restart still waits for it."""
        if self._drain_answer is not None and not self._drain_answer.done():
            self._drain_answer.set_result(answer)

    async def _wait_for_replies(self, session: "RemoteSession") -> DrainAnswer | None:
        """Wait until no reply runs that would be cut off by a restart, or until the user decides; return the decision.

        The engine still serves meanwhile, so the change can be cancelled. Raises Superseded if the server is stopped or
        restarted by another request.
        """
        if self._drain_answer is not None:
            self._drain_answer.cancel()
        answer = self._drain_answer = asyncio.get_running_loop().create_future()
        change_count, began_s, asked_for = session.change_count, time.monotonic(), 0
        try:
            while not answer.done():
                outlook = await session.foresee_handover()
                ending = outlook.ending if outlook is not None else 0
                if session.change_count != change_count:
                    raise Superseded(message("A newer request replaced this one."))
                if not ending:
                    return None
                if ending != asked_for and time.monotonic() - began_s >= _ASK_AFTER_S:
                    asked_for = ending
                    self._post(DrainAsked(ending))
                await asyncio.wait([answer], timeout=_DRAIN_POLL_S)
            if answer.cancelled():  # a newer Apply asks by itself
                raise Superseded(message("A newer request replaced this one."))
            return answer.result()
        finally:
            if self._drain_answer is answer:
                self._drain_answer = None
                self._post(DrainAsked(0))

    async def set_shared(self, shared: bool, *, encrypted: bool) -> None:
        """Share the running server with the network, or stop sharing."""
        session = self._running_session()
        await session.set_shared(shared, encrypted=encrypted)
        if session.supervisor.status.state in SERVING:
            self._post_launched(session)
        else:
            self._post(SharingChanged(session.shared, session.encrypted))

    async def apply_fix(self, action: "Action") -> None:
        """Apply a suggested fix by a restart, or post its link."""
        session = self._running_session()
        link = fix_commands.command_for(action, None).link
        if link is not None:
            self._post(LinkRequested(link))
        else:
            await session.apply_fix(action)

    async def request_reply(
        self,
        number: int,
        messages: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        kept_as: str | None = None,
    ) -> None:
        """Request reply `number`. Sampling values without a ChatRequest field are sent under llama-server's names.

        See ChatRequest for `kept_as`.
        """
        fields = {name: value for name, value in sampling.items() if name in _REQUEST_FIELDS}
        others = {name: value for name, value in sampling.items() if name not in _REQUEST_FIELDS}
        request = engine_client.ChatRequest(messages, **fields, extra=others, purpose=CHAT_PURPOSE, kept_as=kept_as)
        reply = await self._running_session().send_request(
            request, lambda delta: self._post(DeltaReceived(number, delta))
        )
        self._post(ReplyFinished(number, reply))

    async def count_tokens(self, text: str) -> int:
        """Return the number of a text's tokens for the running model. Raises ServerNotFound, Unreachable, Refused."""
        return await self._running_session().supervisor.client.count_text_tokens(text)

    async def read_api_key(self) -> str:
        """Return the API key of the running server. Raises ServerNotFound."""
        return self._running_session().supervisor.endpoint.api_key

    def _running_session(self) -> "RemoteSession":
        if self.session is None:
            raise ServerNotFound(message("The server is not running."), message("Start it first."))
        return self.session

    def _forward_event(self, event: "ServerEvent") -> None:
        """Forward an event of the core, and post Launched if another server is ready.

        A server can become ready without `start`: the command line can restart it with other settings.
        """
        session, is_ready = self.session, isinstance(event, ServerStatus) and event.state is ServerState.READY
        if session is not None and not self.served_name:  # an earlier window has started it
            self.served_name = session.model_name
        is_unloaded = isinstance(event, ModelsChanged) and event.is_main_unloaded
        # An earlier window has left the server like this.
        if session is not None and is_unloaded and self._posted_launch is None:
            self._post_launched(session)
        self._post(event)
        if is_ready and session is not None and session.supervisor.launch is not self._posted_launch:
            self._post_launched(session)

    def _forward_health(self, _event: "HealthEvent") -> None:
        if self.session is not None:
            self._post(HealthChanged(tuple(self.session.monitor.health_watch.open_findings)))

    @staticmethod
    async def read_tuning_note(launch: "Launch") -> str:
        """Return this machine's tuning result for the running server as a remark on its speed; empty without one."""
        tuned = await asyncio.to_thread(tuned_match.find_settings_for_launch, launch)
        return "" if tuned is None else tuned.measured_line

    def _post_launched(self, session: "RemoteSession") -> None:
        launch = self._posted_launch = session.supervisor.launch
        if launch is None:
            return
        context = f"{launch.context // 1024}K" if launch.context % 1024 == 0 else f"{launch.context:,}"
        drafts = launch.options.draft_choice.label()
        settings_text = message("{context} context · {drafts}", context=context, drafts=drafts)
        if launch.options.embeddings:
            settings_text = (
                message("{context} context · ranks texts", context=context)
                if launch.options.reranking
                else message("{context} context · turns texts into vectors", context=context)
            )
        if session.shared:
            settings_text = join_messages(settings_text, message("shared with the network"), separator=" · ")
        note = as_message(engine_demo.read_demo_preset().speed_note) if self.served_name == DEMO else ""
        address = session.supervisor.endpoint.url.removeprefix("http://")
        name, shared = launch.header.name, session.shared
        self._post(Launched(launch, name, settings_text, address, note, shared, shared and session.encrypted))


async def _hold_joined_model(entry: "ServerEntry", model: str, ready: "asyncio.Future[None]") -> None:
    """Load a model at a running server, and hold it there until it is unloaded. `ready` gets the error of the load."""
    from launcher.engine.serve_options import ServeOptions

    join = verbs.Join(model, {}, ServeOptions(Path(model)), keeps_others=True)
    try:
        async with aclosing(verbs.send_verb(await running_servers.find_control_address(entry), join)) as answers:
            async for answer in answers:
                if "ready" in answer and not ready.done():
                    ready.set_result(None)
    except LauncherError as error:
        if not ready.done():
            ready.set_exception(error)
    finally:
        if not ready.done():
            ready.set_exception(Superseded(message("A newer request replaced this one.")))
