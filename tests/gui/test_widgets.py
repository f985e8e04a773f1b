"""The basic widgets: their texts and signals, for screen readers and the keyboard."""

from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QImage, QWheelEvent
from PySide6.QtWidgets import (
    QApplication,
    QDialog,
    QHBoxLayout,
    QLabel,
    QMainWindow,
    QMenu,
    QPushButton,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)
from pytestqt.qtbot import QtBot

from launcher.base.errors import BadOption
from launcher.gui import theme
from launcher.gui.labels import Label, display_path
from launcher.gui.widgets import (
    Badge,
    Banner,
    Card,
    EmptyState,
    Glyph,
    MemoryBar,
    PageHead,
    ProgressLine,
    Segmented,
    SliderField,
)
from launcher.gui.widgets.blocks import open_menu_with
from launcher.gui.widgets.confirm_button import ConfirmButton
from launcher.gui.widgets.focus import FocusKeeper
from launcher.gui.widgets.glyphs import NAMES
from launcher.models.plan import Status
from tests.gui.walk import hidden_by_parents, list_clipped_texts

MIB = 2**20
PARTS = [("weights", "weights", 15_904 * MIB), ("kv", "KV", 2_720 * MIB), ("state", "state", 0)]


@pytest.fixture(autouse=True)
def _light_theme(qapp: QApplication) -> None:
    theme.apply_theme(qapp, theme.LIGHT)


def render_widget(widget: QWidget, qtbot: QtBot, width: int = 600) -> QImage:
    qtbot.addWidget(widget)
    widget.resize(width, max(widget.heightForWidth(width), widget.sizeHint().height()))
    widget.show()
    return widget.grab().toImage()


def colours(image: QImage, y: int) -> list[QColor]:
    return [image.pixelColor(x, y) for x in range(image.width())]


class TestMemoryBar:
    def test_the_width_of_a_part_is_its_share(self, qtbot: QtBot) -> None:
        bar = MemoryBar()
        bar.show_parts(PARTS, 24_564 * MIB, 1_120 * MIB, 600 * MIB)
        row = colours(render_widget(bar, qtbot, 1_000), 3)
        weights = QColor(theme.current().memory[0])
        assert sum(each == weights for each in row) == pytest.approx(1_000 * 15_904 / 24_564, abs=4)
        assert bar.missing == 0
        output = bar.accessibleName()
        assert "weights 15,904 MiB, KV 2,720 MiB, other programs 1,120 MiB" in output
        assert "free 4,820 of 24,564 MiB" in output
        assert "state" not in output, "a part of nothing is not shown"

    def test_parts_that_do_not_fit_are_drawn_beyond_the_edge_and_counted(self, qtbot: QtBot) -> None:
        bar = MemoryBar()
        bar.show_parts(PARTS, 16_000 * MIB, None, None)
        row = colours(render_widget(bar, qtbot), 3)
        bad = QColor(theme.current().bad)
        assert sum(each == bad for each in row) == pytest.approx(600 * 2_624 / 18_624, abs=5)
        assert bar.missing == 2_624 * MIB
        assert "2,624 MiB too much for 16,000 MiB" in bar.accessibleName()

    def test_rounded_figures_add_up(self) -> None:
        bar = MemoryBar()
        third = MIB + MIB // 3
        bar.show_parts([("weights", "a", third), ("kv", "b", third), ("state", "c", third)], 10 * MIB, MIB, None)
        assert bar.accessibleName() == "Memory: a 2 MiB, b 1 MiB, c 1 MiB, other programs 1 MiB; free 5 of 10 MiB"
        bar.show_parts([("weights", "a", 2 * MIB)], 10 * MIB, MIB, None, servers=3 * MIB)
        assert bar.accessibleName() == "Memory: a 2 MiB, other servers 3 MiB, other programs 1 MiB; free 4 of 10 MiB"
        bar.show_parts([("weights", "a", third)], 10 * MIB, MIB, None, needed=9 * MIB + 1)
        assert "1 MiB too much for 10 MiB" in bar.accessibleName(), "its share of one GPU is larger"

    def test_an_unknown_memory_has_a_reason(self, qtbot: QtBot) -> None:
        bar = MemoryBar()
        bar.show_unknown("The driver tells nothing.")
        render_widget(bar, qtbot)
        assert bar.accessibleName() == "Memory: not known. The driver tells nothing."

    def test_the_legend_uses_the_lines_it_needs(self) -> None:
        bar = MemoryBar()
        bar.show_parts(PARTS, 24_564 * MIB, 1_120 * MIB, None)
        assert bar.heightForWidth(200) > bar.heightForWidth(900)


