"""The memory that an engine itself computes for a model, compared with the formula's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from launcher.app.planning.model_source import ModelSource, estimate_by_formula
from launcher.app.planning.planner import EngineComparison, MachineDescription
from launcher.base.errors import (
    GeometryUnknown,
)
from launcher.engine.engine_estimate import ask_engine, difference_percent
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server.launch import choose_build, uses_gpu
from launcher.machine.machine import read_machine
from launcher.models.memory import PlanSettings


async def compare_with_engine(
    source: ModelSource, settings: PlanSettings, engine: Path | None, machine: MachineDescription | None = None
) -> EngineComparison:
    """Ask an engine for the memory of `settings`: the given engine, else the one that `serve` would start.

    It uses a GPU if the backend of `settings` does, and on a `machine` whose backend is set to "cpu" it must not. The
    formula is computed for the backend that the engine reports. Drafts from another file are left out, because the
    engine is asked about one file only. Raises what `ask_engine` and `choose_build` raise.
    """

    if not (settings.drafter.is_in_model and settings.can_draft(head=source.model.has_mtp_head)):
        settings = replace(settings, draft=0)
    build = await choose_build(ServeOptions(Path(source.model.path), engine=engine))
    gpu = settings.backend != "cpu"
    no_gpu = machine is not None and machine.backend == "cpu"
    if settings.moe_cache_mib and (no_gpu or not await uses_gpu(build, await asyncio.to_thread(read_machine))):
        settings = replace(settings, moe_cache_mib=None)  # without a GPU the engine refuses it
    answer = await ask_engine(
        build,
        source.parts,
        settings,
        gpu=gpu,
        no_gpu=no_gpu,
        embeddings=source.model.is_embedding,
        reranking=source.model.is_reranker,
    )
    try:
        formula = estimate_by_formula(
            source, replace(settings, backend=answer.backend, gpus=max(len(answer.devices), 1))
        )
    except GeometryUnknown:
        return EngineComparison(answer, None, None)
    return EngineComparison(answer, formula, difference_percent(formula, answer))
