"""What an export is made from: a server that runs, a model that is here, or a plan. One source for all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from launcher.base.errors import EngineFailed, ModelUnknown, NothingFits
from launcher.engine import registry
from launcher.engine.build import BUILT_IN, Build, probe
from launcher.engine.demo import DEMO
from launcher.engine.endpoint import Endpoint, claim
from launcher.engine.launch import ServeOptions
from launcher.engine.launch import plan as launch_plan
from launcher.export.recipe import Recipe

if TYPE_CHECKING:
    from launcher.models.plan import Wish
    from launcher.planner import MachineWish

_WELCOME = ("--metrics", "--cors-origins", "localhost", "--no-ui")
"""What `serve` adds to a plan's own arguments."""


@dataclass(frozen=True, slots=True)
class Found:
    """A recipe, whether its model's file is here, and what gets it if not."""

    recipe: Recipe
    missing: str = ""
    command: str = ""


async def of_running(url: str | None, *, backend: str | None) -> Found:
    """Return the recipe of a server of ours that runs, from the command of its process.

    Raises ServerNotFound, SeveralServers, or EngineFailed while its engine does not run.
    """
    entry = await asyncio.to_thread(registry.find, url)
    try:
        argv = psutil.Process(entry.engine_pid or 0).cmdline() if entry.engine_pid else []
    except psutil.Error:
        argv = []
    if not argv:
        raise EngineFailed(f"The engine of {entry.url} does not run yet.", "Wait until it is ready.")
    recipe = Recipe.of(argv, port=entry.port, name=entry.model, backend=backend or "cpu")
    built_in = entry.engine == BUILT_IN
    build = None if built_in or len(recipe.program) > 1 else await probe(Path(recipe.program[0]))
    found = replace(recipe, environment=dict(build.environment) if build else {}, api_key=entry.api_key)
    return Found(found if backend else replace(found, backend=await _backend(built_in=built_in)))


async def of_options(options: ServeOptions, *, port: int | None, backend: str | None) -> Found:
    """Return the recipe of what `serve` would start, at the address and with the key that it would use.

    Raises what `launch.plan` and `endpoint.claim` raise.
    """
    endpoint = await _endpoint(port)
    launch = await launch_plan(options, endpoint)
    built_in = launch.build.name == BUILT_IN
    recipe = Recipe.of(
        launch.command.arguments,
        port=endpoint.port,
        name=options.model.stem,
        backend=backend or await _backend(built_in=built_in),
    )
    return Found(replace(recipe, environment=dict(launch.build.environment), api_key=endpoint.api_key))


async def of_plan(wish: Wish, machine: MachineWish, extra: Sequence[str], *, port: int | None) -> Found:
    """Return the recipe of the first plan for a model of the catalogue.

    Raises NothingFits when there is no plan, and what making plans raises.
    """
    from launcher import planner
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.plan import Status, make_plans

    situation = await planner.situation(machine)
    plans = make_plans(load_catalogue(), situation, wish)
    if not plans or plans[0].status is Status.TOO_BIG:
        raise NothingFits(
            f"No plan for {wish.model} fits this machine.", f"`mtp-launcher plan --model {wish.model}` says why."
        )
    plan = plans[0]
    build = None if situation.described else await planner.installed_build()
    endpoint = await _endpoint(port)
    argv = planner.arguments(plan, build, (*_welcome(build), *extra), rpc=machine.rpc)
    recipe = Recipe.of(argv, port=endpoint.port, name=plan.entry.id, backend=situation.backend)
    recipe = replace(recipe, api_key=endpoint.api_key, environment=dict(build.environment) if build else {})
    if planner.downloaded(plan):
        return Found(recipe)
    return Found(recipe, plan.file.file, f"mtp-launcher pull {plan.entry.id}:{plan.file.quant}")


def quant_of(model: str) -> tuple[str, str | None] | None:
    """Return the id and the quantisation that a model of the catalogue is named by; None for what is no such name.

    Raises ModelUnknown when it nearly is one.
    """
    from launcher.models.catalogue_load import load_catalogue
    from launcher.models.wanted import named_model

    try:
        named = named_model(model, load_catalogue())
    except ModelUnknown as error:
        if not error.facts.get("near", True):
            return None
        raise
    return (named[0].id, named[1].quant if named[1] else None) if named and model != DEMO else None


async def _endpoint(port: int | None) -> Endpoint:
    taken = frozenset(entry.port for entry in await asyncio.to_thread(registry.running))
    return await asyncio.to_thread(lambda: claim(port, taken=taken))


async def _backend(*, built_in: bool) -> str:
    """Return what computes on this machine: what a plan would take."""
    if built_in:
        return "cpu"
    from launcher import planner

    return (await planner.situation(planner.MachineWish())).backend


def _welcome(build: Build | None) -> list[str]:
    if build is None:
        return list(_WELCOME)
    flags = [flag for flag in _WELCOME if flag.startswith("--") and flag in build.flags]
    return [word for flag in flags for word in ((flag, "localhost") if flag == "--cors-origins" else (flag,))]
