"""Comparison of several servers, which get the same prompts in turn: the speed-up of each over the first."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from launcher.base.errors import NothingMeasured
from launcher.base.messages import message
from launcher.tuning.measured_speed import EndReason, MeasuredSpeed, round_rate
from launcher.tuning.measuring_loop import after_rounds, send_prompts, visit_rounds, warm_up
from launcher.tuning.records import Bench, Prompt, Run
from launcher.tuning.statistics import Interval, Pair, paired_speedup, rate_interval
from launcher.tuning.timed_request import token_rate

ROUNDS = 6
"""Default number of rounds: three pairs in each order, enough to remove the effect of the order."""
_FEWEST_PAIRS = 3

OnTurn = Callable[[str, Run, int], None]
"""Called with a server's name, its run, and the number of the round, counted from 1 (0: the warm-up)."""
Rounds = Sequence[Mapping[str, Sequence[Run]]]
"""The runs of each round by the server's name, in the order in which the servers took their turns."""


@dataclass(frozen=True, slots=True)
class ServerStanding:
    """One server's row in the table. `measured` is None if nothing was measured, `error` is the reason if it failed.

    `ratio` is its decode rate over that of the first server, in pairs of the same round and prompts; None for the first
    server, and with too few pairs.
    """

    name: str
    measured: MeasuredSpeed | None
    ratio: Interval | None = None
    error: str | None = None


async def compare_servers(
    benches: Mapping[str, Bench],
    prompts: Sequence[Prompt],
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    on_turn: OnTurn = lambda *_: None,
) -> tuple[ServerStanding, ...]:
    """Send the same prompts to all servers, given by name, in rounds. Only one server works at a time.

    Every second round goes backwards, so that steady drift cancels in the pairs. If a server gives no timings, all are
    measured by the client's clock: tokens after the first, divided by the time from the first to the end. A server that
    fails gets no further requests; the others go on. Raises NothingMeasured when no server can be measured.
    """
    errors: dict[str, str] = {}
    done: list[dict[str, list[Run]]] = [{} for _ in range(rounds)]

    def add_run(name: str, run: Run, number: int) -> None:
        on_turn(name, run, number)
        if run.error:
            errors[name] = run.error

    for name, bench in benches.items():
        add_run(name, await warm_up(bench, prompts[0], seed), 0)
    for number, name in visit_rounds(list(benches), after_rounds(rounds)):
        if name not in errors:
            on_run = partial(add_run, name)
            done[number - 1][name] = await send_prompts(benches[name], prompts, seed, number, on_run)
    if not any(run.error is None for each in done for runs in each.values() for run in runs):
        raise NothingMeasured(message("No server could be measured."), next(iter(errors.values()), ""))
    return _build_standings(list(benches), _by_one_clock(done), prompts, errors)


def _build_standings(
    names: Sequence[str], done: Rounds, prompts: Sequence[Prompt], errors: Mapping[str, str]
) -> tuple[ServerStanding, ...]:
    standings = []
    for name in names:
        rounds = [each[name] for each in done if name in each]
        rates = [rate for runs in rounds if (rate := round_rate(runs, prompts)) is not None]
        ended = EndReason.FAILED if name in errors else EndReason.MOST
        runs = tuple(run for each in rounds for run in each)
        measured = MeasuredSpeed(runs, rate_interval(rates) if rates else None, ended)
        ratio = _compare_decode_rates(done, names[0], name) if name != names[0] else None
        standings.append(ServerStanding(name, measured if measured.answered else None, ratio, errors.get(name)))
    return tuple(standings)


def _compare_decode_rates(done: Rounds, first: str, other: str) -> Interval | None:
    """Return the speed ratio of `other` to `first`. Each round gives a pair, over the prompts usable for both."""
    pairs = []
    for each in done:
        first_rates, other_rates = (
            {run.prompt: run.decode_rate or 0 for run in each.get(name, ()) if run.is_counted}
            for name in (first, other)
        )
        shared = sorted(first_rates.keys() & other_rates.keys())
        if shared:
            log_ratio = statistics.fmean(math.log(other_rates[prompt] / first_rates[prompt]) for prompt in shared)
            names = list(each)
            pairs.append(Pair(1.0, math.exp(log_ratio), names.index(first) < names.index(other)))
    return paired_speedup(pairs) if len(pairs) >= _FEWEST_PAIRS else None


def _by_one_clock(done: Rounds) -> Rounds:
    """Return all runs with rates by the client's clock if any of them lacks the engine's timings."""
    if all(run.clock == "engine" or run.error for each in done for runs in each.values() for run in runs):
        return done
    return [{name: [_by_client_clock(run) for run in runs] for name, runs in each.items()} for each in done]


def _by_client_clock(run: Run) -> Run:
    first_s = run.first_token_s
    if first_s is None or run.error:
        return replace(run, clock="wall")
    return replace(
        run,
        clock="wall",
        prefill_rate=token_rate(run.prompt_tokens, first_s),
        decode_rate=token_rate(run.reply_tokens - 1, run.wall_s - first_s),
    )
