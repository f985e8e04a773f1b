"""The Models page: models here, in the catalogue and on the hub, and the downloads, on the real library and queue."""

import asyncio
import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QCoreApplication, QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLabel, QPushButton
from pytestqt.qtbot import QtBot

from launcher.app import settings
from launcher.app.first.first_steps import Step, StepDetail, StepStage
from launcher.app.models.model_library import LibraryModel, ModelShelf, name_local, read_shelf
from launcher.app.planning.planner import MachineDescription
from launcher.app.settings_declared import SEARCH_HUB, VALUE_ON
from launcher.base.paths import models_dir
from launcher.base.progress import Progress
from launcher.engine.builds.probe import probe_engine
from launcher.engine.server.state import ServerState
from launcher.fetch import journal
from launcher.fetch.jobs import Job, JobState, RequestedState
from launcher.fetch.journal import DownloadIdentity, Stretch
from launcher.fetch.partial_file import journal_path, part_path
from launcher.fetch.queue_runner import QueueTotals
from launcher.gui.models.downloads_bar import DownloadsBar, JobRow
from launcher.gui.models.list_view import ListColumns
from launcher.gui.models.page import ModelsPage
from launcher.gui.models.queue_controller import QueueView
from launcher.gui.models.row_text import Row, describe_model, pictures_mib
from launcher.gui.models.search import BEST, BY_NAME, FASTEST, LAST_USED, NEWEST, SMALLEST, sort_models
from launcher.gui.models.text import place_text, without_flags
from launcher.gui.window import Window
from launcher.models.gguf import read_model
from launcher.models.library import LocalModel
from launcher.runtime import WorkHandle
from launcher.tuning.history import History
from launcher.tuning.history_environment import Environment, ModelFacts, model_facts
from launcher.tuning.tuned_settings import Evidence, TunedSettings, save_tuned_settings
from tests.conftest import Hub
from tests.gui.dragging import drop_files
from tests.gui.walk import list_clipped_texts
from tests.models.odd_files import write_odd
from tests.tuning.measured import ENVIRONMENT, OFF
from tests.tuning.measured import run as make_run

FIRST_PAGE = "about"
FILE = "demo-F16.gguf"
CARD = MachineDescription(gpu="RTX 4090", host_memory_gib=64)


