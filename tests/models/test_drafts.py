"""Drafts of other kinds than a head: found in a repository and in other programs' stores, and downloaded verified."""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.models.model_library import LibraryFile
from launcher.app.planning.preview import list_missing_drafts
from launcher.app.planning.start_settings import with_drafts_here
from launcher.base.errors import ModelHasNoHead
from launcher.base.paths import models_dir
from launcher.engine.serve_options import DraftFile, ServeOptions
from launcher.engine.server.launch import check_model
from launcher.models.catalogue import Catalogue, CompanionFile
from launcher.models.catalogue_load import load_catalogue
from launcher.models.choice import choose_file
from launcher.models.download_target import parse_target
from launcher.models.drafters import DRAFTERS, usable_drafters
from launcher.models.gguf import read_model
from launcher.models.hub_model import select_hub_model
from launcher.models.library_index import read_index
from launcher.models.locate import select_file
from launcher.models.plan import PlanCriteria, make_plans
from launcher.models.pull import pull_model
from launcher.models.side_files import find_mismatch, find_side_files
from launcher.models.situation import describe_machine
from tests import forked
from tests.conftest import Hub
from tests.models.pulling import QUICK
from tools.demo_model.drafts import write_draft

REPO = "someone/Drafted-GGUF"
NOTHING = Catalogue(())


@pytest.fixture
def folder(hub: Hub, demo_model: Path) -> Iterator[Path]:
    """A repository with a model, drafts of three kinds that were made for it, and one of another model."""
    folder = hub.folder / REPO
    folder.mkdir(parents=True)
    shutil.copy(demo_model, folder / "demo-F16.gguf")
    write_draft(folder / "eagle3-demo-F16.gguf", "eagle3", demo_model)
    write_draft(folder / "dflash-demo-F16.gguf", "dflash", demo_model, hidden=512)
    write_draft(folder / "demo-draft-F16.gguf", "model", demo_model)
    yield folder
    shutil.rmtree(folder)


async def test_drafts_of_a_repository_are_offered_with_its_model(folder: Path) -> None:
    selection = await asyncio.to_thread(select_hub_model, REPO, load_catalogue())
    assert selection is not None
    entry = selection.entry
    assert [file.file for file in entry.files] == ["demo-F16.gguf"], "the small model is no quant"
    assert [(each.speculation, each.file) for each in entry.all_drafts] == [
        ("draft-model", "demo-draft-F16.gguf"),
        ("eagle3", "eagle3-demo-F16.gguf"),
    ]
    assert [each.file for each in selection.others] == ["dflash-demo-F16.gguf"], "made for another model"
    assert entry.drafter is DRAFTERS["mtp"]
    criteria = PlanCriteria(entry.id, chosen_drafter="draft-eagle3", draft=2)
    (plan,) = make_plans(selection.catalogue, describe_machine(24), criteria)
    assert plan.setting.draft_bytes == (folder / "eagle3-demo-F16.gguf").stat().st_size


async def test_the_wanted_draft_is_downloaded_with_its_model_and_verified(folder: Path) -> None:
    target = await asyncio.to_thread(parse_target, f"{REPO}:demo-F16.gguf", load_catalogue(), drafter="draft-eagle3")
    pulled = await pull_model(target, settings=QUICK)
    assert [file.path.name for file in pulled.files] == ["demo-F16.gguf", "eagle3-demo-F16.gguf"]
    own = (folder / "eagle3-demo-F16.gguf").read_bytes()
    assert pulled.files[1].sha256 == hashlib.sha256(own).hexdigest()
    assert not pulled.notes
    records = {record.path.name: record for record in read_index()[0].records}
    assert (records["eagle3-demo-F16.gguf"].kind, records["eagle3-demo-F16.gguf"].file_kind) == ("draft", "eagle3")
    selection = select_file(pulled.path, NOTHING)
    assert [each.speculation for each in selection.entry.drafts] == ["eagle3"]
    other = await asyncio.to_thread(parse_target, f"{REPO}:demo-F16.gguf", load_catalogue(), drafter="draft-dflash")
    pulled = await pull_model(other, settings=QUICK)
    why = "it is for models that are 512 wide, and this one is 384"
    assert f"dflash-demo-F16.gguf cannot draft for this model: {why}." in pulled.notes


