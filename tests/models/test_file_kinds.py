"""A GGUF file is what its header says: files that are mistaken for models are told apart, and named."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.app.models.model_library import LibraryFile, LibraryModel
from launcher.app.planning.model_source import read_source
from launcher.app.planning.named_plans import plan_named, select_named
from launcher.app.planning.planner import MachineDescription
from launcher.app.planning.start_settings import resolve_start
from launcher.app.serving.servable_models import list_servable_models
from launcher.base.errors import LauncherError, ModelBroken, ModelMissing, ModelUnexpected
from launcher.base.paths import models_dir
from launcher.fetch.transfer import TransferSettings
from launcher.gui.models.row_text import describe_model
from launcher.gui.models.text import quant_text
from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import load_catalogue
from launcher.models.download_target import parse_target
from launcher.models.file_kinds import KINDS, recognise_bytes, recognise_file, recognise_name
from launcher.models.gguf import read_header, read_model
from launcher.models.hub_model import select_hub_model
from launcher.models.library import find_stored, list_found, list_library
from launcher.models.library_index import edit_index
from launcher.models.locate import select_file
from launcher.models.plan import PlanCriteria
from launcher.models.pull import pull_model
from launcher.models.situation import describe_machine
from tests import forked
from tests.conftest import Hub
from tests.models.odd_files import TRUNK, write_draft, write_odd
from tests.models.tiny_models import write_bert, write_decoder

NOTHING = Catalogue(())
QUICK = TransferSettings(attempts=1)
IMATRIX = {"general.type": "imatrix", "imatrix.datasets": ["calibration.txt"], "imatrix.chunk_count": 100}
LORA = {"general.type": "adapter", "adapter.type": "lora"}


@pytest.fixture(autouse=True)
def _no_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


HEADERS = [
    ("lora", "llama", LORA, ("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"), 0),
    ("lora", "qwen3", {}, ("blk.0.attn_q.weight.lora_a",), 0),
    ("control-vector", "controlvector", {"controlvector.model_hint": "llama"}, ("direction.1",), 0),
    ("imatrix", None, IMATRIX, ("blk.0.attn_q.weight.in_sum2", "blk.0.attn_q.weight.counts"), 0),
    ("imatrix", "imatrix", {}, ("blk.0.attn_q.weight.in_sum2",), 0),
    ("mmproj", "clip", {}, ("v.patch_embd.weight",), 0),
    ("mmproj", "qwen2vl", {"general.type": "mmproj"}, ("v.patch_embd.weight",), 0),
    ("mtp-head", "gemma4-assistant", {}, TRUNK, 64),
    ("mtp-head", "gemma5-assistant", {}, TRUNK, 64),
    ("mtp-head", "qwen36-mtp", {"qwen36-mtp.block_count": 1}, ("blk.0.attn_q.weight",), 0),
    ("eagle3", "eagle3", {}, TRUNK, 64),
    ("dflash", "dflash", {}, TRUNK, 0),
    ("dflash", "dflash-draft", {}, ("blk.0.attn_q.weight",), 0),
    ("dspark", "dspark", {}, TRUNK, 64),
    ("lilicorr", "lilicorr", {}, TRUNK, 64),
    ("draft", "medusa", {}, TRUNK, 64),
    ("draft", "llama-speculator", {}, TRUNK, 64),
    ("vocabulary", "llama", {}, (), 64),
    ("image-model", "flux", {}, ("double_blocks.0.img_attn.qkv.weight",), 0),
    ("image-model", "qwen_image", {}, TRUNK, 0),
    ("image-model", "wan", {}, ("blocks.0.self_attn.q.weight",), 0),
    ("image-model", "flux2-dev", {}, ("double_blocks.0.img_attn.qkv.weight",), 0),
    ("image-model", None, {}, ("model.diffusion_model.input_blocks.0.0.weight",), 0),
    *(("diffusion-language-model", name, {}, TRUNK, 64) for name in ("dream", "llada", "llada-moe", "diffusion-gemma")),
    ("diffusion-language-model", "newer-than-us", {"diffusion.shift_logits": "x"}, TRUNK, 64),
    ("speech-recognition", "whisper", {}, ("encoder.conv1.weight",), 0),
    ("speech-recognition", "parakeet", {}, ("encoder.layers.0.conv.weight",), 0),
    ("speech-recognition", "some-asr", {}, ("encoder.0.weight",), 0),
    ("speech-synthesis", "kokoro", {}, ("kokoro.albert.embd",), 0),
    ("speech-synthesis", "wavtokenizer-dec", {}, ("token_embd.weight", "convnext.0.dw.weight"), 0),
    ("speech-synthesis", "outetts-vocoder", {}, ("decoder.0.weight",), 0),
    ("text-encoder", "t5encoder", {}, ("token_embd.weight", "enc.blk.0.attn_q.weight"), 64),
    ("empty", "llama", {}, (), 0),
    ("nameless", None, {}, TRUNK, 64),
    ("no-language-model", "alphafold", {}, ("evoformer.0.weight",), 0),
]


@pytest.mark.parametrize(("kind", "architecture", "values", "tensors", "words"), HEADERS)
def test_a_header_says_what_the_file_is(
    tmp_path: Path,
    kind: str,
    architecture: str | None,
    values: dict[str, str],
    tensors: tuple[str, ...],
    words: int,
) -> None:
    path = write_odd(tmp_path / "some-Q4_K_M.gguf", architecture, values, tensors, words=words)
    found = recognise_file(read_model(path))
    assert found is not None
    assert found.name == kind
    for refused in (lambda: select_file(path, NOTHING), lambda: read_source(str(path))):
        with pytest.raises(ModelUnexpected) as error:
            refused()
        assert error.value.title == f"some-Q4_K_M.gguf is {found.what}."
        assert error.value.hint == found.cure
    with pytest.raises(ModelUnexpected):
        asyncio.run(resolve_start(str(path)))


def test_models_are_models(tmp_path: Path, demo_model: Path, headless_model: Path) -> None:
    write_bert(tmp_path / "bert.gguf")
    for architecture in ("stablelm", "qwen3", "dia-llm", "wan-llm", "qwen9-asr", "cosmos-reason"):  # or newer than us
        write_decoder(tmp_path / f"{architecture}.gguf", architecture=architecture)
    write_decoder(tmp_path / "embedding.gguf", architecture="qwen3", embedding=True)
    for path in (demo_model, headless_model, *tmp_path.glob("*.gguf")):
        assert recognise_file(read_model(path)) is None, path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mtp-gemma-4-31B-it.gguf", "mtp-head"),
        ("MTP/mtp-x-Q8_0.gguf", "mtp-head"),
        ("gemma-4-E2B-it-assistant-Q8_0.gguf", "mtp-head"),
        ("dflash-Qwen3.6-27B-Q4_K_M.gguf", "dflash"),
        ("Qwen3.6-27B-DFlash-IQ4_XS.gguf", "dflash"),
        ("eagle3-gpt-oss-20b-BF16.gguf", "eagle3"),
        ("Llama-3.1-8B-EAGLE-3-Q4_K_M.gguf", "eagle3"),
        ("dspark-x.gguf", "dspark"),
        ("mmproj-F16.gguf", "mmproj"),
        ("model.mmproj-q8_0.gguf", "mmproj"),
        ("imatrix_unsloth.gguf", "imatrix"),
        ("google_gemma-3-12b-it-imatrix.gguf", "imatrix"),
        ("x-lora-F16.gguf", "lora"),
        ("ggml-vocab-llama-bpe.gguf", "vocabulary"),
        ("Qwen3.6-27B-MTP-Q4_K_M.gguf", None),
        ("My-Assistant-7B-Q4_K_M.gguf", None),
        ("x-Q4_K_M-imatrix.gguf", None),
        ("Eagle2-9B-Q4_K_M.gguf", None),
        ("Qwen2.5-Coder-0.5B-DRAFT-Q4_0.gguf", None),
        ("sha256-0123", None),
    ],
)
def test_a_name_is_a_hint(name: str, kind: str | None) -> None:
    found = recognise_name(name)
    assert (found.name if found else None) == kind


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n", "it is a pointer of Git LFS"),
        (b"<!DOCTYPE html><html></html>", "it is a page of text"),
        (b'\n  <?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "it is a page of text"),
        (b'{"error":"Repository not found"}', "it is a page of text"),
        (b"Invalid username or password.", "it is a page of text"),
        (b"tjgg\x03\0\0\0" + bytes(64), "it is in the format that llama.cpp used before GGUF"),
        (b"lmgg" + bytes(64), "it is in the format that llama.cpp used before GGUF"),
        (b"algg\x01\0\0\0" + bytes(64), "it is a LoRA adapter"),
        (b"\x40\0\0\0\0\0\0\0" + b'{"__metadata__":{"format":"pt"}}', "it is a safetensors file"),
        (b"PK\x03\x04" + bytes(26) + b"archive/data.pkl" + bytes(64), "it holds weights of PyTorch"),
        (b"PK\x03\x04" + bytes(26) + b"photos/beach.jpg" + bytes(64), "it is packed"),
        (bytes(4_096), "it begins with zeros"),
        (b"\x1f\x8b\x08" + bytes(64), "it is packed"),
        (b"GGU", "it begins with 47 47 55"),
        (b"", "it is empty"),
    ],
)
def test_the_first_bytes_say_what_is_no_gguf(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "saved.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelBroken) as broken:
        read_header(path)
    assert broken.value.title.startswith(f"saved.gguf is not a GGUF file: {what}")
    assert broken.value.hint


def test_ggufs_are_not_recognised_as_other_files() -> None:
    assert recognise_bytes(b"GGUF\x03\0\0\0" + bytes(64)) is None


def test_each_kind_has_a_sentence_and_a_cure() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind.sentence == f"This is {kind.what}. {kind.cure}"
        assert kind.cure.endswith(".")


class TestLibrary:
    def test_files_are_listed_for_what_they_are_and_never_served(self) -> None:
        folder = models_dir() / "someone" / "Odd-GGUF"
        write_draft(folder / "plain-Q4_K_M.gguf")
        write_odd(folder / "other-Q8_0.gguf", None, IMATRIX, ("blk.0.attn_q.weight.in_sum2",))
        write_odd(folder / "small-F16.gguf", "llama", LORA, ("blk.0.attn_q.weight.lora_a",))
        write_decoder(folder / "mtp-model-F16.gguf", architecture="qwen3")  # in spite of its name
        (folder / "page-Q4_0.gguf").write_bytes(b"<html>Sign in</html>")
        kinds = {each.path.name: (each.record.kind, each.record.file_kind) for each in list_library(NOTHING).models}
        assert kinds == {
            "plain-Q4_K_M.gguf": ("draft", "eagle3"),
            "other-Q8_0.gguf": ("other", "imatrix"),
            "small-F16.gguf": ("other", "lora"),
            "mtp-model-F16.gguf": ("model", "model"),
            "page-Q4_0.gguf": ("model", "model"),  # that is all its name says
        }
        assert [each.path.name for each in list_servable_models()[1:]] == ["mtp-model-F16.gguf"]

    def test_a_record_of_an_earlier_version_is_read_again(self) -> None:
        path = write_draft(models_dir() / "plain-Q4_K_M.gguf", "dflash")
        list_library(NOTHING)
        with edit_index() as index:
            index.records[:] = [replace(each, kind="model", file_kind=None) for each in index.records]
        (local,) = list_library(NOTHING).models
        assert (local.path, local.record.kind, local.record.file_kind) == (path, "draft", "dflash")


class TestHub:
    @pytest.fixture
    def folder(self, hub: Hub) -> Iterator[Path]:
        """A repository with two quants of a model, beside which others lie."""
        folder = hub.folder / "someone" / "Beside-GGUF"
        folder.mkdir(parents=True)
        write_decoder(folder / "any-Q8_0.gguf", architecture="qwen3")
        shutil.copy(folder / "any-Q8_0.gguf", folder / "any-Q4_K_M.gguf")
        yield folder
        shutil.rmtree(folder)

    @pytest.mark.parametrize("draft", ["dflash-any-Q4_K_M.gguf", "a-small-Q4_K_M.gguf", "draft/any-Q4_K_M.gguf"])
    async def test_a_draft_is_offered_beside_its_model_and_not_as_a_quant(self, folder: Path, draft: str) -> None:
        write_draft(folder / draft, "dflash")
        selection = await select_named("someone/Beside-GGUF", load_catalogue())
        planned = await plan_named(selection, describe_machine((8,)), PlanCriteria(), MachineDescription())
        assert {plan.file.file for plan in planned.plans} == {"any-Q8_0.gguf", "any-Q4_K_M.gguf"}
        assert planned.selection is not None
        assert [(each.file, each.kind.name) for each in planned.selection.others] == [(draft, "dflash")]
        named = select_hub_model("someone/Beside-GGUF:Q4_K_M", load_catalogue())
        assert named is not None
        assert named.file is not None
        assert named.file.file == "any-Q4_K_M.gguf"
        target = parse_target("someone/Beside-GGUF:Q4_K_M", load_catalogue())
        assert [file.name for item in target.items for file in item.files] == ["any-Q4_K_M.gguf"]

    def test_a_draft_that_is_named_is_refused_for_what_it_is(self, folder: Path) -> None:
        write_draft(folder / "small-Q5_K_M.gguf")
        with pytest.raises(ModelUnexpected, match=r"small-Q5_K_M.gguf is a draft \(EAGLE-3\)"):
            select_hub_model("someone/Beside-GGUF:small-Q5_K_M.gguf", load_catalogue())
        with pytest.raises(ModelUnexpected, match=r"is a draft \(EAGLE-3\)"):
            read_source("someone/Beside-GGUF:small-Q5_K_M.gguf")
        for find in (select_hub_model, parse_target):
            with pytest.raises(ModelMissing, match="has no file of Q5_K_M") as error:
                find("someone/Beside-GGUF:Q5_K_M", load_catalogue())
            assert "small-Q5_K_M.gguf is a draft (EAGLE-3)" in error.value.hint

    def test_a_model_with_a_name_like_a_drafts_is_found(self, folder: Path) -> None:
        shutil.copy(folder / "any-Q8_0.gguf", folder / "any-lora-merged-Q6_K.gguf")
        selection = select_hub_model("someone/Beside-GGUF:Q6_K", load_catalogue())
        assert selection is not None
        assert selection.file is not None
        assert selection.file.file == "any-lora-merged-Q6_K.gguf"

    @pytest.mark.parametrize(
        ("content", "kind"),
        [
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "unreadable"),
            (b"GGUF\0\0\0\x03" + bytes(4_096), "big-endian"),
            (b"<html>Entry not found</html>", "unreadable"),
        ],
    )
    async def test_a_file_that_cannot_be_read_is_no_quant(self, folder: Path, content: bytes, kind: str) -> None:
        (folder / "other-Q5_K_M.gguf").write_bytes(content)
        selection = await select_named("someone/Beside-GGUF", load_catalogue())
        planned = await plan_named(selection, describe_machine((8,)), PlanCriteria(), MachineDescription())
        assert {plan.file.file for plan in planned.plans} == {"any-Q8_0.gguf", "any-Q4_K_M.gguf"}
        assert planned.selection is not None
        assert [(each.file, each.kind.name) for each in planned.selection.others] == [("other-Q5_K_M.gguf", kind)]
        with pytest.raises(ModelBroken):
            read_source("someone/Beside-GGUF:other-Q5_K_M.gguf")

    async def test_a_repository_of_a_draft_is_named_and_can_be_pulled(self, hub: Hub) -> None:
        folder = hub.folder / "someone" / "Only-DFlash-GGUF"
        write_draft(folder / "x-DFlash-Q8_0.gguf", "dflash")
        write_draft(folder / "x-DFlash-Q4_K_M.gguf", "dflash")
        for name in ("someone/Only-DFlash-GGUF", "someone/Only-DFlash-GGUF:Q8_0"):
            with pytest.raises(ModelUnexpected, match=r"is a draft \(DFlash\)"):
                select_hub_model(name, load_catalogue())
        target = await asyncio.to_thread(parse_target, "someone/Only-DFlash-GGUF:Q8_0", load_catalogue())
        pulled = await pull_model(target, settings=QUICK)
        assert (pulled.record.kind, pulled.record.file_kind, pulled.checked.problem) == ("draft", "dflash", None)

    @pytest.mark.parametrize("what", [":Q4_K_S", ":painter-Q4_K_S.gguf", ""])
    async def test_a_repository_of_images_is_refused_before_the_download(self, hub: Hub, what: str) -> None:
        folder = hub.folder / "someone" / "Painter-GGUF"
        write_odd(folder / "painter-Q4_K_S.gguf", "flux", {}, ("double_blocks.0.img_attn.qkv.weight",))
        with pytest.raises(ModelUnexpected, match=r"is a model for images or video"):
            select_hub_model(f"someone/Painter-GGUF{what}", load_catalogue())
        with pytest.raises((ModelUnexpected, ModelMissing), match=r"images or video|has no file"):
            await pull_model(
                await asyncio.to_thread(parse_target, f"someone/Painter-GGUF{what}", load_catalogue()), settings=QUICK
            )
        assert not (models_dir() / "someone").exists()

    async def test_a_model_with_a_name_like_an_adapters_is_pulled_as_a_model(self, folder: Path) -> None:
        shutil.copy(folder / "any-Q8_0.gguf", folder / "any-lora-merged-Q6_K.gguf")
        for _ in range(2):  # the second time it is here
            target = parse_target("someone/Beside-GGUF:any-lora-merged-Q6_K.gguf", load_catalogue())
            pulled = await pull_model(target, settings=QUICK)
            assert (pulled.record.kind, pulled.record.file_kind, pulled.checked.problem) == ("model", "model", None)

    async def test_an_adapter_is_pulled_as_what_it_is(self, folder: Path) -> None:
        write_odd(folder / "tuned-F16.gguf", "qwen3", LORA, ("blk.0.attn_q.weight.lora_a",))
        target = await asyncio.to_thread(parse_target, "someone/Beside-GGUF:tuned-F16.gguf", load_catalogue())
        pulled = await pull_model(target, settings=QUICK)
        assert (pulled.record.kind, pulled.record.file_kind, pulled.checked.problem) == ("other", "lora", None)
        again = forked.run("pull", "someone/Beside-GGUF:tuned-F16.gguf")
        assert again.returncode == 0
        assert "This is a LoRA adapter" in again.stderr


class TestFaces:
    async def test_a_plan_that_the_engine_refuses_is_not_recommended(self, tmp_path: Path) -> None:
        write_decoder(tmp_path / "new.gguf", architecture="newer-than-the-engine")
        selection = await select_named(str(tmp_path / "new.gguf"), load_catalogue())
        planned = await plan_named(selection, describe_machine((8,)), PlanCriteria(), MachineDescription(backend="cpu"))
        assert planned.plans == ()
        assert isinstance(planned.asked, LauncherError)
        assert "newer-than-the-engine" in planned.asked.title
        result = forked.run("plan", str(tmp_path / "new.gguf"), "--json")
        assert result.returncode == 1
        answer = json.loads(result.stdout)
        assert answer["plans"] == []
        assert "newer-than-the-engine" in answer["engine_error"]["message"]
        assert "newer-than-the-engine" in forked.run("plan", str(tmp_path / "new.gguf")).stdout

    @pytest.mark.parametrize("verb", ["plan", "estimate", "serve", "up", "tune", "export"])
    def test_each_command_says_what_a_file_is(self, tmp_path: Path, verb: str) -> None:
        path = write_odd(tmp_path / "any.gguf", None, IMATRIX, ("blk.0.attn_q.weight.in_sum2",))
        result = forked.run(verb, *(["script", "--model"] if verb == "export" else []), str(path))
        assert result.returncode == 1, result.stdout + result.stderr
        assert "any.gguf is an importance matrix" in result.stderr
        assert "Choose a quant of the model" in result.stderr

    def test_files_beside_a_model_on_the_hub_are_listed_below_its_plans(self, hub: Hub) -> None:
        folder = hub.folder / "someone" / "Listed-GGUF"
        folder.mkdir(parents=True)
        write_decoder(folder / "any-Q8_0.gguf", architecture="qwen3")
        write_draft(folder / "any-EAGLE3-Q8_0.gguf")
        arguments = ("plan", "someone/Listed-GGUF", "--gpu-memory", "8")
        text = " ".join(forked.run(*arguments).stdout.split())
        assert "Beside the model any-EAGLE3-Q8_0.gguf, 0.0 MiB: a draft (EAGLE-3), which" in text
        (other,) = json.loads(forked.run(*arguments, "--json").stdout)["others"]
        assert (other["file"], other["file_kind"]) == ("any-EAGLE3-Q8_0.gguf", "eagle3")
        assert other["about"].startswith("This is a draft (EAGLE-3)")

    def test_the_list_of_models_says_what_each_file_is(self) -> None:
        write_odd(models_dir() / "tuned-F16.gguf", "qwen3", LORA, ("blk.0.attn_q.weight.lora_a",))
        text = " ".join(forked.run("models", "list").stdout.split())
        assert "LoRA adapter" in text
        assert "tuned-F16.gguf: This is a LoRA adapter, which changes a model and holds none." in text
        (each,) = json.loads(forked.run("models", "list", "--json").stdout)["models"]
        assert (each["kind"], each["file_kind"], each["problem"]) == ("other", "lora", None)
        assert each["about"].startswith("This is a LoRA adapter")

    def test_a_draft_in_another_programs_store_is_no_model_once_it_was_read(self, tmp_path: Path) -> None:
        folder = tmp_path / "user" / ".lmstudio" / "models" / "someone" / "Any-GGUF"
        write_draft(folder / "plain-Q4_K_M.gguf", "dflash")
        write_decoder(folder / "mtp-real-Q8_0.gguf", architecture="qwen3")
        assert {each.record.file_kind for each in list_library(NOTHING).models} == {"dflash", "model"}
        assert [each.path.name for each in list_found().models] == ["mtp-real-Q8_0.gguf"]
        assert find_stored("someone/Any-GGUF:Q4_K_M") == ()
        assert len(find_stored("someone/Any-GGUF:Q8_0")) == 1


def test_a_row_of_the_window_says_what_a_file_is() -> None:
    write_draft(models_dir() / "plain-Q4_K_M.gguf")
    write_odd(models_dir() / "other.gguf", None, IMATRIX, ("blk.0.attn_q.weight.in_sum2",))
    for local in list_library(NOTHING).models:
        file = LibraryFile(local=local, size_bytes=local.record.bytes)
        model = LibraryModel(str(local.path), local.path.name, (file,))
        name, row = quant_text(local), describe_model(model, {}, recommended=False)
        assert row.quant == name, "also where its file name has a quant"
        if local.record.kind == "draft":
            assert name == "EAGLE-3 draft"
            assert row.note.startswith("This is a draft (EAGLE-3)")
        else:
            assert name == "imatrix"
            assert row.note.startswith("This is an importance matrix")
