"""Figures from the hub: they fill gaps of the catalogue, and never change its values."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base.errors import ModelMissing, Offline, Refused, Unreachable
from launcher.models.catalogue import CompanionFile, FilePart, ModelEntry, ModelFile
from launcher.models.catalogue_load import figures_folder, load_catalogue, shipped_models
from launcher.models.hub_figures import (
    Difference,
    MissingFile,
    NewFigure,
    fill_from_hub_cache,
    is_on_hub,
    refresh_figures,
)

ROOT = Path(__file__).parents[2]
COMMIT = "5bc3e238d916f48a861bac2f8a1990a0e9b7e98d"
ONE, TWO = "1a" * 32, "2b" * 32


class Hub(Protocol):
    url: str
    folder: Path
    with_faults: Callable[..., str]
    requests: Callable[[], list[dict[str, Any]]]


def publish_pointers(hub: Hub, repo: str, **files: tuple[int, str]) -> None:
    """Let a repository hold files of these sizes and checksums, by pointers; two underscores are a slash."""
    for name, (size, sha256) in files.items():
        path = hub.folder / repo / f"{name.replace('__', '/')}.gguf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n")


@pytest.fixture
def repo(hub: Hub, request: pytest.FixtureRequest) -> str:
    """The name of an empty repository of this test's own."""
    name = "someone/" + re.sub(r"\W+", "-", request.node.nodeid)
    (hub.folder / name).mkdir(parents=True)
    return name


def a_model(repo: str | None, *files: ModelFile, **more: object) -> ModelEntry:
    return ModelEntry(
        id="mine", name="Mine", repo=repo, files=files or (ModelFile(quant="Q8_0", file="a.gguf"),), **more
    )


