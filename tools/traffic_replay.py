"""Replays simulated weeks of traffic whose kind changes: drafts that follow it, against fixed ones and an oracle.

    python -m tools.traffic_replay [--first 72000] [--weeks 60] [--load-s 20] [--write docs/tuning.md]

Each week is one machine of tools/tuner_simulation with a tune of ten minutes, whose replies are all that is known of
other lengths. In the week clients ask during 8 to 14 hours a day. What they ask has four kinds in turn, so it changes
three times; the acceptance of each is that of a published workload (presets/evidence/acceptance.csv). The acceptance of
replies and the filled context, which makes steps slower, vary, also by the kind.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported: its matrices are small here

import argparse
import asyncio
import csv
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher.base.errors import NothingMeasured
from launcher.models.drafters import NONE
from launcher.tuning.advice import Measured
from launcher.tuning.draft_follower import DraftFollower
from launcher.tuning.goal import Goal
from launcher.tuning.predict import tokens_per_step
from launcher.tuning.tuner import tune
from launcher.tuning.use_counts import UseCounts
from tools.markdown import format_table
from tools.tuner_simulation.bench import SimulatedBench
from tools.tuner_simulation.machine import DRAFTS, Machine, Surroundings, draw_machine
from tools.tuner_simulation.run import WORK

COMMAND = "python -m tools.traffic_replay --first 72000 --weeks 60 --write docs/tuning.md"
BEGIN, END = f"<!-- this table is made by `{COMMAND}` -->\n", "<!-- end of the replayed weeks -->\n"
_EVIDENCE = Path(__file__).parent.parent / "presets" / "evidence" / "acceptance.csv"
_TUNED_FOR = "coding"
_LENGTHS = (0, *DRAFTS)
_DAY_MIN, _WEEK_MIN, _LOOK_MIN = 24 * 60, 7 * 24 * 60, 5
_TEXT_SPREAD, _CONTEXT_SPREAD = 0.15, 0.1
"""Standard deviations: of a reply's acceptance, in logits, and of the logarithm by which its context slows steps."""
_QUIET_S = 2.0
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Week:
    """How a week went: seconds of work by policy, in all and by kind of traffic after its first hour, and restarts."""

    kind: str
    tuned: int
    auto_s: float
    fixed_s: float
    oracle_s: float
    after: tuple[float, ...]
    restarts: int
    undone: int
    looks: int
    waited_s: float
    tuned_s: float

    @property
    def to_fixed(self) -> float:
        """The speed of drafts that follow, as a share of the best fixed length's."""
        return self.fixed_s / self.auto_s


def read_workloads() -> list[dict[str, tuple[int, float]]]:
    """Return the published draft length and tokens per pass by workload, for each model and drafter with several."""
    found: dict[tuple[str, ...], dict[str, tuple[int, float]]] = defaultdict(dict)
    with _EVIDENCE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["tokens_per_pass"] and row["workload"] != "overall":
                key = row["model"], row["quant"], row["drafter"]
                found[key][row["workload"]] = int(row["draft"]), float(row["tokens_per_pass"])
    return [each for each in found.values() if len(each) > 4 and _TUNED_FOR in each]


def find_first_rate(draft: int, tokens: float, decay: float) -> float:
    """Return the acceptance of the first drafted token that yields so many tokens per pass."""
    low, high = 0.02, 0.97
    for _ in range(40):
        rate = (low + high) / 2
        low, high = (rate, high) if _yield(rate, draft, decay) < tokens else (low, rate)
    return rate


def _yield(rate: float, draft: int, decay: float) -> float:
    return tokens_per_step([rate * decay**i for i in range(draft)], draft)


@dataclass(frozen=True, slots=True)
class Traffic:
    """A week, by minute in which clients ask. `phase` is the kind, `work` the tokens, `requests` how many replies.

    `yields` are the expected tokens of a step, and `steps_s` its seconds, for each draft length.
    """

    at_s: Array
    phase: NDArray[np.int_]
    work: Array
    requests: Array
    rates: Array
    yields: Array
    steps_s: Array

    @property
    def seconds(self) -> Array:
        """The seconds that each minute's work takes with each draft length."""
        return np.asarray(self.work[:, None] / self.yields * self.steps_s)


