"""`mtp-launcher bench`: measure a model's speed with the prompts of a workload."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import fmean
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.base.units import format_percent
from launcher.cli.bar import parse_rounds, show_rounds
from launcher.cli.key_options import add_key_options, key_or_ours
from launcher.cli.layout import print_table, wrap_text
from launcher.cli.output import parse_number, print_json, round_figure
from launcher.cli.quantities import parse_minutes
from launcher.cli.subject_options import (
    add_engine,
    add_model,
    add_price_options,
    add_settings,
    cost_words,
    prices_of,
    resolve_served,
)
from launcher.tuning.statistics import INTERVAL_NOTE, plus_minus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.app.benchmark import Benchmark, BenchmarkRequest, BenchmarkTarget
    from launcher.app.session import Session
    from launcher.engine.server.registry import Entry
    from launcher.tuning.measured_speed import MeasuredSpeed
    from launcher.tuning.records import Run
    from launcher.tuning.server_comparison import ServerStanding
    from launcher.tuning.statistics import Figure
    from launcher.tuning.workloads import Workload

_WITHIN, _BUDGET_MIN = 3.0, 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_model(parser)
    parser.add_argument(
        "--workload", metavar="W", help="what to ask: see --list, or a file of your own prompts (default: code)"
    )
    parser.add_argument("--list", action="store_true", help="list the workloads, and measure nothing")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--runs", type=parse_rounds, metavar="N", help="ask each prompt exactly N times")
    how_long.add_argument(
        "--within",
        type=_share,
        metavar="PERCENT",
        help=f"go on until the mean is known this well: half of its 95 %% interval (default {_WITHIN:g})",
    )
    parser.add_argument(
        "--budget", type=parse_minutes, metavar="MIN", help=f"but no longer (default {_BUDGET_MIN:g}; none with --runs)"
    )
    add_settings(parser)
    add_engine(parser)
    parser.add_argument("--url", help="which server, when more than one runs")
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="URL",
        help="ask this server (Ollama, vLLM, another llama-server) the same in turns; may be given more than once",
    )
    add_key_options(parser)
    add_price_options(parser)
    parser.epilog = (
        "When a server of this program runs, that is asked as it is. Else the model is served as `serve` does it,"
        " measured, and stopped. The result goes into the history."
    )


def _share(text: str) -> float:
    value = parse_number(text)
    if not 0 < value <= 50:
        raise argparse.ArgumentTypeError("it is a percentage, above 0 and up to 50")
    return value / 100


async def run(options: argparse.Namespace) -> int:
    """Measure and print the result; exit code 1 if a server failed before the end."""
    from launcher.app.benchmark import check_server
    from launcher.app.session import Session
    from launcher.app.tuner_kept import check_no_tune
    from launcher.base.errors import LauncherError
    from launcher.cli.action_commands import actions_json, print_failure
    from launcher.cli.bar import StateLine
    from launcher.tuning.workloads import DEFAULT_WORKLOAD, load_workload, shipped_workloads

    if options.list:
        print_workloads(shipped_workloads(), as_json=options.json)
        return 0
    prices_of(options)  # reports invalid prices before anything is measured
    work = await asyncio.to_thread(load_workload, options.workload or DEFAULT_WORKLOAD)
    await asyncio.to_thread(check_no_tune)
    entry = await _running(options)
    for url in options.against:
        await check_server(url, await key_or_ours(url, options))
    if entry is not None:
        async with _asked(entry, options) as target:
            return await _measured(target, work, options)
    states = StateLine()
    session = Session(on_event=None if options.json else states.show_event)
    try:
        target = await _served(session, options, work)
        return await _measured(target, work, options)
    except LauncherError as error:
        print_failure(error, actions_json(error.actions, session.command_for_action), as_json=options.json)
        return 1
    finally:
        await session.stop()


async def _measured(target: BenchmarkTarget, work: Workload, options: argparse.Namespace) -> int:
    """Measure a target, alone or against others, and print the result."""
    from launcher.app.benchmark import compare_targets, other_target, run_benchmark
    from launcher.tuning.measured_speed import EndReason
    from launcher.tuning.server_comparison import ROUNDS

    if not options.against:
        wanted = _wanted(options, work)
        with show_rounds(wanted.runs, quiet=options.json) as show:
            told = await run_benchmark(target, wanted, show)
        cost, said = _cost(told.measured, options)
        if options.json:
            print_json({**benchmark_json(told), **cost})
        else:
            print_benchmark(told, said)
        return 1 if told.measured.ended is EndReason.FAILED else 0
    rounds = options.runs or ROUNDS
    async with AsyncExitStack() as stack:
        others = [other_target(url, await key_or_ours(url, options)) for url in options.against]
        targets = [target, *[await stack.enter_async_context(other) for other in others]]
        with show_rounds(rounds, quiet=options.json) as show:
            found = await compare_targets(targets, work, rounds, lambda _, run, number: show(run, number))
    costs = [_cost(each.measured, options) for each in found]
    if options.json:
        all_of_it = zip(found, targets, costs, strict=True)
        lines = [{**standing_json(each, of), **cost} for each, of, (cost, _) in all_of_it]
        print_json({"workload": {"name": work.name, "version": work.version}, "rounds": rounds, "servers": lines})
    else:
        print_standings(found, targets, work)
        for each, (_, said) in zip(found, costs, strict=True):
            if said:
                print(wrap_text(f"{each.name}: {said}"))
    return 1 if any(each.error for each in found) else 0


def _cost(found: MeasuredSpeed | None, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return the cost of the replies, as JSON and as text; empty without a price."""
    prices = prices_of(options)
    if prices is None:
        return {}, ""
    cost, said = cost_words([((run,), run.wall_s) for run in found.answered] if found else [], prices)
    return {"cost": cost.as_json() if cost else None, "cost_said": said}, said


