"""The focus within a part of a window, and what becomes of it when its widget is disabled or hidden."""

from PySide6.QtCore import QEvent, QObject, QTimer, Slot
from PySide6.QtWidgets import QApplication, QStackedWidget, QWidget
from shiboken6 import isValid


def find_focus(part: QWidget) -> QWidget | None:
    """Return the widget in `part`, or `part` itself, that has the focus of its window; None if none has.

    The window need not be the active one.
    """
    focused = part.window().focusWidget()
    return focused if focused is not None and (focused is part or part.isAncestorOf(focused)) else None


def find_page(part: QWidget) -> QWidget:
    """Return the page that a widget belongs to: a page of a stack, else the topmost widget below the window."""
    page = part
    while (parent := page.parentWidget()) is not None and not (isinstance(parent, QStackedWidget) or parent.isWindow()):
        page = parent
    return page


class FocusKeeper(QObject):
    """Keeps the focus from other controls when its widget is disabled, hidden or deleted.

    Qt would move it to the next one, on which the next press of Space acts: from Pause to Cancel, for example. Here the
    page gets it, on which no key acts, until Tab moves it, and the widget gets it back once it can have it. The window
    need not be the active one: what happens there behind a dialog counts, too.
    """

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self._window = window
        self._focused: QWidget | None = None
        """The widget of the window that has the focus, or had it until now."""
        self._page: QWidget | None = None
        """Its page."""
        self._lost: QWidget | None = None
        """The widget that is to get the focus back."""
        application = QApplication.instance()
        if isinstance(application, QApplication):
            application.focusChanged.connect(self._handle_change)
            application.aboutToQuit.connect(self._end)
        window.installEventFilter(self)  # until it has a native window

    @Slot()
    def _end(self) -> None:
        """Watch no widget any more: Qt would call the filter while Python ends."""
        for each in (self._focused, self._lost):
            if each is not None and isValid(each):
                each.removeEventFilter(self)
        self._focused = self._lost = None

    @Slot("QWidget*", "QWidget*")
    def _handle_change(self, _before: QWidget | None, now: QWidget | None) -> None:
        if now is None:
            QTimer.singleShot(0, self, self._end_absence)  # Qt is still deleting it, or the window is left
        elif now.window() is self._window:
            self._follow(now)

    @Slot(QObject)
    def _handle_hidden_change(self, now: QObject | None) -> None:
        """Follow the focus of a window that is not active, of which the application says nothing.

        In an active one Qt is not done yet: setting the focus here would leave the keys with the widget `now`.
        """
        if isinstance(now, QWidget) and isValid(self._window) and not self._window.isActiveWindow():
            self._follow(now)

    def _follow(self, now: QWidget) -> None:
        if now is self._window:
            QTimer.singleShot(0, self, self._end_absence)
            return
        before, self._focused, self._page = self._focused, now, find_page(now)
        now.installEventFilter(self)
        if before is not None and before is not now and before is not self._lost and isValid(before):
            before.removeEventFilter(self)
        if self._lost is not None and now is not find_rest(self._lost):
            self._forget()
        if before is None or before is now or not isValid(before) or takes_focus(before):
            return
        self.wait_for(before)

    def wait_for(self, widget: QWidget) -> None:
        """Let the page of a widget have the focus until the widget, which is disabled or hidden now, can have it."""
        rest = find_rest(widget)
        if rest is not None:
            self._forget()
            self._lost = widget
            widget.installEventFilter(self)
            rest.setFocus()

    def _end_absence(self) -> None:
        """Give the focus to the page where the widget that had it was deleted."""
        if self._window.focusWidget() is None and self._page is not None and isValid(self._page):
            rest = self._page if takes_focus(self._page) else find_rest(self._page)
            if rest is not None:
                rest.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 -- Qt's name
        """Take the focus from a widget that cannot have it any more, and give it back to the one that lost it."""
        if event.type() is QEvent.Type.WinIdChange and watched is self._window:
            self._window.removeEventFilter(self)
            self._window.windowHandle().focusObjectChanged.connect(self._handle_hidden_change)
        elif event.type() in (QEvent.Type.EnabledChange, QEvent.Type.Hide) and self._keeps_vain_focus(watched):
            # Qt has not moved it, as in a window that is not active. Whatever gets it next is meant to have it.
            self.wait_for(self._focused)  # type: ignore[arg-type]
        elif event.type() in (QEvent.Type.EnabledChange, QEvent.Type.Show) and watched is self._lost:
            lost = self._lost
            if takes_focus(lost):
                is_resting = self._window.focusWidget() is find_rest(lost)
                self._forget()
                if is_resting:
                    lost.setFocus()
        return False

    def _keeps_vain_focus(self, watched: QObject) -> bool:
        focused = self._focused
        if focused is None or watched is not focused or not isValid(self._window):
            return False
        return self._window.focusWidget() is focused and not takes_focus(focused)

    def _forget(self) -> None:
        lost, self._lost = self._lost, None
        if lost is not None and lost is not self._focused and isValid(lost):
            lost.removeEventFilter(self)


def takes_focus(widget: QWidget) -> bool:
    """Return whether a widget can have the focus now."""
    return widget.isEnabled() and widget.isVisible()


def find_rest(widget: QWidget) -> QWidget | None:
    """Return the nearest page on which the focus of a widget can rest; None if there is none, as while pages change."""
    page = find_page(widget) if isValid(widget) else widget
    while isValid(page) and not takes_focus(page) and isinstance(stack := page.parentWidget(), QStackedWidget):
        page = find_page(stack)  # that of the whole window, which is no page of a stack, is for its own widgets
        if not isinstance(page.parentWidget(), QStackedWidget):
            return None
    return page if isValid(page) and page is not widget and takes_focus(page) else None
