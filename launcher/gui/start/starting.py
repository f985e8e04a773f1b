"""Between the core's first start and the window's own server: who serves is the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal, Slot

from launcher.engine.state import State

if TYPE_CHECKING:
    from launcher.app import Reply
    from launcher.base.errors import LauncherError
    from launcher.engine.client import ChatRequest
    from launcher.engine.launch import Launch, ServeOptions
    from launcher.engine.settings import Value
    from launcher.engine.state import Status
    from launcher.first_checks import Aim
    from launcher.first_start import Ask, Hear
    from launcher.gui.controller import Controller
    from launcher.gui.viewmodel import View


@dataclass(frozen=True, slots=True)
class ServeAsked:
    """The core asks for a server: `hear` each status, then `ready` with its address or `failed`; from any thread."""

    model: str
    options: ServeOptions
    chosen: Mapping[str, Value]
    hear: Callable[[Status], object]
    ready: Callable[[str], object]
    failed: Callable[[LauncherError], object]


async def run_first_start(aim: Aim, tell: Callable[[object], object]) -> Reply:
    """Do all steps of a first start on the core's thread; tells StepTold, and ServeAsked when it is time to serve."""
    from launcher import app
    from launcher.first_start import chosen_by, first_start

    loop = asyncio.get_running_loop()

    async def serve(options: ServeOptions, hear: Hear) -> Ask:
        ready: asyncio.Future[str] = loop.create_future()

        def settle(settling: Callable[[], object]) -> None:
            loop.call_soon_threadsafe(lambda: None if ready.done() else settling())

        chosen = await asyncio.to_thread(chosen_by, aim, options.model)
        tell(
            ServeAsked(
                aim.model,
                options,
                chosen,
                lambda status: loop.call_soon_threadsafe(hear, status),
                lambda url: settle(lambda: ready.set_result(url)),
                lambda error: settle(lambda: ready.set_exception(error)),
            )
        )
        url = await ready

        async def ask(request: ChatRequest) -> Reply:
            return await app.chat(request, url=url)

        return ask

    return await first_start(aim, serve, tell)


class Server(QObject):
    """Serves what is asked by the controller, and passes on what becomes of it; one at a time."""

    stopped = Signal()
    """The server was stopped before it was ready."""

    def __init__(self, controller: Controller, parent: QObject) -> None:
        super().__init__(parent)
        self._controller = controller
        self._asked: ServeAsked | None = None
        self._last: Status | None = None
        controller.view_changed.connect(self._follow)
        controller.launched.connect(self._launched)
        controller.refused.connect(self._refused)

    def serve(self, asked: ServeAsked) -> None:
        """Begin to serve."""
        self._asked, self._last = asked, None
        self._controller.start(asked.model, options=asked.options, chosen=asked.chosen)

    def give_up(self) -> None:
        """Stop what is being started, also when it has hardly begun; nothing happens when nothing is."""
        asked, self._asked = self._asked, None
        if asked is not None:
            self._controller.stop()

    @Slot(object)
    def _follow(self, _view: View) -> None:
        asked, inputs = self._asked, self._controller.inputs
        if asked is None:
            return
        status = inputs.status
        if status != self._last:
            begun, self._last = self._last is not None, status
            if begun and status.state is State.STOPPED:
                self._asked = None
                self.stopped.emit()
                return
            asked.hear(status)
        if status.state is State.FAILED and status.error is not None:
            self._refused(status.error)

    @Slot(object)
    def _refused(self, error: LauncherError) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.failed(error)

    @Slot(object)
    def _launched(self, launch: Launch | None) -> None:
        asked = self._asked
        if asked is not None and launch is not None:
            self._asked = None
            asked.ready(f"http://{self._controller.inputs.address}")
