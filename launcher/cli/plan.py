"""`mtp-launcher plan`: which model to run how on a machine, and whether it fits."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from launcher.cli.extra import uncounted
from launcher.cli.layout import filled, print_table
from launcher.cli.machine_options import INTENTS, add_machine_options, add_setting_options, machine_wish, wish_of
from launcher.cli.output import print_json, rounded, take_extra
from launcher.cli.verdict import verdict_json, verdict_text

if TYPE_CHECKING:
    from launcher.base.errors import LauncherError
    from launcher.engine.build import Build
    from launcher.models.memory import Setting
    from launcher.models.plan import Plan, Unplanned
    from launcher.models.situation import Situation
    from launcher.planner import Verdict

_MIB, _GIB = 2**20, 2**30


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("--model", metavar="ID", help="a model of the catalogue (default: all; `models` lists them)")
    parser.add_argument("--quant", metavar="Q", help="its quantisation, such as UD-Q3_K_XL")
    parser.add_argument("--intent", choices=INTENTS, default="balanced", help="what matters most (default: balanced)")
    add_machine_options(parser)
    add_setting_options(parser)
    parser.add_argument(
        "--no-preset", action="store_true", help="do not plan by what a tune of this machine found best"
    )
    parser.add_argument("--vision", action="store_true", help="with the model's vision projector, for images")
    parser.add_argument(
        "--ask-engine",
        action="store_true",
        help="ask the engine, too, about the first plan: its file's header is read, from the hub if it is there",
    )
    take_extra(parser)


async def run(options: argparse.Namespace) -> int:
    """Print the plans. Exit code 0 when one can be proposed, 1 when all are too big or no engine could be asked."""
    from launcher import planner
    from launcher.base.errors import LauncherError
    from launcher.machine_presets import with_presets
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.plan import Status, make_plans, unplanned

    wish, machine = wish_of(options), machine_wish(options)
    situation = await planner.situation(machine)
    catalogue = load_catalogue()
    if not options.json:
        for problem in catalogue.problems:  # before a model is missed that one of them is about
            print(f"Left out: {problem}", file=sys.stderr)
    plans, left_out = make_plans(catalogue, situation, wish), unplanned(catalogue, situation, wish)
    if not options.no_preset:
        plans = await with_presets(plans, catalogue, situation, wish)
    build = None if situation.described else await planner.installed_build()
    verdict = await _ask(plans[0]) if options.ask_engine and plans else None
    if options.json:
        told = [_as_json(plan, build, options.extra, options.rpc) for plan in plans]
        if verdict is not None:
            told[0] |= verdict_json(verdict)
        unknown = [asdict(each) for each in left_out]
        problems = [asdict(problem) for problem in catalogue.problems]
        print_json({"machine": _machine_json(situation), "plans": told, "unplanned": unknown, "problems": problems})
    else:
        _print_machine(situation)
        if plans:
            _describe(plans[0], build, options, verdict)
        _print_others(plans[1:])
        _print_unplanned(left_out, named=wish.model is not None)
    possible = any(plan.status is not Status.TOO_BIG for plan in plans)
    return 0 if possible and not isinstance(verdict, LauncherError) else 1


async def _ask(plan: Plan) -> Verdict | LauncherError:
    """Ask an engine about a plan; the error that tells why it could not be asked."""
    from launcher import planner
    from launcher.base.errors import LauncherError
    from launcher.base.paths import refusal
    from launcher.models.plan import source_name

    try:
        source = await asyncio.to_thread(planner.read_source, source_name(plan.entry, plan.file))
        drafts = plan.setting.draft if _drafts_inside(plan) else 0
        return await planner.ask(source, replace(plan.setting, draft=drafts, draft_model_bytes=0), None)
    except LauncherError as error:
        return error
    except OSError as error:
        return refusal(error)


def _drafts_inside(plan: Plan) -> bool:
    """Whether the drafts come from the model's own file, the only one that an engine is asked about."""
    return plan.entry.speculation in ("mtp", None)


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


