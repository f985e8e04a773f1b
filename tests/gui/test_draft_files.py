"""The catalogue's drafts in the window: what one might bring, got by the queue, chosen while the model runs."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from launcher.app.models.downloads import add_pull, download_queue
from launcher.app.models.model_library import LibraryFile
from launcher.base.paths import models_dir
from launcher.engine.server.state import ServerState
from launcher.gui.cockpit.page import CockpitPage
from launcher.gui.models.page import ModelsPage
from launcher.gui.models.row_text import draft_gain_text
from launcher.gui.widgets import SliderField
from launcher.gui.window import Window
from launcher.models.catalogue_load import load_catalogue
from launcher.models.drafters import DRAFTERS, MTP, NONE, DraftChoice, list_choices
from tests.conftest import Hub
from tools.demo_model.drafts import write_draft

FIRST_PAGE = "about"
MODEL, DRAFT = "demo-F16.gguf", "dspark-demo-F16.gguf"
ENTRY = """
[[models]]
id = "drafted"
name = "Drafted"
family = "{family}"
repo = "window/Drafted-GGUF"
speculation = "mtp"
files = [{{ quant = "F16", file = "demo-F16.gguf", size_bytes = {size} }}]
drafts = [{{ repo = "window/Drafts-GGUF", file = "dspark-demo-F16.gguf", speculation = "{kind}" }}]
"""
DSPARK = DRAFTERS["dspark"]


@pytest.fixture
def catalogue(
    hub: Hub, home: Path, demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A model of the user's catalogue and a draft for it, both on the hub alone."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    models, drafts = (hub.folder / "window" / name for name in ("Drafted-GGUF", "Drafts-GGUF"))
    models.mkdir(parents=True)
    drafts.mkdir()
    shutil.copy(demo_model, models / MODEL)
    write_draft(drafts / DRAFT, "dspark", demo_model)
    own = home / "config" / "models" / "own.toml"
    own.parent.mkdir(parents=True)
    own.write_text(ENTRY.format(family="Drafted", size=demo_model.stat().st_size, kind="dspark"))
    yield own
    shutil.rmtree(models)
    shutil.rmtree(drafts)


def read_models(window: Window, qtbot: QtBot) -> ModelsPage:
    page: ModelsPage = window.page("models")
    window.resize(1440, 900)
    window.show_page("models")
    qtbot.waitUntil(lambda: page.shelf is not None and page.shelf.is_complete)
    return page


def test_a_new_user_gets_a_draft_while_the_model_runs_and_drafts_with_it(
    window: Window, qtbot: QtBot, wait_for: Callable[..., None], catalogue: Path
) -> None:
    page = read_models(window, qtbot)
    assert page.list.choose("drafted")
    details = page.details
    (row,) = details.draft_rows.values()
    qtbot.waitUntil(row.isVisible)
    assert "DSpark" in row.title.text()
    assert row.gain.text() == "its gain is not published"
    assert not details.measure.isVisible(), "there is nothing to measure yet"
    qtbot.mouseClick(details.download_and_start, Qt.MouseButton.LeftButton)
    wait_for(ServerState.READY)
    cockpit: CockpitPage = window.page("cockpit")
    field = cockpit.controls.restart.fields["draft"]
    qtbot.waitUntil(lambda: field.value == DraftChoice(MTP, 2))
    assert all(each.drafter is not DSPARK for each in list_steps(field))
    assert field._hint == "by the MTP head in the model's file · to get on Models: DSpark"

    page = read_models(window, qtbot)
    qtbot.waitUntil(lambda: page.list.choose("drafted") and details.start.text() == "Open the chat")
    (row,) = details.draft_rows.values()
    qtbot.mouseClick(row.download, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: any("verified" in each.title.text() for each in details.draft_rows.values()))
    (job,) = (each for each in page.queue.snapshot.jobs if DRAFT in each.title)
    assert job.state.value == "done"
    assert "verified" in page.banner.text.text()
    qtbot.mouseClick(details.measure, Qt.MouseButton.LeftButton)
    assert window.page_name == "tune"

    window.show_page("cockpit")
    cockpit.state._read_basis()
    choice = DraftChoice(DSPARK, 4)
    qtbot.waitUntil(lambda: choice in list_steps(field))
    field.slider.setValue(list_steps(field).index(choice))
    qtbot.waitUntil(lambda: cockpit.state.change_count == 1)
    preview = cockpit.state.preview
    assert preview is not None
    assert {each.name: each.new for each in preview.changes} == {"draft": 4, "drafter": "draft-dspark"}
    assert field._hint == f"with {DRAFT}"
    changes = cockpit.controls.changes
    assert changes._title.text().startswith("1 change ")
    assert "with DSpark on, draft length 4" in changes._costs.text()
    cockpit.controls.apply_now()
    qtbot.waitUntil(lambda: not cockpit.state.applying and cockpit.state.change_count == 0)
    wait_for(ServerState.READY)
    launch = window.controller.launch
    assert launch is not None
    assert (launch.options.drafter, launch.options.draft) == (DSPARK, 4)
    assert field.value == choice
    assert window.controller.view.settings.endswith("draft 4 by DSpark")
    plots = cockpit.plots
    qtbot.waitUntil(lambda: plots.state is not None and plots.state.drafter == "DSpark")


def test_a_draft_is_listed_beside_its_model_and_can_be_deleted(window: Window, qtbot: QtBot, catalogue: Path) -> None:
    page = read_models(window, qtbot)
    page.queue.add_download("drafted:F16")
    page.queue.add_download(f"window/Drafts-GGUF:{DRAFT}")

    def list_here() -> list[str]:
        found = next(each for each in page.shelf.models if each.key == "drafted") if page.shelf else None
        return [each.local.path.name for each in (found.files if found else ()) if each.local is not None]

    qtbot.waitUntil(lambda: sorted(list_here()) == [MODEL, DRAFT])
    (draft,) = next(each for each in page.shelf.models if each.key == "drafted").drafts if page.shelf else ()
    assert page.list.choose("drafted", draft.key)
    assert "DSpark" in page.details.subtitle.text()
    assert not page.details.start.isVisible()
    page.delete_selected()
    qtbot.waitUntil(lambda: list_here() == [MODEL])


def test_a_draft_that_was_deleted_outside_can_be_downloaded_again(
    window: Window, qtbot: QtBot, catalogue: Path
) -> None:
    page = read_models(window, qtbot)
    page.queue.add_download("drafted:F16")
    page.queue.add_download(f"window/Drafts-GGUF:{DRAFT}")

    def list_rows() -> list[tuple[bool, bool]]:
        rows = page.details.draft_rows.values() if page.list.choose("drafted") else ()
        return [(row.download.isHidden(), "missing" in row.title.text()) for row in rows]

    qtbot.waitUntil(lambda: list_rows() == [(True, False)])
    qtbot.waitUntil(lambda: not page.details.measure.isHidden())
    (path,) = (models_dir() / "window" / "Drafts-GGUF").glob("*.gguf")
    path.unlink()
    page.refresh()
    qtbot.waitUntil(lambda: list_rows() == [(False, True)])
    assert page.details.measure.isHidden()
    (row,) = page.details.draft_rows.values()
    qtbot.mouseClick(row.download, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: list_rows() == [(True, False)])
    assert path.exists()


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("qwen3.8-27b", r"published: up to 1\.\d\d times as fast as without drafts, MTP 1\.\d\d \(.+\)"),
        ("muse-glimmer-30b", r"published: \d\.\d tokens a pass with draft \d+"),
        ("qwen3-8b", "its gain is not published"),
    ],
)
def test_what_published_runs_say_of_a_draft(model: str, text: str) -> None:
    entry = load_catalogue().find(model)
    assert re.fullmatch(text, draft_gain_text(LibraryFile(entry, draft=entry.drafts[0])))


async def test_the_queue_takes_a_drafter_as_pull_does(catalogue: Path) -> None:
    added = await add_pull("drafted:F16", drafter="draft-dspark")
    (job,) = download_queue().read_snapshot().jobs.jobs
    assert job.id == added.job.id
    assert job.arguments["drafter"] == "draft-dspark"
    assert [Path(path).name for paths in job.arguments["targets"] for path in paths] == [MODEL, DRAFT]
    plain = await add_pull("drafted:F16")
    assert "drafter" not in plain.job.arguments, "a job of an earlier version is the same"


def test_choices_go_from_off_through_the_lengths_of_each_drafter() -> None:
    repeats = DRAFTERS["ngram-simple"]
    assert [f"{each.short_label}" for each in list_choices((MTP, DSPARK, repeats), (1, 4))] == [
        *("off", "MTP 1", "MTP 4", "DSpark 1", "DSpark 4", "repeats"),
    ]
    assert DraftChoice(NONE).as_settings("draft-mtp") == {"draft": 0}
    assert DraftChoice(MTP, 3).as_settings("draft-mtp") == {"draft": 3, "drafter": None}
    assert DraftChoice(DSPARK, 4).as_settings("draft-mtp") == {"draft": 4, "drafter": "draft-dspark"}


def test_each_draft_of_the_catalogue_has_a_source_and_a_file_of_its_own() -> None:
    for entry in load_catalogue().models:
        for draft in entry.drafts:
            assert draft.source, f"{entry.id}: {draft.file}"
            assert entry.repo_of(draft), f"{entry.id}: {draft.file}"
        assert len(set(entry.draft_kinds)) == len(entry.draft_kinds), f"{entry.id}: two files of a kind"


def list_steps(field: SliderField) -> list[DraftChoice]:
    return [each for each in field._steps if isinstance(each, DraftChoice)]
