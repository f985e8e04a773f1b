"""Some thousand randomly changed headers, the same ones each time, and the fuzzer's own limits."""

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base.errors import ModelBroken
from launcher.models.gguf import GgufModel, read_header, read_model, read_raw_header
from tools.fuzz_gguf.__main__ import Case, TooSlow, run_case
from tools.fuzz_gguf.pieces import take_apart
from tools.fuzz_gguf.seeds import Seeds, make_seeds

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seeds")


@pytest.fixture(scope="module")
def seeds(folder: Path) -> Seeds:
    return make_seeds(folder)


def test_each_header_is_read_or_refused() -> None:
    command = [sys.executable, "-m", "tools.fuzz_gguf", "--cases", "4000", "--seed", "1"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert "seed 1: 4,000 cases, " in result.stdout
    assert " 0 faults" in result.stdout
    for outcome in ("  read\n", "is incomplete", "it holds a key twice", "do not belong together"):
        assert outcome in result.stdout


def test_a_header_is_unchanged_by_splitting_and_joining(folder: Path, seeds: Seeds) -> None:
    paths = sorted(folder.glob("*.gguf"))
    assert len(paths) == len(seeds.files) + len(seeds.parts)
    for path in paths:
        header = read_raw_header(read_header(path))
        assert take_apart(header).data() == header


def test_the_seed_files_are_valid(folder: Path, seeds: Seeds) -> None:
    assert [read_model(path).has_mtp_head for path in sorted(folder.glob("*.gguf"))].count(True) == 6
    assert any(entry[1].data == b"tokenizer.ggml.tokens" for entry in seeds.files[0].keys)


def test_a_case_is_reproducible(seeds: Seeds) -> None:
    assert vars(Case(seeds, 5, 7)) == vars(Case(seeds, 5, 7))
    assert vars(Case(seeds, 5, 7)) != vars(Case(seeds, 5, 8))


class Ill(Case):
    """A case whose reader is at fault."""

    def __init__(self, do: str) -> None:
        self.do = do

    def read(self, _: Path) -> GgufModel:
        while self.do == "toil":
            pass
        if self.do == "hoard":
            bytearray(2**26)
        if self.do == "refuse":
            raise ModelBroken("x.gguf is damaged or incomplete: it holds a key twice: 'a'.")
        raise KeyError(self.do)


@pytest.mark.parametrize(("do", "fault"), [("toil", TooSlow), ("hoard", MemoryError), ("stumble", KeyError)])
def test_an_error_of_the_reader_fails_the_case(folder: Path, do: str, fault: type[BaseException]) -> None:
    with pytest.raises(fault):
        run_case(Ill(do), folder, 0.05, 32)


def test_refusals_are_counted_by_reason(folder: Path) -> None:
    assert run_case(Ill("refuse"), folder, 1, 32) == "* is damaged or incomplete: it holds a key twice: *."