async def test_a_drafter_without_a_file_in_the_repository_is_refused_before_the_download(folder: Path) -> None:
    with pytest.raises(ModelHasNoHead, match="someone/Drafted-GGUF has no file for draft-dspark beside it"):
        await asyncio.to_thread(parse_target, f"{REPO}:demo-F16.gguf", load_catalogue(), drafter="draft-dspark")
    with_head = await asyncio.to_thread(parse_target, f"{REPO}:demo-F16.gguf", load_catalogue(), drafter="draft-mtp")
    assert [item.kind for item in with_head.items] == ["model"], "its header will tell whether the head is inside"
    both = await asyncio.to_thread(parse_target, f"{REPO}:demo-F16.gguf", load_catalogue(), drafter="draft-eagle3")
    assert [item.kind for item in both.items] == ["model", "draft"]
    assert both.items[1].files[0].bytes == (folder / "eagle3-demo-F16.gguf").stat().st_size, "the plan says its size"


def test_a_file_of_the_catalogue_is_downloaded_with_the_wanted_draft_and_its_size_is_counted() -> None:
    listed = load_catalogue().find("qwen3.6-27b-mtp")
    draft = CompanionFile(file="eagle3.gguf", repo="someone/Eagle3-GGUF", speculation="eagle3", size_bytes=7)
    file = next(each for each in listed.files if each.size_bytes and not each.parts)
    entry = replace(listed, drafts=(draft,))
    for name in (f"{entry.id}:{file.quant}", f"{entry.repo}:{file.file}"):
        target = parse_target(name, Catalogue((entry,)), drafter="draft-eagle3")
        assert [item.kind for item in target.items] == ["model", "draft"]
        assert target.bytes == (file.size_bytes or 0) + 7
        with pytest.raises(ModelHasNoHead, match="no file for draft-dflash") as caught:
            parse_target(name, Catalogue((entry,)), drafter="draft-dflash")
        assert f"`mtp-launcher pull {entry.id}:{file.quant} --drafter KIND` (files are known for draft-eagle3)" in (
            caught.value.hint
        )
    headless = replace(entry, speculation=None, drafts=())
    with pytest.raises(ModelHasNoHead, match="has no MTP head"):
        parse_target(f"{entry.id}:{file.quant}", Catalogue((headless,)), drafter="draft-mtp")


def test_pull_judges_counts_and_starts_the_wanted_draft(folder: Path, home: Path) -> None:
    own = home / "config" / "models" / "own.toml"
    own.parent.mkdir(parents=True)
    sizes = [(folder / name).stat().st_size for name in ("demo-F16.gguf", "eagle3-demo-F16.gguf")]
    own.write_text(
        f"""
[[models]]
id = "drafted"
name = "Drafted"
repo = "{REPO}"
speculation = "mtp"
files = [{{ quant = "F16", file = "demo-F16.gguf", size_bytes = {sizes[0]} }}]
drafts = [{{ file = "eagle3-demo-F16.gguf", speculation = "eagle3", size_bytes = {sizes[1]} }}]
"""
    )
    for name in ("drafted", f"{REPO}:demo-F16.gguf"):
        events = forked.run("pull", name, "--drafter", "draft-eagle3", "--json").stdout.splitlines()
        assert json.loads(events[0])["bytes"] == sum(sizes)
        shown = forked.run("pull", name, "--drafter", "draft-eagle3")
        said = " ".join(shown.stderr.split())
        assert "with an MTP head, with eagle3-demo-F16.gguf for draft-eagle3. Start it:" in said
        assert "Start it: mtp-launcher serve drafted:F16 --drafter draft-eagle3" in said
    catalogue = load_catalogue()
    choice = choose_file(catalogue, catalogue.find("qwen3.6-27b"), None, describe_machine(24), drafter="draft-dflash")
    assert choice.plan is not None
    assert choice.plan.setting.drafter is DRAFTERS["dflash"]
    assert choice.why.endswith("draft 4 by DFlash")
    with pytest.raises(ModelHasNoHead, match="no file for draft-dspark"):
        choose_file(catalogue, catalogue.find("qwen3.6-27b"), None, describe_machine(24), drafter="draft-dspark")


