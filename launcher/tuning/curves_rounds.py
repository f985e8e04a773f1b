"""Several settings of a server measured in turns, there and back again, so that what drifts evenly cancels."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from launcher.base.errors import LauncherError, Superseded
from launcher.tuning.records import Bench, Prompt, Run, Settings

_TRIES = 3
"""How often a point is measured in a round while its replies are spoilt."""

PromptsAt = Callable[[int], Awaitable[Sequence[Prompt]]]
"""Returns what to ask, all at once, at a place of the axis; awaited while a server serves, which may count tokens."""


@dataclass(frozen=True, slots=True)
class Start:
    """Settings to serve, the series that they are of, and the places on the axis to measure while they serve."""

    series: str
    settings: Settings
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """One point in one round: replies of the same moment, which took `span_s` from the first request to the last end.

    `number` is its place in the order of all. `again` are replies that were spoilt and asked for again. `error` says
    why there is none.
    """

    number: int
    round: int
    series: str
    place: int
    runs: tuple[Run, ...] = ()
    span_s: float = 0.0
    again: tuple[Run, ...] = ()
    error: str | None = None

    @property
    def counts(self) -> bool:
        """Whether it may be used."""
        return self.error is None and bool(self.runs) and all(run.counts for run in self.runs)


@dataclass(frozen=True, slots=True)
class Step:
    """How far it is: a point is about to be measured, and all that is left takes about `left_s`, None if not known."""

    done: int
    of: int
    series: str
    place: int
    left_s: float | None


OnTaken = Callable[[Taken], None]
OnStep = Callable[[Step], None]


@dataclass(slots=True)
class _Times:
    """What a start and its points took so far, in seconds. `failed` is why it cannot be served, found in a round."""

    points_left: int
    starts: list[float] = field(default_factory=list)
    points: list[float] = field(default_factory=list)
    failed: str | None = None
    failed_in: int | None = None


class _Taking:
    def __init__(self, bench: Bench, starts: Sequence[Start], rounds: int, on_taken: OnTaken, on_step: OnStep) -> None:
        self._bench, self._starts, self._rounds = bench, starts, rounds
        self._on_taken, self._on_step = on_taken, on_step
        self._times = [_Times(rounds * len(start.places)) for start in starts]
        self._number = 0

    async def visit(self, index: int, turn: int, prompts_at: PromptsAt, warm_up: Prompt, seed: int) -> None:
        """Serve a start's settings and measure its places, in this round's direction.

        Where the server ended meanwhile, it is started again before the next place.
        """
        start, times = self._starts[index], self._times[index]
        places = start.places if turn % 2 == 0 else start.places[::-1]
        for number, place in enumerate(places):
            if times.failed is None:
                self._tell(start, place)
                spent_s = await self._serve(start, times, warm_up, seed)
                if not number:
                    times.starts.append(spent_s)
            if times.failed is not None:
                if times.failed_in in (None, turn):
                    times.failed_in = turn
                    self._keep(Taken(self._number, turn, start.series, place, error=times.failed))
                continue
            self._tell(start, place)
            began_s = self._bench.now_s()
            self._keep(await self._point(start, place, turn, prompts_at, seed))
            times.points.append(self._bench.now_s() - began_s)
            times.points_left -= 1

    async def _serve(self, start: Start, times: _Times, warm_up: Prompt, seed: int) -> float:
        """Serve a start's settings, unless they are served, and return the seconds that it took; note why it cannot."""
        began_s = self._bench.now_s()
        try:
            if await self._bench.become(start.settings):
                await self._bench.run(warm_up, seed=seed)
        except Superseded:
            raise
        except LauncherError as error:
            times.failed, times.points_left = error.title, 0
        return self._bench.now_s() - began_s

    async def _point(self, start: Start, place: int, turn: int, prompts_at: PromptsAt, seed: int) -> Taken:
        again: tuple[Run, ...] = ()
        try:
            prompts = await prompts_at(place)
        except Superseded:
            raise
        except LauncherError as error:
            return Taken(self._number, turn, start.series, place, error=error.title)
        for left in reversed(range(_TRIES)):
            asked = [self._bench.run(prompt, seed=seed + number) for number, prompt in enumerate(prompts)]
            runs = tuple(await asyncio.gather(*asked))
            span_s = max(run.began_s + run.wall_s for run in runs) - min(run.began_s for run in runs)
            if not left or not any(run.spoilt for run in runs):
                break
            again += runs
        failed = next((run.error for run in runs if run.error is not None), None)
        return Taken(self._number, turn, start.series, place, runs, span_s, again, failed)

    def _keep(self, taken: Taken) -> None:
        self._number += 1
        self._on_taken(taken)

    def _tell(self, start: Start, place: int) -> None:
        left = sum(times.points_left for times in self._times)
        self._on_step(Step(self._number, self._number + left, start.series, place, self._left_s()))

    def _left_s(self) -> float | None:
        """Return how long the rest takes if it takes what the same took before; None before all was done once."""
        seconds = 0.0
        for start, times in zip(self._starts, self._times, strict=True):
            if times.failed is not None:
                continue
            if len(times.points) < len(start.places):
                return None
            seconds += fmean(times.starts) * (self._rounds - len(times.starts))
            seconds += fmean(times.points) * times.points_left
        return seconds


async def take(
    bench: Bench,
    starts: Sequence[Start],
    prompts_at: PromptsAt,
    warm_up: Prompt,
    *,
    rounds: int,
    on_taken: OnTaken,
    on_step: OnStep = lambda _: None,
    seed: int = 0,
) -> None:
    """Measure every place of every start once a round; each second round goes backwards.

    After a start `warm_up` is asked and thrown away. What is spoilt is asked again, twice at most. A round has one seed
    for all series. Settings that cannot be served are a result, and are not tried again. What was taken has been told
    when this is cancelled. Raises Superseded when somebody else takes the server.
    """
    taking = _Taking(bench, starts, rounds, on_taken, on_step)
    for turn in range(rounds):
        order = range(len(starts))
        for index in order if turn % 2 == 0 else reversed(order):
            await taking.visit(index, turn, prompts_at, warm_up, seed + turn)
