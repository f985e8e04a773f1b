"""Parsing of the model, file or address that a user wants to download."""

from dataclasses import replace
from pathlib import Path
from typing import Any

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


def only_file(target: DownloadTarget) -> DownloadFile:
    ((file,),) = [item.files for item in target.items]
    return file


@pytest.fixture(autouse=True)
def real_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the hub's real address; these tests send no request to it."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)


class TestCatalogueModel:
    def test_has_the_pinned_revision_and_checksum(self) -> None:
        assert XL is not None
        target = parse_target("Qwen3.6-35B-A3B-MTP:ud-q3_k_xl", CATALOGUE)
        file = only_file(target)
        assert target.label == "qwen3.6-35b-a3b-mtp:UD-Q3_K_XL"
        assert (target.entry, target.file, target.pinned_by) == (MTP, XL, "catalogue")
        assert file.hub == HubFile(MTP.repo or "", XL.file, MTP.revision or "")
        assert (file.bytes, file.sha256) == (XL.size_bytes, XL.sha256)
        assert target.bytes == XL.size_bytes

    def test_another_revision_is_not_pinned(self) -> None:
        target = parse_target("qwen3.6-35b-a3b-mtp:UD-Q3_K_XL", CATALOGUE, revision="main")
        file = only_file(target)
        assert file.hub
        assert (file.hub.revision, file.bytes, file.sha256, target.pinned_by) == ("main", None, None, None)

    def test_split_model_has_all_parts(self) -> None:
        (item,) = parse_target("qwen3.6-35b-a3b-mtp:BF16", CATALOGUE).items
        assert [file.bytes for file in item.files] == [49_913_715_456, 21_152_227_104]
        assert {file.name.split("/")[0] for file in item.files} == {"BF16"}

    def test_required_draft_is_included(self) -> None:
        model, draft = parse_target("gemma-4-31b:IQ4_XS", CATALOGUE).items
        assert (model.kind, draft.kind) == ("model", "draft")
        assert draft.files[0].name == "mtp-gemma-4-31B-it.gguf"
        assert draft.files[0].bytes == 514_687_104

    def test_projector_is_included_on_request(self) -> None:
        model, vision = parse_target("qwen3.6-35b-a3b-mtp:UD-Q3_K_XL", CATALOGUE, vision=True).items
        assert (vision.kind, vision.files[0].name) == ("mmproj", "mmproj-F16.gguf")
        model_by_address, _ = parse_target(f"{MTP.repo}:{XL.file if XL else ''}", CATALOGUE, vision=True).items
        assert model_by_address.files[0].name == model.files[0].name

    def test_draft_from_another_repository_has_its_newest_revision(self) -> None:
        draft = CompanionFile(file="small.gguf", repo="other/Small", size_bytes=7)
        model = replace(MTP, id="drafted", speculation="draft-model", draft=draft)
        file = parse_target("drafted:UD-Q3_K_XL", Catalogue((model,))).items[1].files[0]
        assert file.hub == HubFile("other/Small", "small.gguf", "main")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("qwen3.6-35b-a3b-mtp", "does not name a file"),
            ("qwen3.6-35b-a3b-mtp:Q9", "has no Q9"),
            ("nobody-knows-it", "has no model"),
            ("demo:F16", "is not on Hugging Face"),
        ],
    )
    def test_unavailable_target_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(LauncherError, match=message):
            parse_target(text, CATALOGUE)

    def test_name_of_a_model_or_file_is_found(self) -> None:
        assert find_catalogue_model("qwen3.6-35b-a3b-mtp", CATALOGUE) == (MTP, None)
        assert find_catalogue_model("qwen3.6-35b-a3b-mtp:UD-Q3_K_XL", CATALOGUE) == (MTP, XL)
        for text in ("x.gguf", "a/b:c.gguf", "/models/x.gguf", "https://x/y.gguf", ""):
            assert find_catalogue_model(text, CATALOGUE) is None
        with pytest.raises(ModelUnknown):
            find_catalogue_model("x", CATALOGUE)


