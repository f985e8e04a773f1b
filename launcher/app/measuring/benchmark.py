"""Measures the speed of a model on a new or a running server, and records it in the history."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from launcher.app.measuring.attach_bench import AttachedBench, attached_bench
from launcher.app.measuring.session_bench import SessionBench
from launcher.app.serving.attach import ServerFeatures, attach_server
from launcher.app.serving.serving_session import ServingSession
from launcher.base.codec import JsonView, to_json
from launcher.base.errors import BadOption, LauncherError, NothingMeasured, Refused
from launcher.base.messages import join_messages, message
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.builds.probe import built_in_version
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.address import parse_address
from launcher.engine.server.endpoint import Endpoint
from launcher.engine.server.launch import prepare_launch
from launcher.engine.server.listener import verified_api_key
from launcher.engine.server.registry import ServerEntry
from launcher.models.drafters import choice_in
from launcher.models.gguf import read_model
from launcher.models.limits import check_writes_text, no_text_error
from launcher.models.server_settings import Value
from launcher.monitor.health_event import FindingCode
from launcher.tuning.history import SessionRecord, record_session
from launcher.tuning.history_environment import Environment, ModelFacts, model_facts
from launcher.tuning.measured_speed import LEAST_ROUNDS, MOST_ROUNDS, WIDTH, MeasuredSpeed, measure_speed
from launcher.tuning.measuring_loop import OnRun
from launcher.tuning.records import Bench, Prompt, Run, RunSettings
from launcher.tuning.server_comparison import OnTurn, ServerStanding, compare_servers
from launcher.tuning.sized_prompts import TokenCounter, fill_prompts
from launcher.tuning.workloads import Workload

KIND = "bench"
"""Kind of a benchmark in the history."""
_BUILD = re.compile(r"b(\d+)-([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class BenchmarkRequest:
    """Request for a benchmark: a workload and how to measure it.

    `rounds` is the number of rounds, None to measure until the mean is precise enough (see tuning.measured_speed).
    `width` is the largest half width of the interval as a share of the mean, `budget_s` the time limit in seconds.
    """

    workload: Workload
    rounds: int | None = None
    width: float = WIDTH
    budget_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Result of a benchmark. `history_id` is its id in the history, None for another computer's server.

    JSON leaves the runs out.
    """

    JSON_VIEW: ClassVar[JsonView] = JsonView(
        "workload.name workload.version model=environment.model.name engine.name=environment.engine "
        "engine.version=environment.engine_version settings url clock=measured.clock mean=measured.decode.mean "
        "stdev=measured.decode.stdev interval=measured.interval acceptance=measured.acceptance.rate "
        "acceptance_by_position=measured.acceptance.rates_by_position* draft_n=measured.acceptance.drafted "
        "draft_n_accepted=measured.acceptance.accepted prefill=measured.prefill.mean "
        "first_token_s=measured.first_token.mean power_w=measured.power.mean "
        "tokens_per_joule=measured.tokens_per_joule temperature_c=measured.hottest_c ended=measured.ended"
    )
    measured: MeasuredSpeed
    workload: Workload
    environment: Environment
    settings: RunSettings
    url: str
    history_id: str | None

    @property
    def sentence(self) -> str:
        """One-line summary for lists."""
        decode = self.measured.decode
        if decode is None:
            return message("Speed unknown.")
        mean, name, length = decode.mean, self.workload.name, self.settings.get("draft")
        if length == 0:
            return message("{mean:.1f} tokens/s for {name} without MTP.", mean=mean, name=name)
        drafts = choice_in(self.settings).label() if length else None
        return message("{mean:.1f} tokens/s for {name}[ with {drafts}].", mean=mean, name=name, drafts=drafts)


@dataclass(frozen=True, slots=True)
class BenchmarkTarget:
    """A server to measure. Only measurements of servers on this computer (`is_local`) are recorded in the history."""

    bench: Bench
    server: TokenCounter
    environment: Environment
    settings: RunSettings
    url: str
    is_local: bool = True


