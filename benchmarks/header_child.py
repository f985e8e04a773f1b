"""Reads one header in a process of its own: `python -m benchmarks.header_child ours|package FILE`.

Prints the seconds that this takes without imports, and by how many MB the process's peak memory grows.
"""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path


def reader(whose: str) -> Callable[[Path], object]:
    """Return the function that reads a header. Only its module is imported: memory freed by the import of the other one
    would be reused, and the peak would look too small.
    """
    if whose == "package":
        from gguf import GGUFReader

        return GGUFReader
    from launcher.models.gguf import read_header

    return read_header


def peak_kib() -> int:
    """Return the peak memory of this process in KiB. getrusage would include that of the process that started it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    if found is None:
        raise OSError("this kernel does not report VmHWM")
    return int(found[1])


def main() -> None:
    """Read the file that the command line names."""
    read, path = reader(sys.argv[1]), Path(sys.argv[2])
    before_kib, began_s = peak_kib(), time.perf_counter()
    header = read(path)
    seconds = time.perf_counter() - began_s
    print(seconds, (peak_kib() - before_kib) * 1024 / 1e6)
    del header


if __name__ == "__main__":
    main()
