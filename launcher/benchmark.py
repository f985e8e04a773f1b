"""How fast a model is on this machine: measured on a server of its own or on the one that runs, and kept."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher.attach import Offer, address_of, attached
from launcher.attach_bench import AttachedBench, attached_bench
from launcher.base.errors import BadOption, LauncherError, NothingMeasured, Refused
from launcher.bench import SessionBench, options_with
from launcher.engine import registry
from launcher.engine.build import BUILT_IN, built_in_version
from launcher.engine.endpoint import Endpoint
from launcher.engine.launch import ServeOptions
from launcher.engine.launch import plan as launch_plan
from launcher.engine.listener import key_of
from launcher.engine.registry import Entry
from launcher.engine.settings import OPTIONS
from launcher.models.gguf import read_model
from launcher.monitor.health_event import Code
from launcher.session import Session
from launcher.tuning.fill import Counts, sized
from launcher.tuning.history_environment import Environment, ModelFacts, model_facts
from launcher.tuning.history_writer import HistoryWriter
from launcher.tuning.measure import MINIMUM, MOST, WIDTH, Measured, OnRun, measure
from launcher.tuning.records import Bench, Prompt, Run, Settings, Value
from launcher.tuning.versus import OnTurn, Standing, versus
from launcher.tuning.workloads import Workload

KIND = "bench"
"""What it is called in the history."""
_BUILD = re.compile(r"b(\d+)-([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure: a workload, `runs` rounds of it, or until it is known well enough: see tuning.measure."""

    workload: Workload
    runs: int | None = None
    width: float = WIDTH
    budget_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What was measured, of what, and where; `kept` is its id in the history, None for another computer's server."""

    measured: Measured
    workload: Workload
    environment: Environment
    settings: Settings
    url: str
    kept: str | None

    def as_json(self) -> dict[str, Any]:
        """Return it for a file, without the runs."""
        told, drafts = self.measured, self.measured.acceptance
        return {
            "workload": {"name": self.workload.name, "version": self.workload.version},
            "model": self.environment.model.name,
            "engine": {"name": self.environment.engine, "version": self.environment.engine_version},
            "settings": dict(self.settings),
            "url": self.url,
            "clock": told.clock,
            "mean": told.decode and told.decode.mean,
            "stdev": told.decode and told.decode.stdev,
            "interval": told.interval and told.interval.as_json(),
            "acceptance": drafts and drafts.rate,
            "acceptance_by_position": list(drafts.rates_by_position) if drafts else [],
            "draft_n": drafts and drafts.drafted,
            "draft_n_accepted": drafts and drafts.accepted,
            "prefill": told.prefill and told.prefill.mean,
            "first_token_s": told.first_token and told.first_token.mean,
            "power_w": told.power and told.power.mean,
            "tokens_per_joule": told.tokens_per_joule,
            "temperature_c": told.hottest_c,
            "ended": told.ended.value,
        }

    @property
    def sentence(self) -> str:
        """It in a line, for lists."""
        decode = self.measured.decode
        if decode is None:
            return "Its speed is not known."
        draft = self.settings.get("draft")
        mtp = "" if draft is None else f" with draft {draft}" if draft else " without MTP"
        return f"{decode.mean:.1f} tokens/s for {self.workload.name}{mtp}."


@dataclass(frozen=True, slots=True)
class Target:
    """A server that can be measured. Of one on another computer (`here` False) nothing goes into the history."""

    bench: Bench
    server: Counts
    environment: Environment
    settings: Settings
    url: str
    here: bool = True


