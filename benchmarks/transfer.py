"""How fast a file arrives over loopback, verified and on the disk, beside curl with openssl and huggingface_hub."""

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Interval, paired_ratio, summary
from benchmarks.report import Row
from benchmarks.workplace import ROOT
from launcher.base.paths import cache_dir

_SIZE, _LIMITED_SIZE = 2**31, 2**29
_RATE = 30_000_000
_PEER = "huggingface_hub==2.4.0"
_PEER_FOLDER = cache_dir() / "benchmarks" / "huggingface_hub"


@dataclass(frozen=True, slots=True)
class Run:
    """One download: seconds of the whole process or processes, their processor time, and their peak memory."""

    seconds: float
    cpu_s: float
    peak_mb: float | None


def run(*, quick: bool) -> list[Row]:
    """Make the file, serve it, and fetch it in turn."""
    with tempfile.TemporaryDirectory(prefix="mtp-benchmark-") as name:
        folder = Path(name)
        source = folder / "model.bin"
        sha256 = _write(source, _SIZE)
        peer = _peer()
        with _server(source) as url:
            runs = [_round(url, folder, sha256, peer) for _ in range(2 if quick else 6)]
        rows = _rows(*zip(*runs, strict=True))
        sha256 = _write(source, _LIMITED_SIZE)
        with _server(source, _RATE) as url:
            pairs = [
                tuple(_ours(url, folder / "ours", _LIMITED_SIZE, sha256, connections) for connections in (1, 8))
                for _ in range(1 if quick else 3)
            ]
        alone, together = zip(*pairs, strict=True)
    gain = [one.seconds / other.seconds for one, other in pairs]
    megabytes = _LIMITED_SIZE / 1e6
    return [
        *rows,
        Row(
            f"{_RATE / 1e6:.0f} MB/s per connection from the server: up to 8 over one ({megabytes:.0f} MB)",
            ">= 3 times",
            summary(gain, "times", 1),
            min(gain) >= 3,
        ),
        Row("the same, with one", "-", summary([megabytes / each.seconds for each in alone], "MB/s", 0), None),
        Row("the same, with up to 8", "-", summary([megabytes / each.seconds for each in together], "MB/s", 0), None),
    ]


def _rows(ours: Sequence[Run], curl: Sequence[Run], peer: Sequence[Run]) -> list[Row]:
    faster = _ratio(curl, ours)
    than_peer = _ratio(peer, ours)
    peak = [each.peak_mb or 0.0 for each in ours]
    gib = _SIZE / 2**30
    rows = [
        Row(
            "2 GiB over loopback, verified and fsynced: speed over that of `curl -o` and then `openssl dgst -sha256`",
            ">= 0.9",
            _told(faster, len(ours)),
            faster.estimate >= 0.9,
        ),
        Row(
            "the same over huggingface_hub's `hf_hub_download` (which neither verifies nor fsyncs)",
            ">= 1",
            _told(than_peer, len(ours)),
            than_peer.estimate >= 1,
        ),
        Row("peak memory meanwhile", "< 120 MB", summary(peak, "MB", 0), max(peak) < 120),
    ]
    for words, runs in (("ours", ours), ("curl and openssl", curl), ("huggingface_hub", peer)):
        rows += [
            Row(f"{words}: whole process", "-", summary([each.seconds for each in runs], "s", 2), None),
            Row(f"{words}: processor time per GiB", "-", summary([each.cpu_s / gib for each in runs], "s", 2), None),
        ]
    return rows


def _told(ratio: Interval, pairs: int) -> str:
    return f"{ratio.estimate:.2f} (95 %: {ratio.lower:.2f} to {ratio.upper:.2f}, n {pairs} pairs)"


def _ratio(others: Sequence[Run], ours: Sequence[Run]) -> Interval:
    return paired_ratio([each.seconds for each in others], [each.seconds for each in ours])


def _round(url: str, folder: Path, sha256: str, peer: Path) -> tuple[Run, Run, Run]:
    """Fetch it in the three ways, each to a new file, none while another's is still being written to the disk."""
    return (
        _ours(url, folder / "ours", _SIZE, sha256, 8),
        _timed(folder / "curl", ["curl", "-s", "-o", "TARGET", url], ["openssl", "dgst", "-sha256", "TARGET"]),
        _timed(
            folder / "peer",
            [str(peer), str(Path(__file__).with_name("transfer_peer.py")), url.rpartition("/")[0], str(folder / "hub")],
        ),
    )


def _ours(url: str, target: Path, size: int, sha256: str, connections: int) -> Run:
    child = [sys.executable, "-m", "benchmarks.transfer_child", url, "TARGET", str(size), sha256, str(connections)]
    return _timed(target, child)


def _timed(target: Path, *commands: Sequence[str]) -> Run:
    environment = dict(
        os.environ, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1"
    )
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for command in commands:
        filled = [str(target) if part == "TARGET" else part for part in command]
        told = subprocess.run(filled, check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout
    seconds, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = json.loads(told)["peak_mb"] if told.startswith("{") else None
    for left in (target, target.with_name("hub") / "model.bin"):
        left.unlink(missing_ok=True)
    os.sync()
    return Run(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak)


def _write(path: Path, size: int) -> str:
    """Write random bytes and return their hash."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(size // 2**20):
            block = os.urandom(2**20)
            digest.update(block)
            file.write(block)
    os.sync()
    return digest.hexdigest()


@contextmanager
def _server(path: Path, rate: int | None = None) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.transfer_server", str(path), *([str(rate)] if rate else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            yield program.stdout.readline().strip()
        finally:
            program.stdin.close()


def _peer() -> Path:
    """Return a Python that has huggingface_hub; made once, then cached."""
    python = _PEER_FOLDER / "bin" / "python"
    if not python.exists():
        print(f"Installing {_PEER} into {_PEER_FOLDER} ...", file=sys.stderr, flush=True)
        venv.create(_PEER_FOLDER, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", _PEER], check=True)
    return python
