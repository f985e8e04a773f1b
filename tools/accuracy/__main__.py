"""Command line: `python -m tools.accuracy` prints the memory formula's accuracy: the tables of docs/accuracy.md."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from launcher.base.errors import LauncherError
from launcher.base.paths import HOME_VARIABLE
from launcher.engine.builds.probe import list_devices, probe_engine
from launcher.machine.host import read_host
from tools.accuracy import report
from tools.accuracy.grid import COUNTS, Outcome, draw_cases, measure_cases


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; the exit code is 1 if the engine cannot estimate."""
    parser = argparse.ArgumentParser(prog="python -m tools.accuracy", description=__doc__)
    parser.add_argument(
        "--engine", type=Path, metavar="PATH", help="the llama-server to ask (default: the built-in engine)"
    )
    parser.add_argument("--only-engine", action="store_true", help="leave out the published measurements")
    chosen = parser.parse_args(arguments)
    if not chosen.only_engine:
        for title, text in (
            ("Parts, as reported by engines", report.logs_table()),
            ("Loads, CUDA", report.loads_table()),
            ("Totals, CUDA", report.runs_table()),
            ("Totals, AMD", report.totals_table()),
            ("Growth", report.steps_table()),
            ("Earlier predictions", report.presets_table()),
            ("Articles", report.claims_table()),
        ):
            print(f"## {title}\n\n{text}\n")
    with tempfile.TemporaryDirectory(prefix="mtp-accuracy-") as folder:
        os.environ[HOME_VARIABLE] = folder
        try:
            print(asyncio.run(_compare_with_engine(chosen.engine, Path(folder))))
        except LauncherError as error:
            print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
            return 1
    return 0


async def _compare_with_engine(engine: Path | None, folder: Path) -> str:
    began_s = time.monotonic()
    build = await probe_engine(engine)
    wanted = draw_cases(COUNTS, gpu=bool(await list_devices(build)))
    done = 0

    def count_outcome(_outcome: Outcome) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            print(f"\r{done} of {len(wanted)}", end="\n" if done == len(wanted) else "", file=sys.stderr, flush=True)

    outcomes = await measure_cases(build, wanted, folder, report_outcome=count_outcome)
    host, answer = read_host(), outcomes[0].engine
    where = ", ".join(answer.devices) or "the processor"
    facts = {
        "Engine": f"{answer.engine}, on {where}, judged by the formula for {answer.backend}",
        "Settings": f"{len(outcomes)}, asked in {time.monotonic() - began_s:.0f} s",
        "Machine": f"{host.cpu or host.machine}, {os.cpu_count()} cores, {host.system.partition(', kernel')[0]}",
        "Date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    lines = [f"- {name}: {fact}" for name, fact in facts.items()]
    return "\n".join(
        ["## Engine\n", *lines, "", report.engine_table(outcomes), "", "Apart:", "", report.list_differences(outcomes)]
    )


if __name__ == "__main__":
    sys.exit(main())
