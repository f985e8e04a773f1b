"""The Settings page: the declared settings in sections, with search and reset."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QKeySequence, QResizeEvent, QShortcut
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QHBoxLayout,
    QLineEdit,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from launcher.app import settings
from launcher.app.settings import SettingsSnapshot, SettingState
from launcher.app.settings_declared import APPLY, CACHE_DAYS, CACHE_DISK, MODELS_FOLDER, SETTINGS, Setting
from launcher.app.settings_file import AppSettingValue
from launcher.base.errors import LauncherError
from launcher.base.paths import explain_os_error
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import ElidedLabel, Label, display_path
from launcher.gui.settings.controls import SettingRow
from launcher.gui.settings.kept import KeptRow
from launcher.gui.settings.sections import SectionList
from launcher.gui.settings.sharing import SharingCard
from launcher.gui.translation import tr
from launcher.gui.widgets import Banner, Card, PageHead
from launcher.gui.widgets.blocks import make_caption

_WIDEST, _NARROW = 920, 640
"""In pixels: maximum width of the settings; page width below which the sections are above them, not beside."""
_GROUPS = tuple(dict.fromkeys(setting.group for setting in SETTINGS))
"""The sections, in display order."""
_TOKEN_GROUP = settings.find_setting(MODELS_FOLDER).group
"""The section that also shows where the hub's token comes from."""
_SERVER_GROUP = settings.find_setting(APPLY).group
"""The section with the card for sharing, and with what is kept of conversations."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """Where the user was on the page: the section, the search, and the setting whose control had the focus."""

    section: str
    search: str
    focused: str


class SettingsPage(QWidget):
    """Page generated from launcher.app.settings_declared.SETTINGS."""

    def __init__(self, controller: Controller, kept: KeptPlace | None = None) -> None:
        super().__init__()
        self._kept = kept
        self._controller = controller
        self._write_lock = asyncio.Lock()
        """Held on the core's thread during a write, so that writes happen in the order of the user's changes."""
        self.rows: dict[str, SettingRow] = {}
        self.cards: dict[str, Card] = {}
        self.sections = SectionList({group: tr(group) for group in _GROUPS})
        self.sections.chosen.connect(self._handle_section)
        self.search = QLineEdit()
        self.search.setPlaceholderText(tr("Search settings"))
        self.search.setAccessibleName(tr("Search settings"))
        self.search.setToolTip(tr("Shows settings of all sections that contain all of these words (Ctrl+F)"))
        self.search.setClearButtonEnabled(True)
        self.search.setMinimumWidth(theme.px(120))
        self.search.textChanged.connect(self.filter_rows)
        QShortcut(
            QKeySequence.StandardKey.Find,
            self,
            self.search.setFocus,
            context=Qt.ShortcutContext.WidgetWithChildrenShortcut,
        )
        self.banner = Banner()
        self.sharing = SharingCard(controller)
        self.sharing.failed.connect(self._show_error)
        self.token = self._make_token_row()
        self.kept = KeptRow()
        self.kept.forget_requested.connect(self._forget_kept)
        self.no_match = Label()
        self.no_match.setObjectName("secondary")
        self.no_match.setWordWrap(True)
        self.no_match.hide()
        self.path = ElidedLabel()
        """The file of the settings; empty until they are read."""
        self.path.setObjectName("secondary")
        self.path.setTextInteractionFlags(theme.SELECTABLE)
        self._path_line = self._make_path_line()
        self._build_steps = self._lay_out()
        self.build_next_part()
        controller.setting_changed.connect(self._handle_setting)

    def build_next_part(self) -> bool:
        """Build the next part of the page. Returns False when none is left."""
        return next(self._build_steps, False)

    def hand_over(self) -> KeptPlace:
        """Leave the place on the page to the next one."""
        focused = self.focusWidget()
        names = (name for name, row in self.rows.items() if focused is not None and row.isAncestorOf(focused))
        return KeptPlace(self.sections.value, self.search.text(), next(names, ""))

    def _go_back_to(self, kept: KeptPlace) -> None:
        self.sections.set_value(kept.section)
        self.search.setText(kept.search)
        self.filter_rows(kept.search)
        if kept.focused:
            self._area.ensureWidgetVisible(self.rows[kept.focused])

    def on_shown(self) -> None:
        """Read all settings: the file may have been edited."""
        run = self._controller.bridge.run
        run(
            _explain_errors,
            settings.read_app_settings,
            done=self._show_settings,
            failed=self._show_error,
        )
        run(settings.hub_token_source, done=self._show_token)
        run(settings.read_kept, done=self.kept.show_use)

    @Slot()
    def _forget_kept(self) -> None:
        self._controller.bridge.run(settings.forget_kept, done=self.kept.show_use)

    def show_setting(self, name: str) -> None:
        """Show the section of a setting, scrolled to it."""
        while self.build_next_part():
            pass
        self.search.clear()
        self.show_section(settings.find_setting(name).group)
        self._area.ensureWidgetVisible(self.rows[name])

    def show_section(self, group: str) -> None:
        """Show a section, from its top."""
        self.sections.set_value(group)
        self.filter_rows(self.search.text())
        self._area.verticalScrollBar().setValue(0)

    @Slot(str)
    def _handle_section(self, group: str) -> None:
        """Show the section that the user chose, which ends a search."""
        self.search.clear()
        self.show_section(group)

    def filter_rows(self, text: str) -> None:
        """Show the settings with all words of a text, of all sections; without words, all settings of one section."""
        words = text.casefold().split()
        for row in self.rows.values():
            row.setVisible(row.matches(words))
        token = tr("Hugging Face token").casefold()
        self.token.setVisible(all(word in token for word in words))
        self.kept.setVisible(self.kept.matches(words))
        extra = {_TOKEN_GROUP: self.token, _SERVER_GROUP: self.kept}
        found = set()
        for group, card in self.cards.items():
            matching = [row for row in self.rows.values() if row.setting.group == group and not row.isHidden()]
            for row in matching:
                row.line.setVisible(row is not matching[0])
            if matching or (group in extra and not extra[group].isHidden()):
                found.add(group)
            card.setVisible(group in found and (bool(words) or group == self.sections.value))
        shares = self.sharing.matches(words)
        self.sharing.setVisible(shares and (bool(words) or self.sections.value == _SERVER_GROUP))
        found |= {_SERVER_GROUP} if shares else set()
        self.sections.mark_found(found if words else None)
        self.no_match.setText(tr("No setting matches “{text}”.", text=text.strip()))
        self.no_match.setVisible(not found)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 -- Qt's name
        """Put the sections beside the settings, or above them on a narrow page."""
        super().resizeEvent(event)
        narrow = event.size().width() < theme.px(_NARROW)
        across, down = QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom
        self._columns.setDirection(down if narrow else across)
        self.sections.set_narrow(narrow=narrow)

    def change_setting(self, name: str, value: AppSettingValue) -> None:
        """Store a value for a setting."""
        setting = settings.find_setting(name)

        def store_value() -> SettingState:
            parsed = settings.parse_value(setting, str(value)) if setting.kind == "folder" else value
            return settings.change_setting(name, parsed)

        self._write(store_value)

    def reset_setting(self, name: str) -> None:
        """Reset a setting to its default."""
        self._write(lambda: settings.reset_setting(name))

    def _write(self, work: Callable[[], SettingState]) -> None:
        self.banner.clear()
        self._controller.bridge.run(self._write_in_order, work, done=self._show_changed, failed=self._show_refusal)

    async def _write_in_order(self, work: Callable[[], SettingState]) -> SettingState:
        async with self._write_lock:
            return await asyncio.to_thread(_explain_errors, work)

    def _show_changed(self, state: SettingState) -> None:
        self._show_state(state)
        if state.setting.name in (CACHE_DISK, CACHE_DAYS):
            self._controller.bridge.run(settings.read_kept, done=self.kept.show_use)
        self._controller.apply_setting(state.setting.name, state.value)

    @Slot(str, object)
    def _handle_setting(self, name: str, value: AppSettingValue) -> None:
        """Read the settings again when another page has changed one."""
        state = self.rows[name].state if name in self.rows else None  # None while the page is being built
        if state is not None and state.value != value:
            self.on_shown()

    def _show_refusal(self, error: LauncherError) -> None:
        self._show_error(error)
        self.on_shown()  # resets the controls to the stored values

    def _show_error(self, error: LauncherError) -> None:
        self.banner.show_message(str(error))

    def _show_settings(self, snapshot: SettingsSnapshot) -> None:
        for state in snapshot.states:
            self._show_state(state)
        if self._kept is not None and self._kept.focused:  # controls get the focus only now: they are enabled
            controls = self.rows[self._kept.focused].control.findChildren(QWidget)
            next(each for each in controls if each.focusPolicy() & Qt.FocusPolicy.TabFocus).setFocus()
        self._kept = None
        self.path.setText(display_path(snapshot.path))
        self._path_line.show()
        if snapshot.notices:
            self.banner.show_message("\n".join(snapshot.notices), "attention")

    def _show_token(self, source: str | None) -> None:
        source_names = {
            None: tr("none found"),
            "HF_TOKEN": tr("found in HF_TOKEN"),
            "file": tr("found in the saved login of hf"),
        }
        self.token_source.setText(source_names[source])

    def _show_state(self, state: SettingState) -> None:
        row = self.rows[state.setting.name]
        row.show_state(state, _value_text(state.setting, settings.default_value(state.setting)))

    def _lay_out(self) -> Iterator[bool]:
        """Build the page part by part: its frame, then one card after the other, then the footer."""
        inner = QWidget()
        inner.setObjectName("plain")
        inner.setMaximumWidth(theme.px(_WIDEST))
        column = QVBoxLayout(inner)
        column.setContentsMargins(0, 0, theme.px(theme.GAP), 0)
        column.setSpacing(theme.px(theme.GAP_L))
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setWidget(inner)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)  # needed at 200 % text scale
        area.setAccessibleName(tr("Settings"))
        self._area = area
        head = PageHead(tr("Settings"), tr("These settings also apply to the command line."))
        head.add_widget(self.search)
        self._columns = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._columns.setSpacing(theme.px(theme.GAP_L))
        self._columns.addWidget(self.sections)
        self._columns.addWidget(area, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(*(theme.px(each) for each in (theme.GAP_XL, theme.GAP_L) * 2))
        layout.setSpacing(theme.px(theme.GAP_L))
        for widget in (head, self.banner):
            widget.setMaximumWidth(theme.px(_WIDEST + theme.GAP) + self.sections.sizeHint().width())
            layout.addWidget(widget)
        layout.addLayout(self._columns, 1)
        for group in _GROUPS:
            yield True
            self.cards[group] = self._make_card(group)
            column.addWidget(self.cards[group])
            self.cards[group].setVisible(group == self.sections.value)
            if group == _SERVER_GROUP:
                self.sharing.hide()
                column.addWidget(self.sharing)
        yield True
        column.addWidget(self.no_match)
        column.addWidget(self._path_line)
        column.addStretch(1)  # else the cards would share the rest of the height
        self.filter_rows(self.search.text())
        if self._kept is not None:
            self._go_back_to(self._kept)
        yield True

    def _make_card(self, group: str) -> Card:
        card = Card(tr(group))
        for setting in SETTINGS:
            if setting.group == group:
                row = self.rows[setting.name] = SettingRow(setting)
                row.changed.connect(self.change_setting)
                row.reset.connect(self.reset_setting)
                card.body.addWidget(row)
                if setting.name == CACHE_DISK:
                    card.body.addWidget(self.kept)
        if group == _TOKEN_GROUP:
            card.body.addWidget(self.token)
        return card

    def _make_path_line(self) -> QWidget:
        caption = Label(tr("Saved in"))
        caption.setObjectName("secondary")
        line = QWidget()
        line.setObjectName("plain")
        line.hide()
        layout = QHBoxLayout(line)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(6))
        layout.addWidget(caption)
        layout.addWidget(self.path, 1)
        return line

    def _make_token_row(self) -> QWidget:
        title = Label(tr("Hugging Face token"))
        title.setFont(theme.font(theme.BODY_PX, bold=True))
        sentence = make_caption(
            tr("Needed for gated models. Set HF_TOKEN, or log in with hf. This program never shows or stores it.")
        )
        self.token_source = Label()
        self.token_source.setWordWrap(True)
        texts = QVBoxLayout()
        texts.setSpacing(theme.px(2))
        texts.addWidget(title)
        texts.addWidget(sentence)
        texts.addWidget(self.token_source)
        line = QFrame()
        line.setObjectName("line")
        line.setFixedHeight(1)
        row = QWidget()
        row.setObjectName("plain")
        layout = QVBoxLayout(row)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP_M))
        layout.addWidget(line)
        layout.addLayout(texts)
        return row


def _value_text(setting: Setting, value: AppSettingValue) -> str:
    if isinstance(value, bool):
        return tr("on") if value else tr("off")
    for choice, label in (*setting.choices, *([(setting.least, setting.least_text)] if setting.least_text else [])):
        if choice == value:
            return tr(label)
    return value if isinstance(value, str) else f"{value:,} {setting.unit}".strip()


def _explain_errors(work: Callable[[], _T]) -> _T:
    """Run `work`. An OSError becomes a LauncherError with an explanation."""
    try:
        return work()
    except OSError as error:
        raise explain_os_error(error) from error
