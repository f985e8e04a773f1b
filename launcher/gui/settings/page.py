"""The Settings page: all declared settings by group, with search and reset."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from PySide6.QtCore import QCoreApplication, Qt, Slot
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication, QFrame, QHBoxLayout, QLineEdit, QScrollArea, QVBoxLayout, QWidget

from launcher.app import settings
from launcher.app.settings import SettingsSnapshot, SettingState
from launcher.app.settings_declared import APPLY, MODELS_FOLDER, MOTION, SETTINGS, SYSTEM, THEME, Setting
from launcher.app.settings_file import Value
from launcher.base.errors import LauncherError
from launcher.base.paths import explain_os_error
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import ElidedLabel, Label, display_path
from launcher.gui.settings.controls import SettingRow
from launcher.gui.settings.sharing import SharingCard
from launcher.gui.translation import tr
from launcher.gui.widgets import Banner, Card, PageHead
from launcher.gui.widgets.blocks import make_caption

_WIDEST = 920
_T = TypeVar("_T")


class SettingsPage(QWidget):
    """Page generated from launcher.app.settings_declared.SETTINGS."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._write_lock = asyncio.Lock()
        """Used on the core's thread: writes happen in the order of the choices."""
        self.rows: dict[str, SettingRow] = {}
        self.cards: dict[str, Card] = {}
        self.search = QLineEdit()
        self.search.setPlaceholderText(tr("Search settings"))
        self.search.setAccessibleName(tr("Search settings"))
        self.search.setToolTip(tr("Shows settings that contain all of these words (Ctrl+F)"))
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
        self.none = Label()
        self.none.setObjectName("secondary")
        self.none.setWordWrap(True)
        self.none.hide()
        self.path = ElidedLabel()
        """The file of the settings; empty until they are read."""
        self.path.setObjectName("secondary")
        self.path.setTextInteractionFlags(theme.SELECTABLE)
        self._where = self._make_path_line()
        self._steps = self._lay_out()
        self.build_next_part()
        controller.setting_changed.connect(self._handle_setting)

    def build_next_part(self) -> bool:
        """Build the next card. Returns False when none is left."""
        return next(self._steps, False)

    def on_shown(self) -> None:
        """Read all settings: the file may have been edited."""
        run = self._controller.bridge.run
        run(
            lambda _report: asyncio.to_thread(_explain_errors, settings.read_app_settings),
            done=self._show_settings,
            failed=self._show_error,
        )
        run(lambda _report: asyncio.to_thread(settings.hub_token_source), done=self._show_token)

    def filter_rows(self, text: str) -> None:
        """Show only the settings that contain all words of a text."""
        words = text.casefold().split()
        for row in self.rows.values():
            row.setVisible(row.matches(words))
        token = tr("Hugging Face token").casefold()
        self.token.setVisible(all(word in token for word in words))
        for group, card in self.cards.items():
            seen = [row for row in self.rows.values() if row.setting.group == group and not row.isHidden()]
            card.setVisible(bool(seen) or (group == _TOKEN_GROUP and not self.token.isHidden()))
            for row in seen:
                row.line.setVisible(row is not seen[0])
        self.sharing.setVisible(self.sharing.matches(words))
        self.none.setText(tr("No setting matches “{text}”.", text=text.strip()))
        self.none.setVisible(all(card.isHidden() for card in (*self.cards.values(), self.sharing)))

    def change(self, name: str, value: Value) -> None:
        """Store a value for a setting."""
        declared = settings.find_setting(name)

        def work() -> SettingState:
            meant = settings.parse_value(declared, str(value)) if declared.kind == "folder" else value
            return settings.change_setting(name, meant)

        self._write(work)

    def reset(self, name: str) -> None:
        """Reset a setting to its default."""
        self._write(lambda: settings.reset_setting(name))

    def _write(self, work: Callable[[], SettingState]) -> None:
        self.banner.clear()
        self._controller.bridge.run(
            lambda _report: self._write_in_order(work), done=self._show_changed, failed=self._show_refusal
        )

    async def _write_in_order(self, work: Callable[[], SettingState]) -> SettingState:
        async with self._write_lock:
            return await asyncio.to_thread(_explain_errors, work)

    def _show_changed(self, standing: SettingState) -> None:
        self._show_standing(standing)
        name, value = standing.setting.name, standing.value
        if name == THEME:
            theme.choose(None if value == SYSTEM else str(value))
        elif name == MOTION:
            theme.set_motion(None if value == SYSTEM else False)
        if name in (THEME, MOTION):
            _apply_theme()
        self._controller.apply_setting(name, value)

    @Slot(str, object)
    def _handle_setting(self, name: str, value: Value) -> None:
        """Read the settings again when another page has changed one."""
        standing = self.rows[name].standing if name in self.rows else None  # None while the page is being built
        if standing is not None and standing.value != value:
            self.on_shown()

    def _show_refusal(self, error: LauncherError) -> None:
        self._show_error(error)
        self.on_shown()  # resets the controls to the stored values

    def _show_error(self, error: LauncherError) -> None:
        self.banner.show_message(str(error))

    def _show_settings(self, found: SettingsSnapshot) -> None:
        for standing in found.standings:
            self._show_standing(standing)
        self.path.setText(display_path(found.path))
        self._where.show()
        if found.notices:
            self.banner.show_message("\n".join(found.notices), "attention")

    def _show_token(self, place: str | None) -> None:
        words = {
            None: tr("none found"),
            "HF_TOKEN": tr("found in HF_TOKEN"),
            "file": tr("found in the saved login of hf"),
        }
        self.token_words.setText(words[place])

    def _show_standing(self, standing: SettingState) -> None:
        row = self.rows[standing.setting.name]
        row.show_standing(standing, _value_text(standing.setting, settings.default_of(standing.setting)))

    def _lay_out(self) -> Iterator[bool]:
        """Lay out the page: its frame, then one card per step, then the footer."""
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
        head = PageHead(tr("Settings"), tr("These settings also apply to the command line."))
        head.add_widget(self.search)
        head.setMaximumWidth(theme.px(_WIDEST) - theme.px(theme.GAP))
        self.banner.setMaximumWidth(theme.px(_WIDEST) - theme.px(theme.GAP))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(*(theme.px(theme.GAP_XL),) * 4)
        layout.setSpacing(theme.px(theme.GAP_L))
        for widget in (head, self.banner, area):
            layout.addWidget(widget)
        for group in dict.fromkeys(declared.group for declared in SETTINGS):
            yield True
            self.cards[group] = self._make_card(group)
            column.addWidget(self.cards[group])
            if group == settings.find_setting(APPLY).group:
                column.addWidget(self.sharing)
        yield True
        column.addWidget(self.none)
        column.addWidget(self._where)
        column.addStretch()
        self.filter_rows(self.search.text())
        yield True

    def _make_card(self, group: str) -> Card:
        card = Card(tr(group))
        for declared in SETTINGS:
            if declared.group == group:
                row = self.rows[declared.name] = SettingRow(declared)
                row.changed.connect(self.change)
                row.reset.connect(self.reset)
                card.body.addWidget(row)
        if group == _TOKEN_GROUP:
            card.body.addWidget(self.token)
        return card

    def _make_path_line(self) -> QWidget:
        kept = Label(tr("Saved in"))
        kept.setObjectName("secondary")
        line = QWidget()
        line.setObjectName("plain")
        line.hide()
        layout = QHBoxLayout(line)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(6))
        layout.addWidget(kept)
        layout.addWidget(self.path, 1)
        return line

    def _make_token_row(self) -> QWidget:
        title = Label(tr("Hugging Face token"))
        title.setFont(theme.font(theme.BODY_PX, bold=True))
        sentence = make_caption(
            tr("Needed for gated models. Set HF_TOKEN, or log in with hf. This program never shows or stores it.")
        )
        self.token_words = Label()
        self.token_words.setWordWrap(True)
        words = QVBoxLayout()
        words.setSpacing(theme.px(2))
        words.addWidget(title)
        words.addWidget(sentence)
        words.addWidget(self.token_words)
        line = QFrame()
        line.setObjectName("line")
        line.setFixedHeight(1)
        row = QWidget()
        row.setObjectName("plain")
        layout = QVBoxLayout(row)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(theme.GAP_M))
        layout.addWidget(line)
        layout.addLayout(words)
        return row


_TOKEN_GROUP = settings.find_setting(MODELS_FOLDER).group


def _value_text(declared: Setting, value: Value) -> str:
    if isinstance(value, bool):
        return tr("on") if value else tr("off")
    chosen = next((words for each, words in declared.choices if each == value), None)
    return (
        tr(chosen)
        if chosen is not None
        else f"{value:,} {declared.unit}".strip()
        if isinstance(value, int | float)
        else value
    )


def _explain_errors(work: Callable[[], _T]) -> _T:
    """Run `work`. An OSError becomes a LauncherError with an explanation."""
    try:
        return work()
    except OSError as error:
        raise explain_os_error(error) from error


def _apply_theme() -> None:
    application = QCoreApplication.instance()
    if isinstance(application, QApplication):
        theme.apply(application, theme.current())
