"""The Agents page: agents, the verdict on the server, what an agent needs and gets, and the check turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Slot
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QHBoxLayout,
    QMenu,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from launcher.gui import theme
from launcher.gui.agents.agent_list import AgentList, AgentRows
from launcher.gui.agents.check_card import CheckCard
from launcher.gui.agents.control import Activity, AgentControl
from launcher.gui.agents.needs_card import NeedsCard
from launcher.gui.agents.session_card import SessionCard
from launcher.gui.agents.text import Fix
from launcher.gui.agents.verdict_card import CheckVerdictCard
from launcher.gui.labels import set_tooltip
from launcher.gui.translation import tr
from launcher.gui.widgets import Card, PageHead
from launcher.gui.widgets.blocks import make_button, make_caption
from launcher.gui.widgets.scrolling import make_scroll_area

if TYPE_CHECKING:
    from launcher.agents.check import CheckVerdict
    from launcher.gui.controller import Controller

_LIST_WIDTH, _LIST_ROOM, _PAIR_ROOM, _PAIR_HEIGHT = 272, 1_000, 790, 480
"""In pixels at 100 %: width of the list, least widths of a page with it and of cards side by side, their height."""
_CRAMPED, _LEAST_HEIGHT = 620, 96


class AgentsPage(QWidget):
    """The page. Nothing is started, installed or sent before the user presses a button."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.control = AgentControl(controller, self)
        self.head = PageHead(tr("Agents"), tr("A coding agent on your own model, in one click"))
        self.check_button: QPushButton = self.head.add_button(tr("Check again"), self._check_again)
        set_tooltip(self.check_button, tr("Send a few short requests to the server, as an agent would"))
        self.copy_menu = QMenu(self)
        for text, make in (
            (tr("The command that starts it"), self._start_command),
            (tr("The command that checks the server"), self._check_command),
            (tr("The command that shows variables and files"), self._print_command),
        ):
            self.copy_menu.addAction(text).triggered.connect(partial(_copy_text_of, make))
        self.copy_button: QPushButton = make_button(tr("Copy as …"), self._open_copy_menu)
        self.head.add_widget(self.copy_button)
        rows = AgentRows(self.control, self)
        self.list = AgentList(rows)
        self.list.chosen.connect(self.control.choose_agent)
        self.verdict = CheckVerdictCard(self.control, self.apply_fix)
        self.needs, self.session, self.check = NeedsCard(), SessionCard(), CheckCard()
        self._lay_out()
        self.control.changed.connect(self._show_state)
        self._show_state()

    def on_shown(self) -> None:
        """Read which agents are installed, and what the chosen one would get."""
        self.control.set_shown(shown=True)

    def on_hidden(self) -> None:
        """Read nothing while hidden."""
        self.control.set_shown(shown=False)

    def _lay_out(self) -> None:
        self._choices = Card(tr("Choose an agent"))
        self._choices.setFixedWidth(theme.px(_LIST_WIDTH))
        self._choices.body.addWidget(self.list, 1)
        line = QFrame()
        line.setObjectName("line")
        line.setFixedHeight(1)
        self._choices.body.addWidget(line)
        self._choices.body.addWidget(
            make_caption(
                tr(
                    "Your own settings of an agent stay as they are. The files for a session are made when it starts"
                    " and deleted when it ends."
                )
            )
        )
        gap = theme.px(theme.GAP_M)
        self._pair = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._pair.setSpacing(gap)
        self._pair.addWidget(self.needs, 1)
        self._pair.addWidget(self.session, 1)
        for card in (self.needs, self.session):
            card.setMaximumHeight(theme.px(_PAIR_HEIGHT))
            card.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
        content = QWidget()
        content.setObjectName("plain")
        cards = QVBoxLayout(content)
        cards.setContentsMargins(0, 0, 0, 0)
        cards.setSpacing(gap)
        cards.addLayout(self._pair, 1)
        cards.addWidget(self.check)
        cards.addStretch()
        area = make_scroll_area(content)
        right = QVBoxLayout()
        right.setSpacing(gap)
        right.addWidget(self.verdict)
        right.addWidget(area, 1)
        body = QHBoxLayout()
        body.setSpacing(theme.px(theme.GAP_L))
        body.addWidget(self._choices)
        body.addLayout(right, 1)
        self._column = QVBoxLayout(self)
        self._column.setSpacing(theme.px(theme.GAP_L))
        self._column.addWidget(self.head)
        self._column.addLayout(body, 1)
        self._arrange()

    def _arrange(self) -> None:
        """Show the list or its combo box, and the cards side by side or stacked, by the width."""
        width = self.width()
        side = theme.px(theme.GAP if width < theme.px(_CRAMPED) else theme.GAP_XL)
        end = theme.px(theme.GAP_L)
        self._column.setContentsMargins(side, end, side, end)
        has_list = width >= theme.px(_LIST_ROOM)
        self._choices.setVisible(has_list)
        self.verdict.agents.setVisible(not has_list)
        room = width - 2 * side - (theme.px(_LIST_WIDTH + theme.GAP_L) if has_list else 0)
        beside = has_list and room >= theme.px(_PAIR_ROOM)
        self._pair.setDirection(QBoxLayout.Direction.LeftToRight if beside else QBoxLayout.Direction.TopToBottom)

    def minimumSizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the size that is needed without the list, which is hidden in a narrow window.

        Cards below the verdict scroll.
        """
        cards = (self.head, self.verdict, self.needs, self.session, self.check)
        width = max(card.minimumSizeHint().width() for card in cards)
        margins = self._column.contentsMargins()
        fixed = self.head.minimumSizeHint().height() + self.verdict.minimumSizeHint().height()
        height = fixed + margins.top() + margins.bottom() + theme.px(theme.GAP_L + theme.GAP_M + _LEAST_HEIGHT)
        return QSize(width + margins.left() + margins.right(), height)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Choose the layout for the width."""
        super().resizeEvent(event)
        self._arrange()

    @Slot()
    def _show_state(self) -> None:
        control = self.control
        agent, session, record = control.agent, control.session, control.record
        self.list.show_choice()
        self.list.setEnabled(not control.is_busy)
        self.check_button.setVisible(control.is_installed and not control.is_busy and control.is_record_fresh)
        self.copy_button.setEnabled(agent is not None)
        is_checking = control.activity is Activity.CHECKING
        verdict = record.verdict if record is not None and not is_checking else None
        requests = verdict.requests if verdict is not None else control.requests
        with_api = agent is not None and agent.api != "chat"
        is_stale = verdict is not None and not control.is_record_fresh
        self.check.show_requests(requests, with_api=with_api, is_dim=is_stale)
        self.needs.show_session(session, _judge_needs(verdict) if verdict is not None and not is_stale else {})
        self.session.show_session(session)

    def apply_fix(self, fix: Fix) -> None:
        """Do what the button of a verdict says."""
        control, agent = self.control, self.control.agent
        match fix:
            case Fix.CHECK | Fix.RESTART:
                control.start_check()
            case Fix.MORE_SLOTS if agent is not None:
                control.change_settings({"slots": agent.slots, "kv_unified": True})
            case Fix.NO_DRAFTS:
                control.change_settings({"draft": 0})
            case Fix.SUGGESTED_PLAN if control.failure or control.reading_error:
                error = control.failure or control.reading_error
                self._controller.show_plan(str(error.facts["suggested"]) if error is not None else "")
            case Fix.PLANS:
                self._controller.show_plans("agents")
            case Fix.SEARCH_AGAIN:
                control.find_agents()
            case Fix.CANCEL:
                control.cancel()

    def _check_again(self) -> None:
        self.verdict.keep_focus()
        self.control.start_check()

    def _open_copy_menu(self) -> None:
        self.copy_menu.popup(self.copy_button.mapToGlobal(self.copy_button.rect().bottomLeft()))

    def _start_command(self) -> str:
        agent = self.control.agent
        return f"mtp-launcher code {agent.name}" if agent is not None else ""

    def _check_command(self) -> str:
        agent = self.control.agent
        return f"mtp-launcher agent-check --agent {agent.name}" if agent is not None else ""

    def _print_command(self) -> str:
        return f"{self._start_command()} --print"


def _copy_text_of(make: Callable[[], str], _checked: bool = False) -> None:
    """Copy the text that `make` returns."""
    QGuiApplication.clipboard().setText(make())


def _judge_needs(verdict: CheckVerdict) -> dict[str, tuple[bool, str]]:
    """Return the needs that a check has judged, by the value of their kind: whether they are met, and a remark."""
    remarks = {
        "no_tool_call": ("model", tr("answers with text when it is to call a tool")),
        "tool_call_as_text": ("model", tr("its tool calls arrive as text")),
        "prompt_read_again": ("prompt cache", tr("the prompt is read again in each turn")),
        "template_refuses": ("template", tr("refuses late system messages")),
    }
    judged = {"model": (True, tr("calls tools"))} if verdict.tool_call else {}
    for fault in verdict.faults:
        if str(fault) in remarks:
            kind, remark = remarks[str(fault)]
            judged[kind] = (False, remark)
    return judged