def _wanted(options: argparse.Namespace, work: Workload) -> BenchmarkRequest:
    from launcher.app.benchmark import BenchmarkRequest

    fixed = options.runs or (work.runs if options.within is None else None)
    budget = options.budget or (None if fixed else _BUDGET_MIN)
    return BenchmarkRequest(
        work, fixed, options.within or _WITHIN / 100, float("inf") if budget is None else 60 * budget
    )


async def _running(options: argparse.Namespace) -> Entry | None:
    """Return the running server to measure, other than those it is compared with; None if there is none."""
    from launcher.app.attach import parse_address
    from launcher.base.errors import BadOption, SeveralServers
    from launcher.engine.server import registry

    if options.against and (options.within or options.budget):
        raise BadOption("--within and --budget are for one server.", "With --against say --runs.")
    if (options.api_key_env or options.key_file) and len(options.against) != 1:
        raise BadOption("A key is for the one server that --against names.", "Leave it out, or name one server.")
    if options.url is not None:
        return await asyncio.to_thread(registry.find_server, options.url)
    others = {parse_address(url).url.replace("//localhost:", "//127.0.0.1:") for url in options.against}
    entries = [entry for entry in await asyncio.to_thread(registry.list_running) if entry.url not in others]
    if len(entries) > 1:
        names = ", ".join(entry.url for entry in entries)
        raise SeveralServers(f"{len(entries)} servers are running: {names}.", "Name one with --url.")
    return entries[0] if entries else None


@asynccontextmanager
async def _asked(entry: Entry, options: argparse.Namespace) -> AsyncIterator[BenchmarkTarget]:
    """Yield a running server as target. Raises BadOption for options that would change it, or for another model."""
    from launcher.app.benchmark import running_target
    from launcher.base.errors import BadOption

    if options.changes or options.engine:
        raise BadOption(
            f"A server runs at {entry.url}, so it is measured as it is: --set and --engine are for one of its own.",
            "Give it the settings with `mtp-launcher restart --set`, or stop it first.",
        )
    if options.model is not None and await asyncio.to_thread(_name, options) != entry.model:
        raise BadOption(
            f"The server at {entry.url} has {one_line(entry.model)}, and beside it nothing can be measured.",
            "Leave the model out to measure that one, or stop it first: `mtp-launcher stop`.",
        )
    if not options.json:
        print(f"Asking {entry.url} ({one_line(entry.model)}).", file=sys.stderr)
    async with running_target(entry) as target:
        yield target


def _name(options: argparse.Namespace) -> str:
    from launcher.app.start_settings import options_for
    from launcher.engine.serve_options import ServeOptions
    from launcher.engine.server.launch import api_model_name

    return api_model_name(options_for(options.model, lambda path: ServeOptions(model=path)))


async def _served(session: Session, options: argparse.Namespace, work: Workload) -> BenchmarkTarget:
    from launcher.app.benchmark import serve_target

    named, served = await resolve_served(options)
    return await serve_target(session, served, named, work)


# Output of `bench`: one server, or several in a table.

_UNKNOWN = "not known"