class TestFilledFigures:
    def test_size_checksum_and_their_commit_are_learned(self, hub: Hub, repo: str) -> None:
        publish_pointers(hub, repo, a=(5_868_826_976, ONE), other=(7, TWO))
        model = a_model(repo)
        result = refresh_figures(model)
        assert (result.model, result.repo, result.revision, result.differs, result.missing) == (
            "mine",
            repo,
            COMMIT,
            (),
            (),
        )
        assert result.learned == (
            NewFigure("Q8_0", "a.gguf", "size_bytes", 5_868_826_976),
            NewFigure("Q8_0", "a.gguf", "sha256", ONE),
        )
        filled = fill_from_hub_cache(model)
        assert filled.revision == COMMIT
        (file,) = filled.files
        assert (file.size_bytes, file.sha256) == (5_868_826_976, ONE)
        assert file.source == f"size and checksum by the hub at {COMMIT[:12]}"
        assert replace(filled, revision=None, files=model.files) == model

    def test_only_missing_figures_are_learned(self, hub: Hub, repo: str) -> None:
        publish_pointers(hub, repo, a=(10, ONE))
        model = a_model(repo, ModelFile(quant="Q8_0", file="a.gguf", size_bytes=10, source="a friend"))
        assert refresh_figures(model).learned == (NewFigure("Q8_0", "a.gguf", "sha256", ONE),)
        (file,) = fill_from_hub_cache(model).files
        assert (file.size_bytes, file.sha256) == (10, ONE)
        assert file.source == f"a friend; checksum by the hub at {COMMIT[:12]}"

    def test_figures_of_companion_files_are_learned(self, hub: Hub, repo: str) -> None:
        publish_pointers(hub, repo, a=(10, ONE), mmproj=(20, TWO))
        publish_pointers(hub, f"{repo}-small", small=(30, ONE))
        draft = CompanionFile(repo=f"{repo}-small", file="small.gguf")
        model = a_model(repo, speculation="draft-model", draft=draft, mmproj=(CompanionFile(file="mmproj.gguf"),))
        assert {(each.label, each.value) for each in refresh_figures(model).learned} == {
            ("Q8_0", 10),
            ("Q8_0", ONE),
            ("vision", 20),
            ("vision", TWO),
            ("draft", 30),
            ("draft", ONE),
        }
        filled = fill_from_hub_cache(model)
        assert filled.draft
        assert (filled.draft.size_bytes, filled.mmproj[0].size_bytes) == (30, 20)

    def test_figures_of_a_draft_on_the_hub_are_learned_for_a_local_model(self, hub: Hub, repo: str) -> None:
        publish_pointers(hub, repo, small=(30, ONE))
        model = a_model(None, draft=CompanionFile(repo=repo, file="small.gguf"))
        assert (refresh_figures(model).repo, refresh_figures(model).revision) == (None, None)
        filled = fill_from_hub_cache(model)
        assert filled.draft
        assert (filled.draft.size_bytes, filled.revision, filled.files) == (30, None, model.files)

    def test_figures_of_all_parts_of_a_split_model_are_learned(self, hub: Hub, repo: str) -> None:
        names = [f"BF16/big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
        for number, name in enumerate(names, 1):
            publish_pointers(hub, repo, **{name.removesuffix(".gguf").replace("/", "__"): (number, str(number) * 64)})
        model = a_model(repo, ModelFile(quant="BF16", file=names[0]))
        assert [(each.file, each.value) for each in refresh_figures(model).learned][2:4] == [
            (names[1], 2),
            (names[1], "2" * 64),
        ]
        (file,) = fill_from_hub_cache(model).files
        assert (file.size_bytes, file.sha256) == (6, None)
        assert [(part.file, part.size_bytes) for part in file.parts] == list(zip(names, (1, 2, 3), strict=True))

    def test_nothing_is_learned_of_an_incomplete_split_model(self, hub: Hub, repo: str) -> None:
        publish_pointers(hub, repo, **{"big-00001-of-00002": (1, ONE)})
        model = a_model(repo, ModelFile(quant="BF16", file="big-00001-of-00002.gguf"))
        result = refresh_figures(model)
        assert (result.learned, result.missing) == ((), (MissingFile("BF16", repo, "big-00002-of-00002.gguf"),))
        assert fill_from_hub_cache(model).files == model.files

    def test_a_pinned_revision_is_requested_and_kept(self, hub: Hub, repo: str) -> None:
        publish_pointers(hub, repo, a=(10, ONE))
        model = a_model(repo, revision="refs/pr/1")
        assert refresh_figures(model).revision == "refs/pr/1"
        assert [request["target"].split("?")[0] for request in hub.requests()] == [
            f"/api/models/{repo}/tree/refs%2Fpr%2F1"
        ]
        assert fill_from_hub_cache(model).revision == "refs/pr/1"
        assert fill_from_hub_cache(replace(model, revision=None)).files == model.files
        assert fill_from_hub_cache(replace(model, repo="someone/else")).files == model.files

    def test_the_catalogue_includes_learned_figures(self, hub: Hub, repo: str, home: Path) -> None:
        publish_pointers(hub, repo, a=(10, ONE))
        path = home / "config" / "models" / "mine.toml"
        path.parent.mkdir(parents=True)
        path.write_text(
            f'[[models]]\nid = "mine"\nname = "M"\nrepo = "{repo}"\nfiles = [{{quant="Q8_0",file="a.gguf"}}]'
        )
        refresh_figures(load_catalogue(hub_figures=False).find("mine"))
        mine = load_catalogue().find("mine")
        assert (mine.files[0].size_bytes, mine.files[0].sha256, mine.revision) == (10, ONE, COMMIT)
        assert load_catalogue(hub_figures=False).find("mine").files[0].size_bytes is None


class TestContradictingFigures:
    def test_differing_figures_are_reported_and_not_changed(self, hub: Hub, repo: str) -> None:
        publish_pointers(hub, repo, a=(17_559_178_144, ONE), b=(20, TWO))
        stated = ModelFile(quant="A", file="a.gguf", size_bytes=17_923_394_624, note="A note.")
        checked = ModelFile(quant="B", file="b.gguf", sha256=ONE)
        model = a_model(repo, stated, checked)
        result = refresh_figures(model)
        assert result.learned == ()
        assert result.differs == (
            Difference("A", "a.gguf", "size_bytes", 17_923_394_624, 17_559_178_144),
            Difference("B", "b.gguf", "sha256", ONE, TWO),
        )
        one, other = fill_from_hub_cache(model).files
        assert (one.size_bytes, one.sha256) == (17_923_394_624, None)
        assert (other.size_bytes, other.sha256) == (None, ONE)
        found = f"The hub has another file of this name at {COMMIT[:12]}:"
        assert one.note == f"A note. {found} 17,559,178,144 bytes, SHA-256 1a1a1a1a1a1a."
        assert other.note.startswith(found)

    def test_one_differing_part_leaves_all_parts_unchanged(self, hub: Hub, repo: str) -> None:
        publish_pointers(hub, repo, **{"b-00001-of-00002": (1, ONE), "b-00002-of-00002": (2, TWO)})
        parts = (FilePart(file="b-00001-of-00002.gguf", sha256=TWO), FilePart(file="b-00002-of-00002.gguf"))
        model = a_model(repo, ModelFile(quant="B", file=parts[0].file, parts=parts))
        assert refresh_figures(model).differs == (Difference("B", parts[0].file, "sha256", TWO, ONE),)
        assert fill_from_hub_cache(model).files[0].parts == parts

    def test_a_missing_file_is_reported(self, hub: Hub, repo: str) -> None:
        publish_pointers(hub, repo, a=(10, ONE))
        model = a_model(
            repo, draft=CompanionFile(file="draft.gguf", size_bytes=5), mmproj=(CompanionFile(file="m.gguf"),)
        )
        assert refresh_figures(model).missing == (
            MissingFile("draft", repo, "draft.gguf"),
            MissingFile("vision", repo, "m.gguf"),
        )
        filled = fill_from_hub_cache(model)
        assert filled.draft == model.draft
        assert filled.mmproj == model.mmproj

    def test_a_newer_upload_is_learned_again(self, hub: Hub, repo: str) -> None:
        publish_pointers(hub, repo, a=(10, ONE))
        model = a_model(repo)
        assert len(refresh_figures(model).learned) == 2
        assert refresh_figures(model).learned == ()
        publish_pointers(hub, repo, a=(11, ONE))
        assert refresh_figures(model).learned == (NewFigure("Q8_0", "a.gguf", "size_bytes", 11),)
        assert fill_from_hub_cache(model).files[0].size_bytes == 11


class TestFailure:
    @pytest.mark.parametrize("fault", ["no-json", "odd-page", "503"])
    def test_earlier_figures_are_kept_after_an_error(
        self, hub: Hub, repo: str, monkeypatch: pytest.MonkeyPatch, fault: str
    ) -> None:
        publish_pointers(hub, repo, a=(10, ONE))
        model = a_model(repo)
        refresh_figures(model)
        monkeypatch.setenv("HF_ENDPOINT", hub.with_faults(fault))
        with pytest.raises(Refused):
            refresh_figures(model)
        assert fill_from_hub_cache(model).files[0].size_bytes == 10

    def test_each_cause_has_its_error(self, repo: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ModelMissing, match="no revision v9"):
            refresh_figures(a_model(repo, revision="v9"))
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        with pytest.raises(Unreachable):
            refresh_figures(a_model(repo))
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(Offline):
            refresh_figures(a_model(repo))
        assert not figures_folder().exists()

    def test_a_local_model_is_not_looked_up(self) -> None:
        assert not is_on_hub(a_model(None))
        assert not is_on_hub(a_model(None, draft=CompanionFile(file="d.gguf")))
        assert is_on_hub(a_model("someone/mine"))
        assert is_on_hub(a_model(None, draft=CompanionFile(repo="someone/d", file="d.gguf")))


FIGURE = {"repo": "o/n", "revision": COMMIT, "file": "a.gguf", "size_bytes": 10, "sha256": ONE}
KEPT = {"repo": "o/n", "asked": None, "revision": COMMIT, "files": [FIGURE]}


def keep(value: object) -> None:
    figures_folder().mkdir(parents=True, exist_ok=True)
    (figures_folder() / "mine.json").write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())


