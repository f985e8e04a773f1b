"""What `bench` and `attach --bench` share: how many rounds, and how far the measurement is."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.cli.terminal import InPlace

if TYPE_CHECKING:
    from launcher.tuning.measure import OnRun
    from launcher.tuning.records import Run


def runs(text: str) -> int:
    """Read how often each prompt is asked, for argparse."""
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError("it is a number from 1 to 100")
    return int(text)


@contextmanager
def round_line(of: int | None, *, quiet: bool) -> Iterator[OnRun]:
    """Show the latest reply on a terminal, in place, until the block ends. `of` None: it goes on until it is sure."""
    line = InPlace(quiet=quiet)

    def show(run: Run, number: int) -> None:
        which = "warm-up" if not number else f"round {number}" if of is None else f"round {number} of {of}"
        speed = run.error or run.spoilt or (f"{run.decode_rate:.1f} tokens/s" if run.decode_rate else "too short")
        line.show(f"{which}, {run.prompt}: {speed}")

    try:
        yield show
    finally:
        line.clear()
