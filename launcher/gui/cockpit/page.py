"""The Cockpit page: sliders, plots, requests, saved chats, chat and live values in layouts; notices above them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer, QUrl, Signal, Slot
from PySide6.QtGui import QAction, QDesktopServices, QGuiApplication, QResizeEvent, QShortcut
from PySide6.QtWidgets import (
    QCheckBox,
    QHBoxLayout,
    QMenu,
    QPlainTextEdit,
    QPushButton,
    QSplitter,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from launcher.base.action import ActionKind
from launcher.base.errors import LauncherError, Superseded
from launcher.base.text import make_visible
from launcher.export.formats import FORMATS, Subject, render_export
from launcher.gui import theme
from launcher.gui.chat.pane import ChatPane, KeptChat
from launcher.gui.cockpit.controls import ControlsPane
from launcher.gui.cockpit.live import LiveColumn
from launcher.gui.cockpit.panes import HidePaneButton, PaneLayout, PaneSplitter, PaneTab
from launcher.gui.cockpit.requests import RequestStrip
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.cockpit.welcome import Welcome
from launcher.gui.controller import Controller
from launcher.gui.labels import ElidedLabel, Label, display_path, set_tooltip
from launcher.gui.late import fix_actions
from launcher.gui.plots.panel import KeptPlots, PlotPanel
from launcher.gui.translation import join_sentences, render, tr
from launcher.gui.viewmodel import View, is_away, state_name
from launcher.gui.widgets import Badge, Banner, Card, MemoryBar, PageHead, ReadAge, Segmented
from launcher.gui.widgets.blocks import make_button, make_caption, open_menu_with

if TYPE_CHECKING:
    from launcher.app.planning.preview import Preview
    from launcher.base.action import Action
    from launcher.engine.server.state import ModelStatus
    from launcher.gui.widgets.blocks import ButtonAction
    from launcher.models.server_settings import Value
    from launcher.monitor.health_event import Finding, FindingCode

# Export of the running setup as text for other tools, shown before it is copied.

_VISIBLE_LINES = 10
"""Lines of an exported text that are visible at once."""


class CopyPanel(Card):
    """The running setup as text of one kind, with or without the API key, and a copy button."""

    copied = Signal(str)
    """Description of what was copied."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Copy as"))
        self._controller = controller
        self._kind: str = "command"
        self._request: tuple[str, bool, str | None] = (self._kind, False, None)
        """The newest request: kind, whether with the API key, and the server's URL."""
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setObjectName("log")
        self.text.setFont(theme.monospace())
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setFixedHeight(theme.px(_VISIBLE_LINES * 17 + 16))  # 17 pixels a line, and the margins
        self.text.setTabChangesFocus(True)
        self.with_key = QCheckBox(tr("with the API key"))
        self.with_key.setToolTip(tr("Anyone who sees the text can then use the server"))
        self.with_key.toggled.connect(lambda _on: self.show_kind(self._kind))
        self._note = Label()
        self._note.setObjectName("secondary")
        self.copy_button = QPushButton(tr("Copy"))
        self.copy_button.setObjectName("primary")
        self.copy_button.setToolTip(tr("Copy this text"))
        self.copy_button.clicked.connect(self._copy)
        close = QPushButton(tr("Close"))
        close.setToolTip(tr("Close (Esc)"))
        close.clicked.connect(self.hide)
        self.head.addWidget(self._note)
        self.body.addWidget(self.text)
        row = QHBoxLayout()
        row.setSpacing(theme.px(theme.GAP))
        row.addWidget(self.copy_button)
        row.addWidget(close)
        row.addWidget(self.with_key)
        row.addStretch()
        self.body.addLayout(row)
        escape = QAction(self)
        escape.setShortcut(Qt.Key.Key_Escape)
        escape.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        escape.triggered.connect(self.hide)
        self.addAction(escape)
        self.hide()

    def make_menu(self, owner: QPushButton) -> QMenu:
        """Return the menu of the button `owner`. Address and key are copied at once, all else is shown first."""
        menu = QMenu(owner)
        menu.addAction(tr("Base URL")).triggered.connect(self.copy_address)
        menu.addAction(tr("API key")).triggered.connect(self.copy_key)
        menu.addSeparator()
        for kind, chosen in FORMATS.items():
            if chosen.label:
                menu.addAction(f"{tr(chosen.label)} ...").triggered.connect(
                    lambda _=False, kind=kind: self.show_kind(kind)
                )
        return menu

    def show_kind(self, kind: "str") -> None:
        """Show the running setup as text of a kind."""
        self._kind = kind
        self._note.setText(tr(FORMATS[kind].label))
        self.text.setAccessibleName(tr(FORMATS[kind].label))
        request = self._request = kind, self.with_key.isChecked(), self._server_url()
        self.text.clear()
        self.copy_button.setEnabled(False)
        self.show()
        self._controller.bridge.run(
            _render_recipe,
            *request,
            done=lambda text: self._show_text(request, text),
            failed=lambda error: self._show_error(request, error),
        )

    def copy_address(self) -> None:
        """Copy the base URL for clients."""
        if url := self._server_url():
            self._copy_text(f"{url}/v1", tr("Base URL copied: {url}", url=f"{url}/v1"))

    def copy_key(self) -> None:
        """Copy the API key without showing it."""
        self._controller.read_api_key(lambda key: self._copy_text(key, tr("API key copied.")))

    def _server_url(self) -> str | None:
        address = self._controller.view.address
        return f"http://{address}" if address else None

    def _show_text(self, request: object, text: str) -> None:
        if request == self._request:  # ignore the text of an earlier request, which may contain the key
            self.text.setPlainText(make_visible(text))
            self.copy_button.setEnabled(True)

    def _show_error(self, request: object, error: LauncherError) -> None:
        if request == self._request:
            self.text.setPlainText(render(error.message))

    def _copy(self) -> None:
        self._copy_text(self.text.toPlainText(), tr("{kind} copied.", kind=tr(FORMATS[self._kind].label)))

    def _copy_text(self, text: str, message: str) -> None:
        QGuiApplication.clipboard().setText(text)
        self.copied.emit(message)


