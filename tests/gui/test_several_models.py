"""Several models at the window's address: each has a row, its own can make room for others, and all can be stopped."""

import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from launcher.app import settings
from launcher.app.settings_declared import MEMORY_LIMIT
from launcher.base.paths import models_dir
from launcher.engine.server.state import ServerState
from launcher.engine.settings import save_model_settings
from launcher.gui.cockpit.page import ModelsCard
from launcher.gui.labels import Label
from launcher.gui.window import Window
from tests.gui.test_journeys import button
from tests.gui.test_sharing import list_listening_addresses, open_card, press_share

Wait = Callable[..., None]


@pytest.fixture
def send_request(demo: Window, demo_model: Path) -> Callable[[], None]:
    """Return a function that sends a request for a second model."""
    models_dir().mkdir(parents=True, exist_ok=True)
    second = models_dir() / "second.gguf"
    shutil.copy(demo_model, second)
    save_model_settings(second, {"threads": 1, "ctx": 4_096})

    def send() -> None:
        session = demo.controller.session
        assert session is not None
        endpoint = session.supervisor.endpoint
        body = {"model": "second", "messages": [{"role": "user", "content": "What is a draft?"}], "max_tokens": 4}
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        with httpx.Client(base_url=endpoint.url, headers=headers, timeout=60, trust_env=False) as client:
            assert client.post("/v1/chat/completions", json=body).status_code == 200

    return send


def rows(window: Window) -> list[str]:
    """Return the name, state and button of each model on the card."""
    card: ModelsCard = window.page("cockpit").models
    if not card.isVisible():
        return []
    names = [each.accessibleName() for each in card.findChildren(QPushButton) if each.isVisible()]
    shown = (each.text() for each in card.findChildren(Label) if each.isVisible())
    states = [each for each in shown if each in ("Ready", "Unloaded")]
    return [f"{state}: {name}" for state, name in zip(states, names, strict=False)]


def click(window: Window, name: str) -> None:
    """Click the button of a model, by its accessible name."""
    buttons = window.page("cockpit").models.findChildren(QPushButton)
    (found,) = [each for each in buttons if each.accessibleName() == name and each.isVisible()]
    found.click()


@pytest.mark.thorough
def test_a_model_unloaded_to_make_room_is_shown_and_keeps_its_address(
    demo: Window, wait_for: Wait, send_request: Callable[[], None], qtbot: QtBot
) -> None:
    sharing = open_card(demo, qtbot)
    press_share(sharing, qtbot)
    shared_at = list_listening_addresses(demo)
    demo.show_page("cockpit")
    settings.change_setting(MEMORY_LIMIT, 1)
    address = demo.controller.view.address
    send_request()
    wait_for(ServerState.STOPPED)
    qtbot.waitUntil(lambda: rows(demo) == ["Unloaded: Load demo", "Ready: Unload second"])
    view = demo.controller.view
    assert (view.state_text, view.address, view.can_start, view.can_stop) == ("Unloaded", address, True, True)
    assert list_listening_addresses(demo) == shared_at
    demo.show_page("settings")
    assert sharing.switch.isChecked()
    qtbot.mouseClick(sharing.switch, Qt.MouseButton.LeftButton, pos=QPoint(10, 14))
    qtbot.waitUntil(lambda: not sharing.switch.isChecked() and sharing.switch.isEnabled())
    assert list_listening_addresses(demo) == {"127.0.0.1"}
    assert demo.controller.view.state_text == "Unloaded"
    demo.show_page("cockpit")
    click(demo, "Load demo")
    wait_for(ServerState.READY)
    qtbot.waitUntil(lambda: not rows(demo))
    assert demo.controller.view.address == address


@pytest.mark.thorough
def test_models_are_unloaded_one_by_one_or_all_at_once(
    demo: Window, wait_for: Wait, send_request: Callable[[], None], qtbot: QtBot
) -> None:
    assert rows(demo) == []
    send_request()
    qtbot.waitUntil(lambda: rows(demo) == ["Ready: Unload demo", "Ready: Unload second"])
    click(demo, "Unload second")
    qtbot.waitUntil(lambda: not rows(demo))
    assert demo.controller.view.state_text == "Ready"
    send_request()
    qtbot.waitUntil(lambda: len(rows(demo)) == 2)
    click(demo, "Unload demo")
    qtbot.waitUntil(lambda: rows(demo) == ["Unloaded: Load demo", "Ready: Unload second"])
    button(demo, "Stop all").click()
    qtbot.waitUntil(lambda: demo.controller.view.state_text == "Stopped")
    assert (rows(demo), demo.controller.view.address, demo.controller.shared) == ([], "", False)
    session = demo.controller.session
    assert session is not None
    qtbot.waitUntil(lambda: session.is_idle)
