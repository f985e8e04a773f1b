"""Models that are named by their repository on the hub."""

import asyncio
import shutil
from pathlib import Path

import pytest

from launcher.app.planning.model_source import read_source
from launcher.base.errors import BadOption, LauncherError, ModelMissing, Offline
from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import load_catalogue
from launcher.models.download_target import parse_target
from launcher.models.hub_model import HubName, parse_hub_name, select_hub_model
from launcher.models.locate import find_named
from launcher.models.plan import PlanCriteria, Status, make_plans
from launcher.models.pull import pull_model
from launcher.models.situation import describe_machine
from tests.conftest import Hub
from tests.models.tiny_models import write_decoder

REPO = "someone/Any-GGUF"
COMMIT = "5bc3e238d916f48a861bac2f8a1990a0e9b7e98d"
PAGE = "https://huggingface.co/someone/Any-GGUF"
MOE_REPO = "unsloth/Qwen3.6-35B-A3B-MTP-GGUF"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (REPO, HubName(REPO)),
        (f"{REPO}:Q4_K_M", HubName(REPO, quant="Q4_K_M")),
        (f"{REPO}@v1:Q4_K_M", HubName(REPO, "v1", quant="Q4_K_M")),
        (f"{REPO}:sub/any-Q8_0.gguf", HubName(REPO, file="sub/any-Q8_0.gguf")),
        (PAGE, HubName(REPO)),
        (f"{PAGE}?show_file_info=any.gguf", HubName(REPO)),
        (f" {PAGE}/tree/main ", HubName(REPO)),
        (f"{PAGE}/blob/main/any-Q8_0.gguf", HubName(REPO, file="any-Q8_0.gguf")),
        (f"{PAGE}/resolve/{COMMIT}/any-Q8_0.gguf", HubName(REPO, COMMIT, "any-Q8_0.gguf")),
        (f"hf.co/{REPO}:Q4_K_M", HubName(REPO, quant="Q4_K_M")),
        (f"huggingface.co/{REPO}", HubName(REPO)),
        ("https://example.com/someone/Any-GGUF", None),
        ("https://huggingface.co/", None),
        ("folder/any.gguf", None),
        ("qwen3.5-9b-mtp", None),
        ("never heard of", None),
        ("", None),
    ],
)
def test_copied_names_and_links_are_parsed(text: str, wanted: HubName | None) -> None:
    assert parse_hub_name(text) == wanted


def test_an_existing_folder_is_not_taken_as_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some" / "folder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_hub_name("some/folder") is None


@pytest.fixture
def repository(hub: Hub, demo_model: Path) -> Path:
    """A repository with a model in three files of one content, a projector, and what is no model."""
    folder = hub.folder / "someone" / "Any-GGUF"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("any-Q8_0.gguf", "any-Q4_K_M.gguf", "any-IQ2_M.gguf", "mmproj-F16.gguf"):
        shutil.copy(demo_model, folder / name)
    (folder / "README.md").write_text("a model")
    return folder


@pytest.mark.usefixtures("repository")
def test_a_repository_has_an_entry_with_its_files_and_one_header(hub: Hub, demo_model: Path) -> None:
    selection = select_hub_model(REPO, load_catalogue())
    assert selection is not None
    entry, size = selection.entry, demo_model.stat().st_size
    assert (entry.id, entry.repo, entry.revision) == (REPO, REPO, COMMIT)
    assert {file.quant: file.size_bytes for file in entry.files} == {"Q8_0": size, "Q4_K_M": size, "IQ2_M": size}
    assert all(file.sha256 and file.has_head for file in entry.files)
    assert [each.file for each in entry.mmproj] == ["mmproj-F16.gguf"]
    assert entry.geometry is not None
    assert (selection.file, selection.path) == (None, None)
    read = {str(each["target"]) for each in hub.requests() if each["method"] == "GET" and each["server"] == "store"}
    assert len(read) == 1
    assert "any-Q4_K_M.gguf" in read.pop()


@pytest.mark.usefixtures("repository")
def test_a_quantisation_is_planned_exactly() -> None:
    selection = select_hub_model(f"{REPO}:q8_0", load_catalogue())
    assert selection is not None
    assert selection.file is not None
    assert selection.file.quant == "Q8_0"
    (plan,) = make_plans(selection.catalogue, describe_machine((8,)), PlanCriteria(REPO, quant="Q8_0"))
    assert plan.estimate.weights_exact
    assert plan.status is Status.FITS
    assert "MTP is off: no gain is expected from it here." in plan.reasons  # of so small a model