async def _render_recipe(kind: "str", with_key: bool, url: str | None) -> str:
    from launcher.app.models import recipes

    recipe = (await recipes.recipe_of_running(url, backend=None)).recipe
    recipe = recipe if with_key else replace(recipe, api_key=None)
    chosen = FORMATS[kind]
    return render_export(chosen, (recipe,) if chosen.subject is Subject.LIBRARY else recipe)


_MIB = 2**20


class MemoryCard(Card):
    """Memory estimate as a bar with a verdict. It follows the sliders."""

    def __init__(self, state: SettingsState) -> None:
        super().__init__(tr("Memory"))
        self._state = state
        self.badge = Badge()
        self.bar = MemoryBar()
        self._place = ElidedLabel()
        self._place.setObjectName("secondary")
        self._place.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self.head.insertWidget(1, self.badge)
        self._place.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.head.addWidget(self._place, 100)
        self.age = ReadAge()
        self.head.addWidget(self.age)
        side, end = theme.px(theme.GAP_L), theme.px(theme.GAP_M)
        self.body.setContentsMargins(side, end, side, end)
        self.body.setSpacing(theme.px(theme.GAP))
        self.body.addWidget(self.bar)
        state.previewed.connect(self.show_state)
        self.show_state()

    def show_legend(self, *, shows: bool) -> None:
        """Show the legend under the bar, or only as a tooltip."""
        self.bar.show_legend(shows=shows)

    @Slot()
    def show_state(self) -> None:
        """Show the estimate for the requested settings."""
        preview = self._state.preview
        if preview is None or preview.estimate is None or not preview.basis.total_mib:
            self._show_unknown(preview)
            return
        basis, parts = preview.basis, preview.estimate.parts
        shown = (
            ("weights", tr("weights"), parts.weights + parts.caches),
            ("kv", tr("KV"), parts.kv),
            ("state", tr("state"), parts.recurrent),
            ("draft", tr("draft"), parts.draft_kv + parts.draft_compute),
            ("compute", tr("compute"), parts.compute + parts.staging + parts.pool),
            ("driver", tr("driver") if preview.plan_settings.backend != "cpu" else tr("process"), parts.overhead),
            ("vision", tr("vision"), parts.mmproj),
        )
        total, others, margin = (each * _MIB for each in (basis.total_mib, basis.others_mib, basis.margin_mib))
        servers = basis.other_servers_mib * _MIB
        self.bar.show_parts(shown, total, others, margin, servers=servers, needed=preview.estimate.needed_bytes)
        self.age.show_age(basis.read_at)
        self.badge.show_status(preview.status.value if preview.status else "")
        self.badge.setVisible(preview.status is not None)
        place = tr("host memory") if preview.plan_settings.backend == "cpu" else basis.memory_name
        self._place.setText(tr("{place} · {needed:,} MiB needed", place=place, needed=preview.needed_mib))
        set_tooltip(self, _estimate_source_text(preview))

    def _show_unknown(self, preview: "Preview | None") -> None:
        self.badge.hide()
        self._place.setText("")
        self.age.show_age(None)
        if preview is None:
            self.bar.show_unknown(tr("Shown once a model is loaded."))
        else:
            reason = preview.basis.unknown or join_sentences(*map(render, preview.basis.notes))
            self.bar.show_unknown(render(reason) or tr("There is no memory formula for this model."))