class TestSliderField:
    def test_value_changed_is_emitted_for_user_input_only(self, qtbot: QtBot) -> None:
        field = SliderField("Context", [2_048, 4_096, 8_192], format_value=lambda each: f"{each:,}")
        received: list[object] = []
        field.value_changed.connect(received.append)
        render_widget(field, qtbot)
        field.set_value(8_192)
        assert field.value == 8_192
        assert received == []
        qtbot.keyClick(field.slider, Qt.Key.Key_Left)
        assert received == [4_096]
        assert field.slider.accessibleName() == "Context"
        assert field.slider.accessibleDescription() == "4,096"

    def test_a_value_between_two_steps_is_a_step_until_the_value_is_another(self, qtbot: QtBot) -> None:
        field = SliderField("Context", [2_048, 4_096, 8_192])
        field.show_mark(8_192)
        field.set_value(5_000)
        assert (field.value, field.slider.value(), field.slider.maximum(), field.slider.mark) == (5_000, 2, 3, 3)
        qtbot.keyClick(field.slider, Qt.Key.Key_Left)
        assert field.value == 4_096
        field.set_value(8_192)
        assert (field.slider.value(), field.slider.maximum(), field.slider.mark) == (2, 2, 2)

    def test_a_typed_value_is_taken_with_enter_and_anything_else_is_refused_with_the_reason(self, qtbot: QtBot) -> None:
        def parse_value(text: str) -> object:
            if not text.isdecimal():
                raise BadOption("", "It is a whole number.")
            return int(text)

        field = SliderField("Context", [2_048, 8_192], format_value="{:,}".format, parse_value=parse_value)
        received: list[object] = []
        field.value_changed.connect(received.append)
        render_widget(field, qtbot)
        field.set_value(2_048)
        field.show_hint("largest that fits: 8,192")
        typed = field.typed
        assert typed is not None
        assert (typed.text(), typed.accessibleName()) == ("2,048", "Context")

        def type_text(text: str, key: Qt.Key) -> None:
            typed.selectAll()
            qtbot.keyClicks(typed, text)
            qtbot.keyClick(typed, key)

        def shown_labels() -> list[str]:
            return [each.text() for each in field.findChildren(Label) if each.isVisible()]

        type_text("4000", Qt.Key.Key_Return)
        assert (field.value, typed.text(), received) == (4_000, "4,000", [4_000])
        type_text("long", Qt.Key.Key_Return)
        refusal = "Context cannot be long. It is a whole number."
        assert (field.value, typed.text(), received) == (4_000, "long", [4_000])
        assert refusal in shown_labels()
        assert typed.accessibleDescription() == refusal
        qtbot.keyClick(typed, Qt.Key.Key_Escape)
        assert typed.text() == "4,000"
        assert refusal not in shown_labels()
        assert "largest that fits: 8,192" in shown_labels()
        type_text("5000", Qt.Key.Key_Escape)
        assert (field.value, typed.text(), received) == (4_000, "4,000", [4_000])
        type_text("long", Qt.Key.Key_Return)
        qtbot.keyClick(field.slider, Qt.Key.Key_Right)
        assert (field.value, typed.text(), field.is_refused) == (8_192, "8,192", False)

    def test_the_earlier_value_and_the_hint_are_in_the_accessible_description(self) -> None:
        field = SliderField("Draft length", range(9))
        field.show_hint("largest that fits: 8")
        field.show_changed("2")
        assert field.slider.accessibleDescription() == "0 was 2 · largest that fits: 8"
        field.show_changed(None)
        assert "was" not in field.slider.accessibleDescription()

    def test_the_height_does_not_change_with_hints(self, qtbot: QtBot) -> None:
        field = SliderField("Context", [1_024, 262_144], format_value=lambda each: f"{each:,}")
        field.setFixedWidth(theme.px(150))
        field.show_hint("no context fits with these settings, however few tokens there are")
        render_widget(field, qtbot)
        height = field.heightForWidth(field.width())
        for was, hint in (("262,144", "largest that fits: 262,144"), (None, ""), ("1,024", "none fits")):
            field.show_changed(was)
            field.show_hint(hint)
            assert field.heightForWidth(field.width()) == height

    def test_a_value_that_was_unknown_is_shown_again(self) -> None:
        field = SliderField("Context", [1, 2, 4])
        field.set_value(4)
        field.show_unknown()
        assert field.value is None
        field.set_values([1, 2, 4])
        assert field.value is None
        field.set_value(4)
        assert field.value == 4
        assert field.slider.accessibleDescription() == "4"

    def test_new_steps_keep_the_nearest_value(self) -> None:
        field = SliderField("Context", [1, 2, 4, 8])
        field.set_value(8)
        field.set_values([1, 2, 3])
        assert field.value == 3

    def test_a_click_on_the_line_moves_the_handle_there_and_a_drag_goes_on(self, qtbot: QtBot) -> None:
        field = SliderField("Draft length", range(9))
        received: list[object] = []
        field.value_changed.connect(received.append)
        render_widget(field, qtbot, 400)
        slider, left = field.slider, Qt.MouseButton.LeftButton
        middle = slider.height() // 2
        qtbot.mousePress(slider, left, pos=QPoint(slider.width() * 3 // 4, middle))
        assert received == [6]
        qtbot.mouseMove(slider, QPoint(slider.width() - 1, middle))
        assert received == [6, 8]
        qtbot.mouseMove(slider, QPoint(slider.width() // 2, middle))
        qtbot.mouseRelease(slider, left, pos=QPoint(slider.width() // 2, middle))
        assert field.value == 4
        qtbot.mouseClick(slider, left, pos=QPoint(slider.width() // 2 + 7, middle))
        assert field.value == 4, "a click on the handle takes hold of it as it is"
        qtbot.keyClick(slider, Qt.Key.Key_Right)
        assert field.value == 5

    def test_a_click_at_the_place_of_an_unknown_value_chooses_it(self, qtbot: QtBot) -> None:
        field = SliderField("Temperature", range(9))
        field.show_unknown()
        render_widget(field, qtbot, 400)
        qtbot.mouseClick(field.slider, Qt.MouseButton.LeftButton, pos=QPoint(2, field.slider.height() // 2))
        assert field.value == 0

    def test_the_wheel_scrolls_the_page_unless_the_slider_has_the_focus(self, qtbot: QtBot) -> None:
        field = SliderField("Slots", range(9))
        render_widget(field, qtbot)
        field.set_value(4)
        up = QWheelEvent(
            QPointF(5, 5), QPointF(5, 5), QPoint(), QPoint(0, 120), Qt.MouseButton.NoButton,
            Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
        )  # fmt: skip
        field.slider.clearFocus()
        QApplication.sendEvent(field.slider, up)
        assert field.value == 4


def test_a_choice_is_emitted_once_and_arrow_keys_move_it(qtbot: QtBot) -> None:
    choice = Segmented("Theme", [("system", "System"), ("light", "Light"), ("dark", "Dark")])
    received: list[object] = []
    choice.changed.connect(received.append)
    render_widget(choice, qtbot)
    choice.set_value("dark")
    assert (choice.value, received) == ("dark", [])
    qtbot.mouseClick(choice.button("light"), Qt.MouseButton.LeftButton)
    qtbot.keyClick(choice, Qt.Key.Key_Left)
    assert received == ["light", "system"]
    assert choice.value == "system"


def test_a_button_survives_a_new_text_and_calls_the_newest_callback(qtbot: QtBot) -> None:
    banner, pressed = Banner(), list[str]()
    qtbot.addWidget(banner)
    banner.show_message("2 min are left.", "information", [("Restart", lambda: pressed.append("first"))])
    (button,) = banner.buttons
    qtbot.mousePress(button, Qt.MouseButton.LeftButton)
    banner.show_message("1 min is left.", "attention", [("Restart", lambda: pressed.append("second"))])
    qtbot.mouseRelease(button, Qt.MouseButton.LeftButton)
    assert (banner.buttons, pressed) == ([button], ["second"])
    banner.show_message("It is over.", "good", [("Restart", lambda: None), ("Stop", lambda: None)])
    assert [each.text() for each in banner.buttons] == ["Restart", "Stop"]


def test_a_banner_shows_a_text_and_two_buttons_and_can_be_closed(qtbot: QtBot) -> None:
    banner, pressed = Banner(), []
    qtbot.addWidget(banner)
    assert banner.isHidden()
    ways = [(name, lambda name=name: pressed.append(name)) for name in ("one", "two", "three")]
    banner.show_message("It failed.", "bad", ways)
    banner.show()
    assert [each.text() for each in banner.buttons] == ["one", "two"]
    qtbot.mouseClick(banner.buttons[1], Qt.MouseButton.LeftButton)
    assert pressed == ["two"]
    assert banner.accessibleName() == "It failed."
    with qtbot.waitSignal(banner.closed):
        qtbot.mouseClick(banner.close_button, Qt.MouseButton.LeftButton)
    assert banner.isHidden()
    banner.show_message("It failed.", "bad", ways)
    with qtbot.waitSignal(banner.closed):
        qtbot.keyClick(banner.buttons[0], Qt.Key.Key_Escape)
    assert banner.isHidden()


def test_a_banner_that_goes_leaves_the_focus_to_its_page(qtbot: QtBot) -> None:
    holder, page, banner = QStackedWidget(), QWidget(), Banner()
    qtbot.addWidget(holder)
    column = QVBoxLayout(page)
    column.addWidget(QPushButton("first of the page"))
    column.addWidget(banner)
    holder.addWidget(page)
    holder.show()
    for leave in (banner.clear, banner.close_button.click, lambda: banner.show_message("It is over.", "good")):
        banner.show_message("It failed.", "bad", [("Restart", lambda: None)])
        banner.buttons[0].setFocus()
        leave()
        assert holder.focusWidget() is page


def test_a_button_with_a_menu_has_an_arrow_beside_its_whole_text(qtbot: QtBot) -> None:
    holder = QWidget()
    qtbot.addWidget(holder)
    plain, opening = QPushButton("Export"), QPushButton("Export")
    open_menu_with(opening, QMenu(opening))
    row = QHBoxLayout(holder)
    for each in (plain, opening):
        row.addWidget(each)
    holder.show()
    qtbot.waitExposed(holder)
    assert opening.width() > plain.width()
    assert list_clipped_texts(holder) == []

    def count_arrow_pixels(button: QPushButton) -> int:
        image = button.grab().toImage()
        right = range(image.width() - theme.px(26), image.width() - 4)
        background = image.pixelColor(6, image.height() // 2)
        return sum(image.pixelColor(x, y) != background for x in right for y in range(4, image.height() - 4))

    assert count_arrow_pixels(opening) > 10


def test_progress_is_a_line_of_proportional_length(qtbot: QtBot) -> None:
    line = ProgressLine("Model")
    line.show_fraction(0.5)
    image = render_widget(line, qtbot, 200)
    accent = QColor(theme.current().accent)
    assert sum(each == accent for each in colours(image, image.height() // 2)) == pytest.approx(100, abs=4)
    assert line.value() == 500
    line.show_fraction(None)
    assert sum(each == accent for each in colours(line.grab().toImage(), image.height() // 2)) < 90


@pytest.mark.parametrize("percent", [100, 200])
@pytest.mark.parametrize("width", [632, 1_400])  # beside the rail in a window of 1000 at 200 %, and more
def test_a_banner_has_room_for_its_text_at_any_text_scale(qtbot: QtBot, percent: int, width: int) -> None:
    theme.set_scale(percent)
    try:
        holder = QWidget()
        qtbot.addWidget(holder)
        banner = Banner()
        column = QVBoxLayout(holder)
        column.addWidget(banner)
        column.addStretch()
        banner.show_message(
            "The server could not be shared. " * 5, "bad", [("Start again", str), ("Keep it as it was", str)]
        )
        holder.resize(width, 900)
        holder.show()
        qtbot.waitExposed(holder)
        assert [*list_clipped_texts(banner), *hidden_by_parents(banner)] == []
        assert banner.text.width() >= min(theme.px(280), width - theme.px(80))
        assert banner.width() <= width
    finally:
        theme.set_scale(100)


@pytest.mark.parametrize("word", [*(status.value for status in Status), "verified"])
def test_a_badge_shows_its_word_and_is_wide_enough(word: str, qtbot: QtBot) -> None:
    badge = Badge()
    badge.show_status(word)
    image = render_widget(badge, qtbot, badge.sizeHint().width())
    assert badge.text() == word
    assert image.height() == theme.BADGE_HEIGHT


@pytest.mark.parametrize("name", NAMES)
def test_every_glyph_is_painted_and_differs(name: str, qtbot: QtBot) -> None:
    def picture(which: str) -> QImage:
        return render_widget(Glyph(which, "text", 32), qtbot, 32)

    assert all(picture(name) != picture(other) for other in NAMES if other != name)


def test_heads_cards_and_empty_states_show_their_content(qtbot: QtBot) -> None:
    pressed: list[str] = []
    head = PageHead("Models", "Files on this computer")
    button = head.add_button("Add", lambda: pressed.append("add"), primary=True)
    empty = EmptyState("Nothing yet", "Do this.", [("Do it", lambda: pressed.append("do"))])
    for widget in (head, empty, Card("Memory")):
        render_widget(widget, qtbot)
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    qtbot.mouseClick(empty.buttons[0], Qt.MouseButton.LeftButton)
    assert pressed == ["add", "do"]
    assert button.objectName() == empty.buttons[0].objectName() == "primary"
    head.show_subtitle("")
    assert head.subtitle.isHidden()


def test_paths_in_the_home_are_shown_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert display_path(tmp_path / "models" / "a.gguf") == "~/models/a.gguf"
    assert display_path("/srv/models") == "/srv/models"
    assert display_path(f"{tmp_path}-else/models") == f"{tmp_path}-else/models"


def focus_of(window: QWidget) -> QWidget | None:
    """Return the widget of a window that has the focus, to which the keys go if the window is the active one."""
    focused: QWidget | None = window.focusWidget()
    assert not window.isActiveWindow() or QApplication.focusWidget() is focused
    return focused


class TestFocusKeeper:
    """What has the focus after its widget went away, in a window with two pages and a rail beside them."""

    @pytest.fixture
    def shown(self, qtbot: QtBot) -> QWidget:
        window, page, stack = QMainWindow(), QWidget(), QStackedWidget()
        row = QHBoxLayout(page)
        for name in ("Pause", "Cancel", "Delete"):
            row.addWidget(QPushButton(name))
        stack.addWidget(page)
        stack.addWidget(QPushButton("Other page"))
        body = QWidget()
        column = QHBoxLayout(body)
        column.addWidget(QPushButton("Rail"))
        column.addWidget(stack)
        window.setCentralWidget(body)
        FocusKeeper(window)
        qtbot.addWidget(window)
        with qtbot.waitActive(window):
            window.show()
            window.activateWindow()
        self.page, self.stack = page, stack
        self.buttons = {each.text(): each for each in window.findChildren(QPushButton)}
        self.buttons["Pause"].setFocus()
        return window

    def leave(self, qtbot: QtBot) -> QDialog:
        """Open a dialog over the window."""
        dialog = QDialog()
        QPushButton("Close", dialog)
        qtbot.addWidget(dialog)
        with qtbot.waitActive(dialog):
            dialog.show()
            dialog.activateWindow()
        return dialog

    def come_back(self, qtbot: QtBot, window: QWidget) -> None:
        with qtbot.waitActive(window):
            window.activateWindow()

    @pytest.mark.parametrize("is_behind_a_dialog", [False, True])
    def test_a_disabled_widget_leaves_the_focus_to_its_page_and_gets_it_back(
        self, shown: QWidget, qtbot: QtBot, is_behind_a_dialog: bool
    ) -> None:
        pause = self.buttons["Pause"]
        dialog = self.leave(qtbot) if is_behind_a_dialog else None
        pause.setEnabled(False)
        assert focus_of(shown) is self.page
        if dialog is not None:
            dialog.close()
            self.come_back(qtbot, shown)
            assert focus_of(shown) is self.page
        pause.setEnabled(True)
        assert focus_of(shown) is pause

    def test_a_widget_that_was_disabled_and_enabled_behind_a_dialog_keeps_the_focus(
        self, shown: QWidget, qtbot: QtBot
    ) -> None:
        dialog = self.leave(qtbot)
        for enabled in (False, True):
            self.buttons["Pause"].setEnabled(enabled)
        dialog.close()
        self.come_back(qtbot, shown)
        assert focus_of(shown) is self.buttons["Pause"]

    @pytest.mark.parametrize("is_behind_a_dialog", [False, True])
    @pytest.mark.parametrize("hides", [False, True])
    def test_a_deleted_widget_leaves_the_focus_to_its_page(
        self, shown: QWidget, qtbot: QtBot, hides: bool, is_behind_a_dialog: bool
    ) -> None:
        dialog = self.leave(qtbot) if is_behind_a_dialog else None
        pause = self.buttons["Pause"]
        if hides:
            pause.hide()
        pause.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
        if dialog is not None:
            dialog.close()
            self.come_back(qtbot, shown)
        qtbot.waitUntil(lambda: shown.focusWidget() is self.page, timeout=9_000)

    def test_a_focus_that_was_moved_on_purpose_stays(self, shown: QWidget, qtbot: QtBot) -> None:
        pause, delete = self.buttons["Pause"], self.buttons["Delete"]
        pause.setEnabled(False)
        delete.setFocus()
        pause.setEnabled(True)
        assert focus_of(shown) is delete
        self.leave(qtbot)
        delete.setEnabled(False)
        pause.setFocus()
        delete.setEnabled(True)
        assert focus_of(shown) is pause

    def test_another_page_gets_the_focus_when_it_is_shown(self, shown: QWidget) -> None:
        self.buttons["Other page"].setFocus()
        self.stack.setCurrentIndex(1)
        assert focus_of(shown) is self.buttons["Other page"]

    def test_a_widget_of_a_page_within_a_page_leaves_it_to_the_outer_one(self, shown: QWidget) -> None:
        inner, first = QStackedWidget(), QWidget()
        inner.addWidget(first)
        inner.addWidget(QLabel("Nothing found"))
        button = QPushButton("Search", first)
        self.page.layout().addWidget(inner)
        button.setFocus()
        assert focus_of(shown) is button
        inner.setCurrentIndex(1)
        assert focus_of(shown) is self.page

    def test_a_group_of_buttons_that_goes_leaves_the_focus_to_its_page(self, shown: QWidget) -> None:
        self.buttons["Cancel"].setFocus()
        for name in ("Pause", "Cancel", "Delete"):
            self.buttons[name].hide()
            assert focus_of(shown) is (self.buttons["Cancel"] if name == "Pause" else self.page)


@pytest.mark.parametrize("text", ["Delete", "Delete this model with all of its files"])
def test_a_button_that_asks_is_as_wide_as_before(text: str, qtbot: QtBot) -> None:
    button = ConfirmButton(text)
    qtbot.addWidget(button)
    button.show_loss(text, "2.9 GB")
    width = button.sizeHint().width()
    button.click()
    assert button.text() == "Delete 2.9 GB?"
    assert button.sizeHint().width() == width
