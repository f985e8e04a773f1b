"""Measures reading a header with a large vocabulary, each time in a new process, in turn with an empty interpreter. A
complete run also uses the `gguf` package.
"""

import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gguf import GGUFWriter

from benchmarks.measure import format_summary, paired_ratio
from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import ROOT

_TOKENS = 152_064  # Qwen2.5's vocabulary
_LIMIT, _LIMIT_MB = 18, 30
_LETTERS = "etaoinshrdlucmfwypvbgkqjxz"


def run(*, quick: bool) -> Iterator[Row]:
    """Write the file, and read it repeatedly, in turn with the reference."""
    bare, ours, package = Interpreter(), [], []
    with tempfile.TemporaryDirectory(prefix="mtp-benchmark-") as folder:
        path = Path(folder) / "vocabulary.gguf"
        _write_header(path)
        for _ in range(5 if quick else 6):
            bare.start()
            ours.append(_time_reading("ours", path))
            if not quick:
                package.append(_time_reading("package", path))
        n_bytes = path.stat().st_size
    seconds, megabytes = zip(*ours, strict=True)
    what = f"header with {_TOKENS:,} tokens and their merges ({n_bytes / 1e6:.1f} MB)"
    yield bare.row(what, seconds, "s", 3, _LIMIT)
    yield Row(
        "growth of memory while reading",
        format_summary(megabytes, "MB", 1),
        limit=f"< {_LIMIT_MB} MB",
        kept=statistics.median(megabytes) < _LIMIT_MB,
    )
    if package:
        package_s, package_mb = zip(*package, strict=True)
        ratio = paired_ratio(package_s, seconds)
        yield Row(
            "the same by GGUFReader of the gguf package",
            format_summary(package_s, "s", 2),
            ratio=f"{ratio.estimate:.0f} times (95 %: {ratio.lower:.0f} to {ratio.upper:.0f})",
        )
        yield Row("growth of memory meanwhile", format_summary(package_mb, "MB", 0))


def _write_header(path: Path) -> None:
    """Write a GGUF header with random tokens and merges, as long as those of a byte-pair tokenizer.

    A merge is two tokens with a blank between them.
    """
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


def _time_reading(reader: str, path: Path) -> tuple[float, float]:
    """Return the seconds, and the growth of the peak memory in MB."""
    command = [sys.executable, "-m", "benchmarks.header_child", reader, str(path)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    seconds, megabytes = map(float, result.stdout.split())
    return seconds, megabytes