async def test_a_draft_that_was_replaced_in_another_repository_is_taken_with_a_note(
    hub: Hub, demo_model: Path, home: Path
) -> None:
    """What the catalogue pins is the model's repository; the size of a draft elsewhere is only counted."""
    models, drafts = (hub.folder / "someone" / name for name in ("Model-GGUF", "Eagle3-GGUF"))
    for each in (models, drafts):
        each.mkdir(parents=True)
    try:
        shutil.copy(demo_model, models / "demo-F16.gguf")
        write_draft(drafts / "eagle3.gguf", "eagle3", demo_model)
        file = replace(load_catalogue().find("demo").files[0], file="demo-F16.gguf", quant="F16", sha256=None)
        draft = CompanionFile(file="eagle3.gguf", repo="someone/Eagle3-GGUF", speculation="eagle3", size_bytes=7)
        demo = load_catalogue().find("demo")
        entry = replace(demo, id="mine", repo="someone/Model-GGUF", files=(file,), drafts=(draft,))
        pulled = await pull_model(parse_target("mine:F16", Catalogue((entry,)), drafter="draft-eagle3"), settings=QUICK)
        assert any("differs from the file in the catalogue" in note for note in pulled.notes)
        assert pulled.files[1].bytes == (drafts / "eagle3.gguf").stat().st_size
    finally:
        shutil.rmtree(models)
        shutil.rmtree(drafts)


def test_a_model_of_the_catalogue_is_downloaded_with_the_wanted_draft() -> None:
    catalogue = load_catalogue()
    entry = next(each for each in catalogue.models if each.repo and each.draft is None)
    draft = CompanionFile(file="eagle3.gguf", repo="someone/Eagle3-GGUF", speculation="eagle3", size_bytes=7)
    drafted = Catalogue((replace(entry, drafts=(draft,)),))
    name = f"{entry.id}:{entry.files[0].quant}"
    assert [item.kind for item in parse_target(name, drafted).items] == ["model"]
    target = parse_target(name, drafted, drafter="draft-eagle3")
    assert [file.label for item in target.items if item.kind == "draft" for file in item.files] == [
        "someone/Eagle3-GGUF:eagle3.gguf"
    ]
    with pytest.raises(ModelHasNoHead, match="no file for draft-dflash beside it"):
        parse_target(name, drafted, drafter="draft-dflash")


def test_a_draft_that_is_named_by_its_path_is_not_offered_for_download() -> None:
    entry = replace(load_catalogue().find("qwen3.8-27b"), repo=None)
    drafts = [
        LibraryFile(entry, draft=CompanionFile(file=path, speculation="dflash"))
        for path in ("/nowhere/one.gguf", "/nowhere/two.gguf")
    ]
    assert [each.download_id for each in drafts] == ["", ""]
    assert [each.key for each in drafts] == ["/nowhere/one.gguf", "/nowhere/two.gguf"]


def test_a_draft_of_another_revision_is_not_held_to_the_catalogue() -> None:
    draft = CompanionFile(file="eagle3.gguf", repo="someone/Eagle3-GGUF", speculation="eagle3", size_bytes=7)
    entry = replace(next(each for each in load_catalogue().models if each.repo), drafts=(draft,))
    sizes = [
        parse_target("someone/Eagle3-GGUF:eagle3.gguf", Catalogue((entry,)), revision=revision).bytes
        for revision in (None, "next")
    ]
    assert sizes == [7, None]


