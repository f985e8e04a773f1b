"""Heap settings of the C library against fragmentation."""

import sys

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 2**17
"""glibc's initial value, see mallopt(3)."""


def fix_mmap_threshold() -> bool:
    """Fix glibc's mmap threshold at 128 KiB; return True if the C library supports that.

    glibc starts there, but raises the threshold, to 32 MiB at most, when the first large block is freed, and then takes
    such blocks from the heap. asyncio reads into 256 KiB buffers and shrinks them to the data, some 50 times a second
    while an engine works. The holes that this leaves between longer-lived blocks make the heap grow.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES))