async def serve_target(
    session: Session,
    options: ServeOptions,
    named: str,
    settings: Settings | None = None,
    work: Workload | None = None,
) -> Target:
    """Serve a model on a session, to be measured; stopping that is the caller's. Raises what a start raises.

    Where `work` is known, BadOption is raised before the start for prompts that its context cannot hold.
    `settings` are further ones, which need not be options of `serve`: see bench.options_with.
    """
    launch = await launch_plan(options_with(options, settings or {}), Endpoint(0, ""))
    _check_sizes(work, launch.context)
    options = replace(options, context=launch.context)
    chosen = {**_chosen(options), **(settings or {})}
    bench = SessionBench(session, options, named=named)
    await bench.become(chosen)
    supervisor = session.supervisor
    environment = await asyncio.to_thread(Environment.of_this_machine, launch)
    own: dict[str, Value] = {"extra": shlex.join(options.extra)} if options.extra else {}
    return Target(bench, supervisor.client, environment, {**chosen, **own}, supervisor.endpoint.url)


def _check_sizes(work: Workload | None, context: int) -> None:
    large = [each for each in work.prompts if each.size and each.size + each.tokens > context] if work else []
    if large:
        listed = "; ".join(f"{each.name} ({each.size:,} to read, {each.tokens:,} to write)" for each in large)
        raise BadOption(
            f"The context of {context:,} tokens does not hold {listed}.",
            "Ask for less, or give more context: --set ctx=N.",
        )


@asynccontextmanager
async def running_target(entry: Entry) -> AsyncIterator[Target]:
    """Give a server of this user that another program runs, as it is. Raises what asking it raises."""
    key = await asyncio.to_thread(key_of, entry)
    settings = {name: _plain(value) for name, value in entry.settings.items() if value not in (None, [])}
    spilled = partial(asyncio.to_thread, _spill, entry.url)
    async with (
        attached(address_of(entry.url), key, engine_pid=entry.engine_pid) as server,
        attached_bench(server, settings, spilled) as bench,
    ):
        environment = await asyncio.to_thread(_environment, server.offer, entry.engine, entry.model)
        with _why(bench):
            yield Target(bench, server, environment, settings, entry.url)


@asynccontextmanager
async def other_target(url: str, api_key: str | None) -> AsyncIterator[Target]:
    """Give a server that others started. Raises what asking it raises."""
    async with attached(address_of(url), api_key) as server, attached_bench(server) as bench:
        offer, here = server.offer, server.address.local
        engine, model = "llama-server" if offer.is_llama_server else "another server", offer.model or "unknown"
        environment = Environment(ModelFacts(model), engine, offer.engine or "")
        if here:
            environment = await asyncio.to_thread(_environment, offer, engine, model)
        with _why(bench):
            yield Target(bench, server, environment, {}, offer.url, here)


async def check_other(url: str, api_key: str | None) -> None:
    """Raise what asking a server that others started raises, before anything is loaded to be compared with it."""
    async with attached(address_of(url), api_key):
        pass


@contextmanager
def _why(bench: AttachedBench) -> Iterator[None]:
    """Raise the server's own error where nothing could be measured because of that."""
    try:
        yield
    except NothingMeasured:
        if bench.error is not None:
            raise bench.error from None
        raise


async def benchmark(target: Target, wanted: Wanted, on_run: OnRun) -> Benchmark:
    """Measure a target, and keep that in the history.

    Raises NothingMeasured, and BadOption for prompts that cannot have their size.
    """
    work, settings = wanted.workload, target.settings
    prompts = await sized(work.prompts, target.server)
    minimum, most, width = (wanted.runs, wanted.runs, 0.0) if wanted.runs else (MINIMUM, MOST, wanted.width)
    async with _recorded([target], work) as record:

        def take(run: Run, number: int) -> None:
            record.take(target, run, number)
            on_run(run, number)

        try:
            measured = await measure(
                target.bench,
                prompts,
                width=width,
                budget_s=wanted.budget_s,
                on_run=take,
                minimum=minimum,
                most=most,
            )
        except NothingMeasured as error:
            record.finish(target, {"error": error.title, "sentence": error.title})
            raise
        told = Benchmark(measured, work, target.environment, settings, target.url, record.ids.get(target.url))
        record.finish(target, {**told.as_json(), "sentence": told.sentence})
    return told


