"""Side-by-side panes in three layouts. What each layout shows, and how wide, is remembered."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from PySide6.QtCore import QRectF, QSize, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QColor, QHideEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QAbstractButton, QSizePolicy, QSplitter, QSplitterHandle, QWidget

from launcher.gui import theme
from launcher.gui.labels import set_tooltip
from launcher.gui.translation import tr
from launcher.gui.widgets.glyphs import paint_glyph
from launcher.gui.window_settings import open_window_settings

_SAVE_AFTER_MS = 500
"""Milliseconds without a move after which the widths are saved."""
_TAB_WIDTH, _GLYPH = 36, 16
_MAIN_WIDTH = 600
"""Width in pixels that the main pane gets before the panes beside it get their usual widths."""


@dataclass(frozen=True, slots=True)
class PaneLayout:
    """A layout's initial state: the `main` pane, and the usual widths of those beside it.

    Widths are in pixels at 100 % scale. Where there is no room, the last of `beside` is hidden first. Unless the user
    asks for it, a pane is shown beside the main one only if that keeps `enough` pixels, and a pane in `roomy` only if
    it gets the width there. A pane in `tabs` has a tab while it is hidden.
    """

    main: str
    beside: Mapping[str, int]
    enough: int = 0
    roomy: Mapping[str, int] = field(default_factory=dict)
    tabs: Collection[str] = ()


class PaneSplitter(QSplitter):
    """Splitter with named panes, from left to right, and their least widths in pixels at 100 % scale."""

    fitted = Signal()
    """The set of visible panes, or the layout, has changed."""

    def __init__(self, panes: Mapping[str, tuple[QWidget, int]], layouts: Mapping[str, PaneLayout], usual: str) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self.setChildrenCollapsible(False)
        self.setHandleWidth(theme.px(theme.GAP_M))
        self._panes = {name: pane for name, (pane, _) in panes.items()}
        self._least = {name: theme.px(least) for name, (_, least) in panes.items()}
        self._layouts = layouts
        self._suppressed: set[str] = set()
        self._needed: list[str] = []
        self._wanted: list[str] = []
        """The panes that the layout shows where there is room, by priority."""
        self._widths: dict[str, int] = {}
        """Widths of the panes beside the main one, in pixels."""
        for name, pane in self._panes.items():
            pane.setMinimumWidth(self._least[name])
            self.addWidget(pane)
        self._save_timer = QTimer(self)
        self._save_timer.setSingleShot(True)
        self._save_timer.setInterval(_SAVE_AFTER_MS)
        self._save_timer.timeout.connect(self._save_state)
        self.splitterMoved.connect(self._keep_widths)
        self.layout_name = load_choice("layout", usual)
        self.choose_layout(self.layout_name if self.layout_name in layouts else usual)

    def choose_layout(self, name: str, *, remember: bool = True) -> None:
        """Show the panes of a layout as they were when it was left. The next window begins with it, if `remember`."""
        if self._save_timer.isActive():
            self._save_state()
        self.layout_name = name
        layout, stored = self._layouts[name], open_window_settings()
        shown = str(stored.value(f"cockpit/{name}/shown", "")).split()
        self._wanted = [each for each in shown if each in self._panes] or [layout.main, *layout.beside]
        self._widths = {
            each: int(str(stored.value(f"cockpit/{name}/{each}", theme.px(layout.beside.get(each, 0)))))
            for each in self._panes
        }
        for at, each in enumerate(self._panes):
            self.setStretchFactor(at, 1 if each == layout.main else 0)
        if remember:
            save_choice("layout", name)
        self.fit_panes(changed=True)

    def reset_layout(self) -> None:
        """Give the layout its usual panes and widths again."""
        stored = open_window_settings()
        stored.remove(f"cockpit/{self.layout_name}")
        self._save_timer.stop()
        self.choose_layout(self.layout_name)

    def is_shown(self, name: str) -> bool:
        """Return whether a pane is visible."""
        return not self._panes[name].isHidden()

    def has_tab(self, name: str) -> bool:
        """Return whether a pane has a tab in this layout and state of the server."""
        hidden = not self.is_shown(name) and name not in self._suppressed
        return hidden and name in self._layouts[self.layout_name].tabs

    def show_pane(self, name: str, *, shown: bool) -> None:
        """Show or hide a pane, as the user chose. A shown one may hide others for lack of room."""
        self._wanted = [each for each in self._wanted if each != name]
        if shown:
            self._wanted.insert(0, name)
        elif not self._wanted:
            self._wanted = [self._layouts[self.layout_name].main]
        self.fit_panes()
        self._save_state()

    def set_state(self, suppressed: set[str], needed: list[str]) -> None:
        """Set the panes that are hidden (`suppressed`) and shown (`needed`), whatever the user chose.

        The state of the server decides it: before the first start there are no sliders, but a welcome.
        """
        if (suppressed, needed) != (self._suppressed, self._needed):
            self._suppressed, self._needed = suppressed, needed
            self.fit_panes()
            self.fitted.emit()  # a pane's tab may have appeared or disappeared

    def fit_panes(self, *, changed: bool = False) -> None:
        """Show as many of the layout's panes as fit, at least one. `changed`: the layout is another one."""
        layout = self._layouts[self.layout_name]
        wanted = [name for name in self._wanted if name not in (*self._suppressed, *self._needed)]
        candidates = self._needed + wanted or [layout.main]
        asked = candidates[: candidates.index(layout.main)] if layout.main in candidates else candidates
        shown: list[str] = []
        for name in candidates:
            widths = {each: self._least[each] for each in (*shown, name)}
            if name not in asked:
                roomy = {each: theme.px(width) for each, width in layout.roomy.items() if each not in asked}
                widths = {each: max(width, roomy.get(each, 0)) for each, width in widths.items()}
                if layout.main in widths and not (name == layout.main and asked):
                    widths[layout.main] = max(widths[layout.main], theme.px(layout.enough))
            if sum(widths.values()) + self.handleWidth() * len(shown) <= self.width() or not shown:
                shown.append(name)
            else:
                break
        before = {name for name in self._panes if self.is_shown(name)}
        for name, pane in self._panes.items():
            pane.setVisible(name in shown)
        if changed or before != set(shown):
            self._apply_widths(shown)
            self.fitted.emit()

    def _apply_widths(self, shown: list[str]) -> None:
        """Give the main pane the room that the others leave."""
        main = self._layouts[self.layout_name].main
        main = main if main in shown else shown[0]
        room = self.width() - self.handleWidth() * (len(shown) - 1)
        widths = {each: max(self._widths[each], self._least[each]) for each in shown if each != main}
        for each in widths:  # the main pane is the widest where there is little room
            missing = min(theme.px(_MAIN_WIDTH), room // 2) - (room - sum(widths.values()))
            widths[each] = max(widths[each] - max(missing, 0), self._least[each])
        widths[main] = max(room - sum(widths.values()), self._least[main])
        self.setSizes([widths.get(each, 0) for each in self._panes])

    def minimumSizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the width of the widest pane alone: the others can be hidden."""
        return QSize(max(self._least.values()), super().minimumSizeHint().height())

    def createHandle(self) -> QSplitterHandle:  # noqa: N802
        """Return a handle that resets the layout when it is double-clicked."""
        return _Handle(self.orientation(), self)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802
        """Hide or show panes for the new width."""
        super().resizeEvent(event)
        self.fit_panes(changed=event.oldSize().width() <= 0)

    def hideEvent(self, event: QHideEvent) -> None:  # noqa: N802
        """Save the widths if they have just changed."""
        super().hideEvent(event)
        if self._save_timer.isActive():
            self._save_state()

    @Slot()
    def _keep_widths(self) -> None:
        for name, width in zip(self._panes, self.sizes(), strict=True):
            if width:
                self._widths[name] = width
        self._save_timer.start()

    @Slot()
    def _save_state(self) -> None:
        self._save_timer.stop()
        stored, name = open_window_settings(), self.layout_name
        stored.setValue(f"cockpit/{name}/shown", " ".join(self._wanted))
        for each, width in self._widths.items():
            if width and each != self._layouts[name].main:
                stored.setValue(f"cockpit/{name}/{each}", width)


class _Handle(QSplitterHandle):
    def mouseDoubleClickEvent(self, _event: QMouseEvent) -> None:  # noqa: N802 -- Qt's name
        """Reset the layout."""
        splitter = self.splitter()
        if isinstance(splitter, PaneSplitter):
            splitter.reset_layout()


class PaneTab(QAbstractButton):
    """Narrow upright button in place of a hidden pane, which it shows again.

    Without the parent, its page, it would appear as a window of its own until the page is laid out.
    """

    def __init__(self, panes: PaneSplitter, name: str, title: str, *, opens: str, parent: QWidget) -> None:
        super().__init__(parent)
        self._panes, self._name, self._title, self._opens = panes, name, title, opens
        self._allowed = True
        self.setFixedWidth(theme.px(_TAB_WIDTH))
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Expanding)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(tr("Show this pane: {name}", name=title))
        set_tooltip(self, self.accessibleName())
        self.clicked.connect(lambda: panes.show_pane(name, shown=True))
        panes.fitted.connect(self.show_state)
        self.show_state()

    def set_allowed(self, allowed: bool) -> None:
        """Set whether there is room for the tab."""
        self._allowed = allowed
        self.show_state()

    @Slot()
    def show_state(self) -> None:
        """Show the tab while its pane is hidden, if there is room for it."""
        self.setVisible(self._allowed and self._panes.has_tab(self._name))

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the size of the upright text."""
        return QSize(theme.px(_TAB_WIDTH), self.fontMetrics().horizontalAdvance(self._title) + theme.px(64))

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802
        """Paint a card with a chevron and the upright title."""
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            colours, focused = theme.current(), self.hasFocus()
            width = 2.0 if focused else 1.0
            painter.setPen(QPen(QColor(colours.accent if focused else colours.border), width))
            painter.setBrush(QColor(colours.raised if self.underMouse() else colours.card))
            box = QRectF(self.rect()).adjusted(width / 2, width / 2, -width / 2, -width / 2)
            painter.drawRoundedRect(box, theme.px(theme.CARD_RADIUS), theme.px(theme.CARD_RADIUS))
            glyph, gap = theme.px(_GLYPH), theme.px(theme.GAP_M)
            secondary = QColor(colours.secondary)
            paint_glyph(painter, self._opens, QRectF((self.width() - glyph) / 2, gap, glyph, glyph), secondary)
            painter.setPen(QColor(colours.text))
            painter.setFont(theme.font(theme.BODY_PX, bold=True))
            top = 2 * gap + glyph
            painter.translate(self.width(), top)
            painter.rotate(90)
            room = QRectF(0, 0, self.height() - top - gap, self.width())
            painter.drawText(room, int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter), self._title)