async def serve_target(
    session: ServingSession,
    options: ServeOptions,
    model_name: str,
    workload: Workload | None = None,
) -> BenchmarkTarget:
    """Serve a model on a session to measure it. The caller stops it. Raises what a start raises, and ModelWritesNoText.

    With `workload`, BadOption is raised before the start for prompts that exceed the context.
    """
    launch = await prepare_launch(options, Endpoint(0, ""))
    check_writes_text(launch.header)
    if workload is not None:
        check_sizes(workload, launch.context)
    options = replace(options, context=launch.context)
    chosen: dict[str, Value] = dict(options.chosen())  # settings that are left to the engine are omitted
    bench = SessionBench(session, options, model_name=model_name)
    await bench.become(chosen)
    supervisor = session.supervisor
    environment = await asyncio.to_thread(Environment.for_launch, launch)
    extra: dict[str, Value] = {"extra": shlex.join(options.extra)} if options.extra else {}
    return BenchmarkTarget(bench, supervisor.client, environment, {**chosen, **extra}, supervisor.endpoint.url)


def check_sizes(workload: Workload, context: int) -> None:
    """Raise BadOption if a prompt of fixed size and its reply exceed the context."""
    large = [each for each in workload.prompts if each.size and each.size + each.tokens > context]
    if large:
        listed = join_messages(
            *(
                message(
                    "{name} ({size:,} to read, {tokens:,} to write)", name=each.name, size=each.size, tokens=each.tokens
                )
                for each in large
            ),
            separator="; ",
        )
        raise BadOption(
            message("A context of {context:,} tokens is too small for {listed}.", context=context, listed=listed),
            message("Reduce the sizes, or increase the context: --set ctx=N."),
        )


@asynccontextmanager
async def running_target(entry: ServerEntry) -> AsyncIterator[BenchmarkTarget]:
    """Yield a running server of this user, to be measured as it is.

    Raises what requests to it raise, and ModelWritesNoText for an embedding model.
    """
    served = entry.first
    if served.embeddings:
        raise no_text_error(served.model, is_reranker=served.reranking)
    key = await asyncio.to_thread(verified_api_key, entry)
    settings = {name: _to_run_value(value) for name, value in served.settings.items() if value not in (None, [])}
    find_spill = partial(asyncio.to_thread, _find_spill_sentence, entry.url)
    async with (
        attach_server(parse_address(entry.url), key, engine_pid=served.engine_pid) as server,
        attached_bench(server, settings, find_spill) as bench,
    ):
        environment = await asyncio.to_thread(_read_environment, server.features, served.engine, served.model)
        with _raising_server_error(bench):
            yield BenchmarkTarget(bench, server, environment, settings, entry.url)


@asynccontextmanager
async def attached_target(url: str, api_key: str | None) -> AsyncIterator[BenchmarkTarget]:
    """Yield a server that others started. Raises what requests to it raise."""
    async with attach_server(parse_address(url), api_key) as server, attached_bench(server) as bench:
        features, is_local = server.features, server.address.local
        engine, model = "llama-server" if features.is_llama_server else "another server", features.model or "unknown"
        environment = Environment(ModelFacts(model), engine, features.engine or "")
        if is_local:
            environment = await asyncio.to_thread(_read_environment, features, engine, model)
        with _raising_server_error(bench):
            yield BenchmarkTarget(bench, server, environment, {}, features.url, is_local)


async def check_server(url: str, api_key: str | None) -> None:
    """Check that a server answers, before time is spent on loading a model that is compared with it.

    Raises what `attach_server` raises.
    """
    async with attach_server(parse_address(url), api_key):
        pass


@contextmanager
def _raising_server_error(bench: AttachedBench) -> Iterator[None]:
    """Raise the server's own error in place of NothingMeasured, if it was the cause."""
    try:
        yield
    except NothingMeasured:
        if bench.error is not None:
            raise bench.error from None
        raise


