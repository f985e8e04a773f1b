"""`mtp-launcher plan`: which model to run how on a machine, and whether it fits."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from launcher.cli.machine_options import INTENTS, add_machine_options, add_setting_options, machine_wish, wish_of
from launcher.cli.output import print_json, rounded, take_extra

if TYPE_CHECKING:
    from launcher.engine.build import Build
    from launcher.models.plan import Plan, Unplanned
    from launcher.models.situation import Situation
    from launcher.planner import Verdict

_MIB, _GIB = 2**20, 2**30
_WIDTH = 100


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("--model", metavar="ID", help="a model of the catalogue (default: all; `models` lists them)")
    parser.add_argument("--quant", metavar="Q", help="its quantisation, such as UD-Q3_K_XL")
    parser.add_argument("--intent", choices=INTENTS, default="balanced", help="what matters most (default: balanced)")
    add_machine_options(parser)
    add_setting_options(parser)
    parser.add_argument("--ask-engine", action="store_true", help="ask the engine, too, about the first plan")
    take_extra(parser)


async def run(options: argparse.Namespace) -> int:
    """Print the plans. Exit code 0 when one can be proposed, 1 when all are too big."""
    from launcher import planner
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.plan import Status, make_plans, unplanned

    wish, machine = wish_of(options), machine_wish(options)
    situation = planner.situation(machine)
    catalogue = load_catalogue()
    plans, left_out = make_plans(catalogue, situation, wish), unplanned(catalogue, situation, wish)
    build = None if situation.described else await planner.installed_build()
    verdict = await _verdict(plans[0]) if options.ask_engine and plans else None
    if options.json:
        told = [_as_json(plan, build, options.extra) for plan in plans]
        if verdict is not None:
            told[0] |= verdict_json(verdict)
        unknown = [asdict(each) for each in left_out]
        print_json({"machine": _machine_json(situation), "plans": told, "unplanned": unknown})
    else:
        _print(plans, situation, build, options.extra, verdict)
        _print_unplanned(left_out, named=wish.model is not None)
    return 0 if any(plan.status is not Status.TOO_BIG for plan in plans) else 1


async def _verdict(plan: Plan) -> Verdict:
    from launcher import planner
    from launcher.models.plan import source_name

    source = planner.read_source(source_name(plan.entry, plan.file))
    return await planner.ask(source, plan.setting, None)


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return an engine's figures and the difference as --json has them."""
    engine = verdict.engine
    return {
        "engine": {
            "name": engine.engine,
            "backend": engine.backend,
            "model_mib": engine.model_mib,
            "context_mib": engine.context_mib,
            "compute_mib": engine.compute_mib,
            "draft_context_mib": engine.draft_context_mib,
            "draft_compute_mib": engine.draft_compute_mib,
            "seconds": rounded(engine.seconds, 3),
        },
        "difference_percent": rounded(verdict.difference_percent, 2),
        "flagged": verdict.flagged,
    }


def parts_json(parts: dict[str, int]) -> dict[str, float]:
    """Return parts in MiB with a decimal."""
    return {name: round(size / _MIB, 1) for name, size in parts.items()}


def _machine_json(situation: Situation) -> dict[str, Any]:
    return {
        "described": situation.described,
        "gpu": situation.gpu_name,
        "gpus": situation.gpus,
        "backend": situation.backend,
        "nominal_gb": round(situation.nominal_gb, 1),
        "free_mib": situation.free_mib,
        "margin_mib": situation.margin_mib,
        "host_mib": situation.host_mib,
        "notes": situation.notes,
    }


def _as_json(plan: Plan, build: Build | None, extra: list[str]) -> dict[str, Any]:
    from launcher import planner
    from launcher.models.speed import describe, rate

    setting, host = plan.setting, plan.estimate.host
    return {
        "model": plan.entry.id,
        "quant": plan.file.quant,
        "repo": plan.entry.repo,
        "revision": plan.entry.revision,
        "file": plan.file.file,
        "bytes": plan.file.size_bytes,
        "sha256": plan.file.sha256,
        "ctx": setting.context,
        "kv": setting.kv,
        "draft": setting.draft,
        "ubatch": setting.ubatch,
        "n_cpu_moe": setting.n_cpu_moe,
        "slots": setting.slots,
        "backend": setting.backend,
        "status": plan.status.value,
        "mark": plan.mark,
        "required_mib": plan.required_mib,
        "parts": parts_json(plan.estimate.parts.as_dict()),
        "host": parts_json(
            {
                "weights": host.weights,
                "compute": host.compute,
                "checkpoints_most": host.checkpoints_most,
                "prompt_cache_most": host.prompt_cache_most,
            }
        ),
        "free_mib": plan.free_mib,
        "margin_mib": plan.margin_mib,
        "exact": plan.estimate.exact,
        "reasons": plan.reasons,
        "cautions": plan.cautions,
        "evidence": [describe(plan.entry, result) for result in plan.evidence],
        "nearest_tokens_per_second": rate(plan.evidence[0], setting) if plan.evidence else None,
        "limit_tokens_per_second": rounded(plan.limit_t_s),
        "argv": planner.arguments(plan, build, extra),
        "extra": extra,
    }


