"""`mtp-launcher estimate`: estimate a model's memory by part, from its header alone."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.app.planning import model_source, planner
from launcher.app.planning.planner import EngineComparison
from launcher.base.codec import to_json
from launcher.base.errors import EngineMissing, GeometryUnknown, LauncherError, ModelBroken
from launcher.base.paths import expand_user, explain_os_error
from launcher.cli.engine_comparison import MODEL_ALONE, comparison_json, describe_comparison
from launcher.cli.given_options import read_machine_description, read_plan_criteria
from launcher.cli.layout import text_columns, wrap_text
from launcher.cli.output import Result
from launcher.cli.plan import format_file_size, host_parts, parts_in_mib
from launcher.models.catalogue_load import load_catalogue
from launcher.models.fitting import HOST_LIMITS
from launcher.models.gguf import check_complete
from launcher.models.locate import select_model
from launcher.models.memory import ENCODER_MIB, overhead_bytes
from launcher.models.plan import fit_status
from launcher.models.plan_reasons import list_host_cautions
from launcher.models.situation import MEMORY_VIEW

if TYPE_CHECKING:
    from launcher.app.planning.model_source import ModelSource
    from launcher.app.planning.planner import MachineDescription
    from launcher.models.catalogue import ModelEntry
    from launcher.models.fit_advice import FitAdvice
    from launcher.models.memory import MemoryEstimate, PlanSettings
    from launcher.models.plan import PlanCriteria
    from launcher.models.situation import Situation

_MIB = 2**20
_PART_LABELS = {
    "weights": "weights",
    "kv": "KV cache",
    "recurrent": "recurrent states",
    "draft_kv": "draft's KV cache",
    "compute": "compute buffer",
    "draft_compute": "draft's compute buffer",
    "staging": "staging of experts",
    "overhead": "driver and process",
    "mmproj": "vision projector",
    "caches": "expert cache",
    "pool": "CUDA's temporary memory",
}
_LATER_LABELS = {"prompt_cache_most": "prompt cache, at most", "checkpoints_most": "checkpoints, at most"}
"""Labels of the host memory that the engine adds while it runs."""


async def run(options: argparse.Namespace) -> Result:
    """Return the memory by part. For a model without a formula, an engine is asked, and only its figures are returned.

    Exit code 1 if the engine should be asked, and could not be.
    """
    criteria, machine = read_plan_criteria(options), read_machine_description(options)
    situation = await planner.read_situation(machine)
    source = await asyncio.to_thread(model_source.read_source, options.model)
    setting, entry = await _settings_for_start(options.model, source, criteria, situation)
    source = replace(source, entry=entry)
    if options.mmproj:
        size_bytes = await asyncio.to_thread(model_source.projector_bytes, options.mmproj)
        setting = replace(setting, mmproj_bytes=size_bytes)
    comparison: EngineComparison | LauncherError | None = None
    if options.ask_engine or options.engine:
        comparison = await _ask_engine(source, setting, options.engine, machine)
    try:
        estimate, unknown = model_source.estimate_by_formula(source, setting), None
    except GeometryUnknown as error:
        comparison = comparison or await _ask_engine(source, setting, None, machine)
        if isinstance(comparison, LauncherError):
            raise GeometryUnknown(error.title, f"The engine could not estimate it either: {comparison}") from comparison
        estimate, unknown = None, error
    advice: tuple[FitAdvice, ...] = ()
    if estimate is not None and estimate.needed_mib > situation.free_mib:
        advice = await asyncio.to_thread(model_source.advise_source, source, setting, situation, options.model)
    warnings = _list_warnings(source, setting, is_local=expand_user(options.model).exists())
    cautions = _list_host_cautions(estimate, criteria, situation) if estimate else []
    return Result(
        _as_json(source, setting, estimate, unknown, situation, comparison)
        | {"cautions": cautions, "warnings": warnings, "advice": advice},
        chain(
            _format_estimate(source, setting, estimate, unknown, situation, comparison),
            _format_advice(advice),
            (f"\n{wrap_text(caution)}" for caution in cautions),
            (f"\n{wrap_text(warning, 'Warning: ')}" for warning in warnings),
        ),
        exit_code=1 if isinstance(comparison, LauncherError) else 0,
    )


async def _settings_for_start(
    target: str, source: ModelSource, criteria: PlanCriteria, situation: Situation
) -> tuple[PlanSettings, ModelEntry | None]:
    """Return the server settings with which the model would start, those of its plan, and its entry with its drafts.

    For a file that is not on this machine they are the defaults for its header.
    """
    from launcher.app.planning.start_settings import plan_for_start

    subject = None
    with suppress(LauncherError):  # a file on the hub cannot be selected; `source` has its header
        subject = await asyncio.to_thread(select_model, target, load_catalogue())
    plan = await plan_for_start(subject, situation, criteria) if subject else None
    return (plan.setting, plan.entry) if plan else (planner.settings_for_model(source.model, criteria, situation), None)


def _list_host_cautions(estimate: MemoryEstimate, criteria: PlanCriteria, situation: Situation) -> list[str]:
    """Return cautions about the host memory that the model needs, if it may be too small or was limited."""
    values = ((name, getattr(estimate.setting, name), getattr(criteria, name)) for name in HOST_LIMITS)
    return list_host_cautions(estimate, situation, [name for name, own, asked in values if own is not None is asked])


def _list_warnings(source: ModelSource, setting: PlanSettings, *, is_local: bool) -> list[str]:
    """Return warnings about truncated files, here or on the hub, and about a context beyond the trained one."""
    warnings = []
    for part in source.model.parts:
        try:
            check_complete(part)
        except ModelBroken as error:
            remedy = error.hint if is_local else "It is incomplete on the hub."
            warnings.append(f"{error.title} {remedy} The figures are for the complete file.")
    trained = source.model.trained_context
    if trained and setting.slot_context > trained:
        warnings.append(f"The context is longer than the {trained:,} tokens that the model was trained for.")
    return warnings


async def _ask_engine(
    source: ModelSource, setting: PlanSettings, engine: Path | None, machine: MachineDescription
) -> EngineComparison | LauncherError:
    """Ask an engine for its figures; return the error if it cannot be asked.

    Raises EngineMissing if the engine that the user named is missing.
    """
    from launcher.app.planning import engine_answer  # imported late: it takes as long as the rest of an estimate

    try:
        return await engine_answer.compare_with_engine(source, setting, engine, machine)
    except LauncherError as error:
        if engine is not None and isinstance(error, EngineMissing):
            raise
        return error
    except OSError as error:
        return explain_os_error(error)


def _as_json(
    source: ModelSource,
    setting: PlanSettings,
    estimate: MemoryEstimate | None,
    unknown: LauncherError | None,
    situation: Situation,
    comparison: EngineComparison | LauncherError | None,
) -> dict[str, object]:
    data: dict[str, object] = {
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
        "moe_cache_mib": setting.moe_cache_mib or 0,
        "slots": setting.slots,
        "total_mib": round(estimate.parts.total / _MIB, 1) if estimate else None,
        "parts": parts_in_mib(estimate.parts.as_dict()) if estimate else None,
        "parts_unknown": unknown.title if unknown else None,
        "host_mib": round(estimate.host.at_start / _MIB, 1) if estimate else None,
        "host": parts_in_mib(host_parts(estimate)) if estimate else None,
        "host_available_mib": situation.host_beside_mib(estimate.required_mib if estimate else 0),
        "free_mib": situation.free_mib,
        "margin_mib": situation.margin_mib,
        "needed_mib": _needed_mib(estimate, setting, comparison),
        "status": _fit_status(estimate, setting, situation, comparison),
        "estimated_by": _name_estimator(estimate, comparison),
        "memory": to_json(situation, MEMORY_VIEW),
        "exact": estimate.exact if estimate else None,
        "low_mib": round(estimate.low / _MIB) if estimate else None,
        "high_mib": round(estimate.high / _MIB) if estimate else None,
    }
    return data | (comparison_json(comparison) if comparison else {})


def _fit_status(
    estimate: MemoryEstimate | None,
    setting: PlanSettings,
    situation: Situation,
    comparison: EngineComparison | LauncherError | None = None,
) -> str | None:
    needed_mib = _needed_mib(estimate, setting, comparison)
    if needed_mib is None:
        return None
    return fit_status(needed_mib, setting, situation.free_mib, situation.margin_mib).value


def _needed_mib(
    estimate: MemoryEstimate | None,
    setting: PlanSettings,
    comparison: EngineComparison | LauncherError | None = None,
) -> int | None:
    """Return the memory that must be free, in MiB: by the formula, else by the engine's figures and usual overhead."""
    if estimate is not None:
        return estimate.needed_mib
    if not isinstance(comparison, EngineComparison):
        return None
    return comparison.engine.total_mib + sum(overhead_bytes(setting, max(setting.gpus, 1))) // _MIB


