"""Tunes the demo model with several drafters on the real built-in engine, whose acceptance is drawn at random.

`python -m tools.drafter_profiles` writes the demo model, slowed down so that drafts can pay, with a draft of each kind
beside it (tools/demo_model/drafts.py), and measures the cost of a step with each drafter and length, in rounds of
random order, by processor time. Then it tunes profiles. A profile has some of the drafters, and for each the share of
drafts that is accepted at each position, which the engine is told by --spec-synth-rates. Starts, drafts, verification
and replies are real; a step takes the seconds that were measured, with the noise of a GPU (RUN_NOISE), because those of
a processor that is shared vary by a tenth from one minute to the next, which no tune of minutes could see through. So
tunes run on the model as it is, which is quicker, and do not depend on other programs.

The truth of a drafter and a length is the tokens per step that its rates promise, times the share of such tokens that
came in all replies with it, by the seconds of a step. A recommendation is right if it is the fastest of all, or as fast
within MARGIN.
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
from statistics import median

import numpy as np
import psutil

from launcher.app.measuring.session_bench import SessionBench
from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.serving.session import ServerSession
from launcher.engine.serve_options import ServeOptions
from launcher.models.drafters import choice_in
from launcher.models.server_settings import Value
from launcher.tuning.goal import Goal
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
Way = tuple[Value, int]
"""A drafter, None for none, and a draft length."""
_START_S = 3.0
"""Seconds of a start by the bench's clock: as long as some replies, as on a GPU."""
RUN_NOISE, START_NOISE = 0.03, 0.005
"""Standard deviations of the logarithm of a step's seconds, of a reply and of a start: see tools/tuner_simulation."""
_TOKENS, _MEASURED_TOKENS = 80, 40
"""Tokens of a reply in tunes, and in the rounds before them."""


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


class ProfileBench(SessionBench):
    """A bench on which drafts are accepted at the rates of a profile, and a step takes what it costs.

    Without `costs`, which are seconds of a step, its time is the engine's processor time.
    """

    def __init__(
        self, session: ServerSession, options: ServeOptions, profile: Profile, costs: Mapping[Way, float] | None = None
    ) -> None:
        super().__init__(session, options)
        self._options, self._profile, self._costs = options, profile, costs
        self._dice, self._start_effect = random.Random(f"noise of {profile}"), 0.0
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
            shares = accepted_shares(self._profile.rates[str(settings[DRAFTER])][:length])
            extra = ("--spec-synth-rates", ",".join(f"{share:.4f}" for share in shares))
        self._base = replace(self._options, extra=extra)
        changes = self.session.change_count
        await super().become(settings, fresh=fresh)
        if self.session.change_count == changes:
            return 0.0
        self._start_effect = self._dice.gauss(0, START_NOISE)
        self.used_s += _START_S
        return _START_S

    async def run(self, prompt: Prompt, *, seed: int) -> Run:
        """See Bench."""
        engine = psutil.Process(self.session.supervisor.engine_pid)
        before_s = sum(engine.cpu_times()[:2])
        run = await super().run(prompt, seed=seed)
        spent_s = sum(engine.cpu_times()[:2]) - before_s
        if run.decode_rate is None or not run.steps or run.error is not None:
            self.used_s += spent_s
            return run
        if self._costs is None:
            writing_s = run.reply_tokens / run.decode_rate
            reading_s = run.prompt_tokens / run.prefill_rate if run.prefill_rate else 0.0
            step_s = spent_s * writing_s / (writing_s + reading_s) / run.steps
        else:
            step_s = self._costs[way_of(run.settings)]
            step_s *= math.exp(self._start_effect + self._dice.gauss(0, RUN_NOISE))
            spent_s = step_s * run.steps
        self.used_s += spent_s
        rate = run.reply_tokens / (step_s * run.steps)
        run = replace(run, decode_rate=rate, wall_s=spent_s, began_s=self.used_s, spoilt=None)
        if run.reply_tokens == prompt.tokens:  # not the reply that warms the server up
            self.replies.append((self._profile, run))
        return run


def write_models(folder: Path, slow: int) -> Path:
    """Write the model and its drafts, and return the model's path."""
    folder.mkdir()
    model = folder / "demo.gguf"
    make_demo(["--out", str(model), "--slow", str(slow)])
    for kind in KINDS.values():
        if kind is not None:
            write_draft(folder / ("demo-DRAFT.gguf" if kind == "model" else f"{kind}-demo.gguf"), kind, model)
    return model


async def measure_steps(session: ServerSession, options: ServeOptions, rounds: int) -> list[tuple[Profile, Run]]:
    """Return replies with each drafter and length, in some rounds of random order."""
    ways: list[Way] = [(None, 0), *((name, length) for name in KINDS for length in LENGTHS)]
    bench = ProfileBench(session, options, Profile({name: (0.6,) * len(LENGTHS) for name in KINDS}))
    prompts = make_workload(_MEASURED_TOKENS).prompts
    for number in range(rounds):
        for name, length in random.Random(number).sample(ways, len(ways)):
            await bench.become({DRAFT: length, DRAFTER: name or next(iter(KINDS))}, fresh=True)
            for prompt in prompts:
                await bench.run(prompt, seed=number)
    return bench.replies


