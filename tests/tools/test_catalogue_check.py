"""The catalogue compared with what repositories hold: a small server on loopback plays the hub."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from launcher.base.errors import LauncherError
from launcher.models.catalogue import CompanionFile, ModelEntry, ModelFile
from tools.catalogue_check import Finding, check_models, main

ONE, TWO = "1a" * 32, "2b" * 32


class Hub(Protocol):
    folder: Path
    requests: Callable[[], list[dict[str, Any]]]


def publish_pointers(hub: Hub, repo: str, **files: tuple[int, str]) -> None:
    """Let a repository hold files of these sizes and checksums, by pointers; two underscores are a slash."""
    for name, (size, sha256) in files.items():
        path = hub.folder / repo / f"{name.replace('__', '/')}.gguf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n")


def model(repo: str, *files: ModelFile, mmproj: tuple[CompanionFile, ...] = ()) -> ModelEntry:
    return ModelEntry(id="mine", name="Mine", repo=repo, files=files, mmproj=mmproj)


def findings(*models: ModelEntry) -> list[Finding]:
    found = list(check_models(models))
    assert not [each for each in found if isinstance(each, LauncherError)]
    return [each for each in found if isinstance(each, Finding)]


def test_unchanged_files_are_not_named(hub: Hub) -> None:
    publish_pointers(hub, "check/same", a=(10, ONE), mmproj=(20, TWO))
    same = model(
        "check/same",
        ModelFile(quant="Q8_0", file="a.gguf", size_bytes=10, sha256=ONE),
        mmproj=(CompanionFile(file="mmproj.gguf", size_bytes=20),),
    )
    assert findings(same) == []


def test_replaced_gone_new_and_known_files_are_named(hub: Hub) -> None:
    publish_pointers(hub, "check/moved", a=(11, ONE), b=(10, TWO), rounded=(4_300, ONE), old=(5, ONE), fresh=(7, ONE))
    moved = model(
        "check/moved",
        ModelFile(quant="A", file="a.gguf", size_bytes=10),
        ModelFile(quant="B", file="b.gguf", size_bytes=10, sha256=ONE),
        ModelFile(quant="C", file="c.gguf", size_bytes=10),
        ModelFile(quant="D", file="rounded.gguf", about_bytes=4_000),
        ModelFile(quant="E", file="old.gguf", withdrawn=True),
        ModelFile(quant="F", file="older.gguf", withdrawn=True),
    )
    assert [(each.kind, each.file, each.detail) for each in findings(moved)] == [
        ("replaced", "a.gguf", "10 bytes here, 11 there"),
        ("replaced", "b.gguf", "SHA-256 1a1a1a1a1a1a here, 2b2b2b2b2b2b there"),
        ("gone", "c.gguf", ""),
        ("size known", "rounded.gguf", "4,300 bytes"),
        ("back", "old.gguf", ""),
        ("new", "fresh.gguf", "7 bytes"),
    ]


def test_a_split_file_is_compared_by_all_its_parts(hub: Hub) -> None:
    parts = {f"Q4__big-0000{number}-of-00002": (number * 100, ONE) for number in (1, 2)}
    publish_pointers(
        hub, "check/split", **parts, **{"Q8__big-00001-of-00003": (1, ONE), "F16__big-00001-of-00002": (9, ONE)}
    )
    split = model(
        "check/split",
        ModelFile(quant="Q4", file="Q4/big-00001-of-00002.gguf", size_bytes=300),
        ModelFile(quant="Q8", file="Q8/big-00001-of-00003.gguf", size_bytes=3),
    )
    assert [(each.kind, each.file, each.detail) for each in findings(split)] == [
        ("gone", "Q8/big-00001-of-00003.gguf", "1 of 3 parts are there"),
        ("new", "F16/big-00001-of-00002.gguf", "9 bytes in its first part"),
    ]


def test_two_models_of_one_repository_are_listed_once(hub: Hub) -> None:
    publish_pointers(hub, "check/shared", a=(1, ONE), b=(2, ONE))
    one = model("check/shared", ModelFile(quant="A", file="a.gguf", size_bytes=1))
    two = model("check/shared", ModelFile(quant="B", file="b.gguf", size_bytes=2))
    assert findings(one, two) == []
    targets = [each["target"] for each in hub.requests()]
    assert len([each for each in targets if each.endswith("/refs")]) == 1


def test_a_repository_that_cannot_be_listed_is_named_and_fails(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = model("check/nowhere", ModelFile(quant="A", file="a.gguf", size_bytes=1))
    monkeypatch.setattr("tools.catalogue_check.shipped_models", lambda: (entry,))
    assert main([]) == 1
    assert capsys.readouterr().out.startswith("unknown     ")


def test_new_files_alone_are_no_failure(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_pointers(hub, "check/grown", a=(1, ONE), b=(2, ONE))
    entry = model("check/grown", ModelFile(quant="A", file="a.gguf", size_bytes=1))
    monkeypatch.setattr("tools.catalogue_check.shipped_models", lambda: (entry,))
    assert main(["mine"]) == 0
    assert capsys.readouterr().out == "new         mine: b.gguf (2 bytes)\n"
