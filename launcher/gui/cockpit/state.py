"""Requested settings of the running server: one state for the sliders, the Advanced list and the memory bar."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from launcher.base.errors import BadOption, LauncherError
from launcher.gui.controller import Controller
from launcher.gui.translation import tr

if TYPE_CHECKING:
    from launcher.app.preview import Preview, Previewer
    from launcher.base.action import Action
    from launcher.engine.server.launch import Launch
    from launcher.engine.server.sampling import SamplingDefaults
    from launcher.models.server_settings import Value

_STALE_S = 10.0
"""Age in seconds after which the machine's free memory is read again when a slider is moved."""


class SettingsState(QObject):
    """The requested settings and their preview. Only `apply` and `restart` start anything; nothing blocks."""

    previewed = Signal()
    """`preview` or `problem` has changed."""
    based = Signal()
    """`previewer` has changed: it is based on another server, or there is none."""
    sampling_told = Signal()
    """`defaults` or the controller's sampling values have changed."""
    applying_changed = Signal(bool)

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self.requested: dict[str, Value] = {}
        self.previewer: Previewer | None = None
        self.preview: Preview | None = None
        self.problem: LauncherError | None = None
        self.defaults: SamplingDefaults | None = None
        self.applying = self._failed = False
        self._launch: Launch | None = None
        self._read_s = 0.0
        self._reading: Launch | None = None
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.setInterval(0)
        self._soon.timeout.connect(self._update_preview)
        controller.launched.connect(self._handle_launch)
        controller.applied.connect(self._handle_applied)
        controller.fixing.connect(self._handle_fix)
        controller.setting_changed.connect(lambda _name, _value: self.sampling_told.emit())
        controller.closed.connect(lambda: self._handle_launch(None))  # results of pending reads come too late then
        if controller.launch is not None:
            self._handle_launch(controller.launch)

    @property
    def changes(self) -> int:
        """Number of settings that differ from the running ones."""
        return len(self.preview.changes) if self.preview else 0

    @property
    def extra(self) -> tuple[str, ...]:
        """The requested extra arguments; the running ones while the text cannot be parsed."""
        from launcher.engine.settings import split_extra

        running = self.previewer.basis.options.extra if self.previewer else ()
        try:
            return split_extra(str(self.requested["extra"] or "")) if "extra" in self.requested else running
        except LauncherError:
            return running

    @property
    def refusal(self) -> str:
        """Reason why the requested settings are invalid, for display; empty if they are valid."""
        problem = self.problem
        if problem is None:
            return ""
        flag = problem.facts.get("option")
        if isinstance(problem, BadOption) and "extra" in self.requested and flag in self.extra:
            return tr("{flag} cannot be used here because the launcher sets it.", flag=flag)
        return str(problem)

    def request(self, name: str, value: "Value") -> None:
        """Request a value for a setting. `previewed` is emitted once pending events are handled."""
        if self.previewer is None or (name in self.requested and self.requested[name] == value):
            return
        self.requested[name] = value
        self._soon.start()
        if time.monotonic() - self._read_s > _STALE_S:
            self._read_basis()

    def revert(self) -> None:
        """Return to the running settings."""
        self.requested.clear()
        self._update_preview()

    def apply(self, drain_s: float) -> None:
        """Restart the server with the requested settings."""
        self._update_preview()
        if self.preview is None or self.problem is not None or not self.preview.changes:
            return
        self.restart({change.name: change.new for change in self.preview.changes}, drain_s)

    def restart(self, changes: "Mapping[str, Value]", drain_s: float) -> None:
        """Restart with some changes, or with none."""
        if not self.applying:
            self._show_applying(applying=True)
            self._controller.apply(changes, drain_s=drain_s)

    def set_sampling_value(self, name: str, value: float | bool | None) -> None:
        """Set a sampling value for the next request. None leaves it to the server."""
        kept = {each: given for each, given in self._controller.sampling.items() if each != name}
        self._controller.sampling = kept if value is None else kept | {name: value}
        self.sampling_told.emit()

    def sampling_value(self, name: str) -> float | bool | None:
        """Return a sampling value of the next request, or None if the server decides and does not report it."""
        given: float | bool | None = self._controller.sampling.get(name)
        return given if given is not None else self.defaults.values.get(name) if self.defaults else None

    def refresh(self) -> None:
        """Read the machine's memory again, unless that was just done."""
        if self._launch is not None and time.monotonic() - self._read_s > _STALE_S:
            self._read_basis()

    @Slot()
    def _update_preview(self) -> None:
        self._soon.stop()
        self.problem = None
        try:
            self.preview = self.previewer.preview(self.requested) if self.previewer else None
        except LauncherError as error:
            self.problem = error
        self.previewed.emit()

    @Slot(object)
    def _handle_launch(self, launch: "Launch | None") -> None:
        self._launch = launch
        if launch is None:
            self.previewer = self.preview = self.problem = None
            self.requested.clear()
            self.based.emit()
            self.previewed.emit()
        else:
            self._read_basis()

    def _read_basis(self) -> None:
        """Read the data for a preview on the core's thread."""
        launch = self._launch
        if launch is None or self._reading is launch:
            return
        self._reading = launch
        self._read_s = time.monotonic()
        self._controller.bridge.run(
            lambda _report: _make_previewer(self._controller, launch),
            done=lambda found: self._handle_previewer(launch, *found),
            failed=lambda error: self._handle_error(launch, error),
        )

    def _handle_previewer(self, launch: "Launch", previewer: "Previewer", defaults: "SamplingDefaults | None") -> None:
        self._reading = None
        if launch is not self._launch:
            return
        self._read_s = time.monotonic()
        before = self.previewer
        known = before is not None and before.basis.options == previewer.basis.options
        self.previewer = previewer = before.with_basis(previewer.basis) if before and known else previewer
        if defaults is not None:
            self.defaults = defaults
        self.based.emit()
        self.sampling_told.emit()
        self._update_preview()
        if self.preview is not None and self.problem is None:  # values that run already are no longer requests
            self.requested = {change.name: change.new for change in self.preview.changes}
        if not known:
            self._controller.bridge.run(lambda _report: _warm_estimates(previewer))

    def _handle_error(self, launch: "Launch", error: LauncherError) -> None:
        self._reading = None
        if launch is self._launch:
            self.problem = error
            self.previewed.emit()

    @Slot(object)
    def _handle_applied(self, error: LauncherError | None) -> None:
        self._failed = error is not None
        self._show_applying(applying=False)

    @Slot(object)
    def _handle_fix(self, action: "Action") -> None:
        """Discard failed changes when another fix changes the settings instead."""
        from launcher.engine.diagnosis.actions import changes_settings

        if self._failed and changes_settings(action):
            self._failed = False
            self.revert()

    def _show_applying(self, *, applying: bool) -> None:
        self.applying = applying
        self.applying_changed.emit(applying)


async def _make_previewer(controller: Controller, launch: "Launch") -> "tuple[Previewer, SamplingDefaults | None]":
    """Read the machine's state and the server's sampling defaults, and estimate what runs, on the core's thread."""
    from contextlib import suppress

    from launcher.app.preview import Previewer, read_basis
    from launcher.engine.server.sampling import read_sampling_defaults

    session, pid, log, defaults = controller.session, None, [], None
    try:
        supervisor = session.supervisor if session else None
        if supervisor is not None:
            pid, log = supervisor.engine_pid, supervisor.log.last()
            defaults = await read_sampling_defaults(supervisor.client)
    except LauncherError:
        pass  # it has just been stopped
    previewer = Previewer(await read_basis(launch, engine_pid=pid, log=log))
    with suppress(LauncherError):  # reported when the window asks
        previewer.preview({})  # the first takes 10 ms, in which the window would not paint
    return previewer, defaults


async def _warm_estimates(previewer: "Previewer") -> None:
    """Estimate the values that sliders reach first. Yields to other tasks between them."""
    import asyncio
    from contextlib import suppress

    with suppress(LauncherError):  # an impossible step is reported when it is chosen
        for _ in previewer.fill_cache():
            await asyncio.sleep(0)
