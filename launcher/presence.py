"""What other programs of this user see of a server that runs here: its note, and the line on which it answers."""

import asyncio
from contextlib import suppress
from typing import Self

from launcher.base.errors import LauncherError
from launcher.engine import registry
from launcher.engine.build import BUILT_IN
from launcher.engine.endpoint import Endpoint
from launcher.engine.launch import ServeOptions, name_of
from launcher.engine.left_over import command_hash
from launcher.engine.registry import Registration
from launcher.engine.settings import settings_of
from launcher.engine.state import EngineStarted, Event, State, Status
from launcher.engine.supervisor import Supervisor
from launcher.remote import Controlled, RemoteControl


class Presence:
    """Kept up to date by the server's events, until it is taken away."""

    def __init__(
        self, endpoint: Endpoint, registration: Registration, options: ServeOptions, session: Controlled
    ) -> None:
        self.endpoint, self.registration = endpoint, registration
        self._options = options
        self._remote = RemoteControl(session)
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def begin(cls, session: Controlled, port: int | None, options: ServeOptions, *, shared: bool) -> Self:
        """Claim an address (see registry.register), note the server, and listen. Cancelled, it leaves nothing noted."""
        registering = asyncio.ensure_future(
            asyncio.to_thread(
                registry.register,
                port,
                model=name_of(options),
                engine=_engine(options),
                draft=options.draft,
                shared=shared,
            )
        )
        try:
            endpoint, registration = await asyncio.shield(registering)
        except asyncio.CancelledError:
            with suppress(LauncherError, OSError):
                _, registration = await registering
                await asyncio.to_thread(registration.remove)
            raise
        return cls(endpoint, registration, options, session)

    def take(self, event: Event, supervisor: Supervisor) -> None:
        """Note what has changed."""
        if isinstance(event, EngineStarted):
            self.registration.update(engine_pid=event.pid, engine_created_s=event.created_s, command_hash=None)
        elif isinstance(event, Status) and event.state not in (State(self.registration.entry.state), State.BUSY):
            launch, pid = supervisor.launch, supervisor.engine_pid
            options = launch.options if launch else self._options
            self.registration.update(
                state=event.state.value,
                engine_pid=pid,
                engine=launch.build.name if launch else _engine(options),
                model=name_of(options),
                draft=options.draft,
                health=(),
                settings=settings_of(launch) if launch else {},
                command_hash=command_hash(pid) if pid else None,
            )

    async def end(self) -> None:
        """Take it away."""
        await asyncio.to_thread(self.registration.remove)
        await asyncio.wait([self._listening])
        await self._remote.close()

    async def _listen(self) -> None:
        """Open the line; where that cannot be, other programs have signals."""
        try:
            address = await self._remote.listen(self.registration.entry.port)
        except OSError:
            return
        self.registration.update(control=address.place, control_token=address.token)


def _engine(options: ServeOptions) -> str:
    return BUILT_IN if options.engine is None else options.engine.name
