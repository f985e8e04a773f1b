"""The Settings page: made from the declarations, changed, reset, searched, and errors."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QPushButton
from pytestqt.qtbot import QtBot

from launcher.app import autostart, settings, settings_file
from launcher.app.settings_declared import (
    AT_LOGIN,
    CACHE_DISK,
    KEEP,
    MAX_TOKENS,
    MODELS_FOLDER,
    SETTINGS,
    SYSTEM_PROMPT,
    TEMPERATURE,
    TEXT_SCALE,
    THEME,
    TOP_P,
)
from launcher.base.paths import MODELS_VARIABLE, models_dir
from launcher.gui import theme
from launcher.gui.settings.page import SettingsPage
from launcher.gui.window import Window
from tests.gateway.test_vault import keep, make_state
from tests.gui.walk import hidden_by_parents, list_clipped_texts

FIRST_PAGE = "about"
SECRET = "hf_abcdefghijklmnop"


@pytest.fixture
def page(
    usual_theme: None, window: Window, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SettingsPage]:
    """The page, which has read all settings; the theme is reset afterwards."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.delenv(MODELS_VARIABLE, raising=False)
    monkeypatch.setattr(settings, "_variables_set", {})
    yield show_settings(window, qtbot)
    os.environ.pop(MODELS_VARIABLE, None)


def show_settings(window: Window, qtbot: QtBot) -> SettingsPage:
    window.show_page("settings")
    page: SettingsPage = window.page("settings")
    qtbot.waitUntil(lambda: bool(page.token_source.text()) and bool(page.path.full_text))
    return page


def control(page: SettingsPage, name: str) -> Any:  # noqa: ANN401 -- each kind has its own
    page.show_setting(name)
    return page.rows[name].control


def saved_value(name: str) -> object:
    return settings_file.read_settings_file().values.get(name)


def test_all_declared_settings_are_shown_with_their_values(page: SettingsPage) -> None:
    assert list(page.rows) == [each.name for each in SETTINGS]
    assert list(page.cards) == list(dict.fromkeys(each.group for each in SETTINGS))
    assert control(page, THEME).box.currentData() == "system"
    assert control(page, TEXT_SCALE).value.text() == "100 %"
    assert control(page, MODELS_FOLDER).line.text() == str(models_dir())
    assert not control(page, AT_LOGIN).box.isChecked()
    assert not any(row.mark.isVisible() or not row.reset_button.isHidden() for row in page.rows.values())
    assert "next time" in page.rows[KEEP]._sentence.text()
    assert page.path.full_text == str(settings_file.settings_path())


def test_the_theme_applies_at_once_and_can_be_reset(page: SettingsPage, qtbot: QtBot) -> None:
    box, row = control(page, THEME).box, page.rows[THEME]
    box.setFocus()
    qtbot.keyClick(box, Qt.Key.Key_Down)
    qtbot.keyClick(box, Qt.Key.Key_Down)
    qtbot.waitUntil(lambda: saved_value(THEME) == "dark")
    qtbot.waitUntil(lambda: theme.current() is theme.DARK)
    qtbot.waitUntil(row.mark.isVisible)
    row.reset_button.click()
    qtbot.waitUntil(lambda: saved_value(THEME) is None and not row.reset_button.isVisible())
    assert box.currentData() == "system"


def test_a_slider_is_stored_once_it_rests(page: SettingsPage, window: Window, qtbot: QtBot) -> None:
    slider = control(page, TEXT_SCALE).slider
    for _ in range(4):
        qtbot.keyClick(slider, Qt.Key.Key_Right)
    assert control(page, TEXT_SCALE).value.text() == "120 %"
    assert saved_value(TEXT_SCALE) is None
    qtbot.waitUntil(lambda: saved_value(TEXT_SCALE) == 120)
    qtbot.waitUntil(lambda: window.page("settings") is not page)
    page = show_settings(window, qtbot)
    qtbot.waitUntil(page.rows[TEXT_SCALE].reset_button.isVisible)
    assert theme.text_scale() == 1.2


