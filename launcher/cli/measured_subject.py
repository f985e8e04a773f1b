"""Steps shared by the verbs that measure a model, the subject: bench, tune, curve, endure, prove, quality."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.app.measuring.chart_files import check_chart_files, write_charts
from launcher.app.measuring.saved_tunes import check_no_tune
from launcher.app.measuring.sweeps import prepare_model
from launcher.app.planning.start_settings import resolve_start
from launcher.app.serving.session import ServerSession
from launcher.base.codec import to_json
from launcher.base.errors import BadOption
from launcher.base.text import one_line
from launcher.cli.given_options import make_serve_options
from launcher.cli.layout import format_path, wrap_text
from launcher.cli.output import Note, Result
from launcher.engine.server import registry
from launcher.engine.server.last_start import require_last_model
from launcher.engine.settings import EXTRA, change_settings, parse_settings
from launcher.tuning.cost import Cost, Prices, calculate_cost
from launcher.tuning.history import History, load_session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from launcher.app.measuring.sweeps import OnBegun, SweepModel
    from launcher.cli.progress import Reporter
    from launcher.engine.serve_options import ServeOptions
    from launcher.tuning.records import Run


async def draw_charts(measurement_id: str, files: Sequence[Path]) -> str:
    """Draw a measurement of the history into files, and return a sentence about it."""
    with History() as history:
        session = load_session(history, measurement_id)
    await write_charts(session, files)
    return f"Chart saved: {', '.join(map(format_path, files))}."


def read_prices(options: argparse.Namespace) -> Prices | None:
    """Return the prices in the options, None if there are none. Raises BadOption for invalid ones."""
    if options.price_kwh is None:
        if options.cloud_price is not None or options.watts is not None:
            raise BadOption("--cloud-price and --watts are for the cost of electricity.", "Add --price-kwh.")
        return None
    return Prices(options.price_kwh, options.cloud_price, options.watts)


def compute_cost(groups: Sequence[tuple[Sequence[Run], float]], prices: Prices | None) -> tuple[Cost | None, str]:
    """Return the cost of replies, None if it is unknown, and a sentence about it or the reason; "" without prices.

    Each group is the replies that were generated at the same time, and the seconds that they took together.
    """
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
