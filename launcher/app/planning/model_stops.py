"""The three plans that the window's simple mode offers for a model, with what each needs to be started.

See launcher.models.plan_stops for the rule. The model is the one that runs, or the one that would be started.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from launcher.app.first.first_checks import find_local_files, make_first_start_request
from launcher.app.planning.planner import MachineDescription, read_situation
from launcher.app.planning.start_settings import apply_own_settings, list_planned_settings
from launcher.base.errors import LauncherError
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.builds.installed import is_built_in_chosen
from launcher.engine.demo import DEMO
from launcher.engine.server.launch import Launch, file_bytes
from launcher.engine.settings import load_model_settings
from launcher.models.catalogue import Catalogue
from launcher.models.catalogue_load import load_catalogue
from launcher.models.file_size import expect_size
from launcher.models.locate import ModelSelection, select_file, select_model
from launcher.models.plan import Plan, PlanCriteria
from launcher.models.plan_stops import FOLLOWS_MEMORY, PlanStop, keep_running_settings, make_stops, plan_recommended
from launcher.models.server_settings import ROWS, Value
from launcher.models.situation import Situation


@dataclass(frozen=True, slots=True)
class ModelStop:
    """One of the three plans. `settings` are its server settings by name.

    `is_loaded`: the running server has its file, so that other settings are all that it needs. `missing_bytes` is the
    size of what must be downloaded first: 0 if all files are here, None if the size is not known.
    """

    stop: PlanStop
    settings: Mapping[str, Value]
    is_loaded: bool
    missing_bytes: int | None


async def plan_model_stops(
    model: str, launch: Launch | None = None, *, ending: Collection[int] = ()
) -> tuple[ModelStop, ...]:
    """Return the three plans for a model, in the order of StopName; () if the formula does not know the model.

    `model` is named as for `serve`. For a running server its `launch` says which file it has; `ending` are the process
    IDs of the engines that a start replaces, so that their memory counts as free. No GPU is woken. Raises ModelUnknown,
    ModelMissing and ModelBroken for the model, and what `read_situation` raises.
    """
    catalogue = await asyncio.to_thread(load_catalogue)
    selection = await asyncio.to_thread(_select_model, model, launch, catalogue)
    situation = (await _read_situation(model, launch)).with_servers_running(ending=ending)
    mmproj = launch.options.mmproj if launch is not None else None
    criteria = PlanCriteria(model=selection.entry.id, mmproj_bytes=file_bytes(mmproj))
    recommended = await asyncio.to_thread(plan_recommended, selection.catalogue, situation, criteria)
    if recommended is None:
        return ()
    (with_tuned,), _ = await apply_own_settings(
        (recommended,), selection.catalogue, situation, criteria, use_kept=False
    )
    tuned = with_tuned if with_tuned is not recommended else None
    stops = await asyncio.to_thread(make_stops, selection.catalogue, situation, criteria, tuned=tuned)
    loaded_quant = selection.file.quant if launch is not None and selection.file is not None else None
    if launch is not None and not await asyncio.to_thread(_has_own_memory_settings, launch):
        running = launch.plan_settings(situation.backend)

        def keep_settings(stop: PlanStop) -> PlanStop:
            if stop.plan.file.quant != loaded_quant:
                return stop
            return keep_running_settings(stop, running, selection.catalogue, situation, criteria)

        stops = await asyncio.to_thread(lambda: tuple(map(keep_settings, stops)))
    return await asyncio.to_thread(lambda: tuple(_describe_stop(stop, loaded_quant) for stop in stops))


def _select_model(model: str, launch: Launch | None, catalogue: Catalogue) -> ModelSelection:
    if model == DEMO or (launch is not None and launch.options.alias == DEMO):
        entry = catalogue.find(DEMO)
        return ModelSelection(catalogue, entry, entry.files[0], None)
    return select_file(launch.options.model, catalogue) if launch is not None else select_model(model, catalogue)


def _has_own_memory_settings(launch: Launch) -> bool:
    """Return whether the user chose a setting of the running server that a plan would fit to the free memory."""
    kept = load_model_settings(launch.options.model)
    return any(name in kept and kept[name] == ROWS[name].value_in(launch.resolved) for name in FOLLOWS_MEMORY)


async def _read_situation(model: str, launch: Launch | None) -> Situation:
    if launch is None:
        on_host = model == DEMO or is_built_in_chosen()
        return await read_situation(MachineDescription(backend="cpu" if on_host else None))
    on_host = launch.options.no_gpu or launch.build.name == BUILT_IN
    machine = MachineDescription(backend="cpu" if on_host else None, rpc=launch.options.rpc)
    return await read_situation(machine, build=launch.build)


def _describe_stop(stop: PlanStop, loaded_quant: str | None) -> ModelStop:
    is_loaded = stop.plan.file.quant == loaded_quant
    has_all = is_loaded and not stop.plan.setting.draft_bytes
    return ModelStop(stop, list_planned_settings(stop.plan), is_loaded, 0 if has_all else _measure_missing(stop.plan))


def _measure_missing(plan: Plan) -> int | None:
    """Return the bytes of a plan's files that are not here, None if their size is not known."""
    size = expect_size(plan.entry, plan.file)
    missing = size.size_bytes if size is not None else None
    with suppress(LauncherError):  # the start reports the error
        files = find_local_files(make_first_start_request(plan))
        if files.path is not None:
            return 0
        if files.bytes is not None:
            missing = files.bytes - files.done_bytes
    return missing
