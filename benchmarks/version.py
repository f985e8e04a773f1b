"""Measures `mtp-launcher --version` from outside, in turn with an empty interpreter."""

from collections.abc import Iterator

from benchmarks.measure import process_seconds
from benchmarks.reference import Interpreter
from benchmarks.report import Row
from benchmarks.workplace import command

_LIMIT = 30


def run(*, quick: bool) -> Iterator[Row]:
    """Run the command and an empty interpreter in turn."""
    ours, seconds, bare = [*command(), "--version"], [], Interpreter()
    process_seconds(ours)  # the first run reads files from the disk
    for _ in range(10 if quick else 40):
        seconds.append(process_seconds(ours))
        bare.start()
    yield bare.row("`mtp-launcher --version`, whole process", seconds, "s", 3, _LIMIT)