def _as_json(plan: Plan, build: Build | None, extra: list[str], rpc: Sequence[str]) -> dict[str, Any]:
    from launcher import planner
    from launcher.models.speed import describe, rate

    setting, host = plan.setting, plan.estimate.host
    words, lack = _command(plan, build, extra, rpc)
    return {
        "model": plan.entry.id,
        "quant": plan.file.quant,
        "repo": plan.entry.repo,
        "revision": plan.entry.revision,
        "file": plan.file.file,
        "bytes": plan.file.size_bytes,
        "sha256": plan.file.sha256,
        "path": planner.downloaded(plan),
        "mmproj": plan.entry.projector.file if plan.entry.projector and setting.mmproj_bytes else None,
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
        "needed_mib": plan.needed_mib,
        "by_gpu_mib": [round(share / _MIB, 1) for share in plan.estimate.by_gpu],
        "host_short": plan.host_short,
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
        "weights_exact": plan.estimate.weights_exact,
        "compute_exact": plan.estimate.compute_exact,
        "reasons": plan.reasons,
        "cautions": [*plan.cautions, *lack, *uncounted(extra)],
        "evidence": [describe(plan.entry, result) for result in plan.evidence],
        "nearest_tokens_per_second": rate(plan.evidence[0], setting) if plan.evidence else None,
        "limit_tokens_per_second": rounded(plan.limit_t_s),
        "limit_full_tokens_per_second": rounded(plan.limit_full_t_s),
        "argv": words,
        "extra": extra,
    }


def _command(plan: Plan, build: Build | None, extra: list[str], rpc: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the command line of a plan, and what the installed build lacks for it."""
    from launcher import planner
    from launcher.base.errors import EngineUnsuitable

    try:
        return planner.arguments(plan, build, extra, rpc=rpc), []
    except EngineUnsuitable as error:
        return planner.arguments(plan, None, extra, rpc=rpc), [
            f"{error} The llama-server on PATH cannot run this plan."
        ]


def _print_others(plans: Sequence[Plan]) -> None:
    from launcher import planner

    if not plans:
        return
    print("\nOther plans")
    rows = []
    for plan in plans:
        size, memory = size_text(plan.file.size_bytes), f"{plan.required_mib:,} MiB"
        here = "here" if planner.downloaded(plan) else ""
        rows.append((plan.status.value, plan.entry.id, plan.file.quant, size, _short(plan), memory, here))
    print_table(rows, right={3, 5})
    print(filled("`--model ID --quant Q` tells all about one of them, `--json` about all."))


def _print_unplanned(left_out: tuple[Unplanned, ...], *, named: bool) -> None:
    """Tell each of them when the user has named the model, else all in one sentence."""
    if not left_out:
        return
    if named:
        for each in left_out:
            name = " ".join(filter(None, (each.model, each.quant)))
            print(f"\n{filled(f'Not planned: {name}: {each.reason}. {each.remedy}')}")
        return
    names = ", ".join(f"{each.model} {each.quant} ({each.reason})" for each in left_out)
    ask = (
        "; `mtp-launcher models --refresh` asks the hub" if any("--refresh" in each.remedy for each in left_out) else ""
    )
    print(f"\n{filled(f'Not planned: {names}. `--model ID` says what to do{ask}.')}")


def _print_machine(situation: Situation) -> None:
    on_cpu = situation.backend == "cpu"
    if on_cpu:
        name = "No GPU that can be used: the processor" if situation.no_gpu else "The processor"
    elif situation.described:
        name = f"A GPU of {situation.nominal_gb:g} GiB"
    else:
        name = f"{f'{situation.gpus} x ' if situation.gpus > 1 else ''}{situation.gpu_name}"
    host = "" if situation.host_mib is None or on_cpu else f"; {situation.host_mib:,} MiB of host memory"
    free = f"{situation.free_mib:,} MiB free, {situation.margin_mib:,} of them to stay free"
    print(filled(f"{name} ({situation.backend}): {free}{host}"))
    for note in situation.notes:
        print(filled(note))


def _drafts(setting: Setting, none: str) -> str:
    if not setting.draft:
        return none
    return "drafts from repeats" if setting.ngrams else f"draft {setting.draft}"


def _short(plan: Plan) -> str:
    setting = plan.setting
    words = [f"{setting.context:,}", setting.kv, _drafts(setting, "no MTP")]
    if setting.ubatch != 512:
        words.append(f"ub {setting.ubatch}")
    if setting.n_cpu_moe:
        words.append(f"{setting.n_cpu_moe} on CPU")
    if plan.host_short:
        words.append("host memory short")
    return ", ".join(words)


def size_text(size_bytes: int | None) -> str:
    """Return a file's size in the unit that suits it."""
    if size_bytes is None:
        return "unknown"
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:.1f} MiB"