def _print(
    plans: tuple[Plan, ...], situation: Situation, build: Build | None, extra: list[str], verdict: Verdict | None
) -> None:
    print(_headline(situation))
    if not plans:
        print("\nThere is no plan.")
        return
    _describe(plans[0], build, extra, verdict)
    if len(plans) > 1:
        print("\nOther plans")
        for plan in plans[1:]:
            print(
                f"  {plan.status.value:<9}{plan.entry.id:<20} {plan.file.quant:<12}{_size(plan.file.size_bytes):>9}"
                f"  {_short(plan):<44} {plan.required_mib:>7,} MiB"
            )
        print("`--model ID --quant Q` tells all about one of them, `--json` about all.")


def _print_unplanned(left_out: tuple[Unplanned, ...], *, named: bool) -> None:
    """Tell each of them when the user has named the model, else all in one sentence."""
    if not left_out:
        return
    if named:
        for each in left_out:
            print(f"\nNot planned: {' '.join(filter(None, (each.model, each.quant)))}: {each.reason}. {each.remedy}")
        return
    names = ", ".join(f"{each.model} {each.quant} ({each.reason})" for each in left_out)
    ask = (
        "; `mtp-launcher models --refresh` asks the hub" if any("--refresh" in each.remedy for each in left_out) else ""
    )
    print(f"\nNot planned: {names}. `--model ID` says what to do{ask}.")


def _headline(situation: Situation) -> str:
    if situation.described:
        name = f"A GPU of {situation.nominal_gb:g} GiB"
    else:
        name = situation.gpu_name or "No GPU that can be used: the processor"
        name = f"{situation.gpus} x {name}" if situation.gpus > 1 else name
    host = "" if situation.host_mib is None else f"; host memory {situation.host_mib:,} MiB"
    kind = "host memory" if situation.backend == "cpu" else "free"
    host = "" if situation.backend == "cpu" else host
    return f"{name}, {situation.backend}: {situation.free_mib:,} MiB {kind}, {situation.margin_mib:,} to be left{host}"


def _short(plan: Plan) -> str:
    setting = plan.setting
    words = [f"{setting.context:,}", setting.kv, f"draft {setting.draft}" if setting.draft else "no MTP"]
    if setting.ubatch != 512:
        words.append(f"ub {setting.ubatch}")
    if setting.n_cpu_moe:
        words.append(f"{setting.n_cpu_moe} on CPU")
    return ", ".join(words)


def _size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / _GIB:.1f} GiB"


def _describe(plan: Plan, build: Build | None, extra: list[str], verdict: Verdict | None) -> None:
    from launcher import planner
    from launcher.models.speed import describe

    setting = plan.setting
    print(f"\n{plan.status.value}  {plan.entry.name}, {plan.file.quant}, {_size(plan.file.size_bytes)}")
    experts = f", experts of {setting.n_cpu_moe} layers on the host" if setting.n_cpu_moe else ""
    mtp = f"draft {setting.draft}" if setting.draft else "MTP off"
    slots = f", {setting.slots} slots" if setting.slots > 1 else ""
    _row("settings", f"context {setting.context:,}, KV {setting.kv}, {mtp}, ubatch {setting.ubatch}{slots}{experts}")
    parts = ", ".join(
        f"{name.replace('_', ' ')} {size / _MIB:,.0f}" for name, size in plan.estimate.parts.as_dict().items() if size
    )
    _row("memory", f"{plan.required_mib:,} MiB: {parts}")
    if verdict is not None:
        _row("engine", verdict_text(verdict))
    _rows("why", plan.reasons)
    _rows("mind", plan.cautions)
    measured = [describe(plan.entry, result) for result in plan.evidence]
    _rows("measured", measured or ["nobody published a run near this one: its speed is not known"])
    if plan.limit_t_s:
        _row("limit", f"{plan.limit_t_s:,.0f} tokens/s for passes of one token, by the GPU's memory bandwidth")
    if plan.entry.repo:
        _row("file", f"{plan.entry.repo}:{plan.file.file}")
    words = planner.arguments(plan, build)
    _row("command", shlex.join(words) + (f"   and yours: {shlex.join(extra)}" if extra else ""))


def verdict_text(verdict: Verdict) -> str:
    """Return what an engine said, and how far the formula is from it, as a sentence."""
    engine = verdict.engine
    told = f"{engine.total_mib:,} MiB by {engine.engine} ({engine.backend}, asked in {engine.seconds:.1f} s)"
    told += f"; the formula for {engine.backend}: {verdict.difference_percent:+.2f} %"
    return told + (", too far apart: believe the engine" if verdict.flagged else "")


def _rows(label: str, texts: Iterable[str]) -> None:
    for index, text in enumerate(texts):
        _row(label if not index else "", text)


def _row(label: str, text: str) -> None:
    lines = textwrap.wrap(text, _WIDTH - 12, break_on_hyphens=False, break_long_words=False) or [""]
    for index, line in enumerate(lines):
        print(f"  {label if not index else '':<9} {line}")
