"""The header reader against the gguf package: both must see the same file."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base.errors import ModelBroken, ModelMissing
from launcher.models.gguf import QUANTS, QUANTS_BY_NAME, GgufHeader, MtpHead, check_complete, read_header

Fill = Callable[[GGUFWriter], None]
SOME_QUANTS = [GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_K]


def write(path: Path, fill: Fill, architecture: str = "qwen35moe") -> Path:
    writer = GGUFWriter(path, architecture)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensor(
    writer: GGUFWriter, name: str, quant: GGMLQuantizationType = GGMLQuantizationType.F32, rows: tuple[int, ...] = (2,)
) -> None:
    """Add a tensor whose innermost dimension is 256."""
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    data = np.zeros((*rows, 256 // per_block * block_bytes), dtype=np.uint8)
    writer.add_tensor(name, data, raw_dtype=quant)


def add_every_kind_of_value(writer: GGUFWriter) -> None:
    writer.add_name("Tiny 日本")
    writer.add_uint8("test.uint8", 255)
    writer.add_int8("test.int8", -128)
    writer.add_uint16("test.uint16", 65535)
    writer.add_int16("test.int16", -32768)
    writer.add_uint32("test.uint32", 2**32 - 1)
    writer.add_int32("test.int32", -(2**31))
    writer.add_uint64("test.uint64", 2**64 - 1)
    writer.add_int64("test.int64", -(2**63))
    writer.add_float32("test.float32", 0.1)
    writer.add_float64("test.float64", 0.1)
    writer.add_bool("test.true", True)
    writer.add_bool("test.false", False)
    writer.add_array("test.words", ["a", "", "日本", "x" * 300])
    writer.add_array("test.numbers", [1, -2, 3])
    writer.add_array("test.floats", [0.5, 1.5])
    writer.add_array("test.switches", [True, False, True])
    writer.add_array("test.bytes", b"\x00\xff")
    writer.add_string("test.last", "still in step")


def values_seen_by(reader: GGUFReader) -> dict[str, object]:
    """All that the header keeps: no lists of texts, and of numbers at most 4,096."""
    kept: dict[str, object] = {}
    for name, field in reader.fields.items():
        contents = field.contents()
        if isinstance(contents, list):
            if GGUFValueType.STRING not in field.types and len(contents) <= 4_096:
                kept[name] = tuple(contents)
        elif not name.startswith("GGUF."):
            kept[name] = contents
    return kept


def lengths_seen_by(reader: GGUFReader) -> dict[str, int]:
    return {name: len(field.data) for name, field in reader.fields.items() if field.types[0] is GGUFValueType.ARRAY}


def tensors_seen_by(reader: GGUFReader) -> list[tuple[str, tuple[int, ...], str, int, int]]:
    return [
        (t.name, tuple(map(int, t.shape)), t.tensor_type.name, int(t.data_offset - reader.data_offset), int(t.n_bytes))
        for t in reader.tensors
    ]


def kinds(values: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Values with their types, for True is 1."""
    return {
        key: (value, [type(element) for element in value] if isinstance(value, tuple) else type(value))
        for key, value in values.items()
    }


def assert_same(path: Path) -> GgufHeader:
    header, reader = read_header(path), GGUFReader(path)
    assert kinds(header.metadata) == kinds(values_seen_by(reader))
    assert header.array_lengths == lengths_seen_by(reader)
    assert [(t.name, t.dimensions, t.quant, t.offset, t.n_bytes) for t in header.tensors] == tensors_seen_by(reader)
    assert header.data_offset == reader.data_offset
    assert header.file_bytes == path.stat().st_size
    check_complete(header)
    return header