class TestHubFile:
    @pytest.mark.parametrize(
        ("text", "file"),
        [
            ("a/b:x.gguf", HubFile("a/b", "x.gguf")),
            ("a/b@v1:dir/x.gguf", HubFile("a/b", "dir/x.gguf", "v1")),
            ("https://huggingface.co/a/b/resolve/main/x.gguf?download=true", HubFile("a/b", "x.gguf")),
            ("https://huggingface.co/a/b/blob/v1/dir/x%20y.gguf", HubFile("a/b", "dir/x y.gguf", "v1")),
        ],
    )
    def test_forms_are_parsed(self, text: str, file: HubFile) -> None:
        target = parse_target(text, CATALOGUE)
        assert only_file(target).hub == file
        assert target.entry is None

    def test_catalogue_checksum_is_known_but_not_pinned(self) -> None:
        assert XL is not None
        target = parse_target(f"{MTP.repo}:{XL.file}", CATALOGUE)
        assert (target.entry, target.file, target.pinned_by) == (MTP, XL, None)
        assert only_file(target).sha256 == XL.sha256
        assert only_file(parse_target(f"{MTP.repo}@v1:{XL.file}", CATALOGUE)).sha256 is None

    def test_checksum_of_the_user_is_pinned(self) -> None:
        target = parse_target("a/b:x.gguf", CATALOGUE, sha256=SHA256)
        assert (only_file(target).sha256, target.pinned_by) == (SHA256, "user")

    @pytest.mark.parametrize(("name", "kind"), [("mmproj-F16.gguf", "mmproj"), ("mtp-x.gguf", "draft")])
    def test_companion_file_is_recognised_by_name(self, name: str, kind: str) -> None:
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
    def test_contradicting_options_are_refused(self, text: str, options: dict[str, object]) -> None:
        with pytest.raises(BadOption):
            parse_target(text, CATALOGUE, **options)  # type: ignore[arg-type]


class TestAddress:
    def test_checksum_is_required(self) -> None:
        with pytest.raises(BadOption, match=r"no checksum for the file from models\.example"):
            parse_target("https://models.example/x.gguf", CATALOGUE)
        target = parse_target("https://models.example/a/x%3Ay.gguf?sig=1", CATALOGUE, sha256=SHA256)
        file = only_file(target)
        assert (file.name, file.url) == ("x_y.gguf", "https://models.example/a/x%3Ay.gguf?sig=1")
        assert local_target(file, target.folder, to=None) == models_dir() / "models.example" / "x_y.gguf"

    @pytest.mark.parametrize("given", [{"vision": True}, {"drafter": "draft-dflash"}, {"revision": "v1"}])
    def test_what_needs_a_repository_is_refused(self, given: dict[str, Any]) -> None:
        with pytest.raises(BadOption, match=rf"--{next(iter(given))} does not work with an address"):
            parse_target("https://models.example/a/x.gguf", CATALOGUE, sha256=SHA256, **given)

    @pytest.mark.parametrize(
        "url", ["ftp://a/x.gguf", "https:///x.gguf", "https://a/", "https://a/..", "https://a/x.zip"]
    )
    def test_invalid_address_is_refused(self, url: str) -> None:
        with pytest.raises(BadOption):
            parse_target(url, CATALOGUE, sha256=SHA256)


@pytest.mark.parametrize(
    ("name", "inside"),
    [("BF16/x.gguf", "a/b/BF16/x.gguf"), ("con/x.gguf", "a/b/_con/x.gguf"), ("x./y.gguf", "a/b/x_/y.gguf")],
)
def test_a_local_path_is_parsed(name: str, inside: str) -> None:
    file = DownloadFile(name, HubFile("a/b", name))
    assert local_target(file, Path("/m"), to=None) == Path("/m") / inside
    assert local_target(file, Path("/m"), to=Path("/to")) == Path("/to") / name.rpartition("/")[2]
