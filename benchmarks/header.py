"""A header with a large vocabulary: our reader and the `gguf` package's, in turn, each time in a new process."""

import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gguf import GGUFWriter

from benchmarks.measure import paired_ratio, summary
from benchmarks.report import Row
from benchmarks.workplace import ROOT

_TOKENS = 152_064  # Qwen2.5's vocabulary
_LIMIT_S, _LIMIT_MB = 0.15, 30
_LETTERS = "etaoinshrdlucmfwypvbgkqjxz"


def run(*, quick: bool) -> list[Row]:
    """Write the file, and read it in turn."""
    with tempfile.TemporaryDirectory(prefix="mtp-benchmark-") as folder:
        path = Path(folder) / "vocabulary.gguf"
        _write(path)
        ours, package = zip(
            *((_read("ours", path), _read("package", path)) for _ in range(2 if quick else 6)), strict=True
        )
        n_bytes = path.stat().st_size
    seconds, megabytes = zip(*ours, strict=True)
    package_s, package_mb = zip(*package, strict=True)
    ratio = paired_ratio(package_s, seconds)
    return [
        Row(
            f"header with {_TOKENS:,} tokens and their merges ({n_bytes / 1e6:.1f} MB)",
            f"< {_LIMIT_S} s",
            summary(seconds, "s", 3),
            statistics.median(seconds) < _LIMIT_S,
        ),
        Row(
            "growth of memory by it",
            f"< {_LIMIT_MB} MB",
            summary(megabytes, "MB", 1),
            statistics.median(megabytes) < _LIMIT_MB,
        ),
        Row("the same by GGUFReader of the gguf package", "-", summary(package_s, "s", 2), None),
        Row("growth of memory by that", "-", summary(package_mb, "MB", 0), None),
        Row(
            "how many times as long GGUFReader takes",
            "-",
            f"{ratio.estimate:.0f} times (95 %: {ratio.lower:.0f} to {ratio.upper:.0f}, n {len(seconds)} pairs)",
            None,
        ),
    ]


def _write(path: Path) -> None:
    """Words of the lengths and with the merges that byte-pair tokenizers have: a merge is two tokens and a blank."""
    choose = random.Random(1)
    words: dict[str, None] = {}
    while len(words) < _TOKENS:
        mark = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}" if choose.random() < 0.5 else ""
        words[mark + "".join(choose.choices(_LETTERS, k=min(12, 2 + int(choose.expovariate(0.25)))))] = None
    tokens = list(words)
    writer = GGUFWriter(path, "qwen35moe")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * _TOKENS)
    writer.add_token_scores([0.0] * _TOKENS)
    cuts = [(token, choose.randint(1, len(token) - 1)) for token in tokens]
    writer.add_token_merges([f"{token[:cut]} {token[cut:]}" for token, cut in cuts])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _read(reader: str, path: Path) -> tuple[float, float]:
    """Return the seconds, and the growth of the peak memory in MB."""
    command = [sys.executable, "-m", "benchmarks.header_child", reader, str(path)]
    told = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    seconds, megabytes = map(float, told.stdout.split())
    return seconds, megabytes
