"""The main window: the rail and the current page."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QCoreApplication, QEvent, QLocale, QMimeData, QSize, Qt, QTime, QTimer, QUrl, Signal, Slot
from PySide6.QtGui import (
    QCloseEvent,
    QDesktopServices,
    QGuiApplication,
    QHideEvent,
    QKeyEvent,
    QKeySequence,
    QPaintEvent,
    QResizeEvent,
    QShortcut,
    QShowEvent,
    QWindowStateChangeEvent,
)
from PySide6.QtWidgets import (
    QApplication,
    QFileDialog,
    QGridLayout,
    QMainWindow,
    QPushButton,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)
from shiboken6 import isValid

from launcher.app import settings
from launcher.app.settings_declared import CLOSE, LANGUAGE, TEXT_SCALE, VALUE_ASK, VALUE_QUIT, VALUE_TRAY
from launcher.app.settings_file import AppSettingValue
from launcher.base.errors import LauncherError
from launcher.base.text import one_line
from launcher.engine.server.state import (
    ADDRESS_CHANGED,
    ENGINE_SLOWER,
    KEPT_REPLACED,
    MAIN_UNLOADED,
    NO_HEAD,
    SERVING,
    Notice,
    ServerState,
)
from launcher.gui import appearance, theme
from launcher.gui.controller import Controller
from launcher.gui.core_events import DrainAnswer
from launcher.gui.late import hub_model
from launcher.gui.pages import PAGES
from launcher.gui.rail import Rail, find_gpus
from launcher.gui.service import DEMO
from launcher.gui.translation import find_locale, ntr, render, tr
from launcher.gui.viewmodel import View
from launcher.gui.widgets.banner import Banner
from launcher.gui.widgets.blocks import ButtonAction
from launcher.gui.widgets.drop_target import DropTarget, dropped_models
from launcher.gui.widgets.focus import FocusKeeper, takes_focus
from launcher.gui.widgets.scrolling import make_scroll_area
from launcher.gui.window_settings import open_window_settings

if TYPE_CHECKING:
    from launcher.engine.server.launch import Launch
    from launcher.gui.tray import Tray


class PageContainer(QWidget):
    """Container of the pages, as large as the current one needs.

    A layout is not used, because a stack's would require the height of the highest of all pages.
    """

    def __init__(self, stack: QStackedWidget) -> None:
        super().__init__()
        self._stack = stack
        stack.setParent(self)
        stack.currentChanged.connect(lambda _: self.updateGeometry())

    def event(self, event: QEvent) -> bool:
        """Recompute the size when the page needs another one."""
        if event.type() == QEvent.Type.LayoutRequest:
            self.updateGeometry()
        return super().event(event)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Give all room to the page."""
        super().resizeEvent(event)
        self._stack.setGeometry(self.rect())
        if event.size().width() != event.oldSize().width():
            self.updateGeometry()

    def sizeHint(self) -> QSize:  # noqa: N802
        """Return the page's size."""
        page = self._stack.currentWidget()
        return page.sizeHint() if page is not None else super().sizeHint()

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return the page's minimum size."""
        page = self._stack.currentWidget()
        if page is None:
            return super().minimumSizeHint()
        least, layout = page.minimumSizeHint(), page.layout()
        if layout is not None and layout.hasHeightForWidth():  # wrapping text needs more height
            width = max(least.width(), self.width())
            least.setHeight(max(least.height(), layout.totalMinimumHeightForWidth(width)))
        return least


class BannerArea(QWidget):
    """The banners above all pages, with the margins of a page. It takes no room while no banner is shown."""

    def __init__(self, banners: Sequence[Banner]) -> None:
        super().__init__()
        self._column = QVBoxLayout(self)
        self._column.setSpacing(theme.px(theme.GAP))
        for each in banners:
            self._column.addWidget(each)
        self._banners = banners
        self._fit_margins()

    def event(self, event: QEvent) -> bool:
        """Fit the margins when a banner comes or goes."""
        if event.type() == QEvent.Type.LayoutRequest:
            self._fit_margins()
        return super().event(event)

    def _fit_margins(self) -> None:
        is_empty = all(each.isHidden() for each in self._banners)
        side, top = theme.px(theme.GAP_XL), theme.px(theme.GAP_L)
        self._column.setContentsMargins(*((0, 0, 0, 0) if is_empty else (side, top, side, 0)))