async def run_benchmark(target: BenchmarkTarget, request: BenchmarkRequest, on_run: OnRun) -> Benchmark:
    """Measure a target, and record it in the history.

    Raises NothingMeasured, and BadOption for prompts that cannot have their size.
    """
    workload = request.workload
    prompts = await fill_prompts(workload.prompts, target.server)
    least_rounds, most_rounds, width = LEAST_ROUNDS, MOST_ROUNDS, request.width
    if request.rounds:
        least_rounds, most_rounds, width = request.rounds, request.rounds, 0.0
    async with _record_targets([target], workload) as records:
        record = records.get(target.url)

        def record_run(run: Run, number: int) -> None:
            if record and number:
                record.add_run(run)
            on_run(run, number)

        measured = await measure_speed(
            target.bench,
            prompts,
            width=width,
            budget_s=request.budget_s,
            on_run=record_run,
            least_rounds=least_rounds,
            most_rounds=most_rounds,
        )
        history_id = record.id if record else None
        benchmark = Benchmark(measured, workload, target.environment, target.settings, target.url, history_id)
        if record:
            record.finish({**to_json(benchmark), "sentence": benchmark.sentence})
    return benchmark


async def compare_targets(
    targets: Sequence[BenchmarkTarget], workload: Workload, rounds: int, on_turn: OnTurn
) -> tuple[ServerStanding, ...]:
    """Measure several targets in turns, and record them in the history. Standings are named by the server's address.

    Prompts get their sizes from the first server that can count tokens. Raises NothingMeasured when none can be
    measured, BadOption when two have the same address.
    """
    if len({target.url for target in targets}) < len(targets):
        raise BadOption(message("A server cannot be compared with itself."), message("List each server only once."))
    prompts = await _fill_by_any(workload, targets)
    benches = {target.url: target.bench for target in targets}
    async with _record_targets(targets, workload) as records:

        def record_run(url: str, run: Run, number: int) -> None:
            if number and url in records:
                records[url].add_run(run)
            on_turn(url, run, number)

        standings = await compare_servers(benches, prompts, rounds=rounds, on_turn=record_run)
        for url, record in records.items():
            record.finish({"against": [other for other in benches if other != url]})
    return standings


async def _fill_by_any(workload: Workload, targets: Sequence[BenchmarkTarget]) -> tuple[Prompt, ...]:
    for target in targets[:-1]:
        with suppress(Refused):
            return await fill_prompts(workload.prompts, target.server)
    return await fill_prompts(workload.prompts, targets[-1].server)


@asynccontextmanager
async def _record_targets(
    targets: Sequence[BenchmarkTarget], workload: Workload
) -> AsyncIterator[dict[str, SessionRecord]]:
    """Record targets in the history, by address. Those on other computers are left out."""
    async with AsyncExitStack() as stack:
        records: dict[str, SessionRecord] = {}
        for target in targets:
            if target.is_local:
                recording = record_session(KIND, target.environment, target.settings, workload=workload.name)
                records[target.url] = await stack.enter_async_context(recording)
        try:
            yield records
        except (asyncio.CancelledError, KeyboardInterrupt):
            for record in records.values():
                record.finish({"ended": "stopped", "sentence": message("Cancelled before it finished.")})
            raise


def _to_run_value(value: object) -> Value:
    """Return a server's setting in the form that runs store. A list of extra arguments becomes one string."""
    if isinstance(value, list):
        return shlex.join(map(str, value))
    return value if isinstance(value, int | float | str) else str(value)


def _read_environment(features: ServerFeatures, engine: str, name: str) -> Environment:
    """Return the environment of a server on this computer.

    The model is read from its file, if the server names one.
    """
    model = ModelFacts(name)
    if features.model_path is not None:
        with suppress(LauncherError, OSError):
            model = model_facts(read_model(Path(features.model_path)))
    return Environment.for_model(model, engine, _format_version(engine, features.engine or ""))


def _format_version(engine: str, reported: str) -> str:
    """Return a server's version in the form of `--version`: "b11434-abc" becomes "11434 (abc)"."""
    if engine == BUILT_IN:
        return f"xllamacpp {built_in_version()}"  # the server of the built-in engine reports an unknown build
    build = _BUILD.fullmatch(reported)
    return f"{build[1]} ({build[2]})" if build else reported


def _find_spill_sentence(url: str) -> str | None:
    """Return the sentence about a memory spill, as reported by the program that runs the server; None without a spill.

    Only that program knows from the log how much memory to expect.
    """
    with suppress(LauncherError, OSError):
        for finding in registry.find_server(url).health:
            if finding.get("code") == FindingCode.SPILL:
                return str(finding.get("sentence"))
    return None
