"""Headers on the hub: equal to those of the file on disk, read by a few range requests, and only once."""

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from gguf import GGUFWriter

from launcher.base.errors import LauncherError, ModelBroken, ModelMissing, Refused
from launcher.base.paths import cache_dir
from launcher.fetch.hub import HubFile
from launcher.models import gguf_remote
from launcher.models.gguf import read_header, read_model, read_raw_header
from launcher.models.gguf_remote import read_remote_header, read_remote_model

DEMO = HubFile("us/models", "demo.gguf")


class Hub(Protocol):
    url: str
    folder: Path
    with_faults: Callable[..., str]
    requests: Callable[[], list[dict[str, Any]]]


def write(path: Path, *, words: int, split: int = 0) -> None:
    """Write a model with a vocabulary of `words` long tokens."""
    choose = random.Random(1).choices
    writer = GGUFWriter(path, "qwen35moe", split_max_tensors=split)
    writer.add_array("tokenizer.ggml.tokens", ["".join(choose("abcdefgh", k=60)) for _ in range(words)])
    for number in range(5):
        writer.add_tensor(f"blk.{number}.weight", np.full((64, 256), number, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(autouse=True)
def models(hub: Hub, demo_model: Path) -> Path:
    """The repository's folder, which holds a small model, one with a large vocabulary, a split one and no models."""
    folder = hub.folder / "us" / "models"
    if not folder.exists():
        (folder / "split").mkdir(parents=True)
        shutil.copy(demo_model, folder / "demo.gguf")
        write(folder / "large.gguf", words=20_000)
        write(folder / "split" / "m.gguf", words=3, split=2)
        write(folder / "split" / "torn.gguf", words=3, split=2)
        (folder / "split" / "torn-00003-of-00003.gguf").unlink()
        shutil.copy(folder / "split" / "m-00001-of-00003.gguf", folder / "renamed.gguf")
        (folder / "page.gguf").write_bytes(b"<html>" * 999)
        (folder / "cut.gguf").write_bytes(demo_model.read_bytes()[:300])
    return folder


def list_requests(hub: Hub) -> list[str]:
    return [f"{request['method']} {request['server']}" for request in hub.requests()]


class TestOneFile:
    @pytest.mark.parametrize("name", ["demo.gguf", "large.gguf"])
    @pytest.mark.parametrize("fault", ["", "ignores-range"])
    def test_the_remote_header_equals_that_of_the_file(self, hub: Hub, models: Path, name: str, fault: str) -> None:
        endpoint = hub.with_faults(fault) if fault else hub.url
        header, raw = read_remote_header(f"{endpoint}/us/models/resolve/main/{name}")
        local = read_header(models / name)
        assert (header.metadata, header.tensors, header.array_lengths) == (
            local.metadata,
            local.tensors,
            local.array_lengths,
        )
        assert (header.data_offset, header.file_bytes, header.name) == (local.data_offset, local.file_bytes, local.name)
        assert raw == read_raw_header(local)

    def test_only_the_beginning_is_fetched(self, hub: Hub, models: Path) -> None:
        read_remote_header(f"{hub.url}/us/models/resolve/main/demo.gguf")
        fetched = [request["Range"] for request in hub.requests() if request["server"] == "store"]
        assert fetched == ["bytes=0-262143"]
        assert (models / "demo.gguf").stat().st_size > 30 * 2**18

    @pytest.mark.parametrize(
        ("name", "error", "what"),
        [
            ("page.gguf", ModelBroken, "page.gguf is not a GGUF file: it is a page of text"),
            ("cut.gguf", ModelBroken, "cut.gguf is damaged or incomplete: it ends inside its header"),
            ("none.gguf", Refused, "does not have this file"),
        ],
    )
    def test_other_files_are_refused(self, hub: Hub, name: str, error: type[LauncherError], what: str) -> None:
        with pytest.raises(error, match=what) as refused:
            read_remote_header(f"{hub.url}/us/models/resolve/main/{name}")
        assert "Download" not in refused.value.hint

    def test_an_empty_file_is_refused(self, hub: Hub) -> None:
        with pytest.raises(ModelBroken, match="it is empty"):
            read_remote_header(f"{hub.with_faults('empty')}/us/models/resolve/main/demo.gguf")


class TestModel:
    def test_a_remote_model_has_the_figures_of_file_and_hub(self, models: Path) -> None:
        remote, local = read_remote_model(DEMO), read_model(models / "demo.gguf")
        assert (remote.model.tensors, remote.model.metadata) == (local.tensors, local.metadata)
        assert (remote.model.mtp_head, remote.model.file_bytes) == (local.mtp_head, local.file_bytes)
        assert remote.entries[0].sha256 == hashlib.sha256((models / "demo.gguf").read_bytes()).hexdigest()
        assert remote.raw_headers == (read_raw_header(local.parts[0]),)

    @pytest.mark.parametrize("number", [1, 3])
    def test_a_split_model_is_read_by_any_of_its_parts(self, models: Path, number: int) -> None:
        remote = read_remote_model(HubFile("us/models", f"split/m-{number:05}-of-00003.gguf"))
        local = read_model(models / "split" / "m-00001-of-00003.gguf")
        assert (remote.model.tensors, remote.model.file_bytes) == (local.tensors, local.file_bytes)
        assert [entry.bytes for entry in remote.entries] == [header.file_bytes for header in local.parts]
        assert list(remote.raw_headers) == [read_raw_header(header) for header in local.parts]

    def test_a_missing_part_is_named(self) -> None:
        with pytest.raises(ModelMissing, match=r"lacks some of the 3 parts .*: torn-00003-of-00003\.gguf") as missing:
            read_remote_model(HubFile("us/models", "split/torn-00001-of-00003.gguf"))
        assert missing.value.facts["missing"] == ["torn-00003-of-00003.gguf"]

    def test_a_part_with_another_name_is_refused(self) -> None:
        with pytest.raises(ModelMissing, match=r"renamed\.gguf is one of 3 parts"):
            read_remote_model(HubFile("us/models", "renamed.gguf"))

    def test_a_token_opens_a_private_repository(self, hub: Hub, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shutil.copytree(models, hub.folder / "secret" / "models", dirs_exist_ok=True)
        with pytest.raises(Refused, match="denies access"):
            read_remote_model(HubFile("secret/models", "demo.gguf"))
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        assert read_remote_model(HubFile("secret/models", "demo.gguf")).model.has_mtp_head


class TestKeptHeaders:
    def test_the_second_read_costs_one_head_request(self, hub: Hub) -> None:
        first = read_remote_model(DEMO)
        assert list_requests(hub) == ["HEAD hub", "GET hub", "GET store"]
        assert read_remote_model(DEMO) == first
        assert list_requests(hub) == ["HEAD hub"]

    def test_a_damaged_cached_header_is_fetched_again(self, hub: Hub) -> None:
        first = read_remote_model(DEMO)
        (kept,) = (cache_dir() / "headers").iterdir()
        for damage in (kept.read_bytes()[:-1], b"", b"<html>"):
            kept.write_bytes(damage)
            hub.requests()
            assert read_remote_model(DEMO) == first
            assert list_requests(hub) == ["HEAD hub", "GET hub", "GET store"]
            assert len(kept.read_bytes()) == len(first.raw_headers[0])

    def test_an_unwritable_cache_is_ignored(self, home: Path) -> None:
        home.mkdir()
        (home / "cache").write_text("in the way")
        assert read_remote_model(DEMO).model.has_mtp_head

    def test_the_least_recently_used_header_is_deleted_first(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        large = HubFile("us/models", "large.gguf")
        first = read_remote_model(DEMO)
        (kept,) = (cache_dir() / "headers").iterdir()
        os.utime(kept, (1, 1))
        size = read_header(models / "large.gguf").data_offset + len(first.raw_headers[0])
        monkeypatch.setattr(gguf_remote, "_KEPT_BYTES", size)
        read_remote_model(large)
        assert kept.exists()
        monkeypatch.setattr(gguf_remote, "_KEPT_BYTES", size - 1)
        read_remote_model(HubFile("us/models", "split/m-00002-of-00003.gguf"))
        assert not kept.exists()
        assert len(list((cache_dir() / "headers").iterdir())) == 4

    def test_a_changed_file_has_a_new_header(self, hub: Hub, models: Path) -> None:
        before = read_remote_model(DEMO)
        shutil.copy(models / "demo.gguf", models / "before.gguf")
        try:
            shutil.copy(models / "large.gguf", models / "demo.gguf")
            assert read_remote_model(DEMO).model.tensors != before.model.tensors
        finally:
            (models / "before.gguf").replace(models / "demo.gguf")
        hub.requests()
        assert read_remote_model(DEMO) == before
        assert list_requests(hub) == ["HEAD hub"]