def print_workloads(found: Sequence[Workload], *, as_json: bool) -> None:
    """Print the workloads."""
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "title": each.title,
                    "about": each.about,
                    "version": each.version,
                    "prompts": len(each.prompts),
                    "reply_tokens": each.reply_tokens,
                    "runs": each.runs,
                }
                for each in found
            ]
        )
        return
    rows = [(each.name, str(len(each.prompts)), f"{each.reply_tokens:,}", each.about) for each in found]
    print_table([("WORKLOAD", "PROMPTS", "TOKENS A ROUND", "WHAT"), *rows], right=(1, 2))


def print_benchmark(told: Benchmark, cost: str = "") -> None:
    """Print the measurement of one server."""
    found, work = told.measured, told.workload
    settings = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in told.settings.items())
    model = one_line(told.environment.model.label_with_quant)
    engine = one_line(f"{told.environment.engine} {told.environment.engine_version}")
    print(wrap_text(f"{work.title} (version {work.version}) on {model}, engine {engine}, {settings}."))
    lines = {
        "decode": _speed(found),
        "prompts": _by_prompt(found.counted),
        "prefill": f"{found.prefill.mean:.0f} tokens/s" if found.prefill else _UNKNOWN,
        "first token": f"{found.first_token.mean:.3f} s" if found.first_token else _UNKNOWN,
        "drafts": _drafts(found),
        "power": _power(found),
        "cost": cost,
        "left out": _left_out(found),
    }
    for name, text in lines.items():
        if text:
            print(wrap_text(text, f"  {name:<12} "))
    kept = f"Kept as {told.kept}: `mtp-launcher history show {told.kept}`." if told.kept else ""
    print(wrap_text(f"{_end(found)}{kept}"))


def _speed(found: MeasuredSpeed) -> str:
    decode, interval = found.decode, found.interval
    if decode is None:
        return _UNKNOWN
    whose = "" if found.clock == "engine" else ", by the clock here"
    said = f"{decode.mean:.1f} tokens/s"
    if interval is not None and interval.n > 1:
        reach = plus_minus(interval)
        said += reach
        if "±" in reach:
            said += f" (95 % interval of the mean of {interval.n} rounds{whose})"
    spread = f"; standard deviation {decode.stdev:.1f}" if decode.stdev is not None else ""
    return f"{said}{spread} over {decode.n} replies"


def _by_prompt(counted: tuple[Run, ...]) -> str:
    rates: dict[str, list[float]] = {}
    for each in counted:
        rates.setdefault(each.prompt, []).append(each.decode_rate or 0.0)
    return ", ".join(f"{name} {fmean(values):.1f}" for name, values in rates.items()) if len(rates) > 1 else ""


def _drafts(found: MeasuredSpeed) -> str:
    drafts = found.acceptance
    if drafts is None:
        return "none"
    by_position = ", ".join(format_percent(share) for share in drafts.rates_by_position)
    whole = f"{format_percent(drafts.rate)} accepted ({drafts.accepted:,} of {drafts.drafted:,}"
    step = f"each step of the engine writes {drafts.mean_length:.2f} tokens, without MTP 1"
    return f"{whole}; by position {by_position}); {step}"


def _power(found: MeasuredSpeed) -> str:
    power: Figure | None = found.power
    if power is None:
        return ""
    energy = f", {found.tokens_per_joule:.2f} tokens a joule" if found.tokens_per_joule else ""
    heat = f", up to {found.hottest_c:.0f} °C" if found.hottest_c is not None else ""
    return f"{power.mean:.0f} W{energy}{heat}"


def _left_out(found: MeasuredSpeed) -> str:
    why = [each.error or each.spoilt or "" for each in found.runs if each.error or each.spoilt]
    return f"{len(why)} replies: {' '.join(dict.fromkeys(why))}" if why else ""


def _end(found: MeasuredSpeed) -> str:
    from launcher.tuning.measured_speed import EndReason

    if found.ended is EndReason.BUDGET and found.interval is not None:
        share = found.interval.half_width / found.interval.estimate
        known = f"to {100 * share:.1f} %" if found.interval.n > 1 else "from one round only"
        return f"The time was up: the mean is known {known}. "
    return "The server failed before the end. " if found.ended is EndReason.FAILED else ""


