"""Twins of models: sparse files of the same size without data, deleted afterwards."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base.errors import TwinImpossible
from launcher.engine.engine_estimate import TwinPart, sparse_twin
from launcher.models.gguf import read_header, read_raw_header
from tools.sparse_models.models import model
from tools.sparse_models.write import write

GIB = 2**30
PART = TwinPart("model.gguf", b"GGUF" + bytes(1_000), 21 * GIB)
MAKE = """
import sys
from launcher.base.errors import TwinImpossible
from launcher.engine.engine_estimate import TwinPart, sparse_twin
try:
    with sparse_twin([TwinPart("model.gguf", b"GGUF" + bytes(1_000), 21 * 2**30)]) as path:
        print(path, flush=True)
        sys.stdin.read()
except TwinImpossible as error:
    print(error.title)
    print(error.hint)
"""
# A file system without sparse files allocates a file's whole size.
NO_HOLES = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
static int fill(int file, off64_t length) {
    if (length > (1L << 30)) { errno = EFBIG; return -1; }
    int error = posix_fallocate64(file, 0, length);
    if (error) { errno = error; return -1; }
    return 0;
}
int ftruncate(int file, off_t length) { return fill(file, length); }
int ftruncate64(int file, off64_t length) { return fill(file, length); }
"""


def make_twin(**options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAKE], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, **options
    )  # type: ignore[call-overload, no-any-return]


def list_twins(home: Path) -> list[Path]:
    return list((home / "cache" / "twins").iterdir())


def test_a_sparse_twin_has_the_header_and_size_but_no_data(tmp_path: Path, home: Path) -> None:
    original = tmp_path / "35b.gguf"
    write(original, "35b", model("qwen35moe-35b-q3_k_xl"))
    raw, size = read_raw_header(read_header(original)), original.stat().st_size
    with sparse_twin([TwinPart(original.name, raw, size)]) as twin:
        assert twin.name == original.name
        known = twin.stat()
        assert known.st_size == size > 16 * GIB
        assert known.st_blocks * 512 < len(raw) + 2**17
        assert read_header(twin).tensors == read_header(original).tensors
    assert not twin.exists()
    assert list_twins(home) == []


def test_a_twin_is_deleted_after_an_error(home: Path) -> None:
    with pytest.raises(RuntimeError), sparse_twin([PART]) as twin:
        raise RuntimeError(twin)
    assert list_twins(home) == []


def test_parts_of_a_split_model_have_twins_with_their_names(tmp_path: Path) -> None:
    names = [f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    parts = [TwinPart(name, b"GGUF" + bytes(100), (number + 1) * GIB) for number, name in enumerate(names)]
    with sparse_twin(parts, tmp_path / "here") as first:
        assert first.name == names[0]
        assert sorted(path.name for path in first.parent.iterdir()) == names
        assert (first.parent / names[1]).stat().st_size == 2 * GIB


def test_a_twin_is_private() -> None:
    with sparse_twin([PART]) as twin:
        assert twin.parent.stat().st_mode & 0o077 == 0


def test_twins_of_killed_processes_are_deleted_and_those_of_running_ones_kept(home: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        theirs = Path(other.stdout.readline().strip())
        with sparse_twin([PART]) as mine:
            assert theirs.exists()
            assert mine.exists()
        assert theirs.exists()
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert theirs.exists()
    with sparse_twin([PART]) as mine:
        assert list_twins(home) == [mine.parent]


def test_other_files_are_not_deleted(home: Path) -> None:
    strange = home / "cache" / "twins" / "notes"
    strange.mkdir(parents=True)
    elsewhere = strange.parent / "another-computer-1-1.00-x"
    elsewhere.mkdir()
    with sparse_twin([PART]):
        pass
    assert strange.exists()
    assert elsewhere.exists()


def test_a_limit_on_file_sizes_is_reported(home: Path) -> None:
    result = make_twin(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (GIB, GIB)))
    title, hint = result.stdout.splitlines()
    assert title.startswith("The engine cannot compute the memory: ")
    assert "File too large" in title
    assert hint.startswith("Set MTP_LAUNCHER_HOME to a folder on a disk with sparse files")
    assert list_twins(home) == []


def test_a_file_system_without_sparse_files_is_detected(home: Path, tmp_path: Path) -> None:
    source, library = tmp_path / "no_holes.c", tmp_path / "no_holes.so"
    source.write_text(NO_HOLES)
    cc = shutil.which("cc")
    assert cc, "a C compiler is needed: ./test installs one"
    subprocess.run([cc, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    result = make_twin(env=os.environ | {"LD_PRELOAD": str(library)})
    assert "(its file system has no sparse files)." in result.stdout
    assert list_twins(home) == []


def test_an_impossible_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "twins"
    with pytest.raises(TwinImpossible, match="Not a directory") as impossible, sparse_twin([PART], folder):
        pass
    assert str(folder) in impossible.value.title
    assert impossible.value.facts["folder"] == str(folder)
