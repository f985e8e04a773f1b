"""The search of the library: the field with its filter and order, the line about the hub, and the card of links."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QPushButton, QSizePolicy, QWidget

from launcher.app.models.model_library import place_of_model
from launcher.gui import theme
from launcher.gui.labels import Label
from launcher.gui.late import hub_model
from launcher.gui.translation import tr
from launcher.gui.widgets import Card, ComboBox, Segmented
from launcher.gui.widgets.blocks import ButtonAction, make_button, make_caption
from launcher.gui.widgets.flow import FlowLayout

if TYPE_CHECKING:
    from launcher.app.models.model_library import LibraryModel

ALL, HERE, CAN_GET = "all", "here", "get"
BEST, FASTEST, SMALLEST, NEWEST, LAST_USED, BY_NAME = "best", "speed", "size", "date", "used", "name"


def filter_models(models: list[LibraryModel], text: str, shown: str) -> list[LibraryModel]:
    """Return the models whose names, files or places have all words of `text`, of those that a filter lets through."""
    words = text.casefold().split()

    def is_shown(model: LibraryModel) -> bool:
        if shown == HERE and not model.is_here:
            return False
        if shown == CAN_GET and not (model.found or any(each.download_id and not each.local for each in model.files)):
            return False
        return all(word in _searched_text(model) for word in words)

    return [each for each in models if is_shown(each)]


def sort_models(models: list[LibraryModel], order: str, *, by_fit: bool = True) -> list[LibraryModel]:
    """Return models in an order; those without a figure come last, by their place for this machine.

    `by_fit` is that of `place_of_model`.
    """

    def key(model: LibraryModel) -> tuple[object, ...]:
        first, place = model.first, place_of_model(model, by_fit=by_fit)
        if order == BY_NAME:
            return (model.name.casefold(), place)
        figure: float | None = None
        if order == FASTEST and first is not None and first.plan is not None and not first.is_too_big:
            speed = first.plan.forecast or first.plan.reading
            figure = -speed.tokens_per_second if speed is not None else None
        elif order == SMALLEST and first is not None:
            figure = first.size_bytes
        elif order == NEWEST:
            time_s = model_time(model)
            figure = None if time_s is None else -time_s
        elif order == LAST_USED and model.used_s is not None:
            figure = -model.used_s
        return (figure is None, figure or 0.0, place)

    return sorted(models, key=key)


def model_time(model: LibraryModel) -> float | None:
    """Return when a model was released, else when its newest file came or changed, in seconds since 1970."""
    if not model.released:
        return model.changed_s
    return datetime.fromisoformat(f"{model.released}-01"[:10]).replace(tzinfo=UTC).timestamp()


def _searched_text(model: LibraryModel) -> str:
    parts = [model.name, model.key, model.repo, model.entry.family if model.entry is not None else ""]
    for file in model.files:
        parts.append(file.quant)
        if file.local is not None:
            parts += [str(file.local.path), file.local.label, file.local.store.title if file.local.store else ""]
    return "\n".join(parts).casefold()


class SearchField(QLineEdit):
    """The field. Down goes to the list, Esc clears it."""

    left_down = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setPlaceholderText(tr("Search models, or paste a link"))
        self.setAccessibleName(tr("Search models"))
        self.setClearButtonEnabled(True)

    def minimumSizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the size that shows all of the placeholder."""
        words, around = self.fontMetrics().horizontalAdvance(self.placeholderText()), theme.px(theme.GAP_XL)
        return QSize(words + 2 * around, super().minimumSizeHint().height())

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 -- Qt's name
        """Leave the field with Down, clear it with Esc."""
        if event.key() == Qt.Key.Key_Down:
            self.left_down.emit()
        elif event.key() == Qt.Key.Key_Escape and self.text():
            self.clear()
        else:
            super().keyPressEvent(event)


