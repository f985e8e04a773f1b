"""`mtp-launcher bench`: how fast a model is here, measured with the prompts of a workload."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.base.units import percent
from launcher.cli.layout import filled, print_table
from launcher.cli.output import finite, print_json, rounded
from launcher.cli.round_line import round_line, runs

if TYPE_CHECKING:
    from launcher.app import Session
    from launcher.benchmark import Benchmark, Wanted
    from launcher.engine.registry import Entry
    from launcher.tuning.measure import Figure, Measured, OnRun
    from launcher.tuning.records import Run
    from launcher.tuning.workloads import Workload

_WITHIN, _BUDGET_MIN = 3.0, 5.0
_UNKNOWN = "not known"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument(
        "model", nargs="?", metavar="ID[:QUANT] | FILE", help='a model that is here, or "demo" (default: the last one)'
    )
    parser.add_argument(
        "--workload", metavar="W", help="what to ask: see --list, or a file of your own prompts (default: code)"
    )
    parser.add_argument("--list", action="store_true", help="list the workloads, and measure nothing")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--runs", type=runs, metavar="N", help="ask each prompt N times, neither more nor less often")
    how_long.add_argument(
        "--within",
        type=_share,
        metavar="PERCENT",
        help=f"go on until the mean is known this well: half of its 95 %% interval (default {_WITHIN:g})",
    )
    parser.add_argument(
        "--budget", type=_minutes, metavar="MIN", help=f"but no longer (default {_BUDGET_MIN:g}; none with --runs)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        dest="changes",
        help="serve it with this setting: ctx, draft, slots, threads, kv, ubatch, n-cpu-moe or extra; may be given"
        " more than once",
    )
    parser.add_argument(
        "--engine", type=Path, metavar="PATH", help="a llama-server, an installed engine, or built-in (default: in use)"
    )
    parser.add_argument("--url", help="which server, when more than one runs")
    parser.epilog = (
        "When a server of this program runs, that is asked as it is. Else the model is served with the settings that it"
        " had the last time, measured, and stopped. The result goes into the history."
    )


def _share(text: str) -> float:
    value = finite(text)
    if not 0 < value <= 50:
        raise argparse.ArgumentTypeError("it is a percentage, above 0 and up to 50")
    return value / 100


def _minutes(text: str) -> float:
    value = finite(text)
    if not 0 < value <= 24 * 60:
        raise argparse.ArgumentTypeError("it is a number of minutes, up to a day")
    return value


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f'"{text}" is not KEY=VALUE, such as draft=3')
    return name.strip(), value.strip()


async def run(options: argparse.Namespace) -> int:
    """Measure, and tell what came of it; exit code 1 when the server failed before the end."""
    from launcher.tuning.measure import Ended
    from launcher.tuning.workloads import USUAL, workload, workloads

    if options.list:
        _list(workloads(), as_json=options.json)
        return 0
    work = await asyncio.to_thread(workload, options.workload or USUAL)
    wanted = _wanted(options, work)
    with round_line(wanted.runs, quiet=options.json) as show:
        entry = await _running(options)
        told = await (_served(options, wanted, show) if entry is None else _asked(entry, options, wanted, show))
        if told is None:
            return 1
    if options.json:
        print_json({**_rounded(told.as_json()), "runs": [_run_json(each) for each in told.measured.runs]})
    else:
        _print(told)
    return 1 if told.measured.ended is Ended.FAILED else 0


def _wanted(options: argparse.Namespace, work: Workload) -> Wanted:
    from launcher.benchmark import Wanted

    fixed = options.runs or (work.runs if options.within is None else None)
    budget = options.budget or (None if fixed else _BUDGET_MIN)
    return Wanted(work, fixed, options.within or _WITHIN / 100, float("inf") if budget is None else 60 * budget)


async def _running(options: argparse.Namespace) -> Entry | None:
    """Return the server that is meant, None when none runs."""
    from launcher.engine import registry

    if options.url is None and not await asyncio.to_thread(registry.running):
        return None
    return await asyncio.to_thread(registry.find, options.url)


async def _asked(entry: Entry, options: argparse.Namespace, wanted: Wanted, show: OnRun) -> Benchmark:
    """Measure a server that runs. Raises BadOption for what would change it, or for another model than it has."""
    from launcher.base.errors import BadOption
    from launcher.benchmark import benchmark_running

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
    return await benchmark_running(entry, wanted, show)


def _name(options: argparse.Namespace) -> str:
    from launcher import app
    from launcher.engine.launch import ServeOptions, name_of

    return name_of(app.options_for(options.model, lambda path: ServeOptions(model=path), draft=None))


async def _served(options: argparse.Namespace, wanted: Wanted, show: OnRun) -> Benchmark | None:
    """Serve the model and measure it; None when it cannot be served, which is told with what can be done."""
    from launcher import app
    from launcher.base.errors import LauncherError
    from launcher.benchmark import benchmark_served
    from launcher.cli.progress import StateLine
    from launcher.cli.to_do import print_failure
    from launcher.engine.build import BUILT_IN
    from launcher.engine.last import last
    from launcher.engine.launch import ServeOptions
    from launcher.engine.settings import parse_settings, remembered, with_settings

    model = options.model or await asyncio.to_thread(last)
    built_in = str(options.engine) == BUILT_IN
    engine = None if built_in else options.engine
    changes = parse_settings(dict(options.changes))
    found = app.options_for(model, lambda path: ServeOptions(model=path, engine=engine, built_in=built_in), draft=None)
    found = with_settings(found, await asyncio.to_thread(remembered, found.model))
    found = with_settings(found, changes)
    states = StateLine()
    session: Session = app.Session(on_event=None if options.json else states.show)
    try:
        return await benchmark_served(session, found, model, wanted, show)
    except LauncherError as error:
        print_failure(error, session.way, as_json=options.json)
        return None
    finally:
        await session.stop()


def _list(found: tuple[Workload, ...], *, as_json: bool) -> None:
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


def _print(told: Benchmark) -> None:
    found, work = told.measured, told.workload
    settings = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in told.settings.items())
    model = one_line(told.environment.model.words)
    engine = one_line(f"{told.environment.engine} {told.environment.engine_version}")
    print(filled(f"{work.title} (version {work.version}) on {model}, engine {engine}, {settings}."))
    lines = {
        "decode": _speed(found),
        "prompts": _by_prompt(found.counted),
        "prefill": f"{found.prefill.mean:.0f} tokens/s" if found.prefill else _UNKNOWN,
        "first token": f"{found.first_token.mean:.3f} s" if found.first_token else _UNKNOWN,
        "drafts": _drafts(found),
        "power": _power(found),
        "left out": _left_out(found),
    }
    for name, text in lines.items():
        if text:
            print(filled(text, f"  {name:<12} "))
    print(filled(f"{_end(found)}Kept as {told.kept}: `mtp-launcher history show {told.kept}`."))


def _speed(found: Measured) -> str:
    decode, interval = found.decode, found.interval
    if decode is None:
        return _UNKNOWN
    whose = "" if found.clock == "engine" else ", by the clock here"
    said = f"{decode.mean:.1f} tokens/s"
    if interval is not None and interval.n > 1:
        said += f" ± {interval.half_width:.1f} (95 % interval of the mean of {interval.n} rounds{whose})"
    spread = f"; standard deviation {decode.stdev:.1f}" if decode.stdev is not None else ""
    return f"{said}{spread} over {decode.runs} replies"


def _by_prompt(counted: tuple[Run, ...]) -> str:
    rates: dict[str, list[float]] = {}
    for each in counted:
        rates.setdefault(each.prompt, []).append(each.decode_rate or 0.0)
    return ", ".join(f"{name} {fmean(values):.1f}" for name, values in rates.items()) if len(rates) > 1 else ""


def _drafts(found: Measured) -> str:
    drafts = found.acceptance
    if drafts is None:
        return "none"
    by_position = ", ".join(percent(share) for share in drafts.rates_by_position)
    whole = f"{percent(drafts.rate)} accepted ({drafts.accepted:,} of {drafts.drafted:,}"
    return f"{whole}; by position {by_position}); a step yields {drafts.mean_length:.2f} tokens"


def _power(found: Measured) -> str:
    power: Figure | None = found.power
    if power is None:
        return ""
    energy = f", {found.tokens_per_joule:.2f} tokens a joule" if found.tokens_per_joule else ""
    heat = f", up to {found.hottest_c:.0f} °C" if found.hottest_c is not None else ""
    return f"{power.mean:.0f} W{energy}{heat}"


def _left_out(found: Measured) -> str:
    why = [each.error or each.spoilt or "" for each in found.runs if each.error or each.spoilt]
    return f"{len(why)} replies: {' '.join(dict.fromkeys(why))}" if why else ""


def _end(found: Measured) -> str:
    from launcher.tuning.measure import Ended

    if found.ended is Ended.BUDGET and found.interval is not None:
        share = found.interval.half_width / found.interval.estimate
        known = f"to {100 * share:.1f} %" if found.interval.n > 1 else "from one round only"
        return f"The time was up: the mean is known {known}. "
    return "The server failed before the end. " if found.ended is Ended.FAILED else ""


def _rounded(told: dict[str, Any]) -> dict[str, Any]:
    """Return the figures without digits that mean nothing."""
    interval = told.pop("interval") or {}
    shares = {name: rounded(told[name], 4) for name in ("acceptance", "first_token_s", "tokens_per_joule")}
    rates = {name: rounded(told[name], 3) for name in ("mean", "stdev", "prefill", "power_w", "temperature_c")}
    ends = {"ci_low": rounded(interval.get("low"), 3), "ci_high": rounded(interval.get("high"), 3)}
    by_position = [rounded(share, 4) for share in told["acceptance_by_position"]]
    return {**told, **rates, **shares, **ends, "rounds": interval.get("n", 0), "acceptance_by_position": by_position}


def _run_json(run: Run) -> dict[str, Any]:
    drafts = run.acceptance
    return {
        "prompt": run.prompt,
        "prompt_n": run.prompt_tokens,
        "cache_n": run.cached_tokens,
        "predicted_n": run.reply_tokens,
        "tokens_per_second": rounded(run.decode_rate, 3),
        "prefill_per_second": rounded(run.prefill_rate, 3),
        "first_token_s": rounded(run.first_token_s, 4),
        "draft_n": drafts and drafts.drafted,
        "draft_n_accepted": drafts and drafts.accepted,
        "acceptance_by_position": [rounded(share, 4) for share in drafts.rates_by_position] if drafts else [],
        "power_w": rounded(run.power_w),
        "temperature_c": rounded(run.temperature_c),
        "clock_mhz": rounded(run.clock_mhz),
        "spoilt": run.spoilt,
        "error": run.error,
    }
