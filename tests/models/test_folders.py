"""Folders for downloads: made, or refused with what to do."""

import os
import re
from pathlib import Path

import pytest

from launcher.base.errors import ModelBroken, TargetUnusable
from launcher.base.paths import MODELS_VARIABLE, models_dir
from launcher.models.folders import make_download_folder
from launcher.models.library import list_library, verify_model
from tests.models.pulling import FILE, catalogue, get


def test_a_folder_is_created_with_its_parents(tmp_path: Path) -> None:
    for _ in range(2):
        make_download_folder(tmp_path / "a" / "b", given_by="--to")
        assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("below", ["disk", "disk/models", "user/disk"])
def test_no_folder_is_created_on_an_unmounted_disk(below: str, tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    with pytest.raises(TargetUnusable, match=r"Is the disk connected\?"):
        make_download_folder(tmp_path / below, given_by="--to", mount_points=(tmp_path,))
    assert list(tmp_path.iterdir()) == [tmp_path / "user"]
    (tmp_path / below).mkdir(parents=True)
    make_download_folder(tmp_path / below, given_by="--to", mount_points=(tmp_path,))


def test_a_folder_is_created_on_a_mounted_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "disk")
    make_download_folder(tmp_path / "disk" / "models", given_by="--to", mount_points=(tmp_path,))
    assert (tmp_path / "disk" / "models").is_dir()


def test_mounts_of_all_linux_distributions_are_recognised() -> None:
    for folder in (
        Path("/mnt/no-such-disk"),
        Path("/media/nobody/no-such-disk"),
        Path("/run/media/nobody/no-such-disk"),
    ):
        with pytest.raises(TargetUnusable, match="no disk is mounted there"):
            make_download_folder(folder, given_by="--to")
        assert not folder.exists()


@pytest.mark.parametrize("below", ["", "models"])
async def test_an_error_for_a_file_in_its_place_names_the_option_or_variable(
    below: str, repo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "afile"
    file.write_text("mine")
    with pytest.raises(TargetUnusable, match=f"^{re.escape(str(file))} is a file, not a folder. Set --to"):
        await get(f"{repo}:{FILE}", to=file / below)
    monkeypatch.setenv(MODELS_VARIABLE, str(file / below))
    with pytest.raises(TargetUnusable, match=f"is a file, not a folder. Set {MODELS_VARIABLE}"):
        await get(f"{repo}:{FILE}")
    assert file.read_text() == "mine"


async def test_an_error_for_a_refused_folder_names_the_variable(repo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODELS_VARIABLE, "/proc/models")
    with pytest.raises(TargetUnusable, match=f"Cannot create .* Set {MODELS_VARIABLE}"):
        await get(f"{repo}:{FILE}")


async def test_a_damaged_file_is_not_reported_as_another_one(repo: str) -> None:
    path = (await get(f"{repo}:{FILE}")).path
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(data)
    await verify_model(list_library(catalogue()).models[0])
    with pytest.raises(ModelBroken, match="is damaged: its SHA-256") as caught:
        await get(f"{repo}:{FILE}")
    assert caught.value.hint == f"`mtp-launcher models remove {path}`, then `mtp-launcher pull {repo}:{FILE}`."
    assert path == models_dir() / repo / FILE
