"""Command line: `python -m benchmarks [--quick] [--only NAME]`. Exit code 1 when a limit is missed."""

import argparse
import signal
import sys
from collections.abc import Callable

from benchmarks import (
    chat_stream,
    demo_speed,
    diagnosis,
    header,
    health,
    history,
    idle_supervision,
    log_flood,
    monitoring,
    own_cpu,
    pages,
    plan,
    plots,
    ready,
    restart,
    small_work,
    streams,
    transfer,
    tuner,
    version,
    window,
)
from benchmarks.report import Row, load, machine, table
from benchmarks.workplace import own_home, slow_model

BENCHMARKS: dict[str, Callable[..., list[Row]]] = {
    "version": version.run,
    "header": header.run,
    "transfer": transfer.run,
    "plan": plan.run,
    "ready": ready.run,
    "restart": restart.run,
    "diagnosis": diagnosis.run,
    "log-flood": log_flood.run,
    "chat-stream": chat_stream.run,
    "idle-supervision": idle_supervision.run,
    "own-cpu": own_cpu.run,
    "window": window.run,
    "pages": pages.run,
    "plots": plots.run,
    "small-work": small_work.run,
    "monitoring": monitoring.run,
    "health": health.run,
    "history": history.run,
    "tuner": tuner.run,
    "streams": streams.run,
    "demo-speed": demo_speed.run,
}


def main() -> int:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed of the program itself.")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions (2 minutes in place of 5 to 30)")
    parser.add_argument("--only", choices=BENCHMARKS, metavar="NAME", help=f"only one of {', '.join(BENCHMARKS)}")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background ignores it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # as Ctrl-C: nothing is left running
    names = [chosen.only] if chosen.only else list(BENCHMARKS)
    if {"own-cpu", "monitoring", "window", "streams"} & set(names):
        slow_model()
    before = load()
    rows: list[Row] = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        with own_home():
            rows += BENCHMARKS[name](quick=chosen.quick)
    print(table(rows), machine(before), sep="\n\n")
    return 1 if any(row.kept is False for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
