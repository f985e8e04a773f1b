"""The rail: server state, pages, engine build in use, GPUs."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QHBoxLayout,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from launcher import __version__
from launcher.base.late import asyncio
from launcher.gui import theme
from launcher.gui.labels import ElidedLabel, Label, set_tooltip
from launcher.gui.pages import PageSpec
from launcher.gui.translation import page_title, render, tr
from launcher.gui.viewmodel import View
from launcher.gui.widgets.blocks import make_caption
from launcher.gui.widgets.glyphs import Glyph
from launcher.gui.widgets.scrolling import make_scroll_area

if TYPE_CHECKING:
    from launcher.machine.gpu import Gpu
    from launcher.machine.gpus import DetectedGpus

WIDTH, _NARROW = 184, 132
"""Widths in pixels at 100 % text scale. The narrow rail, for large text, hides the shortcuts."""
_NARROW_WINDOW = 700
"""Window width, in pixels at 100 %, below which the rail is narrow."""
_MAKERS = ("NVIDIA ", "GeForce ", "AMD ", "Intel(R) ", "Intel ")
"""Prefixes left out of a GPU's name, in the order in which they are removed."""


class StatusChip(QFrame):
    """The server's state as text, glyph and colour, with its model and address."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("chip")
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self._glyph = Glyph("ring", "secondary", 14)
        self._state_label, self._model_label, self._address_label = (
            Label(),
            ElidedLabel(),
            ElidedLabel(mode=Qt.TextElideMode.ElideLeft),
        )
        self._state_label.setFont(theme.font(theme.BODY_PX, bold=True, tabular=True))
        for label in (self._model_label, self._address_label):
            label.setObjectName("secondary")
            label.setFont(theme.font(theme.CAPTION_PX, tabular=True))
        self._address_label.setTextInteractionFlags(theme.SELECTABLE)
        first = QHBoxLayout()
        first.setSpacing(theme.px(6))
        first.addWidget(self._glyph)
        first.addWidget(self._state_label)
        first.addStretch()
        self._layout = QVBoxLayout(self)
        self._layout.setSpacing(theme.px(2))
        self._layout.addLayout(first)
        self._layout.addWidget(self._model_label)
        self._layout.addWidget(self._address_label)
        self.set_narrow(narrow=False)

    def set_narrow(self, *, narrow: bool) -> None:
        """Use smaller margins, or the usual ones."""
        side, end = theme.px(8 if narrow else 12), theme.px(10)
        self._layout.setContentsMargins(side, end, side, end)

    def show_view(self, view: View) -> None:
        """Show a view's server state."""
        self._glyph.show_glyph(view.glyph, view.meaning)
        self._state_label.setText(view.state_text)
        self._model_label.setText(view.model_name)
        self._address_label.setText(view.address)
        self._address_label.setVisible(bool(view.address))
        description = tr("Server: {word}, {subject}", word=view.state_text, subject=view.model_name)
        self.setAccessibleName(f"{description} {view.address}".strip())


class PageButton(QPushButton):
    """Button that shows a page, with its shortcut at the right."""

    def __init__(self, spec: PageSpec) -> None:
        super().__init__(page_title(spec.title))
        self.setObjectName("page")
        self.setCheckable(True)
        self.setAutoExclusive(True)  # else a screen reader calls it a check box
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        key = QKeySequence(spec.key).toString(QKeySequence.SequenceFormat.NativeText)
        self._width = WIDTH
        self.shortcut_label = Label(key.replace("+", " "))
        """The shortcut, hidden while the rail is narrow."""
        self.shortcut_label.setObjectName("secondary")
        self.shortcut_label.setFont(theme.font(theme.CAPTION_PX))
        self.shortcut_label.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setToolTip(tr("{page} ({key})", page=page_title(spec.title), key=key))
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, theme.px(12), 0)
        row.addStretch()
        row.addWidget(self.shortcut_label)

    def set_narrow(self, *, narrow: bool) -> None:
        """Use the narrow width, in which only the tooltip has the shortcut, or the usual one."""
        self._width = _NARROW if narrow else WIDTH
        self.shortcut_label.setVisible(not narrow)
        self.updateGeometry()

    def sizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Fill the rail's width between its margins of 12 pixels. The layout with the shortcut is ignored."""
        return QSize(theme.px(self._width - 24), theme.px(32))

    def minimumSizeHint(self) -> QSize:  # noqa: N802
        """Return a smaller width that leaves room for the rail's scroll bar."""
        return QSize(theme.px(self._width - 36), theme.px(32))


