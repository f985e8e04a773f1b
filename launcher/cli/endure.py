"""`mtp-launcher endure`: check whether the speed holds under sustained load."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from launcher.base.text import one_line
from launcher.cli.layout import print_table, wrap_text
from launcher.cli.output import print_json
from launcher.cli.quantities import parse_int, parse_minutes
from launcher.cli.subject_options import (
    add_price_options,
    add_subject_options,
    cost_words,
    kept_words,
    prices_of,
    round_significant,
    subject_for,
)
from launcher.cli.terminal import InPlaceLine

if TYPE_CHECKING:
    from launcher.tuning.endurance import EnduranceVerdict
    from launcher.tuning.records import Run

USUAL_MIN = 10.0
_UNKNOWN = "–"  # noqa: RUF001 -- the sign for an unknown value


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    add_subject_options(parser)
    parser.add_argument(
        "--minutes", type=parse_minutes, default=USUAL_MIN, metavar="N", help=f"how long (default {USUAL_MIN:.0f})"
    )
    parser.add_argument(
        "--draft", type=parse_int, metavar="N", help="draft length, 0 is MTP off (default: as it was served last)"
    )
    add_price_options(parser)
    parser.epilog = (
        "The model is served on a server of its own and asked without a pause. Judged are verification steps a second,"
        " which the text has no part in. Ctrl-C ends it, and judges what was measured until then."
    )


async def run(options: argparse.Namespace) -> int:
    """Put the model under load and print whether its speed holds; exit code 1 if the server ended."""
    from launcher.app.session import Session
    from launcher.app.sweeps import run_endurance
    from launcher.tuning.endurance import judge_endurance
    from launcher.tuning.workloads import load_workload

    prices = prices_of(options)
    work = await asyncio.to_thread(load_workload, options.workload)
    subject = await subject_for(options, () if options.draft is None else (options.draft,))
    usual = options.draft is None and len(subject.drafts) > 1
    draft = subject.options.draft if usual else subject.drafts[0]
    line = _Line(60 * options.minutes, quiet=options.json)
    runs: list[Run] = []

    def add_run(run: Run) -> None:
        runs.append(run)
        line.show(run)

    if not options.json:
        mtp = f"draft {draft}" if draft else "no MTP"
        print(f"{one_line(subject.named)}, {mtp}: {options.minutes:g} min of load.", file=sys.stderr, flush=True)
    session = Session()
    kept: list[str] = []
    complete = False
    verdict = judge_endurance([])
    try:
        await run_endurance(session, subject, draft, work, 60 * options.minutes, add_run, on_begun=kept.append)
        complete = True
    finally:
        line.clear()
        await session.stop()
        if runs:
            verdict = judge_endurance(runs)
            cost, cost_said = cost_words([((run,), run.wall_s) for run in runs], prices)
            if options.json:
                about = {"draft": draft, "complete": complete, "kept": kept[0]}
                costs = {} if prices is None else {"cost": cost.as_json() if cost else None, "cost_said": cost_said}
                print_json(round_significant({**verdict.as_json(), **about, **costs}))
            else:
                _print(verdict, cost_said)
                print(wrap_text(kept_words(kept[0], complete=complete)))
    return 1 if verdict.answer == "ended" else 0


class _Line:
    """Progress in place on a terminal."""

    def __init__(self, seconds: float, *, quiet: bool) -> None:
        self._seconds = seconds
        self._began_s: float | None = None
        self._line = InPlaceLine(quiet=quiet)
        self.clear = self._line.clear

    def show(self, run: Run) -> None:
        if self._began_s is None:
            self._began_s = run.began_s
        spent_s = run.began_s + run.wall_s - self._began_s
        heat = "" if run.temperature_c is None else f", {run.temperature_c:.0f} °C"
        clock = "" if run.clock_mhz is None else f", {run.clock_mhz:,.0f} MHz"
        speed = f"{run.decode_rate:.1f} tokens/s" if run.decode_rate else run.error or "too short"
        self._line.show(f"{spent_s / 60:.1f} of {self._seconds / 60:g} min: {speed}{heat}{clock}")


def _print(verdict: EnduranceVerdict, cost_said: str) -> None:
    rows = [("from", "tokens/s", "steps/s", "°C", "MHz", "W", "")]
    for row in verdict.rows:
        figures = (row.tokens_rate, row.steps_rate), (row.temperature_c, row.clock_mhz, row.power_w)
        rates, sensors = (
            [_figure(each, digits) for each in some] for some, digits in zip(figures, (1, 0), strict=True)
        )
        at = f"{row.from_s / 60:.0f} min" if verdict.seconds > 300 else f"{row.from_s:.0f} s"
        rows.append((at, *rates, *sensors, one_line(" ".join(row.marks), 200)))  # type: ignore[arg-type]
    print_table(rows, right=range(6))
    print()
    print(wrap_text(verdict.sentence))
    if cost_said:
        print(wrap_text(cost_said))


def _figure(value: float | None, digits: int) -> str:
    return _UNKNOWN if value is None else f"{value:,.{digits}f}"
