"""Tunes the demo model with several drafters on the real built-in engine, whose acceptance is drawn at random.

`python -m tools.drafter_profiles` writes the demo model, slowed down so that drafts can pay, with a draft of each kind
beside it (tools/demo_model/drafts.py). A profile has some of the drafters, and for each the share of drafts that is
accepted at each position, which the engine is told by --spec-synth-rates. All else is real: starts, the cost of drafts
and of verification, replies. The truth of a drafter and a length is what its rates promise, times the mean ratio of
measured tokens/s to what the rates of that reply promised, over all tunes and rounds of their own: it holds the cost of
a step, and drafts that are shorter than asked. A recommendation is right if it is the fastest of all, or as fast within
MARGIN. On a busy computer the truth itself is uncertain: its standard error is printed.

Speeds and the budget are in seconds of the engine's processor time, so that other programs do not matter (Linux).
"""

import argparse
import asyncio
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev

import psutil

from launcher.app.measuring.session_bench import SessionBench
from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.serving.session import ServerSession
from launcher.engine.serve_options import ServeOptions
from launcher.models.drafters import choice_in
from launcher.models.server_settings import Value
from launcher.tuning.goal import Goal
from launcher.tuning.predict import tokens_per_step
from launcher.tuning.records import Prompt, Run, RunSettings
from launcher.tuning.space import DRAFT, DRAFTER, Space, SpaceAxis, draft_length, way_of
from launcher.tuning.tuner import tune
from launcher.tuning.verdict import MARGIN, Verdict
from tools.demo_model.__main__ import main as make_demo
from tools.demo_model.drafts import DraftKind, write_draft

KINDS: Mapping[str, DraftKind | None] = {
    "draft-mtp": None,
    "draft-simple": "model",
    "draft-eagle3": "eagle3",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
}
LENGTHS = (1, 2, 3, 4, 5, 6, 7)
_START_S = 1.0
"""Seconds of a start by the bench's clock, so that the budget does not depend on other programs."""
_TOKENS, _TRUTH_TOKENS = 80, 40
"""Tokens of a reply in tunes, and in the rounds for the truth."""


@dataclass(frozen=True)
class Profile:
    """What may draft, the most promising first, with the rates of acceptance by position: each if all before were."""

    rates: Mapping[str, tuple[float, ...]]

    def space(self) -> Space:
        """Return the grid of a tune."""
        names = tuple(self.rates)
        return Space({DRAFTER: names[0]}, LENGTHS, (SpaceAxis(DRAFTER, names, drafting=True),), on_processor=True)


def draw_profile(number: int) -> Profile:
    """Return the profile `number`, always the same one."""
    dice = random.Random(f"profile {number}")
    typical = dice.uniform(0.3, 0.92)
    rates = {}
    for name in dice.sample(list(KINDS), dice.randint(2, 4)):
        odds = typical / (1 - typical) * math.exp(dice.gauss(0, 0.6))
        first, decay = odds / (1 + odds), dice.uniform(0.85, 1.0)
        rates[name] = tuple(first * decay**i for i in range(len(LENGTHS)))
    return Profile(rates)


@dataclass
class Workload:
    """The prompts of every tune here."""

    name: str
    prompts: tuple[Prompt, ...]
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def make_workload(tokens: int) -> Workload:
    """Return a workload with replies of as many tokens."""
    sampling = {"temperature": 0.0, "ignore_eos": True}
    texts = ("Tell me of a boat.", "What is a draft?", "Write of a river.")
    return Workload("code", tuple(Prompt(text, (("user", text),), tokens, sampling) for text in texts))


