"""The Tune page: what to optimise, how long to measure, and what came of it."""

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QScrollArea, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import Label
from launcher.gui.tune.draft_plot import DraftPlot
from launcher.gui.tune.step_card import StepCard
from launcher.gui.tune.table import TrialTable
from launcher.gui.tune.told import Told, TrialRow
from launcher.gui.tune.verdict import VerdictCard
from launcher.gui.tune.workloads import BUDGETS_MIN, USUAL_BUDGET_MIN, WorkloadList
from launcher.gui.widgets import Card, PageHead, SliderField
from launcher.gui.words import ntr, tr

_ASIDE, _STEP, _NARROW, _CRAMPED = 300, 220, 860, 620


class TunePage(QWidget):
    """The frame. Measuring is not in this version, and the button says so."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.workloads = WorkloadList()
        self.budget = SliderField(
            tr("Budget"), BUDGETS_MIN, words=_minutes, tip=tr("A measurement ends when this time is over, or before.")
        )
        self.budget.set_value(USUAL_BUDGET_MIN)
        self.budget.show_hint(tr("the longest that a measurement takes"))
        self.verdict = VerdictCard()
        self.plot = DraftPlot()
        self.step = StepCard()
        self.table = TrialTable()
        head = PageHead(tr("Tune"), tr("Which settings win on this machine, measured."))
        self.measure = head.add_button(tr("Measure"), self._measure, primary=True)
        self.measure.setToolTip(tr("Ask the prompts with each setting in turn, and compare"))
        self._lay_out(head)

    @property
    def command(self) -> str:
        """The command that measures the server that runs, or shows how one is measured."""
        address = self._controller.view.address
        return f"mtp-launcher attach {f'http://{address}' if address else 'URL'} --bench"

    def show_rows(self, rows: Sequence[TrialRow]) -> None:
        """Show the settings that were tried so far."""
        self.table.show_rows(rows)
        self.to_come.setVisible(not rows)

    def _measure(self) -> None:
        self.verdict.show_verdict(
            Told(
                tr("Measuring comes with the next version."),
                detail=tr("`{command}` measures a server today.", command=self.command),
                meaning="information",
                buttons=[(tr("Copy command"), self._copy)],
            )
        )
        self._area.ensureWidgetVisible(self.verdict)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.command)

    def _lay_out(self, head: PageHead) -> None:
        aside = Card(tr("What to optimise"))
        aside.body.addWidget(self.workloads)
        aside.body.addSpacing(theme.px(theme.GAP))
        aside.body.addWidget(self.budget)
        aside.body.addStretch()
        self._aside = aside
        title = Label(tr("Tokens per second by draft length"))
        title.setFont(theme.font(theme.SECTION_PX, bold=True))
        title.setWordWrap(True)
        plot = Card()
        plot.body.addWidget(title)
        plot.body.addWidget(self.plot, 1)
        table = Card()
        table.hang(self.table, self.table.inset)
        sides = table.body.contentsMargins()
        table.body.setContentsMargins(sides.left(), theme.px(theme.GAP), sides.right(), theme.px(theme.GAP))
        self.to_come = Label(tr("Each setting that is tried will have its row here."))
        self.to_come.setObjectName("secondary")
        self.to_come.setWordWrap(True)
        self.to_come.setContentsMargins(self.table.inset, 0, self.table.inset, theme.px(theme.GAP))
        table.body.addWidget(self.to_come)
        table.body.addStretch()
        self._middle = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._middle.setSpacing(theme.px(theme.GAP_L))
        self._middle.addWidget(plot, 1)
        self._middle.addWidget(self.step)
        right = QVBoxLayout()
        right.setSpacing(theme.px(theme.GAP_L))
        right.addWidget(self.verdict)
        right.addLayout(self._middle, 1)
        right.addWidget(table)
        self._columns = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._columns.setContentsMargins(0, 0, 0, 0)
        self._columns.setSpacing(theme.px(theme.GAP_L))
        self._columns.addWidget(aside)
        self._columns.addLayout(right, 1)
        self._inner = QWidget()
        self._inner.setObjectName("plain")
        self._inner.setLayout(self._columns)
        self._area = QScrollArea()
        self._area.setWidgetResizable(True)
        self._area.setWidget(self._inner)
        self._area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._area.setAccessibleName(tr("Tune"))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(*(theme.px(theme.GAP_XL),) * 4)
        layout.setSpacing(theme.px(theme.GAP_L))
        for widget in (head, self._area):
            layout.addWidget(widget)
        self._arrange(self.width())

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put beside each other what has room there."""
        super().resizeEvent(event)
        self._arrange(event.size().width())

    def _arrange(self, width: int) -> None:
        across, down = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        cramped = width < theme.px(_CRAMPED)
        self._columns.setDirection(down if cramped else across)
        self._middle.setDirection(down if width < theme.px(_NARROW) else across)
        wide = 16_777_215
        self._aside.setMaximumWidth(wide if cramped else theme.px(_ASIDE))
        self._aside.setMinimumWidth(0 if cramped else theme.px(min(_ASIDE, max(220, width // 4))))
        self.verdict.stack(down if cramped else across)
        self.step.setMaximumWidth(theme.px(_STEP) if width >= theme.px(_NARROW) else wide)
        self.step.setMinimumWidth(theme.px(_STEP) if width >= theme.px(_NARROW) else 0)


def _minutes(value: object) -> str:
    return ntr("1 minute", "{n} minutes", int(str(value)))
