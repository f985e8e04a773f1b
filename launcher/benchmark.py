"""How fast a model is on this machine: measured on a server of its own or on the one that runs, and kept."""

import asyncio
import logging
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher.attach import Offer, address_of, attached
from launcher.attach_bench import attached_bench
from launcher.base.errors import LauncherError, NothingMeasured
from launcher.bench import SessionBench
from launcher.engine import registry
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
from launcher.tuning.records import Bench, Run, Settings, Value
from launcher.tuning.workloads import Workload

KIND = "bench"
"""What it is called in the history."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure: a workload, `runs` rounds of it, or until it is known well enough: see tuning.measure."""

    workload: Workload
    runs: int | None = None
    width: float = WIDTH
    budget_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What was measured, of what, and where; `kept` is its id in the history."""

    measured: Measured
    workload: Workload
    environment: Environment
    settings: Settings
    url: str
    kept: str

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
        return f"{decode.mean:.1f} tokens/s for {self.workload.title.lower()}{mtp}."


async def benchmark_served(
    session: Session, options: ServeOptions, named: str, wanted: Wanted, on_run: OnRun
) -> Benchmark:
    """Serve a model on a session and measure it; stopping the session is the caller's.

    Raises what starting it raises, NothingMeasured, and BadOption for prompts that cannot have their size.
    """
    launch = await launch_plan(options, Endpoint(0, ""))
    options = replace(options, context=launch.context)
    settings = _chosen(options)
    bench = SessionBench(session, options, named=named)
    await bench.become(settings)
    supervisor = session.supervisor
    environment = await asyncio.to_thread(Environment.of_this_machine, launch)
    return await _benchmark(bench, supervisor.client, wanted, environment, settings, supervisor.endpoint.url, on_run)


async def benchmark_running(entry: Entry, wanted: Wanted, on_run: OnRun) -> Benchmark:
    """Measure a server of this user that another program runs, as it is. Raises what asking it raises."""
    key = await asyncio.to_thread(key_of, entry)
    async with attached(address_of(entry.url), key, engine_pid=entry.engine_pid) as server:
        settings = {name: _plain(value) for name, value in entry.settings.items() if value not in (None, [])}
        async with attached_bench(server, settings, partial(asyncio.to_thread, _spill, entry.url)) as bench:
            environment = await asyncio.to_thread(_environment, entry, server.offer)
            try:
                return await _benchmark(bench, server, wanted, environment, settings, entry.url, on_run)
            except NothingMeasured:
                if bench.error is not None:
                    raise bench.error from None
                raise


async def _benchmark(
    bench: Bench,
    server: Counts,
    wanted: Wanted,
    environment: Environment,
    settings: Settings,
    url: str,
    on_run: OnRun,
) -> Benchmark:
    work = wanted.workload
    prompts = await sized(work.prompts, server)
    writer = HistoryWriter(_not_kept)
    kept = writer.begin(KIND, environment, settings, workload=work.name)

    def take(run: Run, number: int) -> None:
        if number:
            writer.add(kept, run)
        on_run(run, number)

    minimum, most, width = (wanted.runs, wanted.runs, 0.0) if wanted.runs else (MINIMUM, MOST, wanted.width)
    try:
        measured = await measure(
            bench, prompts, width=width, budget_s=wanted.budget_s, on_run=take, minimum=minimum, most=most
        )
        told = Benchmark(measured, work, environment, settings, url, kept)
        writer.finish(kept, {**told.as_json(), "sentence": told.sentence})
    except LauncherError as error:
        writer.finish(kept, {"error": error.title, "sentence": error.title})
        raise
    finally:
        await asyncio.shield(asyncio.to_thread(writer.close))
    return told


def _chosen(options: ServeOptions) -> dict[str, Value]:
    """Return the settings that are not left to the engine."""
    found = {name: getattr(options, attribute) for name, attribute in OPTIONS.items()}
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: object) -> Value:
    """Return a setting of a registered server as one of a run: arguments of the user's own are one line."""
    if isinstance(value, list):
        return shlex.join(map(str, value))
    return value if isinstance(value, int | float | str) else str(value)


def _environment(entry: Entry, offer: Offer) -> Environment:
    model = ModelFacts(entry.model)
    if offer.model_path is not None:
        with suppress(LauncherError, OSError):
            model = model_facts(read_model(Path(offer.model_path)))
    return Environment.here(model, entry.engine, offer.engine or "")


def _spill(url: str) -> str | None:
    """Return what a server's own program says of memory that spilled: it knows from the log how much there is to be."""
    with suppress(LauncherError, OSError):
        for found in registry.find(url).health:
            if found.get("code") == Code.SPILL:
                return str(found.get("sentence"))
    return None


def _not_kept(error: LauncherError) -> None:
    _log.warning("%s", error.title)
