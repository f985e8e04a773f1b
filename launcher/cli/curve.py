"""`mtp-launcher curve`: measure speed by context fill, context size, or number of parallel requests (streams)."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from launcher.app.measuring.sweeps import plan_sweep, run_sweep
from launcher.base.codec import to_json
from launcher.base.text import one_line
from launcher.base.units import format_percent
from launcher.cli.layout import UNKNOWN, format_table, wrap_text
from launcher.cli.measured_subject import compute_cost, measure_subject, prepare_subject, read_prices
from launcher.cli.options.curve import DEFAULT_PLACES
from launcher.cli.output import Note, Result
from launcher.cli.progress import Reporter, format_duration
from launcher.tuning.curves import CurveAxis, build_curve, rate_of_point, summarize_curve
from launcher.tuning.statistics import INTERVAL_NOTE, plus_minus
from launcher.tuning.workloads import load_workload

if TYPE_CHECKING:
    from launcher.app.measuring.sweeps import Sweep
    from launcher.tuning.cost import Cost, Prices
    from launcher.tuning.curves import Curve, CurvePoint, CurveProgress, RoundPoint
    from launcher.tuning.records import Run
    from launcher.tuning.statistics import Interval


async def run(options: argparse.Namespace) -> int:
    """Measure the curve and print it; if interrupted, print what was measured until then."""
    prices = read_prices(options)
    reporter = Reporter(as_json=options.json)
    sweep = await _plan_sweep(options, reporter)
    points: list[RoundPoint] = []

    def add_point(point: RoundPoint) -> None:
        points.append(point)
        reporter.show_event(None, [_describe_point(point, sweep.axis)])

    def compute_costs(curve: Curve) -> _Costs:
        return {point: compute_cost(groups, prices) for point, groups in _group_runs(curve, points).items()}

    def add_costs(curve: Curve) -> list[dict[str, Any]]:
        return _points_with_costs(curve, compute_costs(curve), prices)

    def make_result() -> Result | None:
        if not points:
            return None
        curve = build_curve(sweep.axis, [*sweep.gaps, *points])
        costs = compute_costs(curve)
        data, lines = _curve_json(curve, points, costs, prices), _format_curve(curve, costs, prices)
        return Result(data, lines, exit_code=0 if any(each.is_counted for each in points) else 1)

    reporter.show_event(None, [Note(wrap_text(_describe_sweep(sweep)))])
    return await measure_subject(
        lambda session, on_begun: run_sweep(
            session,
            sweep,
            add_point,
            lambda step: reporter.show_status(_describe_step(step)),
            on_begun=on_begun,
            add_costs=add_costs,
        ),
        make_result,
        reporter,
        options.chart,
    )


async def _plan_sweep(options: argparse.Namespace, reporter: Reporter) -> Sweep:
    workload = await asyncio.to_thread(load_workload, options.workload)
    subject = await prepare_subject(options, () if options.draft is None else (0, *options.draft), reporter)
    axis, places = CurveAxis.FILL, options.fill or DEFAULT_PLACES
    if options.context is not None:
        axis, places = CurveAxis.CONTEXT, options.context
    elif options.streams is not None:
        axis, places = CurveAxis.STREAMS, options.streams
    has_fixed_context = any(name.strip().lower() in ("ctx", "context") for name, _ in options.changes)
    return plan_sweep(axis, subject, workload, places, options.rounds, grow=not has_fixed_context)


def _describe_sweep(sweep: Sweep) -> str:
    places = sorted({place for start in sweep.starts for place in start.places})
    series = " and ".join(dict.fromkeys(start.series for start in sweep.starts))
    model = one_line(sweep.model.model_name)
    points = sweep.rounds * sum(len(start.places) for start in sweep.starts)
    return (
        f"{model}, {series}: {sweep.axis.value} {', '.join(f'{place:,}' for place in places)};"
        f" {points} points in {sweep.rounds} round{'' if sweep.rounds == 1 else 's'},"
        f" replies of {sweep.prompt.tokens} tokens."
    )


def _describe_step(step: CurveProgress) -> str:
    left = "" if step.left_s is None else f", about {format_duration(round(step.left_s))} left"
    return f"{step.done + 1} of {step.total}: {step.series} at {step.place:,}{left}"


def _describe_point(point: RoundPoint, axis: CurveAxis) -> Note:
    rate = rate_of_point(axis, point)
    spoilt = next((run.spoilt for run in point.runs if run.spoilt), None)
    text = f"{rate:.1f} tokens/s" if rate is not None else point.error or spoilt or "too short to be measured"
    return Note(f"  {point.series} at {point.place:,}: {one_line(text, 200)}")


_Costs = dict[tuple[str, int], tuple["Cost | None", str]]
"""Cost of a point of the curve, by series and place, with its sentence or the reason why it is unknown."""


def _group_runs(curve: Curve, points: list[RoundPoint]) -> dict[tuple[str, int], list[tuple[Sequence[Run], float]]]:
    """Return for each point of the curve the rounds that count: their replies, and the seconds that these took."""
    groups: dict[tuple[str, int], list[tuple[Sequence[Run], float]]] = {
        (point.series, point.place): [] for point in curve.points
    }
    for point in points:
        if point.is_counted and (point.series, point.place) in groups:
            groups[point.series, point.place].append((point.runs, point.span_s))
    return groups


def _curve_json(curve: Curve, points: list[RoundPoint], costs: _Costs, prices: Prices | None) -> dict[str, Any]:
    result = {**to_json(curve), "points": _points_with_costs(curve, costs, prices)}
    runs = [
        {
            "series": each.series,
            "at": each.place,
            "round": each.round + 1,
            "tokens_per_second": rate_of_point(curve.axis, each),
            "replies": len(each.runs),
            "error": each.error,
        }
        for each in points
    ]
    return {**result, "rounds": runs, "sentences": summarize_curve(curve)}


def _points_with_costs(curve: Curve, costs: _Costs, prices: Prices | None) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = to_json(curve.points)
    if prices is not None:
        for point in points:
            cost, reason = costs[point["series"], point["at"]]
            point["cost"] = to_json(cost)
            point["cost_unknown"] = None if cost else reason
    return points


def _format_curve(curve: Curve, costs: _Costs, prices: Prices | None) -> Iterator[str]:
    others = curve.series[1:]
    head = [curve.axis.value, *(f"{name} t/s" for name in curve.series), *("times" for _ in others)]
    head += [*("accepted" for _ in others), "read t/s", "first token s"]
    head += [] if prices is None else [f"a million {name}" for name in curve.series]
    rows = [head, *(_curve_row(curve, place, costs, with_costs=prices is not None) for place in curve.places)]
    yield from format_table(rows, right=range(len(head)))
    yield wrap_text(INTERVAL_NOTE, "  ")
    yield ""
    missing = [f"{each.series} at {each.place:,}: {one_line(each.why, 300)}" for each in curve.points if each.why]
    spoilt = sum(point.spoilt for point in curve.points)
    if spoilt:
        missing.append(f"{spoilt} replies were spoilt, and requested again.")
    yield from map(wrap_text, [*summarize_curve(curve), *missing, *_describe_costs(costs)])


def _curve_row(curve: Curve, place: int, costs: _Costs, *, with_costs: bool) -> list[str]:
    """Return the cells of a row of the table: all series at one place of the curve."""
    points = [curve.point_at(name, place) for name in curve.series]
    ratios = [curve.ratio_at(name, place) for name in curve.series[1:]]
    cells = [f"{place:,}", *(_format_rate(point) for point in points)]
    cells += [_format_ratio(ratio.interval) if ratio else UNKNOWN for ratio in ratios]
    cells += [format_percent(each.acceptance.rate) if each and each.acceptance else UNKNOWN for each in points[1:]]
    cells.append("/".join(_format_figure(point.prefill if point else None, "{:,.0f}") for point in points))
    cells.append("/".join(_format_figure(point.first_token_s if point else None, "{:.2f}") for point in points))
    if with_costs:
        known_costs = [costs.get((name, place), (None, ""))[0] for name in curve.series]
        cells += [_format_figure(cost.per_million if cost else None, "{:.3g}") for cost in known_costs]
    return cells


def _describe_costs(costs: _Costs) -> list[str]:
    """Return a sentence for each series, about its first point with a known cost; if none is known, the reason."""
    by_series = {}
    for (series, place), (cost, _) in costs.items():
        if cost is not None and series not in by_series:
            by_series[series] = f"{series[0].upper()}{series[1:]} at {place:,}: {cost.sentence}"
    reasons = [reason for cost, reason in costs.values() if cost is None and reason]
    return list(by_series.values()) or reasons[:1]


def _format_rate(point: CurvePoint | None) -> str:
    if point is None or point.rate is None:
        return UNKNOWN
    text = f"{point.rate.estimate:.1f}{plus_minus(point.rate)}"
    if point.rate_per_stream is not None and point.replies > point.rate.n:
        text += f" ({point.rate_per_stream:.1f} each)"
    return text


def _format_ratio(ratio: Interval) -> str:
    bounds = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.n > 1 else ""
    return f"{ratio.estimate:.2f}{bounds}"


def _format_figure(value: float | None, template: str) -> str:
    return UNKNOWN if value is None else template.format(value)
