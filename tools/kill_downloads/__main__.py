"""Command line: `python -m tools.kill_downloads [--kills 200] [--seed N]`. Exit code 1 when a promise is broken.

`mtp-launcher pull URL --sha256 HASH` fetches a file from the tests' fake server, at a limited rate over a redirect, and
is killed (SIGKILL, its whole process) at a random moment, also before it has begun or while it verifies. It is started
again until the file is there, then the next file follows, until there were enough kills. In the end each file must be
right, and nothing may be left beside it. All in all the server may send at most 1 % more bytes than the files have.
"""

import argparse
import hashlib
import lzma
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.base.paths import shipped_file
from tools.fault_matrix.server import FileServer, run_file_server

_LIMIT = 0.01
_MODEL = shipped_file("resources", "demo", "demo.gguf.xz")
_ATTEMPTS = 100
"""The most starts for one file: more cannot be explained by chance, and mean that the download does not progress."""


@dataclass(slots=True)
class Count:
    """The counts of all runs."""

    kills: int = 0
    kills_with_bytes: int = 0
    files: int = 0
    wrong: int = 0
    left_over: int = 0
    file_bytes: int = 0
    sent_bytes: int = 0


def main() -> int:
    """Kill downloads, and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m tools.kill_downloads", description="Downloads survive kill -9.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=512, help="size of one file")
    parser.add_argument("--rate", type=int, default=60, help="MB/s that the server sends on one connection")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    chosen = parser.parse_args()
    chance, count, began_s = random.Random(chosen.seed), Count(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mtp-kills-") as folder:
        served = Path(folder) / "served"
        served.mkdir()
        data = lzma.decompress(_MODEL.read_bytes())  # pull takes no file that is not a model
        data += b"".join(random.Random(chosen.seed + piece).randbytes(10**6) for piece in range(chosen.megabytes))
        (served / "model.gguf").write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        del data
        with run_file_server(served) as server:
            while count.kills < chosen.kills:
                _download_file(
                    Path(folder), server, sha256, f"redirect,slow={chosen.rate * 10**6}", chance, chosen.kills, count
                )
    extra = count.sent_bytes - count.file_bytes
    share = extra / count.file_bytes
    print(f"seed {chosen.seed}: {count.kills} kills, {count.kills_with_bytes} of them with a part of the file there")
    print(f"{count.files} files, {count.wrong} of them wrong, {count.left_over} with something left beside them")
    print(f"{extra:,} bytes of {count.file_bytes:,} were sent twice: {share:.3%} (at most {_LIMIT:.0%})")
    print(f"{time.monotonic() - began_s:.0f} s")
    return 1 if count.wrong or count.left_over or share > _LIMIT or count.kills < chosen.kills else 0


def _choose_moment(chance: random.Random) -> float:
    """Return the seconds until the kill: mostly few, sometimes so many that several connections are open."""
    return chance.uniform(0.05, 1.2) if chance.random() < 0.8 else chance.uniform(1.2, 3.0)


def _download_file(
    folder: Path, server: FileServer, sha256: str, faults: str, chance: random.Random, most: int, count: Count
) -> None:
    run = f"file{count.files}"
    target = folder / run / "model.gguf"
    target.parent.mkdir()
    command = [sys.executable, "-m", "launcher", "pull", server.url(run, faults, target.name), "--sha256", sha256]
    command += ["--to", str(target.parent), "--json"]
    environment = dict(os.environ, MTP_LAUNCHER_HOME=str(folder / "home"), HF_HOME=str(folder / "hf"))
    for _ in range(_ATTEMPTS):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as program:
            try:
                result, _ = program.communicate(timeout=_choose_moment(chance) if count.kills < most else None)
            except subprocess.TimeoutExpired:
                program.kill()
                program.communicate()
                count.kills += 1
                count.kills_with_bytes += target.with_name(f"{target.name}.part").exists()
                continue
        if program.returncode:
            sys.exit(f"it ended by itself with {program.returncode}: {result.decode()}")
        break
    count.files += 1
    count.wrong += hashlib.sha256(target.read_bytes()).hexdigest() != sha256
    left = sorted(path.name for path in target.parent.iterdir() if path != target)
    if left:
        print(f"left beside file {count.files}: {left}", flush=True)
        count.left_over += 1
    count.file_bytes += target.stat().st_size
    count.sent_bytes += server.read_record(run).sent_bytes
    target.unlink()


if __name__ == "__main__":
    sys.exit(main())
