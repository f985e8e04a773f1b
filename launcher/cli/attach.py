"""`mtp-launcher attach URL`: inspect and watch a server that another program started."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from launcher.app.measuring.attach_bench import attached_bench, measure_attached, unknown_reasons
from launcher.app.measuring.saved_tunes import check_no_tune
from launcher.app.serving.attach import attach_server
from launcher.base.codec import JsonView, to_json
from launcher.base.errors import BadOption
from launcher.base.text import one_line
from launcher.cli.given_key import find_api_key
from launcher.cli.options.attach import DEFAULT_RUNS, DEFAULT_WORKLOAD
from launcher.cli.output import Result, print_result, round_figure
from launcher.cli.progress import Reporter
from launcher.engine.server.address import parse_address
from launcher.engine.server.state import ServerState
from launcher.monitor.monitor import Monitor
from launcher.tuning.workloads import load_workload

if TYPE_CHECKING:
    from launcher.app.serving.attach import AttachedServer, ServerFeatures
    from launcher.monitor.monitor import MonitorSnapshot
    from launcher.tuning.measured_speed import MeasuredSpeed
    from launcher.tuning.statistics import Figure
    from launcher.tuning.workloads import Workload

_SAMPLE_PERIOD_S = 2.0
_FIGURE = JsonView("mean:1 stdev:1 runs=n")
_SPEED = JsonView(
    "clock prefill_per_second=prefill decode_per_second=decode first_token_s=first_token "
    "draft_n=acceptance.drafted draft_n_accepted=acceptance.accepted acceptance=acceptance.rate:4",
    prefill_per_second=_FIGURE,
    decode_per_second=_FIGURE,
    first_token_s=JsonView("mean:4"),
)
_FEATURES = JsonView(
    "url kind models model loaded engine ctx=context slots speculative=drafts healthy metrics=has_counters "
    "not_offered=missing"
)


async def run(options: argparse.Namespace) -> Result | int:
    """Print what the server offers, then watch or measure it. Exit code 1 if it stops answering."""
    if not options.bench and (options.runs is not None or options.workload is not None):
        raise BadOption("--runs and --workload are for --bench.", "Add --bench.")
    address = parse_address(options.url)
    if options.bench and address.local:
        await asyncio.to_thread(check_no_tune)
    key = await find_api_key(options.url, options)
    async with attach_server(address, key, model=options.model) as server:
        if options.bench:
            server.require_model()
            return await _measure_server(
                server,
                options.workload or DEFAULT_WORKLOAD,
                runs=options.runs or DEFAULT_RUNS,
                as_json=options.json,
            )
        data = to_json(server.features, _FEATURES) | ({} if server.features.router else {"loaded": None})
        result = Result(data, _describe_features(server.features))
        if options.once:
            return result
        print_result(result, as_json=options.json)
        try:
            return await _watch_server(server, seconds=options.seconds, as_json=options.json)
        except asyncio.CancelledError:
            return 0  # Ctrl-C is the usual end of watching


async def _measure_server(server: AttachedServer, workload_name: str, *, runs: int, as_json: bool) -> Result:
    workload = load_workload(workload_name)
    with closing(Reporter(as_json=as_json)) as reporter:
        reporter.show_event(None, _describe_features(server.features))
        async with attached_bench(server) as bench:
            show_round = partial(reporter.show_round, rounds=runs)
            speed = await measure_attached(bench, workload, runs=runs, on_run=show_round)
    reasons = unknown_reasons(speed)
    data = {
        "url": server.features.url,
        "model": server.features.model,
        "workload": workload.name,
        **to_json(speed, _SPEED),
        "unknown": reasons,
    }
    return Result(data, _describe_speed(speed, workload, reasons))


def _describe_speed(speed: MeasuredSpeed, workload: Workload, reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each figure; `reasons` say why figures are unknown."""
    clock = "the server" if speed.clock == "engine" else "this computer, including the network"
    yield f"\nTimed by {clock}; {workload.title.lower()} prompts, the first reply is left out."
    acceptance = speed.acceptance.rate if speed.acceptance else None
    rows = {
        "prefill": _format_rate(speed.prefill) if speed.prefill else reasons["prefill"],
        "decode": _format_rate(speed.decode) if speed.decode else reasons["decode"],
        "first token": f"{speed.first_token.mean:.3f} s" if speed.first_token else reasons["first_token"],
        "drafts": reasons.get("acceptance") if acceptance is None else f"{100 * acceptance:.1f} % accepted",
    }
    yield from (f"  {label:<12} {text}" for label, text in rows.items())


def _format_rate(figure: Figure) -> str:
    spread = "" if figure.stdev is None else f" ± {figure.stdev:.1f}"
    return f"{figure.mean:.1f}{spread} tokens/s ({figure.n} runs)"


async def _watch_server(server: AttachedServer, *, seconds: float | None, as_json: bool) -> int:
    latest: MonitorSnapshot | None = None

    def keep_latest(snapshot: MonitorSnapshot) -> None:
        nonlocal latest
        latest = snapshot

    if not server.features.has_counters and server.features.healthy is None:
        if not as_json:
            print("This server cannot be watched: it offers neither /metrics nor /health.")
        return 0
    monitor = Monitor(keep_latest)
    monitor.watch_server(server)
    began_s = time.monotonic()
    try:
        while seconds is None or time.monotonic() - began_s < seconds:
            pause_s = _SAMPLE_PERIOD_S
            if seconds is not None:
                pause_s = min(pause_s, seconds - (time.monotonic() - began_s))
            await asyncio.sleep(max(0.0, pause_s))
            status = server.status
            if status.state is ServerState.FAILED and status.error is not None:
                raise status.error
            print_result(_sample_result(status.state, latest, server.features), as_json=as_json)
    finally:
        await monitor.end()
    return 0


def _describe_features(features: ServerFeatures) -> Iterator[str]:
    unknown = "not reported"
    drafts = {True: "on", False: "off", None: unknown}[features.drafts]
    yield f"{features.url}/v1  {features.kind}{f', {one_line(features.engine)}' if features.engine else ''}"
    yield f"  models       {one_line(', '.join(features.models)) or unknown}"
    if features.router:
        yield f"  loaded       {one_line(', '.join(features.loaded)) or 'none'}"
    if features.chosen is not None:
        yield f"  model        {one_line(features.chosen)}"
    yield f"  context      {unknown if features.context is None else f'{features.context:,} tokens a slot'}"
    yield f"  slots        {unknown if features.slots is None else features.slots}"
    yield f"  speculation  {drafts}"
    for path, reason in features.missing.items():
        yield f"  {path:<12} {reason}"


def _sample_result(state: str, snapshot: MonitorSnapshot | None, features: ServerFeatures) -> Result:
    readings = snapshot.readings if snapshot and features.has_counters else {}
    rate, percent = (
        reading.value if (reading := readings.get(name)) else None
        for name in ("tokens_per_second", "acceptance_percent")
    )
    parts = [state]
    if not features.has_counters:
        parts.append("tokens/s not reported")
    elif rate is not None:
        parts.append(f"{rate:.1f} tokens/s")
        if percent is not None:
            parts.append(f"{percent:.0f} % of drafts accepted")
    data = {"state": state, "tokens_per_second": round_figure(rate), "acceptance_percent": round_figure(percent)}
    return Result(data, ["  ".join(parts)])
