"""`mtp-launcher plan`: recommend models and server settings for a machine, with a memory estimate."""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.app.planning import planner
from launcher.app.planning.planner import PlannedModels
from launcher.app.settings import stored_value
from launcher.app.settings_declared import READ_HEADERS, VALUE_ASK, VALUE_OFF
from launcher.base.codec import JsonView, to_json
from launcher.base.errors import BadOption, EngineUnsuitable, LauncherError
from launcher.base.paths import explain_os_error
from launcher.cli.given_options import read_machine_description, read_plan_criteria
from launcher.cli.layout import format_table, wrap_text
from launcher.cli.output import Note, Result, print_result, round_figure
from launcher.cli.terminal import can_ask, confirm
from launcher.models.catalogue_load import load_catalogue
from launcher.models.drafters import with_usual_length
from launcher.models.evidence import accepted_shares, read_acceptance
from launcher.models.file_size import expect_size
from launcher.models.library import share_snapshot
from launcher.models.plan import Status, estimate_argument, list_unplanned, make_plans
from launcher.models.server_settings import format_settings, to_fields
from launcher.models.situation import MEMORY_VIEW
from launcher.models.speed import comparable_rate, describe_forecast, describe_reading, describe_run

if TYPE_CHECKING:
    from launcher.app.planning.planner import EngineComparison, MachineDescription, PlannedEngine
    from launcher.app.planning.start_settings import KeptPlan
    from launcher.models.catalogue import Catalogue
    from launcher.models.file_kinds import OtherFile
    from launcher.models.memory import MemoryEstimate
    from launcher.models.plan import Plan, PlanCriteria, UnplannedFile
    from launcher.models.situation import Situation

# Arguments for llama-server that the user gives after `--`. The memory estimate of a plan does not include them.

_MEMORY_ARGUMENTS = {
    "--ctx-size": "--ctx",
    "--cache-type-k": "--kv",
    "--cache-type-v": "--kv",
    "--ubatch-size": "--ubatch",
    "--batch-size": "",
    "--parallel": "--slots",
    "--n-cpu-moe": "--n-cpu-moe",
    "--cpu-moe": "--n-cpu-moe",
    "--gpu-layers": "",
    "--spec-type": "--no-mtp",
    "--spec-draft-n-max": "--draft",
    "--spec-draft-model": "",
    "--spec-draft-type-k": "",
    "--spec-draft-type-v": "",
    "--spec-draft-ngl": "",
    "--spec-draft-n-cpu-moe": "",
    "--spec-draft-cpu-moe": "",
    "--spec-draft-override-tensor": "",
    "--spec-draft-n-ubatch": "",
    "--mmproj": "--vision",
    "--override-tensor": "",
    "--flash-attn": "",
    "--device": "",
    "--split-mode": "",
    "--tensor-split": "",
    "--main-gpu": "",
    "--no-kv-offload": "",
    "--no-kv-unified": "",
    "--kv-unified": "",
    "--swa-full": "",
    "--ctx-checkpoints": "",
    "--cache-ram": "",
    "--lora": "",
    "--lora-scaled": "",
    "--fit": "",
    "--model": "--model",
}
"""llama-server's arguments that change the memory, and the plan's own options for them."""
_ALIASES = {
    "-c": "--ctx-size",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "-ub": "--ubatch-size",
    "-b": "--batch-size",
    "-np": "--parallel",
    "-ncmoe": "--n-cpu-moe",
    "-cmoe": "--cpu-moe",
    "-ngl": "--gpu-layers",
    "--n-gpu-layers": "--gpu-layers",
    "-md": "--spec-draft-model",
    "--model-draft": "--spec-draft-model",
    "-ctkd": "--spec-draft-type-k",
    "--cache-type-k-draft": "--spec-draft-type-k",
    "-ctvd": "--spec-draft-type-v",
    "--cache-type-v-draft": "--spec-draft-type-v",
    "-ngld": "--spec-draft-ngl",
    "--gpu-layers-draft": "--spec-draft-ngl",
    "--n-gpu-layers-draft": "--spec-draft-ngl",
    "-ncmoed": "--spec-draft-n-cpu-moe",
    "--n-cpu-moe-draft": "--spec-draft-n-cpu-moe",
    "--spec-draft-ncmoe": "--spec-draft-n-cpu-moe",
    "-cmoed": "--spec-draft-cpu-moe",
    "--cpu-moe-draft": "--spec-draft-cpu-moe",
    "-otd": "--spec-draft-override-tensor",
    "--override-tensor-draft": "--spec-draft-override-tensor",
    "-mm": "--mmproj",
    "-ot": "--override-tensor",
    "-fa": "--flash-attn",
    "-dev": "--device",
    "-sm": "--split-mode",
    "-ts": "--tensor-split",
    "-mg": "--main-gpu",
    "-nkvo": "--no-kv-offload",
    "-no-kvu": "--no-kv-unified",
    "-kvu": "--kv-unified",
    "-ctxcp": "--ctx-checkpoints",
    "--swa-checkpoints": "--ctx-checkpoints",
    "-cram": "--cache-ram",
    "-fit": "--fit",
    "-m": "--model",
}
"""Their alternative spellings (llama-server --help, b11669)."""


