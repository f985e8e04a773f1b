"""GPU memory of an engine process besides llama.cpp's buffers and CUDA's pool: driver, context and libraries.

Published runs with this memory are in presets/evidence/overheads.csv; `just accuracy` compares them with the formula.
"""

import csv
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from launcher.base.paths import shipped_file
from launcher.machine.cards import Card
from launcher.models.compute_buffers import Backend

USUAL_MIB: Mapping[Backend, int] = MappingProxyType(
    {
        # For an unknown card. CUDA: the middle of seven measured cards. Processor: 249 MB resident
        # before any weights are read, measured on our own machine.
        "cuda": 330,
        "rocm": 330,
        "vulkan": 330,
        "metal": 330,
        "cpu": 240,
    }
)
_CUDA_MIB, _CUDA_MIB_PER_THREADS = 54, 1.975
"""CUDA's overhead grows with the threads that a card can keep resident, by 1,024 of them: each has local memory. Least
squares over nine measured cards, off by at most 33 MiB. A V100 takes 72 less."""
_THREADS = dict.fromkeys(("ga100", "gb100", "gp100", "hopper", "pascal", "volta"), 2_048) | {"turing": 1_024}
"""Resident threads of a multiprocessor by generation, 1,536 for others (CUDA C++ Programming Guide: technical
specifications per compute capability)."""


def expected_overhead_mib(
    backend: Backend, card: Card | None, *, system: str | None = None, driver: str | None = None
) -> int:
    """Return the overhead on one GPU in MiB: that of a published run on such a card, else one by the card's size.

    Runs under the same operating system (`system` as in Host.kind) and driver release are preferred; of several the
    largest counts.
    """
    if card is None or backend == "cpu":
        return USUAL_MIB[backend]
    rows = [row for row in read_overheads() if (row["gpu"], row["backend"]) == (card.name, backend)]
    rows = [row for row in rows if row["os"].casefold() == system] or rows
    rows = [row for row in rows if driver and _driver_release(row["driver"]) == _driver_release(driver)] or rows
    if rows:
        return max(int(row["overhead_mib"]) for row in rows)
    if backend == "cuda" and card.multiprocessors:
        threads = card.multiprocessors * _THREADS.get(card.generation, 1_536)
        return round(_CUDA_MIB + _CUDA_MIB_PER_THREADS * threads / 1_024)
    return USUAL_MIB[backend]


def _driver_release(driver: str) -> str:
    return driver.partition(".")[0]


@cache
def read_overheads() -> tuple[dict[str, str], ...]:
    """Return the rows of the file as text, by column."""
    with shipped_file("presets", "evidence", "overheads.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))
