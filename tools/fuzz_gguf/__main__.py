"""Command line: `python -m tools.fuzz_gguf [--seconds N | --cases N] [--seed N]`.

Each case is a valid header with random changes; a seed and a case number always give the same one. The reader must
return a consistent header, or raise ModelBroken or ModelMissing, within a second of processor time and 50 MiB.
Everything else is a fault: it is printed, its file is kept if --keep names a folder, and the exit code is 1. POSIX
only.
"""

from __future__ import annotations

import argparse
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePath
from random import Random
from types import FrameType

from launcher.base.errors import ModelBroken, ModelMissing
from launcher.models.gguf import GgufHeader, GgufModel, check_complete, join_parts, parse_header, read_model

from .changes import change
from .seeds import Seeds, make_seeds

MIB = 2**20
_NAMES = [f"model-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
_DETAIL = re.compile(r"'.*'|\".*\"|-?\d[\d,]*|\S+\.gguf|\w+\.[\w.]+(?= is)")
_TAIL = re.compile(r"(begins with|alignment is|is named|blocks of|in its folder:) .*")


class TooSlow(BaseException):
    """The reader exceeded its processor time. A BaseException, so that the reader cannot catch it."""


@contextmanager
def limits(seconds: float, mib: float) -> Iterator[None]:
    """Limit processor time, by a signal, and additional memory, by the size of the address space."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow

    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    signal.signal(signal.SIGVTALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + int(mib * MIB), before[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)


class Case:
    """The model files of one test case, made from its seed and number, and `asked`, the file to read."""

    def __init__(self, seeds: Seeds, seed: int, number: int) -> None:
        random = Random(f"{seed} {number}")
        self.file_bytes = random.choice((None, 2**20, 2**40, 2**62))
        good = random.choice((*seeds.files, None))
        if good is not None:
            self.files = {"model.gguf": change(good, random.choice(seeds.files), random)}
            self.asked = "model.gguf"
            return
        whole = [part.data() for part in seeds.parts]
        for index in random.sample(range(3), random.choice((0, 1, 1, 2, 3))):
            whole[index] = change(seeds.parts[index], random.choice(seeds.parts), random)
        if random.random() < 0.1:
            random.shuffle(whole)
        self.files = dict(zip(_NAMES, whole, strict=True))
        for name in random.sample(_NAMES, random.choice((0, 0, 0, 0, 1, 2))):
            del self.files[name]
        self.asked = random.choice(_NAMES)

    def read(self, folder: Path) -> GgufModel:
        """Read the model: a single file from memory, several from `folder`."""
        if len(self.files) == 1 and self.asked in self.files:
            data = self.files[self.asked]
            header = parse_header(BytesIO(data), PurePath(self.asked), self.file_bytes or len(data))
            if header.split_count == 1:
                return join_parts([header])
        for name in _NAMES:
            (folder / name).unlink(missing_ok=True)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        return read_model(folder / self.asked)

    def write_files(self, folder: Path) -> None:
        """Write the files to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


def check_consistency(model: GgufModel) -> None:
    """Raise AssertionError if the facts in a model that was read contradict each other."""
    for part in model.parts:
        _check_header(part)
    assert len(model.tensors) == sum(len(part.tensors) for part in model.parts)
    assert len({tensor.name for tensor in model.tensors}) == len(model.tensors)
    for text in (model.name, model.architecture):
        assert text, "a model has a name"
        assert text.isprintable(), f"{text!r} would move a cursor"
    assert model.vocabulary is None or model.vocabulary >= 0
    assert model.has_mtp_head in (True, False)
    assert model.promised_heads <= (model.block_count or 2**12)


def _check_header(header: GgufHeader) -> None:
    end = 0
    for tensor in header.tensors:
        assert tensor.offset >= end, f"{tensor} overlaps the one before"
        end = tensor.offset + (tensor.n_bytes or 0)
    assert end < 2**63
    assert header.needed_bytes == header.data_offset + max(
        (tensor.offset + (tensor.n_bytes or 0) for tensor in header.tensors), default=0
    )
    for value in header.metadata.values():
        assert isinstance(value, int | float | str | tuple)
        assert value == value, "not a number"
        assert not isinstance(value, tuple) or len(value) <= 4096
    assert all(length >= 0 for length in header.array_lengths.values())


def run_case(case: Case, folder: Path, seconds: float, mib: float) -> str:
    """Run one case. Return "read", or the title of the expected error with its names and numbers replaced by "*"."""
    try:
        with limits(seconds, mib):
            model = case.read(folder)
            check_consistency(model)
            check_complete(*model.parts)
    except (ModelBroken, ModelMissing) as error:
        return _DETAIL.sub("*", _TAIL.sub(r"\1 *", error.title))
    return "read"


def main() -> int:
    """Run cases for a time or up to a number, and print how many had which outcome."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_gguf", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long to run (default 600)")
    parser.add_argument("--cases", type=int, help="run this number of cases instead")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random changes (default 0)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first case")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the files of faulty cases in this folder")
    parser.add_argument("--case-seconds", type=float, default=1.0, help="processor time limit of a case (default 1)")
    parser.add_argument("--case-mib", type=float, default=50, help="memory limit of a case in MiB (default 50)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mtp-fuzz-") as folder:
        seeds = make_seeds(Path(folder))
        outcomes, faults, longest_s, done = Counter[str](), 0, 0.0, 0
        ends_s = time.monotonic() + chosen.seconds
        while done < chosen.cases if chosen.cases is not None else time.monotonic() < ends_s:
            number = chosen.first + done
            case = Case(seeds, chosen.seed, number)
            began_s = time.process_time()
            try:
                outcomes[run_case(case, Path(folder), chosen.case_seconds, chosen.case_mib)] += 1
            except (Exception, TooSlow) as error:  # noqa: BLE001 -- whatever it is, it is a fault
                faults += 1
                print(f"case {number} of seed {chosen.seed}: {error!r}", file=sys.stderr)
                traceback.print_exc(limit=-4)
                if chosen.keep:
                    case.write_files(chosen.keep / f"{chosen.seed}-{number}")
            longest_s = max(longest_s, time.process_time() - began_s)
            done += 1
    for outcome, count in outcomes.most_common():
        print(f"{count:9,}  {outcome}")
    read = outcomes["read"]
    print(f"seed {chosen.seed}: {done:,} cases, {read:,} read, {done - read - faults:,} refused, {faults:,} faults;")
    print(f"the longest took {longest_s:.3f} s of processor time")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