_SMALLEST = (940, 520)
"""Smallest window in pixels; fits a screen of 1920 x 1080 at a scale of 200 %."""
_FIRST_PAGE = "start"
_LONGEST_NAME = 500
"""Characters of a pasted name or link."""
_LOOK_PAUSE_MS = 500
"""Time between two checks of whether the pages can be built anew."""
_PREBUILD_PAUSE_MS = 200
"""Pause between two steps of building pages in advance, in which the user's actions are handled."""


class Window(QMainWindow):
    """The window and its controller. Pages are built when they are first shown.

    `remember`: whether the geometry and the page are restored, and saved when the window closes.
    """

    shut_down = Signal()
    """The window has closed for good, and the server has stopped."""
    prebuilt = Signal()
    """All pages of the rail are built."""
    pages_replaced = Signal()
    """All pages are about to be built anew, in another language or size."""
    page_shown = Signal(str)
    """The name of a page that is painted and whose `on_shown` has run."""

    def __init__(self, *, remember: bool = True, page: str | None = None) -> None:
        super().__init__()
        self.setWindowTitle("MTP Launcher")
        self.setMinimumSize(*_SMALLEST)
        self.resize(1280, 800)
        self._remember = remember
        self._quitting, self._question = False, ""
        self._may_close = False
        """Whether the server has stopped, so that the next close event is accepted."""
        self._awaits_paint = False
        """Whether the window is shown, but not painted yet."""
        self._chosen_close = ""
        """The user's answer on how to close, while it is being stored."""
        self.exit_code = 0
        self.controller = Controller(self)
        self.tray: Tray | None = None
        self._pages: dict[str, QWidget] = {}
        self._specs = {spec.name: spec for spec in PAGES}
        self._page_name = self._previous_name = ""
        self._kept: dict[str, object] = {}
        """By name, what a page has handed over to the page that is built in its place."""
        self._changed_look: dict[str, AppSettingValue] = {}
        """New values of settings for which the pages are to be built anew."""
        self._crash: LauncherError | None = None
        """Why the engine is being restarted, until it is ready again."""
        self._prebuild_steps = self._prebuild_pages()
        self._build_body()
        self._connect_signals()
        self._focus_keeper = FocusKeeper(self)
        geometry = open_window_settings().value("window/geometry") if remember else None
        if geometry is not None:
            self.restoreGeometry(geometry)
        last = str(open_window_settings().value("window/page", _FIRST_PAGE)) if remember else _FIRST_PAGE
        self.show_page(page or last)
        self._body.setFocus()  # no button has the focus before Tab moves it

    def _build_body(self) -> None:
        """Build all but the pages."""
        self.rail = Rail([spec for spec in self._specs.values() if spec.in_rail])
        self.rail.chosen.connect(self.show_page)
        self.chip = self.rail.chip
        self.controller.view_changed.connect(self.chip.show_view)
        self.notice, self.drain_banner = Banner(), Banner()
        self._stack = QStackedWidget()
        # For large text in a small window: scroll rather than cut.
        area = make_scroll_area(PageContainer(self._stack), sideways=True)
        self._body = QWidget()
        layout = QGridLayout(self._body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self.rail, 0, 0, 2, 1)
        layout.addWidget(BannerArea((self.notice, self.drain_banner)), 0, 1)
        layout.addWidget(area, 1, 1)
        layout.setColumnStretch(1, 1)
        layout.setRowStretch(1, 1)
        self.setCentralWidget(self._body)
        self.drop = DropTarget(self, _drop_hint, self._take_dropped)
        self._show_launch(self.controller.launch)
        self.chip.show_view(self.controller.view)

    def _change_look(self) -> None:
        """Apply what was changed, and build everything anew with it, as soon as no page waits for anything.

        A reply, a tune or a download that the user has started is shown by its page until it has ended.
        """
        if not self._changed_look or not self.isEnabled():
            return
        inputs = self.controller.inputs
        if inputs.replying or self.controller.bridge.is_awaited or not self.drain_banner.isHidden():
            text = tr("This applies once the reply, measurement or download that you have started has ended.")
            if self.notice.isHidden():
                self.notice.show_message(text, "information")
            QTimer.singleShot(_LOOK_PAUSE_MS, self, self._change_look)
            return
        changed, self._changed_look = self._changed_look, {}
        self.pages_replaced.emit()
        self._notify_page("on_hidden")
        self.controller.bridge.cancel_page_work()
        for name, page in self._pages.items():
            if hasattr(page, "hand_over") and not self._build_next_part(name):
                self._kept[name] = page.hand_over()
        built, self._pages = list(self._pages), {}
        self.drop.deleteLater()
        self._body.deleteLater()
        # Else the style sheet would be worked out for all that is left behind.
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
        application = QApplication.instance()
        if isinstance(application, QApplication):
            for setting, value in changed.items():
                appearance.apply_setting(application, setting, value)
        self._build_body()
        self.controller.refresh_view()
        name, self._page_name = self._page_name, ""
        for each in built:
            if each in self._kept:
                self.page(each)
        self.show_page(name)
        self.rail.fit_width(self.width())
        if self.tray is not None:
            self._renew_tray(self.tray)
        self._prebuild_steps = self._prebuild_pages()
        QTimer.singleShot(_PREBUILD_PAUSE_MS, self, self.prebuild_next)

    @property
    def page_name(self) -> str:
        """The name of the current page."""
        return self._page_name

    @property
    def page_names(self) -> tuple[str, ...]:
        """The names of all pages, in the rail or not."""
        return tuple(self._specs)

    def page(self, name: str) -> Any:  # noqa: ANN401 -- each page has a class of its own
        """Return a page, building it if necessary."""
        while self._build_next_part(name):
            pass
        return self._pages[name]

    def _build_next_part(self, name: str) -> bool:
        """Start building a page, or run its next build step. Returns False if it is complete."""
        page = self._pages.get(name)
        if page is None:
            page = self._pages[name] = self._specs[name].build(self.controller, self._kept.pop(name, None))
            self._stack.addWidget(page)
        else:
            build_next_part = getattr(page, "build_next_part", None)
            if build_next_part is None or not build_next_part():
                return False
        return True

    def prebuild_next(self) -> None:
        """Run the next step of building pages in advance while idle, and schedule another."""
        if self._may_close or not self.isEnabled():
            return
        if next(self._prebuild_steps, False):
            QTimer.singleShot(_PREBUILD_PAUSE_MS, self, self.prebuild_next)
        else:
            self.prebuilt.emit()

    def _prebuild_pages(self) -> Iterator[bool]:
        """List the GPUs, then import and build each page of the rail in steps of at most 30 ms."""
        self.controller.bridge.run(find_gpus, done=self.rail.show_gpus)
        yield True
        for name, spec in self._specs.items():
            if spec.in_rail:
                for _ in spec.import_modules():
                    yield True
                while self._build_next_part(name):
                    yield True

    @Slot(str)
    def show_page(self, name: str) -> None:
        """Show a page; the first one if the name is unknown."""
        name = name if name in self._specs else next(iter(self._specs))
        if name == self._page_name:
            return
        self._notify_page("on_hidden")
        self._previous_name, self._page_name = self._page_name, name
        page = self.page(name)
        focused = page.focusWidget()
        if focused is None:
            page.setFocus()  # Tab then goes to the first control, which is not highlighted before
        self._stack.setCurrentWidget(page)
        if focused is not None and not takes_focus(focused):
            self._focus_keeper.wait_for(focused)  # else the keys would still go to the page that is hidden now
        self.rail.show_page(name)
        if self.isVisible() and not self._awaits_paint:
            QTimer.singleShot(0, self, lambda: self._notify_page("on_shown"))

    @Slot()
    def show_keys(self) -> None:
        """Show the keyboard page, or return to the previous one."""
        self.show_page(self._previous_name if self._page_name == "keys" else "keys")

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Press the focused button with Enter, and leave a page that is not in the rail with Esc."""
        focused = self.focusWidget()
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and isinstance(focused, QPushButton):
            focused.click()
        elif event.key() == Qt.Key.Key_Escape and not self._specs[self._page_name].in_rail:
            self.show_page(self._previous_name)
        else:
            super().keyPressEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Adjust the rail to the width."""
        super().resizeEvent(event)
        if isValid(self.rail):  # while the pages are built anew, there is no rail for a moment
            self.rail.fit_width(event.size().width())

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802
        """Call the page's `on_shown` after its first paint."""
        super().paintEvent(event)
        if self._awaits_paint:
            self._awaits_paint = False
            QTimer.singleShot(0, self, lambda: self._set_visibility(True))

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802
        """Let the next paint call the page's `on_shown`."""
        super().showEvent(event)
        self._awaits_paint = True

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802
        """Call the page's `on_hidden`."""
        super().hideEvent(event)
        self._set_visibility(False)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802
        """Call the page's `on_hidden` when the window is minimised, and `on_shown` when it is restored."""
        super().changeEvent(event)
        if isinstance(event, QWindowStateChangeEvent) and self.isVisible():
            was_minimised = bool(event.oldState() & Qt.WindowState.WindowMinimized)
            if was_minimised != self.isMinimized():
                self._set_visibility(was_minimised)

    def _set_visibility(self, visible: bool) -> None:
        self.controller.set_visible(visible)
        self._notify_page("on_shown" if visible else "on_hidden")

    def _notify_page(self, method: str) -> None:
        """Call the current page's method, if it has it."""
        page = self._pages.get(self._page_name)
        if page is None:
            return
        if hasattr(page, method):
            getattr(page, method)()
        if method == "on_shown":
            self.page_shown.emit(self._page_name)

    def add_tray(self) -> None:
        """Add a tray icon, if the system has a tray."""
        from launcher.gui.tray import Tray  # imported late: the tray icon comes after the first paint

        if self.tray is None and Tray.is_available():
            tray = Tray(self.controller, self.isActiveWindow, self)
            self.use_tray(tray)
            tray.icon.show()

    def use_tray(self, tray: "Tray") -> None:
        """Connect a tray; the window may then close into it."""
        self.tray = tray
        tray.window_requested.connect(self.bring_to_front)
        tray.quit_requested.connect(self.ask_to_quit)

    def _renew_tray(self, old: "Tray") -> None:
        """Replace the tray icon by one with a menu in the present language."""
        was_shown = old.icon.isVisible()
        old.icon.hide()
        old.deleteLater()
        tray = type(old)(self.controller, self.isActiveWindow, self)
        self.use_tray(tray)
        tray.icon.setVisible(was_shown)

    def open_file(self, path: Path) -> None:
        """Serve a GGUF file."""
        self.controller.start(str(path))
        self.show_page("cockpit")

    @Slot(str)
    def plan_model(self, name: str) -> None:
        """Show the plan of a model on the Start page, by the path of its file or its name on the hub."""
        if name:
            self.show_page("start")
            self.page("start").plan_named(name)

    @Slot(str)
    def _show_plans(self, intent: str) -> None:
        self.show_page("start")
        self.page("start").show_plans_for(intent)

    @Slot()
    def start_demo(self) -> None:
        """Start the demo."""
        self.controller.start(DEMO)
        self.show_page("cockpit")

    @Slot()
    def bring_to_front(self) -> None:
        """Bring the window to the front, as a second start of the program requests."""
        self.setWindowState((self.windowState() & ~Qt.WindowState.WindowMinimized) | Qt.WindowState.WindowActive)
        self.show()
        self.raise_()
        self.activateWindow()

    def apply_theme(self) -> None:
        """Apply a change of the colour scheme. Pages get it by a palette change."""
        self.chip.show_view(self.controller.view)

    @Slot()
    def quit(self) -> None:
        """Close for good: stop the server and leave no process."""
        self._quitting = True
        self.close()

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802
        """Close into the tray, if the user wants that; otherwise stop the server, then close.

        While a model is served, a banner asks first; closing again means to quit. A further close does not wait for the
        server.
        """
        if self._may_close or not self.isEnabled():
            event.accept()
            return
        event.ignore()
        self._save_geometry()
        if not self._quitting:
            choice = self._chosen_close or settings.stored_value(CLOSE)
            must_ask = choice == VALUE_ASK or (choice == VALUE_TRAY and self.tray is None)
            if must_ask and not self._is_asking and not self.controller.view.resting:
                self._ask_how_to_close()
                return
            if choice == VALUE_TRAY and self.tray is not None:
                self.hide()
                return
        self.setEnabled(False)
        self.controller.close()

    def _ask_how_to_close(self) -> None:
        if self.tray is None:
            text = tr("A model is loaded. Closing this window unloads it, because this system has no tray.")
            self._ask(text, [(tr("Stop and quit"), self.quit)])
        else:
            text = tr(
                "A model is loaded. Keep it running in the tray when this window closes? You can change this "
                "later in Settings under Closing the window."
            )
            self._ask(
                text,
                [
                    (tr("Keep running"), lambda: self._close_as_chosen(VALUE_TRAY)),
                    (tr("Stop and quit"), lambda: self._close_as_chosen(VALUE_QUIT)),
                ],
            )

    @Slot()
    def ask_to_quit(self) -> None:
        """Quit; while a model is served, only when asked a second time, unless closing the window quits anyway."""
        quits_anyway = (self._chosen_close or settings.stored_value(CLOSE)) == VALUE_QUIT
        if self.controller.view.resting or self._is_asking or quits_anyway:
            self.quit()
            return
        self.bring_to_front()
        text = tr("A model is loaded. Quitting unloads it, and ends the replies that are being written.")
        self._ask(text, [(tr("Stop and quit"), self.quit)])

    def _ask(self, question: str, buttons: Sequence[ButtonAction]) -> None:
        """Ask before the window closes or quits."""
        self._question = question
        self.notice.show_message(question, "information", buttons)
        self.notice.buttons[0].setFocus()

    @property
    def _is_asking(self) -> bool:
        """Whether the question is shown: it may have been dismissed, or another message may have taken its place."""
        return not self.notice.isHidden() and self.notice.text.text() == self._question

    def _close_as_chosen(self, choice: str) -> None:
        self.notice.clear()
        self._chosen_close = choice
        self.controller.change_setting(CLOSE, choice)
        self.close()

    def _save_geometry(self) -> None:
        if self._remember:
            stored = open_window_settings()
            stored.setValue("window/geometry", self.saveGeometry())
            stored.setValue(
                "window/page", self._page_name if self._specs[self._page_name].in_rail else self._previous_name
            )

    def _connect_signals(self) -> None:
        controller = self.controller
        controller.launched.connect(self._show_launch)
        controller.noticed.connect(self._show_notice)
        controller.view_changed.connect(self._report_restart)
        controller.drain_asked.connect(self._ask_to_wait)
        controller.closed.connect(self._close_now)
        controller.page_requested.connect(self.show_page)
        controller.plan_requested.connect(self.plan_model)
        controller.plans_requested.connect(self._show_plans)
        controller.file_requested.connect(self._choose_file)
        controller.link_requested.connect(_open_link)
        controller.setting_changed.connect(self._handle_setting)
        for spec in self._specs.values():
            if spec.in_rail:
                QShortcut(spec.key, self, lambda name=spec.name: self.show_page(name))
        QShortcut("F1", self, self.show_keys)
        QShortcut("Ctrl+O", self, self._choose_file)
        QShortcut(QKeySequence(QKeySequence.StandardKey.Paste), self, self._paste)
        QShortcut("Ctrl+Q", self, self.ask_to_quit)

    @Slot(str, object)
    def _handle_setting(self, name: str, value: AppSettingValue) -> None:
        application = QApplication.instance()
        if name == CLOSE:
            self._chosen_close = ""
        elif name in (LANGUAGE, TEXT_SCALE):
            self._changed_look.pop(name, None)
            if appearance.needs_new_widgets(name, value):
                self._changed_look[name] = value
                # After the control that made the change has finished its work.
                QTimer.singleShot(0, self, self._change_look)
        elif isinstance(application, QApplication):
            appearance.apply_setting(application, name, value)

    @Slot(object)
    def _show_launch(self, launch: "Launch | None") -> None:
        if launch is not None:
            built_in = launch.build.name == "built-in"
            name = tr("built-in engine") if built_in else tr("{engine} engine", engine=launch.build.name)
            self.rail.show_engine(name, launch.build.version)

    @Slot(object)
    def _show_notice(self, notice: Notice) -> None:
        """Show a notice on every page if it concerns other programs, or what the user has started."""
        if notice.code in (ADDRESS_CHANGED, NO_HEAD, KEPT_REPLACED, MAIN_UNLOADED, ENGINE_SLOWER):
            meaning = "information" if notice.code in (NO_HEAD, MAIN_UNLOADED) else "attention"
            self.notice.show_message(render(notice.text), meaning)

    @Slot(object)
    def _report_restart(self, view: View) -> None:
        """Show on every page that the engine ended by itself and was restarted, once the restart is over."""
        status = self.controller.inputs.status
        if status.state is ServerState.RESTARTING and status.error is not None:
            self._crash = status.error
        elif view.resting:  # a failure, or the user's stop, speaks for itself
            self._crash = None
        elif status.state in SERVING and self._crash is not None:
            now = find_locale().toString(QTime.currentTime(), QLocale.FormatType.ShortFormat)
            text = tr("{reason} The model was loaded again at {time}.", reason=str(self._crash.title), time=now)
            self._crash = None
            self.notice.show_message(text, "attention", [(tr("Open the log"), lambda: self.show_page("logs"))])
            self.controller.notify(view.model_name, text)

    @Slot(int)
    def _ask_to_wait(self, replies: int) -> None:
        """Ask on every page whether a restart shall wait for `replies` that cannot go on. Dismissing it means yes."""
        if not replies:
            self.drain_banner.clear()
            return
        text = ntr(
            "The restart waits for 1 reply that cannot go on after it.",
            "The restart waits for {n} replies that cannot go on after it.",
            replies,
        )
        cut = (tr("Cut off"), lambda: self.controller.answer_drain(DrainAnswer.CUT))
        cancel = (tr("Cancel the change"), lambda: self.controller.answer_drain(DrainAnswer.CANCEL))
        self.drain_banner.show_message(text, "attention", [cut, cancel])
        self.controller.notification_requested.emit(self.controller.view.model_name, text)

    def _take_dropped(self, data: QMimeData) -> None:
        """Plan for the model that was dropped, or list several models and folders on Models."""
        name = _named_model(data)
        if name:
            self.plan_model(name)
            return
        self.show_page("models")
        for path in dropped_models(data):
            self.page("models").add_place(path)

    @Slot()
    def _paste(self) -> None:
        """Plan for the model that the clipboard names; a text field that has the focus pastes by itself.

        On Models it is shown there. So is the address of a file from elsewhere, for which Models asks for a checksum.
        """
        data = QGuiApplication.clipboard().mimeData()
        if data is None:
            return
        name = _named_model(data)
        if name and self._page_name != "models":
            self.plan_model(name)
        elif link := name or _named_address(data):
            self.show_page("models")
            self.page("models").add_link(link)

    @Slot()
    def _choose_file(self) -> None:
        kinds = f"{tr('Models')} (*.gguf);;{tr('All files')} (*)"
        name, _ = QFileDialog.getOpenFileName(self, tr("Open a model"), "", kinds)
        if name:
            self.open_file(Path(name))

    @Slot()
    def _close_now(self) -> None:
        self._may_close = True
        if self.tray is not None:
            self.tray.icon.hide()
        self.close()
        self.shut_down.emit()