async def compare(targets: Sequence[Target], work: Workload, rounds: int, on_turn: OnTurn) -> tuple[Standing, ...]:
    """Ask several targets the same in turns, and keep that in the history; a standing is named by its address.

    Prompts get their sizes by the first that can count. Raises NothingMeasured when none can be measured, BadOption
    when two have the same address.
    """
    if len({target.url for target in targets}) < len(targets):
        raise BadOption("A server cannot be compared with itself.", "Name each server once.")
    prompts = await _sized_by_any(work, targets)
    by_url = {target.url: target for target in targets}

    async with _recorded(targets, work) as record:

        def take(url: str, run: Run, number: int) -> None:
            record.take(by_url[url], run, number)
            on_turn(url, run, number)

        benches = {url: each.bench for url, each in by_url.items()}
        try:
            found = await versus(benches, prompts, rounds=rounds, on_turn=take)
        except NothingMeasured as error:
            for target in targets:
                record.finish(target, {"error": error.title, "sentence": error.title})
            raise
        for each in found:
            record.finish(by_url[each.name], {"against": [url for url in by_url if url != each.name]})
    return found


async def _sized_by_any(work: Workload, targets: Sequence[Target]) -> tuple[Prompt, ...]:
    for target in targets[:-1]:
        with suppress(Refused):
            return await sized(work.prompts, target.server)
    return await sized(work.prompts, targets[-1].server)


class _Record:
    """Keeps runs in the history while they are measured; where that cannot be, a warning says so."""

    def __init__(self, targets: Sequence[Target], work: Workload) -> None:
        self._writer = HistoryWriter()
        self.ids = {
            each.url: self._writer.begin(KIND, each.environment, each.settings, workload=work.name)
            for each in targets
            if each.here
        }

    def take(self, target: Target, run: Run, number: int) -> None:
        if number and target.url in self.ids:
            self._writer.add(self.ids[target.url], run)

    def finish(self, target: Target, result: Mapping[str, Any]) -> None:
        if target.url in self.ids:
            self._writer.finish(self.ids[target.url], result)

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def _recorded(targets: Sequence[Target], work: Workload) -> AsyncIterator[_Record]:
    record = _Record(targets, work)
    try:
        yield record
    except (asyncio.CancelledError, KeyboardInterrupt):
        for target in targets:
            record.finish(target, {"ended": "stopped", "sentence": "Ended by you before it was done."})
        raise
    finally:
        await asyncio.shield(asyncio.to_thread(record.close))


def _chosen(options: ServeOptions) -> dict[str, Value]:
    """Return the settings that are not left to the engine."""
    found = {name: getattr(options, attribute) for name, attribute in OPTIONS.items()}
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: object) -> Value:
    """Return a setting of a registered server as one of a run: arguments of the user's own are one line."""
    if isinstance(value, list):
        return shlex.join(map(str, value))
    return value if isinstance(value, int | float | str) else str(value)


def _environment(offer: Offer, engine: str, name: str) -> Environment:
    """Return where a server of this computer is measured; its model is that of the file, where it names one."""
    model = ModelFacts(name)
    if offer.model_path is not None:
        with suppress(LauncherError, OSError):
            model = model_facts(read_model(Path(offer.model_path)))
    return Environment.here(model, engine, _version(engine, offer.engine or ""))


def _version(engine: str, told: str) -> str:
    """Return a version as the engine's own `--version` says it, however a server that runs tells it ("b11434-abc")."""
    if engine == BUILT_IN:
        return f"xllamacpp {built_in_version()}"  # it tells every server that its build is unknown
    build = _BUILD.fullmatch(told)
    return f"{build[1]} ({build[2]})" if build else told


def _spill(url: str) -> str | None:
    """Return what a server's own program says of memory that spilled: it knows from the log how much there is to be."""
    with suppress(LauncherError, OSError):
        for found in registry.find(url).health:
            if found.get("code") == Code.SPILL:
                return str(found.get("sentence"))
    return None