def _name_estimator(estimate: MemoryEstimate | None, comparison: EngineComparison | LauncherError | None) -> str | None:
    if estimate is not None:
        return "formula"
    return comparison.engine.engine if isinstance(comparison, EngineComparison) else None


def _format_estimate(
    source: ModelSource,
    setting: PlanSettings,
    estimate: MemoryEstimate | None,
    unknown: LauncherError | None,
    situation: Situation,
    comparison: EngineComparison | LauncherError | None,
) -> Iterator[str]:
    drafts = setting.draft_choice.label()
    split = f" on {setting.gpus} GPUs" if setting.gpus > 1 else ""
    yield wrap_text(f"{source.model.name}, {source.model.architecture}, {format_file_size(source.model.file_bytes)}")
    settings = (
        f"context {setting.context:,}, KV {setting.kv}, {drafts}, ubatch {setting.ubatch}, {setting.slots}"
        f" slot{'s' if setting.slots > 1 else ''}, {setting.backend}{split}"
    )
    yield f"{wrap_text(settings)}\n"
    engine_figures = _list_engine_figures(comparison, has_states=estimate is not None and estimate.parts.recurrent > 0)
    if estimate is None:
        yield wrap_text(unknown.title if unknown else "")
        for name, figure in engine_figures.items():
            yield f"  {_PART_LABELS[name]:<24}{figure}"
        if status := _fit_status(None, setting, situation, comparison):
            yield f"  {'status':<24}{status:>18}, by the engine"
    else:
        yield from format_parts(estimate, situation, engine_figures)
    if comparison is not None:
        alone = "" if setting.drafter.is_in_model else MODEL_ALONE
        yield f"\n{wrap_text(f'The engine: {describe_comparison(comparison, estimate)}{alone}')}"


