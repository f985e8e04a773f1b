"""Several servers asked the same, in turns: one table, and how many times as fast each is as the first."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from launcher.base.errors import NothingMeasured
from launcher.tuning.measure import Ended, Measured, ask_round, round_rate, warm_up
from launcher.tuning.records import Bench, Prompt, Run
from launcher.tuning.statistics import Interval, Pair, paired_speedup, rate_interval

ROUNDS = 6
"""As many as it takes for three pairs in each order, by which the order's own effect is taken out."""
_FEWEST_PAIRS = 3
_FEWEST_TOKENS = 5

OnTurn = Callable[[str, Run, int], None]
"""Gets a server's name, its run, and the number of the round from 1; that of the warm-up is 0."""
Rounds = Sequence[Mapping[str, Sequence[Run]]]


@dataclass(frozen=True, slots=True)
class Standing:
    """One server's line in the table; None stands for a server of which nothing was measured.

    `ratio` is how many times as fast it writes as the first one, in pairs of the same round and prompts; None for the
    first one, and where there are too few pairs. `error` is why it was not asked to the end.
    """

    name: str
    measured: Measured | None
    ratio: Interval | None = None
    error: str | None = None


async def versus(
    benches: Mapping[str, Bench],
    prompts: Sequence[Prompt],
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    on_turn: OnTurn = lambda *_: None,
) -> tuple[Standing, ...]:
    """Ask all servers, by their names, the same prompts in rounds; each second round goes backwards.

    What drifts evenly so cancels in the pairs. While one is asked the others rest. Where one gives no timings, all are
    measured by the reader's clock: the tokens after the first over the time from the first to the end. A server that
    fails is asked no more, the others are. Raises NothingMeasured when no server can be measured.
    """
    errors: dict[str, str] = {}
    for name, bench in benches.items():
        first = await warm_up(bench, prompts, seed)
        on_turn(name, first, 0)
        if first.error:
            errors[name] = first.error
    done: list[dict[str, list[Run]]] = []
    for number in range(1, rounds + 1):
        done.append({})
        for name in benches if number % 2 else reversed(list(benches)):
            if name in errors:
                continue
            runs = await ask_round(benches[name], prompts, seed + number, partial(_tell, on_turn, name, number))
            done[-1][name] = runs
            if error := next((run.error for run in runs if run.error), None):
                errors[name] = error
    if not any(run.error is None for each in done for runs in each.values() for run in runs):
        raise NothingMeasured("No server could be measured.", next(iter(errors.values()), ""))
    return _standings(list(benches), _by_one_clock(done), prompts, errors)


def _tell(on_turn: OnTurn, name: str, number: int, run: Run) -> None:
    on_turn(name, run, number)


def _standings(
    names: Sequence[str], done: Rounds, prompts: Sequence[Prompt], errors: Mapping[str, str]
) -> tuple[Standing, ...]:
    found = []
    for name in names:
        mine = [each[name] for each in done if name in each]
        rates = [rate for runs in mine if (rate := round_rate(runs, prompts)) is not None]
        ended = Ended.FAILED if name in errors else Ended.MOST
        measured = Measured(tuple(run for runs in mine for run in runs), rate_interval(rates) if rates else None, ended)
        ratio = _ratio(done, names[0], name) if name != names[0] else None
        found.append(Standing(name, measured if measured.answered else None, ratio, errors.get(name)))
    return tuple(found)


def _ratio(done: Rounds, first: str, other: str) -> Interval | None:
    """Return how many times as fast `other` writes; a pair is the mean of both over the prompts that count for both."""
    pairs = []
    for each in done:
        mine, theirs = (
            {run.prompt: run.decode_rate for run in each.get(name, ()) if run.counts} for name in (first, other)
        )
        logs = [math.log((theirs[prompt] or 0) / (mine[prompt] or 0)) for prompt in sorted(mine.keys() & theirs.keys())]
        if logs:
            names = list(each)
            pairs.append(Pair(1.0, math.exp(statistics.fmean(logs)), names.index(first) < names.index(other)))
    return paired_speedup(pairs) if len(pairs) >= _FEWEST_PAIRS else None


def _by_one_clock(done: Rounds) -> Rounds:
    """Return all runs by the reader's clock when one of them is."""
    if all(run.clock == "engine" or run.error for each in done for runs in each.values() for run in runs):
        return done
    return [{name: [_by_the_wall(run) for run in runs] for name, runs in each.items()} for each in done]


def _by_the_wall(run: Run) -> Run:
    first_s = run.first_token_s
    if first_s is None or run.error:
        return replace(run, clock="wall")
    writing_s, written = run.wall_s - first_s, run.reply_tokens - 1
    return replace(
        run,
        clock="wall",
        prefill_rate=run.prompt_tokens / first_s if run.prompt_tokens >= _FEWEST_TOKENS and first_s > 0 else None,
        decode_rate=written / writing_s if written >= _FEWEST_TOKENS and writing_s > 0 else None,
    )
