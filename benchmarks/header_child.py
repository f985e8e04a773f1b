"""Reads one header in a process of its own: `python -m benchmarks.header_child ours|package FILE`.

Prints the seconds, without imports, and by how many MB the process's peak memory grew.
"""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path


def reader(whose: str) -> Callable[[Path], object]:
    """Return the reader, and load nothing of the other: what its import freed would hide what is used."""
    if whose == "package":
        from gguf import GGUFReader

        return GGUFReader
    from launcher.models.gguf import read_header

    return read_header


def main() -> None:
    """Read the file that the command line names."""
    read, path = reader(sys.argv[1]), Path(sys.argv[2])
    before_kib, began_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    header = read(path)
    seconds = time.perf_counter() - began_s
    print(seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) * 1024 / 1e6)
    del header


if __name__ == "__main__":
    main()
