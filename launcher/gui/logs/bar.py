"""The controls above the lines: whose log, which lines, and whether it moves."""

import re

from PySide6.QtCore import QDateTime, QLocale, QSignalBlocker, Qt, QTimer, Signal, Slot
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QPushButton, QVBoxLayout, QWidget

from launcher.gui import theme
from launcher.gui.labels import Label, as_tip
from launcher.gui.logs.lines import Wanted
from launcher.gui.logs.sources import OURS, Kind, Source
from launcher.gui.widgets import ComboBox, Segmented
from launcher.gui.widgets.flow import Flow
from launcher.gui.widgets.segmented import keep_room
from launcher.gui.words import tr

_TYPED_MS = 150


class LogBar(QWidget):
    """Tells what the user wants to see."""

    wanted_changed = Signal(object)
    """Wanted"""
    source_chosen = Signal(object)
    """Source"""

    def __init__(self) -> None:
        super().__init__()
        self.sources = ComboBox()
        self.sources.setAccessibleName(tr("Whose log"))
        self.sources.setToolTip(tr("This window's server, those of other programs of yours, and earlier log files"))
        self.sources.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.sources.setMinimumContentsLength(24)
        self.search = QLineEdit()
        self.search.setPlaceholderText(tr("Only lines with …"))
        self.search.setAccessibleName(tr("Only lines with this text"))
        self.search.setToolTip(tr("Shows the lines that hold this text (Ctrl+F)"))
        self.search.setClearButtonEnabled(True)
        self.regex = QCheckBox(tr("Regex"))
        self.regex.setToolTip(tr("Take the text for a regular expression, such as n_ctx|n_batch"))
        self.level = Segmented(tr("Level"), [("", tr("All")), ("W", tr("Warnings")), ("E", tr("Errors"))])
        self.level.setToolTip(tr("All lines, warnings and errors, or errors alone"))
        self.polling = QCheckBox(tr("Hide polling"))
        self.polling.setChecked(True)
        self.polling.setToolTip(tr("Hide what the engine prints each time it is asked how it is"))
        self.follow = QPushButton(tr("Follow"))
        self.follow.setCheckable(True)
        self.follow.setChecked(True)
        self.follow.setToolTip(tr("Stay at the end as lines come (End)"))
        self.pause = QPushButton(tr("Pause"))
        self.pause.setCheckable(True)
        self.pause.setToolTip(tr("Hold the lines still; what comes meanwhile is shown afterwards (Ctrl+P)"))
        for button in (self.follow, self.pause):
            button.setObjectName("segment")  # so that it is seen to be down
            button.setProperty("end", "only")
            keep_room(button)
        self._wrong = Label()
        self._wrong.setObjectName("secondary")
        self._wrong.setWordWrap(True)
        self._wrong.hide()
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.setInterval(_TYPED_MS)
        self._soon.timeout.connect(self.tell)
        self.search.textChanged.connect(lambda _text: self._soon.start())
        self.regex.toggled.connect(self.tell)
        self.polling.toggled.connect(self.tell)
        self.level.changed.connect(self.tell)
        self.sources.activated.connect(self._choose)
        self.first = Flow(gap=theme.px(theme.GAP))
        self.first.add(self.sources, wide=True)
        second = Flow(gap=theme.px(theme.GAP))
        second.add(self.search, wide=True)
        for widget in (self.regex, self.level, self.polling, self.follow, self.pause):
            second.add(widget)
        self.search.setMinimumWidth(theme.px(150))
        self.sources.setMinimumWidth(theme.px(220))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP))
        layout.addLayout(self.first)
        layout.addLayout(second)
        layout.addWidget(self._wrong)
        self.show_sources((), OURS)

    @property
    def source(self) -> Source:
        """What is chosen."""
        found = self.sources.currentData()
        return found if isinstance(found, Source) else OURS

    @property
    def others(self) -> tuple[Source, ...]:
        """What is offered beside this window's server."""
        return tuple(self.sources.itemData(at) for at in range(1, self.sources.count()))

    def show_sources(self, found: tuple[Source, ...], chosen: Source) -> None:
        """Offer these beside this window's server."""
        with QSignalBlocker(self.sources):
            self.sources.clear()
            offered = [OURS, *found]
            if chosen not in offered:
                offered.append(chosen)
            for source in offered:
                self.sources.addItem(_words(source), source)
                self.sources.setItemData(self.sources.count() - 1, as_tip(source.where), Qt.ItemDataRole.ToolTipRole)
            self.sources.setCurrentIndex(offered.index(chosen))

    @Slot()
    def tell(self) -> None:
        """Tell what is wanted, if the text is one that can be searched for."""
        wanted = Wanted(
            str(self.level.value or ""), self.search.text(), self.regex.isChecked(), self.polling.isChecked()
        )
        try:
            wanted.test()
        except re.error as error:
            self._wrong.setText(tr("This is no regular expression: {why}.", why=error.msg))
            self._wrong.show()
            return
        self._wrong.hide()
        self.wanted_changed.emit(wanted)

    @Slot(int)
    def _choose(self, _index: int) -> None:
        self.source_chosen.emit(self.source)


def _words(source: Source) -> str:
    if source.kind is Kind.OURS:
        return tr("This window's server")
    if source.kind is Kind.SERVER:
        return tr("Server at {address}", address=source.where.removeprefix("http://"))
    name = source.where.replace("\\", "/").rpartition("/")[2]
    if not source.modified_s:
        return tr("File {name}", name=name)
    written = QLocale().toString(QDateTime.fromSecsSinceEpoch(int(source.modified_s)), QLocale.FormatType.ShortFormat)
    return tr("File {name}, {when}", name=name, when=written)
