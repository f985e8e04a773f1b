"""Command line: `python -m tools.soak [MINUTES] [--seed N]`. Exit code 1 when something grew.

The program serves the demo with two slots and sends it requests as a window does, two conversations at a time; three
other clients send requests without a pause. In the first half it is restarted with other settings every twentieth of
the time; in the second half one engine runs all the while.
"""

import argparse
import asyncio
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import psutil

from launcher.app.serving.running_servers import restart_server
from launcher.base.errors import LauncherError
from launcher.base.paths import HOME_VARIABLE
from tools.soak.other_clients import OtherClients
from tools.soak.watch import LOG_MIB, ResourceUse, compute_growths, read_resources

_CLIENTS = 3
_PERIOD_S = 1.0
_RESTARTS = 9
_WORDS = {"rss": "resident memory, MiB", "files": "open files", "threads": "threads", "sockets": "open connections"}


def run_soak(minutes: float, seed: int) -> tuple[list[ResourceUse], Counter[str], list[str]]:
    """Run the load; return the samples, the counts, and the errors."""
    with tempfile.TemporaryDirectory(prefix="mtp-soak-") as folder:
        os.environ[HOME_VARIABLE] = folder
        command = [sys.executable, "-m", "tools.soak.program", str(seed)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            ready = json.loads(program.stdout.readline())
            other_clients = OtherClients(ready["url"], ready["api_key"], threads=_CLIENTS, seed=seed)
            try:
                samples, wrong = _watch(minutes, random.Random(seed), psutil.Process(ready["pid"]), Path(folder))
            finally:
                other_clients.stop()
                program.stdin.close()
            counts = other_clients.counts + Counter(json.loads(program.stdout.readline() or "{}"))
        if program.returncode:
            wrong.append(f"the program ended with exit code {program.returncode}")
        if left := [path.name for path in Path(folder, "state").rglob("server-*.json")]:
            wrong.append(f"still registered: {left}")
    return samples, counts, wrong


def _watch(
    minutes: float, chance: random.Random, program: psutil.Process, home: Path
) -> tuple[list[ResourceUse], list[str]]:
    began_s = time.monotonic()
    seconds, samples, wrong, restarts = 60 * minutes, [], [], 0
    while (now_s := time.monotonic() - began_s) < seconds:
        if restarts < _RESTARTS and now_s > (restarts + 1) * seconds / 2 / (_RESTARTS + 1):
            restarts += 1
            changes = {"draft": str(chance.randint(0, 4)), "ctx": chance.choice(("4096", "8192"))}
            try:
                asyncio.run(restart_server(None, changes, drain_s=chance.choice((0.0, 1.0))))
            except LauncherError as error:
                wrong.append(f"{now_s:.0f} s: restart with {changes}: {error}")
        if (use := read_resources(program, home / "state" / "logs", began_s)) is not None:
            samples.append(use)
        time.sleep(_PERIOD_S)
    return samples, wrong


def format_growths(samples: list[ResourceUse]) -> tuple[list[str], bool]:
    """Return the lines of a table, and whether nothing grew."""
    lines = ["| what | second fifth | last fifth | most | may grow by | verdict |", "|---|---|---|---|---|---|"]
    found = compute_growths(samples)
    for growth in found:
        whose, _, what = growth.what.partition("_")
        figures = " | ".join(f"{value:.1f}" for value in (growth.early, growth.late, growth.most))
        limit = "-" if growth.allowed is None else f"{growth.allowed:.1f}"
        verdict = "no limit" if growth.allowed is None else "kept" if growth.is_allowed else "GREW"
        lines.append(f"| {whose}: {_WORDS[what]} | {figures} | {limit} | {verdict} |")
    return lines, all(growth.is_allowed for growth in found)


def format_report(
    minutes: float, seed: int, samples: list[ResourceUse], counts: Counter[str], wrong: list[str]
) -> tuple[str, bool]:
    """Return the results as Markdown, and whether nothing grew and no error occurred."""
    lines, is_flat = format_growths(samples)
    log = max(each.log for each in samples)
    lines.append(f"| log files, MiB | | | {log:.1f} | at most {LOG_MIB:.1f} | {'kept' if log < LOG_MIB else 'GREW'} |")
    sums = ", ".join(f"{what} {number:,}" for what, number in sorted(counts.items()))
    load = f"{os.getloadavg()[0]:.1f}"
    lines += ["", f"{minutes:g} minutes, seed {seed}, {_RESTARTS} restarts, {counts.total():,} requests: {sums}."]
    lines += [f"Load average at the end: {load}."]
    lines += [f"WRONG: {each}" for each in wrong]
    good = is_flat and log < LOG_MIB and not wrong
    lines.append("Nothing that has a limit grew." if good else "Something grew or went wrong.")
    return "\n".join(lines), good


def main() -> int:
    """Run the load, and print the results."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("minutes", nargs="?", type=float, default=30.0, metavar="MINUTES", help="how long (30)")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbits(16), metavar="N", help="the same seed makes the same choices"
    )
    parser.add_argument("--samples", type=Path, metavar="FILE", help="write the resources in use as JSON lines")
    chosen = parser.parse_args()
    samples, counts, wrong = run_soak(chosen.minutes, chosen.seed)
    if chosen.samples:
        chosen.samples.write_text("".join(json.dumps(asdict(each)) + "\n" for each in samples))
    text, good = format_report(chosen.minutes, chosen.seed, samples, counts, wrong)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
