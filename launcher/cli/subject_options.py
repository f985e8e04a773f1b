"""What `curve` and `endure` share: which model, with which settings, what electricity costs, where it is kept."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.cli.layout import filled
from launcher.cli.output import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.sweeps import Subject
    from launcher.tuning.cost import Cost, Prices
    from launcher.tuning.records import Run

USUAL_WORKLOAD = "code"


def add_subject_options(parser: argparse.ArgumentParser) -> None:
    """Declare which model is measured, and how it is served."""
    parser.add_argument(
        "model", nargs="?", metavar="ID[:QUANT] | FILE", help='a model that is here, or "demo" (default: the last one)'
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        dest="changes",
        help="serve it with this setting: ctx, slots, threads, kv, ubatch, n-cpu-moe or extra; may be given more than"
        " once",
    )
    parser.add_argument(
        "--no-preset", action="store_true", help="do not take the settings that a tune of this machine found best"
    )
    parser.add_argument(
        "--engine", type=Path, metavar="PATH", help="a llama-server, an installed engine, or built-in (default: in use)"
    )
    parser.add_argument(
        "--workload",
        metavar="W",
        default=USUAL_WORKLOAD,
        help=f"whose first prompt is asked: see `bench --list`, or a file of your own (default {USUAL_WORKLOAD})",
    )


def add_price_options(parser: argparse.ArgumentParser) -> None:
    """Declare what electricity costs, and the same elsewhere."""
    prices = parser.add_argument_group("cost", "Prices have your currency.")
    prices.add_argument("--price-kwh", type=finite, metavar="P", help="price of a kilowatt-hour, such as 0.30")
    prices.add_argument("--cloud-price", type=finite, metavar="P", help="price of a million reply tokens elsewhere")
    prices.add_argument(
        "--watts", type=finite, metavar="W", help="power of the computer by a meter (default: the GPU's own sensor)"
    )


def prices_of(options: argparse.Namespace) -> Prices | None:
    """Return the prices, None where none is given. Raises BadOption for what is none."""
    from launcher.base.errors import BadOption
    from launcher.tuning.cost import Prices

    if options.price_kwh is None:
        if options.cloud_price is not None or options.watts is not None:
            raise BadOption("--cloud-price and --watts are for the cost of electricity.", "Add --price-kwh.")
        return None
    return Prices(options.price_kwh, options.cloud_price, options.watts)


def cost_words(groups: Sequence[tuple[Sequence[Run], float]], prices: Prices | None) -> tuple[Cost | None, str]:
    """Return what replies cost and the sentence about it: why it is not known, or nothing where no price is given."""
    from launcher.tuning.cost import Cost, cost_of

    if prices is None:
        return None, ""
    found = cost_of(groups, prices)
    return (found, found.sentence) if isinstance(found, Cost) else (None, found)


async def subject_for(options: argparse.Namespace, drafts: Sequence[int]) -> Subject:
    """Return the model to measure, served as `serve` would, with those settings over that which are given.

    Where another server runs beside it, that is said. Raises TuneUnderWay while a tune is made.
    """
    from launcher import app
    from launcher.base.errors import BadOption
    from launcher.engine import registry
    from launcher.engine.build import BUILT_IN
    from launcher.engine.last import last
    from launcher.engine.launch import ServeOptions
    from launcher.engine.settings import OPTIONS, parse_settings, remembered, with_settings
    from launcher.machine_presets import find_preset, settings_kept, settings_used
    from launcher.sweeps import subject_of
    from launcher.tuner_kept import check_no_tune

    await asyncio.to_thread(check_no_tune)
    asked = parse_settings(dict(options.changes))
    if "draft" in asked:
        raise BadOption("Here the draft length is no setting but what is compared.", "Say --draft.")
    named = options.model or await asyncio.to_thread(last)
    built_in = str(options.engine) == BUILT_IN
    engine = None if built_in else options.engine
    found = app.options_for(named, lambda path: ServeOptions(model=path, engine=engine, built_in=built_in), draft=None)
    kept = await asyncio.to_thread(remembered, found.model)
    preset = None if options.no_preset else await find_preset(found)
    used = settings_used(preset, asked, kept)
    ours = {name: value for name, value in used.items() if name in OPTIONS and not isinstance(value, float)}
    if preset is not None and not options.json:
        print(filled(preset.line, "Preset: "), file=sys.stderr, flush=True)
    for entry in await asyncio.to_thread(registry.running):
        beside = f"A server runs at {entry.url} ({one_line(entry.model)}): it takes memory, and speed while it replies."
        print(filled(beside), file=sys.stderr, flush=True)
    served = with_settings(with_settings(with_settings(found, settings_kept(preset, asked, kept)), ours), asked)
    further = {name: value for name, value in used.items() if name not in OPTIONS}
    return await subject_of(served, named, drafts, further)


def kept_words(kept: str, *, complete: bool) -> str:
    """Return where a measurement is to be found, and whether it is all of it."""
    interrupted = "" if complete else "Interrupted: this is what was measured until then. "
    return f"{interrupted}Kept as {kept}: `mtp-launcher history show {kept}`."


def significant(told: Any) -> Any:  # noqa: ANN401 -- any JSON value
    """Return JSON with six digits of each figure; more mean nothing."""
    if isinstance(told, float):
        return float(f"{told:.6g}")
    if isinstance(told, dict):
        return {name: significant(value) for name, value in told.items()}
    return [significant(value) for value in told] if isinstance(told, list | tuple) else told


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f'"{text}" is not KEY=VALUE, such as ctx=64K')
    return name.strip(), value.strip()