def _format_advice(advice: Sequence[FitAdvice]) -> Iterator[str]:
    if advice:
        yield "\nIt does not fit. What would:"
    for each in advice:
        yield wrap_text(each.sentence.removeprefix("What fits: "), "  ")


def format_parts(estimate: MemoryEstimate, situation: Situation, engine_figures: Mapping[str, str]) -> Iterator[str]:
    """Yield the memory by part and in total, with an engine's own figures for some parts."""
    backend, total = estimate.setting.backend, estimate.parts.total
    for name, size in estimate.parts.as_dict().items():
        if size:
            line = f"  {_PART_LABELS[name]:<24}{size / _MIB:>12,.1f} MiB{engine_figures.get(name, '')}"
            note = " with the KV cache" if name == "recurrent" and engine_figures else ""
            yield line + note if len(line + note) <= text_columns() else f"{line}\n{note:>{len(line)}}"
    yield f"  {'total':<24}{total / _MIB:>12,.1f} MiB"
    free_label = "host memory available" if backend == "cpu" else "GPU memory free"
    missing_mib = estimate.needed_mib - situation.free_mib
    missing = f"  {missing_mib:,} too few" if missing_mib > 0 else ""
    yield f"  {free_label:<24}{situation.free_mib:>10,}   MiB{missing}"
    yield f"  {'status':<24}{_fit_status(estimate, estimate.setting, situation):>12}"
    if backend != "cpu":
        yield f"  {'and on the host':<24}{estimate.host.at_start / _MIB:>12,.1f} MiB"
    for name, label in _LATER_LABELS.items():
        if size := getattr(estimate.host, name):
            yield f"  {label:<24}{size / _MIB:>12,.1f} MiB"
    host_mib = situation.host_beside_mib(estimate.required_mib)
    if backend != "cpu" and host_mib is not None:
        yield f"  {'host memory available':<24}{host_mib:>10,}   MiB"
    for note in situation.own_notes:
        yield f"\n{wrap_text(note)}"
    if estimate.parts.mmproj:
        note = f"{ENCODER_MIB} MiB of the vision projector's memory are a guess, for its encoder's buffers."
        yield f"\n{wrap_text(note)}"
    if not estimate.compute_exact:
        note = (
            f"The compute buffer is a guess for this architecture or backend: in all, {estimate.low / _MIB:,.0f} to "
            f"{estimate.high / _MIB:,.0f} MiB. --ask-engine gives its exact size."
        )
        yield f"\n{wrap_text(note)}"


def _list_engine_figures(comparison: EngineComparison | LauncherError | None, *, has_states: bool) -> dict[str, str]:
    """Return the engine's figures as text, by the part beside which each is shown.

    Its figure for the context covers KV cache and recurrent states; it is shown beside the states if there are any.
    """
    if not isinstance(comparison, EngineComparison):
        return {}
    engine = comparison.engine
    figures = {
        "weights": engine.model_mib,
        "recurrent" if has_states else "kv": engine.context_mib,
        "draft_kv": engine.draft_context_mib,
        "compute": engine.compute_mib,
        "draft_compute": engine.draft_compute_mib,
    }
    return {name: f"  engine {figure:>9,}" for name, figure in figures.items() if figure is not None}
