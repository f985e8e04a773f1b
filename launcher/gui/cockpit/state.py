"""Requested settings of the running server: one state for the sliders, the Advanced list and the memory bar."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from launcher.base.errors import BadOption, LauncherError
from launcher.gui.controller import Controller
from launcher.gui.late import engine_client, engine_settings, fix_actions, previews, tuned_match
from launcher.gui.translation import tr

if TYPE_CHECKING:
    from launcher.app.planning.preview import Preview, Previewer
    from launcher.base.action import Action
    from launcher.engine.server.client import SamplingDefaults
    from launcher.engine.server.launch import Launch
    from launcher.models.server_settings import Value
    from launcher.tuning.tuned_settings import TunedSettings

_STALE_S = 10.0
"""Age in seconds after which the machine's free memory is read again when a slider is moved."""


class SettingsState(QObject):
    """The requested settings and their preview. Only `apply_changes` and `restart_server` change the server."""

    previewed = Signal()
    """`preview` or `problem` has changed."""
    previewer_changed = Signal()
    """`previewer` has changed: it is for another server, or there is none."""
    sampling_changed = Signal()
    """`defaults` or the controller's sampling values have changed."""
    applying_changed = Signal(bool)

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self.requested: dict[str, Value] = {}
        self.previewer: Previewer | None = None
        self.preview: Preview | None = None
        self.problem: LauncherError | None = None
        self.tuned: TunedSettings | None = None
        """This machine's tuned settings for the running model."""
        self.defaults: SamplingDefaults | None = None
        self.applying = False
        """Whether a restart with changes is in progress."""
        self._apply_failed = False
        self._launch: Launch | None = None
        self._basis_read_s = 0.0
        """Time at which the last reading of the machine began or ended, on the monotonic clock."""
        self._reading_launch: Launch | None = None
        """The launch for which a reading is in progress."""
        self._preview_timer = QTimer(self)
        self._preview_timer.setSingleShot(True)
        self._preview_timer.setInterval(0)
        self._preview_timer.timeout.connect(self._update_preview)
        controller.launched.connect(self._handle_launch)
        controller.applied.connect(self._handle_applied)
        controller.tuned_saved.connect(self._read_basis)
        controller.fixing.connect(self._handle_fix)
        controller.sampling_changed.connect(self.sampling_changed)
        controller.closed.connect(self._forget_launch)  # so that results of pending reads are ignored
        if controller.launch is not None:
            self._handle_launch(controller.launch)

    @property
    def change_count(self) -> int:
        """Number of settings that differ from the running ones."""
        return self.preview.change_count if self.preview else 0

    @property
    def extra(self) -> tuple[str, ...]:
        """The requested extra arguments; the running ones while the text cannot be parsed."""
        running = self.previewer.basis.options.extra if self.previewer else ()
        try:
            return (
                engine_settings.split_extra(str(self.requested["extra"] or ""))
                if "extra" in self.requested
                else running
            )
        except LauncherError:
            return running

    @property
    def problem_text(self) -> str:
        """Text of `problem` for display: why the requested settings are invalid. Empty if they are valid."""
        problem = self.problem
        if problem is None:
            return ""
        flag = problem.facts.get("option")
        if isinstance(problem, BadOption) and "extra" in self.requested and flag in self.extra:
            return tr("{flag} cannot be used here because the launcher sets it.", flag=flag)
        return str(problem)

    def request_value(self, name: str, value: "Value") -> None:
        """Request a value for a setting. `previewed` is emitted once pending events are handled."""
        self.request_changes({name: value})

    def request_changes(self, changes: "Mapping[str, Value]") -> None:
        """Request values for some settings. Other requests stay."""
        if self.previewer is None or changes.items() <= self.requested.items():
            return
        self.requested |= changes
        self._preview_timer.start()
        if time.monotonic() - self._basis_read_s > _STALE_S:
            self._read_basis()

    def request_values(self, values: "Mapping[str, Value]") -> None:
        """Request these values, and the running ones for all other settings."""
        if self.previewer is not None:
            self.requested = dict(values)
            self._update_preview()
            self.refresh_memory()

    def revert_changes(self) -> None:
        """Return to the running settings."""
        self.requested.clear()
        self._update_preview()

    def apply_changes(self, drain_s: float) -> None:
        """Restart the server with the requested settings."""
        self._update_preview()
        if self.preview is None or self.problem is not None or not self.preview.changes:
            return
        self.restart_server({change.name: change.new for change in self.preview.changes}, drain_s)

    def restart_server(self, changes: "Mapping[str, Value]", drain_s: float) -> None:
        """Restart with some changes, or with none."""
        if not self.applying:
            self._set_applying(applying=True)
            self._controller.apply_settings(changes, drain_s=drain_s)

    def set_sampling_value(self, name: str, value: float | bool | None) -> None:
        """Set a sampling value for the next request. None leaves it to the server."""
        self._controller.set_sampling_value(name, value)

    def sampling_value(self, name: str) -> float | bool | None:
        """Return a sampling value of the next request, or None if the server decides and does not report it."""
        value: float | bool | None = self._controller.sampling.get(name)
        if value is None and self.defaults is not None:
            return self.defaults.values.get(name)
        return value

    def refresh_memory(self) -> None:
        """Read the machine's memory again, unless that was just done."""
        if self._launch is not None and time.monotonic() - self._basis_read_s > _STALE_S:
            self._read_basis()

    @Slot()
    def _update_preview(self) -> None:
        self._preview_timer.stop()
        self.problem = None
        try:
            self.preview = self.previewer.preview(self.requested) if self.previewer else None
        except LauncherError as error:
            self.problem = error
        self.previewed.emit()

    @Slot()
    def _forget_launch(self) -> None:
        self._handle_launch(None)

    @Slot(object)
    def _handle_launch(self, launch: "Launch | None") -> None:
        before, self._launch = self._launch, launch
        if launch is not None and before is not None and launch.options.model != before.options.model:
            self.requested.clear()  # values for the other model
        if launch is None:
            self.previewer = self.preview = self.problem = self.tuned = None
            self.requested.clear()
            self.previewer_changed.emit()
            self.previewed.emit()
        else:
            self._read_basis()

    @Slot()
    def _read_basis(self) -> None:
        """Read the machine and the running settings, from which previews are made, on the core's thread."""
        launch = self._launch
        if launch is None or self._reading_launch is launch:
            return
        self._reading_launch = launch
        self._basis_read_s = time.monotonic()
        self._controller.bridge.run(
            _make_previewer,
            self._controller,
            launch,
            done=lambda result: self._handle_previewer(launch, *result),
            failed=lambda error: self._handle_error(launch, error),
        )

    def _handle_previewer(
        self,
        launch: "Launch",
        previewer: "Previewer",
        defaults: "SamplingDefaults | None",
        tuned: "TunedSettings | None",
    ) -> None:
        self._reading_launch = None
        if launch is not self._launch:
            return
        self.tuned = tuned
        self._basis_read_s = time.monotonic()
        before = self.previewer
        same_settings = before is not None and before.basis.options == previewer.basis.options
        if before is not None and same_settings:  # keep its estimates
            previewer = before.with_basis(previewer.basis)
        self.previewer = previewer
        if defaults is not None:
            self.defaults = defaults
        self.previewer_changed.emit()
        self.sampling_changed.emit()
        self._update_preview()
        if self.preview is not None and self.problem is None:  # drop requests for values that run already
            self.requested = {change.name: change.new for change in self.preview.changes}
        if not same_settings:
            self._controller.bridge.run(_warm_estimates, previewer)

    def _handle_error(self, launch: "Launch", error: LauncherError) -> None:
        self._reading_launch = None
        if launch is self._launch:
            self.problem = error
            self.previewed.emit()

    @Slot(object)
    def _handle_applied(self, error: LauncherError | None) -> None:
        self._apply_failed = error is not None
        self._set_applying(applying=False)

    @Slot(object)
    def _handle_fix(self, action: "Action") -> None:
        """Discard the changes of a failed apply when a fix changes the settings instead."""
        if self._apply_failed and fix_actions.changes_settings(action):
            self._apply_failed = False
            self.revert_changes()

    def _set_applying(self, *, applying: bool) -> None:
        self.applying = applying
        self.applying_changed.emit(applying)


async def _make_previewer(
    controller: Controller, launch: "Launch"
) -> "tuple[Previewer, SamplingDefaults | None, TunedSettings | None]":
    """Read the machine's state, the server's sampling defaults and tuned settings, and preview the running settings."""
    pid, log, defaults = None, [], None
    with suppress(LauncherError):  # the server has just been stopped
        if controller.session is not None:
            supervisor = controller.session.supervisor
            pid, log = supervisor.engine_pid, supervisor.log.last_lines()
            defaults = await engine_client.read_sampling_defaults(supervisor.client)
    previewer = previews.Previewer(await previews.read_basis(launch, engine_pid=pid, log=log))
    with suppress(LauncherError):  # reported when the window makes the same preview
        previewer.preview({})  # the first takes 10 ms, in which the window would not paint
    return previewer, defaults, await asyncio.to_thread(tuned_match.find_settings_for_launch, launch)


async def _warm_estimates(previewer: "Previewer") -> None:
    """Estimate the values that sliders reach first. Yields to other tasks between them."""
    with suppress(LauncherError):  # an impossible step is reported when it is chosen
        for _ in previewer.fill_cache():
            await asyncio.sleep(0)