def _estimate_source_text(preview: "Preview") -> str:
    """Return a note on the source of the numbers."""
    basis = preview.basis
    exact = preview.estimate is not None and preview.estimate.exact
    lines = [
        tr("Estimated from the header of the model.") if exact else tr("Estimated; some parts are a guess."),
        tr("Memory of other programs is read when this page opens and when a slider moves."),
        tr("The dashed line marks the {mib:,} MiB that should stay free.", mib=basis.margin_mib),
    ]
    return "\n".join([*lines, *basis.notes])


# Notices above the panes: errors and health findings, each with its button.

_BANNER_MEANINGS = {"warning": "attention", "information": "information"}


class NoticeArea(QWidget):
    """Banners above the panes: for an error, an open health finding, a finished action."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.problem_banner, self.done_banner = Banner(), Banner()
        self.findings: dict[FindingCode, Banner] = {}
        self._dismissed: set[FindingCode] = set()
        """Open findings whose banner the user closed."""
        self._apply_error: LauncherError | None = None
        """The error of the last apply, until something else runs."""
        self._shown_error: LauncherError | None = None
        self._closed_error: LauncherError | None = None
        """The error whose banner the user closed last."""
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(theme.px(theme.GAP))
        self._column.addWidget(self.problem_banner)
        self._column.addWidget(self.done_banner)
        self.problem_banner.closed.connect(self._close_error)
        controller.view_changed.connect(self.show_view)
        controller.applied.connect(self.show_applied)
        controller.launched.connect(self._handle_launch)
        controller.health_changed.connect(self.show_health)
        self.show_view(controller.view)
        self.show_health(controller.health)

    @Slot(object)
    def show_view(self, view: View) -> None:
        """Show why the server failed or is being restarted."""
        inputs = self._controller.inputs
        error = inputs.problem or inputs.status.error
        if error is not None and error is not self._closed_error:
            self._show_error(view.problem, error, without_mtp=view.offers_start_without_mtp)
        elif self._apply_error is not None:
            self._show_error(str(self._apply_error), self._apply_error, without_mtp=False)
        else:
            self.problem_banner.clear()
        self._hide_if_empty()

    @Slot(object)
    def show_applied(self, error: LauncherError | None) -> None:
        """Show why new settings were not applied. The earlier ones run again if they can."""
        self._apply_error = None if isinstance(error, Superseded) else error
        self.show_view(self._controller.view)

    @Slot(object)
    def _handle_launch(self, launch: object) -> None:
        """Drop the error of a failed apply once something else runs."""
        if launch is not None and self._apply_error is not None:
            self._apply_error = None
            self.show_view(self._controller.view)

    def show_done(self, text: str) -> None:
        """Show that an action is done."""
        self.done_banner.show_message(text, "good")
        self._hide_if_empty()

    def clear_done(self) -> None:
        """Hide the message about what was done: the user goes on with something else."""
        self.done_banner.clear()
        self._hide_if_empty()

    @Slot(str)
    def show_exported(self, name: str) -> None:
        """Show where a file was written, with a button that opens its folder."""
        folder = QUrl.fromLocalFile(str(Path(name).parent))
        button = tr("Show in folder"), lambda: QDesktopServices.openUrl(folder)
        self.done_banner.show_message(tr("Saved: {path}", path=display_path(name)), "good", [button])
        self._hide_if_empty()

    @Slot(object)
    def show_health(self, findings: "tuple[Finding, ...]") -> None:
        """Show the open health findings. A dismissed one comes back when it is raised again."""
        codes = {finding.code for finding in findings}
        self._dismissed &= codes
        for code in [each for each in self.findings if each not in codes]:
            banner = self.findings.pop(code)
            self._column.removeWidget(banner)
            banner.deleteLater()
        for finding in findings:
            if finding.code in self._dismissed:
                continue
            banner = self.findings.get(finding.code) or self._add_banner(finding.code)
            button = self._make_fix_button(finding.action)
            text = finding.sentence
            if finding.action is not None and button is None:  # only the user can do it, so there is no button
                text = tr("{finding} To do: {action}.", finding=text, action=finding.action.label)
            banner.show_message(text, _BANNER_MEANINGS[finding.level.value], [button] if button else [])
        self._hide_if_empty()

    def _add_banner(self, code: "FindingCode") -> Banner:
        banner = self.findings[code] = Banner()
        banner.closed.connect(partial(self._dismiss, code))
        self._column.addWidget(banner)
        return banner

    def _dismiss(self, code: "FindingCode") -> None:
        self._dismissed.add(code)
        self._hide_if_empty()

    def _close_error(self) -> None:
        self._apply_error, self._closed_error = None, self._shown_error
        self._hide_if_empty()

    def _show_error(self, text: str, error: LauncherError, *, without_mtp: bool) -> None:
        self._shown_error = error
        buttons = [button for action in error.actions if (button := self._make_fix_button(action))]
        if without_mtp and all(action.kind is not ActionKind.DRAFT_OFF for action in error.actions):
            buttons.insert(0, (tr("Start without MTP"), lambda: self._controller.start(draft=0)))
        self.problem_banner.show_message(text, "bad", buttons[:1])

    def _make_fix_button(self, action: "Action | None") -> "ButtonAction | None":
        """Return the button for a suggested fix, or None if only the user can do it."""
        if action is None:
            return None
        pages = {
            ActionKind.OTHER_MODEL: "start",
            ActionKind.OTHER_ENGINE_BUILD: "start",
            ActionKind.DOWNLOAD_AGAIN: "models",
        }
        if fix_actions.restarts_server(action) or "link" in action.parameters:
            return render(action.label), lambda: self._apply_fix(action)
        page = pages.get(action.kind)
        return (render(action.label), lambda: self._controller.show_page(page)) if page else None

    def _apply_fix(self, action: "Action") -> None:
        self._apply_error = None
        self._controller.apply_fix(action)

    def _hide_if_empty(self) -> None:
        """Hide the widget while no banner is shown."""
        banners = (self.problem_banner, self.done_banner, *self.findings.values())
        self.setVisible(any(not each.isHidden() for each in banners))


class ModelsCard(Card):
    """The models at the server's address, where there are several: a row each, with its state and a button."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(tr("Models at this address"))
        self._controller = controller
        self._rows = QVBoxLayout()
        self._rows.setSpacing(theme.px(theme.GAP))
        self.body.addLayout(self._rows)
        self._shown: tuple[ModelStatus, ...] = ()
        self._states: list[Label] = []
        controller.view_changed.connect(self.show_view)
        self.setVisible(False)
        self.show_view(controller.view)

    @Slot(object)
    def show_view(self, view: View) -> None:
        """Show a row per model. The buttons stay while only the state or the progress of a model changes."""
        if view.models == self._shown:
            return
        before, self._shown = self._shown, view.models
        if [(each.name, is_away(each)) for each in before] == [(each.name, is_away(each)) for each in view.models]:
            for label, each in zip(self._states, view.models, strict=True):
                label.setText(state_name(each))
            return
        self._states = []
        while (item := self._rows.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.hide()
                widget.deleteLater()
        for each in view.models:
            self._rows.addWidget(self._make_row(each))
        self.setVisible(bool(view.models))

    def _make_row(self, model: "ModelStatus") -> QWidget:
        row = QWidget()
        layout = QHBoxLayout(row)
        layout.setContentsMargins(0, 0, 0, 0)
        name = ElidedLabel(make_visible(model.name))
        layout.addWidget(name, 1)
        state = Label(state_name(model))
        self._states.append(state)
        layout.addWidget(state)
        if is_away(model):
            button = make_button(tr("Load"), self._controller.start)
            button.setToolTip(tr("Load the model again with the same settings"))
        else:
            button = make_button(tr("Unload"), partial(self._controller.stop_model, model.name))
            button.setToolTip(tr("Unload this model. The others go on"))
        button.setAccessibleName(f"{button.text()} {make_visible(model.name)}")
        layout.addWidget(button)
        return row


_TABS = ("sliders", "plots", "chat")
_PANE_LAYOUTS = {
    "watch": PaneLayout("plots", {"sliders": 272}, tabs=_TABS),
    "adjust": PaneLayout("plots", {"sliders": 352}, tabs=_TABS),
    "chat": PaneLayout(
        "chat", {"chats": 208, "live": 184, "plots": 760}, enough=540, roomy={"plots": 700}, tabs=("live",)
    ),
}
_LEAST_PLOTS_HEIGHT, _TABLE_FROM_HEIGHT, _LINE_FROM_HEIGHT = 300, 700, 440
"""In pixels: least height of the plots, page height from which the table of requests is shown below them, and page
height from which at least a summary of the requests is."""
_REQUESTS_SHARE, _LEAST_REQUESTS, _MOST_REQUESTS = 0.29, 190, 460
"""Share of the page's height that the requests get until the user moves the line above them, and its limits in pixels:
from three rows to ten."""
_NARROW_WIDTH, _LOW_HEIGHT, _TITLE_WIDTH, _TABS_FROM_WIDTH = 360, 560, 260, 480
"""In pixels: page width below which the margins shrink; page height below which legend and subtitle may be left out;
width that title and subtitle need beside the buttons; page width from which hidden panes have tabs."""


@dataclass(frozen=True, slots=True)
class KeptCockpit:
    """State that a new Cockpit takes over: the chat, the plots, and settings that were requested but not applied."""

    chat: KeptChat
    plots: KeptPlots
    requested: "dict[str, Value]"


class CockpitPage(QWidget):
    """The page, built in parts: see PageSpec."""

    def __init__(self, controller: Controller, kept: KeptCockpit | None = None) -> None:
        super().__init__()
        self._controller = controller
        self._kept = kept
        self._hides_subtitle = False
        """Whether there is no room for a subtitle."""
        self._shares_height = True
        """Whether the page, not the user, chooses the heights of plots and requests."""
        self._start_gets_focus = False
        """Whether the user pressed Stop, and the focus goes to Start when that is shown."""
        self._has_stored_chats = False
        """Whether chats were saved in earlier windows."""
        self._is_complete = False
        self._steps = self._build()
        self.build_next_part()

    def build_next_part(self) -> bool:
        """Build the next part of the page. Returns False when there is none left."""
        return next(self._steps, False)

    def _build(self) -> Iterator[bool]:
        controller, kept, self._kept = self._controller, self._kept, None
        self._layout = QVBoxLayout(self)
        self._layout.setSpacing(theme.px(theme.GAP_M))
        self.state = SettingsState(controller, self)
        self.state.requested.update(kept.requested if kept is not None else {})
        self.chat = ChatPane(controller, None if kept is None else kept.chat)
        yield True
        self.plots = PlotPanel(controller, None if kept is None else kept.plots)
        yield True
        self.controls, self.memory = ControlsPane(self.state, controller), MemoryCard(self.state)
        self.live = LiveColumn(controller, self.plots, self.chat, self.state)
        yield True
        self.notices, self.copy_panel = NoticeArea(controller), CopyPanel(controller)
        self.copy_panel.copied.connect(self.notices.show_done)
        self.plots.exported.connect(self.notices.show_exported)
        self.welcome = Welcome(controller)
        self._middle = QStackedWidget()
        self._middle.addWidget(self.welcome)
        self._middle.addWidget(self._make_middle_pane())
        self.panes = PaneSplitter(
            {
                "sliders": (self.controls, 272),
                "chats": (self.chat.chats_column, 208),
                "plots": (self._middle, 300),
                "chat": (self.chat, 300),
                "live": (self.live, 184),
            },
            _PANE_LAYOUTS,
            "chat",
        )
        self._layout.addWidget(self._make_head())
        self._switches_row_below = QHBoxLayout()
        self._switches_row_below.addStretch()
        self._layout.addLayout(self._switches_row_below)
        self._layout.addWidget(self.notices)
        self._layout.addWidget(self.copy_panel)
        self.models = ModelsCard(controller)
        self._layout.addWidget(self.models)
        self._layout.addLayout(self._make_pane_row(), 1)
        QShortcut("Ctrl+Return", self, self.controls.apply_now)
        controller.view_changed.connect(self.show_view)
        controller.launched.connect(self._show_launch)
        controller.chat_requested.connect(self._show_chat)
        self.chat.use_changed.connect(self._show_panes)
        self.panes.fitted.connect(self._show_layout)
        self.state.sampling_changed.connect(self._show_thinking)
        self._is_complete = True
        self._fit_to_size()
        self.show_view(controller.view)
        yield True

    def hand_over(self) -> KeptCockpit:
        """Leave chat, plots and requested settings to the next page. This one must be deleted then."""
        return KeptCockpit(self.chat.hand_over(), self.plots.hand_over(), dict(self.state.requested))

    def on_shown(self) -> None:
        """Read the machine's memory and draw the plots, now that the page is visible."""
        self.state.refresh_memory()
        self.plots.schedule_drawing()
        if self._controller.view.offers_demo:
            self.welcome.request_last_model()
            self.chat.store.enqueue(lambda conversations: bool(conversations.list_all()), self._show_stored_chats)

    def on_hidden(self) -> None:
        """Hide the message about what was done here."""
        self.notices.clear_done()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Fit the page to its size, once all its parts are there."""
        super().resizeEvent(event)
        if self._is_complete:
            self._fit_to_size()

    def _fit_to_size(self) -> None:
        """Choose the margins, whether legend and subtitle are shown, and where the pane switches are."""
        cramped = self.width() < theme.px(_NARROW_WIDTH)
        for tab in self.tabs.values():
            tab.set_allowed(self.width() >= theme.px(_TABS_FROM_WIDTH))
        side, end = theme.px(theme.GAP if cramped else theme.GAP_XL), theme.px(theme.GAP_L)
        self._layout.setContentsMargins(side, end, side, end)
        self._show_layout()
        low, room = self.height() < theme.px(_LOW_HEIGHT), self.width() - 2 * side
        self.memory.show_legend(shows=not low)
        buttons = (self.switches, self._restart_button, self._stop_button, self._copy_as_button)
        needed = sum(each.sizeHint().width() + theme.px(theme.GAP_M) for each in buttons)
        too_narrow = room < needed + theme.px(_TITLE_WIDTH)
        fits_without_subtitle = needed + self.head.title.sizeHint().width() <= room
        self._hides_subtitle = low and too_narrow and fits_without_subtitle
        self._show_texts(self._controller.view)
        below = too_narrow and not self._hides_subtitle
        row = self._switches_row_below if below else self._switches_row
        if row.indexOf(self.switches) < 0:
            row.addWidget(self.switches)
        self._switches_holder.setHidden(below)

    @Slot(object)
    def show_view(self, view: View) -> None:
        """Update the controls."""
        self._show_texts(view)
        running = not (view.can_start or view.offers_demo)
        if not view.can_stop and self._has_focus(self._stop_button):
            self._start_gets_focus = True
        self._stop_button.setVisible(running or view.can_stop)
        self._stop_button.setText(tr("Stop all") if view.models else tr("Stop"))
        self._stop_button.setEnabled(view.can_stop)
        self._restart_button.setVisible(running)
        self._restart_button.setEnabled(self._controller.launch is not None and view.can_stop)
        self._copy_as_button.setEnabled(bool(view.address))
        self._middle.setCurrentIndex(0 if view.offers_demo else 1)
        self._show_panes()
        if self._start_gets_focus and view.can_start:
            self._start_gets_focus = False
            if self._has_focus(self):
                (self.welcome.buttons[0] if self._start_button.isHidden() else self._start_button).setFocus()

    def _has_focus(self, widget: QWidget) -> bool:
        """Return whether a widget has the focus within its window, which need not be the active one."""
        return self.window().focusWidget() is widget

    @Slot()
    def _show_panes(self) -> None:
        """Show the welcome alone before the first start, or the saved chat that the user opened instead."""
        view = self._controller.view
        welcomes = view.offers_demo and not self.chat.column.turns
        self._start_button.setVisible(view.can_start and not welcomes)  # the welcome has its own
        if not view.offers_demo:
            self.panes.set_state(set(), [])
        elif self.chat.column.turns:
            self.panes.set_state({"sliders", "live", "plots"}, ["chat"])
        else:
            hidden = {"sliders", "live", "chat"} | (set() if self._has_stored_chats else {"chats"})
            self.panes.set_state(hidden, ["plots"])

    def _show_stored_chats(self, has_some: bool) -> None:
        """Show the saved chats beside the welcome if there are any."""
        self._has_stored_chats = has_some
        self._show_panes()

    @Slot(object)
    def _show_launch(self, launch: object) -> None:
        """Focus the prompt when a server is ready."""
        self.show_view(self._controller.view)
        focused = self.focusWidget()
        in_controls = focused is self.controls or (focused is not None and self.controls.isAncestorOf(focused))
        may_focus = self.panes.is_shown("chat") and not in_controls
        if launch is not None and self.isVisible() and may_focus:
            QTimer.singleShot(0, self, self._focus_prompt)

    @Slot()
    def _focus_prompt(self) -> None:
        if self.chat.prompt.isVisible():  # else, as on a page that was left, it would take the keys from what is shown
            self.chat.prompt.setFocus()

    def _show_texts(self, view: View) -> None:
        """Show the subtitle and the note above the memory bar, where there is room for them."""
        self.head.show_subtitle("" if self._hides_subtitle else view.settings)
        note = self._controller.note if self._controller.launch is not None else ""
        self.note.setText(render(note))
        self.note.setVisible(bool(note) and self.memory.bar.has_legend)

    @Slot()
    def _show_thinking(self) -> None:
        """Offer thinking in the chat, unless the model has no switch for it."""
        defaults = self.state.defaults
        self.chat.composer.set_can_think(defaults is None or defaults.thinks is not False)

    @Slot()
    def _show_chat(self) -> None:
        """Show the chat, and focus its prompt."""
        if not self.panes.is_shown("chat"):
            self.panes.choose_layout("chat")
        self.chat.prompt.setFocus()

    @Slot(object)
    def _choose_layout(self, name: object) -> None:
        """Show a layout. That of the chat is chosen to write: its prompt gets the focus."""
        self.notices.clear_done()
        self.panes.choose_layout(str(name))
        if name == "chat" and self.panes.is_shown("chat"):
            self.chat.prompt.setFocus()

    @Slot()
    def _show_layout(self) -> None:
        """Show what belongs to the layout: the memory beside the sliders that change it, requests below the plots."""
        self.switches.set_value(self.panes.layout_name)
        self.memory.setVisible(self.panes.layout_name == "adjust")
        watches = self.panes.layout_name == "watch"
        self.requests.setVisible(watches and self.height() >= theme.px(_LINE_FROM_HEIGHT))
        self.requests.set_has_room(self.height() >= theme.px(_TABLE_FROM_HEIGHT))
        self.plots.setVisible(not (self.requests.shows_all and self.requests.isVisibleTo(self._plots_and_requests)))
        self._share_height()
        self.chat.show_column(self.panes.is_shown("chats"))
        self._hide_chat_button.setVisible(self.panes.layout_name != "chat")

    def _make_pane_row(self) -> QHBoxLayout:
        """Return the panes between the tabs of those that are hidden."""
        titles = {"sliders": tr("Sliders"), "plots": tr("Plots"), "chat": tr("Chat"), "live": tr("Live")}
        right = ("chat", "live")
        self.tabs = {
            name: PaneTab(self.panes, name, title, opens="left" if name in right else "right", parent=self)
            for name, title in titles.items()
        }
        row = QHBoxLayout()
        row.setSpacing(theme.px(theme.GAP_M))
        for name in ("sliders", "plots"):
            row.addWidget(self.tabs[name])
        row.addWidget(self.panes, 1)
        for name in right:
            row.addWidget(self.tabs[name])
        self._hide_chat_button = HidePaneButton(self.panes, "chat", titles["chat"], closes="right")
        self.controls.title_row.addWidget(HidePaneButton(self.panes, "sliders", titles["sliders"], closes="left"))
        self.chat.title_row.addWidget(self._hide_chat_button)
        self.live.title_row.addWidget(HidePaneButton(self.panes, "live", titles["live"], closes="right"))
        return row

    def _make_head(self) -> PageHead:
        self.head = PageHead(tr("Cockpit"), beside=True)
        names = {"watch": tr("Watch"), "adjust": tr("Adjust"), "chat": tr("Chat")}
        self.switches = Segmented(tr("Layout"), list(names.items()), self.panes.layout_name)
        self.switches.changed.connect(self._choose_layout)
        tips = (tr("The plots have the room"), tr("Settings, memory and plots"), tr("The chat has the room"))
        for at, (name, tip) in enumerate(zip(names, tips, strict=True), 1):
            set_tooltip(self.switches.button(name), f"{tip} (Alt+{at})")
            QShortcut(f"Alt+{at}", self, partial(self._choose_layout, name))
        self._switches_holder = QWidget()
        self._switches_row = QHBoxLayout(self._switches_holder)
        self._switches_row.setContentsMargins(0, 0, 0, 0)
        self._switches_row.addWidget(self.switches)
        self.head.add_widget(self._switches_holder)
        self._restart_button = self.head.add_button(tr("Restart"), self._restart_now)
        self._restart_button.setToolTip(
            tr("Restart the server with the same settings. Running replies finish first or are cancelled, as chosen")
        )
        self._stop_button = self.head.add_button(tr("Stop"), self._controller.stop)
        self._stop_button.setToolTip(tr("Unload the model and stop the server"))
        self._start_button = self.head.add_button(tr("Start"), lambda: self._controller.start(), primary=True)
        self._start_button.setToolTip(tr("Load the model again with the same settings"))
        self._copy_as_button = QPushButton(tr("Copy as"))
        self._copy_as_button.setToolTip(
            tr("Copy the server as a command, a script or an entry for other tools, or its address and API key")
        )
        open_menu_with(self._copy_as_button, self.copy_panel.make_menu(self._copy_as_button))
        self.head.add_widget(self._copy_as_button)
        return self.head

    def _restart_now(self) -> None:
        self.state.restart_server({}, self.controls.changes.drain_s)

    @Slot()
    def _keep_heights(self) -> None:
        """Leave the heights of plots and requests to the user from now on."""
        self._shares_height = False

    def _share_height(self) -> None:
        """Give the requests their share of the height."""
        if self._shares_height:
            wanted = round(self.height() * _REQUESTS_SHARE)
            height = min(
                max(wanted, theme.px(_LEAST_REQUESTS)), theme.px(_MOST_REQUESTS), self.requests.maximumHeight()
            )
            self._plots_and_requests.setSizes([max(self._plots_and_requests.height() - height, 1), height])

    def _make_middle_pane(self) -> QWidget:
        column = QVBoxLayout()
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        self.note = make_caption()
        """The controller's remark on the speed of the running server, above the memory bar."""
        self.note.hide()
        self.requests = RequestStrip(self._controller)
        self._plots_and_requests = QSplitter(Qt.Orientation.Vertical)
        self._plots_and_requests.setChildrenCollapsible(False)
        self._plots_and_requests.setHandleWidth(theme.px(theme.GAP_M))
        self.plots.setMinimumHeight(theme.px(_LEAST_PLOTS_HEIGHT))
        self._plots_and_requests.addWidget(self.plots)
        self._plots_and_requests.addWidget(self.requests)
        self._plots_and_requests.setStretchFactor(0, 1)
        self._plots_and_requests.splitterMoved.connect(self._keep_heights)
        self.requests.room_changed.connect(self._show_layout)
        column.addWidget(self._plots_and_requests, 1)
        column.addWidget(self.note)
        column.addWidget(self.memory)
        pane = QWidget()
        pane.setLayout(column)
        return pane
