"""The Models page: what lies here, what is done with it, and the downloads, on the real library and queue."""

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from launcher.app.first_steps import Stage, Step, StepDetail
from launcher.app.planner import MachineDescription
from launcher.base.paths import models_dir
from launcher.engine.server.state import ServerState
from launcher.fetch import journal
from launcher.fetch.journal import DownloadIdentity, Stretch
from launcher.fetch.partial_file import journal_path, part_path
from launcher.gui.models.page import ModelsPage
from launcher.gui.models.queries import read_offers
from launcher.gui.models.table import ModelTable
from launcher.gui.models.text import display_name, offer_size, place_text
from launcher.gui.widgets.rows import Cell, Column
from launcher.gui.window import Window
from launcher.runtime import WorkHandle
from tests.conftest import Hub
from tests.gui.dragging import dropped

FIRST_PAGE = "about"
FILE = "demo-F16.gguf"


@pytest.fixture(autouse=True)
def _no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def put(demo_model: Path) -> Callable[..., Path]:
    def copy(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(demo_model, path)
        return path

    return copy


@pytest.fixture
def open_page(window: Window, qtbot: QtBot) -> Callable[[], ModelsPage]:
    """Show the page when the test has laid out its files."""

    def show() -> ModelsPage:
        window.show_page("models")
        page: ModelsPage = window.page("models")
        qtbot.waitUntil(lambda: page.local_models is not None)
        return page

    return show


def press(qtbot: QtBot, button: object) -> None:
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def names(page: ModelsPage) -> list[str]:
    return [local.path.name for local in page.table.rows]


def test_with_nothing_here_it_says_what_to_do(open_page: Callable[[], ModelsPage], qtbot: QtBot) -> None:
    page = open_page()
    assert page.empty.isVisible()
    assert not page.details.isVisible()
    press(qtbot, page.empty.buttons[0])
    qtbot.waitUntil(lambda: len(page.offers.table.rows) > 10)
    assert page.offers.isVisible()
    offer = page.offers.table.row
    assert offer is not None
    assert page.offers.download_button.isEnabled() != offer.downloaded
    assert page.offers.reason.text() == offer.reason


def test_files_are_listed_with_what_is_known(
    open_page: Callable[[], ModelsPage], put: Callable[..., Path], headless_model: Path, qtbot: QtBot
) -> None:
    put(models_dir() / "owner" / "Demo-GGUF" / FILE)
    shutil.copy(headless_model, models_dir() / "plain-Q8_0.gguf")
    (models_dir() / "broken.gguf").write_bytes(b"GGUF")
    page = open_page()
    qtbot.waitUntil(lambda: len(page.table.rows) == 3)
    cells = {
        local.path.name: [page.table._rows.columns[at].cell(local).text for at in (1, 3, 4)]
        for local in page.table.rows
    }
    assert cells[FILE] == ["F16", "yes", "not verified"]
    assert cells["plain-Q8_0.gguf"] == ["Q8_0", "no", "not verified"]
    assert cells["broken.gguf"][2] == "unreadable"
    assert page.table.row is not None
    page.table.choose_row(next(local for local in page.table.rows if local.path.name == FILE))
    qtbot.waitUntil(lambda: page.details.badge.isVisible())
    assert page.details.badge.text() in ("FITS", "TIGHT", "TOO BIG")
    said = [page.details.grid.itemAt(at).widget().text() for at in range(page.details.grid.count())]
    assert "Architecture" in said
    assert "qwen35moe" in said
    assert "not computed yet; use Verify" in said


def test_another_programs_model_is_listed_planned_and_left_to_it(
    open_page: Callable[[], ModelsPage], put: Callable[..., Path], tmp_path: Path, window: Window, qtbot: QtBot
) -> None:
    store = tmp_path / ".ollama" / "models"
    put(store / "blobs" / f"sha256-{'a' * 64}")
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "1b"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'a' * 64}", "size": 1}
    manifest.write_text(json.dumps({"layers": [layer]}))
    page = open_page()
    qtbot.waitUntil(lambda: len(page.table.rows) == 1)
    (local,) = page.table.rows
    assert (display_name(local), place_text(local)) == ("tiny:1b", "Ollama")
    assert page.local_models is not None
    assert page.local_models.stores[store] == ("Ollama", "")
    page.table.choose_row(local)
    assert page.details.start.isVisible()
    assert not page.details.delete.isVisible()
    start = window.page("start")
    with qtbot.waitSignal(start.flow.planned):
        press(qtbot, page.details.plan)
    qtbot.waitUntil(lambda: start.steps.progress[Step.VERIFY].stage is Stage.DONE)
    assert window.page_name == "start"
    assert start.plan is not None
    assert start.plan.entry.name == "tiny:1b"
    assert start.steps.progress[Step.MODEL].subject == "tiny:1b"  # not the name of its blob
    assert start.steps.progress[Step.VERIFY].detail is StepDetail.WITHOUT_SUM