class SearchLine(QWidget):
    """Field, filter and order in a line; in a narrow page in two."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("plain")
        self.field = SearchField()
        self.filter = Segmented(tr("Show"), [(ALL, tr("All")), (HERE, tr("Here")), (CAN_GET, tr("Can get"))])
        self.filter.button(HERE).setToolTip(tr("Models on this computer"))
        self.filter.button(CAN_GET).setToolTip(tr("Models with files that can be downloaded"))
        self.order = ComboBox()
        self.order.setAccessibleName(tr("Order"))
        for value, text in (
            (BEST, tr("Best for this computer")),
            (FASTEST, tr("Fastest")),
            (SMALLEST, tr("Smallest")),
            (NEWEST, tr("Newest")),
            (LAST_USED, tr("Last used")),
            (BY_NAME, tr("Name")),
        ):
            self.order.addItem(text, value)
        layout = FlowLayout(self, gap=theme.px(theme.GAP))
        layout.add(self.field, wide=True)
        layout.add(self.filter)
        layout.add(self.order)
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self.field.textChanged.connect(lambda _text: self.changed.emit())
        self.filter.changed.connect(lambda _value: self.changed.emit())
        self.order.activated.connect(lambda _index: self.changed.emit())

    @property
    def text(self) -> str:
        """The words of the search."""
        return self.field.text().strip()

    def minimumSizeHint(self) -> QSize:  # noqa: N802 -- Qt's name
        """Return the height that the width needs."""
        layout = self.layout()
        least = layout.minimumSize() if layout is not None else QSize()
        return QSize(least.width(), self.heightForWidth(max(self.width(), least.width())))


class HubLine(QWidget):
    """A line on the search of the hub: its state, and buttons for what can be done about it."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("plain")
        self.text = Label()
        self.text.setObjectName("secondary")
        self.text.setWordWrap(True)
        self.buttons: list[QPushButton] = []
        self._row = QHBoxLayout(self)
        self.set_inset(theme.GAP_L)
        self._row.setSpacing(theme.px(theme.GAP))
        self._row.addWidget(self.text, 1)
        self.hide()

    def set_inset(self, pixels: int) -> None:
        """Set the distance of the line's content from its sides, in pixels."""
        self._row.setContentsMargins(*(theme.px(each) for each in (pixels, 6, pixels, 6)))

    def show_state(self, text: str, buttons: tuple[ButtonAction, ...] = ()) -> None:
        """Show a state, or hide the line if the text is empty."""
        self.text.setText(text)
        for button in self.buttons:
            self._row.removeWidget(button)
            button.hide()
            button.deleteLater()
        self.buttons = []
        for label, clicked in buttons:
            button = make_button(label, clicked)
            button.setObjectName("dense")
            button.setAutoDefault(True)
            self._row.addWidget(button)
            self.buttons.append(button)
        self.setVisible(bool(text))


class AddCard(Card):
    """Adds a file, a folder or a link. Hidden until it is asked for."""

    def __init__(
        self,
        show_files: Callable[[str], object],
        download: Callable[[str], object],
        choose_file: Callable[[], object],
        choose_folder: Callable[[], object],
    ) -> None:
        super().__init__()
        self._show_files, self._download = show_files, download
        self.address = QLineEdit()
        self.address.setPlaceholderText(tr("Hugging Face link, OWNER/NAME:QUANT, or a URL and its SHA-256"))
        self.address.setAccessibleName(tr("Another file"))
        self.address.setToolTip(tr("A Hugging Face file, or an https URL, a space and the SHA-256 from its page"))
        self.address.setMinimumWidth(theme.px(220))
        self.hint = make_caption()
        self.hint.hide()
        self.show_button = make_button(tr("Show files"), self._press_show)
        self.show_button.setToolTip(tr("Read the list of its files from Hugging Face, and the header of one: a few MB"))
        self.add_button = make_button(tr("Download"), self._press_download)
        self.add_button.setToolTip(tr("Download the file entered here"))
        file_button = make_button(tr("Choose a file …"), choose_file)
        folder_button = make_button(tr("Add a folder …"), choose_folder)
        folder_button.setToolTip(tr("Also find models in another folder"))
        row = FlowLayout(gap=theme.px(theme.GAP))
        row.add(self.address, wide=True)
        for button in (self.show_button, self.add_button, file_button, folder_button):
            row.add(button)
        self.body.setContentsMargins(*(theme.px(theme.GAP_M),) * 4)
        self.body.setSpacing(theme.px(theme.GAP))
        self.body.addLayout(row)
        self.body.addWidget(self.hint)
        self.address.textChanged.connect(lambda _text: self._show_buttons())
        self.address.returnPressed.connect(self._press_default)
        self._show_buttons()
        self.hide()

    def show_address(self, text: str) -> None:
        """Show the card with an address, and say what it lacks."""
        self.show()
        self.address.setText(text)
        self.address.setFocus()
        self.address.setCursorPosition(len(text))
        if self._is_foreign(text) and " " not in text:
            self.hint.setText(tr("Write the SHA-256 from its page after the URL, with a space between."))
            self.hint.show()

    @property
    def _text(self) -> str:
        return self.address.text().strip()

    def _show_buttons(self) -> None:
        self.hint.hide()
        self.show_button.setEnabled(bool(self._text) and not self._is_foreign(self._text))
        self.add_button.setEnabled(bool(self._text))

    @staticmethod
    def _is_foreign(text: str) -> bool:
        """Return whether a text is the address of a file that is not on the hub."""
        return "://" in text and hub_model.parse_hub_name(text.split()[0]) is None

    def _press_default(self) -> None:
        if self._text:
            (self._press_download if self._is_foreign(self._text) else self._press_show)()

    def _press_show(self) -> None:
        self._show_files(self._text)

    def _press_download(self) -> None:
        self._download(self._text)
        self.address.clear()
