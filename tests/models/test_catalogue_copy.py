"""The parsed copy of the catalogue in the cache folder: the same models, loaded faster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.models import catalogue_load
from launcher.models.catalogue_load import load_catalogue, shipped_models


@pytest.fixture(autouse=True)
def copy(home: Path) -> Iterator[Path]:
    catalogue_load._read_shipped.cache_clear()
    yield home / "cache" / "catalogue.json"
    catalogue_load._read_shipped.cache_clear()


def refuse(*_: object) -> None:
    raise AssertionError("the files of the catalogue are parsed")


def test_the_next_process_reads_the_copy(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = load_catalogue().models
    assert len(parsed) > 40
    assert any(model.measurements for model in parsed)
    assert copy.is_file()
    catalogue_load._read_shipped.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(catalogue_load.tomllib, "loads", refuse)
        patch.setattr(catalogue_load, "read_published_runs", refuse)
        assert load_catalogue().models == parsed
    made = copy.stat().st_mtime_ns
    catalogue_load._read_shipped.cache_clear()
    load_catalogue()
    assert copy.stat().st_mtime_ns == made


def test_a_copy_of_other_files_or_a_damaged_one_is_replaced(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    parsed = load_catalogue().models
    whole = copy.read_bytes()
    now = str(catalogue_load._describe_shipped()[1][2]).encode()
    other = catalogue_load.add_checksum(whole.partition(b"\n")[2].replace(now, b"1", 1))
    for text in (whole[: len(whole) // 2], b"", b"\xff" * 200, whole.replace(b"qwen3", b"qwen4"), other):
        assert text != whole
        copy.write_bytes(text)
        catalogue_load._read_shipped.cache_clear()
        assert load_catalogue().models == parsed
        assert copy.read_bytes() == whole
    assert not caplog.records


def test_an_unwritable_folder_does_not_prevent_loading(home: Path) -> None:
    home.mkdir()
    (home / "cache").write_text("no folder")
    assert load_catalogue().models == shipped_models()
    assert (home / "cache").read_text() == "no folder"
