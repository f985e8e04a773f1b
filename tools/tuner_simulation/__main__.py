"""Command line: `python -m tools.tuner_simulation [--tunes N] [--write FILE]`; exit code 1 when a promise is missed."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported: its matrices are small here

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.tuning.goal import Aim, Goal
from tools.tuner_simulation.report import (
    grid_table,
    kept_table,
    kinds_table,
    lengths_table,
    promises,
    results_table,
)
from tools.tuner_simulation.run import Outcome, exhaustives, tunes

BEGIN = "<!-- the tables are made by `python -m tools.tuner_simulation --tunes 1000 --write docs/tuning.md` -->\n"
END = "<!-- end of the tables -->\n"
BUDGET_S, DEFAULT_S = 3_600.0, 600.0
_SHARE = 5
"""Side studies take a fifth of the machines."""


def main() -> int:
    """Simulate, print the tables, and put them where they are to go."""
    parser = argparse.ArgumentParser(prog="python -m tools.tuner_simulation", description="The tuner, judged.")
    parser.add_argument("--tunes", type=int, default=1_000, metavar="N", help="machines to tune (1,000)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this document")
    chosen = parser.parse_args()
    some = range(max(4, chosen.tunes // _SHARE))
    outcomes = tunes(range(chosen.tunes), Goal(), BUDGET_S)
    tied = tunes(some, Goal(), DEFAULT_S, tied=True)
    searched = {visits: exhaustives(some, Goal(), visits) for visits in (1, 2, 4)}
    kept = promises(outcomes, tied)
    parts = [
        kept_table(kept),
        "The grid:\n",
        grid_table(),
        f"{len(outcomes):,} machines, an hour at most:\n",
        kinds_table(outcomes),
        "Forecasts by draft length, of all these tunes:\n",
        lengths_table(outcomes),
        f"Other times, grids and goals, and exhaustive search, {len(some):,} machines each:\n",
        results_table([*_side_studies(some), *_searches(searched)]),
    ]
    text = "\n".join(parts)
    if chosen.write:
        before, _, rest = chosen.write.read_text("utf-8").partition(BEGIN)
        chosen.write.write_text(before + BEGIN + text + END + rest.partition(END)[2], "utf-8")
    print(text, end="")
    return 0 if all(promise.kept for promise in kept) else 1


def _side_studies(numbers: range) -> list[tuple[str, Sequence[Outcome]]]:
    return [
        ("10 minutes, small grid", tunes(numbers, Goal(), DEFAULT_S, small=True)),
        ("20 minutes, small grid", tunes(numbers, Goal(), 2 * DEFAULT_S, small=True)),
        ("10 minutes, large grid", tunes(numbers, Goal(), DEFAULT_S)),
        ("20 minutes, large grid", tunes(numbers, Goal(), 2 * DEFAULT_S)),
        ("goal: time to answer", tunes(numbers, Goal(Aim.ANSWER), BUDGET_S)),
        ("goal: tokens per joule", tunes(numbers, Goal(Aim.ENERGY), BUDGET_S)),
    ]


def _searches(searched: dict[int, list[Outcome]]) -> list[tuple[str, Sequence[Outcome]]]:
    words = {1: "once", 2: "twice", 4: "four times"}
    return [(f"every setting {words[visits]}, the best taken", found) for visits, found in searched.items()]


if __name__ == "__main__":
    sys.exit(main())
