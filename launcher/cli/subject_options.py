"""Options and steps shared by `bench`, `tune`, `curve` and `endure`. The model that they measure is the subject."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base.codec import to_json
from launcher.base.text import one_line
from launcher.cli.layout import wrap_text
from launcher.cli.machine_options import add_engine_option, make_serve_options
from launcher.cli.output import Note, Result
from launcher.cli.quantities import parse_number, parse_pair
from launcher.models.server_settings import ROWS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from launcher.app.measuring.sweeps import OnBegun, SweepModel
    from launcher.app.serving.session import ServerSession
    from launcher.cli.progress import Reporter
    from launcher.engine.serve_options import ServeOptions
    from launcher.tuning.cost import Cost, Prices
    from launcher.tuning.records import Run

_DEFAULT_WORKLOAD = "code"
"""The name as in tuning.workloads, which is not imported, because that would slow down --help."""


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the argument for the model to measure."""
    parser.add_argument(
        "model", nargs="?", metavar="ID[:QUANT] | FILE", help='a downloaded model, or "demo" (default: the last one)'
    )


def add_set_option(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Declare the option for settings given as KEY=VALUE."""
    parser.add_argument(
        "--set", action="append", default=[], type=_parse_setting, metavar="KEY=VALUE", dest="changes", help=help_text
    )


def _parse_setting(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE. Files in arguments for llama-server get absolute names, because it runs in another folder."""
    name, value = parse_pair(text)
    if name == "extra":
        from launcher.base.errors import BadOption
        from launcher.engine.serve_options import name_files_absolutely
        from launcher.engine.settings import join_extra, split_extra

        with suppress(BadOption):  # an unclosed quote is refused where the setting is used
            value = join_extra(name_files_absolutely(split_extra(value), Path.cwd()))
    return name, value


def add_start_options(parser: argparse.ArgumentParser, *without: str) -> None:
    """Declare the options for server settings, except those in `without`, and for ignoring tuned settings."""
    names = ", ".join(row.spelling for row in ROWS.values() if row.name not in without)
    add_set_option(parser, f"serve it with this setting: {names} or extra; may be given more than once")
    parser.add_argument("--no-preset", action="store_true", help="ignore tuned settings")


def add_subject_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `curve` and `endure` for the model and the prompt to measure with."""
    add_model_argument(parser)
    add_start_options(parser, "draft")
    add_engine_option(parser)
    parser.add_argument(
        "--workload",
        metavar="W",
        default=_DEFAULT_WORKLOAD,
        help=f"measure with its first prompt: see `bench --list`, or a file of your own (default: {_DEFAULT_WORKLOAD})",
    )


def add_price_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options for electricity and cloud prices."""
    prices = parser.add_argument_group("cost", "Prices are in your currency.")
    prices.add_argument("--price-kwh", type=parse_number, metavar="P", help="price of a kilowatt-hour, such as 0.30")
    prices.add_argument(
        "--cloud-price", type=parse_number, metavar="P", help="a cloud's price of a million reply tokens, to compare"
    )
    prices.add_argument(
        "--watts",
        type=parse_number,
        metavar="W",
        help="power of the whole computer, read from a meter (default: the GPU's own sensor)",
    )


def add_chart_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option for files to draw the result into."""
    parser.add_argument(
        "--chart",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="draw the result: .png, .svg, or .html as a page of its own; may be given more than once",
    )


async def draw_charts(measurement_id: str, files: Sequence[Path]) -> str:
    """Draw a measurement of the history into files, and return a sentence about it."""
    from launcher.app.measuring.chart_files import write_charts
    from launcher.cli.layout import format_path
    from launcher.tuning.history import History, load_session

    with History() as history:
        session = load_session(history, measurement_id)
    await write_charts(session, files)
    return f"Chart saved: {', '.join(map(format_path, files))}."


def read_prices(options: argparse.Namespace) -> Prices | None:
    """Return the prices in the options, None if there are none. Raises BadOption for invalid ones."""
    from launcher.base.errors import BadOption
    from launcher.tuning.cost import Prices

    if options.price_kwh is None:
        if options.cloud_price is not None or options.watts is not None:
            raise BadOption("--cloud-price and --watts are for the cost of electricity.", "Add --price-kwh.")
        return None
    return Prices(options.price_kwh, options.cloud_price, options.watts)


def compute_cost(groups: Sequence[tuple[Sequence[Run], float]], prices: Prices | None) -> tuple[Cost | None, str]:
    """Return the cost of replies, None if it is unknown, and a sentence about it or the reason; "" without prices.

    Each group is the replies that were generated at the same time, and the seconds that they took together.
    """
    from launcher.tuning.cost import Cost, calculate_cost

    if prices is None:
        return None, ""
    cost = calculate_cost(groups, prices)
    return (cost, cost.sentence) if isinstance(cost, Cost) else (None, cost)


def cost_of_runs(runs: Sequence[Run], prices: Prices | None) -> tuple[dict[str, Any], str]:
    """Return the cost of replies that were generated one after another, as JSON and as a sentence; empty without
    prices.
    """
    cost, text = compute_cost([((run,), run.wall_s) for run in runs], prices)
    return {} if prices is None else {"cost": to_json(cost), "cost_said": text}, text


async def resolve_model_and_options(options: argparse.Namespace, reporter: Reporter) -> tuple[str, ServeOptions]:
    """Return the model's name, and the options with which `serve` would start it, changed by --set.

    Shows a note if tuned settings are used.
    """
    from launcher.app.planning.start_settings import resolve_start
    from launcher.engine.server.last_start import require_last_model
    from launcher.engine.settings import EXTRA, change_settings, parse_settings

    settings = parse_settings(dict(options.changes))
    model = options.model or await asyncio.to_thread(require_last_model)
    extra = settings.pop(EXTRA, None)

    def make_options(path: Path) -> ServeOptions:
        serve_options = make_serve_options(options, path)
        return serve_options if extra is None else change_settings(serve_options, {EXTRA: extra})

    start = await resolve_start(model, settings, make_options, use_tuned=not options.no_preset)
    if start.tuned_line:
        reporter.show_event(None, [Note(wrap_text(start.tuned_line, "Tuned settings: "))])
    return model, start.options


async def prepare_subject(options: argparse.Namespace, drafts: Sequence[int], reporter: Reporter) -> SweepModel:
    """Return the model to measure, with the options of `resolve_model_and_options` and draft lengths.

    Shows a note about each running server. Raises TuneUnderWay while a tune runs, BadOption for --set draft.
    """
    from launcher.app.measuring.saved_tunes import check_no_tune
    from launcher.app.measuring.sweeps import prepare_model
    from launcher.base.errors import BadOption
    from launcher.engine.server import registry
    from launcher.engine.settings import parse_settings

    await asyncio.to_thread(check_no_tune)
    if "draft" in parse_settings(dict(options.changes)):
        raise BadOption("This command compares draft lengths, so --set draft is not possible.", "Use --draft.")
    model, serve_options = await resolve_model_and_options(options, reporter)
    for entry in await asyncio.to_thread(registry.list_entries):
        server = f"A server runs at {entry.url} ({one_line(entry.first.model)})"
        note = f"{server}: it uses memory, and slows this measurement while it replies."
        reporter.show_event(None, [Note(wrap_text(note))])
    return await prepare_model(serve_options, model, drafts)


async def measure_subject(
    measure: Callable[[ServerSession, OnBegun], Awaitable[None]],
    make_result: Callable[[], Result | None],
    reporter: Reporter,
    charts: Sequence[Path] = (),
) -> int:
    """Measure with a new session, print the result and return its exit code, 1 if nothing was measured.

    `measure` gets the session, and a function to call with the measurement's ID in the history. If it is interrupted,
    the result so far is printed. `charts` are files to draw a complete result into.
    """
    from launcher.app.measuring.chart_files import check_chart_files
    from launcher.app.serving.session import ServerSession

    check_chart_files(charts)

    session = ServerSession()
    ids: list[str] = []
    complete = False
    try:
        await measure(session, ids.append)
        complete = True
    finally:
        reporter.close()
        await session.stop()
        if (result := make_result()) is not None:
            data = _round_significant({**result.data, "complete": complete, "kept": ids[0]})
            interrupted = "" if complete else "Interrupted: this is what was measured until then. "
            ending = f"{interrupted}Kept as {ids[0]}: `mtp-launcher history show {ids[0]}`."
            reporter.show_event(data, [*result.lines, wrap_text(ending)])
    if charts and ids and result is not None:
        reporter.show_event(None, [Note(await draw_charts(ids[0], charts))])
    return 1 if result is None else result.exit_code


def _round_significant(data: Any) -> Any:  # noqa: ANN401 -- any JSON value
    """Return JSON with floats rounded to six significant digits."""
    if isinstance(data, float):
        return float(f"{data:.6g}")
    if isinstance(data, dict):
        return {name: _round_significant(value) for name, value in data.items()}
    return [_round_significant(value) for value in data] if isinstance(data, list | tuple) else data
