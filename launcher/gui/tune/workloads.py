"""What to optimise, and how long to measure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QButtonGroup, QRadioButton, QSizePolicy, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import set_tip
from launcher.gui.words import mark, tr

_HEIGHT, _INSET = 36, 12
BUDGETS_MIN = (2, 3, 5, 10, 15, 20, 30, 45, 60)
"""Minutes that a measurement may take."""
USUAL_BUDGET_MIN = 10


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of work to optimise for. `title` and `about` are English, translated when they are shown."""

    name: str
    title: str
    about: str


WORKLOADS = (
    Workload("code", mark("Code"), mark("Writing and changing programs: long replies, much of them easy to foresee.")),
    Workload("prose", mark("Prose"), mark("Essays and explanations: fewer drafts are accepted than in code.")),
    Workload("reasoning", mark("Reasoning"), mark("Problems that are thought through before the reply.")),
    Workload(
        "extraction", mark("Extraction"), mark("Facts taken from a text, as JSON: short replies, easy to foresee.")
    ),
    Workload("long", mark("Long prompt"), mark("Much to read and little to write: what counts is reading.")),
    Workload("turns", mark("Conversation"), mark("A conversation of several turns.")),
    Workload("mine", mark("My prompts"), mark("Prompts of your own, from a file.")),
    Workload("published", mark("Published run"), mark("The prompt of a published result, to compare with it.")),
)


class _Choice(QRadioButton):
    """A row as wide as the list: its name, and at the right how much of it there is."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self.amount = ""
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the room for both texts."""
        metrics = self.fontMetrics()
        amount = metrics.horizontalAdvance(self.amount) + theme.px(theme.GAP) if self.amount else 0
        return QSize(metrics.horizontalAdvance(self.text()) + amount + 2 * theme.px(_INSET), theme.px(_HEIGHT))

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the room for both texts."""
        return self.sizeHint()

    def hitButton(self, _pos: object) -> bool:  # noqa: N802
        """Be hit anywhere."""
        return True

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint the row; the chosen one has the accent's edge, and a thick one with the focus."""
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            width = 2.0 if self.hasFocus() else 1.0
            edge = "accent" if self.isChecked() or self.hasFocus() else "border"
            painter.setPen(QPen(theme.colour(edge), width))
            painter.setBrush(theme.colour("raised" if self.underMouse() or self.isChecked() else "card"))
            inner = QRectF(self.rect()).adjusted(width / 2, width / 2, -width / 2, -width / 2)
            painter.drawRoundedRect(inner, theme.px(theme.CONTROL_RADIUS), theme.px(theme.CONTROL_RADIUS))
            room = self.rect().adjusted(theme.px(_INSET), 0, -theme.px(_INSET), 0)
            painter.setPen(theme.colour("text"))
            painter.setFont(theme.font(theme.BODY_PX, bold=self.isChecked()))
            painter.drawText(room, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), self.text())
            painter.setPen(theme.colour("secondary"))
            painter.setFont(theme.font(theme.CAPTION_PX, tabular=True))
            painter.drawText(room, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight), self.amount)


class WorkloadList(QWidget):
    """One of the workloads, by mouse and arrows."""

    chosen = Signal(str)

    def __init__(self, workloads: Sequence[Workload] = WORKLOADS) -> None:
        super().__init__()
        self.setAccessibleName(tr("What to optimise"))
        self._group = QButtonGroup(self)
        self.buttons: dict[str, _Choice] = {}
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        for workload in workloads:
            button = self.buttons[workload.name] = _Choice(tr(workload.title))
            set_tip(button, tr(workload.about))
            button.clicked.connect(lambda _checked=False, name=workload.name: self.chosen.emit(name))
            self._group.addButton(button)
            column.addWidget(button)
        next(iter(self.buttons.values())).setChecked(True)

    @property
    def value(self) -> str:
        """The name of the chosen workload."""
        return next(name for name, button in self.buttons.items() if button.isChecked())

    def choose(self, name: str) -> None:
        """Choose without telling."""
        self.buttons[name].setChecked(True)

    def show_amounts(self, amounts: Mapping[str, str]) -> None:
        """Say beside each how much of it there is, such as "6 prompts"; nothing where that is not known."""
        for name, button in self.buttons.items():
            button.amount = amounts.get(name, "")
            button.setAccessibleDescription(button.amount)
            button.updateGeometry()
            button.update()
