"""Parsing what a user wants to download."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.errors import BadOption, LauncherError, ModelUnknown
from launcher.base.paths import models_dir
from launcher.fetch.hub import HubFile
from launcher.models.catalogue import Catalogue, CompanionFile
from launcher.models.catalogue_load import shipped_models
from launcher.models.download_target import (
    DownloadFile,
    DownloadTarget,
    find_catalogue_model,
    local_target,
    parse_target,
)

CATALOGUE = Catalogue(tuple(shipped_models()))
MTP = CATALOGUE.find("qwen3.6-35b-a3b-mtp")
XL = MTP.file("UD-Q3_K_XL")
SHA256 = "5" * 64


def only_piece(meant: DownloadTarget) -> DownloadFile:
    ((piece,),) = [item.files for item in meant.items]
    return piece


@pytest.fixture(autouse=True)
def real_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own address, which nothing here asks."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)


class TestAModelOfTheCatalogue:
    def test_it_is_what_the_catalogue_pins(self) -> None:
        assert XL is not None
        meant = parse_target("Qwen3.6-35B-A3B-MTP:ud-q3_k_xl", CATALOGUE)
        piece = only_piece(meant)
        assert meant.label == "qwen3.6-35b-a3b-mtp:UD-Q3_K_XL"
        assert (meant.entry, meant.file, meant.pinned_by) == (MTP, XL, "catalogue")
        assert piece.hub == HubFile(MTP.repo or "", XL.file, MTP.revision or "")
        assert (piece.bytes, piece.sha256) == (XL.size_bytes, XL.sha256)
        assert meant.bytes == XL.size_bytes

    def test_another_revision_is_the_users_choice(self) -> None:
        meant = parse_target("qwen3.6-35b-a3b-mtp:UD-Q3_K_XL", CATALOGUE, revision="main")
        piece = only_piece(meant)
        assert piece.hub
        assert (piece.hub.revision, piece.bytes, piece.sha256, meant.pinned_by) == ("main", None, None, None)

    def test_all_parts_of_a_split_model(self) -> None:
        (item,) = parse_target("qwen3.6-35b-a3b-mtp:BF16", CATALOGUE).items
        assert [piece.bytes for piece in item.files] == [49_913_715_456, 21_152_227_104]
        assert {piece.name.split("/")[0] for piece in item.files} == {"BF16"}

    def test_the_draft_that_it_cannot_do_without(self) -> None:
        model, draft = parse_target("gemma-4-31b:IQ4_XS", CATALOGUE).items
        assert (model.kind, draft.kind) == ("model", "draft")
        assert draft.files[0].name == "mtp-gemma-4-31B-it.gguf"
        assert draft.files[0].bytes == 514_687_104

    def test_its_projector_if_asked_for(self) -> None:
        model, vision = parse_target("qwen3.6-35b-a3b-mtp:UD-Q3_K_XL", CATALOGUE, vision=True).items
        assert (vision.kind, vision.files[0].name) == ("mmproj", "mmproj-F16.gguf")
        (file, _), hub = parse_target(f"{MTP.repo}:{XL.file if XL else ''}", CATALOGUE, vision=True).items, model
        assert file.files[0].name == hub.files[0].name

    def test_a_draft_from_another_repository_is_its_newest(self) -> None:
        draft = CompanionFile(file="small.gguf", repo="other/Small", size_bytes=7)
        model = replace(MTP, id="drafted", speculation="draft-model", draft=draft)
        piece = parse_target("drafted:UD-Q3_K_XL", Catalogue((model,))).items[1].files[0]
        assert piece.hub == HubFile("other/Small", "small.gguf", "main")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("qwen3.6-35b-a3b-mtp", "does not name a file"),
            ("qwen3.6-35b-a3b-mtp:Q9", "has no Q9"),
            ("nobody-knows-it", "has no model"),
            ("demo:F16", "is not on Hugging Face"),
        ],
    )
    def test_what_cannot_be_pulled(self, text: str, message: str) -> None:
        with pytest.raises(LauncherError, match=message):
            parse_target(text, CATALOGUE)

    def test_a_name_for_a_model_or_its_file(self) -> None:
        assert find_catalogue_model("qwen3.6-35b-a3b-mtp", CATALOGUE) == (MTP, None)
        assert find_catalogue_model("qwen3.6-35b-a3b-mtp:UD-Q3_K_XL", CATALOGUE) == (MTP, XL)
        for text in ("x.gguf", "a/b:c.gguf", "/models/x.gguf", "https://x/y.gguf", ""):
            assert find_catalogue_model(text, CATALOGUE) is None
        with pytest.raises(ModelUnknown):
            find_catalogue_model("x", CATALOGUE)


class TestAFileOfTheHub:
    @pytest.mark.parametrize(
        ("text", "file"),
        [
            ("a/b:x.gguf", HubFile("a/b", "x.gguf")),
            ("a/b@v1:dir/x.gguf", HubFile("a/b", "dir/x.gguf", "v1")),
            ("https://huggingface.co/a/b/resolve/main/x.gguf?download=true", HubFile("a/b", "x.gguf")),
            ("https://huggingface.co/a/b/blob/v1/dir/x%20y.gguf", HubFile("a/b", "dir/x y.gguf", "v1")),
        ],
    )
    def test_it_is_read(self, text: str, file: HubFile) -> None:
        meant = parse_target(text, CATALOGUE)
        assert only_piece(meant).hub == file
        assert meant.entry is None

    def test_the_catalogues_figures_are_known_but_not_insisted_on(self) -> None:
        assert XL is not None
        meant = parse_target(f"{MTP.repo}:{XL.file}", CATALOGUE)
        assert (meant.entry, meant.file, meant.pinned_by) == (MTP, XL, None)
        assert only_piece(meant).sha256 == XL.sha256
        assert only_piece(parse_target(f"{MTP.repo}@v1:{XL.file}", CATALOGUE)).sha256 is None

    def test_a_checksum_of_the_users_is_insisted_on(self) -> None:
        meant = parse_target("a/b:x.gguf", CATALOGUE, sha256=SHA256)
        assert (only_piece(meant).sha256, meant.pinned_by) == (SHA256, "user")

    @pytest.mark.parametrize(("name", "kind"), [("mmproj-F16.gguf", "mmproj"), ("mtp-x.gguf", "draft")])
    def test_what_goes_beside_a_model_is_known_by_its_name(self, name: str, kind: str) -> None:
        assert [item.kind for item in parse_target(f"a/b:{name}", CATALOGUE).items] == [kind]

    @pytest.mark.parametrize(
        ("text", "options"),
        [
            ("a/b:README.md", {}),
            ("a/b@v1:x.gguf", {"revision": "main"}),
            ("a/b:x.gguf", {"sha256": "5"}),
            ("a/b:x-00001-of-00002.gguf", {"sha256": SHA256}),
            ("a/b:x.gguf", {"vision": True}),
            ("a/b:../x.gguf", {}),
            ("qwen3.6-35b-a3b-mtp:UD-Q3_K_XL", {"sha256": SHA256}),
        ],
    )
    def test_what_contradicts_itself(self, text: str, options: dict[str, object]) -> None:
        with pytest.raises(BadOption):
            parse_target(text, CATALOGUE, **options)  # type: ignore[arg-type]


class TestAnAddress:
    def test_it_needs_a_checksum(self) -> None:
        with pytest.raises(BadOption, match=r"no checksum for the file from models\.example"):
            parse_target("https://models.example/x.gguf", CATALOGUE)
        meant = parse_target("https://models.example/a/x%3Ay.gguf?sig=1", CATALOGUE, sha256=SHA256)
        piece = only_piece(meant)
        assert (piece.name, piece.url) == ("x_y.gguf", "https://models.example/a/x%3Ay.gguf?sig=1")
        assert local_target(piece, meant.folder, to=None) == models_dir() / "models.example" / "x_y.gguf"

    @pytest.mark.parametrize(
        "url", ["ftp://a/x.gguf", "https:///x.gguf", "https://a/", "https://a/..", "https://a/x.zip"]
    )
    def test_one_that_cannot_be(self, url: str) -> None:
        with pytest.raises(BadOption):
            parse_target(url, CATALOGUE, sha256=SHA256)


@pytest.mark.parametrize(
    ("name", "inside"),
    [("BF16/x.gguf", "a/b/BF16/x.gguf"), ("con/x.gguf", "a/b/_con/x.gguf"), ("x./y.gguf", "a/b/x_/y.gguf")],
)
def test_where_a_file_goes(name: str, inside: str) -> None:
    piece = DownloadFile(name, HubFile("a/b", name))
    assert local_target(piece, Path("/m"), to=None) == Path("/m") / inside
    assert local_target(piece, Path("/m"), to=Path("/to")) == Path("/to") / name.rpartition("/")[2]
