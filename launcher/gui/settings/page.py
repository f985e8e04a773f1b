"""The Settings page: every declared setting in its group, searched, changed and taken back."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from PySide6.QtCore import QCoreApplication, Qt, Slot
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication, QFrame, QHBoxLayout, QLineEdit, QScrollArea, QVBoxLayout, QWidget

from launcher import settings
from launcher.base.errors import LauncherError
from launcher.base.paths import refusal
from launcher.gui import theme
from launcher.gui.controller import Controller
from launcher.gui.labels import Elided, Label, shown_path
from launcher.gui.settings.row import Row
from launcher.gui.settings.sharing import SharingCard
from launcher.gui.widgets import Banner, Card, PageHead
from launcher.gui.words import tr
from launcher.settings import Look, Standing
from launcher.settings_declared import APPLY, MODELS_FOLDER, MOTION, SETTINGS, SYSTEM, THEME, Setting
from launcher.settings_file import Value

_WIDEST = 920
_T = TypeVar("_T")


class SettingsPage(QWidget):
    """Made from launcher.settings_declared.SETTINGS: what is declared there is here."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self._order = asyncio.Lock()
        """On the core's thread: what is chosen later is written later."""
        self.rows: dict[str, Row] = {}
        self.cards: dict[str, Card] = {}
        self.search = QLineEdit()
        self.search.setPlaceholderText(tr("Search settings"))
        self.search.setAccessibleName(tr("Search settings"))
        self.search.setToolTip(tr("Show what holds all of these words (Ctrl+F)"))
        self.search.setClearButtonEnabled(True)
        self.search.setMinimumWidth(theme.px(120))
        self.search.textChanged.connect(self.show_found)
        QShortcut(
            QKeySequence.StandardKey.Find,
            self,
            self.search.setFocus,
            context=Qt.ShortcutContext.WidgetWithChildrenShortcut,
        )
        self.banner = Banner()
        self.sharing = SharingCard(controller)
        self.sharing.failed.connect(self._fail)
        self.token = self._make_token_row()
        self.none = Label()
        self.none.setObjectName("secondary")
        self.none.setWordWrap(True)
        self.none.hide()
        self._path = Elided()
        self._path.setObjectName("secondary")
        self._path.setTextInteractionFlags(theme.SELECTABLE)
        self._where = self._make_path_line()
        self._steps = self._lay_out()
        self.build_on()
        controller.setting_changed.connect(self._take_setting)

    def build_on(self) -> bool:
        """Build the next card, if one is left."""
        return next(self._steps, False)

    def shown(self) -> None:
        """Read how all stand: the file may have been edited."""
        run = self._controller.bridge.run
        run(lambda _tell: asyncio.to_thread(_explained, settings.look), done=self._show, failed=self._fail)
        run(lambda _tell: asyncio.to_thread(settings.hub_token), done=self._show_token)

    def show_found(self, text: str) -> None:
        """Show the settings that hold all words of a text."""
        words = text.casefold().split()
        for row in self.rows.values():
            row.setVisible(row.holds(words))
        token = tr("Hugging Face token").casefold()
        self.token.setVisible(all(word in token for word in words))
        for group, card in self.cards.items():
            seen = [row for row in self.rows.values() if row.setting.group == group and not row.isHidden()]
            card.setVisible(bool(seen) or (group == _TOKEN_GROUP and not self.token.isHidden()))
            for row in seen:
                row.line.setVisible(row is not seen[0])
        self.sharing.setVisible(self.sharing.holds(words))
        self.none.setText(tr("No setting holds “{text}”.", text=text.strip()))
        self.none.setVisible(all(card.isHidden() for card in (*self.cards.values(), self.sharing)))

    def change(self, name: str, value: Value) -> None:
        """Choose a value for a setting."""
        declared = settings.setting(name)

        def work() -> Standing:
            meant = settings.parse(declared, str(value)) if declared.kind == "folder" else value
            return settings.change(name, meant)

        self._write(work)

    def reset(self, name: str) -> None:
        """Go back to a setting's default."""
        self._write(lambda: settings.reset(name))

    def _write(self, work: Callable[[], Standing]) -> None:
        self.banner.clear()
        self._controller.bridge.run(lambda _tell: self._in_order(work), done=self._changed, failed=self._refused)

    async def _in_order(self, work: Callable[[], Standing]) -> Standing:
        async with self._order:
            return await asyncio.to_thread(_explained, work)

    def _changed(self, standing: Standing) -> None:
        self._show_standing(standing)
        name, value = standing.setting.name, standing.value
        if name == THEME:
            theme.choose(None if value == SYSTEM else str(value))
        elif name == MOTION:
            theme.set_motion(None if value == SYSTEM else False)
        if name in (THEME, MOTION):
            _apply_theme()
        self._controller.take_setting(name, value)

    @Slot(str, object)
    def _take_setting(self, name: str, value: Value) -> None:
        """Look anew where another page changed it."""
        standing = self.rows[name].standing if name in self.rows else None  # not while it is being built
        if standing is not None and standing.value != value:
            self.shown()

    def _refused(self, error: LauncherError) -> None:
        self._fail(error)
        self.shown()  # so that the controls say again how all stand

    def _fail(self, error: LauncherError) -> None:
        self.banner.tell(str(error))

    def _show(self, found: Look) -> None:
        for standing in found.standings:
            self._show_standing(standing)
        self._path.setText(shown_path(found.path))
        self._where.show()
        if found.notices:
            self.banner.tell("\n".join(found.notices), "attention")

    def _show_token(self, place: str | None) -> None:
        words = {
            None: tr("none found"),
            "HF_TOKEN": tr("found in HF_TOKEN"),
            "file": tr("found where the hub's own tools keep it"),
        }
        self.token_words.setText(words[place])

    def _show_standing(self, standing: Standing) -> None:
        row = self.rows[standing.setting.name]
        row.show_standing(standing, _words(standing.setting, settings.default_of(standing.setting)))

    def _lay_out(self) -> Iterator[bool]:
        """Lay out the page: its frame, then a card a step, then what stands under them."""
        inner = QWidget()
        inner.setObjectName("plain")
        inner.setMaximumWidth(theme.px(_WIDEST))
        column = QVBoxLayout(inner)
        column.setContentsMargins(0, 0, theme.px(theme.GAP), 0)
        column.setSpacing(theme.px(theme.GAP_L))
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setWidget(inner)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)  # at 200 %
        area.setAccessibleName(tr("Settings"))
        head = PageHead(tr("Settings"), tr("What is chosen here holds in the terminal, too."))
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
            if group == settings.setting(APPLY).group:
                column.addWidget(self.sharing)
        yield True
        column.addWidget(self.none)
        column.addWidget(self._where)
        column.addStretch()
        self.show_found(self.search.text())
        yield True

    def _make_card(self, group: str) -> Card:
        card = Card(tr(group))
        for declared in SETTINGS:
            if declared.group == group:
                row = self.rows[declared.name] = Row(declared)
                row.changed.connect(self.change)
                row.reset.connect(self.reset)
                card.body.addWidget(row)
        if group == _TOKEN_GROUP:
            card.body.addWidget(self.token)
        return card

    def _make_path_line(self) -> QWidget:
        kept = Label(tr("Kept in"))
        kept.setObjectName("secondary")
        line = QWidget()
        line.setObjectName("plain")
        line.hide()
        layout = QHBoxLayout(line)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(theme.px(6))
        layout.addWidget(kept)
        layout.addWidget(self._path, 1)
        return line

    def _make_token_row(self) -> QWidget:
        title = Label(tr("Hugging Face token"))
        title.setFont(theme.font(theme.BODY_PX, bold=True))
        sentence = Label(
            tr("For models behind terms of use. It is never shown nor kept here: set HF_TOKEN, or log in with hf.")
        )
        sentence.setObjectName("secondary")
        sentence.setFont(theme.font(theme.CAPTION_PX))
        sentence.setWordWrap(True)
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


_TOKEN_GROUP = settings.setting(MODELS_FOLDER).group


def _words(declared: Setting, value: Value) -> str:
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


def _explained(work: Callable[[], _T]) -> _T:
    """Do it; what the system refuses is told in a sentence."""
    try:
        return work()
    except OSError as error:
        raise refusal(error) from error


def _apply_theme() -> None:
    application = QCoreApplication.instance()
    if isinstance(application, QApplication):
        theme.apply(application, theme.current())
