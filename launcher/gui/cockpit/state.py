"""What the user wants of the server that runs: one state for sliders, the Advanced list and the memory bar."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from launcher.base.errors import BadOption, LauncherError
from launcher.gui.controller import Controller
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.base.action import Action
    from launcher.engine.launch import Launch
    from launcher.engine.sampling import SamplingDefaults
    from launcher.engine.settings import Value
    from launcher.preview import Preview, Previewer

_STALE_S = 10.0
"""So old may the machine's free memory be when a slider is moved; else it is read anew, beside."""


class SettingsState(QObject):
    """The wishes, and what they would cost. Nothing here starts anything but `apply`, and nothing waits."""

    previewed = Signal()
    """`preview` or `problem` has changed."""
    based = Signal()
    """Another server is the basis, or none: `previewer`."""
    sampling_told = Signal()
    """`defaults` or the controller's sampling values have changed."""
    applying_changed = Signal(bool)

    def __init__(self, controller: Controller, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._controller = controller
        self.wishes: dict[str, Value] = {}
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
        self._soon.timeout.connect(self._look)
        controller.launched.connect(self._take_launch)
        controller.applied.connect(self._take_applied)
        controller.fixing.connect(self._take_fix)
        controller.setting_changed.connect(lambda _name, _value: self.sampling_told.emit())
        controller.closed.connect(lambda: self._take_launch(None))  # what is read then comes too late
        if controller.launch is not None:
            self._take_launch(controller.launch)

    @property
    def changes(self) -> int:
        """How many settings differ from what runs."""
        return len(self.preview.changes) if self.preview else 0

    @property
    def extra(self) -> tuple[str, ...]:
        """The arguments of the user's own that are wished for; those that run while what is written is no line."""
        from launcher.engine.extra import split_extra

        running = self.previewer.basis.options.extra if self.previewer else ()
        try:
            return split_extra(str(self.wishes["extra"] or "")) if "extra" in self.wishes else running
        except LauncherError:
            return running

    @property
    def refusal(self) -> str:
        """Why what is wished for cannot be, in the window's words; empty when it can."""
        problem = self.problem
        if problem is None:
            return ""
        flag = problem.facts.get("option")
        if isinstance(problem, BadOption) and "extra" in self.wishes and flag in self.extra:
            return tr("{flag} cannot be given here: the launcher sets it.", flag=flag)
        return str(problem)

    def wish(self, name: str, value: "Value") -> None:
        """Want a setting to have a value; what it would cost is told by `previewed` once events are done."""
        if self.previewer is None or (name in self.wishes and self.wishes[name] == value):
            return
        self.wishes[name] = value
        self._soon.start()
        if time.monotonic() - self._read_s > _STALE_S:
            self._read()

    def revert(self) -> None:
        """Want what runs."""
        self.wishes.clear()
        self._look()

    def apply(self, drain_s: float) -> None:
        """Restart with what is wished for."""
        self._look()
        if self.preview is None or self.problem is not None or not self.preview.changes:
            return
        self.restart({change.name: change.new for change in self.preview.changes}, drain_s)

    def restart(self, changes: "Mapping[str, Value]", drain_s: float) -> None:
        """Restart with some changes, or with none."""
        if not self.applying:
            self._show_applying(applying=True)
            self._controller.apply(changes, drain_s=drain_s)

    def sample_with(self, name: str, value: float | bool | None) -> None:
        """Let the next reply be sampled with a value; None leaves it to the server."""
        kept = {each: given for each, given in self._controller.sampling.items() if each != name}
        self._controller.sampling = kept if value is None else kept | {name: value}
        self.sampling_told.emit()

    def sampled_with(self, name: str) -> float | bool | None:
        """Return what the next reply is sampled with; None where that is left to a server that does not tell."""
        given: float | bool | None = self._controller.sampling.get(name)
        return given if given is not None else self.defaults.values.get(name) if self.defaults else None

    def refresh(self) -> None:
        """Read the machine's memory anew, unless that was just done."""
        if self._launch is not None and time.monotonic() - self._read_s > _STALE_S:
            self._read()

    @Slot()
    def _look(self) -> None:
        self._soon.stop()
        self.problem = None
        try:
            self.preview = self.previewer.preview(self.wishes) if self.previewer else None
        except LauncherError as error:
            self.problem = error
        self.previewed.emit()

    @Slot(object)
    def _take_launch(self, launch: "Launch | None") -> None:
        self._launch = launch
        if launch is None:
            self.previewer = self.preview = self.problem = None
            self.wishes.clear()
            self.based.emit()
            self.previewed.emit()
        else:
            self._read()

    def _read(self) -> None:
        """Read on the core's thread what a preview is made from."""
        launch = self._launch
        if launch is None or self._reading is launch:
            return
        self._reading = launch
        self._read_s = time.monotonic()
        self._controller.bridge.run(
            lambda _tell: _previewer(self._controller, launch),
            done=lambda found: self._take_previewer(launch, *found),
            failed=lambda error: self._fail(launch, error),
        )

    def _take_previewer(self, launch: "Launch", previewer: "Previewer", defaults: "SamplingDefaults | None") -> None:
        self._reading = None
        if launch is not self._launch:
            return
        self._read_s = time.monotonic()
        before = self.previewer
        known = before is not None and before.basis.options == previewer.basis.options
        self.previewer = previewer = before.moved_to(previewer.basis) if before and known else previewer
        if defaults is not None:
            self.defaults = defaults
        self.based.emit()
        self.sampling_told.emit()
        self._look()
        if self.preview is not None and self.problem is None:  # what is so already is no wish any more
            self.wishes = {change.name: change.new for change in self.preview.changes}
        if not known:
            self._controller.bridge.run(lambda _tell: _warm(previewer))

    def _fail(self, launch: "Launch", error: LauncherError) -> None:
        self._reading = None
        if launch is self._launch:
            self.problem = error
            self.previewed.emit()

    @Slot(object)
    def _take_applied(self, error: LauncherError | None) -> None:
        self._failed = error is not None
        self._show_applying(applying=False)

    @Slot(object)
    def _take_fix(self, action: "Action") -> None:
        """Wish no more for what failed, where something else is done in its place."""
        from launcher.engine.action import changes_settings

        if self._failed and changes_settings(action):
            self._failed = False
            self.revert()

    def _show_applying(self, *, applying: bool) -> None:
        self.applying = applying
        self.applying_changed.emit(applying)


async def _previewer(controller: Controller, launch: "Launch") -> "tuple[Previewer, SamplingDefaults | None]":
    """Look at the machine and ask the server; on the core's thread."""
    from launcher.engine.sampling import sampling_defaults
    from launcher.preview import Previewer
    from launcher.preview_basis import basis_of

    session, pid, log, defaults = controller.session, None, [], None
    try:
        supervisor = session.supervisor if session else None
        if supervisor is not None:
            pid, log = supervisor.engine_pid, supervisor.log.last()
            defaults = await sampling_defaults(supervisor.client)
    except LauncherError:
        pass  # it has just been stopped
    return Previewer(await basis_of(launch, engine_pid=pid, log=log)), defaults


async def _warm(previewer: "Previewer") -> None:
    """Estimate what sliders reach first, and let others run between."""
    import asyncio
    from contextlib import suppress

    with suppress(LauncherError):  # a step that cannot be is said when it is chosen
        for _ in previewer.warm():
            await asyncio.sleep(0)
