"""Models of the catalogue that are served by their id: with the draft that belongs to them, or without one."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.app.planning.start_settings import make_unresolved_options
from launcher.base.errors import EngineUnsuitable, ModelHasNoHead, ModelMissing
from launcher.base.paths import models_dir
from launcher.engine.builds.probe import probe_engine
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import launch
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import check_model

ENDPOINT = Endpoint(20_001, "key")
REPO = "owner/Drafted-GGUF"
MODELS = f"""
[[models]]
id = "drafted"
name = "With a head in a file of its own"
repo = "{REPO}"
speculation = "draft-file"
draft = {{ file = "mtp-model.gguf" }}
files = [{{ quant = "F16", file = "model.gguf" }}]

[[models]]
id = "headless"
name = "Without a head"
repo = "{REPO}"
files = [{{ quant = "F16", file = "model.gguf" }}]
"""


@pytest.fixture
def model(home: Path, headless_model: Path) -> Path:
    """A model without a head in the folder for models, and two entries in the user's own catalogue for it."""
    folder = home / "config" / "models"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(MODELS)
    path = models_dir() / REPO / "model.gguf"
    path.parent.mkdir(parents=True)
    shutil.copy(headless_model, path)
    return path


def options(name: str, draft: int | None = None) -> ServeOptions:
    found = make_unresolved_options(name, lambda path: ServeOptions(model=path, built_in=True))
    return found if draft is None else replace(found, draft=draft)


async def test_the_draft_is_passed_with_the_flags_of_the_engine(model: Path) -> None:
    beside = model.with_name("mtp-model.gguf")
    shutil.copy(model, beside)
    chosen = options("drafted:f16", draft=3)
    assert (chosen.model, chosen.draft_file, chosen.draft) == (model, beside, 3)
    check_model(chosen)
    build = await probe_engine(None)
    given = dict(pairwise(launch.engine_arguments(replace(chosen, context=4_096), build, ENDPOINT, gpu=False)))
    assert given["--spec-type"] == "draft-mtp"
    assert given["--spec-draft-model"] == str(beside)
    assert given["--spec-draft-n-max"] == "3"


async def test_an_engine_without_draft_flags_is_reported(model: Path) -> None:
    shutil.copy(model, model.with_name("mtp-model.gguf"))
    chosen, build = replace(options("drafted", draft=2), context=4_096), await probe_engine(None)
    older = replace(build, flags=build.flags - {"--spec-draft-model"})
    with pytest.raises(EngineUnsuitable, match="--spec-draft-model"):
        launch.engine_arguments(chosen, older, ENDPOINT, gpu=False)


async def test_an_engine_without_the_drafter_is_reported_before_it_starts(model: Path) -> None:
    chosen = replace(options("headless"), context=4_096, draft=2, draft_file=model, spec_type="draft-lilicorr")
    build = await probe_engine(None)
    with pytest.raises(EngineUnsuitable, match="cannot draft with draft-lilicorr") as caught:
        launch.engine_arguments(chosen, build, ENDPOINT, gpu=False)
    assert "It has draft-mtp, draft-simple, draft-eagle3" in caught.value.hint
    with pytest.raises(EngineUnsuitable, match="cannot draft with ngram-new"):
        build.require_drafters("draft-mtp", "ngram-new")


@pytest.mark.parametrize("name", ["drafted", "headless"])
def test_with_drafts_off_the_draft_file_is_not_passed(model: Path, name: str) -> None:
    chosen = options(name)
    assert (chosen.draft, chosen.draft_file) == (0, None)
    check_model(chosen)
    with pytest.raises(ModelHasNoHead):
        check_model(options(name, draft=2))


def test_a_missing_draft_file_must_be_downloaded(model: Path) -> None:
    model.unlink()
    with pytest.raises(ModelMissing) as caught:
        options("headless:F16")
    assert "`mtp-launcher pull headless:F16`" in caught.value.hint
