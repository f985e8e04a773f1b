"""`mtp-launcher attach URL`: inspect and watch a server that another program started."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.cli.bar import Reporter
from launcher.cli.key_options import add_key_options, find_api_key
from launcher.cli.output import Result, print_result, round_figure
from launcher.cli.quantities import parse_number, parse_rounds

if TYPE_CHECKING:
    from launcher.app.attach import AttachedServer, ServerOffer
    from launcher.monitor.monitor import MonitorSnapshot
    from launcher.tuning.measured_speed import MeasuredSpeed
    from launcher.tuning.statistics import Figure
    from launcher.tuning.workloads import Workload

_PERIOD_S = 2.0
_WORKLOAD = "mixed"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("url", metavar="URL", help="its address, such as http://192.168.1.20:8080")
    add_key_options(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="show what it is, and do not watch it")
    how.add_argument("--seconds", type=parse_number, metavar="N", help="watch for N seconds (default: until Ctrl-C)")
    how.add_argument("--bench", action="store_true", help="measure its speed with the prompts of a workload")
    parser.add_argument(
        "--runs", type=parse_rounds, metavar="N", help="with --bench: ask each prompt N times (default 3)"
    )
    parser.add_argument(
        "--workload", metavar="W", help=f"with --bench: the prompts, see `bench --list` (default {_WORKLOAD})"
    )


async def run(options: argparse.Namespace) -> Result | int:
    """Print the server's capabilities, then watch it; exit code 1 when it stops answering."""
    from launcher.app.attach import attach_server, parse_address
    from launcher.app.tuner_kept import check_no_tune
    from launcher.base.errors import BadOption

    if not options.bench and (options.runs is not None or options.workload is not None):
        raise BadOption("--runs and --workload are for --bench.", "Add --bench.")
    address = parse_address(options.url)
    if options.bench and address.local:
        await asyncio.to_thread(check_no_tune)
    key = await find_api_key(options.url, options)
    async with attach_server(address, key) as server:
        if options.bench:
            return await _measure_server(
                server, options.workload or _WORKLOAD, runs=options.runs or 3, as_json=options.json
            )
        offer = Result(_offer_json(server.offer), _describe_offer(server.offer))
        if options.once:
            return offer
        print_result(offer, as_json=options.json)
        try:
            return await _watch_server(server, seconds=options.seconds, as_json=options.json)
        except asyncio.CancelledError:
            return 0  # Ctrl-C is the usual way to end it


async def _measure_server(server: AttachedServer, name: str, *, runs: int, as_json: bool) -> Result:
    """Measure the server."""
    from launcher.app.attach_bench import attached_bench, measure_attached, unknown_reasons
    from launcher.tuning.workloads import load_workload

    work = load_workload(name)
    with closing(Reporter(as_json=as_json)) as reporter:
        reporter.show_event(None, _describe_offer(server.offer))
        async with attached_bench(server) as bench:
            speed = await measure_attached(bench, work, runs=runs, on_run=partial(reporter.show_round, rounds=runs))
    why = unknown_reasons(speed)
    drafts = speed.acceptance
    data = {
        "url": server.offer.url,
        "model": server.offer.model,
        "workload": work.name,
        "clock": speed.clock,
        "prefill_per_second": _figure_json(speed.prefill),
        "decode_per_second": _figure_json(speed.decode),
        "first_token_s": speed.first_token and {"mean": round_figure(speed.first_token.mean, 4)},
        "draft_n": drafts and drafts.drafted,
        "draft_n_accepted": drafts and drafts.accepted,
        "acceptance": round_figure(drafts.rate, 4) if drafts else None,
        "unknown": why,
    }
    return Result(data, _describe_speed(speed, work, why))


def _figure_json(figure: Figure | None) -> dict[str, float | int | None] | None:
    if figure is None:
        return None
    return {"mean": round_figure(figure.mean), "stdev": round_figure(figure.stdev), "runs": figure.n}


