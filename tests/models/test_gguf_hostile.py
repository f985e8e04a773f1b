"""Malicious headers: refused, or read without trusting their values, in bounded time and memory."""

import signal
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base.errors import ModelBroken
from launcher.base.messages import Message
from launcher.models.gguf import GgufHeader, check_complete, read_header

MIB = 2**20
HUGE = [2**24 + 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
UINT8, UINT64, STRING, ARRAY = 0, 10, 8, 9


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def text(words: str) -> bytes:
    return u64(len(words.encode())) + words.encode()


def encode_beginning(*, version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + u32(version) + u64(tensors) + u64(keys)


def tensor(
    name: str = "t", dimensions: tuple[int, ...] = (256,), kind: int = 0, offset: int = 0, count: int | None = None
) -> bytes:
    counted = u32(len(dimensions) if count is None else count)
    return text(name) + counted + b"".join(map(u64, dimensions)) + u32(kind) + u64(offset)


@contextmanager
def at_little_cost() -> Iterator[None]:
    """Run the block within 1 s of processor time and 20 MiB."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("the header took too long")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, 1.0)
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
    """Read and check a file; return None if it was refused as broken. Any other error fails the test."""
    with suppress(ModelBroken):
        header = read(place, content)
        check_complete(header)
        assert (header.architecture, header.name) != ("", "")
        assert header.has_mtp_head in (True, False)
        return header
    return None


class TestDamage:
    def test_the_unmodified_file_is_read(self, place: Path, honest: bytes) -> None:
        header = judge(place, honest)
        assert header is not None
        assert [t.name for t in header.tensors] == ["first", "second"]

    def test_a_header_truncated_anywhere_is_refused(self, place: Path, honest: bytes) -> None:
        needed = read(place, honest).needed_bytes
        assert needed > 600
        assert [length for length in range(needed) if judge(place, honest[:length]) is not None] == []
        assert judge(place, honest[:needed]) is not None

    def test_a_file_truncated_behind_its_header_is_read(self, place: Path, honest: bytes) -> None:
        whole = read(place, honest)
        cut = read(place, honest[: whole.data_offset])
        assert (cut.metadata, cut.tensors, cut.data_offset) == (whole.metadata, whole.tensors, whole.data_offset)

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8))
    def test_a_header_with_any_bytes_changed_is_read_or_refused(
        self, place: Path, honest: bytes, changes: list[tuple[float, int]]
    ) -> None:
        damaged = bytearray(honest)
        for where, value in changes:
            damaged[int(where * len(damaged))] = value
        judge(place, bytes(damaged))

    @pytest.mark.cases(3)
    @pytest.mark.parametrize("number", [0, *HUGE])
    def test_a_header_with_a_hostile_number_anywhere_is_read_or_refused(
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
        judge(place, encode_beginning(tensors=tensors, keys=keys) + noise)


class TestClaims:
    @pytest.mark.parametrize("number", HUGE)
    @pytest.mark.parametrize(
        "before",
        [
            encode_beginning()[:8],
            encode_beginning()[:16],
            encode_beginning(keys=1),
            encode_beginning(keys=1) + text("k") + u32(STRING),
            encode_beginning(keys=1) + text("k") + u32(ARRAY) + u32(UINT8),
            encode_beginning(keys=1) + text("k") + u32(ARRAY) + u32(UINT64),
            encode_beginning(keys=1) + text("k") + u32(ARRAY) + u32(STRING),
            encode_beginning(keys=1) + text("k") + u32(ARRAY) + u32(STRING) + u64(1),
            encode_beginning(tensors=1),
        ],
        ids=["tensors", "keys", "key", "text", "bytes", "numbers", "texts", "text in list", "tensor's name"],
    )
    def test_a_huge_count_of_anything_is_refused_at_once(self, place: Path, before: bytes, number: int) -> None:
        place.write_bytes(before + u64(number) + bytes(4096))
        with at_little_cost(), pytest.raises(ModelBroken, match="damaged or incomplete"):
            read_header(place)

    @pytest.mark.parametrize(
        "before",
        [
            encode_beginning()[:8],
            encode_beginning()[:16],
            encode_beginning(keys=1) + text("k") + u32(ARRAY) + u32(STRING),
        ],
        ids=["tensors", "keys", "texts"],
    )
    def test_a_huge_file_of_zeros_is_refused_quickly(self, place: Path, before: bytes) -> None:
        with place.open("wb") as file:
            file.write(before + u64(2**63))
            file.truncate(2**33)
        with at_little_cost(), pytest.raises(ModelBroken, match="it claims"):
            read_header(place)
        place.unlink()

    def test_a_large_array_is_skipped(self, place: Path) -> None:
        with place.open("wb") as file:
            file.write(encode_beginning(keys=2) + text("big") + u32(ARRAY) + u32(UINT64) + u64(2**24))
            file.seek(2**27, 1)
            file.write(text("after") + u32(STRING) + text("it"))
        with at_little_cost():
            header = read_header(place)
        assert (header.metadata, header.array_lengths) == ({"after": "it"}, {"big": 2**24})

    def test_a_long_text_is_skipped(self, place: Path) -> None:
        content = encode_beginning(keys=2) + text("long") + u32(STRING) + u64(2**25) + bytes(2**25)
        place.write_bytes(content + text("after") + u32(STRING) + text("it"))
        with at_little_cost():
            assert read_header(place).metadata == {"after": "it"}

    def test_an_endless_header_is_refused(self, place: Path) -> None:
        with place.open("wb") as file:
            file.write(encode_beginning(keys=1) + text("big") + u32(ARRAY) + u32(UINT64) + u64(2**30))
            file.truncate(2**34)
        with at_little_cost(), pytest.raises(ModelBroken, match="header is larger than 256 MiB"):
            read_header(place)
        place.unlink()


def list_of_texts(count: int) -> bytes:
    return u32(ARRAY) + u32(STRING) + u64(count) + bytes(8 * count)


def join_numbered(count: int, what: Callable[[str], bytes]) -> bytes:
    return b"".join(what(f"{number}") for number in range(count))


def many_tensors(count: int) -> bytes:
    return join_numbered(count, lambda name: tensor(f"blk.{name}.weight", (8,), offset=32 * int(name)))


SLOW_HEADERS = {
    "it claims lists of more than 2,097,152 texts": lambda: (
        encode_beginning(keys=3) + join_numbered(3, lambda name: text(name) + list_of_texts(2**20))
    ),
    "its small arrays hold more than 262,144 numbers": lambda: (
        encode_beginning(keys=100)
        + join_numbered(100, lambda name: text(name) + u32(ARRAY) + u32(UINT8) + u64(4096) + bytes(range(256)) * 16)
    ),
    "its names and texts have more than 4,194,304 bytes": lambda: (
        encode_beginning(keys=10)
        + join_numbered(10, lambda name: text(name) + u32(STRING) + text("\U0001f999" * 2**17))
    ),
    "begins at byte 1, which is not a multiple of 32": lambda: (
        encode_beginning(tensors=2**16) + many_tensors(2**16 - 1) + tensor("last", offset=1)
    ),
}


MEASURE = """
import re, sys, time
from pathlib import Path
from launcher.base.errors import ModelBroken
from launcher.models.gguf import read_header
def peak_kib():
    return int(re.search(r"VmHWM: +(\\d+)", Path("/proc/self/status").read_text().replace(chr(9), " "))[1])
before_s, before_kib = time.process_time(), peak_kib()
try:
    verdict = f"{len(read_header(Path(sys.argv[1])).tensors)} tensors"
except ModelBroken as broken:
    verdict = broken.title
print(time.process_time() - before_s, (peak_kib() - before_kib) / 1024, verdict)
"""


def judge_in_another_process(path: Path) -> str:
    """Judge a file in another process, within 1 s of processor time and 50 MiB."""
    result = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    seconds, mib, verdict = result.stdout.split(maxsplit=2)
    assert float(seconds) < 1.0
    assert float(mib) < 50
    return verdict


class TestSlowHeaders:
    """Headers that cause as much work as possible."""

    @pytest.mark.parametrize("why", SLOW_HEADERS)
    def test_slow_headers_are_refused_in_limited_time(self, place: Path, why: str) -> None:
        place.write_bytes(SLOW_HEADERS[why]())
        assert why in judge_in_another_process(place)

    def test_the_allowed_number_of_tensors_is_read(self, place: Path) -> None:
        place.write_bytes(encode_beginning(tensors=2**16) + many_tensors(2**16))
        assert judge_in_another_process(place) == "65536 tensors\n"


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + u32(kind) + value


def file_with_key(name: str, kind: int, value: bytes) -> bytes:
    return encode_beginning(keys=1) + key(name, kind, value)


def file_of_qwen35moe(name: str, value: int, *, blocks: int = 41) -> bytes:
    return (
        encode_beginning(keys=3)
        + key("general.architecture", STRING, text("qwen35moe"))
        + key("qwen35moe.block_count", UINT32, u32(blocks))
        + key(f"qwen35moe.{name}", INT32, struct.pack("<i", value))
    )


UINT32, INT32, FLOAT32, BOOL, FLOAT64 = 4, 5, 6, 7, 12
NAN32, NAN64 = struct.pack("<f", float("nan")), struct.pack("<d", float("nan"))
F32, Q4_K = 0, 12
NONSENSE = {
    "its GGUF version is 0": encode_beginning(version=0),
    "its GGUF version is 65539": encode_beginning(version=65539),
    "it holds a value of unknown type 13": encode_beginning(keys=1) + text("k") + u32(13),
    "it holds an array of unknown type 9": encode_beginning(keys=1) + text("k") + u32(ARRAY) + u32(ARRAY) + u64(1),
    "tensor 'w' has 5 dimensions": encode_beginning(tensors=1) + tensor("w", (1,) * 5),
    "tensor 'w' has 4294967295 dimensions": encode_beginning(tensors=1) + tensor("w", count=2**32 - 1),
    "its alignment is 0": file_with_key("general.alignment", UINT8, b"\0"),
    "its alignment is 48": file_with_key("general.alignment", UINT8, b"\x30"),
    "its alignment is -32": file_with_key("general.alignment", INT32, struct.pack("<i", -32)),
    "its alignment is 1099511627776": file_with_key("general.alignment", UINT64, u64(2**40)),
    "its alignment is '32'": file_with_key("general.alignment", STRING, text("32")),
    "its alignment is True": file_with_key("general.alignment", BOOL, b"\1"),
    f"its alignment is '{'x' * 75}...'": file_with_key("general.alignment", STRING, text("x" * 1000)),
    "the name of a key has 4,194,304 bytes": encode_beginning(keys=1) + u64(2**22) + bytes(2**22),
    "the name of a tensor has 65,536 bytes": encode_beginning(tensors=1) + text("t" * 2**16),
    "the name of a key is empty": file_with_key("", UINT8, b"\0"),
    "the name of a key is not UTF-8": encode_beginning(keys=1) + u64(3) + b"a\xffb" + u32(UINT8) + b"\0",
    "the name of a tensor is not UTF-8": encode_beginning(tensors=1) + u64(3) + b"a\xffb",
    "it holds a key twice: 'k'": encode_beginning(keys=2) + key("k", UINT8, b"\0") * 2,
    "it holds a tensor twice: 't'": encode_beginning(tensors=2) + tensor("t") + tensor("t", offset=1024),
    "'k' is not a number": file_with_key("k", FLOAT32, NAN32),
    "'kk' is not a number": file_with_key("kk", FLOAT64, NAN64),
    "'kkk' is not a number": file_with_key("kkk", ARRAY, u32(FLOAT32) + u64(2) + bytes(4) + NAN32),
    f"'{'k' * 75}...' is not a number": file_with_key("k" * 1000, FLOAT32, NAN32),
    "tensor 't' is larger than any file": encode_beginning(tensors=1) + tensor(dimensions=(2**32, 2**31), kind=F32),
    "tensor 'u' is larger than any file": encode_beginning(tensors=1) + tensor("u", dimensions=(2**63, 0)),
    "tensor 'v' is larger than any file": encode_beginning(tensors=1) + tensor("v", (2**61,), F32),
    "tensor 'w' is larger than any file": encode_beginning(tensors=1) + tensor("w", offset=2**64 - 32),
    "a row of tensor 't' does not fill its blocks of 256 (Q4_K)": encode_beginning(tensors=1)
    + tensor("t", (128, 2), Q4_K),
    "a row of tensor 'u' does not fill its blocks of 256 (Q4_K)": encode_beginning(tensors=1) + tensor("u", (), Q4_K),
    "tensor 't' begins at byte 33, which is not a multiple of 32": encode_beginning(tensors=1) + tensor(offset=33),
    "tensor 't' begins at byte 32 of the data in place of 0": encode_beginning(tensors=1) + tensor(offset=32),
    "tensor 'b' begins at byte 992 of the data in place of 1,024": (
        encode_beginning(tensors=2) + tensor("a") + tensor("b", offset=992)
    ),
    "tensor 'b' begins at byte 1,056 of the data in place of 1,024": (
        encode_beginning(tensors=2) + tensor("a") + tensor("b", offset=1056)
    ),
    "tensor 'b' begins at byte 0 of the data in place of 1,024": encode_beginning(tensors=2)
    + tensor("a")
    + tensor("b"),
    "qwen35moe.block_count is 4,294,967,295": file_of_qwen35moe("context_length", 1, blocks=2**32 - 1),
    "qwen35moe.nextn_predict_layers is -1": file_of_qwen35moe("nextn_predict_layers", -1),
    "qwen35moe.nextn_predict_layers is 42": file_of_qwen35moe("nextn_predict_layers", 42),
    "split.count is -1": file_with_key("split.count", INT32, struct.pack("<i", -1)),
    "split.count is 65,535": file_with_key("split.count", UINT32, u32(65535)),
    "split.no is 1": file_with_key("split.no", UINT32, u32(1)),
    "its architecture is named 'a\\x1b[2Jb'": file_with_key("general.architecture", STRING, text("a\x1b[2Jb")),
}


class TestNonsense:
    @pytest.mark.parametrize("why", NONSENSE)
    def test_nonsense_is_refused_with_its_reason(self, place: Path, why: str) -> None:
        with pytest.raises(ModelBroken) as broken:
            read(place, NONSENSE[why])
        assert broken.value.title == f"model.gguf is damaged or incomplete: {why}."
        assert broken.value.hint == "Download it again."
        assert isinstance(broken.value.title, Message)
        reason = broken.value.title.facts["why"]
        assert isinstance(reason, Message)
        assert reason.template, "the window translates it"

    def test_an_older_version_is_read(self, place: Path) -> None:
        content = encode_beginning(version=2, keys=1) + text("general.name") + u32(STRING) + text("Old")
        assert read(place, content).name == "Old"

    def test_an_unknown_quant_type_has_no_known_size(self, place: Path) -> None:
        header = read(place, encode_beginning(tensors=1) + tensor(kind=4711) + bytes(64))
        assert (header.tensors[0].quant, header.tensors[0].n_bytes) == ("type 4711", None)
        check_complete(header)

    def test_any_offset_after_a_tensor_of_unknown_size_is_accepted(self, place: Path) -> None:
        header = read(
            place, encode_beginning(tensors=2) + tensor("a", kind=4711) + tensor("b", offset=4096) + bytes(8192)
        )
        assert [t.offset for t in header.tensors] == [0, 4096]

    @pytest.mark.parametrize(("version", "hint"), [(1, "newer file"), (4, "Update"), (65535, "Update")])
    def test_an_unsupported_version_is_not_reported_as_damage(self, place: Path, version: int, hint: str) -> None:
        with pytest.raises(ModelBroken, match=f"is a GGUF file of version {version}, which") as broken:
            read(place, encode_beginning(version=version))
        assert hint in broken.value.hint

    def test_big_endian_files_are_named(self, place: Path) -> None:
        with pytest.raises(ModelBroken, match="big-endian") as broken:
            read(place, b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
        assert "little-endian" in broken.value.hint

    def test_infinity_is_read_as_a_number(self, place: Path) -> None:
        content = file_with_key("k", FLOAT32, struct.pack("<f", float("inf")))
        assert read(place, content).metadata == {"k": float("inf")}

    def test_control_characters_of_a_name_are_made_visible(self, place: Path) -> None:
        assert (
            read(place, file_with_key("general.name", STRING, text("\x1b[2J Tiny\n" + "y" * 999))).name[:9]
            == "[2J Tinyy"
        )
        assert len(read(place, file_with_key("general.name", STRING, text("y" * 999))).name) == 120

    def test_text_that_is_not_utf8_is_read(self, place: Path) -> None:
        content = encode_beginning(keys=1) + text("general.name") + u32(STRING) + u64(3) + b"a\xffb"
        assert read(place, content).name == "a\N{REPLACEMENT CHARACTER}b"