@pytest.fixture(autouse=True)
def _no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def copy_demo(demo_model: Path) -> Callable[..., Path]:
    def copy(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(demo_model, path)
        return path

    return copy


OpenPage = Callable[..., ModelsPage]


@pytest.fixture
def open_page(window: Window, qtbot: QtBot) -> OpenPage:
    """Show the page, after the test has made its files. With `waits`, wait until all models are planned."""

    def show_models(machine: MachineDescription | None = None, *, waits: bool = False) -> ModelsPage:
        page: ModelsPage = window.page("models")
        page.machine = machine
        window.resize(1440, 900)
        window.show_page("models")
        qtbot.waitUntil(lambda: page.shelf is not None and (not waits or page.shelf.is_complete))
        return page

    return show_models


def press_button(qtbot: QtBot, button: object) -> None:
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def files_here(page: ModelsPage) -> list[LocalModel]:
    """Return the files on this computer that the list has."""
    return [file.local for model in page.list.models for file in model.files if file.local is not None]


def names(page: ModelsPage) -> list[str]:
    return sorted(local.path.name for local in files_here(page))


def choose_file(page: ModelsPage, name: str) -> None:
    """Select the row of a file on this computer."""
    for model in page.list.models:
        for file in model.files:
            if file.local is not None and file.local.path.name == name:
                page.list.choose(model.key, file.key if len(model.files) > 1 else None)
                return
    raise AssertionError(f"{name} is not listed")


def facts(page: ModelsPage) -> dict[str, str]:
    """Return the facts that the details show about a file, by name."""
    page.details.header_fold.setChecked(True)
    found = {}
    for grid in (page.details.grid, page.details.header_grid):
        texts = [grid.itemAt(at).widget().text() for at in range(grid.count())]
        found |= dict(zip(texts[::2], texts[1::2], strict=True))
    return found


def row_of(page: ModelsPage, key: str) -> Row:
    return page.list.tree.row_at(page.list.tree.find_index(key))


def click_row(page: ModelsPage, qtbot: QtBot, key: str, place: QPoint | None = None) -> None:
    """Click a row, at its name or at a place of the viewport."""
    index = page.list.tree.find_index(key)
    page.list.scrollTo(index)
    where = place or page.list.visualRect(index).topLeft() + QPoint(80, 10)
    qtbot.mouseClick(page.list.viewport(), Qt.MouseButton.LeftButton, pos=where)


def press_row_button(page: ModelsPage, qtbot: QtBot, key: str, file_key: str | None = None) -> None:
    """Click the button that is painted in a row."""
    index = page.list.tree.find_index(key, file_key)
    page.list.scrollTo(index)
    button = page.list.pressable(index)
    assert button is not None
    qtbot.mouseClick(page.list.viewport(), Qt.MouseButton.LeftButton, pos=button.center())


def choose_filter(page: ModelsPage, qtbot: QtBot, value: str) -> None:
    press_button(qtbot, page.search.filter.button(value))


def test_an_empty_list_says_what_to_do(open_page: OpenPage, qtbot: QtBot) -> None:
    page = open_page()
    assert page.list.models  # the list already has the models of the catalogue
    choose_filter(page, qtbot, "here")
    assert page.empty.isVisible()
    assert not page.details.isVisible()
    press_button(qtbot, page.empty.buttons[0])
    assert page.list.isVisible()
    assert len(page.list.models) > 10
    assert page.search.filter.value == "all"


def test_each_model_has_its_best_file_for_the_card_first(open_page: OpenPage, qtbot: QtBot) -> None:
    page = open_page(CARD, waits=True)
    first = page.list.models[0]
    row = row_of(page, first.key)
    assert row.tag == "recommended"
    assert row.fit == "FITS"
    assert row.action == "download"
    assert row.speed.isdecimal()
    assert row.quant == first.best.quant  # type: ignore[union-attr]
    too_big = [model.first.is_too_big for model in page.list.models if model.first and model.first.plan]
    assert too_big == sorted(too_big)
    for model in page.list.models:
        if model.is_built_in or model.first is None or model.first.plan is None:
            continue
        groups = [each.plan.group for each in model.files if each.plan is not None]
        assert groups == sorted(groups), model.key
    assert page.details.title.text() == first.name
    assert page.details.badge.text() == "FITS"
    assert page.details.speed.text() == row.speed
    assert page.details.speed_source.text().startswith("At 64K tokens about ")
    assert page.details.download_and_start.isVisible()
    assert not page.details.start.isVisible()
    assert "Why this file" in [label.text() for label in page.details.findChildren(QLabel) if label.isVisible()]


def test_other_quants_are_collapsed_and_planned_when_opened(open_page: OpenPage, qtbot: QtBot) -> None:
    page = open_page(CARD, waits=True)
    model = next(each for each in page.list.models if not each.is_planned and len(each.files) > 6)
    index = page.list.tree.find_index(model.key)
    page.list.scrollTo(index)
    rect = page.list.visualRect(index)
    click_row(page, qtbot, model.key, QPoint(page.list.viewport().width() - 12, rect.center().y()))
    assert page.list.isExpanded(page.list.tree.find_index(model.key))
    planned = lambda: next(each for each in page.list.models if each.key == model.key).is_planned  # noqa: E731
    qtbot.waitUntil(planned)
    assert page.list.isExpanded(page.list.tree.find_index(model.key))
    opened = next(each for each in page.list.models if each.key == model.key)
    rows = [
        page.list.tree.row_at(page.list.tree.find_index(model.key, each.key)) for each in opened.files if each.is_model
    ]
    assert rows[0].note == "best for this computer"
    assert all(row.fit for row in rows)
    assert {row.fit for row in rows} > {"FITS"}
    qtbot.keyClick(page.list, Qt.Key.Key_Down)
    page.list.choose(model.key, opened.files[1].key)
    assert page.details.subtitle.text().startswith(opened.files[1].quant)
    page.list.choose(model.key)
    qtbot.keyClick(page.list, Qt.Key.Key_Space)
    assert not page.list.isExpanded(page.list.tree.find_index(model.key))


def test_local_files_are_listed_with_their_details(
    open_page: OpenPage, copy_demo: Callable[..., Path], headless_model: Path, qtbot: QtBot
) -> None:
    copy_demo(models_dir() / "owner" / "Demo-GGUF" / FILE)
    shutil.copy(headless_model, models_dir() / "plain-Q8_0.gguf")
    (models_dir() / "broken.gguf").write_bytes(b"GGUF")
    page = open_page()
    qtbot.waitUntil(lambda: len(files_here(page)) == 3)
    choose_file(page, "broken.gguf")
    qtbot.waitUntil(lambda: "unreadable" in page.details.subtitle.text())
    choose_file(page, "plain-Q8_0.gguf")
    qtbot.waitUntil(lambda: facts(page).get("Draft head") == "none")
    assert "MTP head" not in facts(page), "the row Draft head says the same"
    assert "Q8_0" in page.details.subtitle.text()
    choose_file(page, FILE)
    qtbot.waitUntil(lambda: page.details.badge.isVisible() and "Architecture" in facts(page))
    assert page.details.badge.text() in ("FITS", "TIGHT", "TOO BIG")
    shown_facts = facts(page)
    assert shown_facts["Architecture"] == "qwen35moe"
    assert shown_facts["SHA-256"] == "not computed yet; use Verify"
    assert shown_facts["Last used"] == "never"
    assert shown_facts["Draft head"].startswith("in the file, draft ")
    assert "MTP head" not in shown_facts
    assert shown_facts["State"] == "not verified"


def test_a_model_of_another_program_is_listed_and_planned_but_not_deleted(
    open_page: OpenPage, copy_demo: Callable[..., Path], tmp_path: Path, window: Window, qtbot: QtBot
) -> None:
    store = tmp_path / ".ollama" / "models"
    copy_demo(store / "blobs" / f"sha256-{'a' * 64}")
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "1b"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'a' * 64}", "size": 1}
    manifest.write_text(json.dumps({"layers": [layer]}))
    page = open_page()
    (local,) = files_here(page)
    assert (name_local(local), place_text(local)) == ("tiny:1b", "Ollama")
    model = next(each for each in page.list.models if each.is_here)
    assert row_of(page, model.key).tile == "Ol"
    assert page.shelf is not None
    assert page.shelf.local.stores[store] == ("Ollama", ())
    page.list.choose(model.key)
    assert page.details.start.isVisible()
    assert not page.details.delete.isVisible()
    start = window.page("start")
    with qtbot.waitSignal(start.flow.planned):
        press_button(qtbot, page.details.plan)
    qtbot.waitUntil(lambda: start.steps.progress[Step.VERIFY].stage is StepStage.DONE)
    assert window.page_name == "start"
    assert start.plan is not None
    assert start.plan.entry.name == "tiny:1b"
    assert start.steps.progress[Step.MODEL].subject == "tiny:1b"  # Ollama's name, not the name of the blob
    assert start.steps.progress[Step.VERIFY].detail is StepDetail.NO_CHECKSUM


