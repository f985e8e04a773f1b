"""`mtp-launcher bench`: how fast a model is here, measured with the prompts of a workload."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.cli.key_options import add_key_options, key_or_ours
from launcher.cli.layout import filled
from launcher.cli.output import finite, print_json
from launcher.cli.quantities import minutes
from launcher.cli.round_line import round_line, runs
from launcher.cli.subject_options import (
    add_engine,
    add_model,
    add_price_options,
    add_settings,
    as_served,
    cost_words,
    prices_of,
)

if TYPE_CHECKING:
    from launcher.app import Session
    from launcher.benchmark import Target, Wanted
    from launcher.engine.registry import Entry
    from launcher.tuning.measure import Measured
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
    how_long.add_argument("--runs", type=runs, metavar="N", help="ask each prompt exactly N times")
    how_long.add_argument(
        "--within",
        type=_share,
        metavar="PERCENT",
        help=f"go on until the mean is known this well: half of its 95 %% interval (default {_WITHIN:g})",
    )
    parser.add_argument(
        "--budget", type=minutes, metavar="MIN", help=f"but no longer (default {_BUDGET_MIN:g}; none with --runs)"
    )
    add_settings(parser, "ctx, draft")
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
    value = finite(text)
    if not 0 < value <= 50:
        raise argparse.ArgumentTypeError("it is a percentage, above 0 and up to 50")
    return value / 100


async def run(options: argparse.Namespace) -> int:
    """Measure, and tell what came of it; exit code 1 when a server failed before the end."""
    from launcher import app
    from launcher.base.errors import LauncherError
    from launcher.benchmark import check_other
    from launcher.cli.bench_words import print_workloads
    from launcher.cli.progress import StateLine
    from launcher.cli.to_do import print_failure
    from launcher.tuner_kept import check_no_tune
    from launcher.tuning.workloads import USUAL, workload, workloads

    if options.list:
        print_workloads(workloads(), as_json=options.json)
        return 0
    prices_of(options)  # what is no price is told before anything is measured
    work = await asyncio.to_thread(workload, options.workload or USUAL)
    await asyncio.to_thread(check_no_tune)
    entry = await _running(options)
    for url in options.against:
        await check_other(url, await key_or_ours(url, options))
    if entry is not None:
        async with _asked(entry, options) as target:
            return await _measured(target, work, options)
    states = StateLine()
    session = app.Session(on_event=None if options.json else states.show)
    try:
        target = await _served(session, options, work)
        return await _measured(target, work, options)
    except LauncherError as error:
        print_failure(error, session.way, as_json=options.json)
        return 1
    finally:
        await session.stop()


async def _measured(target: Target, work: Workload, options: argparse.Namespace) -> int:
    """Measure a target, alone or against others, and print that."""
    from launcher.benchmark import benchmark, compare, other_target
    from launcher.cli.bench_words import benchmark_json, print_benchmark, print_standings, standing_json
    from launcher.tuning.measure import Ended
    from launcher.tuning.versus import ROUNDS

    if not options.against:
        wanted = _wanted(options, work)
        with round_line(wanted.runs, quiet=options.json) as show:
            told = await benchmark(target, wanted, show)
        cost, said = _cost(told.measured, options)
        if options.json:
            print_json({**benchmark_json(told), **cost})
        else:
            print_benchmark(told, said)
        return 1 if told.measured.ended is Ended.FAILED else 0
    rounds = options.runs or ROUNDS
    async with AsyncExitStack() as stack:
        others = [other_target(url, await key_or_ours(url, options)) for url in options.against]
        targets = [target, *[await stack.enter_async_context(other) for other in others]]
        with round_line(rounds, quiet=options.json) as show:
            found = await compare(targets, work, rounds, lambda _, run, number: show(run, number))
    costs = [_cost(each.measured, options) for each in found]
    if options.json:
        all_of_it = zip(found, targets, costs, strict=True)
        lines = [{**standing_json(each, of), **cost} for each, of, (cost, _) in all_of_it]
        print_json({"workload": {"name": work.name, "version": work.version}, "rounds": rounds, "servers": lines})
    else:
        print_standings(found, targets, work)
        for each, (_, said) in zip(found, costs, strict=True):
            if said:
                print(filled(f"{each.name}: {said}"))
    return 1 if any(each.error for each in found) else 0


def _cost(found: Measured | None, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return what replies cost, as JSON and in words; nothing where no price is given."""
    prices = prices_of(options)
    if prices is None:
        return {}, ""
    cost, said = cost_words([((run,), run.wall_s) for run in found.answered] if found else [], prices)
    return {"cost": cost.as_json() if cost else None, "cost_said": said}, said


def _wanted(options: argparse.Namespace, work: Workload) -> Wanted:
    from launcher.benchmark import Wanted

    fixed = options.runs or (work.runs if options.within is None else None)
    budget = options.budget or (None if fixed else _BUDGET_MIN)
    return Wanted(work, fixed, options.within or _WITHIN / 100, float("inf") if budget is None else 60 * budget)


async def _running(options: argparse.Namespace) -> Entry | None:
    """Return the server that is meant, none of those that it is compared with; None when no other runs."""
    from launcher.attach import address_of
    from launcher.base.errors import BadOption, SeveralServers
    from launcher.engine import registry

    if options.against and (options.within or options.budget):
        raise BadOption("--within and --budget are for one server.", "With --against say --runs.")
    if (options.api_key_env or options.key_file) and len(options.against) != 1:
        raise BadOption("A key is for the one server that --against names.", "Leave it out, or name one server.")
    if options.url is not None:
        return await asyncio.to_thread(registry.find, options.url)
    others = {address_of(url).url.replace("//localhost:", "//127.0.0.1:") for url in options.against}
    entries = [entry for entry in await asyncio.to_thread(registry.running) if entry.url not in others]
    if len(entries) > 1:
        names = ", ".join(entry.url for entry in entries)
        raise SeveralServers(f"{len(entries)} servers are running: {names}.", "Name one with --url.")
    return entries[0] if entries else None


@asynccontextmanager
async def _asked(entry: Entry, options: argparse.Namespace) -> AsyncIterator[Target]:
    """Give a server that runs. Raises BadOption for what would change it, or for another model than it has."""
    from launcher.base.errors import BadOption
    from launcher.benchmark import running_target

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
    from launcher import app
    from launcher.engine.launch import ServeOptions, name_of

    return name_of(app.options_for(options.model, lambda path: ServeOptions(model=path), draft=None))


async def _served(session: Session, options: argparse.Namespace, work: Workload) -> Target:
    from launcher.benchmark import serve_target

    named, served, further = await as_served(options)
    return await serve_target(session, served, named, further, work)
