"""`mtp-launcher curve`: speed over how full the context is, how large it is, or how many streams there are."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from launcher.base.text import one_line
from launcher.base.units import percent
from launcher.cli.layout import filled, print_table
from launcher.cli.output import print_json
from launcher.cli.quantities import tokens, whole
from launcher.cli.subject_options import (
    add_price_options,
    add_subject_options,
    cost_words,
    kept_words,
    prices_of,
    significant,
    subject_for,
)
from launcher.cli.terminal import InPlace
from launcher.tuning.statistics import LEVEL, plus_minus

if TYPE_CHECKING:
    from launcher.sweeps import Sweep
    from launcher.tuning.cost import Cost, Prices
    from launcher.tuning.curves import Axis, Curve, Point
    from launcher.tuning.curves_rounds import Step, Taken
    from launcher.tuning.statistics import Interval

ROUNDS = 3
_UNKNOWN = "–"  # noqa: RUF001 -- the sign for an unknown value
_USUAL: tuple[int, ...] = ()
_TITLES = {"fill": "fill", "context": "context", "streams": "streams"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_subject_options(parser)
    axis = parser.add_mutually_exclusive_group()
    axis.add_argument(
        "--fill",
        nargs="?",
        const=_USUAL,
        type=_token_list,
        metavar="N,...",
        help="with so many tokens in the context: 0,10000,40000 (default, as far as the context goes)",
    )
    axis.add_argument(
        "--context", nargs="?", const=_USUAL, type=_token_list, metavar="N,...", help="with contexts of these sizes"
    )
    axis.add_argument(
        "--streams", nargs="?", const=_USUAL, type=_list, metavar="N,...", help="with so many replies at once: 1,2,4"
    )
    parser.add_argument(
        "--draft", type=_list, metavar="N,...", help="draft lengths to compare with no MTP; 0: no MTP alone"
    )
    parser.add_argument(
        "--rounds", type=_rounds, default=ROUNDS, metavar="N", help=f"measure each point N times (default {ROUNDS})"
    )
    add_price_options(parser)
    parser.epilog = (
        "The model is served again and again, without MTP and with it in turns, on a server of its own. Ctrl-C ends it,"
        " and shows what was measured until then. The result goes into the history."
    )


def _token_list(text: str) -> tuple[int, ...]:
    return tuple(sorted({tokens(word) for word in text.split(",")}))


def _list(text: str) -> tuple[int, ...]:
    found = tuple(sorted({whole(word) for word in text.split(",")}))
    if found[0] < 0:
        raise argparse.ArgumentTypeError(f"{found[0]} is less than nothing")
    return found


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError("it is a number from 1 to 100")
    return int(text)


async def run(options: argparse.Namespace) -> int:
    """Measure the curve, and tell what it shows; interrupted, of what was measured until then."""
    from launcher import app
    from launcher.sweeps import sweep_on
    from launcher.tuning.curves import curve_of

    prices = prices_of(options)
    sweep = await _sweep(options)
    line = _Line(quiet=options.json)
    found: list[Taken] = []

    def take(taken: Taken) -> None:
        found.append(taken)
        line.taken(taken, sweep.axis)

    if not options.json:
        print(filled(_plan(sweep)), file=sys.stderr, flush=True)
    session = app.Session()
    kept: list[str] = []
    complete = False
    try:
        await sweep_on(session, sweep, take, line.step, on_begun=kept.append)
        complete = True
    finally:
        line.clear()
        await session.stop()
        if found:
            curve = curve_of(sweep.axis, [*sweep.gaps, *found])
            costs = {at: cost_words(groups, prices) for at, groups in _groups(curve, found).items()}
            if options.json:
                told = _json(curve, found, costs, prices)
                print_json(significant({**told, "complete": complete, "kept": kept[0]}))
            else:
                _print(curve, costs, prices)
                print(filled(kept_words(kept[0], complete=complete)))
    return 0 if any(each.counts for each in found) else 1


async def _sweep(options: argparse.Namespace) -> Sweep:
    from launcher.sweeps import sweep_of
    from launcher.tuning.curves import Axis
    from launcher.tuning.workloads import workload

    work = await asyncio.to_thread(workload, options.workload)
    subject = await subject_for(options, () if options.draft is None else (0, *options.draft))
    given = {Axis.FILL: options.fill, Axis.CONTEXT: options.context, Axis.STREAMS: options.streams}
    axis, places = next(((axis, places) for axis, places in given.items() if places is not None), (Axis.FILL, _USUAL))
    grow = not any(name.strip().lower() in ("ctx", "context") for name, _ in options.changes)
    return sweep_of(axis, subject, work, places, options.rounds, grow=grow)


def _plan(sweep: Sweep) -> str:
    places = sorted({place for start in sweep.starts for place in start.places})
    series = " and ".join(dict.fromkeys(start.series for start in sweep.starts))
    points = sweep.rounds * sum(len(start.places) for start in sweep.starts)
    return (
        f"{one_line(sweep.subject.named)}, {series}: {_TITLES[sweep.axis]} {', '.join(f'{at:,}' for at in places)};"
        f" {points} points in {sweep.rounds} rounds, replies of {sweep.prompt.tokens} tokens."
    )


class _Line:
    """How far it is, on standard error: a line for each point, and on a terminal one in place for what is left."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._line = InPlace(quiet=quiet)

    def step(self, step: Step) -> None:
        left = "" if step.left_s is None else f", about {_minutes(step.left_s)} left"
        self._line.show(f"{step.done + 1} of {step.of}: {step.series} at {step.place:,}{left}")

    def taken(self, taken: Taken, axis: Axis) -> None:
        from launcher.tuning.curves import rate_of

        if self._quiet:
            return
        self.clear()
        rate = rate_of(axis, taken)
        spoilt = next((run.spoilt for run in taken.runs if run.spoilt), None)
        said = f"{rate:.1f} tokens/s" if rate is not None else taken.error or spoilt or "too short to be measured"
        print(f"  {taken.series} at {taken.place:,}: {one_line(said, 200)}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        self._line.clear()


Costs = dict[tuple[str, int], tuple["Cost | None", str]]


def _groups(curve: Curve, found: list[Taken]) -> dict[tuple[str, int], list[Any]]:
    """Return the replies that count, by point, with the seconds that those of one moment took together."""
    return {
        (point.series, point.place): [
            (each.runs, each.span_s)
            for each in found
            if each.counts and (each.series, each.place) == (point.series, point.place)
        ]
        for point in curve.points
    }


def _json(curve: Curve, found: list[Taken], costs: Costs, prices: Prices | None) -> dict[str, Any]:
    from launcher.tuning.curves import rate_of
    from launcher.tuning.curves_words import sentences

    told = curve.as_json()
    if prices is not None:
        for point in told["points"]:
            cost, why = costs[point["series"], point["at"]]
            point["cost"] = cost.as_json() if cost else None
            point["cost_unknown"] = None if cost else why
    runs = [
        {
            "series": each.series,
            "at": each.place,
            "round": each.round + 1,
            "tokens_per_second": rate_of(curve.axis, each),
            "replies": len(each.runs),
            "error": each.error,
        }
        for each in found
    ]
    return {**told, "rounds": runs, "sentences": sentences(curve)}


def _print(curve: Curve, costs: Costs, prices: Prices | None) -> None:
    from launcher.tuning.curves_words import sentences

    others = curve.series[1:]
    head = [_TITLES[curve.axis], *(f"{name} t/s" for name in curve.series), *("times" for _ in others)]
    head += [*("accepted" for _ in others), "read t/s", "first token s"]
    head += [] if prices is None else [f"a million {name}" for name in curve.series]
    rows = [tuple(head)]
    for place in curve.places:
        here = [curve.point(name, place) for name in curve.series]
        ratios = [curve.ratio(name, place) for name in others]
        cells = [f"{place:,}", *(_rate(point) for point in here)]
        cells += [_times(ratio.interval) if ratio else _UNKNOWN for ratio in ratios]
        cells += [percent(p.acceptance.rate) if p and p.acceptance else _UNKNOWN for p in here[1:]]
        cells.append("/".join(_figure(point.prefill if point else None, "{:,.0f}") for point in here))
        cells.append("/".join(_figure(point.first_token_s if point else None, "{:.2f}") for point in here))
        if prices is not None:
            made = [costs.get((name, place), (None, ""))[0] for name in curve.series]
            cells += [_figure(cost.per_million if cost else None, "{:.3g}") for cost in made]
        rows.append(tuple(cells))
    print_table(rows, right=range(len(head)))
    print(filled(LEVEL, "  "))
    print()
    for text in sentences(curve):
        print(filled(text))
    missing = [f"{each.series} at {each.place:,}: {one_line(each.why, 300)}" for each in curve.points if each.why]
    spoilt = sum(point.spoilt for point in curve.points)
    if spoilt:
        missing.append(f"{spoilt} replies were spoilt, and asked again.")
    for text in [*missing, *_cost_lines(costs)]:
        print(filled(text))


def _cost_lines(costs: Costs) -> list[str]:
    """Return a sentence for the first point of each series that has its cost, or why there is none."""
    by_series = {}
    for (series, place), (cost, _) in costs.items():
        if cost is not None and series not in by_series:
            by_series[series] = f"{series[0].upper()}{series[1:]} at {place:,}: {cost.sentence}"
    whys = [why for cost, why in costs.values() if cost is None and why]
    return list(by_series.values()) or whys[:1]


def _rate(point: Point | None) -> str:
    if point is None or point.rate is None:
        return _UNKNOWN
    reach = plus_minus(point.rate)
    each = f" ({point.each:.1f} each)" if point.each is not None and point.replies > point.rate.n else ""
    return f"{point.rate.estimate:.1f}{reach}{each}"


def _times(ratio: Interval) -> str:
    sides = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.n > 1 else ""
    return f"{ratio.estimate:.2f}{sides}"


def _figure(value: float | None, how: str) -> str:
    return _UNKNOWN if value is None else how.format(value)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
