"""`mtp-launcher estimate`: the memory that a model takes, by part, from its header alone."""

from __future__ import annotations

import argparse
import asyncio
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.machine_options import add_machine_options, add_setting_options, machine_wish, wish_of
from launcher.cli.output import print_json
from launcher.cli.plan import parts_json, size_text, verdict_json, verdict_text

if TYPE_CHECKING:
    from launcher.base.errors import LauncherError
    from launcher.models.memory import Estimate, Setting
    from launcher.models.situation import Situation
    from launcher.planner import Source, Verdict

_MIB = 2**20
_WIDTH = 100
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
    parser.add_argument("--mmproj", metavar="FILE | REPO:FILE", help="a vision projector beside it")
    parser.add_argument("--ask-engine", action="store_true", help="let the engine judge: its own figures beside")
    parser.add_argument("--engine", type=Path, metavar="PATH", help="the llama-server to ask (default: chosen)")


async def run(options: argparse.Namespace) -> int:
    """Print the table by part; for a model without a formula, what the engine says alone."""
    from launcher import planner
    from launcher.base.errors import GeometryUnknown

    wish, machine = wish_of(options), machine_wish(options)
    situation = await planner.situation(machine)
    source = await asyncio.to_thread(planner.read_source, options.model)
    setting = planner.setting_for(source.model, wish, situation)
    if options.mmproj:
        size_bytes = await asyncio.to_thread(planner.projector_bytes, options.mmproj)
        setting = replace(setting, mmproj_bytes=size_bytes)
    verdict = await _ask(source, setting, options.engine) if options.ask_engine or options.engine else None
    try:
        estimate, unknown = planner.judge_formula(source, setting), None
    except GeometryUnknown as error:
        if not isinstance(verdict, planner.Verdict):
            raise
        estimate, unknown = None, error
    if options.json:
        print_json(_as_json(source, setting, estimate, unknown, situation, verdict))
    else:
        _print(source, setting, estimate, unknown, situation, verdict)
    return 0


async def _ask(source: Source, setting: Setting, engine: Path | None) -> Verdict | LauncherError:
    """Ask an engine; the error that tells why it could not be asked. Raises EngineMissing when the user misnamed it."""
    from launcher import planner
    from launcher.base.errors import EngineMissing, LauncherError

    try:
        return await planner.ask(source, setting, engine)
    except LauncherError as error:
        if engine is not None and isinstance(error, EngineMissing):
            raise
        return error


def _as_json(
    source: Source,
    setting: Setting,
    estimate: Estimate | None,
    unknown: LauncherError | None,
    situation: Situation,
    verdict: Verdict | LauncherError | None,
) -> dict[str, object]:
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
        "total_mib": round(estimate.parts.total / _MIB, 1) if estimate else None,
        "parts": parts_json(estimate.parts.as_dict()) if estimate else None,
        "parts_unknown": unknown.title if unknown else None,
        "host_mib": round(estimate.host.at_start / _MIB, 1) if estimate else None,
        "free_mib": situation.free_mib,
        "exact": estimate.exact if estimate else None,
    }
    return told | (verdict_json(verdict) if verdict else {})


def _print(
    source: Source,
    setting: Setting,
    estimate: Estimate | None,
    unknown: LauncherError | None,
    situation: Situation,
    verdict: Verdict | LauncherError | None,
) -> None:
    from launcher import planner

    mtp = f"draft {setting.draft}" if setting.draft else "MTP off"
    split = f" on {setting.gpus} GPUs" if setting.gpus > 1 else ""
    print(f"{source.model.name}, {source.model.architecture}, {size_text(source.model.file_bytes)}")
    print(
        f"context {setting.context:,}, KV {setting.kv}, {mtp}, ubatch {setting.ubatch}, {setting.slots}"
        f" slot{'s' if setting.slots > 1 else ''}, {setting.backend}{split}\n"
    )
    beside = _engine_column(verdict, states=estimate is not None and estimate.parts.recurrent > 0)
    if estimate is None:
        print(unknown.title if unknown else "")
        for name, figure in beside.items():
            print(f"  {_NAMES[name]:<24}{figure}")
    else:
        _print_parts(estimate, situation, beside)
    if verdict is None:
        return
    print(f"\n{textwrap.fill(f'The engine: {verdict_text(verdict)}', _WIDTH)}")
    if isinstance(verdict, planner.Verdict) and estimate is not None and verdict.engine.backend != setting.backend:
        print(
            f"It computes by {verdict.engine.backend} and the table is for {setting.backend}:"
            " the caches are the same, compute buffers differ."
        )


def _print_parts(estimate: Estimate, situation: Situation, beside: dict[str, str]) -> None:
    from launcher.models.memory import ENCODER_MIB

    backend, total = estimate.setting.backend, estimate.parts.total
    for name, size in estimate.parts.as_dict().items():
        if size:
            print(f"  {_NAMES[name]:<24}{size / _MIB:>12,.1f} MiB{beside.get(name, '')}")
    print(f"  {'together':<24}{total / _MIB:>12,.1f} MiB")
    where = "host memory available" if backend == "cpu" else "GPU memory free"
    lacking = -(-total // _MIB) - situation.free_mib
    short = f"   {lacking:,} too few" if lacking > 0 else ""
    print(f"  {where:<24}{situation.free_mib:>10,}   MiB{short}")
    if backend != "cpu":
        print(f"  {'and on the host':<24}{estimate.host.at_start / _MIB:>12,.1f} MiB")
    if estimate.parts.mmproj:
        print(f"\nOf the vision projector's memory {ENCODER_MIB} MiB are a guess, for its encoder's buffers.")
    if not estimate.compute_exact:
        print("\nThe compute buffer is a guess for this architecture or backend: --ask-engine knows better.")


def _engine_column(verdict: Verdict | LauncherError | None, *, states: bool) -> dict[str, str]:
    """What the engine says, beside the last part that each of its figures covers; `states` where a row has them."""
    from launcher.planner import Verdict

    if not isinstance(verdict, Verdict):
        return {}
    engine, context = verdict.engine, "recurrent" if states else "kv"
    figures = {
        "weights": engine.model_mib,
        context: engine.context_mib,
        "draft_kv": engine.draft_context_mib,
        "compute": engine.compute_mib,
        "draft_compute": engine.draft_compute_mib,
    }
    notes = {"recurrent": " with the KV cache"}
    return {
        name: f"   engine {figure:>9,}{notes.get(name, '')}" for name, figure in figures.items() if figure is not None
    }
