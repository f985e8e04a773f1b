"""The plan that is to be started: what it is, what it takes, why this one, and the one button that starts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import Label, set_tip
from launcher.gui.sentences import say
from launcher.gui.start import said
from launcher.gui.widgets import Badge, Card, MemoryBar
from launcher.gui.widgets.blocks import make_button
from launcher.gui.words import tr

if TYPE_CHECKING:
    from launcher.gui.start.looking import Answer, Found
    from launcher.kept_plans import KeptPlan
    from launcher.models.plan import Plan

_MIB = 2**20
_LINES = 3


class PlanCard(Card):
    """A plan, or the demo where there is none to recommend."""

    def __init__(
        self,
        start: Callable[[], object],
        pause: Callable[[], object],
        ask: Callable[[], object],
        demo: Callable[[], object],
        other: Callable[[], object],
    ) -> None:
        super().__init__()
        self._kind, self._title, self._needs = Label(), Label(), Label()
        self._kind.setObjectName("secondary")
        self._kind.setFont(theme.font(theme.CAPTION_PX))
        self._title.setFont(theme.font(theme.TITLE_PX, bold=True, tabular=True))
        self._needs.setObjectName("secondary")
        self._needs.setFont(theme.font(theme.BODY_PX, tabular=True))
        for label in (self._title, self._needs):
            label.setWordWrap(True)
            label.setTextInteractionFlags(theme.SELECTABLE)
        self.badge = Badge()
        self.primary: QPushButton = make_button("", start, primary=True)
        self.pause: QPushButton = make_button(tr("Pause"), pause)
        self.pause.setToolTip(tr("What has arrived is kept; Resume goes on from there"))
        self.demo: QPushButton = make_button(tr("Try the demo instead"), demo)
        self.demo.setObjectName("quiet")
        self.demo.setToolTip(tr("A small built-in model: needs neither a GPU nor the network"))
        self.whose = Label()
        self.whose.setWordWrap(True)
        self.other: QPushButton = make_button(tr("Use mine"), other)
        self.other.setObjectName("quiet")
        self.bar = MemoryBar()
        self.ask: QPushButton = make_button(tr("Ask the engine"), ask)
        self.ask.setObjectName("quiet")
        self.ask.setToolTip(tr("Let llama.cpp itself say what this plan takes: only the file's header is read"))
        self._why = Label(tr("Why this one"))
        self._why.setFont(theme.font(theme.BODY_PX, bold=True))
        self._reasons = [Label() for _ in range(_LINES)]
        self._lay_out()

    def _lay_out(self) -> None:
        kind = QHBoxLayout()
        kind.setSpacing(theme.px(theme.GAP))
        kind.addWidget(self._kind)
        kind.addWidget(self.badge)
        kind.addStretch()
        words = QVBoxLayout()
        words.setSpacing(theme.px(theme.GAP_S))
        words.addLayout(kind)
        words.addWidget(self._title)
        words.addWidget(self._needs)
        whose = QHBoxLayout()
        whose.setSpacing(theme.px(theme.GAP))
        whose.addWidget(self.whose, 1)
        whose.addWidget(self.other, alignment=Qt.AlignmentFlag.AlignTop)
        words.addLayout(whose)
        column = QWidget()
        column.setObjectName("plain")
        widest = self.primary.fontMetrics().boundingRect(tr("Download and start")).width() * 1.12
        column.setMinimumWidth(round(widest) + theme.px(30))  # else the words beside it move
        buttons = QVBoxLayout(column)
        buttons.setContentsMargins(0, 0, 0, 0)
        buttons.setSpacing(theme.px(theme.GAP_S))
        buttons.addWidget(self.primary)
        buttons.addWidget(self.pause)
        buttons.addWidget(self.demo)
        buttons.addStretch()
        self._top = QHBoxLayout()
        self._top.setSpacing(theme.px(theme.GAP_XL))
        self._top.addLayout(words, 1)
        self._top.addWidget(column)
        self.body.addLayout(self._top)
        self.body.addWidget(self.bar)
        foot = QHBoxLayout()
        foot.addWidget(self._why)
        foot.addStretch()
        foot.addWidget(self.ask)
        below = QVBoxLayout()
        below.setSpacing(theme.px(theme.GAP_S))
        below.addLayout(foot)
        for label in self._reasons:
            label.setObjectName("secondary")
            label.setWordWrap(True)
            label.setTextInteractionFlags(theme.SELECTABLE)
            below.addWidget(label)
        self._below = QWidget()
        self._below.setObjectName("plain")
        self._below.setLayout(below)
        below.setContentsMargins(0, 0, 0, 0)
        self.body.addWidget(self._below)
        self.setTabOrder(self.primary, self.pause)
        self.setTabOrder(self.pause, self.demo)
        self.setTabOrder(self.demo, self.other)
        self._kind.setAlignment(Qt.AlignmentFlag.AlignVCenter)

    def arrange(self, direction: QBoxLayout.Direction) -> None:
        """Put the buttons beside the words or below them."""
        self._top.setDirection(direction)

    def show_looking(self, what: str) -> None:
        """Say what is looked at before there is a plan."""
        self._show("", "", tr("Looking at this computer"), what, "")
        self.bar.show_unknown(tr("The plan is being made."))
        self.bar.show()
        self._below.hide()

    def show_plan(self, found: Found, plan: Plan, answer: Answer | None, *, recommended: bool) -> None:
        """Show a plan; `recommended` when the user has not chosen another."""
        goal = goal_name(found.question.intent)
        kind = tr("Recommended") if recommended else tr("Chosen by you")
        self._show(
            f"{kind} · {goal}", plan.status.value, said.plan_title(plan), said.needs_of(plan, answer), plan.entry.id
        )
        total, others = said.memory_of(found)
        self._show_whose(found.kept_for(plan), plan)
        self.bar.show_parts(said.parts_of(plan), total, others, plan.margin_mib * _MIB, needed=plan.estimate.needed)
        self.bar.show()
        lines = [say(each) for each in (*plan.reasons[:1], *plan.cautions[:2], *plan.reasons[2:3])][:3] or [""]
        for label, line in zip(self._reasons, [*lines, "", ""], strict=False):
            label.setText(line)
            label.setVisible(bool(line))
        set_tip(self._why, "\n".join(map(say, (*plan.reasons, *plan.cautions))))
        self._below.show()
        asked = answer is not None and answer.plan == plan
        self.ask.setVisible(not asked)

    def show_demo(self, why: str) -> None:
        """Offer the demo, and say what it cannot show."""
        cannot = tr(
            "A small model on the processor: it shows how drafts are made and accepted, not what MTP gains on a GPU,"
            " nor how good a large model's answers are."
        )
        self._show(why, "", tr("Demo model, built in"), cannot, "")
        self.bar.hide()
        self._below.hide()

    def show_served(self, model: str, settings: str, address: str) -> None:
        """Show what runs."""
        self._show(tr("Served now"), "", model, " · ".join(filter(None, (settings, address))), "")
        self.bar.hide()
        self._below.hide()

    def show_asking(self, text: str) -> None:
        """Say beside the button how far the engine's answer is."""
        self.ask.setText(text)
        self.ask.setEnabled(text == tr("Ask the engine"))

    def _show_whose(self, kept: KeptPlan | None, plan: Plan) -> None:
        """Say whose settings they are where the user's own differ from the plan's, with the way to the other."""
        if kept is None:
            return
        mine = kept.with_kept(plan)
        self.whose.setText(said.whose_settings(kept, plan))
        self.whose.show()
        self.other.setText(tr("Use the plan's") if mine else tr("Use mine"))
        self.other.setToolTip(
            tr("Start it as the plan says; yours are kept until then")
            if mine
            else tr("Start it with what you chose for this model the last time")
        )
        self.other.setVisible(kept.mine is not None)
        self.setAccessibleName(f"{self.accessibleName()} {self.whose.text()}")

    def _show(self, kind: str, status: str, title: str, needs: str, tip: str) -> None:
        self.whose.hide()
        self.other.hide()
        self._kind.setText(kind)
        self._kind.setVisible(bool(kind))
        self.badge.show_status(status)
        self.badge.setVisible(bool(status))
        self._title.setText(title)
        self._needs.setText(needs)
        set_tip(self._title, tip)
        self.setAccessibleName(". ".join(filter(None, (kind, status, title, needs))))


def goal_name(intent: str) -> str:
    """Return what matters most, in words."""
    return {
        "balanced": tr("balanced"),
        "long-context": tr("long context"),
        "best-quality": tr("best quality"),
        "as-published": tr("as published"),
    }[intent]
