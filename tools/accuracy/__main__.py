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
from tools.accuracy.grid import COUNTS, Outcome, cases, measure


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; the exit code is 1 if the engine cannot estimate."""
    parser = argparse.ArgumentParser(prog="python -m tools.accuracy", description=__doc__)
    parser.add_argument("--engine", type=Path, metavar="PATH", help="a llama-server to ask (default: the built-in)")
    parser.add_argument("--only-engine", action="store_true", help="leave out what was published")
    chosen = parser.parse_args(arguments)
    if not chosen.only_engine:
        for title, text in (
            ("Parts, as reported by engines", report.logs()),
            ("Totals, CUDA", report.runs()),
            ("Totals, AMD", report.totals()),
            ("Growth", report.steps()),
            ("Earlier predictions", report.presets()),
            ("Articles", report.claims()),
        ):
            print(f"## {title}\n\n{text}\n")
    with tempfile.TemporaryDirectory(prefix="mtp-accuracy-") as folder:
        os.environ[HOME_VARIABLE] = folder
        try:
            print(asyncio.run(_ask(chosen.engine, Path(folder))))
        except LauncherError as error:
            print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
            return 1
    return 0


async def _ask(engine: Path | None, folder: Path) -> str:
    began_s = time.monotonic()
    build = await probe_engine(engine)
    wanted = cases(COUNTS, gpu=bool(await list_devices(build)))
    done = 0

    def tell(_outcome: Outcome) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            print(f"\r{done} of {len(wanted)}", end="\n" if done == len(wanted) else "", file=sys.stderr, flush=True)

    outcomes = await measure(build, wanted, folder, tell=tell)
    host, answer = read_host(), outcomes[0].engine
    where = ", ".join(answer.devices) or "the processor"
    facts = {
        "Engine": f"{answer.engine}, on {where}, judged by the formula for {answer.backend}",
        "Settings": f"{len(outcomes)}, asked in {time.monotonic() - began_s:.0f} s",
        "Machine": f"{host.cpu or host.machine}, {os.cpu_count()} cores, {host.system.partition(', kernel')[0]}",
        "Date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    lines = [f"- {name}: {fact}" for name, fact in facts.items()]
    return "\n".join(["## Engine\n", *lines, "", report.engine(outcomes), "", "Apart:", "", report.apart(outcomes)])


if __name__ == "__main__":
    sys.exit(main())