def _open_link(url: str) -> None:
    """Open a diagnosis's link; it was checked to be https."""
    QDesktopServices.openUrl(QUrl(url))


def _drop_hint(data: QMimeData) -> str:
    """Return the hint for dragged data, or "" unless it names models or folders."""
    name = _named_model(data)
    if name:
        return tr("Drop {name} to see its plan", name=one_line(Path(name).name))
    return tr("Drop them to list them on Models. They are not moved") if dropped_models(data) else ""


def _named_address(data: QMimeData) -> str:
    """Return the address of a GGUF file in pasted data, with a checksum if one follows it; else ""."""
    text = data.text().strip()
    is_address = text.startswith("https://") and text.split()[0].partition("?")[0].lower().endswith(".gguf")
    return text if is_address and len(text) <= _LONGEST_NAME and len(text.split()) <= 2 else ""


def _named_model(data: QMimeData) -> str:
    """Return the path of the single .gguf file in dragged or pasted data, or the model's name on the hub, else ""."""
    urls, text = data.urls(), data.text().strip()
    if len(urls) == 1:
        if urls[0].isLocalFile():
            path = urls[0].toLocalFile()
            return path if path.lower().endswith(".gguf") else ""
        text = urls[0].toString()
    elif urls and text != urls[0].toString():
        return ""
    if not 0 < len(text) <= _LONGEST_NAME or "/" not in text or any(map(str.isspace, text)):
        return ""
    return text if hub_model.parse_hub_name(text) is not None else ""
