"""Leftovers of downloads, and the user's own folders."""

import os
import shutil
from pathlib import Path

import pytest

from launcher.base.errors import BadOption, DownloadBusy, ModelMissing
from launcher.base.paths import config_dir, models_dir
from launcher.fetch import journal
from launcher.fetch.journal import DownloadIdentity, Stretch
from launcher.fetch.partial_file import journal_path, keep_as_bad, lock_target, part_path
from launcher.models.added_places import add_place, find_added_place, read_added_places, remove_place
from launcher.models.catalogue import Catalogue
from launcher.models.leftovers import LeftoverKind, find_leftovers, remove_leftover, select_leftovers
from launcher.models.library import Place, list_library, remove_model

NOTHING = Catalogue(())


@pytest.fixture(autouse=True)
def _no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path))


def part(target: Path, *, arrived: int = 60_000, whole: int = 100_000) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    part_path(target).write_bytes(b"x" * arrived)
    journal.create_journal(
        journal_path(target), DownloadIdentity("https://hub.example/x", whole), [Stretch(0, arrived, arrived)]
    )
    return part_path(target)


def test_an_unfinished_file_is_reported_with_its_received_bytes() -> None:
    target = models_dir() / "o" / "r" / "m.gguf"
    path = part(target)
    (left,) = find_leftovers()
    assert (left.path, left.kind, left.target) == (path, LeftoverKind.UNFINISHED, target)
    assert (left.done_bytes, left.whole_bytes) == (60_000, 100_000)
    assert 0 < left.bytes <= 60_000
    assert remove_leftover(left) == left.bytes
    assert list(models_dir().iterdir()) == []
    assert find_leftovers() == ()


def test_a_running_download_is_not_a_leftover() -> None:
    target = models_dir() / "m.gguf"
    path = part(target)
    (left,) = find_leftovers()
    with lock_target(target), pytest.raises(DownloadBusy):
        remove_leftover(left)
    assert path.exists()


def test_a_renamed_bad_file_has_its_reason() -> None:
    target = models_dir() / "m.gguf"
    part(target)
    keep_as_bad(target, "Its SHA-256 is another one.")
    (left,) = find_leftovers()
    assert (left.kind, left.reason, left.done_bytes) == (LeftoverKind.BAD, "Its SHA-256 is another one.", None)
    assert select_leftovers([left], "m.gguf.bad") == select_leftovers([left], "leftovers") == [left]
    assert select_leftovers([left], "m.gguf") == []
    remove_leftover(left)
    assert list(models_dir().iterdir()) == []


def test_in_a_folder_of_the_user_only_our_own_leftovers_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    ours = part(folder / "a.gguf")
    (folder / "thesis.part").write_bytes(b"chapter one")
    (folder / "apple.bad").write_bytes(b"rotten")
    assert find_leftovers() == ()
    add_place(folder)
    assert [left.path for left in find_leftovers()] == [ours]


def test_an_added_folder_is_searched_until_it_is_removed(tmp_path: Path, demo_model: Path) -> None:
    folder = tmp_path / "more models"
    (folder / "deep").mkdir(parents=True)
    path = Path(shutil.copy(demo_model, folder / "deep" / "loose-Q8_0.gguf"))
    assert list_library(NOTHING).models == ()
    assert add_place(folder)
    assert not add_place(folder)
    assert not add_place(path)
    (local,) = list_library(NOTHING).models
    assert (local.path, local.place, local.record.quant) == (path, Place.ELSEWHERE, "Q8_0")
    assert find_added_place(path) == folder
    assert remove_place(folder)
    assert not remove_place(folder)
    assert list_library(NOTHING).models == ()
    assert path.exists()


def test_a_single_file_can_be_added_and_removed(tmp_path: Path, demo_model: Path) -> None:
    path = Path(shutil.copy(demo_model, tmp_path / "one.gguf"))
    add_place(path)
    (local,) = list_library(NOTHING).models
    assert local.path == path
    assert remove_model(local) == demo_model.stat().st_size
    assert list_library(NOTHING).models == ()


def test_invalid_additions_are_explained(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(ModelMissing):
        add_place(tmp_path / "nowhere")
    with pytest.raises(BadOption, match="is not a GGUF file"):
        add_place(tmp_path / "x.txt")
    odd = tmp_path / "two\nlines"
    odd.mkdir()
    with pytest.raises(BadOption, match="line"):
        add_place(odd)
    assert read_added_places() == ()


def test_the_list_can_be_written_by_hand(tmp_path: Path) -> None:
    path = config_dir() / "model-folders.txt"
    path.parent.mkdir(parents=True)
    name = tmp_path / os.fsdecode(b"caf\xe9")
    path.write_bytes(b"# mine\n\n" + os.fsencode(name) + b"\n" + os.fsencode(name) + b"\n~/x\n")
    assert read_added_places() == (name, tmp_path / "x")
    remove_place(tmp_path / "x")
    assert read_added_places() == (name,)
