"""The three plans of the Simple mode: faster, recommended and better quality.

Choosing one with the file that runs requests its settings, as sliders do; one with another file is started by a button.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from PySide6.QtCore import QSignalBlocker, Qt, Slot
from PySide6.QtGui import QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QButtonGroup, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.base.late import asyncio
from launcher.gui import theme
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.cockpit.stop_button import StopButton
from launcher.gui.controller import Controller
from launcher.gui.labels import Label, set_tooltip
from launcher.gui.late import model_stops
from launcher.gui.start.flow import StartFlow
from launcher.gui.start.text import settings_title, step_name, step_state
from launcher.gui.translation import join_sentences, render, tr
from launcher.gui.widgets.blocks import make_button, make_caption
from launcher.gui.widgets.segmented import segment_position

if TYPE_CHECKING:
    from launcher.app.first.first_steps import StepProgress
    from launcher.app.planning.model_stops import ModelStop
    from launcher.app.planning.preview import Preview, Previewer
    from launcher.engine.server.launch import Launch
    from launcher.monitor.reply import Reply
    from launcher.runtime import WorkHandle

_NAMES = ("faster", "recommended", "better-quality")
_GB, _MB = 10**9, 10**6
_STEPS = {Qt.Key.Key_Left: -1, Qt.Key.Key_Up: -1, Qt.Key.Key_Right: 1, Qt.Key.Key_Down: 1}
_FIRST_REASONS = 2
"""Reasons of a plan that its tooltip has."""
_STALE_S = 60.0
"""Seconds after which the plans are made anew when they are shown again."""
_SAME_MEMORY = 0.02
"""Share by which the memory that the server may use can change before the plans are made anew."""


class PlanStops(QWidget):
    """The three choices, a line about the one in question, why others are not offered, and a button that starts one."""

    def __init__(self, state: SettingsState, controller: Controller) -> None:
        super().__init__()
        self._state, self._controller = state, controller
        self.stops: dict[str, ModelStop] = {}
        """The plans by name; empty until they are made."""
        self._problem = ""
        """Why there are no plans, for display."""
        self._key: object = None
        """Model and settings for which the plans were made."""
        self._planned_s, self._planned_mib, self._is_stale = 0.0, 0, False
        """Time at which they were made, on the monotonic clock; the memory for which; and whether that is long ago."""
        self._planning: WorkHandle[None] | None = None
        self._previews: tuple[Previewer | None, dict[str, Preview]] = (None, {})
        """The plans as previews of the running server, made by a previewer."""
        self._pending: str | None = None
        """The chosen plan that waits for its start, because it needs another file."""
        self._attended: str | None = None
        self._last_checked = "recommended"
        """The plan to return to from settings of the user."""
        self._flow: StartFlow | None = None
        self._is_column: bool | None = None
        title = Label(tr("Plan"))
        title.setFont(theme.font(theme.SECTION_PX, bold=True))
        self.state_label = Label()
        self.state_label.setObjectName("secondary")
        self._titles = dict(zip(_NAMES, (tr("Faster"), tr("Recommended"), tr("Better quality")), strict=True))
        self.buttons = {name: StopButton(text) for name, text in self._titles.items()}
        self._group = QButtonGroup(self)
        self._row = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        for name, button in self.buttons.items():
            self._group.addButton(button)
            self._row.addWidget(button, 1)
            # Not `clicked`, which does not come when a screen reader presses the button.
            button.toggled.connect(lambda checked, name=name: self.choose(name) if checked else None)
            button.attended.connect(lambda came, name=name: self._attend(name, came=came))
        self.line = make_caption()
        self.lack_line = make_caption()
        """Why some of the plans cannot be chosen."""
        self.back_button = make_button(tr("Back to plan"), self.return_to_plan)
        """For the head of the pane, because it is there in Advanced, too."""
        self.back_button.setObjectName("quiet")
        self.back_button.hide()
        self.start_button = make_button("", self.start_pending)
        self.pause_button = make_button("", self.pause_start)
        head = QHBoxLayout()
        head.addWidget(title)
        head.addStretch()
        head.addWidget(self.state_label)
        foot = QHBoxLayout()
        foot.setSpacing(theme.px(theme.GAP))
        foot.addWidget(self.start_button)
        foot.addWidget(self.pause_button)
        foot.addStretch()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        column.addLayout(head)
        column.addLayout(self._row)
        column.addWidget(self.line)
        column.addWidget(self.lack_line)
        column.addLayout(foot)
        self.setAccessibleName(tr("Plan"))
        policy = self.sizePolicy()
        policy.setHorizontalPolicy(QSizePolicy.Policy.Ignored)  # otherwise the row could not become narrower again
        self.setSizePolicy(policy)
        state.previewer_changed.connect(self.request_stops)
        state.previewed.connect(self._handle_preview)
        state.applying_changed.connect(self._show_choice)
        controller.view_changed.connect(self._handle_view)
        self.show_state()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 -- Qt's name
        """Make the plans, unless that was just done."""
        super().showEvent(event)
        self.on_shown()

    def on_shown(self) -> None:
        """Make the plans, unless that was just done, and show the choice: the pane is shown, perhaps with Advanced."""
        self._is_stale = time.monotonic() - self._planned_s > _STALE_S
        self.request_stops()
        self._show_choice()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Put the choices beside or below one another, as the width allows."""
        super().resizeEvent(event)
        self._arrange()
        self._reserve_height()

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Move the choice with the arrow keys where Qt, which goes by places, finds no button."""
        step = _STEPS.get(Qt.Key(event.key()))
        names = [name for name, button in self.buttons.items() if button.isEnabled()]
        focused = [at for at, name in enumerate(names) if self.buttons[name].hasFocus()]
        if step is None or not focused:
            super().keyPressEvent(event)
            return
        at = focused[0] + step
        if 0 <= at < len(names):
            self.buttons[names[at]].setFocus(Qt.FocusReason.TabFocusReason)
            self.buttons[names[at]].click()

    @property
    def _is_in_view(self) -> bool:
        """Whether the pane is shown, perhaps with Advanced, where only the button that returns to a plan is."""
        holder = self.parentWidget()
        return holder is not None and holder.isVisible()

    @Slot(object)
    def _handle_view(self, _view: object) -> None:
        if self._is_in_view:
            self.request_stops()
            self._show_choice()

    # What the plans are for, and how they are made.

    @Slot()
    def request_stops(self) -> None:
        """Make the plans for the model that runs, or would be started, unless they are known."""
        if not self._is_in_view:
            return
        launch, previewer, mib = self._controller.launch, self._state.previewer, 0
        if launch is not None:
            if previewer is None or previewer.basis.options is not launch.options:
                return  # the reading of its memory is under way
            mib = previewer.basis.available_mib
            key: object = (launch.options.model, launch.build.name)
        elif self._controller.view.resting:
            key = self._controller.start_name
        else:
            return  # a start or a stop is under way
        is_same = abs(mib - self._planned_mib) <= _SAME_MEMORY * max(mib, self._planned_mib)
        if key == self._key and is_same and not self._is_stale:
            return
        if key != self._key:
            self.stops, self._problem, self._pending = {}, "", None
        self._key, self._planned_mib, self._planned_s, self._is_stale = key, mib, time.monotonic(), False
        if self._planning is not None:
            self._planning.cancel()
            self._planning = None
        if key:
            self._planning = self._controller.bridge.run(
                _plan_stops,
                self._controller,
                launch,
                previewer,
                done=self._handle_stops,
                failed=self._handle_error,
            )
        self.show_state()

    def _handle_stops(self, stops: "tuple[ModelStop, ...]") -> None:
        self._planning = None
        self.stops = {each.stop.name.value: each for each in stops}
        self._previews = (None, {})
        self._problem = "" if stops else tr("There is no memory formula for this model.")
        self.show_state()

    def _handle_error(self, error: LauncherError) -> None:
        self._planning = None
        self._problem = render(error.message)
        self.show_state()

    # Which plan runs or is requested.

    def _preview_stop(self, name: str) -> "Preview | None":
        """Return the running server with a plan's settings; None if it needs another file than the running one."""
        previewer, stop = self._state.previewer, self.stops[name]
        if previewer is None or not stop.is_loaded or stop.stop.lack:
            return None
        if self._previews[0] is not previewer:
            self._previews = (previewer, {})
        found = self._previews[1]
        if name not in found:
            try:
                found[name] = previewer.preview(stop.settings)
            except LauncherError:  # drafts need a file that is not loaded
                return None
        return found[name]

    def _find_requested(self) -> str | None:
        """Return the plan that runs, or that Apply would start; None if the settings are no plan's."""
        requested = self._state.preview
        if requested is None or self._state.problem is not None:
            return None
        changes = {(each.name, each.new) for each in requested.changes}
        for name in self.stops:
            preview = self._preview_stop(name)
            if preview is not None and changes == {(each.name, each.new) for each in preview.changes}:
                return name
        return None

    @property
    def checked(self) -> str | None:
        """The plan that is chosen, or that runs."""
        return self._pending or self._find_requested()

    @property
    def is_starting(self) -> bool:
        """Whether a plan is being downloaded or started."""
        return self._flow is not None and self._flow.running

    @Slot()
    def _handle_preview(self) -> None:
        if self._state.change_count and not self.is_starting:
            self._pending = None  # the user has moved a slider instead
        if self._is_in_view:
            self._show_choice()

    # Clicks of the user.

    def choose(self, name: str) -> None:
        """Request the settings of a plan, or offer to start it if it needs another file."""
        stop = self.stops[name]
        if self._preview_stop(name) is not None:
            self._pending = None
            self._state.request_values(stop.settings)
        else:
            self._state.revert_changes()
            self._pending = name
        self._show_choice()

    def _find_way_back(self) -> str | None:
        """Return the plan that was checked last, else any other, that needs no other file."""
        names = [name for name in (self._last_checked, *_NAMES) if name in self.stops]
        return next((name for name in names if self._preview_stop(name) is not None), None)

    @Slot()
    def return_to_plan(self) -> None:
        """Request the settings of the plan that was checked last."""
        name = self._find_way_back()
        if name is not None:
            self.choose(name)

    @Slot()
    def start_pending(self) -> None:
        """Download what the chosen plan needs, and start it: the steps of the Start page."""
        if self._pending is None or self.is_starting:
            return
        if self._flow is None:
            self._flow = StartFlow(self._controller, self)
            self._flow.started.connect(self._show_choice)
            self._flow.stepped.connect(self._show_step)
            self._flow.paused.connect(self._show_choice)
            self._flow.ended.connect(self._finish_start)
            self._flow.failed.connect(self._show_failure)
        self._flow.start_plan(self.stops[self._pending].stop.plan)

    @Slot()
    def pause_start(self) -> None:
        """Pause the download, or cancel the start."""
        if self._flow is not None:
            self._flow.pause()

    @Slot(object)
    def _finish_start(self, _reply: "Reply | None") -> None:
        self._pending = None
        self._show_choice()

    @Slot(object)
    def _show_failure(self, error: LauncherError) -> None:
        self._controller.show_problem(error)
        self._show_choice()

    @Slot(object)
    def _show_step(self, progress: "StepProgress") -> None:
        if progress.stage.value == "running":
            step, state = step_name(progress.step), step_state(progress)
            self.line.setText(tr("{step}: {state}", step=step, state=state))

    def _attend(self, name: str, *, came: bool) -> None:
        self._attended = name if came and self.buttons[name].isEnabled() else None
        if not self.is_starting:
            self.line.setText(self._describe(self._attended or self.checked))

    # How it is shown.

    def show_state(self) -> None:
        """Show the plans and the choice among them."""
        for name, button in self.buttons.items():
            stop = self.stops.get(name)
            button.show_stop(stop)
            text = self._describe(name) if stop is not None else tr("One of three plans for this model")
            set_tooltip(button, self._explain(name) or text)
            button.setAccessibleDescription(text)
        lacks = self._list_lacks()
        self.lack_line.setText(lacks)
        self.lack_line.setVisible(bool(lacks))
        self._show_choice()
        self._reserve_height()
        self._arrange()

    @Slot()
    def _show_choice(self) -> None:
        """Show which of the plans is chosen, and what can be done."""
        launch, is_starting = self._controller.launch, self.is_starting
        can_choose = not (is_starting or self._state.applying)
        can_choose = can_choose and (launch is not None or self._controller.view.resting)
        checked = self.checked if self.stops else None
        self._group.setExclusive(False)  # an exclusive group would keep one button checked
        for name, button in self.buttons.items():
            with QSignalBlocker(button):
                button.setChecked(name == checked)
            button.setEnabled(can_choose and name in self.stops and not self.stops[name].stop.lack)
        self._group.setExclusive(True)
        is_custom = self._state.preview is not None and bool(self.stops) and checked is None
        self.state_label.setText(tr("Custom") if is_custom else "")
        self._last_checked = checked or self._last_checked
        back = self._find_way_back() if is_custom and can_choose else None
        self.back_button.setVisible(back is not None)
        if back is not None:
            set_tooltip(self.back_button, tr("Request the settings of the plan {plan} again", plan=self._titles[back]))
        pending = self.stops.get(self._pending) if self._pending else None
        is_here = pending is not None and pending.missing_bytes == 0
        self.start_button.setText(tr("Start") if is_here else tr("Download and start"))
        self.start_button.setToolTip(
            tr("Load this plan's file in place of the running model")
            if launch is not None
            else tr("Load this plan's file (llama-server --model)")
        )
        self.start_button.setVisible(pending is not None and not is_starting)
        self.pause_button.setText(tr("Cancel") if is_here else tr("Pause"))
        self.pause_button.setToolTip(
            tr("Stop loading") if is_here else tr("The downloaded part is kept. Resume continues from there")
        )
        self.pause_button.setVisible(is_starting)
        if not is_starting:
            self.line.setText(self._describe(self._attended or checked))

    def _list_lacks(self) -> str:
        """Return a line for each plan that cannot be chosen, with the reason; "" where that is all, or none of them."""
        reasons = {name: stop.stop.lack for name, stop in self.stops.items() if stop.stop.lack}
        if len(reasons) == len(self.stops):
            return ""  # the line about the plans has the reason
        lines = [tr("{plan}: {reason}", plan=self._titles[name], reason=render(each)) for name, each in reasons.items()]
        return "\n".join(lines)

    def _describe(self, name: str | None) -> str:
        """Return what a plan is, and what it would change; None stands for settings that are no plan's."""
        if not self.stops:
            return self._problem or (tr("Making plans ...") if self._planning is not None else "")
        if name is None:
            if all(each.stop.lack for each in self.stops.values()):
                return render(self.stops["recommended"].stop.lack)
            if self._state.preview is None:
                return tr("Choose a plan to start it.")
            tuned = self._state.tuned
            measured = "" if tuned is None else render(tuned.measured_line)
            return join_sentences(tr("Your own settings: none of the three plans."), measured)
        stop = self.stops[name]
        if stop.stop.lack:
            return render(stop.stop.lack)
        plan = stop.stop.plan
        figures, speed = plan.forecast or plan.reading, ""
        if figures is not None:
            speed = tr("{low:,.0f} to {high:,.0f} t/s.", low=figures.low, high=figures.high)
        tuned = self._state.tuned
        if tuned is not None and stop.is_loaded and tuned.agrees_with(stop.settings):
            speed = render(tuned.measured_line)
        settings = tr("{settings}.", settings=settings_title(plan))
        return join_sentences(settings, speed, self._describe_purpose(name), self._describe_file(stop))

    def _explain(self, name: str) -> str:
        """Return the first reasons for a plan; "" for a faster one, whose reasons call its file the user's choice."""
        stop = self.stops.get(name)
        if stop is None or stop.stop.lack or name == "faster":
            return ""
        return "\n".join(map(render, stop.stop.plan.reasons[:_FIRST_REASONS]))

    def _describe_purpose(self, name: str) -> str:
        """Return how a plan differs from the recommended one."""
        plan, recommended = self.stops[name].stop.plan, self.stops["recommended"].stop.plan
        is_same_file = plan.file.quant == recommended.file.quant
        if name == "recommended":
            return tr("The best balance of quality, context and speed.")
        if name == "better-quality":
            return tr("A finer KV cache.") if is_same_file else tr("A better file of the same model.")
        if not is_same_file:
            return tr("Faster, by a smaller file.")
        has_less = plan.setting.context < recommended.setting.context
        return tr("Faster, with a shorter context.") if has_less else tr("Faster than Recommended.")

    def _describe_file(self, stop: "ModelStop") -> str:
        if stop.is_loaded:
            return ""
        if stop.missing_bytes == 0:
            return tr("Loads another file.") if self._controller.launch is not None else ""
        size = stop.missing_bytes
        if size is None:
            return tr("Its file must be downloaded.")
        text = tr("{size:.1f} GB", size=size / _GB) if size >= _GB / 10 else tr("{size:.1f} MB", size=size / _MB)
        return tr("To download: {size}.", size=text)

    def _arrange(self) -> None:
        """Put the choices beside one another if there is room."""
        is_column = self.width() < sum(button.column_width for button in self.buttons.values())
        if is_column == self._is_column:
            return
        self._is_column = is_column
        across, down = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        self._row.setDirection(down if is_column else across)
        self._row.setSpacing(theme.px(theme.GAP_S) if is_column else 0)
        for at, button in enumerate(self.buttons.values()):
            button.set_direction(across if is_column else down)
            button.setProperty("end", "only" if is_column else segment_position(at, len(self.buttons)))
            button.style().unpolish(button)
            button.style().polish(button)

    def _reserve_height(self) -> None:
        """Reserve the height of the longest line, so that nothing moves under the pointer."""
        metrics, width = self.line.fontMetrics(), max(self.width(), 1)
        offered = [name for name, stop in self.stops.items() if not stop.stop.lack]
        texts = [self._describe(name) for name in (*offered, None)]
        wrap = Qt.TextFlag.TextWordWrap
        self.line.setMinimumHeight(max(metrics.boundingRect(0, 0, width, 0, wrap, each).height() for each in texts))


async def _plan_stops(
    controller: Controller, launch: "Launch | None", previewer: "Previewer | None"
) -> "tuple[ModelStop, ...]":
    """Make the plans, and preview them once: the first time takes too long for the window's thread."""
    pid = None
    if launch is not None and controller.session is not None:
        with suppress(LauncherError):  # the server has just been stopped
            pid = controller.session.supervisor.engine_pid
    ending = () if pid is None else (pid,)  # the others go on, as for the preview of a change
    stops = await model_stops.plan_model_stops(controller.start_name, launch, ending=ending)
    for stop in stops:
        if launch is not None and previewer is not None and stop.is_loaded:
            with suppress(LauncherError):  # drafts need a file that is not loaded
                await asyncio.to_thread(previewer.preview, stop.settings)
    return stops
