"""What the Start page asks of the core, one thing of a kind at a time; a newer question takes an older one's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from launcher.base.errors import LauncherError, Superseded
from launcher.first_steps import StepTold
from launcher.gui.start import looking
from launcher.gui.start.starting import ServeAsked, Server, run_first_start

if TYPE_CHECKING:
    from launcher.app import Reply
    from launcher.first_checks import Survey
    from launcher.gui.controller import Controller
    from launcher.gui.start.looking import Computer, Found, Question
    from launcher.models.plan import Plan
    from launcher.runtime import Handle


class Flow(QObject):
    """Looks, surveys, asks and starts. All signals come on the GUI's thread."""

    looked_at = Signal(object)
    """Looking: what is looked at now"""
    found = Signal(object)
    """Found"""
    surveyed = Signal(object)
    """tuple[StepTold, ...]: the steps of what is chosen, as they are before anything is begun"""
    needs_network = Signal(bool)
    stepped = Signal(object)
    """StepTold"""
    started = Signal()
    ended = Signal(object)
    """Reply: the first token came"""
    paused = Signal()
    failed = Signal(object)
    """LauncherError: a step failed, or looking did"""
    answered = Signal(object)
    """Answer, or the LauncherError that says why an engine could not be asked"""

    def __init__(self, controller: Controller, parent: QObject) -> None:
        super().__init__(parent)
        self._bridge = controller.bridge
        self._server = Server(controller, self)
        self._server.stopped.connect(self.pause)
        self._computer: Computer | None = None
        self._looking: Handle[None] | None = None
        self._surveying: Handle[None] | None = None
        self._asking: Handle[None] | None = None
        self._starting: Handle[None] | None = None

    @property
    def running(self) -> bool:
        """Whether a first start is under way."""
        return self._starting is not None

    def look(self, question: Question, *, again: bool = False) -> None:
        """Read the computer, if it was not read yet or `again`, and plan; `found` tells."""
        if self._looking is not None:
            self._looking.cancel()
        known = None if again else self._computer
        self._looking = self._bridge.run(
            lambda tell: looking.look(question, tell, known),
            done=self._take,
            failed=self.failed.emit,
            told=self.looked_at.emit,
        )

    def survey(self, plan: Plan | None) -> None:
        """Look at what is here already of a plan, or of the demo (None)."""
        if self._surveying is not None:
            self._surveying.cancel()
        self._surveying = self._bridge.run(
            lambda _tell: looking.look_for(plan), done=self._take_survey, failed=self.failed.emit
        )

    def ask(self, plan: Plan) -> None:
        """Ask an engine what a plan takes; `answered` tells."""
        if self._asking is not None:
            self._asking.cancel()
        self._asking = self._bridge.run(
            lambda _tell: looking.ask_engine(plan), done=self.answered.emit, failed=self.answered.emit
        )

    def start(self, plan: Plan | None, *, kept: bool = False) -> None:
        """Do all steps of a plan, or of the demo (None); with `kept` by the user's own settings for its model."""
        if self.running:
            return

        async def work(tell: object) -> Reply:
            from launcher.engine.demo import DEMO
            from launcher.first_checks import Aim, aim_of

            aim = aim_of(plan, kept=kept) if plan is not None else Aim(DEMO)
            return await run_first_start(aim, tell)  # type: ignore[arg-type]

        self._starting = self._bridge.run(
            work, done=self._end, failed=self._fail, told=self._tell, cancelled=self._pause
        )
        self.started.emit()

    def pause(self) -> None:
        """Stop where it is; what has arrived is kept."""
        if self._starting is not None:
            self._starting.cancel()

    def _take(self, found: Found) -> None:
        self._looking = None
        self._computer = found.computer
        self.found.emit(found)

    def _take_survey(self, survey: Survey) -> None:
        from launcher.first_start import steps_of

        self._surveying = None
        self.needs_network.emit(survey.needs_network)
        self.surveyed.emit(steps_of(survey))

    def _tell(self, told: object) -> None:
        if isinstance(told, ServeAsked):
            if self.running:
                self._server.serve(told)
        elif isinstance(told, StepTold):
            self.stepped.emit(told)

    def _end(self, reply: Reply) -> None:
        self._starting = None
        self.ended.emit(reply)

    def _pause(self) -> None:
        self._starting = None
        self._server.give_up()
        self.paused.emit()

    def _fail(self, error: LauncherError) -> None:
        self._starting = None
        if isinstance(error, Superseded):
            self.paused.emit()
        else:
            self.failed.emit(error)
