"""Headers that lie: refused or read, never believed, and never at a cost."""

import signal
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base.errors import ModelBroken
from launcher.models.gguf import GgufHeader, check_complete, read_header

MIB = 2**20
HUGE = [2**24 + 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
UINT8, UINT64, STRING, ARRAY = 0, 10, 8, 9


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def text(words: str) -> bytes:
    return u64(len(words)) + words.encode()


def beginning(*, version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + u32(version) + u64(tensors) + u64(keys)


def tensor(
    name: str = "t", dimensions: tuple[int, ...] = (256,), kind: int = 0, offset: int = 0, count: int | None = None
) -> bytes:
    counted = u32(len(dimensions) if count is None else count)
    return text(name) + counted + b"".join(map(u64, dimensions)) + u32(kind) + u64(offset)


@contextmanager
def at_little_cost() -> Iterator[None]:
    """Within 2 s of processor time and 20 MiB: a text may have 16 MiB."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("the header took too long")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, 2.0)
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert peak < 20 * MIB


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "model.gguf"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file with a value of each shape and two tensors."""
    path = tmp_path_factory.mktemp("honest") / "model.gguf"
    writer = GGUFWriter(path, "qwen35moe")
    writer.add_block_count(2)
    writer.add_bool("test.switch", True)
    writer.add_float32("test.float", 0.5)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "a", "日本"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    writer.add_custom_alignment(64)
    writer.add_tensor("first", np.zeros((2, 144), dtype=np.uint8), raw_dtype=GGMLQuantizationType.Q4_K)
    writer.add_tensor("second", np.zeros((1, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def read(place: Path, content: bytes) -> GgufHeader:
    place.write_bytes(content)
    return read_header(place)


def judge(place: Path, content: bytes) -> GgufHeader | None:
    """Read and check it; None when it was refused as broken. Any other error is the test's."""
    with suppress(ModelBroken):
        header = read(place, content)
        check_complete(header)
        assert (header.architecture, header.name) != ("", "")
        assert header.has_mtp_head in (True, False)
        return header
    return None


class TestDamage:
    def test_the_honest_file_is_read(self, place: Path, honest: bytes) -> None:
        header = judge(place, honest)
        assert header is not None
        assert [t.name for t in header.tensors] == ["first", "second"]

    def test_cut_anywhere_it_is_refused(self, place: Path, honest: bytes) -> None:
        needed = read(place, honest).needed_bytes
        assert needed > 600
        assert [length for length in range(needed) if judge(place, honest[:length]) is not None] == []
        assert judge(place, honest[:needed]) is not None

    def test_cut_behind_the_header_it_is_still_read(self, place: Path, honest: bytes) -> None:
        whole = read(place, honest)
        cut = read(place, honest[: whole.data_offset])
        assert (cut.metadata, cut.tensors, cut.data_offset) == (whole.metadata, whole.tensors, whole.data_offset)

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8))
    def test_with_any_bytes_changed_it_is_read_or_refused(
        self, place: Path, honest: bytes, changes: list[tuple[float, int]]
    ) -> None:
        damaged = bytearray(honest)
        for where, value in changes:
            damaged[int(where * len(damaged))] = value
        judge(place, bytes(damaged))

    @pytest.mark.parametrize("number", [0, *HUGE])
    def test_with_a_hostile_number_anywhere_it_is_read_or_refused(
        self, place: Path, honest: bytes, number: int
    ) -> None:
        end = read(place, honest).data_offset
        verdicts = {
            judge(place, honest[:where] + u64(number) + honest[where + 8 :]) is None for where in range(4, end - 8)
        }
        assert True in verdicts

    @settings(deadline=None)
    @given(st.binary(max_size=400), st.integers(0, 3), st.integers(0, 3))
    def test_noise_is_read_or_refused(self, place: Path, noise: bytes, tensors: int, keys: int) -> None:
        judge(place, beginning(tensors=tensors, keys=keys) + noise)


class TestClaims:
    @pytest.mark.parametrize("number", HUGE)
    @pytest.mark.parametrize(
        "before",
        [
            beginning()[:8],
            beginning()[:16],
            beginning(keys=1),
            beginning(keys=1) + text("k") + u32(STRING),
            beginning(keys=1) + text("k") + u32(ARRAY) + u32(UINT8),
            beginning(keys=1) + text("k") + u32(ARRAY) + u32(UINT64),
            beginning(keys=1) + text("k") + u32(ARRAY) + u32(STRING),
            beginning(keys=1) + text("k") + u32(ARRAY) + u32(STRING) + u64(1),
            beginning(tensors=1),
        ],
        ids=["tensors", "keys", "key", "text", "bytes", "numbers", "texts", "text in list", "tensor's name"],
    )
    def test_a_huge_count_of_anything_is_refused_at_once(self, place: Path, before: bytes, number: int) -> None:
        place.write_bytes(before + u64(number) + bytes(4096))
        with at_little_cost(), pytest.raises(ModelBroken, match="damaged or incomplete"):
            read_header(place)

    @pytest.mark.parametrize(
        "before",
        [beginning()[:8], beginning()[:16], beginning(keys=1) + text("k") + u32(ARRAY) + u32(STRING)],
        ids=["tensors", "keys", "texts"],
    )
    def test_not_even_a_huge_file_of_zeros_makes_it_toil(self, place: Path, before: bytes) -> None:
        with place.open("wb") as file:
            file.write(before + u64(2**63))
            file.truncate(2**33)
        with at_little_cost(), pytest.raises(ModelBroken, match="it claims"):
            read_header(place)
        place.unlink()

    def test_a_big_array_is_skipped_and_not_loaded(self, place: Path) -> None:
        with place.open("wb") as file:
            file.write(beginning(keys=2) + text("big") + u32(ARRAY) + u32(UINT64) + u64(2**30))
            file.seek(2**33, 1)
            file.write(text("after") + u32(STRING) + text("it"))
        with at_little_cost():
            assert read_header(place).metadata == {"after": "it"}
        place.unlink()

    @pytest.mark.parametrize("length", [2**32, 2**63, 2**64 - 1])
    def test_a_tensor_larger_than_any_disk_makes_the_file_incomplete(self, place: Path, length: int) -> None:
        header = read(place, beginning(tensors=1) + tensor(dimensions=(length,) * 4))
        assert header.tensors[0].n_bytes == 4 * length**4
        with pytest.raises(ModelBroken, match="cut short"):
            check_complete(header)

    def test_a_tensor_far_behind_the_end_makes_the_file_incomplete(self, place: Path) -> None:
        header = read(place, beginning(tensors=1) + tensor(offset=2**64 - 1))
        with pytest.raises(ModelBroken, match="cut short"):
            check_complete(header)


NONSENSE = {
    "its GGUF version is 1": beginning(version=1),
    "its GGUF version is 4": beginning(version=4),
    "its GGUF version is 50331648": b"GGUF" + struct.pack(">I", 3) + bytes(16),
    "it holds a value of unknown type 13": beginning(keys=1) + text("k") + u32(13),
    "it holds an array of unknown type 9": beginning(keys=1) + text("k") + u32(ARRAY) + u32(ARRAY) + u64(1),
    "tensor 'w' has 5 dimensions": beginning(tensors=1) + tensor("w", (1,) * 5),
    "tensor 'w' has 4294967295 dimensions": beginning(tensors=1) + tensor("w", count=2**32 - 1),
    "its alignment is 0": beginning(keys=1) + text("general.alignment") + u32(UINT8) + b"\0",
    "its alignment is 48": beginning(keys=1) + text("general.alignment") + u32(UINT8) + b"\x30",
    "its alignment is 32": beginning(keys=1) + text("general.alignment") + u32(STRING) + text("32"),
}


class TestNonsense:
    @pytest.mark.parametrize("why", NONSENSE)
    def test_it_is_refused_with_its_reason(self, place: Path, why: str) -> None:
        with pytest.raises(ModelBroken) as broken:
            read(place, NONSENSE[why])
        assert broken.value.title == f"model.gguf is damaged or incomplete: {why}."
        assert broken.value.hint == "Download it again."

    def test_an_older_version_is_read(self, place: Path) -> None:
        content = beginning(version=2, keys=1) + text("general.name") + u32(STRING) + text("Old")
        assert read(place, content).name == "Old"

    def test_a_quant_type_of_the_future_has_no_known_size(self, place: Path) -> None:
        header = read(place, beginning(tensors=1) + tensor(kind=4711) + bytes(64))
        assert (header.tensors[0].quant, header.tensors[0].n_bytes) == ("type 4711", None)
        check_complete(header)

    def test_a_text_that_is_no_utf8_is_still_read(self, place: Path) -> None:
        content = beginning(keys=1) + text("general.name") + u32(STRING) + u64(3) + b"a\xffb"
        assert read(place, content).name == "a\N{REPLACEMENT CHARACTER}b"