def benchmark_json(benchmark: Benchmark) -> dict[str, Any]:
    """Return the measurement of one server with its runs as JSON, rounded to significant digits."""
    told = benchmark.as_json()
    interval = told.pop("interval") or {}
    shares = {name: round_figure(told[name], 4) for name in ("acceptance", "first_token_s", "tokens_per_joule")}
    rates = {name: round_figure(told[name], 3) for name in ("mean", "stdev", "prefill", "power_w", "temperature_c")}
    ends = {"ci_low": round_figure(interval.get("low"), 3), "ci_high": round_figure(interval.get("high"), 3)}
    by_position = [round_figure(share, 4) for share in told["acceptance_by_position"]]
    figures = {**rates, **shares, **ends, "rounds": interval.get("n", 0), "acceptance_by_position": by_position}
    return {**told, **figures, "kept": benchmark.kept, "runs": [_run_json(each) for each in benchmark.measured.runs]}


def _run_json(run: Run) -> dict[str, Any]:
    drafts = run.acceptance
    return {
        "prompt": run.prompt,
        "prompt_n": run.prompt_tokens,
        "cache_n": run.cached_tokens,
        "predicted_n": run.reply_tokens,
        "tokens_per_second": round_figure(run.decode_rate, 3),
        "prefill_per_second": round_figure(run.prefill_rate, 3),
        "first_token_s": round_figure(run.first_token_s, 4),
        "draft_n": drafts and drafts.drafted,
        "draft_n_accepted": drafts and drafts.accepted,
        "acceptance_by_position": [round_figure(share, 4) for share in drafts.rates_by_position] if drafts else [],
        "power_w": round_figure(run.power_w),
        "temperature_c": round_figure(run.temperature_c),
        "clock_mhz": round_figure(run.clock_mhz),
        "spoilt": run.spoilt,
        "error": run.error,
    }


def print_standings(found: Sequence[ServerStanding], targets: Sequence[BenchmarkTarget], work: Workload) -> None:
    """Print several servers in a table; each is compared with the first."""
    by_url = {target.url: target for target in targets}
    clock = next(each.measured.clock for each in found if each.measured)
    whose = "the servers' own timings" if clock == "engine" else "the clock here: one of them gives no timings"
    print(wrap_text(f"{work.title} (version {work.version}), asked in turns, by {whose}."))
    head = ("SERVER", "MODEL", "TOKENS/S", "FIRST TOKEN", "ACCEPTED", "AGAINST THE FIRST")
    print_table(
        [head, *(_standing(each, by_url[each.name], first=each is found[0]) for each in found)], right=(2, 3, 4)
    )
    print(wrap_text(INTERVAL_NOTE, "  "))
    for each in found:
        if each.error:
            print(wrap_text(f"{each.name}: {one_line(each.error)}"))


def _standing(each: ServerStanding, target: BenchmarkTarget, *, first: bool) -> tuple[str, ...]:
    found = each.measured
    decode, interval = (found.decode, found.interval) if found else (None, None)
    spread = plus_minus(interval) if interval else ""
    began = found.first_token if found else None
    drafts = found.acceptance if found else None
    return (
        f"{each.name} ({target.environment.engine})",
        one_line(target.environment.model.label_with_quant),
        f"{decode.mean:.1f}{spread}" if decode else _UNKNOWN,
        f"{began.mean:.3f} s" if began else _UNKNOWN,
        format_percent(drafts.rate) if drafts else _UNKNOWN if found and found.clock == "wall" else "no drafts",
        "" if first else _against(each),
    )


def _against(each: ServerStanding) -> str:
    ratio = each.ratio
    if ratio is None:
        return "" if each.error else "not known: too few rounds, 3 are the least (--runs)"
    figures = f"{ratio.estimate:.2f} times as fast ({ratio.low:.2f} to {ratio.high:.2f})"
    return figures if ratio.low > 1 or ratio.high < 1 else f"not distinguishable: {figures}"


def standing_json(each: ServerStanding, target: BenchmarkTarget) -> dict[str, Any]:
    """Return one server's result as JSON."""
    found = each.measured
    drafts = found.acceptance if found else None
    return {
        "url": each.name,
        "engine": {"name": target.environment.engine, "version": target.environment.engine_version},
        "model": target.environment.model.name,
        "clock": found.clock if found else None,
        "mean": round_figure(found.decode.mean, 3) if found and found.decode else None,
        "stdev": round_figure(found.decode.stdev, 3) if found and found.decode else None,
        "prefill": round_figure(found.prefill.mean, 3) if found and found.prefill else None,
        "first_token_s": round_figure(found.first_token.mean, 4) if found and found.first_token else None,
        "acceptance": round_figure(drafts.rate, 4) if drafts else None,
        "ratio": each.ratio and {name: round_figure(value, 4) for name, value in each.ratio.as_json().items()},
        "error": each.error,
        "runs": [_run_json(run) for run in found.runs] if found else [],
    }