def uncounted_arguments(extra: Sequence[str]) -> list[str]:
    """Return a caution about arguments in `extra` that change the memory; an empty list if there are none."""
    flags = dict(_list_memory_flags(extra))
    if not flags:
        return []
    own_options = dict.fromkeys(filter(None, flags.values()))
    remedy = f" {_join_words(list(own_options))} before the -- would be counted." if own_options else ""
    be = "is" if len(flags) == 1 else "are"
    return [
        f"Your own {_join_words(list(flags))} {be} not counted in these figures, and can change the memory.{remedy}"
    ]


def _list_memory_flags(extra: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the flags in `extra` that change the memory, as written, each with the plan's own option for it or ""."""
    for word in extra:
        flag = word.partition("=")[0]
        name = flag.replace("_", "-") if flag.startswith("--") else flag  # llama.cpp accepts both spellings
        name = _ALIASES.get(name, name)
        if name in _MEMORY_ARGUMENTS:
            yield flag, _MEMORY_ARGUMENTS[name]


def _join_words(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


_MIB, _GIB = 2**20, 2**30
_MACHINE = JsonView("described gpu=gpu_name cards gpus backend nominal_gb:1 free_mib margin_mib host_mib")
_SMALLER = JsonView(
    "model=entry.id name=entry.name quant=file.quant bytes=file.size_bytes ctx=setting.context kv=setting.kv "
    "draft=setting.draft n_cpu_moe=setting.n_cpu_moe status"
)
_FORECAST = JsonView(
    "tokens_per_second:1 low:1 high:1 without_mtp:1 filled_tokens=filled "
    "tokens_per_second_filled=when_filled:1 assumed_host_gb_s=host_gb_s cache_hits:2"
)
_WAY = JsonView("drafter=drafter.spec_type draft tokens_per_second=rate:1")
_READING = JsonView("tokens_per_second:1 low:1 high:1")
_WORTH_SAYING = 0.01
"""Share of a total from which the range that it lies in is printed."""


async def run(options: argparse.Namespace) -> Result:
    """Return the plans. Exit code 1 if none fits, or if the engine should be asked, and could not be."""
    criteria, machine = read_plan_criteria(options), read_machine_description(options)
    _check_quant(options.what or options.model, criteria.quant)
    catalogue = load_catalogue()
    problems = catalogue.problems
    if problems and not options.json:  # before anything fails: a problem may be the reason for a missing model
        print_result(Result(None, [Note(f"Left out: {problem}") for problem in problems]), as_json=False)
    model_name = options.what or options.model
    situation = await planner.read_situation(machine)
    planned = await _make_plans(model_name, catalogue, situation, criteria, machine, options.draft_model)
    if await _read_headers(planned.plans, as_json=options.json):
        planned = await _make_plans(model_name, load_catalogue(), situation, criteria, machine, options.draft_model)
    catalogue, criteria, plans, unplanned = planned.catalogue, planned.criteria, planned.plans, planned.unplanned
    comparison: EngineComparison | LauncherError | None = None
    served_quant: str | None = None
    selection = planned.selection
    if selection is not None and criteria.quant is None and selection.file and selection.path:
        served_quant = selection.file.quant
    if not plans and isinstance(planned.asked, LauncherError):
        comparison = planned.asked
    # Only files on this machine can have settings of an earlier start, or tuned ones.
    with share_snapshot():
        may_have_own = not situation.described and any(map(planner.downloaded_file, plans))
    if may_have_own:
        from launcher.app.planning.start_settings import apply_own_settings

        plans, kept_plans = await apply_own_settings(
            plans, catalogue, situation, criteria, use_kept=not options.defaults, use_tuned=not options.no_preset
        )
        plans = tuple(_use_kept_settings(plan, kept_plans) for plan in plans)
    smaller: Plan | None = None
    fits = any(plan.status is not Status.TOO_BIG for plan in plans)
    if plans and plans[0].group:
        from launcher.models.smaller_model import replace_misfits

        plans, smaller = replace_misfits(plans, load_catalogue(), situation, criteria)
        fits = plans[0].status is not Status.TOO_BIG
    engine = await planner.planned_engine(machine, situation)
    if options.ask_engine and plans:
        comparison = await _ask_engine(plans[0], machine)
    environment = planner.plan_environment(engine) if plans else {}
    plans_json: list[dict[str, Any]] = []
    if options.json:
        with share_snapshot():
            plans_json = [_as_json(plan, engine, environment, options.extra, options.rpc) for plan in plans]
    if comparison is not None and plans_json:
        from launcher.cli.engine_comparison import comparison_json

        plans_json[0] |= comparison_json(comparison)
    refusal = comparison if isinstance(comparison, LauncherError) and not plans else None
    data: dict[str, Any] = {
        "machine": {
            **to_json(situation, _MACHINE),
            "cards": [card.name for card in situation.cards],
            "memory": to_json(situation, MEMORY_VIEW),
            "notes": [*situation.notes, *situation.own_notes],
        },
        "plans": plans_json,
        "unplanned": unplanned,
        "smaller": smaller and to_json(smaller, _SMALLER) | {"bytes": expected_bytes(smaller)},
        "problems": problems,
        "engine_error": refusal,
        "others": [
            {"file": each.file, "bytes": each.size_bytes, "file_kind": each.kind.name, "about": each.kind.sentence}
            for each in (selection.others if selection is not None else ())
        ],
    }
    if options.evidence:
        data["runs"] = plans[0].entry.measurements if plans else []

    def format_lines() -> Iterator[str]:
        yield from _describe_machine(situation)
        if plans and (smaller or not fits):
            from launcher.models.smaller_model import describe_misfit

            yield f"\n{wrap_text(describe_misfit(plans[0], smaller))}"
        if plans:
            quant_here = None if situation.described else served_quant
            yield from _describe_plan(plans[0], engine, options, comparison, served_quant=quant_here)
        elif isinstance(comparison, LauncherError):
            yield f"\n{wrap_text(comparison.message)}"
        yield from _format_others(plans[1:])
        if options.evidence and plans:
            from launcher.cli.evidence import format_evidence

            yield from format_evidence(plans[0].entry, plans[0].evidence)
        yield from _format_unplanned(unplanned, in_detail=criteria.model is not None)
        yield from _format_other_files(selection.others if selection is not None else ())

    exit_code = 0 if fits and not isinstance(comparison, LauncherError) else 1
    return Result(data, format_lines(), exit_code)


def _check_quant(model: str | None, quant: str | None) -> None:
    """Raise BadOption if a quantisation is given twice, as MODEL:QUANT and by --quant."""
    *_, named = (model or "").rpartition(":")
    if (
        quant
        and model
        and ":" in model
        and not named.casefold().endswith(".gguf")
        and named.casefold() != quant.casefold()
    ):
        raise BadOption(f"{model} and --quant {quant} name different files.", "Give one of them.")


async def _make_plans(
    model: str | None,
    catalogue: Catalogue,
    situation: Situation,
    criteria: PlanCriteria,
    machine: MachineDescription,
    draft_model: Path | None,
) -> PlannedModels:
    """Return the plans for the model that the user names, with a draft if one is named, else for the catalogue."""
    if model:
        from launcher.app.planning.named_plans import plan_named, select_named

        selection = await select_named(model, catalogue, draft_model, criteria.chosen_drafter)
        named = None if draft_model is None else selection.entry.drafter
        criteria = replace(criteria, **with_usual_length(to_fields(criteria.chosen()), named))
        return await plan_named(selection, situation, criteria, machine)
    plans, unplanned = make_plans(catalogue, situation, criteria), list_unplanned(catalogue, situation, criteria)
    return PlannedModels(None, catalogue, criteria, plans, unplanned)


async def _read_headers(plans: Sequence[Plan], *, as_json: bool) -> bool:
    """Read the headers of files on the hub that are estimated, if the user agrees. Returns whether any was read.

    The user is asked once, on a terminal.
    """
    answer = stored_value(READ_HEADERS)
    if answer == VALUE_OFF or (answer == VALUE_ASK and (as_json or not can_ask())):
        return False
    from launcher.app.planning import hub_headers  # imported late: most plans do without it

    estimated = hub_headers.find_estimated_plans(plans)
    if not estimated:
        return False
    is_asked = hub_headers.should_ask()
    if is_asked:
        files = "1 plan is an estimate" if len(estimated) == 1 else f"{len(estimated)} plans are estimates"
        hub_headers.keep_answer(
            agreed=await confirm(
                f"{files}. Read headers of such files from Hugging Face, about 10 MB each, now and later?"
            )
        )
    if not hub_headers.may_read():
        return False
    error = await hub_headers.read_headers(estimated)
    if error is not None and is_asked:  # later the plan itself says what is estimated
        print_result(Result(None, [Note(f"Not all headers were read. {error}")]), as_json=False)
    return True


def _use_kept_settings(plan: Plan, kept_plans: Sequence[KeptPlan]) -> Plan:
    """Return the plan with the settings of the model's last start, as far as they fit, and with reasons that say so."""
    kept = next((each for each in kept_plans if each.planned is plan), None)
    if kept is None or not kept.settings:
        return plan
    new_plan = kept.kept_plan or plan
    used = format_settings({name: value for name, value in kept.settings.items() if name not in kept.replaced})
    unused = format_settings({name: value for name, value in kept.settings.items() if name in kept.replaced})
    reasons = [f"As last served: {used}; --defaults ignores that."] if used else []
    reasons += [f"Your last settings cannot be used now: {unused}."] if unused else []
    return replace(new_plan, reasons=(*reasons, *new_plan.reasons))


async def _ask_engine(plan: Plan, machine: MachineDescription) -> EngineComparison | LauncherError:
    """Ask an engine about a plan; return the error if it cannot be asked."""
    from launcher.app.planning import engine_answer, model_source  # imported late: most plans do without them

    try:
        source = await asyncio.to_thread(model_source.read_source, estimate_argument(plan.entry, plan.file))
        return await engine_answer.compare_with_engine(source, plan.setting, None, machine)
    except LauncherError as error:
        return error
    except OSError as error:
        return explain_os_error(error)


def expected_bytes(plan: Plan) -> int | None:
    """Return the size of a plan's file in bytes: as listed, else as estimated; None if it is unknown."""
    size = expect_size(plan.entry, plan.file)
    return size.size_bytes if size else None


def _format_expected_size(plan: Plan) -> str:
    size = expected_bytes(plan)
    if not size:
        return "size unknown"
    about = "" if plan.file.size_bytes is not None else "about "
    return about + format_file_size(size)


def parts_in_mib(parts: dict[str, int]) -> dict[str, float]:
    """Return parts of the memory in MiB with one decimal, from bytes."""
    return {name: round(size / _MIB, 1) for name, size in parts.items()}


def host_parts(estimate: MemoryEstimate) -> dict[str, int]:
    """Return the bytes of host memory by part; the last two are what the engine may add while it runs."""
    host = estimate.host
    return {
        "weights": host.weights,
        "compute": host.compute,
        "checkpoints_most": host.checkpoints_most,
        "prompt_cache_most": host.prompt_cache_most,
    }


def _as_json(
    plan: Plan, engine: PlannedEngine, environment: dict[str, str], extra: list[str], rpc: Sequence[str]
) -> dict[str, Any]:
    setting = plan.setting
    local_file = planner.downloaded_file(plan)
    words, lacks = _make_command(plan, engine, extra, rpc, local_file)
    return {
        "model": plan.entry.id,
        "quant": plan.file.quant,
        "repo": plan.entry.repo,
        "revision": plan.entry.revision,
        "file": plan.file.file,
        "bytes": plan.file.size_bytes,
        "sha256": plan.file.sha256,
        "path": local_file,
        "mmproj": plan.entry.projector.file if plan.entry.projector and setting.mmproj_bytes else None,
        "ctx": setting.context,
        "kv": setting.kv,
        "draft": setting.draft,
        "drafter": setting.drafter.spec_type,
        "ubatch": setting.ubatch,
        "n_cpu_moe": setting.n_cpu_moe,
        "moe_cache_mib": setting.moe_cache_mib or 0,
        "slots": setting.slots,
        "backend": setting.backend,
        "status": plan.status.value,
        "mark": plan.mark,
        "required_mib": plan.required_mib,
        "needed_mib": plan.needed_mib,
        "by_gpu_mib": [round(share / _MIB, 1) for share in plan.estimate.by_gpu],
        "host_short": plan.host_short,
        "parts": parts_in_mib(plan.estimate.parts.as_dict()),
        "host_overfull": plan.host_overfull,
        "host": parts_in_mib(host_parts(plan.estimate)),
        "free_mib": plan.free_mib,
        "margin_mib": plan.margin_mib,
        "exact": plan.estimate.exact,
        "low_mib": round(plan.estimate.low / _MIB),
        "high_mib": round(plan.estimate.high / _MIB),
        "estimated_by": plan.engine or "formula",
        "weights_exact": plan.estimate.weights_exact,
        "compute_exact": plan.estimate.compute_exact,
        "reasons": plan.reasons,
        "cautions": [*plan.cautions, *lacks, *uncounted_arguments(extra)],
        "evidence": [describe_run(plan.entry, result) for result in plan.evidence],
        "acceptance": [each._asdict() for each in read_acceptance(plan.entry.published_as, setting.drafter)] or None,
        "ways_to_draft": [to_json(way, _WAY) for way in plan.ways] or None,
        "expected": to_json(plan.forecast, _FORECAST),
        "expected_unknown": _why_no_forecast(plan),
        "reading": to_json(plan.reading, _READING),
        "nearest_tokens_per_second": comparable_rate(plan.evidence[0], setting) if plan.evidence else None,
        "limit_tokens_per_second": round_figure(plan.limit_t_s),
        "limit_full_tokens_per_second": round_figure(plan.limit_full_t_s),
        "argv": words,
        "env": environment,
        "extra": extra,
    }


def _why_no_forecast(plan: Plan) -> str | None:
    """Return why no speed is expected of a plan, None if one is; whether it fits does not matter."""
    if plan.forecast is not None:
        return None
    if plan.entry.embedding:
        return "An embedding model generates no text."
    if plan.setting.backend == "cpu":
        return "Nothing is known of the processor's speed."
    if plan.entry.geometry is None:
        return "There is no formula for this model."
    if plan.setting.drafter.drafts and not accepted_shares(plan.setting.drafter, plan.entry.published_as):
        return f"Nobody published how many drafts of {plan.setting.drafter.title} are accepted with this model."
    return "The speed of this GPU is not known."


def _make_command(
    plan: Plan, engine: PlannedEngine, extra: list[str], rpc: Sequence[str], local_file: Path | None
) -> tuple[list[str], list[str]]:
    """Return the command line of a plan, and cautions if the engine in use cannot run it."""
    file = local_file or Path(plan.file.file)
    try:
        return planner.plan_arguments(plan, engine, extra, rpc=rpc, file=file), []
    except EngineUnsuitable as error:
        other = replace(engine, build=None)
        words = planner.plan_arguments(plan, other, extra, rpc=rpc, file=file)
        return words, [f"{error} The engine in use cannot run this plan."]


def _format_others(plans: Sequence[Plan]) -> Iterator[str]:
    if not plans:
        return
    yield "\nOther plans"
    with share_snapshot():
        places = ["here" if planner.downloaded_file(plan) else "" for plan in plans]
    rows = []
    for plan, place in zip(plans, places, strict=True):
        size, memory = _format_expected_size(plan), f"{plan.required_mib:,} MiB"
        rows.append((plan.status.value, plan.entry.id, plan.file.quant, size, _describe_briefly(plan), memory, place))
    yield from format_table(rows, right={3, 5})
    yield wrap_text("`--model ID --quant Q` shows one in detail, `--json` all of them.")


def _format_unplanned(unplanned: tuple[UnplannedFile, ...], *, in_detail: bool) -> Iterator[str]:
    """Yield files without a plan and the reasons: a paragraph for each with `in_detail`, else all in one sentence."""
    if not unplanned:
        return
    if in_detail:
        for each in unplanned:
            name = " ".join(filter(None, (each.model, each.quant)))
            yield f"\n{wrap_text(f'Not planned: {name}: {each.reason}. {each.remedy}')}"
        return
    names = ", ".join(f"{each.model} {each.quant} ({each.reason})" for each in unplanned)
    can_refresh = any("--refresh" in each.remedy for each in unplanned)
    refresh = "; `mtp-launcher models --refresh` asks the hub" if can_refresh else ""
    yield f"\n{wrap_text(f'Not planned: {names}. `--model ID` says what to do{refresh}.')}"


def _format_other_files(others: Sequence[OtherFile]) -> Iterator[str]:
    """Yield the files of a repository that are no models, and what each is."""
    if others:
        yield "\nBeside the model"
    for each in others:
        yield wrap_text(f"{each.file}, {format_file_size(each.size_bytes)}: {each.kind.what}.", "  ")


def _describe_machine(situation: Situation) -> Iterator[str]:
    on_cpu = situation.backend == "cpu"
    if on_cpu:
        name = "No usable GPU: the processor" if situation.no_gpu else "The processor"
    elif situation.described and situation.gpu_name:
        name = f"{situation.gpu_name}, {situation.nominal_gb:g} GiB"
    elif situation.described and situation.gpus > 1:
        name = f"{situation.gpus} GPUs of {situation.nominal_gb:g} GiB"
    elif situation.described:
        name = f"A GPU of {situation.nominal_gb:g} GiB"
    else:
        count = f"{situation.gpus} x " if situation.gpus > 1 and not situation.unlike_gpus else ""
        name = f"{count}{situation.gpu_name}"
    host = "" if not situation.host_mib or on_cpu else f"; {situation.host_mib:,} MiB of host memory"
    free = f"{situation.free_mib:,} MiB free, {situation.margin_mib:,} of them to stay free"
    yield wrap_text(f"{name} ({situation.backend}): {free}{host}")
    for note in (*situation.notes, *situation.own_notes):
        yield wrap_text(note)


def _describe_briefly(plan: Plan) -> str:
    setting = plan.setting
    words = [f"{setting.context:,}", setting.kv, setting.draft_choice.label(off="no MTP")]
    if setting.ubatch != 512:  # llama.cpp's default
        words.append(f"ub {setting.ubatch}")
    if setting.n_cpu_moe:
        words.append(f"{setting.n_cpu_moe} on CPU")
    if setting.moe_cache_mib:
        words.append(f"cache {setting.moe_cache_mib / 1_024:g} GiB")
    if plan.host_short:
        words.append("host memory short")
    return ", ".join(words)


def format_file_size(size_bytes: int | None) -> str:
    """Return a file's size as text, in GiB or MiB."""
    if size_bytes is None:
        return "unknown"
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:.1f} MiB"


def _describe_plan(
    plan: Plan,
    engine: PlannedEngine,
    options: argparse.Namespace,
    comparison: EngineComparison | LauncherError | None,
    *,
    served_quant: str | None,
) -> Iterator[str]:
    """Yield all details of a plan.

    `served_quant` is the downloaded quantisation that `serve ID` would start, None if the user named one.
    """
    setting = plan.setting
    name = f"{plan.entry.name}, {plan.file.quant}, {_format_expected_size(plan)}"
    yield f"\n{wrap_text(name, f'{plan.status.value}  ')}"
    layers = f"{setting.n_cpu_moe} layer{'' if setting.n_cpu_moe == 1 else 's'}"
    experts = f", experts of {layers} on the host" if setting.n_cpu_moe else ""
    experts += f", expert cache of {setting.moe_cache_mib:,} MiB" if setting.moe_cache_mib else ""
    mtp = setting.draft_choice.label()
    slots = f", {setting.slots} slots" if setting.slots > 1 else ""
    split = f", split over {setting.used_gpus} GPUs" if setting.used_gpus > 1 else ""
    others = f"ubatch {setting.ubatch}{slots}{experts}{split}"
    yield _format_row("settings", f"context {setting.context:,}, KV {setting.kv}, {mtp}, {others}")
    parts = ", ".join(
        f"{name.replace('_', ' ').replace('kv', 'KV')} {size / _MIB:,.0f}"
        for name, size in plan.estimate.parts.as_dict().items()
        if size
    )
    by_bits = plan.file.size_bytes is None and plan.file.about_bytes is None
    by_size = (
        "by bits per weight: its size is not listed" if by_bits else "by the file's size: its header is not read yet"
    )
    guesses = [] if plan.estimate.weights_exact else [f"weights {by_size}"]
    guesses += [] if plan.estimate.compute_exact else ["the compute buffer is a guess"]
    if plan.estimate.high - plan.estimate.low > _WORTH_SAYING * plan.estimate.parts.total:
        guesses.append(f"between {plan.estimate.low / _MIB:,.0f} and {plan.estimate.high / _MIB:,.0f} MiB")
    caveats = f" ({'; '.join(guesses)})" if guesses else ""
    by_engine = f" by {plan.engine}" if plan.engine else ""
    yield _format_row("memory", f"{plan.required_mib:,} MiB{by_engine}: {parts}{caveats}")
    if comparison is not None:
        from launcher.cli.engine_comparison import MODEL_ALONE, describe_comparison

        alone = "" if setting.drafter.is_in_model else MODEL_ALONE
        yield _format_row("engine", describe_comparison(comparison, plan.estimate) + alone)
    yield from _format_rows("why", plan.reasons)
    extra = options.extra
    local_file = planner.downloaded_file(plan)
    words, lacks = _make_command(plan, engine, [], options.rpc, local_file)
    yield from _format_rows("caution", [*plan.cautions, *lacks, *uncounted_arguments(extra)])
    if plan.forecast and plan.status is not Status.TOO_BIG:
        yield _format_row("speed", describe_forecast(plan.forecast, setting.drafter))
    elif setting.drafter.drafts and not accepted_shares(setting.drafter, plan.entry.published_as):
        yield _format_row("speed", f"unknown. {_why_no_forecast(plan)}")
    if plan.reading:
        yield _format_row("speed", describe_reading(plan.reading))
    measured = [describe_run(plan.entry, result) for result in plan.evidence]
    yield from _format_rows("measured", measured or ["no similar run was published"])
    if plan.limit_t_s and plan.limit_full_t_s:
        limits = f"{plan.limit_t_s:,.0f} tokens/s without drafts, {plan.limit_full_t_s:,.0f} when the context is full"
        yield _format_row("limit", f"{limits}, by the GPU's memory bandwidth: not a forecast")
    if plan.entry.repo is None and local_file:
        yield _format_row("file", str(local_file))
    if plan.entry.repo:
        drafter = f" --drafter {setting.chosen_drafter}" if setting.draft_bytes and setting.chosen_drafter else ""
        pull = f"`mtp-launcher pull {plan.entry.id}:{plan.file.quant}{drafter}` downloads it"
        yield _format_row("file", f"{plan.entry.repo}:{plan.file.file}")
        yield _format_row("", f"on this machine: {local_file}" if local_file else pull)
    if served_quant and served_quant != plan.file.quant:
        model, quant = plan.entry.id, plan.file.quant
        served = f"`mtp-launcher serve {model}` starts {served_quant}, which is here"
        yield _format_row("", f"{served}; `serve {model}:{quant}` starts this.")
    if setting.mmproj_bytes and (projector := plan.entry.projector) and (repo := plan.entry.repo_of(projector)):
        yield _format_row("", f"{repo}:{projector.file}")
    yield _format_row("command", shlex.join(words) + (f"   and yours: {shlex.join(extra)}" if extra else ""))


def _format_rows(label: str, texts: Iterable[str]) -> Iterator[str]:
    for index, text in enumerate(texts):
        yield _format_row(label if not index else "", text)


def _format_row(label: str, text: str) -> str:
    return wrap_text(text, f"  {label:<9} ")
