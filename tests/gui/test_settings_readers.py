"""Each setting takes effect in the part of the window that reads it, on the real engine."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QStyle
from pytestqt.qtbot import QtBot

from launcher.app import settings
from launcher.app.settings_declared import (
    APPLY,
    CLOSE,
    KEEP,
    MAX_TOKENS,
    MOTION,
    SYSTEM_PROMPT,
    TEMPERATURE,
    THINKING,
    VALUE_CANCEL,
    VALUE_FINISH,
    VALUE_OFF,
    VALUE_QUIT,
    VALUE_TRAY,
)
from launcher.conversations.store import conversations_path
from launcher.engine.server.state import ServerState
from launcher.gui import theme
from launcher.gui.chat.pane import ChatPane
from launcher.gui.cockpit.page import CockpitPage
from launcher.gui.settings.page import SettingsPage
from launcher.gui.tray import Tray
from launcher.gui.window import Window
from tests import forked
from tests.gui.chatting import can_send, controller_of

pytestmark = pytest.mark.usefixtures("no_charts")

Wait = Callable[..., None]


@pytest.fixture
def chosen_settings(home: Path) -> None:
    """The settings that were chosen before the window opens."""
    settings.change_setting(MAX_TOKENS, 5)
    settings.change_setting(TEMPERATURE, 0)
    settings.change_setting(THINKING, VALUE_OFF)
    settings.change_setting(SYSTEM_PROMPT, " Be brief.\n")
    settings.change_setting(KEEP, False)
    settings.change_setting(APPLY, VALUE_CANCEL)


def on_page(window: Window, qtbot: QtBot) -> SettingsPage:
    window.show_page("settings")
    page: SettingsPage = window.page("settings")
    qtbot.waitUntil(lambda: bool(page.path.full_text))
    return page


def ask(chat: ChatPane, qtbot: QtBot, text: str) -> str:
    """Return the line under the reply."""
    with qtbot.waitSignal(controller_of(chat).replied) as replied:
        chat.send_question(text)
    assert replied.args is not None
    return str(replied.args[1])


@pytest.mark.thorough
def test_a_chat_starts_with_the_settings_and_is_not_stored(chosen_settings: None, demo: Window, qtbot: QtBot) -> None:
    cockpit: CockpitPage = demo.page("cockpit")
    chat = cockpit.chat
    qtbot.waitUntil(lambda: cockpit.state.previewer is not None and can_send(chat))
    fields = cockpit.controls.sampling.fields
    assert (fields["temperature"].value, fields["max_tokens"].value) == (0, 5)
    assert " 5 tokens" in ask(chat, qtbot, "Hello")
    assert chat.conversation.build_request()[0] == {"role": "system", "content": "Be brief."}
    assert chat.system.text == "Be brief."
    counts: list[int] = []
    chat.store.enqueue(lambda kept: kept.list_all(), lambda found: counts.append(len(found)))
    qtbot.waitUntil(lambda: bool(counts))
    assert counts == [1], chat.banner.text.text()
    assert not conversations_path().exists()
    assert cockpit.controls.changes.drain_s == 0


@pytest.mark.usefixtures("forked_commands")
@pytest.mark.thorough
def test_chat_on_the_command_line_uses_the_settings(chosen_settings: None, demo: Window) -> None:
    def reply(*options: str) -> str:
        result = forked.run("chat", "Hello", *options)
        assert result.returncode == 0
        return result.stderr

    assert " 5 tokens" in reply()
    assert " 3 tokens" in reply("--max-tokens", "3")


def test_a_setting_applies_to_the_next_reply(demo: Window, qtbot: QtBot) -> None:
    cockpit: CockpitPage = demo.page("cockpit")
    qtbot.waitUntil(lambda: can_send(cockpit.chat) and cockpit.state.previewer is not None)
    page = on_page(demo, qtbot)
    page.change_setting(MAX_TOKENS, 4)
    page.change_setting(THINKING, VALUE_OFF)
    qtbot.waitUntil(lambda: demo.controller.sampling == {"max_tokens": 4, "thinking": False})
    assert cockpit.controls.sampling.fields["max_tokens"].value == 4
    assert " 4 tokens" in ask(cockpit.chat, qtbot, "Hello")
    page.reset_setting(MAX_TOKENS)
    page.reset_setting(THINKING)
    qtbot.waitUntil(lambda: demo.controller.sampling == {})


@pytest.mark.thorough
def test_the_choice_how_settings_are_applied_is_on_both_pages(demo: Window, qtbot: QtBot) -> None:
    changes = demo.page("cockpit").controls.changes
    assert changes.drain_s == settings.DRAIN_S
    page = on_page(demo, qtbot)
    page.change_setting(APPLY, VALUE_CANCEL)
    qtbot.waitUntil(lambda: changes.drain_s == 0)
    changes.drain_choice.setCurrentIndex(changes.drain_choice.findData(VALUE_FINISH))
    changes.drain_choice.activated.emit(changes.drain_choice.currentIndex())
    qtbot.waitUntil(lambda: settings.stored_value(APPLY) == VALUE_FINISH)
    qtbot.waitUntil(lambda: page.rows[APPLY].control.box.currentData() == VALUE_FINISH)


@pytest.mark.cases(1)
@pytest.mark.parametrize("way", [VALUE_TRAY, VALUE_QUIT])
def test_the_window_closes_as_set_without_a_question(window: Window, wait_for: Wait, qtbot: QtBot, way: str) -> None:
    window.use_tray(Tray(window.controller, lambda: False, window))
    window.start_demo()
    wait_for(ServerState.READY)
    on_page(window, qtbot).change_setting(CLOSE, way)
    qtbot.waitUntil(lambda: settings.stored_value(CLOSE) == way)
    if way == VALUE_QUIT:
        with qtbot.waitSignal(window.shut_down):
            window.close()
    else:
        window.close()
        assert not window.isVisible()
        assert window.controller.view.state_text == "Ready"
    assert not window.notice.isVisible()


@pytest.mark.thorough
def test_the_answer_to_the_question_is_stored_as_a_setting(window: Window, wait_for: Wait, qtbot: QtBot) -> None:
    window.use_tray(Tray(window.controller, lambda: False, window))
    window.start_demo()
    wait_for(ServerState.READY)
    window.close()
    qtbot.mouseClick(window.notice.buttons[0], Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: settings.stored_value(CLOSE) == VALUE_TRAY)
    window.bring_to_front()
    page = on_page(window, qtbot)
    qtbot.waitUntil(lambda: page.rows[CLOSE].control.box.currentData() == VALUE_TRAY)
    page.reset_setting(CLOSE)
    qtbot.waitUntil(lambda: settings.stored_value(CLOSE) == "ask")
    window.close()
    assert window.notice.isVisible()


@pytest.mark.thorough
def test_with_motion_off_nothing_is_animated(
    usual_theme: None, window: Window, qtbot: QtBot, qapp: QApplication, monkeypatch: pytest.MonkeyPatch, charts: None
) -> None:
    def duration_ms() -> int:
        hint = QStyle.StyleHint.SH_Widget_Animation_Duration
        return window.style().styleHint(hint, None, window.rail)

    blinks, moves_ms = qapp.cursorFlashTime(), duration_ms()
    monkeypatch.setattr(theme, "_system_effects", [True])  # as on a system with animated lists
    theme.apply_theme(qapp, theme.current())
    qapp.setEffectEnabled(Qt.UIEffect.UI_AnimateCombo)
    page = on_page(window, qtbot)
    page.change_setting(MOTION, VALUE_OFF)
    qtbot.waitUntil(lambda: qapp.cursorFlashTime() == 0)
    assert duration_ms() == 0
    assert not qapp.isEffectEnabled(Qt.UIEffect.UI_AnimateCombo)
    page.reset_setting(MOTION)
    qtbot.waitUntil(lambda: qapp.cursorFlashTime() == blinks)
    assert duration_ms() == moves_ms
    assert qapp.isEffectEnabled(Qt.UIEffect.UI_AnimateCombo)