@pytest.mark.usefixtures("repository")
def test_an_unknown_quantisation_is_reported() -> None:
    with pytest.raises(ModelMissing) as missing:
        select_hub_model(f"{REPO}:Q5_K_M", load_catalogue())
    assert missing.value.facts["files"] == ["IQ2_M", "Q4_K_M", "Q8_0"]
    with pytest.raises(ModelMissing):
        select_hub_model(f"{REPO}:other.gguf", load_catalogue())
    with pytest.raises(LauncherError):
        select_hub_model("someone/else", load_catalogue())


def test_a_split_model_has_the_exact_weights_of_all_parts(hub: Hub, tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    write_decoder(whole, architecture="qwen3")
    folder = hub.folder / "someone" / "Split-GGUF"
    folder.mkdir(parents=True, exist_ok=True)
    split_in_two(whole, folder)
    selection = select_hub_model("someone/Split-GGUF", load_catalogue())
    assert selection is not None
    (file,) = selection.entry.files
    assert (file.quant, len(file.parts)) == ("Q8_0", 2)
    (plan,) = make_plans(selection.catalogue, describe_machine((8,)), PlanCriteria("someone/Split-GGUF"))
    assert plan.estimate.weights_exact


def split_in_two(whole: Path, folder: Path) -> None:
    """Split a file as llama.cpp's gguf-split does."""
    from gguf import GGUFReader, GGUFWriter

    reader = GGUFReader(whole)
    tensors = reader.tensors
    half = len(tensors) // 2
    for number, its in enumerate((tensors[:half], tensors[half:])):
        writer = GGUFWriter(folder / f"split-Q8_0-{number + 1:05}-of-00002.gguf", "qwen3")
        for name, value in (("split.no", number), ("split.count", 2)):
            writer.add_uint16(name, value)
        writer.add_int32("split.tensors.count", len(tensors))
        if not number:
            for field in reader.fields.values():
                key = field.name
                if key.startswith("GGUF.") or key == "general.architecture":
                    continue
                writer.add_key_value(
                    key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None
                )
        for tensor in its:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def test_a_repository_of_the_catalogue_is_its_entry_without_a_request(hub: Hub) -> None:
    catalogue = load_catalogue()
    for text in (MOE_REPO, MOE_REPO.lower(), f"https://huggingface.co/{MOE_REPO}"):
        selection = select_hub_model(text, catalogue)
        assert selection is not None
        assert selection.entry.id == "qwen3.6-35b-a3b-mtp"
    selection = select_hub_model(f"{MOE_REPO}:ud-q3_k_xl", catalogue)
    assert selection is not None
    assert selection.file is not None
    assert selection.file.quant == "UD-Q3_K_XL"
    assert hub.requests() == []


@pytest.mark.usefixtures("repository")
def test_without_a_network_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Offline):
        select_hub_model(REPO, Catalogue(()))


def test_a_downloaded_quantisation_is_found_by_its_repository(hub: Hub, repository: Path) -> None:
    target = parse_target(f"{REPO}:Q8_0", load_catalogue())
    pulled = asyncio.run(pull_model(target))
    named = find_named(f"{REPO}:q8_0", load_catalogue())
    assert named is not None
    assert named.path == pulled.files[0].path
    hub.requests()
    selection = select_hub_model(f"{REPO}:Q8_0", load_catalogue())
    assert selection is not None
    assert selection.path == named.path
    assert hub.requests() == []
    missing = find_named(f"{REPO}:Q4_K_M", load_catalogue())
    assert missing is not None
    assert missing.local is None
    by_repo = find_named(f"{MOE_REPO}:ud-q3_k_xl", load_catalogue())
    assert by_repo is not None
    assert by_repo.entry is not None
    assert by_repo.entry.id == "qwen3.6-35b-a3b-mtp"


@pytest.mark.usefixtures("repository")
def test_estimate_accepts_the_same_names(hub: Hub) -> None:
    size = read_source(f"{REPO}:any-Q8_0.gguf").model.file_bytes
    for text in (f"{REPO}:q8_0", f"{hub.url}/{REPO}/blob/main/any-Q8_0.gguf"):
        assert read_source(text).model.file_bytes == size
    with pytest.raises(BadOption):
        read_source(REPO)
