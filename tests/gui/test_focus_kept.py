"""A button that goes, is disabled or is built anew when it was pressed: the focus lands on no other control."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QAbstractButton, QApplication, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from launcher.base.errors import LauncherError
from launcher.engine.server.state import ServerState
from launcher.gui.models.page import ModelsPage
from launcher.gui.tune.page import TunePage
from launcher.gui.widgets.focus import find_page
from launcher.gui.window import Window
from tests.conftest import Hub
from tests.gui.trials import tune_view, with_draft

FIRST_PAGE = "about"
pytestmark = pytest.mark.usefixtures("no_charts")
PATIENCE_MS = 60_000
VERDICT = {"mtp": "on", "draft": 3, "sentence": "Draft 3.", "because": "", "settings": with_draft(3)}
Press = Callable[[QPushButton], None]


@pytest.fixture(params=["key", "mouse"])
def press(request: pytest.FixtureRequest, window: Window, qtbot: QtBot) -> Press:
    """Press a button of the window by Space or by a click, after which it has the focus."""
    window.activateWindow()
    qtbot.waitActive(window)

    def press_button(button: QPushButton) -> None:
        if request.param == "key":
            button.setFocus()
            qtbot.keyClick(button, Qt.Key.Key_Space)
        else:
            qtbot.mouseClick(button, Qt.MouseButton.LeftButton)

    return press_button


def show(window: Window, name: str, qtbot: QtBot) -> QWidget:
    window.resize(1440, 900)
    with qtbot.waitSignal(window.page_shown, timeout=PATIENCE_MS):
        window.show_page(name)
    page: QWidget = window.page(name)
    return page


@pytest.fixture
def models(window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qtbot: QtBot) -> ModelsPage:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    page = show(window, "models", qtbot)
    assert isinstance(page, ModelsPage)
    qtbot.waitUntil(lambda: page.shelf is not None and page.shelf.is_complete, timeout=PATIENCE_MS)
    return page


@pytest.fixture
def repo(hub: Hub, demo_model: Path) -> Iterator[str]:
    folder = hub.folder / "window" / "Focus-GGUF"
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / "focus-F16.gguf")
    yield "window/Focus-GGUF"
    shutil.rmtree(folder)


def wait_and_watch(window: Window, qtbot: QtBot, pressed: QWidget, is_settled: Callable[[], bool]) -> None:
    """Wait for the end, and check all the time that no other button than the pressed one has the focus."""

    seen: list[str] = []

    def look() -> bool:
        focused = QApplication.focusWidget()  # to which the keys go
        if isinstance(focused, QAbstractButton) and focused is not pressed:
            seen.append(focused.text() or focused.accessibleName())
        return is_settled()

    later = QTimer(singleShot=True, interval=0)
    later.timeout.connect(look)
    window.windowHandle().focusObjectChanged.connect(later.start)
    qtbot.waitUntil(look, timeout=PATIENCE_MS)
    window.windowHandle().focusObjectChanged.disconnect(later.start)
    assert not seen


def test_start_in_models(models: ModelsPage, press: Press, window: Window, qtbot: QtBot) -> None:
    models.list.choose("demo")
    press(models.details.start)
    assert window.page_name == "cockpit"
    wait_and_watch(
        window,
        qtbot,
        models.details.start,
        lambda: window.controller.inputs.status.state is ServerState.READY and window.controller.view.can_ask,
    )
    show(window, "models", qtbot)
    assert models.details.start.text() == "Open the chat"
    assert window.focusWidget() is models.details.start


def test_a_page_has_the_focus_until_its_control_can_have_it(models: ModelsPage, window: Window, qtbot: QtBot) -> None:
    start = models.details.start
    models.list.choose("demo")
    start.setFocus()
    show(window, "cockpit", qtbot)
    start.setEnabled(False)
    window.show_page("models")
    assert window.focusWidget() is find_page(start)
    start.setEnabled(True)
    assert window.focusWidget() is start


def test_the_answer_to_the_search_question(
    models: ModelsPage, repo: str, press: Press, window: Window, qtbot: QtBot
) -> None:
    qtbot.keyClicks(models.search.field, "window focus")
    qtbot.waitUntil(models.hub_line.isVisible, timeout=PATIENCE_MS)
    always = models.hub_line.buttons[1]
    assert always.text() == "Always"
    press(always)
    wait_and_watch(window, qtbot, always, lambda: "1 found" in models.hub_line.text.text())
    focused = window.focusWidget()
    assert focused is models or models.isAncestorOf(focused)


@pytest.mark.parametrize("by_name", [False, True])
def test_show_files(models: ModelsPage, repo: str, press: Press, window: Window, qtbot: QtBot, by_name: bool) -> None:
    button = models.details.files
    if by_name:
        models._show_adding(shows=True)
        models.add_card.address.setText(repo)
        button = models.add_card.show_button
    else:
        models.search.field.setText("window focus")
        models._search_hub()
        qtbot.waitUntil(lambda: any(each.found for each in models.list.models), timeout=PATIENCE_MS)
        models.list.choose(models.list.models[0].key)
    assert button.isVisible()
    press(button)
    wait_and_watch(window, qtbot, button, lambda: models.details.badge.text() == "FITS" and not button.isVisible())
    assert window.focusWidget() is models.list, "the files that were asked for"


def test_asking_the_hub_about_a_file(
    models: ModelsPage, press: Press, window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.list.choose(next(each.key for each in models.list.models if not each.is_here))
    ended: list[Callable[[LauncherError], None]] = []
    button = models.details.look_up
    button.show()
    with monkeypatch.context() as patched:
        patched.setattr(window.controller.bridge, "run", lambda *_, failed, **__: ended.append(failed))
        press(button)
    assert not button.isEnabled(), "until the hub answers"
    assert not isinstance(window.focusWidget(), QAbstractButton)
    ended[0](LauncherError("The hub did not answer.", ""))
    assert window.focusWidget() is button


def test_use_in_tune(window: Window, press: Press, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    page = show(window, "tune", qtbot)
    assert isinstance(page, TunePage)
    used: list[object] = []
    monkeypatch.setattr(page.tuning, "apply_winner", lambda: used.append(1))
    page.show_tune(tune_view(VERDICT))
    page._show_verdict(tune_view(VERDICT))
    use = page.verdict.buttons[0]
    assert use.text() == "Use draft 3 on this computer"
    qtbot.waitUntil(use.isVisible)
    press(use)
    assert used == [1]
    assert window.focusWidget() is page
    page._show_applied(None)
    qtbot.waitUntil(lambda: not page.verdict.buttons)
    assert window.focusWidget() is page
