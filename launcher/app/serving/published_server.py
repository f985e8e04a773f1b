"""Publishes a running server to the user's other commands: a registry entry and a control socket."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

from launcher.app.serving.session_control import SessionControl
from launcher.base.errors import LauncherError
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import api_model_name
from launcher.engine.server.registry import Registration, ServedModel

_CHECK_PERIOD_S = 2.0
"""Seconds between two checks that the registry entry and the control socket still exist."""
_CLOSE_TIMEOUT_S = 5.0
"""Seconds to wait for a check in progress, which a slow disk may delay."""


class PublishedServer:
    """Registry entry and control socket of a server, until `withdraw`."""

    def __init__(self, registration: Registration, control: SessionControl) -> None:
        self.registration = registration
        self._control = control
        control.entry_fields = self._entry_fields
        self._withdrawn = asyncio.Event()
        self._watch_task = asyncio.create_task(self._watch_entry())

    @classmethod
    async def publish(
        cls, control: SessionControl, port: int | None, options: ServeOptions, *, shared: bool
    ) -> tuple[Endpoint, Self]:
        """Claim an address (see registry.register_server), publish the server, and listen.

        If cancelled, nothing stays published.
        """
        registering = asyncio.ensure_future(
            asyncio.to_thread(
                registry.register_server,
                port,
                ServedModel(model=api_model_name(options), engine=engine_name(options), draft=options.draft),
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
        return endpoint, cls(registration, control)

    def update_models(self, models: Sequence[ServedModel]) -> None:
        """Update the models, the one that the server was started with first. Its findings end with its state."""
        entry = self.registration.entry
        if tuple(models) != entry.models:
            health = entry.health if models[0].state == entry.first.state else ()
            self.registration.update(models=tuple(models), health=health)

    async def withdraw(self) -> None:
        """Remove the registry entry, and close the control socket unless an owner needs it."""
        self._withdrawn.set()
        await asyncio.wait([self._watch_task], timeout=_CLOSE_TIMEOUT_S)
        await asyncio.to_thread(self.registration.remove)
        await self._control.end_server()

    async def _watch_entry(self) -> None:
        """Open the control socket, and again whenever that failed or the socket or registry entry has been deleted."""
        await self._open_socket()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_PERIOD_S):
                    await self._withdrawn.wait()
            if self._withdrawn.is_set():
                return
            if await asyncio.to_thread(self._must_open_socket):
                await self._open_socket()

    async def _open_socket(self) -> None:
        """Open the control socket and publish it. Until that succeeds, other programs can only send signals."""
        path = token = None
        with suppress(OSError, LauncherError):
            address = self._control.address
            if address is None or not await asyncio.to_thread(self._control.can_be_reached):
                address = await self._control.listen(f"control-{self.registration.entry.port}")
            path, token = address.path, address.token
        if path != self.registration.entry.control or self.registration.was_deleted():
            self.registration.update(control=path, control_token=token)

    def _must_open_socket(self) -> bool:
        if self.registration.entry.control is None or self.registration.was_deleted():
            return True
        try:
            return not self._control.can_be_reached()
        except OSError:
            return False

    def _entry_fields(self) -> Mapping[str, object]:
        return self.registration.entry.model_dump(mode="json", include=registry.LIVE_FIELDS)


def engine_name(options: ServeOptions) -> str:
    """Return the name of the engine build that options ask for."""
    return BUILT_IN if options.engine is None else options.engine.name