class ProcessorBench(SessionBench):
    """A bench by processor time, on which drafts are accepted at the rates of a profile."""

    def __init__(self, session: ServerSession, options: ServeOptions, profile: Profile) -> None:
        super().__init__(session, options)
        self._options, self._profile = options, profile
        self.replies: list[tuple[Profile, Run]] = []
        self.used_s = 0.0

    def now_s(self) -> float:
        """Return the seconds of the bench's own clock."""
        return self.used_s

    async def become(self, settings: RunSettings, *, fresh: bool = False) -> float:
        """See Bench."""
        length = draft_length(settings)
        extra: tuple[str, ...] = ()
        if length:
            rates = self._profile.rates[str(settings[DRAFTER])][:length]
            shares = (math.prod(rates[: i + 1]) for i in range(length))
            extra = ("--spec-synth-rates", ",".join(f"{share:.4f}" for share in shares))
        self._base = replace(self._options, extra=extra)
        changes = self.session.change_count
        await super().become(settings, fresh=fresh)
        start_s = _START_S if self.session.change_count != changes else 0.0
        self.used_s += start_s
        return start_s

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """See Bench. The rate of generation is by processor time."""
        engine = psutil.Process(self.session.supervisor.engine_pid)
        before_s = sum(engine.cpu_times()[:2])
        run = await super().run(prompt, seed=seed)
        spent_s = sum(engine.cpu_times()[:2]) - before_s
        self.used_s += spent_s
        if run.decode_rate is None or run.error is not None:
            return run
        writing_s = run.reply_tokens / run.decode_rate
        reading_s = run.prompt_tokens / run.prefill_rate if run.prefill_rate else 0.0
        rate = run.reply_tokens / (spent_s * writing_s / (writing_s + reading_s))
        run = replace(run, decode_rate=rate, wall_s=spent_s, began_s=self.used_s, spoilt=None)
        if run.reply_tokens == prompt.tokens:  # not the reply that warms the server up
            self.replies.append((self._profile, run))
        return run


def write_models(folder: Path, slow: int) -> Path:
    """Write the model and its drafts, and return the model's path."""
    model = folder / "demo.gguf"
    make_demo(["--out", str(model), "--slow", str(slow)])
    for kind in KINDS.values():
        if kind is not None:
            write_draft(folder / ("demo-DRAFT.gguf" if kind == "model" else f"{kind}-demo.gguf"), kind, model)
    return model


Way = tuple[Value, int]


async def measure_all(session: ServerSession, options: ServeOptions, rounds: int) -> list[tuple[Profile, Run]]:
    """Return replies with each drafter and length, in some rounds of random order."""
    ways: list[Way] = [(None, 0), *((name, length) for name in KINDS for length in LENGTHS)]
    bench = ProcessorBench(session, options, Profile({name: (0.6,) * len(LENGTHS) for name in KINDS}))
    prompts = make_workload(_TRUTH_TOKENS).prompts
    for number in range(rounds):
        for name, length in random.Random(number).sample(ways, len(ways)):
            await bench.become({DRAFT: length, DRAFTER: name or next(iter(KINDS))}, fresh=True)
            for prompt in prompts:
                await bench.run(prompt, seed=number)
    return bench.replies


def promised_tokens(profile: Profile, way: Way) -> float:
    """Return the tokens per step that a profile's rates promise."""
    name, length = way
    return tokens_per_step(profile.rates[str(name)], length) if length else 1.0


def measure_ways(replies: Sequence[tuple[Profile, Run]]) -> dict[Way, tuple[float, float]]:
    """Return for each drafter and length the mean logarithm of tokens/s per promised token, and its standard error."""
    found: dict[Way, list[float]] = {}
    for profile, run in replies:
        if run.decode_rate:
            way = way_of(run.settings)
            found.setdefault(way, []).append(math.log(run.decode_rate / promised_tokens(profile, way)))
    return {way: (fmean(each), stdev(each) / math.sqrt(len(each))) for way, each in found.items() if len(each) > 1}


def true_scores(profile: Profile, measured: Mapping[Way, tuple[float, float]]) -> dict[Way, float]:
    """Return the true logarithm of the tokens/s of each way to draft."""
    ways: list[Way] = [(None, 0), *((name, length) for name in profile.rates for length in LENGTHS)]
    return {way: math.log(promised_tokens(profile, way)) + measured[way][0] for way in ways if way in measured}