def test_a_listed_draft_that_is_not_here_is_not_used_and_hides_none_beside_the_model(
    home: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    own = home / "config" / "models" / "own.toml"
    own.parent.mkdir(parents=True)
    own.write_text(
        """
[[models]]
id = "drafted"
name = "Drafted"
repo = "someone/Drafted-GGUF"
speculation = "mtp"
files = [{ quant = "F16", file = "demo-F16.gguf" }]
drafts = [{ repo = "other/Drafts-GGUF", file = "dflash.gguf", speculation = "dflash" }]
"""
    )
    path = models_dir() / "someone" / "Drafted-GGUF" / "demo-F16.gguf"
    path.parent.mkdir(parents=True)
    shutil.copy(demo_model, path)
    selection = select_file(path, load_catalogue())
    assert (selection.entry.id, selection.entry.drafts) == ("drafted", ())
    entry = load_catalogue().find("drafted")
    for spec_types in ((), ("draft-dflash",)):
        (missing,) = list_missing_drafts(entry, entry.published_as, ("draft-mtp",), spec_types)
        assert (missing.row.name, missing.file) == ("dflash", "other/Drafts-GGUF:dflash.gguf")
    assert list_missing_drafts(entry, entry.published_as, ("draft-mtp",), ("draft-mtp",)) == ()
    beside = path.with_name("dflash-demo-F16.gguf")
    write_draft(beside, "dflash", demo_model)
    options = with_drafts_here(ServeOptions(path))
    assert options.other_drafts == (DraftFile("dflash", beside),)
    here = usable_drafters(head=True, files=options.draft_files)
    assert list_missing_drafts(entry, entry.published_as, here, ()) == ()


@pytest.fixture
def drafted(hub: Hub, home: Path, demo_model: Path) -> Iterator[Path]:
    """A model of the user's catalogue that was pulled, and the listed draft in another repository of the hub."""
    models, drafts = (hub.folder / name for name in ("someone/Drafted-GGUF", "other/Drafts-GGUF"))
    for each in (models, drafts):
        each.mkdir(parents=True)
    shutil.copy(demo_model, models / "demo-F16.gguf")
    write_draft(drafts / "dflash.gguf", "dflash", demo_model)
    own = home / "config" / "models" / "own.toml"
    own.parent.mkdir(parents=True)
    own.write_text(
        """
[[models]]
id = "drafted"
name = "Drafted"
repo = "someone/Drafted-GGUF"
speculation = "mtp"
files = [{ quant = "F16", file = "demo-F16.gguf" }]
drafts = [{ repo = "other/Drafts-GGUF", file = "dflash.gguf", speculation = "dflash" }]
"""
    )
    assert forked.run("pull", "drafted:F16").returncode == 0
    yield models_dir() / "other" / "Drafts-GGUF" / "dflash.gguf"
    for each in (models, drafts):
        shutil.rmtree(each)


def test_a_listed_draft_in_another_repository_is_planned_as_it_is_served(drafted: Path) -> None:
    forked.run("pull", "other/Drafts-GGUF:dflash.gguf")
    given = ("--drafter", "draft-dflash", "--gpu-memory", "24", "--json")
    planned = json.loads(forked.run("plan", "drafted", *given).stdout)
    assert not planned["unplanned"]
    (plan,) = planned["plans"]
    assert (plan["drafter"], plan["draft"]) == ("draft-dflash", 4)
    assert str(drafted) in plan["argv"]
    estimate = json.loads(forked.run("estimate", "drafted", *given).stdout)
    assert estimate["draft"] == 4
    assert estimate["parts"]["draft_kv"] > 0
    assert estimate["total_mib"] == pytest.approx(sum(plan["parts"].values()), abs=0.5)


def test_what_a_start_lacks_is_named_with_its_drafter(drafted: Path) -> None:
    model = models_dir() / "someone" / "Drafted-GGUF" / "demo-F16.gguf"
    command = "`mtp-launcher pull drafted:F16 --drafter draft-dflash`"
    planned = forked.run("plan", "drafted", "--drafter", "draft-dflash", "--gpu-memory", "24")
    assert command in " ".join(planned.stderr.split())
    with pytest.raises(ModelHasNoHead, match="no file for draft-dflash") as caught:
        check_model(ServeOptions(model, chosen_drafter="draft-dflash", draft=4))
    assert command in caught.value.hint
    with pytest.raises(ModelHasNoHead) as caught:
        check_model(ServeOptions(model, chosen_drafter="draft-eagle3", draft=4))
    assert "pull drafted:F16 --drafter KIND` (files are known for draft-dflash)" in caught.value.hint
    model.unlink()
    served = forked.run("serve", "drafted", "--drafter", "draft-dflash")
    assert "`mtp-launcher pull drafted --drafter draft-dflash`" in served.stderr
    assert "drafted is not on this computer yet." in served.stderr


def test_a_draft_of_the_catalogue_names_its_drafter(home: Path) -> None:
    folder = home / "config" / "models"
    folder.mkdir(parents=True)
    text = """
[[models]]
id = "drafted"
name = "Drafted"
repo = "someone/Drafted-GGUF"
speculation = "mtp"
files = [{ quant = "F16", file = "x.gguf" }]
drafts = [{ file = "eagle3.gguf", speculation = "%s", size_bytes = 7 }]
"""
    (folder / "mine.toml").write_text(text % "eagle3")
    (draft,) = load_catalogue().find("drafted").drafts
    assert draft.drafter is DRAFTERS["eagle3"]
    shown = forked.run("models", "drafted").stdout
    assert "layer that reads states of the model's own (--drafter draft-eagle3), eagle3.gguf" in " ".join(shown.split())
    (folder / "mine.toml").write_text(text % "ngram-mod")
    (problem,) = load_catalogue().problems
    assert "drafts" in problem.field
    assert problem.reason == "is missing, or names what needs no file"


def test_drafts_in_another_programs_store_are_paired(
    demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    folder = tmp_path / "user" / ".lmstudio" / "models" / "someone" / "Any-GGUF"
    folder.mkdir(parents=True)
    model = folder / "demo-F16.gguf"
    shutil.copy(demo_model, model)
    for name in ("plain-F16.gguf", "small-F16.gguf"):
        write_draft(folder / name, "model" if name.startswith("small") else "dspark", demo_model)
    found = find_side_files(read_model(model))
    assert [(each.speculation, Path(each.file).name) for each in found.drafts] == [("dspark", "plain-F16.gguf")]


def test_what_must_match_is_named(demo_model: Path, headless_model: Path, tmp_path: Path) -> None:
    draft = tmp_path / "x.gguf"
    write_draft(draft, "eagle3", demo_model)
    side, trunk = read_model(draft), read_model(headless_model)
    assert find_mismatch(side, trunk) == ""

    def mismatch(**metadata: object) -> str:
        return find_mismatch(replace(side, metadata={**side.metadata, **metadata}), trunk)

    assert mismatch(**{"eagle3.target_layers": (1, 2, 9)}) == "it reads layer 9, and the model has 4"
    assert mismatch(**{"eagle3.target_layers": None}) == "its header does not say which layers it reads"
    fewer = replace(side, array_lengths={**side.array_lengths, "tokenizer.ggml.tokens": 2_000})
    assert find_mismatch(fewer, trunk) == "its vocabulary has 2,000 tokens in place of 2,176"
    nameless = {key: value for key, value in side.metadata.items() if not key.startswith("eagle3.embedding")}
    nameless.pop("eagle3.target_hidden_size")
    assert find_mismatch(replace(side, metadata=nameless), trunk) == "its header does not say how wide its models are"
    write_draft(draft, "model", demo_model)
    small = read_model(draft)
    assert find_mismatch(small, trunk) == ""
    near = replace(small, array_lengths={**small.array_lengths, "tokenizer.ggml.tokens": 2_100})
    assert find_mismatch(near, trunk) == "", "llama.cpp allows 128 tokens more or fewer"
    unknown = {key: value for key, value in small.array_lengths.items() if key != "tokenizer.ggml.tokens"}
    assert find_mismatch(replace(small, array_lengths=unknown), trunk) == "its header has no vocabulary"
    other = replace(small, metadata={**small.metadata, "tokenizer.ggml.model": "llama"})
    assert find_mismatch(other, trunk) == "its tokenizer is llama in place of gpt2"


def test_of_drafts_for_sibling_models_the_one_with_the_models_name_is_taken(demo_model: Path, tmp_path: Path) -> None:
    """Both models are as wide, and have the same vocabulary, so that only names tell their drafts."""
    for name in ("demo-8B-Coder-EAGLE3-Q4_K_M.gguf", "demo-8B-EAGLE3-F16.gguf", "demo-8B-EAGLE3-Q8_0.gguf"):
        write_draft(tmp_path / name, "eagle3", demo_model)
    for name, wanted in (
        ("demo-8B-Q4_K_M.gguf", "demo-8B-EAGLE3-Q8_0.gguf"),
        ("demo-8B-Coder-F16.gguf", "demo-8B-Coder-EAGLE3-Q4_K_M.gguf"),
    ):
        shutil.copy(demo_model, tmp_path / name)
        (draft,) = find_side_files(read_model(tmp_path / name)).drafts
        assert Path(draft.file).name == wanted
