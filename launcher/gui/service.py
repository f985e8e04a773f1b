"""The window's server, on the core's thread: what the controller asks for is done, and what comes of it is posted."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher import settings
from launcher.base.errors import ServerNotFound
from launcher.engine.state import State, Status
from launcher.gui.told import Came, Health, Launched, Link, Replied, Wish
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.app import Session
    from launcher.engine.action import Action
    from launcher.engine.launch import Launch
    from launcher.engine.settings import Value
    from launcher.engine.state import Event
    from launcher.monitor.health_event import HealthEvent
    from launcher.use_counting import UseCounting

DEMO = "demo"
_REQUEST = ("max_tokens", "temperature", "seed", "thinking")
"""The sampling values that ChatRequest has fields for."""


class Service:
    """One session for as long as the window is open. `start` takes hold of it before it waits for anything, so that a
    `stop` that is asked for right after it ends it."""

    def __init__(self, post: Callable[[object], None]) -> None:
        self.session: Session | None = None
        """None before the first start."""
        self.named = ""
        """The model as its user named it."""
        self._post = post
        self._seen = True
        self._told: Launch | None = None
        self._counting: UseCounting | None = None

    async def start(self, wish: Wish) -> None:
        """Serve as the command line does: what was chosen for this model the last time holds again."""
        from launcher import app
        from launcher.engine.last import keep_last
        from launcher.engine.launch import ServeOptions
        from launcher.engine.settings import remembered, with_settings

        session = self.opened()
        options, chosen = wish.options, wish.chosen
        if options is None:
            options = app.options_for(wish.model, lambda path: ServeOptions(model=path), draft=wish.draft)
            asked = {} if wish.draft is None else {"draft": wish.draft}
            chosen = remembered(options.model) | asked
            options = with_settings(options, chosen)
        before, self.named = self._told, wish.model
        if session.rests:
            await session.share(False)  # each time anew
        await session.start(options, chosen=chosen, named=wish.model)
        self._post(session.supervisor.status)  # it may have been so before
        if self._told is before:  # it ran already
            self._tell_launched(session)
        await asyncio.to_thread(keep_last, wish.model)

    def opened(self) -> "Session":
        """Return the session, begun where there was none."""
        from launcher import app
        from launcher.use_counting import UseCounting

        if self.session is None:
            self.session = app.Session(on_event=self._hear, on_sample=self._post, on_health=self._hear_health)
            self._counting = UseCounting(self.session)
            self.session.monitor.seen(self._seen)
        return self.session

    async def seen(self, seen: bool) -> None:
        """Take note of whether anybody sees the window."""
        self._seen = seen
        if self.session is not None:
            self.session.monitor.seen(seen)

    async def stop(self) -> bool:
        """Stop, and return whether nothing runs and nothing is about to."""
        if self.session is None:
            return True
        await self.session.stop()
        await self.session.share(False)
        if self._counting is not None:
            await self._counting.keep()
        return self.session.rests

    async def apply(self, changes: "Mapping[str, Value]", drain_s: float, extra: Sequence[str] | None) -> None:
        """Restart with other settings, and arguments of the user's own (None: as they are)."""
        from launcher.engine.settings import with_settings

        session = self._running()
        launch = session.supervisor.launch
        if launch is None:
            raise ServerNotFound("The server has never run, so there is nothing to change.", "Start it first.")
        options = with_settings(session.supervisor.options or launch.options, changes)
        if extra is not None:
            options = replace(options, extra=tuple(extra))
        await session.start(options, again=True, drain_s=drain_s, chosen=changes)

    async def share(self, shared: bool) -> None:
        """Share what runs with the network, or not any more."""
        drain_s = await asyncio.to_thread(settings.drain_s)
        await self._running().share(shared, drain_s=drain_s)

    async def fix(self, action: "Action") -> None:
        """Start again, changed as the action says, or open its address."""
        session = self._running()
        link = session.way(action).link
        if link is not None:
            self._post(Link(link))
        else:
            await session.fix(action)

    async def ask(self, number: int, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any]) -> None:
        """Ask for reply `number`; sampling values that ChatRequest has no fields for go by llama-server's names."""
        from launcher.engine.client import ChatRequest

        named = {name: value for name, value in sampling.items() if name in _REQUEST}
        others = {name: value for name, value in sampling.items() if name not in _REQUEST}
        request = ChatRequest(messages, **named, extra=others)
        reply = await self._running().ask(request, lambda delta: self._post(Came(number, delta)))
        self._post(Replied(number, reply))

    async def api_key(self) -> str:
        """Return the key of what runs. Raises ServerNotFound."""
        return self._running().supervisor.endpoint.api_key

    def _running(self) -> "Session":
        if self.session is None:
            raise ServerNotFound("The server is not running.", "Start it first.")
        return self.session

    def _hear(self, event: "Event") -> None:
        """Pass on what the core tells; a server may also be restarted with other settings from the command line."""
        self._post(event)
        session, ready = self.session, isinstance(event, Status) and event.state is State.READY
        if ready and session is not None and session.supervisor.launch is not self._told:
            self._tell_launched(session)

    def _hear_health(self, _event: "HealthEvent") -> None:
        if self.session is not None:
            self._post(Health(tuple(self.session.monitor.watch.standing)))

    def _tell_launched(self, session: "Session") -> None:
        from launcher.engine.demo import demo_preset

        launch = self._told = session.supervisor.launch
        if launch is None:
            return
        draft = launch.options.draft
        context = f"{launch.context // 1024}K" if launch.context % 1024 == 0 else f"{launch.context:,}"
        said = (
            tr("{context} context · draft {draft} · MTP on", context=context, draft=draft)
            if draft
            else tr("{context} context · MTP off", context=context)
        )
        said += tr(" · shared with the network") if session.shared else ""
        note = demo_preset().speed_note if self.named == DEMO else ""
        address = session.supervisor.endpoint.url.removeprefix("http://")
        self._post(Launched(launch, launch.header.name, said, address, note, session.shared))