@pytest.mark.thorough
def test_the_last_choice_is_stored(page: SettingsPage, qtbot: QtBot) -> None:
    for value in ("light", "dark", "light", "dark"):
        page.change_setting(THEME, value)
    qtbot.waitUntil(lambda: control(page, THEME).box.currentData() == "dark" and theme.current() is theme.DARK)
    assert saved_value(THEME) == "dark"


def test_an_invalid_folder_is_refused_in_place(page: SettingsPage, qtbot: QtBot, tmp_path: Path) -> None:
    line = control(page, MODELS_FOLDER).line
    usual = line.text()
    line.setText(str(tmp_path / "big"))
    qtbot.keyClick(line, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: models_dir() == tmp_path / "big")
    qtbot.waitUntil(page.rows[MODELS_FOLDER].reset_button.isVisible)
    (tmp_path / "file").touch()
    line.setText(str(tmp_path / "file"))
    qtbot.keyClick(line, Qt.Key.Key_Return)
    qtbot.waitUntil(page.banner.isVisible)
    assert "is a file, not a folder" in page.banner.text.text()
    qtbot.waitUntil(lambda: line.text() == str(tmp_path / "big"))
    page.rows[MODELS_FOLDER].reset_button.click()
    qtbot.waitUntil(lambda: line.text() == usual)
    assert not page.banner.isVisible()


def test_a_setting_of_the_environment_cannot_be_changed(
    page: SettingsPage, window: Window, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MODELS_VARIABLE, str(tmp_path / "theirs"))
    page.on_shown()
    row = page.rows[MODELS_FOLDER]
    qtbot.waitUntil(lambda: not row.control.isEnabled())
    assert control(page, MODELS_FOLDER).line.text() == str(tmp_path / "theirs")
    assert MODELS_VARIABLE in row.note.text()


def test_a_long_path_is_elided_in_the_middle_until_it_is_edited(
    page: SettingsPage, qtbot: QtBot, tmp_path: Path
) -> None:
    line = control(page, MODELS_FOLDER).line
    long = tmp_path / ("many-letters-" * 9) / "models"
    page.change_setting(MODELS_FOLDER, str(long))
    qtbot.waitUntil(lambda: line.text() == str(long))
    page.search.setFocus()
    assert line.elided.startswith(str(long)[:8])
    assert line.elided.endswith("models")
    assert "…" in line.elided
    assert str(long) in line.toolTip()
    away = line.grab().toImage()
    line.setFocus()
    qtbot.waitUntil(line.hasFocus)
    assert line.grab().toImage() != away


def test_a_number_can_be_the_server_default(page: SettingsPage, qtbot: QtBot) -> None:
    box, row = control(page, TEMPERATURE).box, page.rows[TEMPERATURE]
    assert box.text() == "Server default"
    box.setFocus()
    qtbot.keyClick(box, Qt.Key.Key_Up)
    assert box.value() == 0
    qtbot.waitUntil(lambda: saved_value(TEMPERATURE) == 0)
    box.selectAll()
    qtbot.keyClicks(box, box.textFromValue(0.7))
    qtbot.keyClick(box, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: saved_value(TEMPERATURE) == 0.7)
    row.reset_button.click()
    qtbot.waitUntil(lambda: saved_value(TEMPERATURE) is None and box.text() == "Server default")
    tokens = control(page, MAX_TOKENS).box
    tokens.setValue(64)
    qtbot.waitUntil(lambda: saved_value(MAX_TOKENS) == 64)


def test_a_decimal_point_or_comma_can_be_typed(page: SettingsPage, qtbot: QtBot) -> None:
    box = control(page, TEMPERATURE).box
    for typed, number in (("0,7", 0.7), ("1.25", 1.25), (",5", 0.5)):
        box.setFocus()
        box.selectAll()
        qtbot.keyClicks(box, typed)
        qtbot.keyClick(box, Qt.Key.Key_Tab)
        qtbot.waitUntil(lambda number=number: saved_value(TEMPERATURE) == number)  # type: ignore[misc]
        assert box.text() == f"{number:.2f}"


