"""Random changes of a valid header: of its fields' values, and of its bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from launcher.models.gguf import QUANTS

from .pieces import ARRAY, SCALAR_BYTES, STRING, Entry, Piece, Pieces, number, text

EDGES = sorted(
    {0, 1, 2, 3, 31, 32, 33, 48, 64, 255, 256, 257, 4096, 4097, 10**6, 2**53}
    | {2**bits + more for bits in (7, 8, 15, 16, 20, 24, 28, 31, 32, 40, 61, 62, 63, 64) for more in (-1, 0, 1)}
)
FLOATS = [bytes.fromhex(digits) for digits in ("0000c07f", "0000807f", "000000000000f87f", "000000000000f07f")]
"""Infinity and "not a number" in both sizes."""
KEYS = [
    "general.alignment",
    "general.architecture",
    "general.name",
    "split.count",
    "split.no",
    "split.tensors.count",
    "tokenizer.ggml.tokens",
    *(f"qwen35moe.{key}" for key in ("block_count", "nextn_predict_layers", "context_length", "vocab_size")),
]
TEXTS = [b"", b"\xff\xfe", b"qwen35moe", b"a" * 70_000, "\N{LLAMA}".encode() * 999, b"\x1b[2J", b"\0", b"\xed\xa0\x80"]
LARGEST_BOMB = 2**22


def change(good: Pieces, other: Pieces, random: Random) -> bytes:
    """Return the bytes of a header like `good` after some changes; pieces may come from `other`."""
    pieces = good.copy()
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        random.choice(_CHANGES)(pieces, other, random)
    if random.random() < 0.8:
        _set_counts(pieces)
    if random.random() < 0.6:
        _set_offsets(pieces)
    data = pieces.data()
    return _change_bytes(data, random) if random.random() < 0.2 else data


def _some_entry(pieces: Pieces, random: Random) -> Entry:
    where = random.random()
    entries = pieces.keys if where < 0.5 else pieces.tensors if where < 0.9 else [pieces.beginning]
    return random.choice(entries or [pieces.beginning])


def _change_number(pieces: Pieces, _: Pieces, random: Random) -> None:
    entry = _some_entry(pieces, random)
    at = random.choice([at for at, piece in enumerate(entry) if piece.kind == "number"])
    size = len(entry[at].data)
    old = int.from_bytes(entry[at].data, "little")
    near = old + random.choice((-32, -1, 1, 32, 256))
    entry[at] = random.choice(
        (
            number(random.choice(EDGES), size),
            number(near, size),
            number(old ^ 1 << random.randrange(8 * size), size),
            number(-old, size),
            number(random.getrandbits(64), size),
            Piece("number", random.choice([data for data in FLOATS if len(data) == size] or [entry[at].data])),
        )
    )


def _change_text(pieces: Pieces, _: Pieces, random: Random) -> None:
    entry = _some_entry(pieces, random)
    at = random.choice([at for at, piece in enumerate(entry) if piece.kind == "text"])
    names = [other[1].data for other in (*pieces.keys, *pieces.tensors) if len(other) > 1]
    entry[at] = Piece("text", random.choice([*TEXTS, *(name.encode() for name in KEYS), *names]))
    if random.random() < 0.8 and at:
        entry[at - 1] = number(len(entry[at].data), 8)


def _set_key(pieces: Pieces, _: Pieces, random: Random) -> None:
    name = random.choice(KEYS).encode()
    if random.random() < 0.7:
        pieces.keys = [entry for entry in pieces.keys if len(entry) < 2 or entry[1].data != name]
    pieces.keys.insert(random.randint(0, len(pieces.keys)), [*text(name), *_typed_value(random)])


def _typed_value(random: Random, depth: int = 0) -> Entry:
    kind = random.choice((*SCALAR_BYTES, STRING, ARRAY, 13))
    if kind == STRING:
        return [number(kind, 4), *text(random.choice(TEXTS))]
    if kind == ARRAY and depth < 3:
        inner = _typed_value(random, depth + 1)
        return [number(kind, 4), inner[0], number(1, 8), *inner[1:]]
    size = SCALAR_BYTES.get(kind, 4)
    return [number(kind, 4), number(random.choice(EDGES), size)]


def _add_bomb(pieces: Pieces, _: Pieces, random: Random) -> None:
    """Add a long array of zero bytes, which in an array of texts are empty texts. It is rarely very long, because that
    is slow.
    """
    largest = LARGEST_BOMB if random.random() < 0.01 else 2**14
    count = random.choice([edge for edge in EDGES if edge <= largest])
    kind = random.choice((*SCALAR_BYTES, STRING))
    zeros = Piece("blob", bytes(count * SCALAR_BYTES.get(kind, 8)))
    name = text(b"%d" % random.getrandbits(32))
    pieces.keys.append([*name, number(ARRAY, 4), number(kind, 4), number(count, 8), zeros])


def _lists(pieces: Pieces, random: Random) -> list[Entry]:
    return pieces.keys if random.random() < 0.5 else pieces.tensors


def _drop_entry(pieces: Pieces, _: Pieces, random: Random) -> None:
    entries = _lists(pieces, random)
    if entries:
        entries.pop(random.randrange(len(entries)))


def _double_entry(pieces: Pieces, _: Pieces, random: Random) -> None:
    entries = _lists(pieces, random)
    if entries:
        entries.insert(random.randint(0, len(entries)), list(random.choice(entries)))


def _swap_entries(pieces: Pieces, _: Pieces, random: Random) -> None:
    entries = _lists(pieces, random)
    if entries:
        one, other = random.randrange(len(entries)), random.randrange(len(entries))
        entries[one], entries[other] = entries[other], entries[one]


def _borrow(pieces: Pieces, other: Pieces, random: Random) -> None:
    entry = list(random.choice(other.keys if random.random() < 0.5 else other.tensors or other.keys))
    entries = _lists(pieces, random)
    entries.insert(random.randint(0, len(entries)), entry)


_CHANGES: list[Callable[[Pieces, Pieces, Random], None]] = [
    *[_change_number] * 6,
    *[_change_text] * 2,
    *[_set_key] * 2,
    _add_bomb,
    _drop_entry,
    _double_entry,
    _swap_entries,
    _borrow,
]


def _set_counts(pieces: Pieces) -> None:
    pieces.beginning[2:] = [number(len(pieces.tensors), 8), number(len(pieces.keys), 8)]


def _set_offsets(pieces: Pieces) -> None:
    """Let each tensor begin where the previous one ends, as far as their entries can still be read."""
    offset = 0
    for entry in pieces.tensors:
        entry[-1] = number(offset, 8)
        *_, kind, _last = (int.from_bytes(piece.data, "little") for piece in entry)
        elements = math.prod(int.from_bytes(piece.data, "little") for piece in entry[3:-2])
        quant = QUANTS.get(kind)
        offset += -(-(quant.n_bytes(elements) if quant else 0) // 32) * 32


def _change_bytes(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        begin = random.randrange(len(changed) + 1)
        length = random.choice((1, 1, 4, 8, 100))
        match random.randrange(5):
            case 0:
                changed[begin : begin + length] = random.randbytes(length)
            case 1:
                changed[begin:begin] = random.randbytes(length)
            case 2:
                del changed[begin : begin + length]
            case 3:
                del changed[begin:]
            case _:
                changed[begin : begin + 8] = number(random.choice(EDGES), 8).data
    return bytes(changed)