def make_traffic(
    machine: Machine, settings: dict[str, Any], firsts: Sequence[float], dice: np.random.Generator
) -> Traffic:
    """Return a week with a kind of traffic for each of `firsts`, the acceptance of its first drafted tokens."""
    days = [(dice.uniform(7, 10), dice.uniform(8, 14)) for _ in range(7)]
    minutes = np.array(
        [
            day * _DAY_MIN + m
            for day, (begin, long) in enumerate(days)
            for m in range(int(begin * 60), int((begin + long) * 60))
        ]
    )
    cuts = np.sort(dice.uniform(0.08, 0.92, len(firsts) - 1))
    while len(cuts) > 1 and np.diff(cuts).min() < 0.08:
        cuts = np.sort(dice.uniform(0.08, 0.92, len(firsts) - 1))
    phase = np.searchsorted(cuts, np.arange(len(minutes)) / len(minutes))
    asks = np.array([dice.choice((0.5, 1.0, 2.0, 4.0)) for _ in firsts])
    busy = np.array([dice.uniform(0.1, 0.6) for _ in firsts])
    depth = np.array([dice.uniform(0.0, 0.3) for _ in firsts])
    requests = dice.poisson(asks[phase]).astype(float)
    asked = requests > 0
    minutes, phase, requests = minutes[asked], phase[asked], requests[asked]
    root = np.sqrt(requests)
    first = np.array(firsts)[phase]
    odds = np.exp(dice.normal(0, _TEXT_SPREAD, len(minutes)) / root)[:, None]
    nominal = first[:, None] * machine.decay ** np.arange(len(DRAFTS))
    rates = nominal * odds / (1 - nominal + nominal * odds)
    yields = np.concatenate([np.ones((len(minutes), 1)), 1 + np.cumsum(np.cumprod(rates, axis=1), axis=1)], axis=1)
    steps = np.array([machine.step_seconds({**settings, "draft": length}) for length in _LENGTHS])
    context = depth[phase] + dice.normal(0, _CONTEXT_SPREAD, len(minutes)) / root
    noise = dice.normal(0, machine.run_noise, len(minutes)) / root
    work = busy[phase] * 60 / steps[0] * requests / asks[phase]
    steps[[machine.runs_out_of_memory({**settings, "draft": length}) for length in _LENGTHS]] = np.inf
    return Traffic(
        minutes * 60.0, phase, work, requests, rates, yields, steps[None, :] * np.exp(context + noise)[:, None]
    )


def replay_week(number: int, load_s: float = 20.0, budget_s: float = 600.0) -> Week | None:
    """Replay one week after a tune; None if the tune could not measure the baseline."""
    dice = np.random.default_rng((7, number))
    machine = draw_machine(number, Surroundings(load_s=load_s, small=True))
    workloads = read_workloads()[int(dice.integers(len(read_workloads())))]
    typical = statistics.fmean(machine.chain)
    draft, tuned_for = workloads[_TUNED_FOR]
    more = (_yield(typical, draft, machine.decay) - 1) / (tuned_for - 1)  # than in the published runs
    firsts = {
        name: find_first_rate(draft, 1 + more * (tokens - 1), machine.decay) for name, (_, tokens) in workloads.items()
    }
    bench = SimulatedBench(machine, seed=number)
    try:
        verdict = asyncio.run(tune(bench, machine.space(), WORK, Goal(), budget_s, seed=number))
    except NothingMeasured:
        return None
    runs = [run for trial in verdict.trials for run in trial.runs]
    tuned = dict(verdict.settings)
    kinds: list[str] = []
    while len(kinds) < 4:
        name = str(dice.choice(sorted(firsts)))
        if not kinds or kinds[-1] != name:
            kinds.append(name)
    traffic = make_traffic(machine, tuned, [firsts[name] for name in kinds], dice)
    seconds = traffic.seconds
    begin = int(tuned.get("draft") or 0)
    used_s, changes, waited_s = follow_traffic(traffic, tuned, Measured.from_runs(tuned, runs), load_s, dice)
    best = np.array([seconds[traffic.phase == each].sum(axis=0).min() for each in range(4)])
    after = []
    for each in range(4):
        inside = traffic.phase == each
        late = inside & (traffic.at_s >= traffic.at_s[inside][0] + 3_600)
        if late.any():
            after.append(float(seconds[late][:, seconds[inside].sum(axis=0).argmin()].sum() / used_s[late].sum()))
    return Week(
        machine.kind,
        begin,
        float(used_s.sum()),
        float(seconds.sum(axis=0).min()),
        float(best.sum()),
        tuple(after),
        len(changes),
        changes.count("undo"),
        changes.count("look"),
        waited_s,
        float(seconds[:, begin].sum()),
    )