class HidePaneButton(QAbstractButton):
    """Flat chevron in a pane's head that hides the pane."""

    def __init__(self, panes: PaneSplitter, name: str, title: str, *, closes: str) -> None:
        super().__init__()
        self._closes = closes
        self.setFixedSize(theme.px(theme.DENSE_HEIGHT), theme.px(theme.DENSE_HEIGHT))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(tr("Hide this pane: {name}", name=title))
        set_tooltip(self, self.accessibleName())
        self.clicked.connect(lambda: panes.show_pane(name, shown=False))

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802 -- Qt's name
        """Paint the chevron, and a frame with the focus or the pointer."""
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            colours = theme.current()
            if self.hasFocus() or self.underMouse():
                painter.setPen(QPen(QColor(colours.accent if self.hasFocus() else colours.border), 1.5))
                radius = theme.px(theme.CONTROL_RADIUS)
                painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), radius, radius)
            glyph = theme.px(_GLYPH)
            left, top = (self.width() - glyph) / 2, (self.height() - glyph) / 2
            paint_glyph(painter, self._closes, QRectF(left, top, glyph, glyph), QColor(colours.secondary))


def load_choice(name: str, default: str) -> str:
    """Return a stored choice of this page."""
    return str(open_window_settings().value(f"cockpit/{name}", default))


def save_choice(name: str, value: str) -> None:
    """Store a choice of this page."""
    open_window_settings().setValue(f"cockpit/{name}", value)
