"""`mtp-launcher preset`: list, export, import and delete the tuned settings of models."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.app.planning.tuned_match import find_outdated_matches
from launcher.base.errors import BadOption
from launcher.base.text import one_line
from launcher.cli.actions import write_new_file
from launcher.cli.layout import format_path, format_table, wrap_text
from launcher.cli.output import Result
from launcher.engine.serve_options import ServeOptions
from launcher.machine.machine import read_machine
from launcher.tuning.history_environment import join_clauses
from launcher.tuning.report import settings_line
from launcher.tuning.tuned_settings import (
    delete_tuned_settings,
    find_tuned_settings,
    load_tuned_settings,
    load_tuned_settings_by_name,
    read_tuned_settings,
    save_tuned_settings,
    tuned_settings_data,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.tuning.history_environment import ModelFacts
    from launcher.tuning.tuned_settings import TunedSettings


async def run(options: argparse.Namespace) -> Result:
    """Run the action `options.action`."""
    actions = {"list": _list_tuned, "export": _export_tuned, "import": _import_tuned, "forget": _forget_tuned}
    return await actions[options.action](options)


async def _list_tuned(_options: argparse.Namespace) -> Result:
    all_tuned = load_tuned_settings()
    machine = await asyncio.to_thread(read_machine)
    changed = {match.tuned.model: match.changed for match in await find_outdated_matches(machine)}
    data = [{**tuned_settings_data(each), "changed": list(changed.get(each.model, ()))} for each in all_tuned]
    return Result({"presets": data}, _format_tuned(all_tuned, changed))


def _format_tuned(all_tuned: Sequence[TunedSettings], changed: Mapping[ModelFacts, Sequence[str]]) -> Iterator[str]:
    """Yield the lines of `preset list`. `changed` are the conditions that changed since each tune."""
    if not all_tuned:
        yield "There are no tuned settings yet. `mtp-launcher tune --apply` saves some."
    for tuned in all_tuned:
        yield one_line(tuned.model.label_with_quant)
        yield wrap_text(tuned.summary, "  ")
        if tuned.evidence.sentence:
            yield wrap_text(tuned.evidence.sentence, "  ")
        yield from format_table([("state", _describe_state(tuned, changed.get(tuned.model, ())))])


def _describe_state(tuned: TunedSettings, changed: Sequence[str]) -> str:
    if not tuned.verified:
        return "imported, and not used until measurements here confirm them"
    if changed:
        return f"measured under other conditions: {join_clauses(changed)}. `mtp-launcher tune` measures again."
    return "measured here under the present conditions"


async def _export_tuned(options: argparse.Namespace) -> Result:
    tuned = await asyncio.to_thread(load_tuned_settings_by_name, options.model)
    await asyncio.to_thread(write_new_file, options.to, tuned.export_text())
    line = f"Wrote the tuned settings for {one_line(tuned.model.label_with_quant)} to {format_path(options.to)}."
    return Result({"model": tuned.model.label_with_quant, "path": str(options.to)}, [line])


async def _import_tuned(options: argparse.Namespace) -> Result:
    from launcher.app.measuring.session_bench import options_with_settings

    tuned = await asyncio.to_thread(read_tuned_settings, options.file)
    # Rejects unknown settings and invalid values. The model is not read, so any path will do.
    options_with_settings(ServeOptions(Path("model.gguf")), tuned.settings)
    existing = await asyncio.to_thread(find_tuned_settings, tuned.model)
    if existing is not None and existing.verified:
        raise BadOption(
            f"There are tuned settings for {tuned.model.label_with_quant} already, and they were measured here.",
            "Delete them first: `mtp-launcher preset forget`.",
        )
    await asyncio.to_thread(save_tuned_settings, tuned)
    text = (
        f"Imported for {one_line(tuned.model.label_with_quant)}: {one_line(settings_line(tuned.settings))}."
        " These settings are used once `mtp-launcher tune` confirms them here."
    )
    data = {"model": tuned.model.label_with_quant, "settings": tuned.settings, "verified": False}
    return Result(data, [wrap_text(text)])


async def _forget_tuned(options: argparse.Namespace) -> Result:
    tuned = await asyncio.to_thread(load_tuned_settings_by_name, options.model)
    await asyncio.to_thread(delete_tuned_settings, tuned)
    return Result(
        {"model": tuned.model.label_with_quant},
        [f"Deleted the tuned settings for {one_line(tuned.model.label_with_quant)}."],
    )