def test_what_is_offered_begins_with_what_is_recommended(
    open_page: Callable[[], ModelsPage], window: Window, qtbot: QtBot
) -> None:
    page = open_page()
    page.show_view(1)
    qtbot.waitUntil(lambda: len(page.offers.table.rows) > 10)
    offers = page.offers.table.rows
    assert page.offers.table.row is offers[0]
    assert offers[0].fit != "TOO BIG"
    unknown = [offer for offer in offers if not offer.is_size_known]
    assert unknown
    assert all(offer_size(offer).startswith("about ") or offer.bytes is None for offer in unknown)


@pytest.mark.parametrize("free_mib", [5_500, 10_500, 48_000])
async def test_what_has_room_is_offered_before_what_has_not(free_mib: int) -> None:
    offers = (await read_offers(MachineDescription(free_mib=free_mib, backend="cpu"))).offers
    models = list(dict.fromkeys(offer.model for offer in offers))
    has_room = {offer.model for offer in offers if offer.fit != "TOO BIG"}
    assert 0 < len(has_room) < len(models)
    assert models[: len(has_room)] == [model for model in models if model in has_room]
    for model in models:
        fits = [offer.fit != "TOO BIG" for offer in offers if offer.model == model]
        assert fits == sorted(fits, reverse=True)


def test_downloads_stay_together_where_no_file_is_shown(
    open_page: Callable[[], ModelsPage], window: Window, qtbot: QtBot
) -> None:
    window.resize(1440, 900)
    page = open_page()
    page.show_view(1)
    page.queue.add_download("qwen3.5-9b-mtp:Q4_K_M")
    qtbot.waitUntil(lambda: page.downloads.isVisible() and bool(page.downloads.rows))
    qtbot.waitUntil(lambda: page.downloads.height() < 300)


def test_verifying_shows_how_far_it_is_and_what_came_of_it(
    open_page: Callable[[], ModelsPage], put: Callable[..., Path], qtbot: QtBot
) -> None:
    path = put(models_dir() / "mine.gguf")
    page = open_page()
    qtbot.waitUntil(lambda: names(page) == ["mine.gguf"])
    press(qtbot, page.details.verify)
    assert page.details.progress.isVisible()
    assert page.details.verify.text() == "Stop verifying"
    qtbot.waitUntil(lambda: page.banner.isVisible())
    assert "SHA-256 was saved" in page.banner.text.text()
    assert not page.details.progress.isVisible()
    qtbot.waitUntil(lambda: page.table.rows[0].state.value == "good")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    grid = page.details.grid
    qtbot.waitUntil(lambda: any(sha256 in grid.itemAt(at).widget().toolTip() for at in range(grid.count())))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    press(qtbot, page.details.verify)
    qtbot.waitUntil(lambda: "is damaged or was changed" in page.banner.text.text())
    qtbot.waitUntil(lambda: page.table.rows[0].state.value == "damaged")
    assert not page.details.start.isEnabled()


