"""What `bench`, `tune`, `curve` and `endure` share: which model, with which settings, what electricity costs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.cli.layout import filled
from launcher.cli.output import finite
from launcher.cli.quantities import pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.engine.launch import ServeOptions
    from launcher.engine.settings import Value as Setting
    from launcher.sweeps import Subject
    from launcher.tuning.cost import Cost, Prices
    from launcher.tuning.records import Run, Value

USUAL_WORKLOAD = "code"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare which model is measured."""
    parser.add_argument(
        "model", nargs="?", metavar="ID[:QUANT] | FILE", help='a model that is here, or "demo" (default: the last one)'
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Declare what serves it."""
    parser.add_argument(
        "--engine", type=Path, metavar="PATH", help="a llama-server, an installed engine, or built-in (default: in use)"
    )


def add_changes(parser: argparse.ArgumentParser, about: str) -> None:
    """Declare settings that are given as KEY=VALUE."""
    parser.add_argument(
        "--set", action="append", default=[], type=pair, metavar="KEY=VALUE", dest="changes", help=about
    )


def add_settings(parser: argparse.ArgumentParser, names: str) -> None:
    """Declare with which settings it is served, and whether the preset's are among them."""
    add_changes(
        parser,
        f"serve it with this setting: {names}, slots, threads, kv, ubatch, n-cpu-moe, p-min, draft-sampling, ngram or"
        " extra; may be given more than once",
    )
    parser.add_argument(
        "--no-preset", action="store_true", help="do not take the settings that a tune of this machine found best"
    )


def add_subject_options(parser: argparse.ArgumentParser) -> None:
    """Declare what `curve` and `endure` measure, and how that is served."""
    add_model(parser)
    add_settings(parser, "ctx")
    add_engine(parser)
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


def with_engine(options: argparse.Namespace, model: Path) -> ServeOptions:
    """Return how a model's file is served by the engine that is asked for."""
    from launcher.engine.build import BUILT_IN
    from launcher.engine.launch import ServeOptions

    built_in = str(options.engine) == BUILT_IN
    return ServeOptions(model=model, engine=None if built_in else options.engine, built_in=built_in)


async def as_served(options: argparse.Namespace) -> tuple[str, ServeOptions, dict[str, Value]]:
    """Return the model as it is named, how `serve` would serve it with what --set says over that, and what is no option
    of `serve`.

    What is used of this machine's preset is said on standard error.
    """
    from launcher import app
    from launcher.engine.last import last
    from launcher.engine.settings import OPTIONS, remembered, with_settings
    from launcher.machine_presets import find_preset, settings_kept, settings_used

    asked, further = _split(options.changes)
    named = options.model or await asyncio.to_thread(last)
    found = app.options_for(named, lambda path: with_engine(options, path), draft=None)
    kept = await asyncio.to_thread(remembered, found.model)
    preset = await find_preset(found)
    used = {} if options.no_preset else settings_used(preset, asked, kept)
    if preset is not None and not (options.no_preset or options.json):
        print(filled(preset.line, "Preset: "), file=sys.stderr, flush=True)
    ours = {name: value for name, value in used.items() if name in OPTIONS and not isinstance(value, float)}
    for settings in (settings_kept(preset, asked, kept), ours, asked):
        found = with_settings(found, settings)
    return named, found, {**{name: value for name, value in used.items() if name not in OPTIONS}, **further}


def _split(changes: Sequence[tuple[str, str]]) -> tuple[dict[str, Setting], dict[str, Value]]:
    """Return settings that are options of `serve`, and those that are further arguments of the engine."""
    from launcher.bench import ARGUMENTS, NGRAM
    from launcher.engine.settings import parse_settings

    written = {name.strip().lower().lstrip("-").replace("-", "_"): text for name, text in changes}
    further = {name: written.pop(name) for name in (*ARGUMENTS, NGRAM) if name in written}
    return parse_settings(written, also=(*ARGUMENTS, NGRAM)), {name: _number(text) for name, text in further.items()}


def _number(text: str) -> float | str:
    try:
        return finite(text)
    except argparse.ArgumentTypeError:
        return text


async def subject_for(options: argparse.Namespace, drafts: Sequence[int]) -> Subject:
    """Return the model to measure, served as `serve` would, with those settings over that which are given.

    Where another server runs beside it, that is said. Raises TuneUnderWay while a tune is made.
    """
    from launcher.base.errors import BadOption
    from launcher.engine import registry
    from launcher.sweeps import subject_of
    from launcher.tuner_kept import check_no_tune

    await asyncio.to_thread(check_no_tune)
    if "draft" in _split(options.changes)[0]:
        raise BadOption("Here the draft length is no setting but what is compared.", "Say --draft.")
    named, served, further = await as_served(options)
    for entry in await asyncio.to_thread(registry.running):
        beside = f"A server runs at {entry.url} ({one_line(entry.model)}): it takes memory, and speed while it replies."
        print(filled(beside), file=sys.stderr, flush=True)
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