class Rail(QFrame):
    """Sidebar for choosing the page."""

    chosen = Signal(str)

    def __init__(self, pages: Sequence[PageSpec]) -> None:
        super().__init__()
        self.setObjectName("rail")
        self.setFixedWidth(theme.px(WIDTH))
        self._narrow = False
        self.chip = StatusChip()
        self._buttons: dict[str, PageButton] = {}
        self._engine = make_caption()
        self._engine.setContentsMargins(theme.px(12), 0, 0, 0)
        self._gpus = make_caption(tr("Looking for GPUs ..."))
        self._gpus.setContentsMargins(theme.px(12), 0, 0, 0)
        self._about = QPushButton(tr("Version {version}", version=__version__))
        self._about.setObjectName("foot")
        self._about.setFont(theme.font(theme.CAPTION_PX))
        self._about.setToolTip(tr("Show all versions, to copy into a bug report"))
        self._about.clicked.connect(lambda: self.chosen.emit("about"))
        self._group = QButtonGroup(self)
        inner = QWidget()
        inner.setObjectName("panel")
        area = make_scroll_area(inner)  # scrolls if large text does not fit a low window
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 1, 0)
        outer.addWidget(area)
        layout = self._column = QVBoxLayout(inner)
        layout.setContentsMargins(theme.px(12), theme.px(16), theme.px(12) - 2, theme.px(16))
        layout.setSpacing(theme.px(4))
        layout.addWidget(self.chip)
        layout.addSpacing(theme.px(12))
        for spec in pages:
            button = self._buttons[spec.name] = PageButton(spec)
            # Not `clicked`, which does not come when a screen reader presses the button.
            button.toggled.connect(lambda checked, name=spec.name: self.chosen.emit(name) if checked else None)
            self._group.addButton(button)
            if spec.name == "settings":  # Settings is at the bottom of the rail
                layout.addStretch()
            layout.addWidget(button)

        layout.addSpacing(theme.px(8))
        layout.addWidget(self._engine)
        layout.addWidget(self._gpus)
        layout.addWidget(self._about)
        self.show_engine("")

    def fit_width(self, window_width: int) -> None:
        """Choose the narrow or the usual width for a window's width in pixels."""
        narrow = window_width < theme.px(_NARROW_WINDOW)
        if narrow != self._narrow:
            self._narrow = narrow
            self.setFixedWidth(theme.px(_NARROW if narrow else WIDTH))
            side = theme.px(8 if narrow else 12)
            self._column.setContentsMargins(side, theme.px(16), side - 2, theme.px(16))
            self.chip.set_narrow(narrow=narrow)
            for button in self._buttons.values():
                button.set_narrow(narrow=narrow)

    def show_page(self, name: str) -> None:
        """Mark the shown page; none if it is not in the rail."""
        self._group.setExclusive(name in self._buttons)
        for each, button in self._buttons.items():
            with QSignalBlocker(button):
                button.setChecked(each == name)

    def show_engine(self, engine: str, version: str = "") -> None:
        """Show the engine build in use. The tooltip has the full version."""
        number = version.partition(" (")[0].rpartition(" ")[2]  # 11669 of "0.7.0 (build 11669, commit Debian)"
        self._engine.setText("\n".join(filter(None, (engine, number))))
        set_tooltip(self._engine, version)
        self._engine.setVisible(bool(engine))

    def show_gpus(self, detected: "DetectedGpus") -> None:
        """Show this computer's GPUs with their memory, or that there is none. The tooltip has the full names."""
        counts = Counter(map(_gpu_text, detected.gpus))
        lines = [f"{count} × {text}" if count > 1 else text for text, count in counts.items()]  # noqa: RUF001 -- the sign for times
        names = [gpu.name for gpu in detected.gpus]
        self._gpus.setText("\n".join(lines or [tr("no GPU")]))
        set_tooltip(self._gpus, "\n".join(names or [render(detected.no_gpu_reason or "")]))


def _gpu_text(gpu: "Gpu") -> str:
    """Return a GPU's name without the maker, and its nominal memory."""
    name = gpu.name
    for maker in _MAKERS:
        name = name.removeprefix(maker)
    memory = gpu.memory_bytes if not gpu.unified else None
    return f"{name} · {memory / 2**30:.0f} GB" if memory else name


async def find_gpus() -> "DetectedGpus":
    """List this computer's GPUs without waking a sleeping one."""
    from launcher.machine import gpus

    return await asyncio.to_thread(gpus.find_gpus)