def test_deleting_takes_a_second_press(
    open_page: Callable[[], ModelsPage], put: Callable[..., Path], qtbot: QtBot
) -> None:
    path = put(models_dir() / "mine.gguf")
    page = open_page()
    qtbot.waitUntil(lambda: names(page) == ["mine.gguf"])
    press(qtbot, page.details.delete)
    assert path.exists()
    assert page.details.delete.text() == "Press again to free 8.6 MB"
    page.details._confirm_timer.timeout.emit()  # nobody pressed again
    assert page.details.delete.text() == "Delete"
    press(qtbot, page.details.delete)
    press(qtbot, page.details.delete)
    qtbot.waitUntil(lambda: page.empty.isVisible())
    assert not path.exists()
    assert "8.6 MB freed" in page.banner.text.text()


def test_what_is_served_is_not_deleted_and_its_use_is_kept(
    open_page: Callable[[], ModelsPage], put: Callable[..., Path], window: Window, qtbot: QtBot
) -> None:
    path = put(models_dir() / "mine.gguf")
    page = open_page()
    qtbot.waitUntil(lambda: names(page) == ["mine.gguf"])
    press(qtbot, page.details.start)
    assert window.page_name == "cockpit"
    qtbot.waitUntil(lambda: window.controller.inputs.status.state is ServerState.READY)
    window.show_page("models")
    last = page.table._rows.columns[6].cell
    qtbot.waitUntil(lambda: last(page.table.rows[0]).text != "never")
    page.delete_selected()
    qtbot.waitUntil(lambda: "uses this file" in page.banner.text.text())
    assert path.exists()


def test_a_file_and_a_folder_that_are_dropped_are_listed(
    open_page: Callable[[], ModelsPage], put: Callable[..., Path], tmp_path: Path, qtbot: QtBot
) -> None:
    file, other = put(tmp_path / "one.gguf"), put(tmp_path / "more" / "two.gguf")
    page = open_page()
    (tmp_path / "x.txt").write_text("x")
    assert not dropped(page, tmp_path / "x.txt")
    assert dropped(page, file)
    qtbot.waitUntil(lambda: names(page) == ["one.gguf"])
    assert dropped(page, other.parent)
    qtbot.waitUntil(lambda: set(names(page)) == {"one.gguf", "two.gguf"})
    page.show_view(2)
    press(qtbot, page.folders.remove_buttons[other.parent])
    qtbot.waitUntil(lambda: names(page) == ["one.gguf"])
    assert other.exists()


def test_what_downloads_left_is_shown_and_deleted(open_page: Callable[[], ModelsPage], qtbot: QtBot) -> None:
    target = models_dir() / "m.gguf"
    target.parent.mkdir(parents=True)
    part_path(target).write_bytes(b"x" * 60_000)
    journal.create_journal(
        journal_path(target), DownloadIdentity("https://hub.example/x", 100_000), [Stretch(0, 60_000, 60_000)]
    )
    page = open_page()
    page.show_view(2)
    button = page.folders.delete_buttons[part_path(target)]
    press(qtbot, button)
    assert part_path(target).exists()
    press(qtbot, button)
    qtbot.waitUntil(lambda: not part_path(target).exists())
    qtbot.waitUntil(lambda: not page.folders.delete_buttons)


@pytest.fixture
def repo(hub: Hub, demo_model: Path) -> Iterator[str]:
    folder = hub.folder / "window" / "Demo-GGUF"
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / FILE)
    yield "window/Demo-GGUF"
    shutil.rmtree(folder)


def test_a_download_goes_through_the_queue_into_the_library(
    open_page: Callable[[], ModelsPage], repo: str, window: Window, qtbot: QtBot
) -> None:
    page = open_page()
    told: list[str] = []
    window.controller.notification_requested.connect(lambda _title, text: told.append(text))
    page.show_view(1)
    page.offers.address.setText(f"{repo}:{FILE}")
    press(qtbot, page.offers.add_button)
    qtbot.waitUntil(lambda: names(page) == [FILE])
    assert told == [f"{repo}:{FILE}"]
    assert "verified" in page.banner.text.text()
    (job,) = page.queue.snapshot.jobs
    assert job.state.value == "done"
    assert page.downloads.isVisible()
    press(qtbot, page.downloads.clear_button)
    qtbot.waitUntil(lambda: not page.downloads.isVisible())