@pytest.mark.cases(1)
@pytest.mark.parametrize("free_mib", [5_500, 10_500, 48_000])
async def test_models_that_fit_come_first(free_mib: int, home: Path) -> None:
    shelf: ModelShelf | None = None
    async for each in read_shelf(MachineDescription(free_mib=free_mib, backend="cpu")):
        shelf = each
    assert shelf is not None
    assert shelf.is_complete
    models = [each for each in sort_models(list(shelf.models), BEST) if each.first and each.first.plan]
    too_big = [each.first.is_too_big for each in models if each.first]
    assert 0 < sum(too_big) < len(models)
    assert too_big == sorted(too_big)
    async for each in read_shelf(MachineDescription(free_mib=free_mib, backend="cpu"), shelf):
        assert each.is_complete  # the page sorts by fit only when all models are planned
        assert each.models == shelf.models


async def test_columns_sort_by_value(home: Path, demo_model: Path) -> None:
    target = models_dir() / "own" / "Tiny-GGUF" / FILE
    target.parent.mkdir(parents=True)
    shutil.copy(demo_model, target)
    shelf = [each async for each in read_shelf(CARD)][-1]
    models = list(shelf.models)

    def speeds(order: str) -> list[float]:
        plans = [each.first.plan for each in sort_models(models, order) if each.first and each.first.plan]
        return [plan.forecast.tokens_per_second for plan in plans if plan.forecast and plan.group < 2]

    assert speeds(FASTEST) == sorted(speeds(FASTEST), reverse=True)
    sizes = [each.first.size_bytes for each in sort_models(models, SMALLEST) if each.first and each.first.size_bytes]
    assert sizes == sorted(sizes)
    by_name = [each.name.casefold() for each in sort_models(models, BY_NAME)]
    assert by_name == sorted(by_name)
    newest = sort_models(models, NEWEST)
    assert newest[0].is_here
    dates = [each.released for each in newest if each.released and not each.is_here]
    assert dates == sorted(dates, reverse=True)
    assert len(dates) > 30
    assert next(each for each in models if each.key == "qwen3.6-27b").released == "2026-04-22"
    assert len(sort_models(models, LAST_USED)) == len(models)


async def test_a_speed_that_was_measured_here_stands_beside_the_expected_one(home: Path, demo_model: Path) -> None:
    target = models_dir() / "own" / "Tiny-GGUF" / FILE
    target.parent.mkdir(parents=True)
    shutil.copy(demo_model, target)
    measured_model = ModelFacts("tiny", "F16", target.stat().st_size, file=FILE)
    with History() as history:
        for rates in ((80.0, 81.0), (60.0, 62.0)):
            session = history.begin_session("bench", replace(ENVIRONMENT, model=measured_model), OFF, workload="code")
            history.add_runs(session, [make_run(rate) for rate in rates])
            history.finish(session, {})
    shelf = [each async for each in read_shelf(CARD)][-1]
    model = next(each for each in shelf.models if each.is_here)
    assert model.first is not None
    row = describe_model(model, {}, recommended=False)
    assert model.first.measured is not None
    assert model.first.measured.tokens_per_second == 61.0  # the newest
    if model.first.plan is not None and model.first.plan.forecast is not None:
        assert row.speed_note == "measured 61"
        assert "expected" in row.sentence
    else:
        assert (row.speed, row.speed_note) == ("61", "measured here")
        assert "measured 61 t/s" in row.sentence
    assert not any(each.first.measured for each in shelf.models if each.first and each is not model)


async def test_pictures_are_promised_where_the_projector_has_room(home: Path) -> None:
    notes = {}
    for gib in (24, 48):
        shelf = [each async for each in read_shelf(MachineDescription(gpu_memory_gib=(gib,), free_mib=gib * 1_000))][-1]
        for model in shelf.models:
            plan = model.first.plan if model.first is not None else None
            if plan is None or plan.group == 2 or not plan.entry.mmproj:
                continue
            needed, spare = pictures_mib(plan), plan.free_mib - plan.needed_mib
            assert needed is None or needed > 200
            notes[describe_model(model, {}, recommended=False).note.rpartition("; ")[2]] = (
                needed is None or needed <= spare
            )
    assert notes["reads pictures"]
    assert not notes.get("no room for pictures", False)


async def test_plans_are_reused_while_the_memory_is_the_same(home: Path) -> None:
    shelf = [each async for each in read_shelf(CARD)][-1]
    again = [each async for each in read_shelf(CARD, shelf)]
    assert all(
        each.files[0].plan is before.files[0].plan for each, before in zip(again[0].models, shelf.models, strict=True)
    )
    assert len(again) == 3  # three steps: known, read, complete; none for new plans
    other = [each async for each in read_shelf(MachineDescription(gpu="RTX 3060"), shelf)][-1]
    assert other.situation != shelf.situation
    plans = [
        (each.files[0].plan, before.files[0].plan) for each, before in zip(other.models, shelf.models, strict=True)
    ]
    assert not any(one is two for one, two in plans if one is not None)


