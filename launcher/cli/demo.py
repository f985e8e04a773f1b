"""`mtp-launcher demo`: serve the demo model with the built-in engine, and chat with it, in the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from launcher.app.first import demonstration
from launcher.base.codec import JsonView, to_json
from launcher.base.units import format_percent, format_rate
from launcher.cli.output import Result
from launcher.cli.progress import StateLine
from launcher.engine.server.client import Delta
from launcher.machine.host import read_host

if TYPE_CHECKING:
    from launcher.app.first.demonstration import DemoReport

_REPORT = JsonView(
    "engine.name=engine engine.version=engine_version model ready_s:3 predicted_n tokens_per_second:1 "
    "draft_n=acceptance.drafted draft_n_accepted=acceptance.accepted acceptance=acceptance.rate:4 "
    "acceptance_by_position=acceptance.rates_by_position:4 text=excerpt samples note=speed_note"
)


async def run(options: argparse.Namespace) -> Result:
    """Run the demo and return its measurements."""
    if options.json:
        return Result(to_json(await demonstration.run_demo(seconds=options.seconds), _REPORT))
    if not options.headless and read_host().display is None:
        print("There is no display, so the demo runs in this terminal.\n")
    states = StateLine()

    def show_delta(delta: Delta) -> None:
        sys.stdout.write(delta.content)
        sys.stdout.flush()

    report = await demonstration.run_demo(
        seconds=options.seconds,
        on_event=states.show_event,
        on_prompt=lambda prompt: print(f"\n> {prompt}\n"),
        on_delta=show_delta,
        on_reply=lambda reply: print(f"\n\n  {reply.summary}"),
    )
    return Result(to_json(report, _REPORT), [_describe_report(report)])


def _describe_report(report: DemoReport) -> str:
    by_position = ", ".join(format_percent(share) for share in report.acceptance.rates_by_position)
    return (
        f"\n{report.engine} engine {report.engine_version}, model {report.model}: ready after {report.ready_s:.1f} s,"
        f" {report.predicted_n} tokens at {format_rate(report.tokens_per_second)}."
        f"\nDrafts accepted: {format_percent(report.acceptance.rate)} ({report.acceptance.accepted} of"
        f" {report.acceptance.drafted}; by position {by_position})."
        f"\n{report.speed_note}"
        "\n\nNext: `mtp-launcher serve --model demo` keeps it running for other programs;"
        " `mtp-launcher serve --model FILE.gguf` serves your own model."
    )
