"""`mtp-launcher models alias` and `models keep`: names for models, and models that stay loaded."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.app.serving.model_names import ModelAlias, add_alias, keep_model, read_model_names, remove_alias
from launcher.app.serving.servable_models import is_model_here
from launcher.base.errors import BadOption
from launcher.cli.layout import format_table
from launcher.cli.output import Note, Result

_MOST_SYSTEM_BYTES = 1 << 20
_HELP = "Write `alias`, `alias add NAME=MODEL` or `alias remove NAME`."


async def run_alias(options: argparse.Namespace) -> Result:
    """List the aliases, or add or remove some."""
    action, *names = options.which or ["list"]
    changed: list[str] = []
    lines: list[str] = []
    if action not in ("list", "add", "remove") or (action == "list") == bool(names):
        raise BadOption("What should be done with the aliases?", _HELP)
    if action != "add" and (options.changes or options.system):
        raise BadOption("--set and --system belong to `alias add`.", _HELP)
    for name in names:
        if action == "remove":
            if not await asyncio.to_thread(remove_alias, name):
                raise BadOption(f"There is no alias {name}.", "`mtp-launcher models alias` lists them.")
            lines.append(f"{name} was removed.")
        else:
            alias_name, _, model = name.partition("=")
            if not model:
                raise BadOption(f"{name} names no model.", _HELP)
            system = await asyncio.to_thread(_read_system_text, options.system) if options.system else ""
            alias = ModelAlias(name=alias_name, model=model, settings=dict(options.changes), system=system)
            is_here = await asyncio.to_thread(is_model_here, model)
            await asyncio.to_thread(add_alias, alias)
            lines += [f"{alias_name} now stands for {model}.", *([] if is_here else [_absent_note(model)])]
        changed.append(name.partition("=")[0])
    aliases = read_model_names().aliases
    data = {"aliases": [each.model_dump() for each in aliases], "changed": changed}
    return Result(data, lines or _format_aliases(aliases))


async def run_keep(options: argparse.Namespace) -> Result:
    """List the models that stay loaded, or add or remove some."""
    action, *names = options.which or ["list"]
    if action not in ("list", "add", "remove") or (action == "list") == bool(names):
        raise BadOption("Which models should stay loaded?", "Write `keep`, `keep add MODEL` or `keep remove MODEL`.")
    lines: list[str] = []
    kept = action == "add"
    for name in names:
        is_here = not kept or await asyncio.to_thread(is_model_here, name)
        changed = await asyncio.to_thread(keep_model, name, kept=kept)
        if not changed and not kept:
            raise BadOption(f"{name} is not in the list.", "`mtp-launcher models keep` shows it.")
        lines.append(f"{name} stays loaded once it has been loaded." if kept else f"{name} may be unloaded.")
        lines += [] if is_here else [_absent_note(name)]
    kept_names = read_model_names().kept
    shown = lines or kept_names or ["No model is kept. `mtp-launcher models keep add MODEL` adds one."]
    return Result({"kept": kept_names}, shown)


def _read_system_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_SYSTEM_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadOption(f"{path} cannot be read: {reason}.", "--system takes a text file.") from None


def _absent_note(model: str) -> Note:
    return Note(f"{model} is not on this computer yet: `mtp-launcher pull {model}` downloads it.")


def _format_aliases(aliases: Sequence[ModelAlias]) -> Iterator[str]:
    if not aliases:
        yield "There are no aliases. `mtp-launcher models alias add NAME=MODEL` adds one."
        return
    rows = [("NAME", "MODEL", "SETTINGS", "SYSTEM TEXT")]
    for each in aliases:
        settings = " ".join(f"{name}={value}" for name, value in each.settings.items())
        rows.append((each.name, each.model, settings, f"{len(each.system)} characters" if each.system else ""))
    yield from format_table(rows, indent="")
