"""Finds the subjects of exports: recipes of a running server, of local models or of a plan, and running gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from launcher.app.planning import planner
from launcher.app.planning.start_settings import apply_own_settings, resolve_start
from launcher.base.errors import (
    EngineFailed,
    LauncherError,
    ModelUnknown,
    NothingFits,
    Refused,
    ServerNotFound,
)
from launcher.base.messages import command_name, mark, message
from launcher.engine.arguments import START_FLAGS
from launcher.engine.builds.build import BUILT_IN
from launcher.engine.builds.probe import probe_engine
from launcher.engine.demo import DEMO
from launcher.engine.serve_options import ServeOptions
from launcher.engine.server import registry
from launcher.engine.server.address import parse_address
from launcher.engine.server.client import EngineClient
from launcher.engine.server.endpoint import ALL_ADDRESSES, HOST, Endpoint, claim_endpoint
from launcher.engine.server.launch import prepare_launch
from launcher.export.recipe import ExportRecipe
from launcher.export.served_models import GatewayModels, OfferedModel
from launcher.export.shell import KEY_VARIABLE
from launcher.models.catalogue_load import load_catalogue
from launcher.models.download_target import find_catalogue_model
from launcher.models.plan import Status, list_unplanned, make_plans

if TYPE_CHECKING:
    from launcher.app.planning.planner import MachineDescription
    from launcher.engine.server.address import ServerAddress
    from launcher.models.plan import PlanCriteria


@dataclass(frozen=True, slots=True)
class FoundRecipe:
    """A recipe. `missing` is the name of the model file unless it is here, `command` the command that downloads it."""

    recipe: ExportRecipe
    missing: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class LibraryRecipes:
    """The recipes of all models on this computer; `left_out` has the error for each model without one."""

    recipes: tuple[ExportRecipe, ...]
    left_out: tuple[tuple[str, LauncherError], ...] = ()


async def recipes_of_library(*, port: int | None, backend: str | None) -> LibraryRecipes:
    """Return the recipe of each local model as `serve` would start it, or as it runs now.

    The names are those by which the gateway serves them. All have the same address and key: those of a running server,
    if one runs and no `port` is named.
    """
    from launcher.app.serving.servable_models import list_servable_models, list_unreadable_models

    running = await _recipes_of_running(backend)
    if running and port is None:
        endpoint = Endpoint(running[0].port, running[0].api_key or "")
    else:
        endpoint = await _claim_endpoint(port)
    recipes = {recipe.name: recipe for recipe in running}
    left_out: list[tuple[str, LauncherError]] = [*await asyncio.to_thread(list_unreadable_models)]
    for model in await asyncio.to_thread(list_servable_models):
        if model.name in recipes or any(Path(recipe.model) == model.path for recipe in running):
            continue
        try:
            start = await resolve_start(model.argument)
            recipes[model.name] = (await _recipe_at(endpoint, start.options, backend=backend)).recipe
        except LauncherError as error:
            left_out.append((model.name, error))
    address = {"host": HOST, "port": endpoint.port, "api_key": endpoint.api_key}
    named = tuple(replace(recipe, name=name, **address) for name, recipe in recipes.items())  # type: ignore[arg-type]
    return LibraryRecipes(named, tuple(left_out))


async def find_gateways(urls: Sequence[str], keys: Mapping[str, str]) -> tuple[GatewayModels, ...]:
    """Return the gateways at these addresses with their models; without addresses those that run on this computer.

    The key of the gateway number N is in `keys` as LLAMA_API_KEY_N; those of this computer are known. Raises
    ServerNotFound if none runs, and Unreachable or Refused if one cannot be asked.
    """
    entries = await asyncio.to_thread(registry.list_entries)
    if not urls and not entries:
        raise ServerNotFound(
            message("No server is running."), message("Name the gateways after --peers, or start them.")
        )
    own = {entry.url: entry.api_key for entry in entries}
    addresses = [parse_address(url) for url in urls or own]
    variables = [f"{KEY_VARIABLE}_{number}" for number, _ in enumerate(addresses, 1)]
    asked = (
        _read_gateway(address, variable, keys.get(variable) or own.get(address.url))
        for address, variable in zip(addresses, variables, strict=True)
    )
    return tuple(await asyncio.gather(*asked))


async def _read_gateway(address: ServerAddress, key_variable: str, api_key: str | None) -> GatewayModels:
    remote = not address.local or address.url.startswith("https://")
    try:
        async with EngineClient(address.url, api_key, remote=remote) as client:
            answer = await client.request_json("/v1/models")
    except Refused as error:
        if error.status != 401:
            raise
        raise Refused(
            message("{url} rejected the API key.", url=address.url),
            message("Set {variable} to the key of {url}.", variable=key_variable, url=address.url),
            status=401,
        ) from error
    listed = answer.get("data") if isinstance(answer, dict) else None
    models = [_parse_model(each) for each in listed or () if isinstance(each, dict) and each.get("id")]
    if not models:
        raise Refused(message("{url} lists no models.", url=address.url), message("Check the address."))
    return GatewayModels(address.url, key_variable, tuple(models), api_key)


def _parse_model(listed: Mapping[str, Any]) -> OfferedModel:
    """Parse a model of /v1/models, whose `meta` has the context of a slot as `n_ctx`."""
    meta = listed.get("meta")
    context = meta.get("n_ctx") if isinstance(meta, dict) else None
    return OfferedModel(
        str(listed["id"]),
        context if isinstance(context, int) and context > 0 else None,
        embeds="embedding" in (listed.get("capabilities") or ()),
    )


async def _recipes_of_running(backend: str | None) -> tuple[ExportRecipe, ...]:
    """Return the recipes of the running servers, without those whose engine does not run yet."""
    recipes = []
    for entry in await asyncio.to_thread(registry.list_entries):
        with suppress(EngineFailed):
            recipes.append((await recipe_of_running(entry.url, backend=backend)).recipe)
    return tuple(recipes)


async def recipe_of_running(url: str | None, *, backend: str | None) -> FoundRecipe:
    """Return the recipe of a running server of ours, from the command line of its process.

    Raises ServerNotFound, SeveralServers, or EngineFailed while its engine does not run.
    """
    entry = await asyncio.to_thread(registry.find_server, url)
    served = entry.first
    try:
        argv = psutil.Process(served.engine_pid or 0).cmdline() if served.engine_pid else []
    except psutil.Error:
        argv = []
    if not argv:
        raise EngineFailed(
            message("The engine of {url} is not running yet.", url=entry.url), message("Wait until it is ready.")
        )
    recipe = ExportRecipe.from_argv(argv, port=entry.port, name=served.model, backend=backend or "cpu")
    options = tuple(option for option in recipe.options if option[0] not in START_FLAGS)
    host = ALL_ADDRESSES if entry.shared else HOST
    # The address of the gateway, which clients use.
    recipe = replace(recipe, host=host, port=entry.port, options=options)
    built_in = served.engine == BUILT_IN
    environment: dict[str, str] = {}
    if not built_in and len(recipe.program) == 1:
        environment = dict((await probe_engine(Path(recipe.program[0]))).environment)
    if backend is None:
        recipe = replace(recipe, backend=await _find_backend(built_in=built_in))
    return FoundRecipe(replace(recipe, environment=environment, api_key=entry.api_key))


async def recipe_of_options(options: ServeOptions, *, port: int | None, backend: str | None) -> FoundRecipe:
    """Return the recipe of what `serve` would start, with the address and key that it would use.

    Raises what `launch.prepare_launch` and `endpoint.claim_endpoint` raise.
    """
    return await _recipe_at(await _claim_endpoint(port), options, backend=backend)


async def _recipe_at(endpoint: Endpoint, options: ServeOptions, *, backend: str | None) -> FoundRecipe:
    launch = await prepare_launch(options, endpoint)
    built_in = launch.build.name == BUILT_IN
    recipe = ExportRecipe.from_argv(
        launch.command.arguments,
        port=endpoint.port,
        name=options.model.stem,
        backend=backend or await _find_backend(built_in=built_in),
    )
    return FoundRecipe(replace(recipe, environment=dict(launch.build.environment), api_key=endpoint.api_key))


async def recipe_of_plan(
    criteria: PlanCriteria, machine: MachineDescription, extra: Sequence[str], *, port: int | None
) -> FoundRecipe:
    """Return the recipe of the first plan for a model of the catalogue.

    Raises NothingFits when there is no plan, and what making plans raises.
    """
    situation = await planner.read_situation(machine)
    catalogue = load_catalogue()
    plans, kept_plans = await apply_own_settings(
        make_plans(catalogue, situation, criteria), catalogue, situation, criteria
    )
    unplanned = list_unplanned(catalogue, situation, criteria) if not plans else ()
    if unplanned:
        first = unplanned[0]
        raise NothingFits(
            message(
                "There is no plan for {model} {quant}: {reason}.",
                model=criteria.model,
                quant=first.quant or "",
                reason=first.reason,
            ),
            first.remedy,
        )
    if not plans or plans[0].status is Status.TOO_BIG:
        raise NothingFits(
            message("{model} does not fit this computer.", model=criteria.model),
            message("{command} says why.", command=command_name(f"plan --model {criteria.model}", mark("Start"))),
        )
    plan = next((each.kept_plan for each in kept_plans if each.planned is plans[0] and each.kept_plan), plans[0])
    engine = await planner.planned_engine(machine, situation)
    endpoint = await _claim_endpoint(port)
    argv = planner.plan_arguments(plan, engine, extra, rpc=machine.rpc)
    build = engine.build
    recipe = ExportRecipe.from_argv(
        argv, port=endpoint.port, name=planner.options_for_plan(plan).model.stem, backend=situation.backend
    )
    recipe = replace(recipe, api_key=endpoint.api_key, environment=dict(build.environment) if build else {})
    if planner.downloaded_file(plan):
        return FoundRecipe(recipe)
    return FoundRecipe(recipe, plan.file.file, f"mtp-launcher pull {plan.entry.id}:{plan.file.quant}")


def parse_catalogue_name(model: str) -> tuple[str, str | None] | None:
    """Return the id and quantisation of a catalogue name (ID or ID:QUANT). None for any other name.

    Raises ModelUnknown for a near miss.
    """
    try:
        named = find_catalogue_model(model, load_catalogue())
    except ModelUnknown as error:
        if not error.facts.get("near", True):
            return None
        raise
    if named is None or model == DEMO:
        return None
    entry, file = named
    return entry.id, file.quant if file else None


async def _claim_endpoint(port: int | None) -> Endpoint:
    ports = frozenset(entry.port for entry in await asyncio.to_thread(registry.list_entries))
    return await asyncio.to_thread(lambda: claim_endpoint(port, taken=ports))


async def _find_backend(*, built_in: bool) -> str:
    """Return the backend of this machine, as a plan would choose it."""
    if built_in:
        return "cpu"
    return (await planner.read_situation(planner.MachineDescription())).backend
