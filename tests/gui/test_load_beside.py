"""A second model beside the running one: the Models page says before what fits, and shows its load in its row."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from launcher.app import settings
from launcher.app.settings_declared import MEMORY_LIMIT
from launcher.base.paths import models_dir
from launcher.engine.builds.installed import add_engine, use_engine
from launcher.engine.server.state import ModelStatus, ServerState
from launcher.gui.labels import Label
from launcher.gui.models.page import ModelsPage
from launcher.gui.models.row_text import Row
from launcher.gui.window import Window
from launcher.models.situation import ServerShare
from tests.fakes import llama_server
from tools.sparse_models.models import model
from tools.sparse_models.write import write

FIRST_PAGE = "models"


def shown_row(page: ModelsPage) -> Row:
    """Return the row of the selected model."""
    return page.list.tree.row_at(page.list.currentIndex())


def select_file(window: Window, path: Path, qtbot: QtBot) -> ModelsPage:
    """Show the Models page, and select the model of a file."""
    window.show_page("models")
    page: ModelsPage = window.page("models")
    qtbot.waitUntil(lambda: page.shelf is not None and page.shelf.is_complete)
    page.refresh()

    def find_key() -> str:
        models = page.shelf.models if page.shelf is not None and page.shelf.is_complete else ()
        found = (each.key for each in models for file in each.files if file.local and file.local.path == path)
        return next(found, "")

    qtbot.waitUntil(lambda: bool(find_key()))
    page.list.choose(find_key())
    return page


def loaded_names(window: Window) -> list[str]:
    """Return the models that are ready at the server's address."""
    return [each.name for each in window.controller.inputs.models.models if each.state is ServerState.READY]


def press_beside(page: ModelsPage, label: str, qtbot: QtBot) -> None:
    """Press the button that loads the model beside the running one, or unloads it, once it has this label."""
    button = page.details.beside
    qtbot.waitUntil(lambda: button.isVisible() and button.isEnabled() and button.text() == label)
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


@pytest.fixture
def second_model(home: Path, demo_model: Path) -> Path:
    """A second model file on this computer."""
    models_dir().mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(demo_model, models_dir() / "second.gguf"))


def test_a_model_is_loaded_beside_the_running_one_and_its_row_says_so(
    demo: Window, second_model: Path, qtbot: QtBot
) -> None:
    page = select_file(demo, second_model, qtbot)
    qtbot.waitUntil(lambda: page.details.beside_fit.text().startswith("Fits beside "))
    press_beside(page, "Load beside", qtbot)
    assert shown_row(page).state == "Preparing"
    qtbot.waitUntil(lambda: "is loaded" in page.banner.text.text())
    assert demo.page_name == "models"
    assert loaded_names(demo) == ["demo", "second"]
    assert shown_row(page).state == "loaded"
    assert not page.details.beside_fit.isVisible()
    press_beside(page, "Unload", qtbot)
    qtbot.waitUntil(lambda: page.details.beside.text() == "Load beside")
    assert loaded_names(demo) == ["demo"]
    assert demo.controller.view.state_text == "Ready"


def test_the_row_shows_how_far_the_load_is_and_it_can_be_cancelled(
    demo: Window, second_model: Path, tmp_path: Path, qtbot: QtBot
) -> None:
    engine = tmp_path / "llama-server"
    never = tmp_path / "never"
    faults = f"FAKE_FAULTS=slow-load FAKE_RELEASE={never}"
    engine.write_text(f'#!/bin/sh\n{faults} exec "{sys.executable}" "{llama_server.__file__}" "$@"\n')
    engine.chmod(0o755)
    use_engine(add_engine(engine).name)
    page = select_file(demo, second_model, qtbot)
    press_beside(page, "Load beside", qtbot)
    qtbot.waitUntil(lambda: shown_row(page).state == "Loading 100 %")
    assert shown_row(page).fraction == 1
    assert page.details.fit.text() == "Loading 100 %"
    press_beside(page, "Cancel", qtbot)
    qtbot.waitUntil(lambda: page.details.beside.text() == "Load beside")
    qtbot.waitUntil(lambda: not demo.controller.joining)
    press_beside(page, "Load beside", qtbot)
    press_beside(page, "Cancel", qtbot)  # cancelled before the server knows the model
    assert page.details.beside.hasFocus()
    qtbot.waitUntil(lambda: not demo.controller.joining)
    qtbot.waitUntil(lambda: page.details.beside.text() == "Load beside")
    assert not page.banner.isVisible()
    assert loaded_names(demo) == ["demo"]