def follow_traffic(
    traffic: Traffic, tuned: dict[str, Any], measured: Measured, load_s: float, dice: np.random.Generator
) -> tuple[Array, list[str], float]:
    """Return the seconds of each minute's work with drafts that follow it, the reasons of changes, and the seconds that
    clients waited for them."""
    follower, draft = DraftFollower(), int(tuned.get("draft") or 0)
    used_s, waited_s, pending = np.zeros(len(traffic.at_s)), 0.0, None
    changes: list[str] = []
    for minute, at_s in enumerate(traffic.at_s):
        steps = traffic.work[minute] / traffic.yields[minute, draft]
        used_s[minute] = steps * traffic.steps_s[minute, draft]
        whole = max(1, round(steps))
        accepted, left = [], whole
        for rate in traffic.rates[minute, :draft]:
            left = int(dice.binomial(left, rate))
            accepted.append(left)
        tokens = whole + sum(accepted)
        settings = {**tuned, "draft": draft}
        step_s = float(traffic.steps_s[minute, draft])
        follower.add_counts(float(at_s), UseCounts(settings, tokens, step_s * whole, whole, tuple(accepted)))
        if pending is None and minute % _LOOK_MIN == 0:
            pending = follower.find_change(float(at_s), measured)
        gap_s = max(1.0, 60 - used_s[minute]) / (traffic.requests[minute] + 1)
        if pending is not None and dice.random() < math.exp(-_QUIET_S / gap_s):
            wait_s = max(0.0, load_s - float(dice.exponential(gap_s)))
            used_s[minute] += wait_s
            waited_s += wait_s
            follower.note_change(float(at_s), pending)
            changes.append(pending.reason)
            draft, pending = (0 if pending.choice[0] is NONE else pending.choice[1]), None
    return used_s, changes, waited_s


def main() -> int:
    """Replay weeks, and print or write the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.traffic_replay", description="Judge drafts that follow.")
    parser.add_argument("--first", type=int, default=72_000, metavar="N", help="number of the first week (72,000)")
    parser.add_argument("--weeks", type=int, default=60, metavar="N", help="weeks to replay (60)")
    parser.add_argument("--load-s", type=float, default=20.0, metavar="S", help="seconds of a start (20)")
    parser.add_argument("--budget", type=float, default=10.0, metavar="MIN", help="minutes of the tune before it (10)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this document")
    chosen = parser.parse_args()
    numbers = range(chosen.first, chosen.first + chosen.weeks)
    replay = partial(replay_week, load_s=chosen.load_s, budget_s=60 * chosen.budget)
    with ProcessPoolExecutor() as pool:
        weeks = [each for each in pool.map(replay, numbers, chunksize=2) if each]
    text, kept = describe_weeks(weeks)
    if chosen.write is None:
        print(text)
    else:
        before, _, rest = chosen.write.read_text(encoding="utf-8").partition(BEGIN)
        chosen.write.write_text(f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0 if kept else 1


def describe_weeks(weeks: Sequence[Week]) -> tuple[str, bool]:
    """Return the goals and figures as Markdown, and whether all goals are kept."""
    after = [ratio for each in weeks for ratio in each.after]
    near = statistics.fmean(after)
    shown = (
        ("drafts that follow", [each.auto_s for each in weeks]),
        ("the tune's length, never changed", [each.tuned_s for each in weeks]),
        ("the best fixed length of each week", [each.fixed_s for each in weeks]),
    )
    rows = [
        (name, *_shares([each.oracle_s / s for each, s in zip(weeks, seconds, strict=True)])) for name, seconds in shown
    ]
    rows.append(("drafts that follow, after the first hour of each kind", *_shares(after)))
    fixed = [each.to_fixed for each in weeks]
    low = sum(each < 0.99 for each in fixed)
    goals = [
        ("after the first hour of a kind: below the oracle, mean", "<= 2 %", f"{100 * (1 - near):.2f} %", near >= 0.98),
        (
            "... kinds within 2 %",
            "all",
            f"{100 * statistics.fmean(each >= 0.98 for each in after):.1f} %",
            min(after) >= 0.98,
        ),
        ("weeks more than 1 % below the best fixed length", "0", f"{low} of {len(weeks)}", not low),
    ]
    restarts = [each.restarts for each in weeks]
    lines = [
        format_table(
            ("what", "limit", "figure", "verdict"), [(*row[:3], "kept" if row[3] else "missed") for row in goals]
        ),
        format_table(("speed, to that of the oracle", "mean", "worst of 20", "worst"), rows),
        (
            f"{len(weeks)} weeks: {sum(restarts)} restarts ({statistics.fmean(restarts):.1f} a week, "
            f"{max(restarts)} at most), of these {sum(each.looks for each in weeks)} to look and "
            f"{sum(each.undone for each in weeks)} to undo a change. Clients waited for them "
            f"{statistics.fmean(each.waited_s for each in weeks):.0f} s a week, in all. Against the best fixed length: "
            f"{100 * (statistics.fmean(fixed) - 1):+.2f} % in the mean, {100 * (min(fixed) - 1):+.1f} % at worst."
        ),
    ]
    return "\n\n".join(lines) + "\n", all(row[3] for row in goals)


def _shares(values: Sequence[float]) -> tuple[str, str, str]:
    found = statistics.fmean(values), float(np.quantile(values, 0.05)), min(values)
    mean, low, worst = (f"{100 * (value - 1):+.2f} %" for value in found)
    return mean, low, worst


if __name__ == "__main__":
    sys.exit(main())
