"""`mtp-launcher estimate`: the memory that a model takes, by part, from its header alone."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.machine_options import add_machine_options, add_setting_options, machine_wish, wish_of
from launcher.cli.output import print_json
from launcher.cli.plan import parts_json, verdict_json, verdict_text

if TYPE_CHECKING:
    from launcher.models.memory import Estimate
    from launcher.models.situation import Situation
    from launcher.planner import Source, Verdict

_MIB = 2**20
_NAMES = {
    "weights": "weights",
    "kv": "KV cache",
    "recurrent": "recurrent states",
    "draft_kv": "draft's KV cache",
    "compute": "compute buffer",
    "draft_compute": "draft's compute buffer",
    "staging": "staging of experts",
    "overhead": "driver and process",
    "mmproj": "vision projector",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("model", metavar="FILE | REPO:FILE", help="a .gguf file, or OWNER/NAME:FILE.gguf on the hub")
    add_machine_options(parser)
    add_setting_options(parser)
    parser.add_argument("--ask-engine", action="store_true", help="let the engine judge: its own figures beside")
    parser.add_argument("--engine", type=Path, metavar="PATH", help="the llama-server to ask (default: chosen)")


async def run(options: argparse.Namespace) -> int:
    """Print the table by part."""
    from launcher import planner

    wish, machine = wish_of(options), machine_wish(options)
    situation = planner.situation(machine)
    source = await asyncio.to_thread(planner.read_source, options.model)
    setting = planner.setting_for(source.model, wish, situation.backend)
    estimate = planner.judge_formula(source, setting)
    verdict = await planner.ask(source, setting, options.engine) if options.ask_engine else None
    if options.json:
        print_json(_as_json(source, estimate, situation, verdict))
    else:
        _print(source, estimate, situation, verdict)
    return 0


def _as_json(source: Source, estimate: Estimate, situation: Situation, verdict: Verdict | None) -> dict[str, object]:
    setting, parts, host = estimate.setting, estimate.parts, estimate.host
    told: dict[str, object] = {
        "name": source.model.name,
        "architecture": source.model.architecture,
        "bytes": source.model.file_bytes,
        "mtp_head": source.model.mtp_head.value,
        "backend": setting.backend,
        "ctx": setting.context,
        "kv": setting.kv,
        "draft": setting.draft,
        "ubatch": setting.ubatch,
        "n_cpu_moe": setting.n_cpu_moe,
        "slots": setting.slots,
        "total_mib": round(parts.total / _MIB, 1),
        "parts": parts_json(parts.as_dict()),
        "host_mib": round(host.at_start / _MIB, 1),
        "free_mib": situation.free_mib,
        "exact": estimate.exact,
    }
    return told | (verdict_json(verdict) if verdict else {})


def _print(source: Source, estimate: Estimate, situation: Situation, verdict: Verdict | None) -> None:
    setting, parts = estimate.setting, estimate.parts
    mtp = f"draft {setting.draft}" if setting.draft else "MTP off"
    print(f"{source.model.name}, {source.model.architecture}, {source.model.file_bytes / 2**30:.1f} GiB")
    print(
        f"context {setting.context:,}, KV {setting.kv}, {mtp}, ubatch {setting.ubatch}, {setting.slots}"
        f" slot{'s' if setting.slots > 1 else ''}, {setting.backend}\n"
    )
    beside = _engine_column(verdict)
    for name, size in parts.as_dict().items():
        if size:
            print(f"  {_NAMES[name]:<24}{size / _MIB:>12,.1f} MiB{beside.get(name, '')}")
    print(f"  {'together':<24}{parts.total / _MIB:>12,.1f} MiB")
    where = "host memory available" if setting.backend == "cpu" else "GPU memory free"
    print(f"  {where:<24}{situation.free_mib:>10,}   MiB")
    if setting.backend != "cpu":
        print(f"  {'and on the host':<24}{estimate.host.at_start / _MIB:>12,.1f} MiB")
    if not estimate.exact:
        print("\nThe compute buffer of this architecture is a guess: --ask-engine knows better.")
    if verdict is not None:
        print(f"\nThe engine: {verdict_text(verdict)}.")
        if verdict.engine.backend != setting.backend:
            print(
                f"It computes by {verdict.engine.backend} and the table is for {setting.backend}:"
                " the caches are the same, compute buffers differ."
            )


def _engine_column(verdict: Verdict | None) -> dict[str, str]:
    """What the engine says, beside the last part that each of its figures covers."""
    if verdict is None:
        return {}
    engine = verdict.engine
    figures = {
        "weights": engine.model_mib,
        "recurrent": engine.context_mib,
        "draft_kv": engine.draft_context_mib,
        "compute": engine.compute_mib,
        "draft_compute": engine.draft_compute_mib,
    }
    notes = {"recurrent": " with the KV cache"}
    return {
        name: f"   engine {figure:>9,}{notes.get(name, '')}" for name, figure in figures.items() if figure is not None
    }
