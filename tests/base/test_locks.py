"""Locks between processes, on a file system that has some and on one that refuses them: a preloaded C library."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FAKES = Path(__file__).parents[1] / "fakes"
HOLDER = """
import sys
from pathlib import Path
from launcher.base.locks import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
CONTENDER = """
import sys
from pathlib import Path
from launcher.base.locks import hold_lock, holder_hint
try:
    with hold_lock(Path(sys.argv[1])):
        print("free")
except TimeoutError as error:
    print(f"busy {holder_hint(error)}".strip())
"""
WRITER = """
import sys
from pathlib import Path
from launcher.base.database import open_database, transaction
db = open_database(Path(sys.argv[1]), ["CREATE TABLE t (a)"], "The table").db
for number in range(25):
    with transaction(db):
        [count] = db.execute("SELECT count(*) FROM t").fetchone()
        db.execute("INSERT INTO t VALUES (?)", (count,))
print(db.execute("PRAGMA journal_mode").fetchone()[0])
db.close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cc = shutil.which("cc")
    assert cc is not None
    path = tmp_path_factory.mktemp("no-locks") / "no_locks.so"
    subprocess.run([cc, "-shared", "-fPIC", "-o", path, FAKES / "no_locks.c", "-ldl"], check=True)
    return path


@pytest.fixture(params=[None, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def share(request: pytest.FixtureRequest, library: Path) -> dict[str, str]:
    """The environment of programs on a share that refuses locks with an error, or on one that has them."""
    refused = {} if request.param is None else {"LD_PRELOAD": str(library), "LOCK_ERRNO": str(request.param)}
    return os.environ | refused


def run(code: str, path: Path, environment: dict[str, str]) -> str:
    command = [sys.executable, "-W", "error", "-c", code, str(path)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout


@contextmanager
def holding(path: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


def test_one_process_holds_a_lock_until_its_end(tmp_path: Path, share: dict[str, str]) -> None:
    lock = tmp_path / "lock"
    with holding(lock, share):
        assert run(CONTENDER, lock, share).startswith("busy")
    assert run(CONTENDER, lock, share) == "free\n"


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path, share: dict[str, str]) -> None:
    lock = tmp_path / "lock"
    with holding(lock, share) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert run(CONTENDER, lock, share) == "free\n"


def test_a_download_whose_lock_cannot_be_released_is_complete(tmp_path: Path, library: Path) -> None:
    """As on SMB mounts, where the deleted lock file cannot be unlocked (huggingface_hub #2038)."""
    code = CONTENDER.replace("Path(sys.argv[1])", "Path(sys.argv[1]), remove=True")
    share = os.environ | {"LD_PRELOAD": str(library), "UNLOCK_FAILS": "1", "LOCK_ERRNO": str(errno.EACCES)}
    for _ in range(2):
        assert run(code, tmp_path / "lock", share) == "free\n"


def test_a_lock_of_another_computer_stays_and_says_what_to_delete(tmp_path: Path, library: Path) -> None:
    lock = tmp_path / "lock"
    share = os.environ | {"LD_PRELOAD": str(library)}
    (tmp_path / "lock.held").write_text("7\nanother-computer\n")
    assert run(CONTENDER, lock, share).startswith(f"busy {lock}.held names the process and computer that hold it.")
    (tmp_path / "lock.held").unlink()
    assert run(CONTENDER, lock, share) == "free\n"


def test_two_writers_of_a_database_wait_for_each_other(tmp_path: Path, share: dict[str, str]) -> None:
    path = tmp_path / "own" / "table.db"
    run(WRITER, path, share)
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, env=share, stdout=subprocess.DEVNULL) as other:
        mode = run(WRITER, path, share)
    assert other.returncode == 0
    assert mode == ("delete\n" if "LD_PRELOAD" in share else "wal\n")
    check = "import sys, sqlite3; print([a for (a,) in sqlite3.connect(sys.argv[1]).execute('SELECT a FROM t')])"
    assert run(check, path, dict(os.environ)) == f"{list(range(75))}\n"


def test_a_database_that_moves_to_a_share_without_locks_can_be_read_there(tmp_path: Path, library: Path) -> None:
    path = tmp_path / "own" / "table.db"
    assert run(WRITER, path, dict(os.environ)) == "wal\n"
    assert run(WRITER, path, os.environ | {"LD_PRELOAD": str(library)}) == "delete\n"


def test_a_database_left_locked_by_a_killed_process_is_opened(tmp_path: Path, library: Path) -> None:
    path = tmp_path / "own" / "table.db"
    path.parent.mkdir()
    left = path.with_name("table.db.lock")
    left.mkdir()
    os.utime(left, (1, 1))
    assert run(WRITER, path, os.environ | {"LD_PRELOAD": str(library)}) == "delete\n"
    assert not left.exists()