def test_an_invalid_number_keeps_the_earlier_one(page: SettingsPage, qtbot: QtBot) -> None:
    box, tokens = control(page, TOP_P).box, control(page, MAX_TOKENS).box
    box.setValue(0.9)
    qtbot.waitUntil(lambda: saved_value(TOP_P) == 0.9)
    for typed in ("1,5", "1.5", "0,7,5", "7"):
        box.setFocus()
        box.selectAll()
        qtbot.keyClicks(box, typed)
        qtbot.keyClick(box, Qt.Key.Key_Tab)
        assert box.text() == "0.90", typed
    tokens.setFocus()
    tokens.selectAll()
    qtbot.keyClicks(tokens, "4,096")
    qtbot.keyClick(tokens, Qt.Key.Key_Tab)
    qtbot.waitUntil(lambda: saved_value(MAX_TOKENS) == 4096)
    assert saved_value(TOP_P) == 0.9


def test_a_multi_line_text_is_stored_when_it_loses_the_focus(page: SettingsPage, qtbot: QtBot) -> None:
    edit = control(page, SYSTEM_PROMPT).edit
    edit.setFocus()
    qtbot.keyClicks(edit, "Be brief.")
    qtbot.keyClick(edit, Qt.Key.Key_Return)
    qtbot.keyClicks(edit, "Be kind.")
    qtbot.keyClick(edit, Qt.Key.Key_Tab)
    qtbot.waitUntil(lambda: saved_value(SYSTEM_PROMPT) == "Be brief.\nBe kind.")


@pytest.mark.skipif(os.name == "nt", reason="the registry is the user's own")
def test_the_switch_for_login_shows_the_command_that_starts(page: SettingsPage, qtbot: QtBot) -> None:
    row = page.rows[AT_LOGIN]
    control(page, AT_LOGIN).box.click()
    qtbot.waitUntil(lambda: autostart.read_autostart().on)
    qtbot.waitUntil(row.note.isVisible)
    assert "--last" in row.note.text()
    row.reset_button.click()
    qtbot.waitUntil(lambda: not autostart.read_autostart().on)
    qtbot.waitUntil(lambda: not control(page, AT_LOGIN).box.isChecked())


def test_a_file_edited_by_hand_is_read_and_its_errors_shown(page: SettingsPage, qtbot: QtBot) -> None:
    file = settings_file.settings_path()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[window]\ntext_scale = 150\ncolour = 'teal'\n")
    page.on_shown()
    qtbot.waitUntil(page.banner.isVisible)
    assert "window.colour" in page.banner.text.text()
    assert control(page, TEXT_SCALE).value.text() == "150 %"
    file.write_text("[[[")
    page.banner.clear()
    page.on_shown()
    qtbot.waitUntil(page.banner.isVisible)
    assert "settings.toml.bad" in page.banner.text.text()
    qtbot.waitUntil(lambda: control(page, TEXT_SCALE).value.text() == "100 %")