def find_costs(replies: Sequence[tuple[Profile, Run]]) -> tuple[dict[Way, float], float]:
    """Return the seconds of a step with each drafter and length, and by what share the measured ones differ from them.

    The verification of so many tokens costs the same whoever drafts, and each drafter has its own cost of a step and of
    a token: fitted to the medians of the measured replies, because single ones differ by a tenth.
    """
    found: dict[Way, list[float]] = {}
    for _, run in replies:
        if cost := Goal().step_cost(run):
            found.setdefault(way_of(run.settings), []).append(cost)
    ways = sorted((way for way in found if way[1]), key=str)
    names, rows = list(KINDS), np.zeros((len(ways), len(LENGTHS) + 2 * len(KINDS)))
    for row, (name, length) in zip(rows, ways, strict=True):
        row[LENGTHS.index(length)] = 1.0
        first = len(LENGTHS) + 2 * names.index(str(name))
        row[first : first + 2] = 1.0, length
    measured = np.array([median(found[way]) for way in ways])
    weights, *_ = np.linalg.lstsq(rows / measured[:, None], np.ones(len(ways)), rcond=None)
    fitted = rows @ weights
    costs = {way: float(cost) for way, cost in zip(ways, fitted, strict=True)}
    return {(None, 0): median(found[None, 0]), **costs}, float(np.std(np.log(fitted / measured)))


def accepted_shares(rates: Sequence[float]) -> list[float]:
    """Return the share of drafts that are accepted with all before them, by position."""
    return [math.prod(rates[: i + 1]) for i in range(len(rates))]


def expected_tokens(profile: Profile, run: Run) -> float:
    """Return the tokens that a profile's rates promise for the drafts of a reply, which are shorter at its ends."""
    name, length = way_of(run.settings)
    drafted = run.acceptance.drafted_by_position if run.acceptance else ()
    shares = accepted_shares(profile.rates[str(name)][:length]) if length else []
    return (run.steps or 0) + sum(count * share for count, share in zip(drafted, shares, strict=False))


def true_scores(
    profile: Profile, costs: Mapping[Way, float], replies: Sequence[tuple[Profile, Run]]
) -> dict[Way, float]:
    """Return the true logarithm of the tokens/s of each way to draft.

    Drafts are as long as in all replies with it, and as many of the promised tokens are accepted: an engine may do with
    fewer than it drafted.
    """
    scores: dict[Way, float] = {(None, 0): -math.log(costs[None, 0])}
    for way in ((name, length) for name in profile.rates for length in LENGTHS):
        own = [(other, run) for other, run in replies if way_of(run.settings) == way]
        steps = sum(run.steps or 0 for _, run in own)
        kept = sum(run.reply_tokens for _, run in own) / sum(expected_tokens(other, run) for other, run in own)
        tokens = kept * sum(expected_tokens(profile, run) for _, run in own) / steps
        scores[way] = math.log(tokens / costs[way])
    return scores


async def judge_profiles(numbers: Sequence[int], *, slow: int, rounds: int, budget_s: float, most_s: float) -> int:
    """Tune each profile, then print each result and their sums. Return how many were wrong."""
    began_s = time.monotonic()
    verdicts: list[tuple[int, Verdict]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MTP_LAUNCHER_HOME"] = str(Path(folder, "home"))
        slowed, plain = (
            replace(
                make_unresolved_options(
                    str(write_models(Path(folder, name), repeats)),
                    lambda path: ServeOptions(path, built_in=True, threads=1),
                ),
                context=1_024,
            )
            for name, repeats in (("slowed", slow), ("plain", 0))
        )
        session = ServerSession()
        try:
            replies = await measure_steps(session, slowed, rounds)
            costs, error = find_costs(replies)
            print(f"{len(replies)} replies; the measured medians differ by {100 * error:.1f} % from these:")
            for name in (None, *KINDS):
                found = [f"{1e3 * cost:.1f}" for way, cost in costs.items() if way[0] == name]
                print(f"ms of a step with {name or 'MTP off'}: {', '.join(found)}", flush=True)
            for number in numbers:
                if time.monotonic() - began_s > most_s:
                    break
                profile, start_s = draw_profile(number), time.monotonic()
                bench = ProfileBench(session, plain, profile, costs)

                def count_waiting(bench: ProfileBench = bench, start_s: float = start_s) -> float:
                    return max(0.0, time.monotonic() - start_s - bench.used_s)

                work = make_workload(_TOKENS)
                verdict = await tune(
                    bench, profile.space(), work, Goal(), budget_s, seed=number, waited_s=count_waiting
                )
                replies += bench.replies
                verdicts.append((number, verdict))
                print(f"profile {number}: {verdict.sentence}", flush=True)
        finally:
            await session.stop()
    right = exact = kinds = 0
    for number, verdict in verdicts:
        profile = draw_profile(number)
        scores = true_scores(profile, costs, replies)
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
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each drafter and length (3)")
    parser.add_argument("--budget", type=float, default=150.0, metavar="S", help="seconds of each tune (150)")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="MIN", help="begin no tune after these (60)")
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
