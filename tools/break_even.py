"""Prints from how many tokens a state on disk is faster than reading a prompt again, for all cards and three disks.

    python -m tools.break_even

Measured on an H100 with a model of 27 billion weights (2026-11): 16,000 tokens read in 7.8 s, states of 1.65 GB (KV
cache f16) and 1.16 GB (q8_0), restored from memory in 0.92 and 0.61 s. Cards read as much slower as their arithmetic
is; a file is first read from the disk, to compare its digest, then restored as on the H100.
"""

from collections.abc import Iterator

from launcher.gateway.state_keeper import is_worth_restoring
from launcher.machine.cards import Card, find_card, list_cards
from launcher.models.pass_time import generation_factors
from tools.markdown import format_table

_TOKENS, _READ_S = 16_000, 7.8
_F16_BYTES, _Q8_BYTES = 1.65e9, 1.16e9
_Q8_SHARE = 34 / 64
"""Bytes of q8_0 for each of f16: a block of 32 numbers has 34 bytes."""
_RESTORED_S = 1.65e9 / 0.92
"""Bytes that the engine restores in a second."""
_DISKS = {"0.5 GB/s": 0.5e9, "3 GB/s": 3e9, "7 GB/s": 7e9}
_STEP, _MOST = 256, 262_144


def _arithmetic(card: Card) -> float:
    return card.tflops * generation_factors(card).compute


def _rows() -> Iterator[tuple[str, ...]]:
    reference = _arithmetic(find_card("H100 80GB HBM3"))
    per_token = (_F16_BYTES - _Q8_BYTES) / (1 - _Q8_SHARE) / _TOKENS
    fixed = _F16_BYTES - per_token * _TOKENS
    for card in list_cards():
        speed = _TOKENS / _READ_S * _arithmetic(card) / reference
        row = [card.name, f"{speed:,.0f}", f"{_TOKENS / speed:.1f} s"]
        for bytes_s in _DISKS.values():

            def restore_s(tokens: int, disk_s: float = bytes_s) -> float:
                size = fixed + per_token * tokens
                return size / disk_s + size / _RESTORED_S

            least = next((n for n in range(_STEP, _MOST, _STEP) if is_worth_restoring(n / speed, restore_s(n))), None)
            row += [f"{restore_s(_TOKENS):.1f} s", "never" if least is None else f"{least:,}"]
        yield tuple(row)


def main() -> None:
    """Print the table."""
    head = ["card", "tokens/s", f"{_TOKENS:,} read in"]
    for disk in _DISKS:
        head += [f"restored, {disk}", "from tokens"]
    print(format_table(head, [*_rows()]))


if __name__ == "__main__":
    main()
