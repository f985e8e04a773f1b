"""Models split into several files by the gguf package."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from launcher.base.errors import ModelBroken, ModelMissing
from launcher.models.gguf import (
    GgufModel,
    MtpHead,
    check_complete,
    read_header,
    read_model,
    read_raw_header,
)

TENSORS = [
    "token_embd.weight",
    "blk.0.attn_q.weight",
    "blk.1.attn_q.weight",
    "blk.1.nextn.eh_proj.weight",
    "output.weight",
]


def write_split(folder: Path, *, heads: int = 1, tensors: list[str] = TENSORS, name: str = "model") -> Path:
    """Write a model with two tensors a file, and return the first."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(folder / f"{name}.gguf", "qwen35moe", split_max_tensors=2)
    writer.add_name("Split")
    writer.add_block_count(2)
    writer.add_context_length(4096)
    writer.add_uint32("qwen35moe.nextn_predict_layers", heads)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c"])
    for number, tensor in enumerate(tensors):
        writer.add_tensor(tensor, np.zeros((number + 1, 256), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / f"{name}-00001-of-{-(-len(tensors) // 2):05}.gguf"


@pytest.fixture
def first_part(tmp_path: Path) -> Path:
    return write_split(tmp_path)


def part(first: Path, number: int) -> Path:
    return first.with_name(first.name.replace("-00001-", f"-{number:05}-"))


class TestAllPartsTogether:
    def test_tensors_equal_those_that_the_package_reads(self, first_part: Path) -> None:
        model = read_model(first_part)
        readers = [GGUFReader(part(first_part, number)) for number in (1, 2, 3)]
        assert [t.name for t in model.tensors] == [t.name for reader in readers for t in reader.tensors] == TENSORS
        assert [t.n_bytes for t in model.tensors] == [t.n_bytes for reader in readers for t in reader.tensors]
        assert model.file_bytes == sum(part(first_part, number).stat().st_size for number in (1, 2, 3))
        assert model.needed_bytes <= model.file_bytes
        check_complete(*model.parts)

    def test_the_first_part_describes_the_model(self, first_part: Path) -> None:
        model = read_model(first_part)
        assert (model.architecture, model.name, model.block_count) == ("qwen35moe", "Split", 2)
        assert (model.trained_context, model.vocabulary, model.path) == (4096, 3, first_part)

    @pytest.mark.parametrize("number", [2, 3])
    def test_any_part_stands_for_the_model(self, first_part: Path, number: int) -> None:
        assert read_model(part(first_part, number)) == read_model(first_part)

    def test_separate_models_named_like_parts_are_not_a_split_model(self, tmp_path: Path, demo_model: Path) -> None:
        first = tmp_path / "x-00001-of-00002.gguf"
        shutil.copy(demo_model, first)
        assert len(read_model(first).parts) == 1
        shutil.copy(demo_model, part(first, 2))
        for path in (first, part(first, 2)):
            with pytest.raises(ModelBroken, match=r"do not belong together: .* says that it is no part"):
                read_model(path)

    def test_one_file_is_a_model_of_one_part(self, demo_model: Path) -> None:
        header, model = read_header(demo_model), read_model(demo_model)
        assert model.parts == (header,)
        assert (model.tensors, model.metadata, model.file_bytes) == (
            header.tensors,
            header.metadata,
            demo_model.stat().st_size,
        )
        assert model.mtp_head is MtpHead.PRESENT

    def test_an_unnamed_model_has_the_file_name_without_part_numbers(self, first_part: Path) -> None:
        model = read_model(first_part)
        assert replace(model, metadata={}).name == "model"

    def test_a_relative_path_is_accepted(self, first_part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(first_part.parent)
        assert len(read_model(Path(part(first_part, 2).name)).parts) == 3


class TestHead:
    @pytest.mark.parametrize(
        ("heads", "tensors", "head"),
        [
            (1, TENSORS, MtpHead.PRESENT),
            (1, [name for name in TENSORS if "nextn" not in name], MtpHead.PROMISED),
            (0, TENSORS, MtpHead.NONE),
        ],
    )
    def test_the_head_is_searched_for_in_every_part(
        self, tmp_path: Path, heads: int, tensors: list[str], head: MtpHead
    ) -> None:
        model = read_model(write_split(tmp_path, heads=heads, tensors=tensors))
        assert (model.mtp_head, model.has_mtp_head) == (head, head is MtpHead.PRESENT)
        assert model.parts[0].mtp_head is not MtpHead.PRESENT


class TestMissingParts:
    def test_a_missing_part_is_named(self, first_part: Path) -> None:
        part(first_part, 2).unlink()
        for named in (first_part, part(first_part, 3)):
            with pytest.raises(ModelMissing, match=r"one of 3 parts .*: model-00002-of-00003\.gguf\.") as missing:
                read_model(named)
            assert missing.value.facts["missing"] == ["model-00002-of-00003.gguf"]
            assert str(first_part.parent) in missing.value.hint

    def test_many_missing_parts_are_counted(self, tmp_path: Path) -> None:
        first = write_split(tmp_path, tensors=[f"blk.{number}.weight" for number in range(14)])
        for number in range(2, 8):
            part(first, number).unlink()
        with pytest.raises(ModelMissing, match=r"model-00002-of-00007\.gguf, .*00004-of-00007\.gguf and 3 more\."):
            read_model(first)

    def test_a_part_with_another_name_is_refused(self, first_part: Path) -> None:
        other = first_part.rename(first_part.with_name("other.gguf"))
        with pytest.raises(ModelMissing, match=r"other\.gguf is one of 3 parts .* was renamed") as missing:
            read_model(other)
        assert "-00001-of-00003.gguf" in missing.value.hint

    def test_a_truncated_part_is_refused(self, first_part: Path) -> None:
        os.truncate(part(first_part, 2), 40)
        with pytest.raises(ModelBroken, match=r"model-00002-of-00003\.gguf is damaged"):
            read_model(first_part)

    def test_a_part_with_missing_data_is_refused(self, first_part: Path) -> None:
        os.truncate(part(first_part, 3), part(first_part, 3).stat().st_size - 600)
        with pytest.raises(ModelBroken, match=r"model-00003-of-00003\.gguf is incomplete"):
            check_complete(*read_model(first_part).parts)


def swap_parts(first: Path) -> None:
    part(first, 2).rename(first.with_name("x"))
    part(first, 3).rename(part(first, 2))
    first.with_name("x").rename(part(first, 3))


def use_part_of_another_model(first: Path) -> None:
    shutil.copy(part(write_split(first.parent / "other", tensors=[*TENSORS, "a", "b"]), 2), part(first, 2))


def use_whole_model_as_part(first: Path) -> None:
    single = first.parent / "single.gguf"
    writer = GGUFWriter(single, "qwen35moe")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    single.rename(part(first, 2))


def repeat_tensor(first: Path) -> None:
    tensors = ["token_embd.weight", "b", "output.weight", "d", "e"]
    shutil.copy(part(write_split(first.parent / "other", tensors=tensors), 2), part(first, 2))


def add_tensor(first: Path) -> None:
    other = write_split(first.parent / "other", tensors=[*TENSORS[:4], "x", "y"])
    shutil.copy(part(other, 3), part(first, 3))


def make_count_an_array(first: Path) -> None:
    """Make the first part's tensor count an array, a case that the fuzzer found."""
    writer = GGUFWriter(first.parent / "x.gguf", "qwen35moe")
    for key, value in {"no": 0, "count": 3}.items():
        writer.add_uint16(f"split.{key}", value)
    writer.add_array("split.tensors.count", [5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    (first.parent / "x.gguf").replace(first)


class TestPartsThatDoNotBelongTogether:
    @pytest.mark.parametrize(
        ("do", "why"),
        [
            (swap_parts, "model-00002-of-00003.gguf says that it is part 3 of 3"),
            (use_part_of_another_model, "model-00002-of-00003.gguf says that it is part 2 of 4"),
            (use_whole_model_as_part, "model-00002-of-00003.gguf says that it is no part of a split model"),
            (repeat_tensor, "tensor 'output.weight' is in two of them"),
            (add_tensor, "they hold 6 tensors in place of 5"),
            (make_count_an_array, "they hold 3 tensors in place of an unknown number"),
        ],
    )
    def test_parts_that_do_not_belong_together_are_refused_with_the_reason(
        self, first_part: Path, do: Callable[[Path], None], why: str
    ) -> None:
        do(first_part)
        with pytest.raises(ModelBroken, match=re.escape(f"do not belong together: {why}.")):
            read_model(first_part)


class TestHeaderBytes:
    def test_raw_headers_end_where_the_data_begins(self, first_part: Path, demo_model: Path) -> None:
        for path in (first_part, part(first_part, 2), demo_model):
            header = read_header(path)
            raw = read_raw_header(header)
            assert raw == path.read_bytes()[: header.data_offset]
            assert len(raw) == GGUFReader(path).data_offset

    def test_raw_headers_form_a_header_of_the_same_model(self, first_part: Path, tmp_path: Path) -> None:
        header = read_header(first_part)
        twin = tmp_path / "twin.gguf"
        twin.write_bytes(read_raw_header(header))
        os.truncate(twin, header.file_bytes)
        assert read_header(twin) == replace(header, path=twin)

    def test_a_deleted_file_cannot_be_read(self, first_part: Path) -> None:
        header = read_header(first_part)
        first_part.unlink()
        with pytest.raises(ModelMissing, match="cannot be read"):
            read_raw_header(header)


def test_each_part_keeps_its_tensors_and_metadata(first_part: Path) -> None:
    model: GgufModel = read_model(first_part)
    assert [len(header.tensors) for header in model.parts] == [2, 2, 1]
    assert [header.metadata["split.no"] for header in model.parts] == [0, 1, 2]
