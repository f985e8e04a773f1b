"""Large blocks are never allocated in the C heap, whatever was freed before."""

import platform
import subprocess
import sys

# Freeing 4 MiB moves glibc's limit above 300 KB. mallinfo counts the bytes of blocks with a mapping of their own
# in its fifth number, hblkhd (f4).
_PROBE = """
import ctypes, sys
from launcher.base.heap import fix_mmap_threshold

class Info(ctypes.Structure):
    _fields_ = [(f"f{i}", ctypes.c_int) for i in range(10)]

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.mallinfo.restype = Info
if sys.argv[1] == "apart":
    assert fix_mmap_threshold()
libc.free(libc.malloc(2**22))
before = libc.mallinfo().f4
held = libc.malloc(300_000)
print(libc.mallinfo().f4 - before)
"""


def mapped_bytes(mode: str) -> int:
    result = subprocess.run([sys.executable, "-c", _PROBE, mode], capture_output=True, text=True, check=True)
    return int(result.stdout)


def test_a_large_block_gets_its_own_mapping_even_after_other_blocks_were_freed() -> None:
    if platform.libc_ver()[0] != "glibc":
        from launcher.base.heap import fix_mmap_threshold

        assert not fix_mmap_threshold()
        return
    assert mapped_bytes("as it is") == 0
    assert mapped_bytes("apart") >= 300_000
