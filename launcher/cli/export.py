"""`mtp-launcher export KIND`: export a server as text for other tools."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.app.models import recipes
from launcher.app.planning.start_settings import resolve_start
from launcher.base.errors import BadOption, FileInTheWay, TargetUnusable
from launcher.base.files import write_atomically
from launcher.base.paths import expand_user
from launcher.cli.given_options import make_serve_options, read_machine_description, read_plan_criteria
from launcher.cli.options.export import list_for_shells
from launcher.cli.output import Note, Result
from launcher.export.formats import FORMATS, ExportFormat, Subject, render_export
from launcher.models.server_settings import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.app.models.recipes import FoundRecipe
    from launcher.engine.serve_options import ServeOptions

_PLAN_OPTIONS = ("vision", "gpu", "gpu_memory", "unified_memory", "free_memory", "headless", "host_memory", "wake")
"""Options that choose among the plans of a catalogue model."""


async def run(options: argparse.Namespace) -> Result:
    """Return or write the exported text."""
    chosen = FORMATS[options.kind]
    if options.shell is not None and not chosen.for_shells:
        raise BadOption(f"--shell does not apply to {chosen.name}.", f"It is for {', '.join(list_for_shells())}.")
    if options.peers is not None and not chosen.takes_peers:
        names = [each.name for each in FORMATS.values() if each.takes_peers]
        raise BadOption(f"--peers does not apply to {chosen.name}.", f"It is for {', '.join(names)}.")
    if chosen.subject is Subject.GATEWAYS or options.peers is not None:
        return await _export_gateways(chosen, options)
    if chosen.subject is Subject.LIBRARY and options.model is None and options.url is None:
        return await _export_library(chosen, options)
    found = await _find_recipe(options)
    recipe = found.recipe if options.with_key else replace(found.recipe, api_key=None)
    text = render_export(chosen, (recipe,) if chosen.subject is Subject.LIBRARY else recipe, shell=options.shell)
    lines = _write_text(chosen, text, options)
    if found.missing:
        lines.append(Note(f"{found.missing} is not on this machine yet: `{found.command}` downloads it."))
    facts = {"url": recipe.url, "model": recipe.name, "missing": found.missing or None}
    return _make_result(text, lines, options, **facts)


async def _export_library(chosen: ExportFormat, options: argparse.Namespace) -> Result:
    """Export all models of this computer."""
    _check_no_settings(options, but=("port",))
    library = await recipes.recipes_of_library(port=options.port, backend=options.backend)
    exported = library.recipes if options.with_key else tuple(replace(each, api_key=None) for each in library.recipes)
    text = render_export(chosen, exported)
    lines = _write_text(chosen, text, options)
    lines += [Note(f"Left out {name}: {error.title}") for name, error in library.left_out]
    left_out = [{"model": name, "error": error} for name, error in library.left_out]
    models = [recipe.name for recipe in exported]
    return _make_result(text, lines, options, url=exported[0].url, models=models, left_out=left_out)


async def _export_gateways(chosen: ExportFormat, options: argparse.Namespace) -> Result:
    """Export several gateways, to be put behind another program."""
    _check_no_settings(options)
    for name in ("model", "url", "backend"):
        if getattr(options, name) is not None:
            raise BadOption(f"--{name} does not apply here.", "--peers names the gateways.")
    urls = [url for url in (options.peers or "").split(",") if url]
    gateways = await recipes.find_gateways(urls, os.environ)
    exported = gateways if options.with_key else tuple(replace(each, api_key=None) for each in gateways)
    text = render_export(chosen, exported, peers=True)
    lines = _write_text(chosen, text, options)
    described = [
        {"url": each.url, "key_variable": each.key_variable, "models": [model.name for model in each.models]}
        for each in exported
    ]
    return _make_result(text, lines, options, gateways=described)


def _write_text(chosen: ExportFormat, text: str, options: argparse.Namespace) -> list[str]:
    """Write the text to the file that the options name, if any; return the lines to print."""
    lines = [text.removesuffix("\n")]
    if options.out is not None:
        readers = 0o600 if options.with_key else 0o644  # a file with the key is for its owner only
        execute = 0o111 if chosen.executable else 0
        mode = readers | (execute & (readers >> 2))  # who may read a script may execute it
        _write_export(options.out, text, mode=mode, force=options.force)
        lines = [f"Wrote {options.out}."]
    if options.with_key:
        lines.append(Note("The text contains the API key: anyone who reads it can use the server."))
    return lines


def _make_result(text: str, lines: list[str], options: argparse.Namespace, **facts: object) -> Result:
    unknown: dict[str, object] = {"url": None, "model": None, "missing": None}
    data = {"kind": options.kind, "text": text, "with_key": options.with_key, "file": options.out}
    return Result(data | unknown | facts, lines)


async def _find_recipe(options: argparse.Namespace) -> FoundRecipe:
    if options.model is None:
        _check_no_settings(options)
        return await recipes.recipe_of_running(options.url, backend=options.backend)
    if options.url is not None:
        raise BadOption("--model and --url cannot be combined.", "--url names a running server.")
    criteria = read_plan_criteria(options)
    catalogue_name = recipes.parse_catalogue_name(options.model)
    if catalogue_name is not None and options.engine is None:
        model, quant = catalogue_name
        criteria = replace(criteria, model=model, quant=options.quant or quant)
        return await recipes.recipe_of_plan(
            criteria, read_machine_description(options), options.extra, port=options.port
        )
    _check_no_plan_options(options, is_file=catalogue_name is None)
    model = options.model
    if catalogue_name is not None and options.quant is not None:
        model = f"{catalogue_name[0]}:{options.quant}"

    def make_options(path: Path) -> ServeOptions:
        return replace(make_serve_options(options, path), no_gpu=options.backend == "cpu")

    start = await resolve_start(model, criteria.chosen(), make_options, intent=options.intent)
    return await recipes.recipe_of_options(start.options, port=options.port, backend=options.backend)


def _check_no_settings(options: argparse.Namespace, *, but: tuple[str, ...] = ()) -> None:
    """Raise BadOption for settings without a model: a running server is exported with its own."""
    names = (*ROWS, "quant", "engine", "port", *_PLAN_OPTIONS)
    given = _find_given_option(options, (name for name in names if name not in but))
    if given or options.extra:
        subject = given or "What follows --"
        raise BadOption(f"{subject} needs --model: a running server keeps its settings.", "Add --model.")


def _check_no_plan_options(options: argparse.Namespace, *, is_file: bool) -> None:
    """Raise BadOption for options that choose among plans: a named model file or engine leaves no choice."""
    given = _find_given_option(options, ("quant", *_PLAN_OPTIONS) if is_file else _PLAN_OPTIONS)
    if given and is_file:
        hint = "It chooses among the catalogue's models: name one with --model, without --engine."
        raise BadOption(f"{given} does not apply to a model file.", hint)
    if given:
        raise BadOption(f"{given} and --engine cannot be combined.", "Leave one of them out.")


def _find_given_option(options: argparse.Namespace, names: Iterable[str]) -> str | None:
    """Return the first of the options that the user gave, as it is written; None if none was given."""
    given = (name for name in names if getattr(options, name) not in (None, False))
    return next((f"--{name.replace('_', '-')}" for name in given), None)


def _write_export(path: Path, text: str, *, mode: int, force: bool) -> None:
    path = expand_user(path)
    if not path.parent.is_dir():  # write_atomically would create a misspelt folder, and nobody would find the file
        raise TargetUnusable(f"There is no folder {path.parent}.", "Create it first, or name another.", path=str(path))
    if path.exists() and not force:
        raise FileInTheWay(f"{path} already exists.", "Name another file, or add --force.", path=str(path))
    write_atomically(path, text.encode(), mode=mode)
