"""Fills in four functions that wine 8's ucrtbase.dll lacks and numpy calls: fill_in.py UCRTBASE.DLL, in place.

Each returns one part of a complex number (C, Annex G). By Microsoft's x64 convention a pair of floats is passed in RCX,
a pair of doubles through the pointer in RCX, and the result in XMM0. They overwrite wine's "not implemented" stubs. The
mark by which wine recognises its own file is removed, so that wine loads the copy in the prefix.
"""
# ruff: noqa: T201

import struct
import sys
from pathlib import Path

MARK = b"Wine builtin DLL"
CODE = {
    "crealf": "66 0f 6e c1 c3",  # movd xmm0, ecx; ret
    "cimagf": "48 c1 e9 20 66 0f 6e c1 c3",  # shr rcx, 32; movd xmm0, ecx; ret
    "creal": "f2 0f 10 01 c3",  # movsd xmm0, [rcx]; ret
    "cimag": "f2 0f 10 41 08 c3",  # movsd xmm0, [rcx + 8]; ret
}
STUB = bytes.fromhex("48 83 ec 28 48 8d 0d")
"""First bytes of a "not implemented" stub of wine."""


def fill_in(image: bytearray) -> list[str]:
    """Write the functions; return their names."""
    header = struct.unpack_from("<I", image, 0x3C)[0]
    count, optional = struct.unpack_from("<H12xH", image, header + 6)
    sections = [struct.unpack_from("<IIII", image, header + 24 + optional + 40 * each + 8) for each in range(count)]

    def at(address: int) -> int:
        return next(raw + address - start for size, start, _, raw in sections if start <= address < start + size)

    table = at(struct.unpack_from("<I", image, header + 24 + 112)[0])
    names, functions, name_table, ordinals = struct.unpack_from("<IIII", image, table + 24)
    done = []
    for each in range(names):
        start = at(struct.unpack_from("<I", image, at(name_table) + 4 * each)[0])
        name = image[start : image.index(0, start)].decode()
        if name in CODE:
            ordinal = struct.unpack_from("<H", image, at(ordinals) + 2 * each)[0]
            place, code = at(struct.unpack_from("<I", image, at(functions) + 4 * ordinal)[0]), bytes.fromhex(CODE[name])
            if image.startswith(STUB, place):
                image[place : place + len(code)] = code
                done.append(name)
    image[image.index(MARK) : image.index(MARK) + len(MARK)] = bytes(len(MARK))
    return done


if __name__ == "__main__":
    path = Path(sys.argv[1])
    content = bytearray(path.read_bytes())
    print("filled in:", *fill_in(content))
    path.write_bytes(content)