class TestSameFile:
    def test_the_header_of_the_demo_model_is_read(self, demo_model: Path) -> None:
        header = assert_same(demo_model)
        assert header.has_mtp_head
        assert len(header.tensors) > 50

    def test_every_kind_of_value_is_read(self, tmp_path: Path) -> None:
        header = assert_same(write(tmp_path / "values.gguf", add_every_kind_of_value))
        assert header.metadata["test.uint64"] == 2**64 - 1
        assert header.metadata["test.switches"] == (True, False, True)
        assert "test.words" not in header.metadata
        assert header.array_lengths["test.words"] == 4

    def test_every_quant_type_of_the_gguf_package_is_read(self, tmp_path: Path) -> None:
        def fill(writer: GGUFWriter) -> None:
            for quant in known:
                add_tensor(writer, f"of.{quant.name}", quant, (3, 2))

        known = set(GGMLQuantizationType) - {GGMLQuantizationType.Q8_1}  # the package has 40 bytes, ggml's block 36
        header = assert_same(write(tmp_path / "quants.gguf", fill))
        assert {tensor.quant for tensor in header.tensors} == {quant.name for quant in known}

    @pytest.mark.parametrize("dimensions", [(), (5,), (2, 5), (3, 2, 5)])
    def test_every_number_of_dimensions_is_read(self, tmp_path: Path, dimensions: tuple[int, ...]) -> None:
        header = assert_same(write(tmp_path / "t.gguf", lambda writer: add_tensor(writer, "t", rows=dimensions)))
        assert header.tensors[0].dimensions == (256, *reversed(dimensions))

    @pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
    def test_another_alignment_is_read(self, tmp_path: Path, alignment: int) -> None:
        def fill(writer: GGUFWriter) -> None:
            writer.add_custom_alignment(alignment)
            add_tensor(writer, "first")
            add_tensor(writer, "second")

        assert assert_same(write(tmp_path / "aligned.gguf", fill)).data_offset % alignment == 0

    def test_a_file_without_tensors_is_read(self, tmp_path: Path) -> None:
        assert assert_same(write(tmp_path / "vocabulary.gguf", lambda _: None)).tensors == ()

    @settings(deadline=None)
    @given(
        values=st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map("x.".__add__),
            st.one_of(
                st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
                st.booleans(),
                st.integers(-(2**31), 2**31 - 1),
                st.floats(width=32, allow_nan=False),
                st.lists(st.text(max_size=5), min_size=1),
                st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1),
            ),
        ),
        quants=st.lists(st.sampled_from(SOME_QUANTS), max_size=4),
    )
    @pytest.mark.thorough
    def test_any_file_written_by_the_package_is_read(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        values: dict[str, str | bool | int | float | list[str] | list[int]],
        quants: list[GGMLQuantizationType],
    ) -> None:
        def fill(writer: GGUFWriter) -> None:
            for key, value in values.items():
                writer.add_key_value(key, value, GGUFValueType.get_type(value))
            for number, quant in enumerate(quants):
                add_tensor(writer, f"blk.{number}.weight", quant)

        assert_same(write(tmp_path_factory.getbasetemp() / "any.gguf", fill))


class TestHeaderFields:
    def test_names_and_context_are_read(self, tmp_path: Path) -> None:
        def fill(writer: GGUFWriter) -> None:
            writer.add_name("Tiny")
            writer.add_context_length(4096)

        header = read_header(write(tmp_path / "file.gguf", fill))
        assert (header.architecture, header.name, header.trained_context) == ("qwen35moe", "Tiny", 4096)

    def test_a_file_without_metadata_is_named_after_itself(self, tmp_path: Path) -> None:
        header = read_header(write(tmp_path / "file.gguf", lambda _: None))
        assert (header.name, header.trained_context, header.promised_heads) == ("file", None, 0)
        assert (header.split_count, header.has_mtp_head) == (1, False)

    def test_a_count_that_is_no_number_is_unknown(self, tmp_path: Path) -> None:
        def fill(writer: GGUFWriter) -> None:
            writer.add_string("qwen35moe.context_length", "4096")
            writer.add_bool("qwen35moe.nextn_predict_layers", True)
            writer.add_string("split.count", "2")

        header = read_header(write(tmp_path / "file.gguf", fill))
        assert (header.trained_context, header.promised_heads, header.split_count) == (None, 0, 1)

    @pytest.mark.parametrize(
        ("tokens", "claimed", "vocabulary"), [(3, 99, 3), (3, None, 3), (0, 99, 99), (0, None, None)]
    )
    def test_the_vocabulary_is_counted_or_read_from_its_key(
        self, tmp_path: Path, tokens: int, claimed: int | None, vocabulary: int | None
    ) -> None:
        def fill(writer: GGUFWriter) -> None:
            if tokens:
                writer.add_token_list(["a"] * tokens)
            if claimed:
                writer.add_vocab_size(claimed)

        assert read_header(write(tmp_path / "file.gguf", fill)).vocabulary == vocabulary

    @pytest.mark.parametrize("length", [4_095, 4_096, 4_097])
    def test_small_arrays_are_read_and_large_ones_only_counted(self, tmp_path: Path, length: int) -> None:
        layers = list(range(length))
        header = read_header(write(tmp_path / "file.gguf", lambda writer: writer.add_head_count_kv(layers)))
        kept = header.metadata.get("qwen35moe.attention.head_count_kv")
        assert kept == (tuple(layers) if length <= 4_096 else None)
        assert header.array_lengths == {"qwen35moe.attention.head_count_kv": length}


