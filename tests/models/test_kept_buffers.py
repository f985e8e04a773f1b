"""Sizes of compute buffers kept for the next process: reused if valid, computed again otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.paths import HOME_VARIABLE
from launcher.models import kept_buffers
from launcher.models.catalogue_load import shipped_models
from launcher.models.compute_buffers import ComputeSetting, compute_buffers
from launcher.models.geometry import Geometry
from launcher.models.kept_buffers import find_compute_buffers

GEOMETRY = next(model.geometry for model in shipped_models() if model.id == "qwen3.5-9b")
assert GEOMETRY
SETTING = ComputeSetting("cuda", 32_768, 512, 1, 2, quantised=True)
SETTINGS = (
    SETTING,
    SETTING._replace(backend="vulkan", draft=0),
    SETTING._replace(devices=2, quantised=False),
    SETTING._replace(backend="cpu"),
)


@pytest.fixture(autouse=True)
def store_path(home: Path) -> Iterator[Path]:
    forget_sizes()
    yield home / "cache" / "compute-buffers.json"
    forget_sizes()


def forget_sizes() -> None:
    """Empty the caches of this process, so that it goes on like a new one."""
    find_compute_buffers.cache_clear()
    kept_buffers._open_store.cache_clear()


def open_store() -> kept_buffers._Store:
    return kept_buffers._open_store(os.environ[HOME_VARIABLE])


def save_sizes() -> None:
    """Write the file, as a process does at its end."""
    open_store().save()


def refuse(geometry: Geometry, setting: ComputeSetting) -> None:
    raise AssertionError(f"{setting} of {geometry.architecture} is computed")


def test_the_next_process_reuses_the_computed_sizes(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert GEOMETRY
    for setting in SETTINGS:
        assert find_compute_buffers(GEOMETRY, setting) == compute_buffers(GEOMETRY, setting)
    assert not store_path.exists()
    save_sizes()
    forget_sizes()
    monkeypatch.setattr(kept_buffers, "compute_buffers", refuse)
    for setting in SETTINGS:
        assert find_compute_buffers(GEOMETRY, setting) == compute_buffers(GEOMETRY, setting)
    with pytest.raises(AssertionError, match="is computed"):
        find_compute_buffers(GEOMETRY, SETTING._replace(context=65_536))
    with pytest.raises(AssertionError, match="is computed"):
        find_compute_buffers(replace(GEOMETRY, hidden=GEOMETRY.hidden + 256), SETTING)


def test_two_processes_add_to_one_file(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert GEOMETRY
    find_compute_buffers(GEOMETRY, SETTINGS[0])
    first = open_store()
    forget_sizes()
    find_compute_buffers(GEOMETRY, SETTINGS[1])
    save_sizes()
    first.save()
    forget_sizes()
    monkeypatch.setattr(kept_buffers, "compute_buffers", refuse)
    for setting in SETTINGS[:2]:
        assert find_compute_buffers(GEOMETRY, setting) == compute_buffers(GEOMETRY, setting)


def test_sizes_of_another_formula_or_a_damaged_file_are_computed_again(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert GEOMETRY
    right = find_compute_buffers(GEOMETRY, SETTING)
    save_sizes()
    whole = store_path.read_bytes()
    wrong = whole.replace(f"[{right.target},".encode(), b"[7,")
    assert wrong != whole
    for text in (wrong, whole[: len(whole) // 2], b"", b"\xff" * 200):
        store_path.write_bytes(text)
        forget_sizes()
        assert find_compute_buffers(GEOMETRY, SETTING) == right
        save_sizes()
        assert store_path.read_bytes() == whole
    with monkeypatch.context() as patch:
        patch.setattr(kept_buffers, "__version__", "9.9.9")  # an update changes the formula
        kept_buffers._describe_formula.cache_clear()
        forget_sizes()
        patch.setattr(kept_buffers, "compute_buffers", refuse)
        with pytest.raises(AssertionError, match="is computed"):
            find_compute_buffers(GEOMETRY, SETTING)
    kept_buffers._describe_formula.cache_clear()
    assert not caplog.records


def test_sizes_are_computed_without_a_writable_folder(home: Path) -> None:
    assert GEOMETRY
    home.mkdir()
    (home / "cache").write_text("no folder")
    assert find_compute_buffers(GEOMETRY, SETTING) == compute_buffers(GEOMETRY, SETTING)
    save_sizes()
    assert (home / "cache").read_text() == "no folder"
