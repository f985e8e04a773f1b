"""What Advanced adds: every flag that the build has, and arguments as they are written."""

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Slot
from PySide6.QtWidgets import QComboBox, QLineEdit, QListWidget, QListWidgetItem, QVBoxLayout, QWidget

from launcher.base.errors import LauncherError
from launcher.gui import theme
from launcher.gui.cockpit.state import SettingsState
from launcher.gui.controller import Controller
from launcher.gui.labels import Label, as_tip, set_tip
from launcher.gui.sentences import say_error
from launcher.gui.widgets import ComboBox
from launcher.gui.words import ntr, tr

if TYPE_CHECKING:
    from launcher.engine.build import Build
    from launcher.engine.flags import Flag

_LIST_HEIGHT = 184
_NOT_GIVEN = ""


class AdvancedFields(QWidget):
    """A list of flags to search, the one that is chosen with its value, and the raw line. All tell one state."""

    def __init__(self, state: SettingsState, controller: Controller) -> None:
        super().__init__()
        self._state, self._controller = state, controller
        self._asked: Build | None = None
        self._flags: tuple[Flag, ...] = ()
        self._flag: Flag | None = None
        self.search = QLineEdit()
        self.search.setPlaceholderText(tr("Search all flags"))
        self.search.setAccessibleName(tr("Search all flags"))
        self.search.setClearButtonEnabled(True)
        set_tip(self.search, tr("Words that occur in a flag's name or description, as the engine's --help has them"))
        self.search.textChanged.connect(self._fill)
        self._count = _caption()
        self.list = QListWidget()
        self.list.setAccessibleName(tr("Flags of the engine"))
        self.list.setFixedHeight(theme.px(_LIST_HEIGHT))
        self.list.setFont(theme.monospace())
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.list.currentItemChanged.connect(self._choose)
        self._description = _caption()
        self._description.setTextInteractionFlags(theme.SELECTABLE)
        self.choice, self.text = ComboBox(), QLineEdit()
        self.choice.activated.connect(lambda _at: self._set(self.choice.currentData()))
        self.text.editingFinished.connect(lambda: self._set(self.text.text().strip()))
        self._refused = _caption("problem-text")
        raw_title = Label(tr("Your own arguments"))
        self.raw = QLineEdit()
        self.raw.setFont(theme.monospace())
        self.raw.setAccessibleName(tr("Your own arguments"))
        self.raw.setPlaceholderText(tr("such as --no-warmup --top-k 20"))
        set_tip(self.raw, tr("Goes to llama-server as it is, after all other arguments: what stands here wins"))
        self.raw.textEdited.connect(lambda text: state.wish("extra", text))
        self._raw_line = _caption()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.px(theme.GAP))
        for widget in (
            self.search, self._count, self.list, self._description, self.choice, self.text, self._refused,
            raw_title, self.raw, self._raw_line,
        ):  # fmt: skip
            column.addWidget(widget)
        self._show_flag()
        state.previewed.connect(self._show_state)
        state.based.connect(self._ask_flags)

    def shown(self) -> None:
        """Ask the engine for its flags, now that somebody looks."""
        self._ask_flags()
        self._show_state()

    @Slot()
    def _ask_flags(self) -> None:
        launch = self._controller.launch
        if launch is None or launch.build is self._asked or not self.isVisible():
            return
        build = self._asked = launch.build
        if not self._flags:
            self._count.setText(tr("Asking {engine} for its flags ...", engine=build.name))
        self._controller.bridge.run(
            lambda _tell: _flags_of(build), done=lambda flags: self._take_flags(build, flags), failed=self._fail
        )

    def _take_flags(self, build: "Build", flags: "tuple[Flag, ...]") -> None:
        if build is self._asked:
            self._flags = flags
            self._fill()

    def _fail(self, error: LauncherError) -> None:
        self._asked = None
        self._count.setText(say_error(error))

    @Slot()
    def _fill(self) -> None:
        """List the flags that the search finds."""
        words, chosen = self.search.text(), self._flag.name if self._flag else ""
        found = [flag for flag in self._flags if flag.matches(words)]
        extra = self._state.extra
        self.list.blockSignals(True)
        self.list.clear()
        for flag in found:
            value = flag.value_in(extra)
            item = QListWidgetItem(flag.name if value is None else f"{flag.name} {value}")
            item.setData(Qt.ItemDataRole.UserRole, flag)
            item.setToolTip(as_tip(flag.description))
            if value is not None:
                item.setFont(theme.monospace())
                item.setForeground(theme.colour("accent"))
            self.list.addItem(item)
            if flag.name == chosen:
                self.list.setCurrentItem(item)
        self.list.blockSignals(False)
        if self._flags:
            self._count.setText(ntr("1 flag", "{n} flags", len(found)) if found else tr("No flag has these words."))

    @Slot(QListWidgetItem, QListWidgetItem)
    def _choose(self, item: QListWidgetItem | None, _before: QListWidgetItem | None) -> None:
        self._flag = item.data(Qt.ItemDataRole.UserRole) if item else None
        self._refused.hide()
        self._show_flag()

    def _show_flag(self) -> None:
        """Show the chosen flag: what it does, its default, and a field of its type."""
        flag = self._flag
        listed = flag is not None and flag.kind in ("switch", "choice")
        self.choice.setVisible(flag is not None and listed)
        self.text.setVisible(flag is not None and not listed)
        self._description.setVisible(flag is not None)
        self._refused.setVisible(False)
        if flag is None:
            return
        from launcher.engine.flags import SET_BY

        value = flag.value_in(self._state.extra)
        usual = tr("Default: {value}.", value=flag.default) if flag.default else ""
        slider = tr("A slider above sets it; given here too, this one wins.") if flag.name in SET_BY else ""
        self._description.setText(" ".join(filter(None, (flag.description, usual, slider))))
        editor: QComboBox | QLineEdit = self.choice if listed else self.text
        editor.setAccessibleName(flag.name)
        set_tip(editor, tr("The value of {flag}; empty leaves it to the engine", flag=flag.name))
        if listed:
            self.choice.clear()
            self.choice.addItem(tr("left to the engine"), _NOT_GIVEN)
            for each in _values(flag):
                self.choice.addItem(each, each)
            self.choice.setCurrentIndex(max(self.choice.findData(value or _NOT_GIVEN), 0))
        else:
            self.text.setPlaceholderText(flag.value or "")
            self.text.setText(value or "")

    def _set(self, value: str) -> None:
        """Give the chosen flag a value, or take it out."""
        flag = self._flag
        if flag is None or value == (flag.value_in(self._state.extra) or _NOT_GIVEN):
            return
        from launcher.engine.extra import join_extra

        try:
            if value:
                flag.check(value) if flag.value is not None else None
        except LauncherError as error:
            self._refused.setText(say_error(error))
            self._refused.show()
            return
        self._refused.hide()
        self._state.wish("extra", join_extra(flag.put_into(self._state.extra, value or None)))

    @Slot()
    def _show_state(self) -> None:
        """Show the line that is wished for, unless it is what the user is writing."""
        if not self.isVisible():
            return
        from launcher.engine.extra import join_extra, split_extra

        state = self._state
        try:
            written: tuple[str, ...] | None = split_extra(self.raw.text())
        except LauncherError:
            written = None
        if written != state.extra and not (written is None and "extra" in state.wishes):
            self.raw.setText(join_extra(state.extra))
        refused = state.refusal if "extra" in state.wishes else ""
        self._raw_line.setText(refused or tr("After all other arguments; what stands here wins."))
        self._fill()
        if self._flag is not None and not self.text.hasFocus():
            self._show_flag()


def _values(flag: "Flag") -> tuple[str, ...]:
    if flag.kind == "choice":
        return flag.choices
    return ("on", "off") if flag.off else ("on",)


def _caption(name: str = "secondary") -> Label:
    label = Label()
    label.setObjectName(name)
    label.setFont(theme.font(theme.CAPTION_PX, tabular=True))
    label.setWordWrap(True)
    return label


async def _flags_of(build: "Build") -> "tuple[Flag, ...]":
    from launcher.engine.flags import flags_of

    return await flags_of(build)
