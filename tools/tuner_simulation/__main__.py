"""Command line: `python -m tools.tuner_simulation [--json | --write FILE]`.

With --json it prints the figures of one simulation; otherwise all tables. Exit code 1 when a promise is missed.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported: its matrices are small here

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from launcher.tuning.goal import Aim, Goal
from tools.tuner_simulation.machine import Surroundings
from tools.tuner_simulation.report import (
    check_drafter_promises,
    check_promises,
    compute_figures,
    figures_table,
    grid_table,
    kept_table,
    kinds_table,
    lengths_table,
)
from tools.tuner_simulation.run import Outcome, simulate_exhaustive_searches, simulate_tunes

COMMAND = "python -m tools.tuner_simulation --first 50000 --tunes 1000 --write docs/tuning.md"
BEGIN = f"<!-- the tables are made by `{COMMAND}` -->\n"
END = "<!-- end of the tables -->\n"
BUDGET_S = 600.0
USUAL = Surroundings(load_s=20.0, small=True)
"""The main simulation: a start takes 20 s, and the grid is like the default one."""
_SHARE = 5
"""Divisor of the number of machines for the additional simulations."""


def main() -> int:
    """Simulate, and print or write the figures or the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.tuner_simulation", description="Judge the tuner on simulated machines."
    )
    parser.add_argument("--first", type=int, default=50_000, metavar="N", help="number of the first machine (50,000)")
    parser.add_argument("--tunes", type=int, default=1_000, metavar="N", help="machines to tune (1,000)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this document")
    parser.add_argument("--json", action="store_true", help="print the figures of one simulation as JSON")
    parser.add_argument("--load-s", type=float, metavar="S", help="with --json: seconds of a start (drawn: 5 to 12)")
    parser.add_argument("--budget", type=float, default=10.0, metavar="MIN", help="with --json: minutes (10)")
    parser.add_argument("--noise", type=float, metavar="PERCENT", help="with --json: noise of a reply (drawn: 1 to 8)")
    parser.add_argument("--throttling", action="store_true", help="with --json: an episode every five minutes")
    parser.add_argument("--large", action="store_true", help="with --json: the large grid")
    parser.add_argument("--drafters", action="store_true", help="with --json: two to four drafters on each machine")
    chosen = parser.parse_args()
    numbers = range(chosen.first, chosen.first + chosen.tunes)
    if chosen.json:
        around = Surroundings(
            load_s=chosen.load_s,
            noise=None if chosen.noise is None else chosen.noise / 100,
            throttling=chosen.throttling,
            small=not chosen.large,
            several=chosen.drafters,
        )
        print(json.dumps(asdict(compute_figures(simulate_tunes(numbers, Goal(), 60 * chosen.budget, around)))))
        return 0
    text, kept = _all_tables(numbers)
    if chosen.write:
        before, _, rest = chosen.write.read_text("utf-8").partition(BEGIN)
        chosen.write.write_text(before + BEGIN + text + END + rest.partition(END)[2], "utf-8")
    print(text, end="")
    return 0 if kept else 1


def _all_tables(numbers: range) -> tuple[str, bool]:
    """Return the tables, and whether all promises are kept."""
    some = numbers[: max(4, len(numbers) // _SHARE)]
    loads = {
        load: simulate_tunes(numbers, Goal(), BUDGET_S, Surroundings(load_s=load, small=True))
        for load in (2.0, 9.0, 20.0)
    }
    situations = [(f"load {load:.0f} s", outcomes) for load, outcomes in loads.items()]
    for noise in (0.05, 0.15, 0.4):
        around = Surroundings(load_s=20.0, noise=noise, small=True)
        situations.append((f"load 20 s, noise {100 * noise:.0f} %", simulate_tunes(numbers, Goal(), BUDGET_S, around)))
    around = Surroundings(load_s=20.0, throttling=True, small=True)
    situations.append(("load 20 s, throttling", simulate_tunes(numbers, Goal(), BUDGET_S, around)))
    several = simulate_tunes(numbers, Goal(), BUDGET_S, replace(USUAL, several=True))
    situations.append(("load 20 s, two to four drafters", several))
    large = Surroundings(load_s=20.0)
    sides = [
        ("load 20 s, large grid", simulate_tunes(some, Goal(), BUDGET_S, large)),
        ("load 20 s, 20 minutes", simulate_tunes(some, Goal(), 2 * BUDGET_S, USUAL)),
        ("load 20 s, large grid, an hour", simulate_tunes(some, Goal(), 6 * BUDGET_S, large)),
        ("goal: time to answer", simulate_tunes(some, Goal(Aim.ANSWER), BUDGET_S, USUAL)),
        ("goal: tokens per joule", simulate_tunes(some, Goal(Aim.ENERGY), BUDGET_S, USUAL)),
    ]
    tied = simulate_tunes(some, Goal(), BUDGET_S, Surroundings(load_s=20.0, tied=True, small=True))
    pooled = [outcome for outcomes in loads.values() for outcome in outcomes]
    kept = [*check_promises(loads[20.0], pooled, tied), *check_drafter_promises(several)]
    words = {1: "once", 2: "twice", 4: "four times"}
    searches: list[tuple[str, Sequence[Outcome]]] = [
        (f"every setting {words[visits]}, the best taken", simulate_exhaustive_searches(some, Goal(), visits, USUAL))
        for visits in words
    ]
    parts = [
        kept_table(kept),
        f"Ten minutes flat, small grid, {len(numbers):,} machines each:",
        figures_table(situations),
        f"Other grids, times and goals, {len(some):,} machines each:",
        figures_table([*sides, ("no setting matters", tied)]),
        f"Load 20 s by kind of machine and by noise, and exhaustive search ({len(some):,} machines):",
        kinds_table(loads[20.0], searches),
        "Forecasts by draft length after ten minutes, load 20 s:",
        lengths_table(loads[20.0]),
        "The grid:",
        grid_table(),
    ]
    return "\n\n".join(parts) + "\n", all(promise.kept for promise in kept)


if __name__ == "__main__":
    sys.exit(main())
