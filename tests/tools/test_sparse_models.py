"""Model files with the shapes of real models but without data: headers, sizes, and that the real engine reads them."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from launcher.models.gguf import MtpHead, check_complete, read_header
from tools.sparse_models import __main__ as generator
from tools.sparse_models.geometry import Geometry
from tools.sparse_models.models import NAMES, Types, assign_types, model, n_bytes
from tools.sparse_models.write import write

BUILT_IN = Path(__file__).parents[2] / "launcher" / "engine" / "builtin.py"
ROW = re.compile(r"\| +- Host .*\| +\d+ = +(?P<model>\d+) \+ +(?P<context>\d+) \+ +(?P<compute>\d+) ")
PUBLISHED_BYTES = {
    "qwen35moe-35b-iq3_s": 15_346_432_288,
    "qwen35moe-35b-q3_k_xl": 17_227_569_440,
    "qwen35moe-35b-iq4_xs": 18_209_036_576,
    "qwen35moe-35b-q4_k_m": 22_663_387_424,
    "qwen35-27b-q4_k_s": 15_358_213_024,
    "qwen35-27b-q4_k_m": 17_106_773_120,
    "qwen35-9b-q4_k_m": 5_868_826_976,
    "gemma4-31b-iq4_xs": 16_372_460_480,
    "gemma4-31b-draft-q8_0": 514_687_104,
}
PUBLISHED_TENSORS = {
    "qwen35moe-35b-q4_k_m": 753,
    "qwen35moe-35b-q4_k_m-nomtp": 733,
    "qwen35-27b-q4_k_m": 866,
    "gemma4-31b-iq4_xs": 833,
    "llama-8b-q4_k": 292,
    "qwen3moe-30b-q4_k": 579,
}


@pytest.fixture
def write_named(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        path = tmp_path / f"{name}.gguf"
        write(path, name, model(name))
        return path

    return make


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_whole_and_takes_kilobytes(name: str, write_named: Callable[[str], Path]) -> None:
    header = read_header(path := write_named(name))
    check_complete(header)
    assert header.needed_bytes == header.file_bytes == path.stat().st_size
    assert path.stat().st_blocks * 512 < 100_000
    assert {tensor.name: (tensor.dimensions, tensor.quant) for tensor in header.tensors} == model(name).tensors
    assert sum(tensor.n_bytes or 0 for tensor in header.tensors) == model(name).tensor_bytes
    assert header.trained_context == model(name).metadata["context_length"]
    assert header.vocabulary == header.tensors[0].dimensions[1]


def test_the_gguf_package_reads_the_same_tensors(write_named: Callable[[str], Path]) -> None:
    reader = gguf.GGUFReader(write_named("qwen35moe-35b-q3_k_xl"))
    found = {tensor.name: (tuple(map(int, tensor.shape)), tensor.tensor_type.name) for tensor in reader.tensors}
    assert found == model("qwen35moe-35b-q3_k_xl").tensors
    sections = reader.get_field("qwen35moe.rope.dimension_sections")
    assert sections is not None
    assert sections.contents() == [11, 11, 10, 0]


@pytest.mark.parametrize("name", PUBLISHED_BYTES)
def test_the_data_is_as_large_as_that_of_the_published_file(name: str) -> None:
    vocabulary = 10_987_000 if name.startswith("qwen") else 15_768_000
    assert model(name).tensor_bytes == pytest.approx(PUBLISHED_BYTES[name] - vocabulary, rel=1e-3)


@pytest.mark.parametrize("name", PUBLISHED_TENSORS)
def test_there_are_as_many_tensors_as_in_the_published_file(name: str) -> None:
    assert len(model(name).tensors) == PUBLISHED_TENSORS[name]


@pytest.mark.parametrize(("name", "head"), [("qwen35-9b-q4_k_m", True), ("qwen35-9b-q4_k_m-nomtp", False)])
def test_the_head_is_present_or_left_out(name: str, head: bool, write_named: Callable[[str], Path]) -> None:
    header = read_header(write_named(name))
    assert header.mtp_head is (MtpHead.PRESENT if head else MtpHead.NONE)
    assert header.block_count == 32 + head
    assert any(tensor.name.startswith("blk.32.") for tensor in header.tensors) is head


def test_only_a_model_with_an_mtp_block_can_lose_it() -> None:
    with pytest.raises(ValueError, match="llama has no MTP block"):
        model("llama-8b-q4_k").without_head()
    with pytest.raises(ValueError, match="gemma4-assistant has no MTP block"):
        model("gemma4-31b-draft-q8_0").without_head()


def test_writing_takes_less_than_ten_times_as_long_as_reading(tmp_path: Path) -> None:
    path, largest = tmp_path / "largest.gguf", model("qwen35-27b-q4_k_m")
    before_s = time.process_time()
    write(path, "largest", largest)
    written_s = time.process_time()
    read_header(path)
    assert written_s - before_s < 10 * (time.process_time() - written_s)


def test_rows_must_fill_their_blocks() -> None:
    assert n_bytes((512, 3), "Q4_K") == 2 * 3 * 144
    with pytest.raises(ValueError, match="rows of 128 elements do not fill blocks of Q4_K"):
        n_bytes((128, 2), "Q4_K")


def test_fillers_are_promoted_down_projections_first_until_the_bytes_are_closest() -> None:
    shape = (256, 256)
    names = [f"blk.{block}.ffn_{part}.weight" for block in range(2) for part in ("gate", "up", "down")]
    geometry = Geometry("llama", {}, dict.fromkeys(names, shape))
    low, high = n_bytes(shape, "Q4_K"), n_bytes(shape, "Q6_K")
    plain = Types("Q8_0", "Q8_0", "Q8_0", "Q4_K")
    assert assign_types(geometry, plain).tensor_bytes == 6 * low
    for wanted in range(7):
        types = Types("Q8_0", "Q8_0", "Q8_0", "Q4_K", "Q6_K", 6 * low + wanted * (high - low) + 100)
        made = assign_types(geometry, types)
        promoted = [name for name, (_, quant) in made.tensors.items() if quant == "Q6_K"]
        assert len(promoted) == wanted
        assert set(promoted) >= {name for name in names if "down" in name} or wanted < 2


def test_the_command_writes_the_models_that_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator.main([str(tmp_path / "new"), "--model", "llama-8b-q4_k", "--model", "gemma3-12b-q4_k"])
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["gemma3-12b-q4_k.gguf", "llama-8b-q4_k.gguf"]
    assert "llama-8b-q4_k.gguf: 4,653,393,728 bytes" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        generator.main([str(tmp_path), "--model", "gpt-5"])
    with pytest.raises(ValueError, match="gpt-5 is none of"):
        model("gpt-5")


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("name", "flags", "contexts"),
    [
        # KV of 10 full-attention blocks in q8_0 and 3 copies of the recurrent state; the head's KV in f16.
        ("qwen35moe-35b-q3_k_xl", "-c 262144 -ub 256 -ctk q8_0 -ctv q8_0 --spec-draft-n-max 2", [2_908, 512]),
        ("qwen35moe-35b-iq3_s-nomtp", "-c 262144 -ub 256 -ctk q8_0 -ctv q8_0", [2_782]),
        ("qwen35-27b-q4_k_s", "-c 262144 -ub 256 -ctk q4_0 -ctv q4_0 --spec-draft-n-max 2", [5_056, 1_024]),
        ("qwen35-9b-q4_k_m", "-c 32768 --spec-draft-n-max 3", [1_225, 128]),
        ("llama-8b-q4_k", "-c 32768", [4_096]),
        ("qwen3moe-30b-q4_k", "-c 32768", [3_072]),
        # 8 blocks hold the whole context, 40 a window of 1,024 and one ubatch.
        ("gemma3-12b-q4_k", "-c 32768", [2_528]),
        # 10 blocks of 4 heads of 512, and 50 of 16 heads of 256 that hold a window and one ubatch.
        ("gemma4-31b-iq4_xs", "-c 32768", [3_760]),
    ],
)
def test_the_engine_plans_the_memory_of_the_true_model(
    name: str, flags: str, contexts: list[int], write_named: Callable[[str], Path]
) -> None:
    path = write_named(name)
    common = ["-np", "1", "-fa", "on", "-t", "1", "-lv", "4", "--port", "0", "--no-ui"]
    if "--spec-draft-n-max" in flags:
        common += ["--spec-type", "draft-mtp"]
    assert planned_contexts(["-m", str(path), *flags.split(), *common], len(contexts)) == contexts


def planned_contexts(flags: list[str], tables: int) -> list[int]:
    """Context memory in MiB by table: the target's, then the MTP context's; the engine ends before it loads weights."""
    command = [sys.executable, "-P", str(BUILT_IN), *flags]
    found: list[int] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as engine:
        assert engine.stdout is not None
        time_limit = threading.Timer(30, engine.kill)
        time_limit.start()
        lines: list[str] = []
        for line in engine.stdout:
            lines.append(line.decode("utf-8", "replace"))
            if row := ROW.search(lines[-1]):
                found.append(int(row["context"]))
            if len(found) == tables:
                break
        time_limit.cancel()
        engine.kill()
    assert len(found) == tables, "".join(lines[-10:])
    return found