def test_settings_are_searched(page: SettingsPage, qtbot: QtBot) -> None:
    qtbot.keyClick(page, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(page.search.hasFocus)
    qtbot.keyClicks(page.search, "folder MODELS")
    assert [name for name, row in page.rows.items() if row.isVisible()] == [MODELS_FOLDER]
    assert [name for name, card in page.cards.items() if card.isVisible()] == ["Models"]
    assert not page.token.isVisible()
    page.search.setText("hugging token")
    assert page.token.isVisible()
    assert not any(row.isVisible() for row in page.rows.values())
    page.search.setText("no such thing")
    assert page.no_match.isVisible()
    assert "no such thing" in page.no_match.text()
    page.search.setText("theme")
    assert [name for name, row in page.rows.items() if row.isVisible()] == [THEME]
    page.search.clear()
    assert {row.setting.group for row in page.rows.values() if row.isVisible()} == {"Window"}
    assert not page.no_match.isVisible()


def test_one_section_is_shown_at_a_time(page: SettingsPage, qtbot: QtBot) -> None:
    def list_shown_cards() -> list[str]:
        return [name for name, card in page.cards.items() if card.isVisible()]

    buttons = {each.text(): each for each in page.sections.findChildren(QPushButton)}
    assert list(buttons) == list(page.cards)
    assert list_shown_cards() == ["Window"]
    assert not page.sharing.isVisible()
    qtbot.mouseClick(buttons["Server"], Qt.MouseButton.LeftButton)
    assert list_shown_cards() == ["Server"]
    assert page.sharing.isVisible()
    buttons["Server"].setFocus()
    qtbot.keyClick(buttons["Server"], Qt.Key.Key_Down)
    assert list_shown_cards() == ["Chat"]
    page.search.setText("theme")
    assert list_shown_cards() == ["Window"]
    assert [text for text, each in buttons.items() if each.isVisible()] == ["Window"]
    qtbot.mouseClick(buttons["Window"], Qt.MouseButton.LeftButton)
    assert page.search.text() == ""
    assert all(each.isVisible() for each in buttons.values())
    page.show_setting(KEEP)
    assert list_shown_cards() == ["Chat"]


def test_a_token_is_mentioned_but_never_shown(page: SettingsPage) -> None:
    from PySide6.QtWidgets import QLabel, QWidget

    assert page.token_source.text() == "found in HF_TOKEN"
    texts = [each.text() for each in page.findChildren(QLabel)]
    texts += [
        each.accessibleName() + each.accessibleDescription() + each.toolTip() for each in page.findChildren(QWidget)
    ]
    assert not any(SECRET in text for text in texts)


def test_the_layout_does_not_move_when_a_setting_is_changed(page: SettingsPage, qtbot: QtBot) -> None:
    def read_geometries() -> list[tuple[int, ...]]:
        return [place.getRect() for row in page.rows.values() for place in (row.geometry(), row.control.geometry())]

    before = read_geometries()
    page.change_setting(THEME, "dark")
    qtbot.waitUntil(page.rows[THEME].reset_button.isVisible)
    moved = [
        abs(now - then)
        for each, other in zip(read_geometries(), before, strict=True)
        for now, then in zip(each, other, strict=True)
    ]
    assert max(moved) <= 1, "a pixel that a layout rounds is not seen"


@pytest.mark.parametrize("percent", [80, 200])
def test_no_text_is_clipped(
    percent: int,
    usual_theme: None,
    qtbot: QtBot,
    qapp: QApplication,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    theme.set_scale(percent)
    theme.apply_theme(qapp, theme.current())
    window = Window(remember=False, page="settings")
    try:
        window.resize(1_000, 640)
        with qtbot.waitSignal(window.page_shown):
            window.show()
        page = show_settings(window, qtbot)
        page.change_setting(THEME, "dark")
        qtbot.waitUntil(page.rows[THEME].reset_button.isVisible)
        for group in page.cards:
            page.show_section(group)
            qtbot.wait(50)
            assert [*list_clipped_texts(page), *hidden_by_parents(page)] == [], group
        with qtbot.waitSignal(window.shut_down):
            window.quit()
        assert window.controller.bridge.close()
    finally:
        window.deleteLater()


def test_what_is_kept_of_conversations_is_shown_and_forgotten_at_the_second_press(
    page: SettingsPage, qtbot: QtBot, tmp_path: Path
) -> None:
    qtbot.waitUntil(lambda: page.kept.caption.text().startswith("Nothing yet. At most "))
    assert not page.kept.button.isEnabled()
    with closing(settings.open_vault()) as vault:
        keep(vault, tmp_path, make_state("mine"))
        page.on_shown()
        qtbot.waitUntil(lambda: page.kept.caption.text().startswith("1 conversation, 100 tokens: "))
        page.show_setting(CACHE_DISK)
        assert page.kept.isVisible()
        qtbot.mouseClick(page.kept.button, Qt.MouseButton.LeftButton)
        assert "Delete " in page.kept.button.text()
        assert vault.list_states()
        qtbot.mouseClick(page.kept.button, Qt.MouseButton.LeftButton)
        qtbot.waitUntil(lambda: page.kept.caption.text().startswith("Nothing yet."))
        assert not vault.list_states()
    assert not page.kept.button.isEnabled()


def test_no_size_reads_as_keeping_nothing(page: SettingsPage, qtbot: QtBot) -> None:
    box = control(page, CACHE_DISK).box
    assert box.text() == "20 GiB"
    box.setValue(0)
    assert box.text() == "Keep nothing"
    qtbot.waitUntil(lambda: settings.stored_value(CACHE_DISK) == 0)
    qtbot.waitUntil(lambda: page.kept.caption.text() == "Nothing.")