def _describe_speed(speed: MeasuredSpeed, work: Workload, why: Mapping[str, str]) -> Iterator[str]:
    clock = "the server" if speed.clock == "engine" else "this computer, with the time on the network"
    yield f"\nTimed by {clock}; {work.title.lower()} prompts, the first reply is left out."
    for key, figure in (("prefill", speed.prefill), ("decode", speed.decode)):
        yield f"  {key:<12} {_format_rate(figure) if figure else why[key]}"
    yield f"  {'first token':<12} {f'{speed.first_token.mean:.3f} s' if speed.first_token else why['first_token']}"
    rate = speed.acceptance.rate if speed.acceptance else None
    yield f"  {'drafts':<12} {why.get('acceptance') if rate is None else f'{100 * rate:.1f} % accepted'}"


def _format_rate(figure: Figure) -> str:
    spread = "" if figure.stdev is None else f" ± {figure.stdev:.1f}"
    return f"{figure.mean:.1f}{spread} tokens/s ({figure.n} runs)"


async def _watch_server(server: AttachedServer, *, seconds: float | None, as_json: bool) -> int:
    from launcher.engine.server.state import ServerState
    from launcher.monitor.monitor import Monitor

    latest: list[MonitorSnapshot] = []

    def keep_latest(sample: MonitorSnapshot) -> None:
        latest[:] = [sample]

    if not server.offer.counts and server.offer.healthy is None:
        if not as_json:
            print("This server cannot be watched: it offers neither /metrics nor /health.")
        return 0
    monitor = Monitor(keep_latest)
    monitor.watch_server(server)
    began_s = time.monotonic()
    try:
        while seconds is None or time.monotonic() - began_s < seconds:
            left_s = _PERIOD_S if seconds is None else min(_PERIOD_S, seconds - (time.monotonic() - began_s))
            await asyncio.sleep(max(0.0, left_s))
            status = server.status
            if status.state is ServerState.FAILED and status.error is not None:
                raise status.error
            print_result(_sample_result(status.state, latest[0] if latest else None, server.offer), as_json=as_json)
    finally:
        await monitor.end()
    return 0


def _offer_json(offer: ServerOffer) -> dict[str, Any]:
    return {
        "url": offer.url,
        "kind": _name_kind(offer),
        "models": offer.models,
        "engine": offer.engine,
        "ctx": offer.context,
        "slots": offer.slots,
        "speculative": offer.drafts,
        "healthy": offer.healthy,
        "metrics": offer.counts,
        "not_offered": dict(offer.missing),
    }


def _describe_offer(offer: ServerOffer) -> Iterator[str]:
    unknown = "not reported"
    drafts = unknown if offer.drafts is None else "on" if offer.drafts else "off"
    yield f"{offer.url}/v1  {_name_kind(offer)}{f', {one_line(offer.engine)}' if offer.engine else ''}"
    yield f"  models       {one_line(', '.join(offer.models)) or unknown}"
    yield f"  context      {unknown if offer.context is None else f'{offer.context:,} tokens a slot'}"
    yield f"  slots        {unknown if offer.slots is None else offer.slots}"
    yield f"  speculation  {drafts}"
    for path, why in offer.missing.items():
        yield f"  {path:<12} {why}"


def _name_kind(offer: ServerOffer) -> str:
    return "llama-server" if offer.is_llama_server else "OpenAI-compatible server"


def _sample_result(state: str, sample: MonitorSnapshot | None, offer: ServerOffer) -> Result:
    readings = sample.readings if sample and offer.counts else {}
    rate, share = (
        reading.value if (reading := readings.get(name)) else None
        for name in ("tokens_per_second", "acceptance_percent")
    )
    parts = [state]
    if not offer.counts:
        parts.append("tokens/s not reported")
    elif rate is not None:
        parts.append(f"{rate:.1f} tokens/s")
        if share is not None:
            parts.append(f"{share:.0f} % of drafts accepted")
    data = {"state": state, "tokens_per_second": round_figure(rate), "acceptance_percent": round_figure(share)}
    return Result(data, ["  ".join(parts)])
