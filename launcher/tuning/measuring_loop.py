"""Measuring loop: visits subjects in rounds until a stop rule ends it.

Subjects are what a measurement compares: servers, settings, or prompts. Benchmarks, comparisons, curves, sustained load
and the trials of a tune differ in their subjects and stop rules.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from launcher.tuning.plan_of_trials import WARM_UP_TOKENS
from launcher.tuning.records import Bench, Prompt, Run, RunSettings

REPEATS = 2
"""The most repetitions of a request whose reply was disturbed."""

SecondsWaited = Callable[[], float]
"""Returns the seconds so far in which a bench stood still for clients, those of the present wait included."""
OnRun = Callable[[Run, int], None]
"""Called with each run and the number of its round, counted from 1 (0: the warm-up)."""
Subject = TypeVar("Subject")
StopRule = Callable[[int], object]
"""Called before each round with the number of completed rounds; returns whether the measurement ends."""


def visit_rounds(
    subjects: Sequence[Subject], stop_rule: StopRule, *, there_and_back: bool = True
) -> Iterator[tuple[int, Subject]]:
    """Yield all subjects once a round, with the number of the round from 1, until the stop rule ends it.

    With `there_and_back` every second round goes backwards, so that steady drift cancels out between subjects.
    """
    done = 0
    while not stop_rule(done):
        done += 1
        for subject in order_of_round(subjects, done) if there_and_back else subjects:
            yield done, subject


def order_of_round(subjects: Sequence[Subject], number: int) -> Sequence[Subject]:
    """Return the subjects in the order of a round: forwards in the first, backwards in the second, and so on."""
    return subjects if number % 2 else subjects[::-1]


def after_rounds(rounds: int) -> StopRule:
    """Return the rule that ends a measurement after a fixed number of rounds."""
    return lambda done: done >= rounds


def after_seconds(bench: Bench, seconds: float) -> StopRule:
    """Return the rule that starts no further round once `seconds` have passed from now."""
    began_s = bench.now_s()
    return lambda _: bench.now_s() - began_s >= seconds


@asynccontextmanager
async def limit_time(most_s: float, waited_s: SecondsWaited) -> AsyncIterator[asyncio.Timeout]:
    """End the block with TimeoutError after `most_s` seconds of the event loop. Seconds of `waited_s` do not count."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + most_s - waited_s()
    async with asyncio.timeout(None) as limit:

        async def watch() -> None:
            while (left_s := ends_s + waited_s() - loop.time()) > 0:  # noqa: ASYNC110 -- waiting gives no event
                await asyncio.sleep(left_s)
            limit.reschedule(loop.time())

        watching = asyncio.create_task(watch())
        try:
            yield limit
        finally:
            watching.cancel()


async def serve_settings(
    bench: Bench, settings: RunSettings, prompt: Prompt, seed: int, *, fresh: bool = False
) -> float:
    """Serve settings, with a warm-up if the server is started for them. Return the seconds of the start, 0 if none.

    Raises what Bench.become raises.
    """
    if start_s := await bench.become(settings, fresh=fresh):
        await warm_up(bench, prompt, seed)
    return start_s


async def warm_up(bench: Bench, prompt: Prompt, seed: int, tokens: int = WARM_UP_TOKENS) -> Run:
    """Send a prompt with a short reply, which is not counted."""
    return await bench.run(replace(prompt, tokens=min(tokens, prompt.tokens)), seed=seed)


async def send_prompts(
    bench: Bench,
    prompts: Sequence[Prompt],
    seed: int,
    number: int,
    on_run: OnRun = lambda *_: None,
    *,
    gives_up: Callable[[Run], bool] = lambda run: run.error is not None,
) -> list[Run]:
    """Send every prompt once, then repeat the disturbed ones. Ends after a run for which `gives_up` is true.

    All requests of a round have the same seed: `seed` plus the round's `number`.
    """
    runs: list[Run] = []
    pending = list(prompts)
    for _ in range(1 + REPEATS):
        spoilt = []
        for prompt in pending:
            run = await bench.run(prompt, seed=seed + number)
            runs.append(run)
            on_run(run, number)
            if gives_up(run):
                return runs
            if run.spoilt:
                spoilt.append(prompt)
        pending = spoilt
    return runs