def test_element_types_equal_those_of_the_package_except_one() -> None:
    theirs = {quant.value: (quant.name, *sizes) for quant, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {number: (quant.name, quant.per_block, quant.block_bytes) for number, quant in QUANTS.items()}
    differ = {
        name: (ours[number], theirs.get(number))
        for number, (name, *_) in ours.items()
        if ours[number] != theirs.get(number)
    }
    assert theirs.keys() <= ours.keys()
    assert differ == {
        "Q8_1": (("Q8_1", 32, 36), ("Q8_1", 32, 40)),  # ggml-common.h: two halves of scales, not two floats
        "Q2_0": (("Q2_0", 64, 18), None),  # newer than the package
    }
    assert 8 * QUANTS_BY_NAME["Q4_K"].n_bytes(256) / 256 == 4.5  # bits a weight


class TestMtpHead:
    @staticmethod
    def model(path: Path, *, blocks: int = 5, heads: int, tensor: str | None, split: int = 1) -> GgufHeader:
        def fill(writer: GGUFWriter) -> None:
            writer.add_block_count(blocks)
            writer.add_uint32("qwen35moe.nextn_predict_layers", heads)
            writer.add_uint16("split.count", split)
            if tensor:
                add_tensor(writer, tensor)

        return read_header(write(path / "model.gguf", fill))

    def test_a_head_needs_its_key_and_its_tensors(self, tmp_path: Path) -> None:
        assert self.model(tmp_path, heads=1, tensor="blk.4.nextn.eh_proj.weight").has_mtp_head

    def test_two_heads_begin_two_blocks_before_the_end(self, tmp_path: Path) -> None:
        assert self.model(tmp_path, heads=2, tensor="blk.3.nextn.eh_proj.weight").has_mtp_head
        assert not self.model(tmp_path, heads=2, tensor="blk.4.nextn.eh_proj.weight").has_mtp_head

    def test_a_head_key_without_tensors_is_not_enough(self, tmp_path: Path) -> None:
        header = self.model(tmp_path, heads=1, tensor="blk.4.attn_q.weight")
        assert (header.promised_heads, header.mtp_head) == (1, MtpHead.PROMISED)
        assert not header.has_mtp_head

    def test_head_tensors_without_a_key_are_not_enough(self, tmp_path: Path) -> None:
        header = self.model(tmp_path, heads=0, tensor="blk.4.nextn.eh_proj.weight")
        assert (header.has_mtp_head, header.mtp_head) == (False, MtpHead.NONE)

    def test_the_head_key_is_enough_in_a_split_model(self, tmp_path: Path) -> None:
        assert self.model(tmp_path, heads=1, tensor=None, split=3).has_mtp_head


class TestCompleteness:
    @pytest.fixture
    def whole(self, tmp_path: Path) -> Path:
        return write(tmp_path / "whole.gguf", lambda writer: add_tensor(writer, "t", rows=(1000,)))

    def test_a_complete_file_is_accepted(self, whole: Path) -> None:
        check_complete(read_header(whole))

    @pytest.mark.parametrize("missing", [1, 1_000_000])
    def test_a_truncated_file_is_reported_with_the_missing_bytes(self, whole: Path, missing: int) -> None:
        needed = read_header(whole).needed_bytes
        with whole.open("r+b") as file:
            file.truncate(needed - missing)
        with pytest.raises(ModelBroken, match=rf"whole\.gguf is incomplete: {missing:,} of {needed:,}") as broken:
            check_complete(read_header(whole))
        assert broken.value.facts["missing_bytes"] == missing


class TestFilesThatAreNoModels:
    def test_a_missing_file_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(ModelMissing, match="Model file"):
            read_header(tmp_path / "none.gguf")

    def test_a_folder_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(ModelMissing, match="is a folder") as missing:
            read_header(tmp_path)
        assert ".gguf" in missing.value.hint

    def test_a_path_through_a_file_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ModelMissing, match="cannot be read: Not a directory"):
            read_header(tmp_path / "file" / "model.gguf")

    @pytest.mark.parametrize("content", [b"", b"GGU", b"ggjt\x03\x00\x00\x00"])
    def test_another_kind_of_file_is_reported(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "page.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelBroken, match=r"page\.gguf is not a GGUF file") as broken:
            read_header(path)
        assert (content[:4].hex(" ") or "it is empty") in broken.value.title


def test_a_named_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelMissing, match="not an ordinary file"):
        read_header(tmp_path / "pipe.gguf")