class TestDamagedAnswer:
    def test_a_valid_cache_file_is_read(self) -> None:
        keep(KEPT)
        assert fill_from_hub_cache(a_model("o/n")).files[0].size_bytes == 10
        keep(KEPT | {"files": [FIGURE | {"sha256": None}]})
        assert fill_from_hub_cache(a_model("o/n")).files[0].sha256 is None

    @pytest.mark.parametrize(
        "value",
        [
            b"",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"repo": "o/n", "asked": null, "revision": "',
            None,
            "text",
            3,
            [],
            {},
            {"files": []},
            KEPT | {"files": None},
            KEPT | {"files": [None]},
            KEPT | {"files": [{name: FIGURE[name] for name in ("repo", "file")}]},
            KEPT | {"revision": 7},
            *(KEPT | {"files": [FIGURE, FIGURE | {"size_bytes": size}]} for size in (0, -1, True, 1.5, "10", None)),
            *(KEPT | {"files": [FIGURE | {"sha256": sha256}]} for sha256 in ("", "1A" * 32, ONE[:-1], 3)),
            *(KEPT | {"files": [FIGURE | {name: 3}]} for name in ("repo", "revision", "file")),
        ],
    )
    def test_an_invalid_cache_file_is_ignored(self, value: object) -> None:
        keep(value)
        model = a_model("o/n")
        assert fill_from_hub_cache(model) == model

    def test_an_invalid_cache_file_is_replaced_on_refresh(self, hub: Hub, repo: str) -> None:
        publish_pointers(hub, repo, a=(10, ONE))
        keep(b"{")
        refresh_figures(a_model(repo))
        assert fill_from_hub_cache(a_model(repo)).files[0].size_bytes == 10