def test_the_cockpit_keeps_the_buttons_of_its_models_while_one_loads(demo: Window, qtbot: QtBot) -> None:
    demo.show_page("cockpit")
    qtbot.waitUntil(lambda: demo.page("cockpit") is not None and hasattr(demo.page("cockpit"), "models"))
    card, controller = demo.page("cockpit").models, demo.controller
    main = ModelStatus("demo", ServerState.READY, is_main=True)
    second = ModelStatus("second", ServerState.LOADING, percent=10.0)
    models = controller.inputs.models
    card.show_view(controller.view._replace(models=(main, second)))
    buttons = card.findChildren(QPushButton)
    card.show_view(controller.view._replace(models=(main, second._replace(percent=42.0))))
    assert card.findChildren(QPushButton) == buttons
    assert "Loading 42 %" in [each.text() for each in card.findChildren(Label)]
    assert controller.inputs.models is models


def test_a_model_beyond_the_users_limit_is_refused_with_the_reason(
    demo: Window, second_model: Path, qtbot: QtBot
) -> None:
    settings.change_setting(MEMORY_LIMIT, 1)
    page = select_file(demo, second_model, qtbot)
    press_beside(page, "Load beside", qtbot)
    qtbot.waitUntil(page.banner.isVisible)
    assert page.banner.text.text() == (
        "second does not fit beside demo: all models together may take 1 MiB. "
        "Unload one first, or start this one in its place."
    )
    assert loaded_names(demo) == ["demo"]
    assert page.details.beside.text() == "Load beside"


def test_a_model_that_does_not_fit_beside_the_running_one_cannot_be_loaded_there(demo: Window, qtbot: QtBot) -> None:
    big = models_dir() / "big.gguf"
    big.parent.mkdir(parents=True, exist_ok=True)
    write(big, "qwen35-9b-q4_k_m", model("qwen35-9b-q4_k_m"))
    page = select_file(demo, big, qtbot)
    qtbot.waitUntil(lambda: page.details.beside_fit.text().startswith("Fits beside "))
    assert page.details.beside.isEnabled()
    assert page.shelf is not None
    assert page.shelf.situation is not None
    # The same computer, on which the running server takes all memory but 3 GiB.
    alone = page.shelf.situation.free_mib
    share = ServerShare(1, "demo", (alone - 3_072,), 0, measured=True)
    crowded = replace(page.shelf.situation, own=(share,), by_device_now_mib=(3_072,))
    page.shelf = replace(page.shelf, situation=crowded)
    page.list.chosen.emit(*page.selected or (None, None))
    qtbot.waitUntil(lambda: page.details.beside_fit.text().startswith("Does not fit beside "))
    assert page.details.beside_fit.text().endswith("MiB, and 3,072 MiB are free.")
    assert not page.details.beside.isEnabled()


def test_a_model_that_cannot_be_loaded_beside_the_running_one_says_why(
    demo: Window, second_model: Path, qtbot: QtBot, wait_for: Callable[..., None]
) -> None:
    page = select_file(demo, second_model, qtbot)
    qtbot.waitUntil(lambda: page.details.beside_fit.text().startswith("Fits beside "))
    second_model.unlink()
    press_beside(page, "Load beside", qtbot)
    qtbot.waitUntil(page.banner.isVisible)
    assert "second.gguf" in page.banner.text.text()
    qtbot.waitUntil(lambda: shown_row(page).state != "Preparing")
    assert demo.controller.view.state_text == "Ready"
