"""Reads what `gui --demo --page cockpit --screenshot` told and fails unless the plots hold curves: plots.py FILE.

These are the plots that any computer has, each with values of several seconds.
"""
# ruff: noqa: T201

import json
import sys
from pathlib import Path

WANTED = {"rate": "tokens_per_second", "acceptance": "acceptance_percent", "host": "host_cpu_percent"}
LEAST = 20


def main(told: dict[str, dict[str, dict[str, int]]]) -> int:
    """Say what each plot shows."""
    plots = told.get("plots", {})
    drawn = {plot: plots.get(plot, {}).get(curve, 0) for plot, curve in WANTED.items()}
    print("; ".join(f"{plot}: {len(plots.get(plot, {}))} curves, {points} points" for plot, points in drawn.items()))
    return 0 if min(drawn.values()) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text("utf-8"))))
