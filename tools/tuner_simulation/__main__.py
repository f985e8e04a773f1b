"""Command line: `python -m tools.tuner_simulation [--tunes N] [--write]`. Exit code 1 when a promise is not kept."""

import argparse
import sys
from pathlib import Path

from launcher.tuning.goal import Aim, Goal
from tools.tuner_simulation.report import (
    budgets_table,
    grid_table,
    kept_table,
    kinds_table,
    lengths_table,
    promises,
)
from tools.tuner_simulation.run import exhaustives, tunes

BEGIN = "<!-- the tables are made by `python -m tools.tuner_simulation --write docs/tuning.md` -->\n"
END = "<!-- end of the tables -->\n"
BUDGET_S = 3_600.0
_SHORTER_S = (600.0, 1_200.0)
_FEWER = 5
"""Side studies take a fifth of the machines."""


def main() -> int:
    """Simulate, print the tables, and put them where they are to go."""
    parser = argparse.ArgumentParser(prog="python -m tools.tuner_simulation", description="The tuner, judged.")
    parser.add_argument("--tunes", type=int, default=1_000, metavar="N", help="machines to tune (1,000)")
    parser.add_argument("--only-main", action="store_true", help="leave out other budgets, goals and searches")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this document")
    chosen = parser.parse_args()
    main_numbers, some = range(chosen.tunes), range(max(4, chosen.tunes // _FEWER))
    goal = Goal()
    outcomes = tunes(main_numbers, goal, BUDGET_S)
    tied = tunes(some, goal, BUDGET_S, tied=True)
    kept = promises(outcomes, tied)
    parts = [
        kept_table(kept),
        "The grid:\n",
        grid_table(),
        f"{chosen.tunes:,} machines, an hour at most (at 100 tokens/s; slower ones in proportion longer):\n",
        kinds_table(outcomes),
        "Forecasts by draft length, of all these tunes:\n",
        lengths_table(outcomes),
    ]
    if not chosen.only_main:
        rows = [(f"{seconds / 60:.0f} minutes at most", tunes(some, goal, seconds)) for seconds in _SHORTER_S]
        rows.append(("10 minutes, small grid", tunes(some, goal, 600.0, small=True)))
        rows += [(f"goal: {aim}", tunes(some, Goal(aim), BUDGET_S)) for aim in (Aim.ANSWER, Aim.ENERGY)]
        for visits, times in ((1, "once"), (2, "twice"), (4, "four times")):
            rows.append((f"every setting {times}, the best taken", exhaustives(some, goal, visits)))
        parts += ["The same with less time, for other goals, and by exhaustive search:\n", budgets_table(rows)]
    text = "\n".join(parts)
    if chosen.write:
        before, _, rest = chosen.write.read_text("utf-8").partition(BEGIN)
        chosen.write.write_text(before + BEGIN + text + END + rest.partition(END)[2], "utf-8")
    print(text, end="")
    return 0 if all(promise.kept for promise in kept) else 1


if __name__ == "__main__":
    sys.exit(main())
