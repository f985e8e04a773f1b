"""`mtp-launcher preset`: list, export, import and delete the tuned settings of models."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.errors import BadOption
from launcher.base.text import one_line
from launcher.cli.actions import add_actions, add_output_file, write_new_file
from launcher.cli.layout import format_path, format_table, wrap_text
from launcher.cli.output import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.tuning.history_environment import ModelFacts
    from launcher.tuning.machine_preset import MachinePreset

_ACTIONS = {
    "list": "list the presets, and whether they still match this machine",
    "export": "write a preset into a .json file for others, without personal data",
    "import": "import a preset of another machine; it is used once measurements here confirm it",
    "forget": "delete a preset",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.epilog = (
        "`mtp-launcher tune --apply` makes presets. serve, plan and up use them, unless --no-preset is given."
    )
    actions = add_actions(parser, _ACTIONS)
    for name in ("export", "forget"):
        actions[name].add_argument("model", metavar="MODEL", help="a part of its name or quantisation")
    add_output_file(actions["export"])
    actions["import"].add_argument("file", type=Path, metavar="FILE", help="a file of `preset export`")


async def run(options: argparse.Namespace) -> Result:
    """Run the action `options.action`."""
    actions = {"list": _list_presets, "export": _export_preset, "import": _import_preset, "forget": _forget_preset}
    return await actions[options.action](options)


async def _list_presets(_options: argparse.Namespace) -> Result:
    from launcher.app.machine_presets import outdated_presets
    from launcher.machine.machine import read_machine
    from launcher.tuning.machine_preset import load_presets, preset_data

    presets = load_presets()
    machine = await asyncio.to_thread(read_machine)
    changed = {match.preset.model: match.changed for match in await outdated_presets(machine)}
    data = [{**preset_data(each), "changed": list(changed.get(each.model, ()))} for each in presets]
    return Result({"presets": data}, _format_presets(presets, changed))


def _format_presets(presets: Sequence[MachinePreset], changed: Mapping[ModelFacts, Sequence[str]]) -> Iterator[str]:
    """Yield the presets; `changed` are the conditions that changed since each was measured."""
    if not presets:
        yield "There are no presets yet. `mtp-launcher tune --apply` makes one."
    for preset in presets:
        yield one_line(preset.model.label_with_quant)
        yield wrap_text(preset.summary, "  ")
        yield from format_table([("state", _describe_state(preset, changed.get(preset.model, ())))])


def _describe_state(preset: MachinePreset, changed: Sequence[str]) -> str:
    from launcher.tuning.history_environment import join_clauses

    if not preset.verified:
        return "imported, and not used until measurements here confirm it"
    if changed:
        return f"measured under other conditions: {join_clauses(changed)}. `mtp-launcher tune` measures again."
    return "measured here under the present conditions"


async def _export_preset(options: argparse.Namespace) -> Result:
    from launcher.tuning.machine_preset import load_preset_by_name

    preset = await asyncio.to_thread(load_preset_by_name, options.model)
    await asyncio.to_thread(write_new_file, options.to, preset.export_text())
    line = f"Wrote the preset for {one_line(preset.model.label_with_quant)} to {format_path(options.to)}."
    return Result({"model": preset.model.label_with_quant, "path": str(options.to)}, [line])


async def _import_preset(options: argparse.Namespace) -> Result:
    from launcher.app.session_bench import options_with_settings
    from launcher.engine.serve_options import ServeOptions
    from launcher.tuning.machine_preset import preset_for_model, read_preset, save_preset
    from launcher.tuning.report import settings_line

    preset = await asyncio.to_thread(read_preset, options.file)
    options_with_settings(ServeOptions(options.file), preset.settings)  # rejects unknown settings
    existing = await asyncio.to_thread(preset_for_model, preset.model)
    if existing is not None and existing.verified:
        raise BadOption(
            f"There is a preset for {preset.model.label_with_quant} already, and it was measured here.",
            "Delete it first: `mtp-launcher preset forget`.",
        )
    await asyncio.to_thread(save_preset, preset)
    text = (
        f"Imported for {one_line(preset.model.label_with_quant)}: {one_line(settings_line(preset.settings))}."
        " It is used once measurements here confirm it: `mtp-launcher tune` makes them."
    )
    data = {"model": preset.model.label_with_quant, "settings": preset.settings, "verified": False}
    return Result(data, [wrap_text(text)])


async def _forget_preset(options: argparse.Namespace) -> Result:
    from launcher.tuning.machine_preset import delete_preset, load_preset_by_name

    preset = await asyncio.to_thread(load_preset_by_name, options.model)
    await asyncio.to_thread(delete_preset, preset)
    return Result(
        {"model": preset.model.label_with_quant}, [f"Forgot the preset for {one_line(preset.model.label_with_quant)}."]
    )
