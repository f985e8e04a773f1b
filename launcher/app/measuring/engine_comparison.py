"""Compares an updated engine with the build before it, on the model that the user serves, and restores a faster one.

A self-test on the demo model does not detect a build that works but is slow. So the two builds serve the last model in
turn, each with a start of its own, and their speeds are compared in pairs.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from launcher.app.measuring.session_bench import SessionBench
from launcher.app.planning.start_settings import resolve_start
from launcher.app.serving.serving_session import ServingSession
from launcher.base.codec import JsonView
from launcher.base.errors import LauncherError, NothingMeasured, Superseded
from launcher.base.messages import Message, command_name, message
from launcher.engine.builds.installed import InstalledEngine, read_store, settle_update
from launcher.engine.builds.slower_builds import SlowerBuild, add_slower_build, forget_slower_build
from launcher.engine.demo import DEMO
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.last_start import load_last_model
from launcher.machine.gpus import find_gpus
from launcher.tuning.measured_speed import round_rate
from launcher.tuning.measuring_loop import send_prompts, serve_settings, visit_rounds
from launcher.tuning.records import Prompt
from launcher.tuning.statistics import Interval, Pair, paired_speedup
from launcher.tuning.workloads import DEFAULT_WORKLOAD, load_workload

SECONDS = 60.0
"""Seconds of a comparison. It takes longer if it has not made three pairs by then."""
SLOWER = 0.97
"""A build whose speed is at most this share of the other's, and certainly below it, is slower."""
_FEWEST_PAIRS, _MOST_PAIRS, _MOST_SPOILT = 3, 40, 3

OnTurn = Callable[[str, float], object]
"""Gets the name of a build that was measured, and its tokens/s."""


@dataclass(frozen=True, slots=True)
class BuildComparison:
    """Result: with the build `new`, `model` is `ratio` times as fast as with `old`, measured in `pairs` pairs.

    `error` is why the new build could not be measured although the old one could; `ratio` is then None.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "new=new.name old=old.name model pairs ratio error slower=is_slower sentence"
    )
    old: InstalledEngine
    new: InstalledEngine
    model: str
    pairs: int
    ratio: Interval | None
    error: str | None = None

    @property
    def is_slower(self) -> bool:
        """Whether the new build is slower by 3 % or more, or does not serve the model."""
        if self.ratio is None:
            return True
        return self.ratio.estimate <= SLOWER and self.ratio.high < 1

    @property
    def sentence(self) -> Message:
        """The result as a sentence."""
        facts = {"new": self.new.name, "old": self.old.name, "model": self.model}
        if self.ratio is None:
            return message("{new} does not serve {model}, which {old} does: {error}", error=self.error or "", **facts)
        times, pairs = f"{self.ratio.estimate:.3f} ({self.ratio.low:.3f} to {self.ratio.high:.3f})", self.pairs
        if self.is_slower:
            return message(
                "{new} is slower than {old} with {model}: {times} times as fast, in {pairs} pairs.",
                times=times,
                pairs=pairs,
                **facts,
            )
        return message(
            "{new} is not slower than {old} with {model}: {times} times as fast, in {pairs} pairs.",
            times=times,
            pairs=pairs,
            **facts,
        )


async def _compare_on(
    session: ServingSession,
    new: InstalledEngine,
    old: InstalledEngine,
    options: ServeOptions,
    model: str,
    prompts: Sequence[Prompt],
    seconds: float,
    on_turn: OnTurn,
) -> BuildComparison:
    pairs: list[Pair] = []
    rates: dict[str, float] = {}
    began_s = time.monotonic()

    def is_enough(rounds: int) -> bool:
        if rounds - len(pairs) > _MOST_SPOILT:  # disturbed again and again
            return True
        return len(pairs) >= _FEWEST_PAIRS and (time.monotonic() - began_s >= seconds or len(pairs) >= _MOST_PAIRS)

    try:
        for number, engine in visit_rounds((old, new), is_enough):
            # A bench for each start: their only difference is the program, which is not a server setting.
            bench = SessionBench(session, replace(options, engine=engine.program, built_in=False), model_name=model)
            try:
                await serve_settings(bench, {}, prompts[0], number)
                runs = await send_prompts(bench, prompts, 0, number)
            except Superseded:
                raise
            except LauncherError as error:
                if engine is old:
                    raise
                return BuildComparison(old, new, model, len(pairs), None, error.title)
            failed = next((run.error for run in runs if run.error), None)
            if failed is not None and engine is new:
                return BuildComparison(old, new, model, len(pairs), None, failed)
            rates[engine.name] = round_rate(runs, prompts) or 0.0
            on_turn(engine.name, rates[engine.name])
            if engine is (new if number % 2 else old) and all(rates.values()):
                pairs.append(Pair(rates[old.name], rates[new.name], baseline_first=bool(number % 2)))
    finally:
        await session.stop()
    if len(pairs) < _FEWEST_PAIRS:
        raise NothingMeasured(
            message("The builds could not be compared: too many replies were disturbed."),
            message("Repeat it when the computer is idle[: {command}].", command=command_name("engine compare")),
        )
    return BuildComparison(old, new, model, len(pairs), paired_speedup(pairs))


def find_uncompared_update() -> tuple[InstalledEngine, InstalledEngine] | None:
    """Return the engine in use and the one before it, if their speeds were not compared yet; else None.

    Return None also while a server of this user runs, because it and the comparison would slow each other down.
    """
    store = read_store()
    update = store.find_update() if store.uncompared and not store.pinned else None
    return None if update is None or registry.list_entries() else update


async def compare_engines(
    session: ServingSession,
    new: InstalledEngine,
    old: InstalledEngine,
    model: str | None = None,
    *,
    seconds: float = SECONDS,
    prompts: Sequence[Prompt] = (),
    on_turn: OnTurn = lambda *_: None,
    is_update: bool = False,
) -> BuildComparison:
    """Serve a model with two builds in turn for `seconds`, and compare its speed. The session is stopped at the end.

    With `is_update`, a `new` build that is slower is added to the list of slower builds, and `old` is put in use again.
    The model is the last one that was served, or the demo, and the `prompts` those of the default workload. Raises what
    a start with the old build raises, and Superseded when another operation uses the session.
    """
    prompts = prompts or load_workload(DEFAULT_WORKLOAD).prompts
    model = model or await asyncio.to_thread(load_last_model) or DEMO
    start = await resolve_start(model)
    found = await _compare_on(session, new, old, start.options, model, prompts, seconds, on_turn)
    if is_update:
        await asyncio.to_thread(_settle_comparison, found)
    return found


def _settle_comparison(found: BuildComparison) -> None:
    if found.is_slower:
        add_slower_build(describe_slower_build(found))
    else:
        forget_slower_build(found.new.name)
    settle_update(found.new.name, keeps_old=found.is_slower)


def describe_slower_build(found: BuildComparison) -> SlowerBuild:
    """Return the entry of a slower build for the list."""
    ratio, gpus = found.ratio, find_gpus().gpus
    return SlowerBuild(
        name=found.new.name,
        against=found.old.name,
        model=found.model,
        number=found.new.number,
        ratio=ratio.estimate if ratio else None,
        low=ratio.low if ratio else None,
        high=ratio.high if ratio else None,
        error=found.error,
        gpu=gpus[0].name if gpus else None,
        measured_s=time.time(),
    )
