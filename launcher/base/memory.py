"""What the C library's heap keeps of the memory that was given back to it."""

import sys

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 2**17
"""glibc's own first value, see mallopt(3)."""


def keep_large_blocks_apart() -> bool:
    """Let blocks of 128 KiB and more be mapped one by one from now on; return whether the C library has that.

    glibc begins so, but with the first large block that is freed it moves the limit up, to 32 MiB at most, and carves
    such blocks out of the heap from then on. asyncio reads into 256 KiB and cuts them to what came, some 50 times a
    second while an engine works, so the heap must keep holes of that size between what lives longer, and it grows.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES))
