"""The focus within a part of a window, and what becomes of it when its widget is disabled or hidden."""

from PySide6.QtCore import QEvent, QObject, Slot
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
    """Keeps the focus from other controls when its widget is disabled or hidden.

    Qt would move it to the next one, on which the next press of Space acts: from Pause to Cancel, for example. Here the
    page gets it, on which no key acts, until Tab moves it, and the widget gets it back once it can have it.
    """

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self._window = window
        self._left: QWidget | None = None
        """The widget that had the focus when the window was left."""
        self._lost: QWidget | None = None
        """The widget that is to get the focus back."""
        application = QApplication.instance()
        if isinstance(application, QApplication):
            application.focusChanged.connect(self._handle_change)

    @Slot("QWidget*", "QWidget*")
    def _handle_change(self, before: QWidget | None, now: QWidget | None) -> None:
        if now is None:
            self._left = before
            return
        before, self._left = before or self._left, None
        if self._lost is not None and now is not find_rest(self._lost):
            self._forget()
        if before is None or not isValid(before) or before is now or _takes_focus(before):
            return
        rest = find_rest(before)
        if rest is not None and before.window() is now.window() is self._window:
            self._forget()
            self._lost = before
            before.installEventFilter(self)
            rest.setFocus()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 -- Qt's name
        """Give the focus back to the widget that lost it."""
        if event.type() in (QEvent.Type.EnabledChange, QEvent.Type.Show) and watched is self._lost:
            lost = self._lost
            if _takes_focus(lost):
                self._forget()
                lost.setFocus()
        return False

    def _forget(self) -> None:
        lost, self._lost = self._lost, None
        if lost is not None and isValid(lost):
            lost.removeEventFilter(self)


def _takes_focus(widget: QWidget) -> bool:
    return widget.isEnabled() and widget.isVisible()


def find_rest(widget: QWidget) -> QWidget | None:
    """Return the page on which the focus of a widget rests; None if the page cannot have it either."""
    page = find_page(widget) if isValid(widget) else None
    return page if page is not None and page is not widget and _takes_focus(page) else None
