"""The caches of the hub's tools and of llama.cpp: their folders, and the files in them."""

import hashlib
import os
from pathlib import Path

import pytest

from launcher.fetch.hub_cache import (
    cache_roots,
    claimed_sha256,
    find_cached_files,
    flat_cache_root,
    is_in_cache,
    list_cached_models,
)

OLD, NEW = "a" * 40, "b" * 40
CONTENT = b"GGUF and so on"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "hf" / "hub"


def cache_file(root: Path, file: str, *, commit: str = NEW, content: bytes = CONTENT, link: bool = True) -> Path:
    """Lay a file into a cache as huggingface_hub does: a blob by its hash, and a link to it."""
    repository = root / "models--owner--name"
    blob = repository / "blobs" / hashlib.sha256(content).hexdigest()
    path = repository / "snapshots" / commit / file
    blob.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if link:
        blob.write_bytes(content)
        path.symlink_to(os.path.relpath(blob, path.parent))
    else:  # Windows without the right to make links
        path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("environment", "roots"),
    [
        ({}, ["~/.cache/huggingface/hub"]),
        ({"XDG_CACHE_HOME": "/x"}, ["/x/huggingface/hub"]),
        ({"XDG_CACHE_HOME": "/x", "HF_HOME": "/h"}, ["/h/hub"]),
        ({"HF_HOME": "/h", "HUGGINGFACE_HUB_CACHE": "/o"}, ["/o"]),
        ({"HF_HUB_CACHE": "/c", "HUGGINGFACE_HUB_CACHE": "/o"}, ["/c"]),
        ({"LLAMA_CACHE": "/l", "HF_HUB_CACHE": "/c"}, ["/l", "/c"]),
        ({"LLAMA_CACHE": "/c", "HF_HUB_CACHE": "/c"}, ["/c"]),
        ({"LLAMA_CACHE": "", "HF_HUB_CACHE": "~/c"}, ["~/c"]),
    ],
)
def test_the_first_variable_that_is_set_is_used(environment: dict[str, str], roots: list[str]) -> None:
    assert cache_roots(environment) == tuple(Path(root).expanduser() for root in roots)


@pytest.mark.parametrize(
    ("platform", "environment", "root"),
    [
        ("linux", {}, "~/.cache/llama.cpp"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/llama.cpp"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/llama.cpp"),
        ("darwin", {}, "~/Library/Caches/llama.cpp"),
        ("win32", {"LLAMA_CACHE": "/l"}, "/l"),
    ],
)
def test_llama_cpp_has_a_flat_cache_folder(platform: str, environment: dict[str, str], root: str) -> None:
    assert flat_cache_root(environment, platform) == Path(root).expanduser()


def test_a_file_is_found_by_its_link_in_the_requested_commit_first(hub_cache: Path) -> None:
    old = cache_file(hub_cache, "BF16/x.gguf", commit=OLD)
    new = cache_file(hub_cache, "BF16/x.gguf", commit=NEW, content=b"another")
    assert list(find_cached_files("owner/name", ["BF16/x.gguf"], OLD)) == [(old,), (new,)]
    assert next(find_cached_files("owner/name", ["BF16/x.gguf"], NEW)) == (new,)
    assert claimed_sha256(old) == SHA256
    assert is_in_cache(old)
    assert not list(find_cached_files("owner/name", ["y.gguf"]))
    assert not list(find_cached_files("owner/other", ["BF16/x.gguf"]))


def test_all_parts_must_be_in_one_commit(hub_cache: Path) -> None:
    first, second = "x-00001-of-00002.gguf", "x-00002-of-00002.gguf"
    cache_file(hub_cache, first, commit=OLD)
    cache_file(hub_cache, second, commit=NEW)
    assert not list(find_cached_files("owner/name", [first, second]))
    cache_file(hub_cache, first, commit=NEW)
    ((one, two),) = find_cached_files("owner/name", [first, second])
    assert (one.parent.name, one.name, two.name) == (NEW, first, second)


def test_a_file_without_a_link_has_no_known_hash(hub_cache: Path) -> None:
    path = cache_file(hub_cache, "x.gguf", link=False)
    assert list(find_cached_files("owner/name", ["x.gguf"])) == [(path,)]
    assert claimed_sha256(path) is None


def test_a_dangling_link_is_no_file(hub_cache: Path) -> None:
    path = cache_file(hub_cache, "x.gguf")
    path.resolve().unlink()
    assert not list(find_cached_files("owner/name", ["x.gguf"]))
    assert not list(list_cached_models())
    assert claimed_sha256(path) is None


def test_the_root_of_llama_cpp_comes_first(hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = cache_file(hub_cache, "x.gguf")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    own = cache_file(tmp_path / "llama", "x.gguf")
    flat = tmp_path / "llama" / "owner_name_x.gguf"
    flat.write_bytes(CONTENT)
    assert list(find_cached_files("owner/name", ["x.gguf"])) == [(own,), (theirs,), (flat,)]


def test_all_models_are_listed_once(hub_cache: Path) -> None:
    cache_file(hub_cache, "BF16/x.gguf", commit=OLD)
    cache_file(hub_cache, "BF16/x.gguf", commit=NEW)
    cache_file(hub_cache, "config.json", commit=NEW, content=b"{}")
    (hub_cache / "models--owner--name" / "blobs" / "c.incomplete").write_bytes(b"half")
    (found,) = list_cached_models()
    assert (found.repo, found.file, found.claimed_sha256) == ("owner/name", "BF16/x.gguf", SHA256)
