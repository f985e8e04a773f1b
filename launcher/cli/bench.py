"""`mtp-launcher bench`: measure a model's speed with the prompts of a workload."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from launcher.app.measuring.benchmark import (
    BenchmarkRequest,
    attached_target,
    check_server,
    compare_targets,
    run_benchmark,
    running_target,
    serve_target,
)
from launcher.app.measuring.saved_tunes import check_no_tune
from launcher.app.planning.start_settings import make_unresolved_options
from launcher.app.serving.session import ServerSession
from launcher.base.codec import JsonView, to_json
from launcher.base.errors import BadOption, LauncherError, SeveralServers
from launcher.base.text import one_line
from launcher.base.units import format_percent
from launcher.cli.given_key import find_api_key
from launcher.cli.layout import format_table, merge_similar, wrap_text
from launcher.cli.measured_subject import cost_of_runs, read_prices, resolve_model_and_options
from launcher.cli.options.bench import DEFAULT_BUDGET_MIN, DEFAULT_PRECISION_PERCENT
from launcher.cli.output import Note, Result
from launcher.cli.progress import Reporter, StateLine
from launcher.cli.suggested_fixes import actions_json, print_failure
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.address import parse_address
from launcher.engine.server.launch import api_model_name
from launcher.tuning.measured_speed import EndReason
from launcher.tuning.server_comparison import ROUNDS
from launcher.tuning.statistics import INTERVAL_NOTE, plus_minus
from launcher.tuning.workloads import DEFAULT_WORKLOAD, load_workload, shipped_workloads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.app.measuring.benchmark import Benchmark, BenchmarkTarget
    from launcher.engine.server.registry import ServerEntry
    from launcher.tuning.measured_speed import MeasuredSpeed
    from launcher.tuning.records import Run
    from launcher.tuning.server_comparison import ServerStanding
    from launcher.tuning.workloads import Workload


async def run(options: argparse.Namespace) -> Result | int:
    """Measure and return the result. Exit code 1 if a server failed before the end."""
    if options.list:
        workloads = shipped_workloads()
        return Result(to_json(workloads, _WORKLOAD), _format_workloads(workloads))
    read_prices(options)  # so that invalid prices are reported before anything is measured
    workload = await asyncio.to_thread(load_workload, options.workload or DEFAULT_WORKLOAD)
    await asyncio.to_thread(check_no_tune)
    _check_comparison(options)
    server = await _find_target_server(options)
    for url in options.against:
        await check_server(url, await find_api_key(url, options))
    with closing(Reporter(as_json=options.json)) as reporter:
        if server is not None:
            await _check_no_changes(server, options)
            reporter.show_event(None, [Note(f"Asking {server.url} ({one_line(server.first.model)}).")])
            async with running_target(server) as target:
                return await _measure_target(target, workload, options, reporter)
        session = ServerSession(on_event=None if options.json else StateLine().show_event)
        try:
            model, serve_options = await resolve_model_and_options(options, reporter)
            target = await serve_target(session, serve_options, model, workload)
            return await _measure_target(target, workload, options, reporter)
        except LauncherError as error:
            reporter.close()
            print_failure(error, actions_json(error.actions, session.command_for_action), as_json=options.json)
            return 1
        finally:
            await session.stop()


async def _measure_target(
    target: BenchmarkTarget, workload: Workload, options: argparse.Namespace, reporter: Reporter
) -> Result:
    """Measure a target, alone or in turns with the servers of --against."""
    prices = read_prices(options)
    if not options.against:
        request = _make_request(options, workload)
        benchmark = await run_benchmark(target, request, partial(reporter.show_round, rounds=request.rounds))
        speed = benchmark.measured
        cost, cost_text = cost_of_runs(speed.answered, prices)
        return Result(
            {**to_json(benchmark, _BENCHMARK), **cost},
            _format_benchmark(benchmark, cost_text),
            exit_code=1 if speed.ended is EndReason.FAILED else 0,
        )
    rounds = options.runs or ROUNDS
    async with AsyncExitStack() as stack:
        others = [attached_target(url, await find_api_key(url, options)) for url in options.against]
        targets = [target, *[await stack.enter_async_context(other) for other in others]]
        standings = await compare_targets(
            targets, workload, rounds, lambda _, run, number: reporter.show_round(run, number, rounds=rounds)
        )
    costs = [cost_of_runs(each.measured.answered if each.measured else (), prices) for each in standings]
    servers = [
        {"url": standing.name, **to_json(each, _TARGET), **to_json(standing, _STANDING), **cost}
        for standing, each, (cost, _) in zip(standings, targets, costs, strict=True)
    ]
    return Result(
        {"workload": {"name": workload.name, "version": workload.version}, "rounds": rounds, "servers": servers},
        format_standings(standings, targets, workload, [text for _, text in costs]),
        exit_code=1 if any(each.error for each in standings) else 0,
    )


def _make_request(options: argparse.Namespace, workload: Workload) -> BenchmarkRequest:
    rounds = options.runs or (workload.rounds if options.within is None else None)
    budget_min = options.budget or (float("inf") if rounds else DEFAULT_BUDGET_MIN)
    return BenchmarkRequest(workload, rounds, options.within or DEFAULT_PRECISION_PERCENT / 100, 60 * budget_min)


def _check_comparison(options: argparse.Namespace) -> None:
    """Raise BadOption for options that do not go with the number of --against servers."""
    if options.against and (options.within or options.budget):
        raise BadOption("--within and --budget are for one server.", "With --against use --runs.")
    if (options.api_key_env or options.key_file) and len(options.against) != 1:
        raise BadOption("An API key is for a single --against server.", "Leave it out, or name one server.")


async def _find_target_server(options: argparse.Namespace) -> ServerEntry | None:
    """Return the running server to measure, None if there is none. The servers of --against do not count."""
    if options.url is not None:
        return await asyncio.to_thread(registry.find_server, options.url)
    others = {parse_address(url).registry_url for url in options.against}
    servers = [server for server in await asyncio.to_thread(registry.list_entries) if server.url not in others]
    if len(servers) > 1:
        names = ", ".join(server.url for server in servers)
        raise SeveralServers(f"{len(servers)} servers are running: {names}.", "Choose one with --url.")
    return servers[0] if servers else None


async def _check_no_changes(server: ServerEntry, options: argparse.Namespace) -> None:
    """Raise BadOption if the options name other settings than a running server has, or another model."""
    if options.changes or options.engine:
        raise BadOption(
            f"A server runs at {server.url} and is measured as it is: --set and --engine do not apply to it.",
            "Change its settings with `mtp-launcher restart --set`, or stop it first.",
        )
    served = server.first
    if options.model is not None and await asyncio.to_thread(_read_model_name, options) != served.model:
        raise BadOption(
            f"The server at {server.url} has {one_line(served.model)}, and no other model can be measured beside it.",
            "Leave the model out to measure that one, or stop it first: `mtp-launcher stop`.",
        )


def _read_model_name(options: argparse.Namespace) -> str:
    return api_model_name(make_unresolved_options(options.model, lambda path: ServeOptions(model=path)))


# Output of `bench`: one server, or several in a table.

_UNKNOWN = "not known"
_WORKLOAD = JsonView("name title about version prompts=prompts.__len__ reply_tokens runs=rounds")
_RUN = JsonView(
    "prompt prompt_n=prompt_tokens cache_n=cached_tokens predicted_n=reply_tokens "
    "tokens_per_second=decode_rate:3 prefill_per_second=prefill_rate:3 first_token_s:4 "
    "draft_n=acceptance.drafted draft_n_accepted=acceptance.accepted "
    "acceptance_by_position=acceptance.rates_by_position*:4 power_w:1 temperature_c:1 clock_mhz:1 spoilt "
    "error"
)
_BENCHMARK = JsonView(
    "workload.name workload.version model=environment.model.name engine.name=environment.engine "
    "engine.version=environment.engine_version settings url clock=measured.clock mean=measured.decode.mean:3 "
    "stdev=measured.decode.stdev:3 acceptance=measured.acceptance.rate:4 "
    "acceptance_by_position=measured.acceptance.rates_by_position*:4 draft_n=measured.acceptance.drafted "
    "draft_n_accepted=measured.acceptance.accepted prefill=measured.prefill.mean:3 "
    "first_token_s=measured.first_token.mean:4 power_w=measured.power.mean:3 "
    "tokens_per_joule=measured.tokens_per_joule:4 temperature_c=measured.hottest_c:3 ended=measured.ended "
    "ci_low=measured.interval.low:3 ci_high=measured.interval.high:3 rounds=measured.rounds kept=history_id "
    "runs=measured.runs",
    runs=_RUN,
)
_TARGET = JsonView(
    "engine.name=environment.engine engine.version=environment.engine_version model=environment.model.name"
)
_STANDING = JsonView(
    "clock=measured.clock mean=measured.decode.mean:3 stdev=measured.decode.stdev:3 "
    "prefill=measured.prefill.mean:3 first_token_s=measured.first_token.mean:4 "
    "acceptance=measured.acceptance.rate:4 ratio:4 error runs=measured.runs*",
    runs=_RUN,
)


def _format_workloads(workloads: Sequence[Workload]) -> Iterator[str]:
    rows = [(each.name, str(len(each.prompts)), f"{each.reply_tokens:,}", each.about) for each in workloads]
    return format_table([("WORKLOAD", "PROMPTS", "TOKENS A ROUND", "WHAT"), *rows], right=(1, 2))


def _format_benchmark(benchmark: Benchmark, cost: str) -> Iterator[str]:
    speed, workload = benchmark.measured, benchmark.workload
    settings = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in benchmark.settings.items())
    model = one_line(benchmark.environment.model.label_with_quant)
    engine = one_line(f"{benchmark.environment.engine} {benchmark.environment.engine_version}")
    yield wrap_text(f"{workload.title} (version {workload.version}) on {model}, engine {engine}, {settings}.")
    rows = {
        "decode": _describe_decode(speed),
        "prompts": _describe_prompts(speed.counted),
        "prefill": f"{speed.prefill.mean:.0f} tokens/s" if speed.prefill else _UNKNOWN,
        "first token": f"{speed.first_token.mean:.3f} s" if speed.first_token else _UNKNOWN,
        "drafts": _describe_drafts(speed),
        "power": _describe_power(speed),
        "cost": cost,
        "left out": _describe_left_out(speed),
    }
    yield from tabulate_runs(speed)
    for label, text in rows.items():
        if text:
            yield wrap_text(text, f"  {label:<12} ")
    kept = (
        f"Kept as {benchmark.history_id}: `mtp-launcher history show {benchmark.history_id}`."
        if benchmark.history_id
        else ""
    )
    if ending := f"{_describe_end(speed)}{kept}":
        yield wrap_text(ending)


def _describe_decode(speed: MeasuredSpeed) -> str:
    decode, interval = speed.decode, speed.interval
    if decode is None:
        return _UNKNOWN
    clock = "" if speed.clock == "engine" else ", timed by this program, not by the server"
    text = f"{decode.mean:.1f} tokens/s"
    if interval is not None and interval.n > 1:
        spread = plus_minus(interval)
        text += spread
        if "±" in spread:
            text += f" (95 % interval of the mean of {interval.n} rounds{clock})"
    if decode.stdev is not None:
        text += f"; standard deviation {decode.stdev:.1f}"
    return f"{text} over {decode.n} replies"


def _describe_prompts(counted: tuple[Run, ...]) -> str:
    rates: dict[str, list[float]] = {}
    for each in counted:
        rates.setdefault(each.prompt, []).append(each.decode_rate or 0.0)
    return ", ".join(f"{name} {fmean(values):.1f}" for name, values in rates.items()) if len(rates) > 1 else ""


def _describe_drafts(speed: MeasuredSpeed) -> str:
    drafts = speed.acceptance
    if drafts is None:
        return "none"
    by_position = ", ".join(format_percent(share) for share in drafts.rates_by_position)
    total = f"{format_percent(drafts.rate)} accepted ({drafts.accepted:,} of {drafts.drafted:,}"
    step = f"each step of the engine writes {drafts.mean_length:.2f} tokens (1 without MTP)"
    return f"{total}; by position {by_position}); {step}"


def _describe_power(speed: MeasuredSpeed) -> str:
    if speed.power is None:
        return ""
    energy = f", {speed.tokens_per_joule:.2f} tokens a joule" if speed.tokens_per_joule else ""
    heat = f", up to {speed.hottest_c:.0f} °C" if speed.hottest_c is not None else ""
    return f"{speed.power.mean:.0f} W{energy}{heat}"


def _describe_left_out(speed: MeasuredSpeed) -> str:
    reasons = [each.error or each.spoilt or "" for each in speed.runs if each.error or each.spoilt]
    return f"{len(reasons)} replies: {merge_similar(reasons)}" if reasons else ""


def tabulate_runs(speed: MeasuredSpeed) -> Iterator[str]:
    """Yield a line for each reply to the only prompt of a workload."""
    if len({each.prompt for each in speed.runs}) != 1:
        return
    rows = [("run", "tokens/s", "drafted", "accepted", "")]
    for number, each in enumerate(speed.counted, 1):
        drafts = each.acceptance
        drafted, accepted = (f"{drafts.drafted:,}", f"{drafts.accepted:,}") if drafts else ("", "")
        share = f"{100 * drafts.rate:.1f} %" if drafts and drafts.rate is not None else ""
        rows.append((str(number), f"{each.decode_rate or 0.0:.2f}", drafted, accepted, share))
    yield from format_table(rows, right=range(5))
    yield ""


def _describe_end(speed: MeasuredSpeed) -> str:
    if speed.ended is EndReason.BUDGET and speed.interval is not None:
        share = speed.interval.half_width / speed.interval.estimate
        precision = f"to within ± {100 * share:.1f} %" if speed.interval.n > 1 else "from one round only"
        return f"The time was up: the mean is known {precision}. "
    return "The server failed before the end. " if speed.ended is EndReason.FAILED else ""


def format_standings(
    standings: Sequence[ServerStanding], targets: Sequence[BenchmarkTarget], workload: Workload, costs: Sequence[str]
) -> Iterator[str]:
    """Yield a table of servers, each compared with the first. `costs` are sentences, empty without a price."""
    by_url = {target.url: target for target in targets}
    clock = next(each.measured.clock for each in standings if each.measured)
    timer = "the servers themselves" if clock == "engine" else "this program: one of the servers gives no timings"
    yield wrap_text(f"{workload.title} (version {workload.version}), asked in turns, timed by {timer}.")
    head = ("SERVER", "MODEL", "TOKENS/S", "FIRST TOKEN", "ACCEPTED", "AGAINST THE FIRST")
    rows = [_standing_cells(each, by_url[each.name], first=each is standings[0]) for each in standings]
    yield from format_table([head, *rows], right=(2, 3, 4))
    yield wrap_text(INTERVAL_NOTE, "  ")
    yield from (wrap_text(f"{each.name}: {one_line(each.error)}") for each in standings if each.error)
    yield from (wrap_text(f"{each.name}: {cost}") for each, cost in zip(standings, costs, strict=True) if cost)


def _standing_cells(standing: ServerStanding, target: BenchmarkTarget, *, first: bool) -> tuple[str, ...]:
    speed = standing.measured
    decode, interval = (speed.decode, speed.interval) if speed else (None, None)
    spread = plus_minus(interval) if interval else ""
    first_token = speed.first_token if speed else None
    if speed and speed.acceptance:
        acceptance = format_percent(speed.acceptance.rate)
    else:
        acceptance = _UNKNOWN if speed and speed.clock == "wall" else "no drafts"
    return (
        f"{standing.name} ({target.environment.engine})",
        one_line(target.environment.model.label_with_quant),
        f"{decode.mean:.1f}{spread}" if decode else _UNKNOWN,
        f"{first_token.mean:.3f} s" if first_token else _UNKNOWN,
        acceptance,
        "" if first else _describe_ratio(standing),
    )


def _describe_ratio(standing: ServerStanding) -> str:
    ratio = standing.ratio
    if ratio is None:
        return "" if standing.error else "unknown: at least 3 rounds are needed (--runs)"
    figures = f"{ratio.estimate:.2f} times as fast ({ratio.low:.2f} to {ratio.high:.2f})"
    return figures if ratio.low > 1 or ratio.high < 1 else f"not distinguishable: {figures}"