async def judge_profiles(numbers: Sequence[int], *, slow: int, rounds: int, budget_s: float, most_s: float) -> int:
    """Tune each profile, then print each result and their sums. Return how many were wrong."""
    began_s = time.monotonic()
    verdicts: list[tuple[int, Verdict]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MTP_LAUNCHER_HOME"] = str(Path(folder, "home"))
        model = write_models(Path(folder), slow)
        options = make_unresolved_options(str(model), lambda path: ServeOptions(path, built_in=True, threads=1))
        options = replace(options, context=1_024)
        session = ServerSession()
        try:
            replies = await measure_all(session, options, rounds)
            for number in numbers:
                if time.monotonic() - began_s > most_s:
                    break
                bench, start_s = ProcessorBench(session, options, draw_profile(number)), time.monotonic()

                def count_waiting(bench: ProcessorBench = bench, start_s: float = start_s) -> float:
                    return max(0.0, time.monotonic() - start_s - bench.used_s)

                space = draw_profile(number).space()
                work = make_workload(_TOKENS)
                verdict = await tune(bench, space, work, Goal(), budget_s, seed=number, waited_s=count_waiting)
                replies += bench.replies
                verdicts.append((number, verdict))
                print(f"profile {number}: {verdict.sentence}", flush=True)
        finally:
            await session.stop()
    measured = measure_ways(replies)
    for name in KINDS:
        ways = [(name, length) for length in LENGTHS if (name, length) in measured]
        costs = (f"{math.exp(measured[None, 0][0] - measured[way][0]):.2f} ± {measured[way][1]:.2f}" for way in ways)
        print(f"a step with {name}, by that of MTP off: {', '.join(costs)}")
    right = exact = kinds = 0
    for number, verdict in verdicts:
        profile = draw_profile(number)
        scores = true_scores(profile, measured)
        best, named = max(scores, key=lambda way: scores[way]), way_of(verdict.settings)
        lacks = 1 - math.exp(scores[named] - scores[best])
        right, exact, kinds = right + (lacks <= MARGIN), exact + (named == best), kinds + (named[0] == best[0])
        print(
            f"profile {number}: of {', '.join(profile.rates)}: named {_name(named)}, best {_name(best)}, lacks "
            f"{100 * lacks:.1f} %, {verdict.mtp}, {len(verdict.trials)} starts"
        )
    minutes = (time.monotonic() - began_s) / 60
    print(
        f"{right} of {len(verdicts)} right (the fastest, or within {100 * MARGIN:g} % of it); the fastest {exact}, "
        f"its drafter {kinds}; {len(replies)} replies, {minutes:.0f} minutes"
    )
    return len(verdicts) - right


def _name(way: Way) -> str:
    return str(choice_in({DRAFTER: way[0], DRAFT: way[1]}).label())


def main() -> int:
    """Read the command line, and tune. Exit code 1 if more than one in twenty is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.drafter_profiles", description=__doc__)
    parser.add_argument("--first", type=int, default=1, metavar="N", help="number of the first profile (1)")
    parser.add_argument("--profiles", type=int, default=20, metavar="N", help="profiles to tune (20)")
    parser.add_argument("--slow", type=int, default=4, metavar="N", help="slow the model down (4)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="rounds of each drafter and length (1)")
    parser.add_argument("--budget", type=float, default=60.0, metavar="S", help="seconds of each tune (60)")
    parser.add_argument("--minutes", type=float, default=25.0, metavar="MIN", help="begin no tune after these (25)")
    chosen = parser.parse_args()
    numbers = range(chosen.first, chosen.first + chosen.profiles)
    wrong = asyncio.run(
        judge_profiles(
            numbers, slow=chosen.slow, rounds=chosen.rounds, budget_s=chosen.budget, most_s=60 * chosen.minutes
        )
    )
    return 0 if wrong * 20 <= chosen.profiles else 1


if __name__ == "__main__":
    sys.exit(main())