def test_hundreds_of_models_are_planned_when_they_are_selected(
    open_page: OpenPage, copy_demo: Callable[..., Path], qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.app.models.model_library._FIRST_PLANNED", 1)
    for name in ("a", "b"):
        copy_demo(models_dir() / f"{name}.gguf")
    page = open_page(CARD, waits=True)
    first, second = (model for model in page.list.models if model.is_here)
    assert not first.is_pending
    assert second.is_pending
    page.list.choose(second.key)
    qtbot.waitUntil(lambda: page.details.badge.isVisible() and page.details.title.text() == second.name)


def test_the_demo_is_started_from_its_row(open_page: OpenPage, window: Window, qtbot: QtBot) -> None:
    page = open_page(CARD, waits=True)
    page.list.choose("demo")
    assert row_of(page, "demo").state == "built in"
    qtbot.keyClick(page.list, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: window.controller.inputs.status.state is ServerState.READY)
    assert window.page_name == "cockpit"


def test_downloads_are_collapsed_to_one_line(open_page: OpenPage, window: Window, qtbot: QtBot) -> None:
    page = open_page(CARD)
    for name in ("qwen3.5-9b-mtp:Q4_K_M", "qwen3.5-9b-mtp:Q6_K"):
        page.queue.add_download(name)
    qtbot.waitUntil(lambda: page.downloads.isVisible() and len(page.downloads.rows) == 2)
    qtbot.waitUntil(lambda: page.downloads.height() <= 60)
    press_button(qtbot, page.downloads.open_button)
    qtbot.waitUntil(lambda: 60 < page.downloads.height() <= 60 + 2 * 44 + 4)
    press_button(qtbot, page.downloads.open_button)
    qtbot.waitUntil(lambda: page.downloads.height() <= 60)


def test_verification_shows_its_progress_and_result(
    open_page: OpenPage, copy_demo: Callable[..., Path], qtbot: QtBot
) -> None:
    path = copy_demo(models_dir() / "mine.gguf")
    page = open_page()
    choose_file(page, "mine.gguf")
    press_button(qtbot, page.details.verify)
    assert page.details.progress.isVisible()
    assert page.details.verify.text() == "Stop verifying"
    qtbot.waitUntil(lambda: page.banner.isVisible())
    assert "SHA-256 was saved" in page.banner.text.text()
    assert not page.details.progress.isVisible()
    qtbot.waitUntil(lambda: files_here(page)[0].state.value == "good")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    qtbot.waitUntil(lambda: facts(page).get("SHA-256", "").startswith(sha256[:16]))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    press_button(qtbot, page.details.verify)
    qtbot.waitUntil(lambda: "is damaged or was changed" in page.banner.text.text())
    qtbot.waitUntil(lambda: files_here(page)[0].state.value == "damaged")
    qtbot.waitUntil(lambda: not page.details.start.isEnabled())


def test_a_file_whose_end_is_missing_is_marked_and_cannot_be_started(
    open_page: OpenPage, copy_demo: Callable[..., Path], qtbot: QtBot
) -> None:
    path = copy_demo(models_dir() / "cut.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100_000])
    page = open_page()
    choose_file(page, "cut.gguf")
    (model,) = [each for each in page.list.models if each.is_here and not each.is_built_in]
    row = page.list.tree.row_at(page.list.tree.find_index(model.key))
    assert (row.state, row.state_role) == ("incomplete", "bad")
    assert row.note.endswith(" kB of the file are missing")
    assert page.details.note.text().startswith("cut.gguf is incomplete: ")
    assert not page.details.start.isEnabled()
    path.write_bytes(whole)
    page.refresh()
    qtbot.waitUntil(page.details.start.isEnabled)
    assert not page.details.note.isVisible()


def test_deleting_needs_a_second_press(open_page: OpenPage, copy_demo: Callable[..., Path], qtbot: QtBot) -> None:
    path = copy_demo(models_dir() / "mine.gguf")
    page = open_page()
    choose_file(page, "mine.gguf")
    press_button(qtbot, page.details.delete)
    assert path.exists()
    assert page.details.delete.text() == "Delete 8.6 MB?"
    page.details.delete.reset()  # the time for a second press is over
    assert page.details.delete.text() == "Delete"
    press_button(qtbot, page.details.delete)
    press_button(qtbot, page.details.delete)
    qtbot.waitUntil(lambda: not files_here(page))
    assert not path.exists()
    assert "8.6 MB freed" in page.banner.text.text()


def test_a_served_model_is_not_deleted_and_its_last_use_is_recorded(
    open_page: OpenPage, copy_demo: Callable[..., Path], window: Window, qtbot: QtBot
) -> None:
    path = copy_demo(models_dir() / "mine.gguf")
    page = open_page()
    choose_file(page, "mine.gguf")
    press_button(qtbot, page.details.start)
    assert window.page_name == "cockpit"
    qtbot.waitUntil(lambda: window.controller.inputs.status.state is ServerState.READY)
    window.show_page("models")
    qtbot.waitUntil(lambda: any(model.used_s for model in page.list.models))
    qtbot.waitUntil(lambda: page.details.start.text() == "Open the chat")
    assert page.details.fit.text() == "Loaded now. Its settings and memory are on Cockpit."
    (row,) = [page.list.tree.row_at(page.list.tree.find_index(each.key)) for each in page.list.models if each.is_here]
    assert (row.state, row.state_role) == ("loaded", "good")
    page.delete_selected()
    qtbot.waitUntil(lambda: "uses this file" in page.banner.text.text())
    assert path.exists()
    press_button(qtbot, page.details.start)
    assert window.page_name == "cockpit"


def test_a_dropped_file_and_folder_are_listed(
    open_page: OpenPage, copy_demo: Callable[..., Path], tmp_path: Path, qtbot: QtBot
) -> None:
    file, other = copy_demo(tmp_path / "one.gguf"), copy_demo(tmp_path / "more" / "two.gguf")
    page = open_page()
    (tmp_path / "x.txt").write_text("x")
    assert not drop_files(page, tmp_path / "x.txt")
    assert drop_files(page, file)
    qtbot.waitUntil(lambda: names(page) == ["one.gguf"])
    qtbot.waitUntil(lambda: page.details.title.text() == "one")
    assert drop_files(page, other.parent)
    qtbot.waitUntil(lambda: set(names(page)) == {"one.gguf", "two.gguf"})
    press_button(qtbot, page.folders_button)
    press_button(qtbot, page.folders.remove_buttons[other.parent])
    qtbot.waitUntil(lambda: names(page) == ["one.gguf"])
    assert other.exists()
    qtbot.keyClick(page, Qt.Key.Key_Escape)
    assert page.list.isVisible()


def test_the_folders_fit_into_a_window_that_becomes_smaller(open_page: OpenPage, window: Window, qtbot: QtBot) -> None:
    page = open_page()
    qtbot.waitUntil(page.details.isVisible)
    page.show_folders(shows=True)
    window.resize(1_000, 640)
    qtbot.waitUntil(lambda: page.width() <= window.width() - window.rail.width())


def test_folders_and_several_files_can_be_dropped_anywhere_in_the_window(
    open_page: OpenPage, copy_demo: Callable[..., Path], tmp_path: Path, window: Window, qtbot: QtBot
) -> None:
    one, two = copy_demo(tmp_path / "a" / "one.gguf"), copy_demo(tmp_path / "b" / "two.gguf")
    assert drop_files(window, one.parent, two)
    assert window.page_name == "models"
    page: ModelsPage = window.page("models")
    qtbot.waitUntil(lambda: names(page) == ["one.gguf", "two.gguf"])


def test_leftovers_of_downloads_are_shown_and_deleted(open_page: OpenPage, qtbot: QtBot) -> None:
    target = models_dir() / "m.gguf"
    target.parent.mkdir(parents=True)
    part_path(target).write_bytes(b"x" * 60_000)
    journal.create_journal(
        journal_path(target), DownloadIdentity("https://hub.example/x", 100_000), [Stretch(0, 60_000, 60_000)]
    )
    page = open_page()
    press_button(qtbot, page.folders_button)
    button = page.folders.delete_buttons[part_path(target)]
    press_button(qtbot, button)
    assert part_path(target).exists()
    press_button(qtbot, button)
    qtbot.waitUntil(lambda: not part_path(target).exists())
    qtbot.waitUntil(lambda: not page.folders.delete_buttons)


REPO = "window/Demo-GGUF"


@pytest.fixture
def repo(hub: Hub, demo_model: Path) -> Iterator[str]:
    folder = hub.folder / "window" / "Demo-GGUF"
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / FILE)
    yield REPO
    shutil.rmtree(folder)


def test_a_link_is_shown_with_its_files_and_downloaded_from_its_row(
    open_page: OpenPage, repo: str, window: Window, hub: Hub, qtbot: QtBot
) -> None:
    page = open_page(CARD)
    notifications: list[str] = []
    window.controller.notification_requested.connect(lambda _title, text: notifications.append(text))
    QGuiApplication.clipboard().setText(f"{hub.url}/{repo}/blob/main/{FILE}")
    window._paste()
    assert window.page_name == "models"
    qtbot.waitUntil(lambda: page.details.subtitle.text().startswith("F16"))
    model = page.list.model_row
    assert model is not None
    assert model.repo == repo
    assert page.details.badge.text() == "FITS"
    press_row_button(page, qtbot, model.key)
    row = row_of(page, model.key)
    assert row.fraction is not None  # the row shows a bar at once, before the queue has the download
    assert page.downloads.isVisible()
    assert page.downloads.title.full_text == "MTP demo · F16"
    qtbot.waitUntil(lambda: names(page) == [FILE])
    assert notifications == [f"{repo}:{FILE}"]
    assert "verified" in page.banner.text.text()
    (job,) = page.queue.snapshot.jobs
    assert job.state.value == "done"
    press_button(qtbot, page.downloads.clear_button)
    qtbot.waitUntil(lambda: not page.downloads.isVisible())
    (button,) = page.banner.buttons
    assert button.text() == "Start"
    assert sum(1 for each in page.list.models if each.repo == repo) == 1
    press_button(qtbot, button)
    qtbot.waitUntil(lambda: window.controller.inputs.status.state is ServerState.READY)


def test_other_files_of_a_repository_stay_listed_after_a_download(
    open_page: OpenPage, repo: str, hub: Hub, qtbot: QtBot
) -> None:
    shutil.copy(hub.folder / repo / FILE, hub.folder / repo / "demo-Q8_0.gguf")
    page = open_page(CARD)
    page.show_hub_model(repo)
    qtbot.waitUntil(lambda: page.list.model_row is not None and page.list.model_row.repo == repo)
    model = page.list.model_row
    assert model is not None
    assert {each.quant for each in model.files} == {"F16", "Q8_0"}
    wanted = next(each for each in model.files if each.quant == "F16")
    press_row_button(page, qtbot, model.key, wanted.key)
    qtbot.waitUntil(lambda: names(page) == [FILE])
    (model,) = (each for each in page.list.models if each.repo == repo)
    assert {(each.quant, each.local is not None) for each in model.files} == {("F16", True), ("Q8_0", False)}
    assert model.first is not None
    assert model.first.local is not None


def test_a_typed_address_is_downloaded(open_page: OpenPage, repo: str, qtbot: QtBot) -> None:
    page = open_page(CARD)
    press_button(qtbot, page.add_button)
    assert page.add_card.isVisible()
    assert not page.add_card.add_button.isEnabled()
    qtbot.keyClicks(page.add_card.address, f"{repo}:{FILE}")
    press_button(qtbot, page.add_card.add_button)
    qtbot.waitUntil(lambda: names(page) == [FILE])
    qtbot.keyClick(page.add_card.address, Qt.Key.Key_Escape)
    assert not page.add_card.isVisible()


def test_an_address_of_another_site_asks_for_its_checksum(open_page: OpenPage, window: Window, qtbot: QtBot) -> None:
    page = open_page()
    window.show_page("about")
    QGuiApplication.clipboard().setText("https://files.example/some/model.gguf")
    window._paste()
    assert window.page_name == "models"
    assert page.add_card.address.text() == "https://files.example/some/model.gguf"
    assert "SHA-256" in page.add_card.hint.text()
    assert page.add_card.hint.isVisible()
    assert not page.add_card.show_button.isEnabled()


def test_a_download_can_start_its_model(open_page: OpenPage, repo: str, window: Window, qtbot: QtBot) -> None:
    page = open_page(CARD)
    page.show_hub_model(repo)
    qtbot.waitUntil(lambda: page.details.download_and_start.isVisible() and page.details.title.text() == "MTP demo")
    press_button(qtbot, page.details.download_and_start)
    qtbot.waitUntil(lambda: window.controller.inputs.status.state is ServerState.READY)
    assert window.page_name == "cockpit"
    assert window.controller.launch is not None
    assert window.controller.launch.options.model.name == FILE


def test_the_result_of_a_tune_comes_first_in_the_details(
    open_page: OpenPage, copy_demo: Callable[..., Path], qtbot: QtBot
) -> None:
    path = copy_demo(models_dir() / FILE)
    build = asyncio.run(probe_engine(None))
    here = Environment.for_model(model_facts(read_model(path)), build.name, build.version)
    evidence = Evidence(mtp="on", tokens_per_second=306.4, speedup=2.32, environment=here)
    save_tuned_settings(TunedSettings(settings={"draft": 2}, evidence=evidence, verified_by=("1",), path=path))
    page = open_page(waits=True)
    choose_file(page, FILE)
    line = "Measured here: draft 2, 306 t/s (2.3 times as fast as with MTP off)."
    qtbot.waitUntil(lambda: page.details.measured.text() == line, timeout=20_000)
    assert page.details.measured.isVisible()


def test_the_hub_is_searched_with_consent(open_page: OpenPage, repo: str, hub: Hub, qtbot: QtBot) -> None:
    page = open_page(CARD)
    hub.requests()
    qtbot.keyClicks(page.search.field, "window demo")
    qtbot.waitUntil(page.hub_line.isVisible)
    assert [each.text() for each in page.hub_line.buttons] == ["Search once", "Always", "Never"]
    assert hub.requests() == []  # no request is sent before the user has answered
    assert page.nothing.isVisible()
    assert page.nothing.isAncestorOf(page.hub_line)  # the question is shown below "Nothing found"
    press_button(qtbot, page.hub_line.buttons[1])
    qtbot.waitUntil(lambda: "1 found" in page.hub_line.text.text())
    assert settings.stored_value(SEARCH_HUB) == VALUE_ON
    (model,) = page.list.models
    assert model.found is not None
    assert row_of(page, model.key).action == "files"
    press_row_button(page, qtbot, model.key)
    qtbot.waitUntil(lambda: bool(page.list.models) and bool(page.list.models[0].files))
    assert page.list.models[0].repo == repo
    assert not page.nothing.isAncestorOf(page.hub_line)
    assert page.details.badge.text() == "FITS"
    page.search.field.clear()
    qtbot.keyClicks(page.search.field, "no such words")
    qtbot.waitUntil(lambda: page.hub_line.text.text() == "Nothing found on Hugging Face.")
    assert page.nothing.isVisible()
    qtbot.keyClick(page.search.field, Qt.Key.Key_Escape)
    assert page.search.text == ""
    assert len(page.list.models) > 10


def test_a_hub_that_does_not_answer_can_be_tried_again(
    open_page: OpenPage, repo: str, hub: Hub, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page(CARD)
    settings.change_setting(SEARCH_HUB, VALUE_ON)
    monkeypatch.setenv("HF_ENDPOINT", hub.with_faults("503"))
    qtbot.keyClicks(page.search.field, "demo")
    qtbot.waitUntil(lambda: "HTTP status 503" in page.hub_line.text.text())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    press_button(qtbot, page.hub_line.buttons[0])
    qtbot.waitUntil(lambda: "found on Hugging Face" in page.hub_line.text.text())


def test_without_a_network_the_failed_search_is_explained(
    open_page: OpenPage, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    page = open_page()
    qtbot.keyClicks(page.search.field, "qwen")
    qtbot.waitUntil(lambda: "there is no network" in page.hub_line.text.text())
    assert page.list.models
    assert all("qwen" in each.name.casefold() or "qwen" in each.key for each in page.list.models)
    assert page.hub_line.buttons == []


def test_a_search_that_finds_nothing_leads_to_a_link(
    open_page: OpenPage, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    page = open_page()
    qtbot.keyClicks(page.search.field, "no such model")
    assert page.nothing.isVisible()
    press_button(qtbot, page.nothing.buttons[1])
    assert page.add_card.isVisible()
    assert page.add_card.address.hasFocus() or not page.isActiveWindow()


def test_an_impossible_download_is_explained(open_page: OpenPage, hub: Hub, qtbot: QtBot) -> None:
    page = open_page()
    page.queue.add_download("nobody/Nothing-GGUF:x.gguf")
    assert page.downloads.isVisible()
    assert page.downloads.title.full_text == "nobody/Nothing-GGUF:x.gguf"
    qtbot.waitUntil(lambda: any(job.state.value == "failed" for job in page.queue.snapshot.jobs))
    (job,) = page.queue.snapshot.jobs
    assert page.downloads.rows[job.id].toggle.text() == "Try again"
    assert page.downloads.rows[job.id].progress_text.full_text
    assert page.downloads.toggle.text() == "Try again"
    assert page.downloads.problem.full_text
    press_button(qtbot, page.downloads.cancel)
    qtbot.waitUntil(lambda: page.queue.snapshot.jobs[0].state.value == "cancelled")


def test_a_refused_download_is_not_shown_as_added(open_page: OpenPage, hub: Hub, qtbot: QtBot) -> None:
    page = open_page()
    page.queue.add_download("nobody/Nothing-GGUF:Q4_K_M")
    assert page.downloads.isVisible()
    qtbot.waitUntil(lambda: not page.downloads.isVisible())
    assert page.banner.isVisible()
    assert "nobody/Nothing-GGUF" in page.banner.text.text()


def test_an_interrupted_queue_resumes_with_the_window(
    repo: str, home: Path, window: Window, qtbot: QtBot, open_page: OpenPage
) -> None:
    """The queue is as after a crash, or after `downloads add` on the command line."""
    import asyncio

    from launcher.app.models.downloads import add_pull, download_queue
    from launcher.fetch.jobs import RequestedState

    first = asyncio.run(add_pull(f"{repo}:missing.gguf")).job
    asyncio.run(add_pull(f"{repo}:{FILE}"))
    download_queue().request_state(RequestedState.PAUSE, first.id)
    page = open_page()
    qtbot.waitUntil(lambda: names(page) == [FILE])
    states = {job.id: job.state.value for job in page.queue.snapshot.jobs}
    assert states[first.id] == "paused"
    row = page.downloads.rows[first.id]
    assert row.toggle.text() == "Resume"
    press_button(qtbot, page.downloads.open_button)
    press_button(qtbot, row.cancel)
    qtbot.waitUntil(lambda: page.queue.snapshot.jobs[0].state.value == "cancelled")


class TestQueueButtons:
    """Pause, Resume and Cancel, by keyboard and by mouse, in the bar and in the row of a download."""

    @pytest.fixture(autouse=True)
    def asked(self, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
        """What is asked of the queue. The page is shown."""
        calls: list[tuple[object, ...]] = []
        self.page = open_page()
        monkeypatch.setattr(self.page.queue, "request_state", lambda *call: calls.append(call))
        self.page.queue.blockSignals(True)  # else the empty queue would be shown again at some moment
        return calls

    @pytest.fixture(params=["bar", "row"])
    def widget(self, request: pytest.FixtureRequest) -> DownloadsBar | JobRow:
        """The bar, or the row in the open queue above it, with a running download."""
        self.show_job(JobState.RUNNING, others=1)
        if request.param == "bar":
            return self.page.downloads
        self.page.downloads.open_button.click()
        return self.page.downloads.rows[7]

    def show_job(self, state: JobState, wanted: RequestedState = RequestedState.RUN, *, others: int = 1) -> None:
        """Show a download of 17 GB, and others that wait."""
        job = Job(7, "pull", {}, "a/b:large.gguf", 0.0, state, wanted, bytes=17 * 10**9, done_bytes=2_870_000_000)
        more = [Job(8 + at, "pull", {}, f"a/b:{at}.gguf", 0.0, JobState.WAITING, bytes=10**9) for at in range(others)]
        self.page.downloads.show_queue(QueueView((job, *more)))

    def press_space(self, window: Window, qtbot: QtBot) -> None:
        focused = window.focusWidget()
        assert focused is not None
        qtbot.keyClick(focused, Qt.Key.Key_Space)

    @pytest.mark.parametrize("way", ["key", "mouse"])
    def test_space_after_pause_or_resume_deletes_nothing(
        self,
        widget: DownloadsBar | JobRow,
        asked: list[tuple[object, ...]],
        way: str,
        window: Window,
        qtbot: QtBot,
    ) -> None:
        window.activateWindow()
        qtbot.waitActive(window)
        for verb, before, wanted, after in (
            ("pause", JobState.RUNNING, RequestedState.PAUSE, JobState.PAUSED),
            ("run", JobState.PAUSED, RequestedState.RUN, JobState.RUNNING),
        ):
            if way == "mouse":
                press_button(qtbot, widget.toggle)
            else:
                widget.toggle.setFocus()
                self.press_space(window, qtbot)
            self.show_job(before, wanted)
            self.press_space(window, qtbot)
            assert {*asked} == {(verb, 7)}
            asked.clear()
            self.show_job(after, wanted)
            assert window.focusWidget() is widget.toggle

    @pytest.mark.parametrize("way", ["key", "mouse"])
    def test_cancel_asks_before_it_deletes_gigabytes(
        self, widget: DownloadsBar | JobRow, asked: list[tuple[object, ...]], way: str, qtbot: QtBot
    ) -> None:
        def press() -> None:
            if way == "mouse":
                press_button(qtbot, widget.cancel)
            else:
                widget.cancel.setFocus()
                qtbot.keyClick(widget.cancel, Qt.Key.Key_Space)

        press()
        assert (widget.cancel.text(), asked) == ("Delete 2.87 GB?", [])
        self.show_job(JobState.RUNNING)
        assert widget.cancel.text() == "Delete 2.87 GB?", "the question stays while the download goes on"
        press()
        assert asked == [("discard", 7)]

    def test_cancel_never_comes_to_where_pause_was(
        self, asked: list[tuple[object, ...]], window: Window, qtbot: QtBot
    ) -> None:
        bar = self.page.downloads
        for width in (1000, 1440):
            window.resize(width, 700)
            self.show_job(JobState.RUNNING, others=0)
            QCoreApplication.sendPostedEvents()
            bar._line.layout().activate()
            aim = bar.toggle.mapTo(window, bar.toggle.rect().center())
            for change in ("another download", "a question", "a third"):
                if change == "a question":
                    press_button(qtbot, bar.cancel)
                else:
                    self.show_job(JobState.RUNNING, others=2 if change == "a third" else 1)
                assert bar.open_button.isVisible()
                bar._line.layout().activate()
                assert window.childAt(aim) is bar.toggle, (width, change)
            qtbot.mouseClick(window.childAt(aim), Qt.MouseButton.LeftButton)
            assert asked.pop() == ("pause", 7)
            assert not asked
            bar.cancel.reset()

    def test_a_download_does_not_make_the_page_wider_than_a_small_window(self, window: Window, qtbot: QtBot) -> None:
        bar = self.page.downloads
        window.resize(1000, 700)
        self.show_job(JobState.RUNNING, others=2)
        progress = Progress(2_870_000_000, 17 * 10**9, bytes_per_second=42.5e6, seconds_left=333.0)
        totals = QueueTotals(3, 10**10, 42.5e6, 777.0)
        bar.show_queue(QueueView(self.snapshot_jobs(), {7: progress}, None, totals))
        press_button(qtbot, bar.cancel)
        QCoreApplication.sendPostedEvents()
        assert bar.mapTo(window, bar.rect().topRight()).x() < window.width()
        assert bar.amount.isVisible()
        assert not bar.total.isVisible()
        assert not list_clipped_texts(bar)
        window.resize(2000, 700)
        QCoreApplication.sendPostedEvents()
        assert all(each.isVisible() for each in (bar.amount, bar.speed, bar.rest, bar.total))

    def snapshot_jobs(self) -> tuple[Job, ...]:
        job = Job(7, "pull", {}, "a/b:large.gguf", 0.0, JobState.RUNNING, bytes=17 * 10**9, done_bytes=2_870_000_000)
        return (job, *(replace(job, id=each, state=JobState.WAITING) for each in (8, 9)))


def test_the_first_row_is_selected_until_one_is_chosen(open_page: OpenPage, qtbot: QtBot) -> None:
    """Files of the computer are listed before the best one is known."""
    write_odd(models_dir() / "a-lora.gguf", "llama", {"general.type": "adapter"}, ("blk.0.attn_q.weight.lora_a",))
    page = open_page(CARD, waits=True)
    assert page.list.model_row is page.list.models[0]
    assert page.details.badge.text() == "FITS"
    chosen = page.list.models[2]
    page.list.choose(chosen.key)
    page.refresh()
    qtbot.waitUntil(lambda: page.shelf is not None and page.shelf.is_complete)
    assert page.list.model_row is not None
    assert page.list.model_row.key == chosen.key


def test_keys_move_the_focus_to_the_search_and_the_list(open_page: OpenPage, qtbot: QtBot) -> None:
    page = open_page(CARD)
    page.list.setFocus()
    qtbot.keyClick(page.list, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    assert page.search.field.hasFocus()
    qtbot.keyClicks(page.search.field, "gemma")
    assert all("gemma" in each.key for each in page.list.models)
    qtbot.keyClick(page.search.field, Qt.Key.Key_Down)
    assert page.list.hasFocus()
    assert page.list.model_row is page.list.models[0]


def test_a_narrow_page_has_the_details_in_a_drawer(open_page: OpenPage, window: Window, qtbot: QtBot) -> None:
    page = open_page(CARD)
    window.resize(1000, 640)
    qtbot.waitUntil(lambda: not page.details.isVisible())
    click_row(page, qtbot, page.list.models[1].key)
    assert page.details.isVisible()
    assert page.details.title.text() == page.list.models[1].name
    qtbot.keyClick(page.list, Qt.Key.Key_Escape)
    assert not page.details.isVisible()
    assert page.list.hasFocus()
    qtbot.keyClick(page.list, Qt.Key.Key_Down)
    assert not page.details.isVisible()


def test_columns_are_hidden_one_by_one() -> None:
    shown = [tuple(ListColumns.for_width(width).places) for width in (900, 700, 580, 500, 300)]
    assert shown[0] == ("fit", "file", "speed", "context", "size")
    assert [len(each) for each in shown] == sorted((len(each) for each in shown), reverse=True)
    assert shown[-1] == ("fit",)


def test_no_sentence_of_the_page_contains_a_command(open_page: OpenPage, window: Window) -> None:
    """Users of the window may have no terminal."""
    page = open_page(MachineDescription(gpu="RTX 3060"), waits=True)
    texts = []
    for model in page.list.models:
        page.list.choose(model.key)
        texts += [label.text() for label in page.findChildren(QLabel)]
        texts += [button.text() + button.toolTip() for button in page.findChildren(QPushButton)]
        row = row_of(page, model.key)
        texts += [row.sentence, row.tip]
    assert [text for text in texts if "`" in text or " --" in text or "(--" in text or "erminal" in text] == []
    assert without_flags("It fits (--ctx 4096), slower.") == "It fits, slower."


def test_a_screen_reader_gets_a_row_as_a_sentence(open_page: OpenPage) -> None:
    page = open_page(CARD, waits=True)
    model: LibraryModel = page.list.models[0]
    spoken_text = page.list.tree.data(page.list.tree.find_index(model.key), Qt.ItemDataRole.AccessibleTextRole)
    for part in (model.name, "recommended", "FITS", "t/s", "GB", "Download"):
        assert part in spoken_text


def test_a_file_name_is_never_rendered_as_html(
    copy_demo: Callable[..., Path], open_page: OpenPage, window: Window
) -> None:
    copy_demo(models_dir() / "a <img src='x.png'> b.gguf")
    page = open_page()
    choose_file(page, "a <img src='x.png'> b.gguf")
    tip = page.list.tree.data(page.list.currentIndex(), Qt.ItemDataRole.ToolTipRole)
    tips = [tip, *(label.toolTip() for label in page.details.findChildren(QLabel))]
    assert any("img src" in each for each in tips)
    assert not any("<img" in each for each in tips)


def end_event(handle: WorkHandle[Any]) -> threading.Event:
    """Return an event that the end of the work sets, on whatever thread."""
    ended = threading.Event()
    handle.when_done(lambda _error: ended.set())
    return ended


def test_the_result_of_a_stopped_verification_is_not_shown(
    copy_demo: Callable[..., Path], open_page: OpenPage, qtbot: QtBot
) -> None:
    copy_demo(models_dir() / "one.gguf")
    copy_demo(models_dir() / "two.gguf")
    page = open_page()
    choose_file(page, "one.gguf")
    page.verify_selected()
    handle = page.verifying.handle
    assert handle is not None
    assert end_event(handle).wait(60)  # the work has ended, but its result has not reached this thread
    page.verify_selected()
    choose_file(page, "two.gguf")
    page.verify_selected()
    second = page.verifying.handle
    assert second is not None
    second_ended = end_event(second)
    qtbot.waitUntil(lambda: page.verifying.local is None)
    assert second_ended.is_set()
    assert "two" in page.banner.text.text()
