"""The stores of other programs: their models are found by the names that people know, used in place, never changed."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.base.errors import BadOption, ModelUnexpected, ModelUnknown
from launcher.models.added_places import add_place, read_added_places
from launcher.models.catalogue import Catalogue, ModelFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.gguf import read_model
from launcher.models.hub_model import select_hub_model
from launcher.models.leftovers import find_leftovers
from launcher.models.library import (
    LocalModel,
    Place,
    describe_store,
    find_entry,
    find_local_model,
    find_stored_side_files,
    list_found,
    list_library,
    remove_model,
    select_models,
)
from launcher.models.library_index import read_index
from launcher.models.locate import find_named, select_model
from launcher.models.side_files import find_side_files
from launcher.models.stores import Store, StoredModel, find_store_folders, recognise_store
from tools.demo_model.drafts import write_draft
from tools.sparse_models.models import Model
from tools.sparse_models.models import model as make_sparse_model
from tools.sparse_models.write import write

NOTHING = Catalogue(())
DEMO = next(model for model in shipped_models() if model.id == "demo")
Put = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without stores."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "OLLAMA_MODELS", "JAN_DATA_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("launcher.models.stores._OLLAMA_SERVICE", ())
    monkeypatch.setattr("launcher.models.stores._OLLAMA_UNITS", ())
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    return folder


@pytest.fixture
def copy_demo(demo_model: Path) -> Put:
    """Copy the demo model to a place."""

    def copy(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(demo_model, path)
        return path

    return copy


def write_json(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def ollama_manifest(root: Path, name: str, **blobs: str) -> Path:
    """Write a manifest, such as registry.ollama.ai/library/qwen3.5/9b, with a layer for each kind of blob."""
    path = root / "manifests" / name
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digit * 64}", "size": 1}
        for kind, digit in blobs.items()
    ]
    write_json(path, {"schemaVersion": 2, "config": {"digest": "sha256:" + "f" * 64}, "layers": layers})
    return path


def ollama_blob(root: Path, digit: str) -> Path:
    return root / "blobs" / f"sha256-{digit * 64}"


@pytest.fixture
def ollama(user: Path, copy_demo: Put) -> Path:
    """A store with qwen3.5:9b, which is qwen3.5:latest, too, and llava with its projector."""
    root = user / ".ollama" / "models"
    copy_demo(ollama_blob(root, "a"))
    copy_demo(ollama_blob(root, "b"))
    ollama_blob(root, "c").write_bytes(b"a projector")
    ollama_blob(root, "d").write_bytes(b"an adapter")
    ollama_manifest(root, "registry.ollama.ai/library/qwen3.5/latest", model="a", params="e")
    ollama_manifest(root, "registry.ollama.ai/library/qwen3.5/9b", model="a", params="e")
    ollama_manifest(root, "registry.ollama.ai/someone/llava/7b", model="b", projector="c", adapter="d")
    return root


def by_name() -> dict[str, StoredModel]:
    return {each.name: each for each in list_found().models}


def list_models() -> list[LocalModel]:
    return list(list_library(NOTHING).models)


class TestOllama:
    def test_models_have_the_names_of_ollama_list(self, ollama: Path) -> None:
        found = by_name()
        assert set(found) == {"qwen3.5:9b", "someone/llava:7b"}
        nine = found["qwen3.5:9b"]
        assert (nine.store, nine.path, nine.sha256) == (Store.OLLAMA, ollama_blob(ollama, "a"), "a" * 64)
        assert set(nine.aliases) == {"qwen3.5:latest", "qwen3.5"}
        assert found["someone/llava:7b"].side_files == (ollama_blob(ollama, "c"),)

    def test_the_projector_of_a_model_is_the_one_that_its_manifest_lists(self, ollama: Path) -> None:
        assert find_stored_side_files(ollama_blob(ollama, "b")) == (ollama_blob(ollama, "c"),)
        assert find_stored_side_files(ollama_blob(ollama, "a")) == ()

    def test_a_draft_model_that_a_manifest_lists_can_be_chosen(self, ollama: Path, copy_demo: Put) -> None:
        model = copy_demo(ollama_blob(ollama, "8"))
        write_draft(ollama_blob(ollama, "9"), "model", model)
        ollama_manifest(ollama, "registry.ollama.ai/library/drafted/latest", model="8", draft="9")
        (draft,) = find_side_files(read_model(model)).drafts
        assert (draft.speculation, Path(draft.file)) == ("draft-model", ollama_blob(ollama, "9"))

    def test_models_are_listed_with_their_header(self, ollama: Path) -> None:
        local = next(each for each in list_models() if each.label == "qwen3.5:9b")
        assert (local.place, local.store, local.record.head) == (Place.STORE, Store.OLLAMA, "present")
        assert local.path == ollama_blob(ollama, "a")

    @pytest.mark.parametrize("name", ["qwen3.5:9b", "qwen3.5", "QWEN3.5:latest"])
    def test_names_are_resolved_as_in_ollama(self, ollama: Path, name: str) -> None:
        chosen = select_model(name, Catalogue(shipped_models()))
        assert (chosen.local_path, chosen.stored_name) == (ollama_blob(ollama, "a"), "qwen3.5:9b")
        assert chosen.file is not None
        assert (chosen.entry.name, chosen.file.quant) == ("qwen3.5:9b", "F16")

    def test_a_file_of_the_catalogue_is_known_by_its_checksum(self, ollama: Path) -> None:
        its = replace(DEMO, id="mine", repo="owner/Mine", files=(ModelFile(quant="F16", file="x", sha256="a" * 64),))
        catalogue = Catalogue((its,))
        assert find_entry(catalogue, ollama_blob(ollama, "a")) == (its, its.files[0])
        local = find_local_model(its)
        assert local is not None
        assert local.path == ollama_blob(ollama, "a")
        (mine,) = (each for each in list_library(catalogue).models if each.record.model == "mine")
        assert mine.label == "mine:F16"
        assert select_model("qwen3.5:9b", catalogue).entry == its

    def test_hub_models_in_ollama_are_found_by_their_hub_names(self, ollama: Path) -> None:
        ollama_manifest(ollama, "hf.co/unsloth/Some-GGUF/Q4_K_M", model="a")
        assert find_named("hf.co/unsloth/Some-GGUF:Q4_K_M", NOTHING) is not None
        named = find_named("unsloth/Some-GGUF:Q4_K_M", NOTHING)
        assert named is not None
        assert named.path == ollama_blob(ollama, "a")

    @pytest.mark.parametrize("name", ["hf.co/unsloth/Some-GGUF:Q4_K_M", "unsloth/some-gguf:q4_k_m"])
    def test_a_plan_for_a_model_in_ollama_sends_no_request(
        self, ollama: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        ollama_manifest(ollama, "hf.co/unsloth/Some-GGUF/Q4_K_M", model="b")
        chosen = select_hub_model(name, NOTHING)
        assert chosen is not None
        assert chosen.local_path == ollama_blob(ollama, "b")

    def test_an_incomplete_model_does_not_affect_others(self, ollama: Path) -> None:
        cut = ollama_manifest(ollama, "registry.ollama.ai/library/cut/1b", model="a")
        cut.write_text(cut.read_text()[:40])
        ollama_manifest(ollama, "registry.ollama.ai/library/lost/1b", model="9")
        ollama_manifest(ollama, "registry.ollama.ai/library/cloud/1b", params="e")
        scan = list_found()
        assert len(scan.models) == 2
        assert [each.reason for each in scan.problems] == [
            "Ollama's cut:1b is incomplete. `ollama pull cut:1b` completes it.",
            "Ollama's lost:1b is incomplete. `ollama pull lost:1b` completes it.",
        ]

    def test_a_file_that_only_ollama_loads_is_refused_with_an_explanation(self, ollama: Path) -> None:
        whole = make_sparse_model("llama-8b-q4_k")
        tensors = {**whole.tensors, "v.patch_embd.weight": ((14, 14, 3, 8), "F32")}
        write(ollama_blob(ollama, "a"), "Seeing", Model(whole.architecture, whole.metadata, tensors))
        local = next(each for each in list_models() if each.label == "qwen3.5:9b")
        assert local.record.problem is not None
        assert "a format of Ollama's own" in local.record.problem
        with pytest.raises(ModelUnexpected, match=r"qwen3\.5:9b is in a format of Ollama's own"):
            select_model("qwen3.5:9b", NOTHING)

    def test_the_environment_variable_comes_first(
        self, user: Path, copy_demo: Put, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = user / "disk" / "ollama"
        copy_demo(ollama_blob(root, "a"))
        ollama_manifest(root, "registry.ollama.ai/library/tiny/1b", model="a")
        monkeypatch.setenv("OLLAMA_MODELS", str(root))
        assert find_store_folders()[0].path == root
        assert by_name()["tiny:1b"].path == ollama_blob(root, "a")

    def test_an_unmounted_disk_loses_no_entry(
        self, user: Path, copy_demo: Put, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = user / "disk" / "ollama"
        copy_demo(ollama_blob(root, "a"))
        ollama_manifest(root, "registry.ollama.ai/library/tiny/1b", model="a")
        monkeypatch.setenv("OLLAMA_MODELS", str(root))
        assert len(list_models()) == 1
        (user / "disk").rename(user / "away")
        library = list_library(NOTHING)
        assert library.models == ()
        (problem,) = library.problems
        assert "not there now. Is the disk connected?" in problem.reason
        assert len(read_index()[0].records) == 1
        (user / "away").rename(user / "disk")
        assert [each.label for each in list_models()] == ["tiny:1b"]

    def test_an_unreadable_store_is_named(self, ollama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scan = os.scandir

        # Root may read everything, so a folder without rights would not fail in each environment.
        def refuse(path: Path) -> Any:  # noqa: ANN401 -- what os.scandir returns has no public type
            if Path(path) == ollama:
                raise PermissionError(13, "Permission denied", str(path))
            return scan(path)

        monkeypatch.setattr("launcher.models.stores.os.scandir", refuse)
        (problem,) = list_found().problems
        assert "cannot be read by you: Permission denied" in problem.reason

    def test_files_of_a_store_are_not_deleted(self, ollama: Path) -> None:
        local = next(each for each in list_models() if each.label == "qwen3.5:9b")
        with pytest.raises(BadOption, match="belongs to Ollama") as refused:
            remove_model(local)
        assert refused.value.hint == "`ollama rm qwen3.5:9b` deletes it there."
        assert local.path.is_file()
        (ollama / "blobs" / "x.part").write_bytes(b"")
        (ollama / "blobs" / "x.part.json").write_bytes(b"{}")
        assert find_leftovers() == ()


class TestLmStudio:
    def test_names_of_publisher_repository_and_file_are_resolved(self, user: Path, copy_demo: Put) -> None:
        path = copy_demo(user / ".lmstudio" / "models" / "unsloth" / "Tiny-GGUF" / "Tiny-Q4_K_M.gguf")
        copy_demo(path.with_name("mmproj-F16.gguf"))
        assert list(by_name()) == ["unsloth/Tiny-GGUF/Tiny-Q4_K_M.gguf"]
        for name in (
            "unsloth/Tiny-GGUF/Tiny-Q4_K_M.gguf",
            "unsloth/tiny-gguf/tiny-q4_k_m",
            "unsloth/Tiny-GGUF:Q4_K_M",
            "unsloth/Tiny-GGUF:Tiny-Q4_K_M.gguf",
            "unsloth/Tiny-GGUF",
        ):
            named = find_named(name, NOTHING)
            assert named is not None, name
            assert named.path == path
        (local, _) = list_models()
        assert (local.place, local.store, local.record.repo) == (Place.STORE, Store.LM_STUDIO, "unsloth/Tiny-GGUF")
        assert select_models(list_models(), "unsloth/Tiny-GGUF:Q4_K_M") == [local]

    def test_folders_are_searched_to_a_depth_at_which_links_to_one_above_end(self, user: Path, copy_demo: Put) -> None:
        folder = user / ".lmstudio" / "models"
        deep = copy_demo(folder / "a" / "b" / "c" / "d" / "e" / "f" / "deep.gguf")
        copy_demo(folder / "a" / "b" / "c" / "d" / "e" / "f" / "g" / "too-deep.gguf")
        assert [each.path for each in list_models()] == [deep]

    def test_an_ambiguous_name_lists_the_files(self, user: Path, copy_demo: Put) -> None:
        folder = user / ".lmstudio" / "models" / "unsloth" / "Tiny-GGUF"
        copy_demo(folder / "Tiny-Q4_K_M.gguf")
        copy_demo(folder / "Tiny-Q8_0.gguf")
        with pytest.raises(ModelUnknown, match="is the name of 2 files") as error:
            find_named("unsloth/Tiny-GGUF", NOTHING)
        assert error.value.hint is not None
        assert "unsloth/Tiny-GGUF/Tiny-Q8_0.gguf" in error.value.hint

    @pytest.mark.parametrize("settings", [".lmstudio/settings.json", ".cache/lm-studio/settings.json"])
    def test_the_folder_of_the_settings_is_used(self, user: Path, copy_demo: Put, settings: str) -> None:
        write_json(user / settings, {"downloadsFolder": str(user / "big" / "models")})
        copy_demo(user / "big" / "models" / "a" / "b" / "c.gguf")
        assert list(by_name()) == ["a/b/c.gguf"]
        (user / "big").rename(user / "away")
        (problem,) = list_found().problems
        assert problem.reason.startswith("LM Studio's models should be in ")

    def test_the_home_folder_may_be_elsewhere(self, user: Path, copy_demo: Put) -> None:
        (user / ".lmstudio-home-pointer").write_text(f"{user / 'lms'}\n")
        copy_demo(user / "lms" / "models" / "a" / "b" / "c.gguf")
        assert list(by_name()) == ["a/b/c.gguf"]

    def test_a_catalogue_file_is_not_downloaded_again(self, user: Path, copy_demo: Put) -> None:
        path = copy_demo(user / ".cache" / "lm-studio" / "models" / "owner" / "Mine" / "mine.gguf")
        its = replace(DEMO, id="mine", repo="owner/Mine", files=(ModelFile(quant="F16", file="mine.gguf"),))
        local = find_local_model(its)
        assert local is not None
        assert (local.path, local.place) == (path, Place.STORE)


class TestJan:
    def test_the_current_layout_is_read(self, user: Path, copy_demo: Put, monkeypatch: pytest.MonkeyPatch) -> None:
        data = user / "jan-data"
        monkeypatch.setenv("JAN_DATA_FOLDER", str(data))
        model = copy_demo(data / "llamacpp" / "models" / "unsloth" / "Tiny-Q4" / "model.gguf")
        projector = copy_demo(model.with_name("mmproj.gguf"))
        model.with_name("model.yml").write_text(
            "embedding: false\nmmproj_path: llamacpp/models/unsloth/Tiny-Q4/mmproj.gguf\n"
            "model_path: llamacpp/models/unsloth/Tiny-Q4/model.gguf\nname: 'Tiny'\nsize_bytes: 3\n"
        )
        found = by_name()["unsloth/Tiny-Q4"]
        assert (found.path, found.side_files, found.aliases) == (model, (projector,), ("Tiny",))
        assert find_named("Tiny", NOTHING) is not None

    def test_the_earlier_layout_is_read(self, user: Path, copy_demo: Put) -> None:
        data = user / ".config" / "Jan" / "data"
        model = copy_demo(data / "models" / "cortex.so" / "tiny" / "1b" / "model.gguf")
        model.with_name("model.yml").write_text(
            "# BEGIN GENERAL\nid: tiny:1b # an id\nstop:\n  - <end>\nfiles:\n  - models/cortex.so/tiny/1b/model.gguf\n"
        )
        old = copy_demo(data / "models" / "older" / "older.gguf")
        write_json(old.with_name("model.json"), {"id": "older", "sources": [{"filename": "older.gguf"}]})
        assert {name: each.path for name, each in by_name().items()} == {"cortex.so/tiny/1b": model, "older": old}
        assert find_named("tiny:1b", NOTHING) is not None

    def test_the_folder_of_the_settings_is_used_and_a_lost_file_reported(self, user: Path, copy_demo: Put) -> None:
        write_json(user / ".local" / "share" / "Jan" / "settings.json", {"data_folder": str(user / "d")})
        yml = user / "d" / "llamacpp" / "models" / "gone" / "model.yml"
        yml.parent.mkdir(parents=True)
        yml.write_text("model_path: /nowhere/gone.gguf\n")
        mine = copy_demo(user / "own" / "mine-F16.gguf")
        imported = yml.parent.parent / "mine" / "model.yml"
        imported.parent.mkdir()
        imported.write_text(f"model_path: {mine}\n")
        assert by_name()["mine"].path == mine
        (problem,) = list_found().problems
        assert problem.reason == "Jan's gone names /nowhere/gone.gguf, which is not there."
        assert [each.path for each in list_models()] == [mine]
        assert [each.path for each in list_models()] == [mine]


class TestLlamaCpp:
    def test_manifests_in_the_flat_folder_are_read(self, user: Path, copy_demo: Put) -> None:
        folder = user / ".cache" / "llama.cpp"
        path = copy_demo(folder / "ggml-org_Tiny-GGUF_sub_tiny-Q8_0.gguf")
        copy_demo(folder / "ggml-org_Tiny-GGUF_mmproj-tiny.gguf")
        plain = copy_demo(folder / "downloaded.gguf")
        values = {"ggufFile": {"rfilename": "sub/tiny-Q8_0.gguf"}, "mmprojFile": {"rfilename": "mmproj-tiny.gguf"}}
        write_json(folder / "manifest=ggml-org=Tiny-GGUF=Q8_0.json", values)
        (folder / "manifest=a=b=cut.json").write_text('{"gguf')
        scan = list_found()
        found = {each.name: each for each in scan.models}
        assert set(found) == {"ggml-org/Tiny-GGUF:Q8_0", "downloaded"}
        tiny = found["ggml-org/Tiny-GGUF:Q8_0"]
        assert (tiny.path, tiny.repo, tiny.file) == (path, "ggml-org/Tiny-GGUF", "sub/tiny-Q8_0.gguf")
        assert tiny.side_files == (folder / "ggml-org_Tiny-GGUF_mmproj-tiny.gguf",)
        assert [each.reason for each in scan.problems] == [
            "llama.cpp's a/b:cut is incomplete. `llama-server -hf a/b:cut` completes it."
        ]
        assert {each.path: each.place for each in list_models()}[plain] is Place.CACHE

    def test_the_layout_of_the_hubs_tools_is_read(
        self, user: Path, copy_demo: Put, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LLAMA_CACHE", str(user / "cache"))
        path = copy_demo(user / "cache" / "models--a--Tiny-GGUF" / "snapshots" / ("0" * 40) / "tiny-Q4_0.gguf")
        (found,) = list_found().models
        assert (found.name, found.store, found.path) == ("a/Tiny-GGUF:tiny-Q4_0.gguf", Store.LLAMA_CPP, path)
        assert find_named("a/Tiny-GGUF:Q4_0", NOTHING) is not None


class TestAddedFolders:
    def test_another_folder_of_ollama_can_be_added(self, tmp_path: Path, ollama: Path) -> None:
        moved = tmp_path / "disk" / "models"
        shutil.copytree(ollama, moved)
        shutil.rmtree(ollama)
        for folder in (moved, moved / "blobs", moved.parent):
            assert recognise_store(folder) is not None, folder
        described = describe_store(moved)
        assert described is not None
        assert described[0] == "It is Ollama's: its 2 models are used in place and never changed."
        assert add_place(moved)
        assert {each.label for each in list_models()} == {"qwen3.5:9b", "someone/llava:7b"}
        local = next(each for each in list_models() if each.label == "qwen3.5:9b")
        assert local.place is Place.STORE

    def test_a_store_that_is_searched_anyway_is_not_added(self, user: Path, ollama: Path) -> None:
        assert not add_place(ollama)
        assert not add_place(user / ".ollama")
        assert read_added_places() == ()

    def test_other_folders_are_not_stores(self, tmp_path: Path, copy_demo: Put) -> None:
        copy_demo(tmp_path / "mine" / "a.gguf")
        assert recognise_store(tmp_path / "mine") is None
        assert describe_store(tmp_path / "mine") is None


@pytest.mark.parametrize(
    ("platform", "environ", "wanted"),
    [
        ("win32", {"APPDATA": "/roaming", "LOCALAPPDATA": "/local"}, ["/roaming/Jan/data", "/local/llama.cpp"]),
        ("darwin", {}, ["~/Library/Application Support/Jan/data", "~/Library/Caches/llama.cpp"]),
        ("linux", {"XDG_DATA_HOME": "/data"}, ["/data/Jan/data", "~/.ollama/models", "~/.lmstudio/models"]),
    ],
)
def test_folders_depend_on_the_system(platform: str, environ: dict[str, str], wanted: list[str]) -> None:
    folders = {each.path for each in find_store_folders((), environ, platform)}
    assert {Path(each).expanduser() for each in wanted} <= folders


@pytest.mark.parametrize("damage", ['{"downloadsFolder": 7}', "[]", "{", '{"downloadsFolder": ""}'])
def test_invalid_settings_are_skipped(user: Path, damage: str) -> None:
    path = user / ".lmstudio" / "settings.json"
    path.parent.mkdir()
    path.write_text(damage)
    assert list_found().problems == ()


def test_an_invalid_layer_is_skipped(ollama: Path) -> None:
    odd: list[Any] = [None, 7, {"mediaType": 1, "digest": 2}, {"digest": "sha256:../../etc"}]
    write_json(ollama / "manifests/registry.ollama.ai/library/odd/1b", {"layers": odd})
    assert len(list_found().models) == 2