def _describe(
    plan: Plan, build: Build | None, options: argparse.Namespace, verdict: Verdict | LauncherError | None
) -> None:
    from launcher import planner
    from launcher.models.speed import describe

    setting = plan.setting
    name = f"{plan.entry.name}, {plan.file.quant}, {size_text(plan.file.size_bytes)}"
    print(f"\n{filled(name, f'{plan.status.value}  ')}")
    experts = f", experts of {setting.n_cpu_moe} layers on the host" if setting.n_cpu_moe else ""
    mtp = _drafts(setting, "MTP off")
    slots = f", {setting.slots} slots" if setting.slots > 1 else ""
    split = f", split over {setting.gpus} GPUs" if setting.gpus > 1 else ""
    tail = f"ubatch {setting.ubatch}{slots}{experts}{split}"
    _row("settings", f"context {setting.context:,}, KV {setting.kv}, {mtp}, {tail}")
    parts = ", ".join(
        f"{name.replace('_', ' ').replace('kv', 'KV')} {size / _MIB:,.0f}"
        for name, size in plan.estimate.parts.as_dict().items()
        if size
    )
    guesses = [] if plan.estimate.weights_exact else ["weights by the file's size: its header is not read yet"]
    guesses += [] if plan.estimate.compute_exact else ["the compute buffer is a guess"]
    told = f" ({'; '.join(guesses)})" if guesses else ""
    _row("memory", f"{plan.required_mib:,} MiB: {parts}{told}")
    if verdict is not None:
        alone = "" if _drafts_inside(plan) or not setting.draft else " That is the model alone, without its drafts."
        _row("engine", verdict_text(verdict, plan.estimate) + alone)
    _rows("why", plan.reasons)
    extra = options.extra
    words, lack = _command(plan, build, [], options.rpc)
    _rows("caution", [*plan.cautions, *lack, *uncounted(extra)])
    measured = [describe(plan.entry, result) for result in plan.evidence]
    _rows("measured", measured or ["nobody published a run near this one: its speed is not known"])
    if plan.limit_t_s and plan.limit_full_t_s:
        limits = f"{plan.limit_t_s:,.0f} tokens/s without drafts, {plan.limit_full_t_s:,.0f} when the context is full"
        _row("limit", f"{limits}, by the GPU's memory bandwidth: not a forecast")
    if plan.entry.repo:
        here = planner.downloaded(plan)
        get = f"mtp-launcher pull {plan.entry.id}:{plan.file.quant}"
        _row("file", f"{plan.entry.repo}:{plan.file.file}")
        _row("", f"on this machine: {here}" if here else f"`{get}` gets it")
    if setting.mmproj_bytes and (projector := plan.entry.projector) and (repo := projector.repo or plan.entry.repo):
        _row("", f"{repo}:{projector.file}")
    _row("command", shlex.join(words) + (f"   and yours: {shlex.join(extra)}" if extra else ""))


def _rows(label: str, texts: Iterable[str]) -> None:
    for index, text in enumerate(texts):
        _row(label if not index else "", text)


def _row(label: str, text: str) -> None:
    print(filled(text, f"  {label:<9} "))