SIZES = st.none() | st.integers(1, 3)
CHECKSUMS = st.none() | st.sampled_from([ONE, TWO])


@settings(max_examples=200, deadline=None)
@given(ours=st.tuples(SIZES, CHECKSUMS), theirs=st.tuples(st.integers(1, 3), CHECKSUMS), as_draft=st.booleans())
def test_stated_figures_are_not_changed_and_those_of_other_files_not_used(
    tmp_path_factory: pytest.TempPathFactory,
    ours: tuple[int | None, str | None],
    theirs: tuple[int, str | None],
    as_draft: bool,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "figures"
    folder.mkdir(exist_ok=True)
    figure = FIGURE | {"size_bytes": theirs[0], "sha256": theirs[1]}
    (folder / "mine.json").write_text(json.dumps(KEPT | {"files": [figure]}))
    if as_draft:
        model = a_model(
            "o/n",
            ModelFile(quant="Q", file="b.gguf"),
            draft=CompanionFile(file="a.gguf", size_bytes=ours[0], sha256=ours[1]),
        )
        entry: ModelFile | CompanionFile | None = fill_from_hub_cache(model, folder).draft
    else:
        model = a_model("o/n", ModelFile(quant="Q", file="a.gguf", size_bytes=ours[0], sha256=ours[1]))
        entry = fill_from_hub_cache(model, folder).files[0]
    assert entry
    same = all(None in pair or pair[0] == pair[1] for pair in zip(ours, theirs, strict=True))
    expected = (ours[0] or theirs[0], ours[1] or theirs[1]) if same else ours
    assert (entry.size_bytes, entry.sha256) == expected


class TestShippedCatalogue:
    @pytest.fixture
    def answered(self) -> None:
        """The hub has reported every model, with all sizes and checksums that were unknown."""
        for model in shipped_models():
            if model.repo:
                names = [part.file for file in model.files for part in file.parts or (file,)]
                names += [each.file for each in (*model.mmproj, *filter(None, [model.draft]))]
                figures = [FIGURE | {"repo": model.repo, "file": name} for name in names]
                kept = {"repo": model.repo, "asked": model.revision, "revision": COMMIT, "files": figures}
                figures_folder().mkdir(parents=True, exist_ok=True)
                (figures_folder() / f"{model.id}.json").write_text(json.dumps(kept))

    @pytest.mark.usefixtures("answered")
    def test_cached_figures_need_neither_network_nor_pydantic(self) -> None:
        code = (
            "import sys; from launcher.models.catalogue_load import load_catalogue\n"
            "print(load_catalogue().find('qwen3.8-27b').revision, 'httpx' in sys.modules, 'pydantic' in sys.modules)"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        assert result.stdout == f"{COMMIT} False False\n"