def test_a_download_that_cannot_be_says_why(open_page: Callable[[], ModelsPage], hub: Hub, qtbot: QtBot) -> None:
    page = open_page()
    page.queue.add_download("nobody/Nothing-GGUF:x.gguf")
    qtbot.waitUntil(lambda: any(job.state.value == "failed" for job in page.queue.snapshot.jobs))
    (job,) = page.queue.snapshot.jobs
    row = page.downloads.rows[job.id]
    assert row.toggle.text() == "Try again"
    assert row.progress_text.text()


def test_a_queue_that_was_left_goes_on_with_the_window(
    repo: str, home: Path, window: Window, qtbot: QtBot, open_page: Callable[[], ModelsPage]
) -> None:
    """As after a crash, or an `add` on the command line."""
    import asyncio

    from launcher.app.downloads import add_pull, download_queue
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
    press(qtbot, row.cancel)
    qtbot.waitUntil(lambda: page.queue.snapshot.jobs[0].state.value == "cancelled")


def test_a_table_sorts_by_what_a_cell_means(qtbot: QtBot) -> None:
    columns: tuple[Column[int], ...] = (
        Column("Number", "", lambda row: Cell(f"{row:,}", row)),
        Column("Word", "", lambda row: Cell("FITS" if row > 5 else "TOO BIG", badge=True)),
    )
    table: ModelTable[int] = ModelTable("Numbers", columns)
    qtbot.addWidget(table)
    table.resize(300, 200)
    table.show()
    table.show_rows([10, 9, 1_000], lambda row: row)
    assert table.list_shown_rows() == [10, 9, 1_000]
    table.sortByColumn(0, Qt.SortOrder.AscendingOrder)
    assert table.list_shown_rows() == [9, 10, 1_000]
    table.choose_row(1_000)
    table.show_rows([1, 1_000], lambda row: row)
    assert table.row == 1_000
    opened: list[int] = []
    table.opened.connect(opened.append)
    qtbot.keyClick(table, Qt.Key.Key_Return)
    assert opened == [1_000]


def test_a_files_name_is_never_html(
    put: Callable[..., Path], open_page: Callable[[], ModelsPage], window: Window
) -> None:
    put(models_dir() / "a <img src='x.png'> b.gguf")
    table = open_page().table
    tips = [table.model().index(0, at).data(Qt.ItemDataRole.ToolTipRole) for at in range(table.model().columnCount())]
    tips += [label.toolTip() for label in window.page("models").details.findChildren(QLabel)]
    assert any("img src" in tip for tip in tips)
    assert not any("<img" in tip for tip in tips)


def ends(handle: WorkHandle[Any]) -> threading.Event:
    """Return an event that the end of the work sets, on whatever thread."""
    ended = threading.Event()
    handle.when_done(lambda _error: ended.set())
    return ended


def test_what_came_of_a_verification_that_was_stopped_is_not_said(
    put: Callable[..., Path], open_page: Callable[[], ModelsPage], qtbot: QtBot
) -> None:
    put(models_dir() / "one.gguf")
    put(models_dir() / "two.gguf")
    page = open_page()
    page.verify_selected()
    handle = page.verifying.handle
    assert handle is not None
    assert ends(handle).wait(60)  # it has ended, and this thread has not heard of it
    page.verify_selected()
    page.table.selectRow(1)
    page.verify_selected()
    second = page.verifying.handle
    assert second is not None
    second_ended = ends(second)
    qtbot.waitUntil(lambda: page.verifying.local is None)
    assert second_ended.is_set()
    assert "two" in page.banner.text.text()
