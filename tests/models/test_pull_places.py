"""Pulling files of other programs, files from any web address, and pulling without the network."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from launcher.base.errors import (
    DownloadBroken,
    LauncherError,
    Offline,
    Unreachable,
)
from launcher.base.paths import models_dir
from launcher.models.download_target import DownloadTarget, parse_target
from launcher.models.library import find_local_model
from launcher.models.library_index import read_index
from launcher.models.pull import pull_model
from tests.conftest import Hub
from tests.models.pulling import FILE, QUICK, cache_content, catalogue, entry, get, methods, sha256
from tests.models.test_gguf_split import write_split


class TestFilesOfOtherPrograms:
    async def test_a_cached_file_is_used_in_place(self, repo: str, hub: Hub, tmp_path: Path, demo_model: Path) -> None:
        path = cache_content(tmp_path, repo, demo_model)
        mine = entry(repo)
        pulled = await get("mine:F16", mine)
        assert pulled.path == path
        assert [file.origin for file in pulled.files] == ["cache"]
        assert methods(hub) == [("hub", "HEAD")]
        assert not models_dir().exists()
        found = find_local_model(mine, "F16")
        assert found is not None
        assert (found.path, found.place.value, found.state.value) == (path, "cache", "good")

    async def test_a_cached_file_is_hashed_once(self, repo: str, tmp_path: Path, demo_model: Path) -> None:
        path = cache_content(tmp_path, repo, demo_model)
        await get(f"{repo}:{FILE}")
        (kept,) = read_index()[0].hashes
        assert (kept.path, kept.sha256) == (path, sha256(demo_model))
        os.utime(path, ns=(0, kept.modified_ns))
        await get(f"{repo}:{FILE}")
        assert read_index()[0].hashes == [kept]

    async def test_a_damaged_cached_file_is_not_used_or_changed(
        self, repo: str, tmp_path: Path, demo_model: Path
    ) -> None:
        bad = tmp_path / "bad"
        bad.write_bytes(b"\0" + demo_model.read_bytes()[1:])
        path = cache_content(tmp_path, repo, bad, claims=sha256(demo_model))
        pulled = await get(f"{repo}:{FILE}")
        assert pulled.path == models_dir() / repo / FILE
        assert pulled.path.read_bytes() == demo_model.read_bytes()
        assert path.read_bytes() == bad.read_bytes()

    async def test_another_upload_in_the_cache_is_not_used(
        self, repo: str, tmp_path: Path, headless_model: Path
    ) -> None:
        cache_content(tmp_path, repo, headless_model)
        assert (await get(f"{repo}:{FILE}")).files[0].origin == "downloaded"

    async def test_the_flat_cache_folder_of_llama_cpp_is_used(
        self, repo: str, tmp_path: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
        (tmp_path / "llama").mkdir()
        path = tmp_path / "llama" / f"{repo}_{FILE}".replace("/", "_")
        shutil.copy(demo_model, path)
        assert (await get(f"{repo}:{FILE}")).path == path

    async def test_with_a_named_folder_the_file_is_downloaded_there(
        self, repo: str, tmp_path: Path, demo_model: Path
    ) -> None:
        cache_content(tmp_path, repo, demo_model)
        pulled = await get(f"{repo}:{FILE}", to=tmp_path / "mine")
        assert (pulled.path, pulled.files[0].origin) == (tmp_path / "mine" / FILE, "downloaded")


class TestWithoutTheNetwork:
    @pytest.fixture(params=["offline", "unreachable"])
    def away(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[LauncherError]:
        if request.param == "offline":
            monkeypatch.setenv("HF_HUB_OFFLINE", "1")
            return Offline
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        return Unreachable

    async def test_offline_a_missing_file_is_an_error(self, repo: str, away: type[LauncherError]) -> None:
        with pytest.raises(away):
            await get(f"{repo}:{FILE}")

    @pytest.mark.usefixtures("away")
    async def test_offline_a_cached_file_is_used(self, repo: str, tmp_path: Path, demo_model: Path) -> None:
        path = cache_content(tmp_path, repo, demo_model)
        assert (await get(f"{repo}:{FILE}")).path == path

    async def test_offline_a_downloaded_file_is_used(self, repo: str, monkeypatch: pytest.MonkeyPatch) -> None:
        first = await get("mine:F16", entry(repo))
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        again = await get("mine:F16", entry(repo))
        assert (again.path, again.files[0].origin) == (first.path, "here")


class TestAddress:
    async def test_a_file_with_its_checksum_is_downloaded_by_address(
        self, repo: str, hub: Hub, demo_model: Path
    ) -> None:
        url = f"{hub.store}/{repo}/{FILE}?signature=s3cret"
        pulled = await get(url, sha256=sha256(demo_model).upper())
        assert pulled.path == models_dir() / "127.0.0.1" / FILE
        assert pulled.record.repo is None
        with pytest.raises(DownloadBroken):
            await get(f"{hub.store}/{repo}/{FILE}", sha256="0" * 64, to=models_dir() / "other")

    async def test_signatures_of_addresses_are_not_stored(self, repo: str, hub: Hub, demo_model: Path) -> None:
        await get(f"{hub.store}/{repo}/{FILE}?signature=s3cret", sha256=sha256(demo_model))
        assert all("s3cret" not in (record.url or "") for record in read_index()[0].records)

    async def test_a_link_to_a_hub_file_is_recognised(self, repo: str, hub: Hub) -> None:
        pulled = await get(f"{hub.url}/{repo}/blob/main/{FILE}?download=true")
        assert (pulled.record.repo, pulled.record.file) == (repo, FILE)

    @pytest.mark.parametrize("page", ["", "/", "/tree/main", "?not-for-all-audiences=true"])
    async def test_a_link_to_a_hub_repository_is_recognised(self, page: str, repo: str, hub: Hub) -> None:
        target = await asyncio.to_thread(parse_target, f"{hub.url}/{repo}{page}", catalogue())
        assert target == await asyncio.to_thread(parse_target, repo, catalogue())


async def test_several_files_without_disk_space_are_refused_before_any_download(
    repo: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_split(hub.folder / repo / "parts").name
    target: DownloadTarget = await asyncio.to_thread(parse_target, f"{repo}:parts/{first}", catalogue())
    usage = shutil.disk_usage(hub.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000))
    hub.requests()
    with pytest.raises(LauncherError, match=r"needs 0\.0 GB more") as caught:
        await pull_model(target, settings=QUICK)
    assert caught.value.code == "disk_full"
    asked = [each for each in hub.requests() if each["method"] == "GET" and each["server"] == "store"]
    assert all(each["Range"] == "bytes=0-262143" for each in asked)  # their headers
