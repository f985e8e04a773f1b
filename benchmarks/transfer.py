"""Measures how fast a file is downloaded over loopback, verified and synced to disk, compared with curl and openssl. A
complete run also compares it with huggingface_hub, whose downloads take three times as long.
"""

import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Interval, format_summary, paired_ratio
from benchmarks.report import Row
from benchmarks.workplace import ROOT
from launcher.base.paths import cache_dir

_SIZE, _LIMITED_SIZE = 2**31, 2**29
_QUICK_SIZE, _QUICK_LIMITED_SIZE = 2**28, 2**26
_RATE = 30_000_000
_PEER = "huggingface_hub==2.4.0"
_PEER_FOLDER = cache_dir() / "benchmarks" / "huggingface_hub"


@dataclass(frozen=True, slots=True)
class Run:
    """One download: seconds of the whole process or processes, their processor time, and their peak memory."""

    seconds: float
    cpu_s: float
    peak_mb: float | None


def run(*, quick: bool) -> Iterator[Row]:
    """Create the file, serve it, and download it in each way in turn."""
    size, limited_size = (_QUICK_SIZE, _QUICK_LIMITED_SIZE) if quick else (_SIZE, _LIMITED_SIZE)
    with tempfile.TemporaryDirectory(prefix="mtp-benchmark-") as name:
        folder = Path(name)
        source = folder / "model.bin"
        sha256 = _write_file(source, size)
        peer = None if quick else _find_peer_python()
        with _run_server(source) as url:
            runs = [_download_each(url, folder, size, sha256, peer) for _ in range(6)]
        yield from _rows(runs, size)
        sha256 = _write_file(source, limited_size)
        with _run_server(source, _RATE) as url:
            pairs = [
                tuple(
                    _time_own_download(url, folder / "ours", limited_size, sha256, connections)
                    for connections in (1, 8)
                )
                for _ in range(1 if quick else 3)
            ]
        alone, together = zip(*pairs, strict=True)
    gain = [one.seconds / other.seconds for one, other in pairs]
    megabytes = limited_size / 1e6
    yield Row(
        f"{_RATE / 1e6:.0f} MB/s per connection from the server: up to 8 connections ({megabytes:.0f} MB)",
        format_summary([megabytes / each.seconds for each in together], "MB/s", 0),
        f"one connection: {statistics.median(megabytes / each.seconds for each in alone):.0f} MB/s",
        format_summary(gain, "times", 1),
        "-" if quick else ">= 3 times",  # too short to reach all connections
        None if quick else min(gain) >= 3,
    )


def _rows(runs: Sequence[dict[str, Run]], size: int) -> Iterator[Row]:
    limits = {"curl and openssl": 0.9, "huggingface_hub": 1.0}
    ours = [each["ours"] for each in runs]
    what = f"{size / 2**30:.2g} GiB over loopback, verified and synced to disk"
    peers = {
        "curl and openssl": f"{what}: speed relative to `curl -o` followed by `openssl dgst -sha256`",
        "huggingface_hub": "the same relative to `hf_hub_download` of huggingface_hub (no check, no sync)",
    }
    for name in [name for name in peers if name in runs[0]]:
        others = [each[name] for each in runs]
        faster = _compare_seconds(others, ours)
        yield Row(
            peers[name],
            format_summary([each.seconds for each in ours], "s", 2),
            f"{name}: {statistics.median(each.seconds for each in others):.2f} s",
            _format_ratio(faster, len(ours)),
            f">= {limits[name]:g} times",
        ).judged_by(faster, limits[name], at_least=True)
    peak = [each.peak_mb or 0.0 for each in ours]
    yield Row("peak memory meanwhile", format_summary(peak, "MB", 0), limit="< 120 MB", kept=max(peak) < 120)
    for name in runs[0]:
        cpu_s = [each[name].cpu_s / (size / 2**30) for each in runs]
        yield Row(f"{name}: processor time per GiB", format_summary(cpu_s, "s", 2))


def _format_ratio(ratio: Interval, pairs: int) -> str:
    return f"{ratio.estimate:.2f} (95 %: {ratio.lower:.2f} to {ratio.upper:.2f}, n {pairs} pairs)"


def _compare_seconds(others: Sequence[Run], ours: Sequence[Run]) -> Interval:
    return paired_ratio([each.seconds for each in others], [each.seconds for each in ours])


def _download_each(url: str, folder: Path, size: int, sha256: str, peer: Path | None) -> dict[str, Run]:
    """Download the file in each way to a new file, never while an earlier one is still being written to the disk."""
    runs = {
        "ours": _time_own_download(url, folder / "ours", size, sha256, 8),
        "curl and openssl": _time_command(
            folder / "curl", ["curl", "-s", "-o", "TARGET", url], ["openssl", "dgst", "-sha256", "TARGET"]
        ),
    }
    if peer is not None:
        script = Path(__file__).with_name("transfer_peer.py")
        words = [str(peer), str(script), url.rpartition("/")[0], str(folder / "hub")]
        runs["huggingface_hub"] = _time_command(folder / "peer", words)
    return runs


def _time_own_download(url: str, target: Path, size: int, sha256: str, connections: int) -> Run:
    child = [sys.executable, "-m", "benchmarks.transfer_child", url, "TARGET", str(size), sha256, str(connections)]
    return _time_command(target, child)


def _time_command(target: Path, *commands: Sequence[str]) -> Run:
    environment = dict(
        os.environ, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1"
    )
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for command in commands:
        filled = [str(target) if part == "TARGET" else part for part in command]
        output = subprocess.run(filled, check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout
    seconds, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = json.loads(output)["peak_mb"] if output.startswith("{") else None
    for left in (target, target.with_name("hub") / "model.bin"):
        left.unlink(missing_ok=True)
    os.sync()
    return Run(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak)


def _write_file(path: Path, size: int) -> str:
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
def _run_server(path: Path, rate: int | None = None) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.transfer_server", str(path), *([str(rate)] if rate else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            yield program.stdout.readline().strip()
        finally:
            program.stdin.close()


def _find_peer_python() -> Path:
    """Return the path of a Python with huggingface_hub; its environment is created once and reused."""
    python = _PEER_FOLDER / "bin" / "python"
    if not python.exists():
        print(f"Installing {_PEER} into {_PEER_FOLDER} ...", file=sys.stderr, flush=True)
        venv.create(_PEER_FOLDER, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", _PEER], check=True)
    return python
