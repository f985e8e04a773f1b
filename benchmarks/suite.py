"""Runs the benchmarks that the command line names: see __main__.py. Exit code 1 when a limit is missed."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable

from benchmarks import (
    chat_stream,
    demo_speed,
    diagnosis,
    gateway,
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
    stores,
    streams,
    transfer,
    tuner,
    version,
    window,
)
from benchmarks.report import Row, describe_machine, format_table, read_load
from benchmarks.workplace import own_home, raise_on_signals, slow_model

BENCHMARKS: dict[str, Callable[..., Iterable[Row]]] = {
    "version": version.run,
    "header": header.run,
    "transfer": transfer.run,
    "plan": plan.run,
    "stores": stores.run,
    "ready": ready.run,
    "restart": restart.run,
    "gateway": gateway.run,
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


WITHOUT_LIMITS = ("streams", "demo-speed")


def main() -> int:
    """Run the benchmarks that the command line names; print each row when it is measured, and all of them as a
    table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed of the program itself.")
    parser.add_argument(
        "--quick", action="store_true", help="fewer repetitions, and only rows with a limit (3 minutes, not 5 to 30)"
    )
    parser.add_argument("--only", choices=BENCHMARKS, metavar="NAME", help=f"only one of {', '.join(BENCHMARKS)}")
    chosen = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode: `plan` takes half as long
    raise_on_signals()
    names = [chosen.only] if chosen.only else list(BENCHMARKS)
    if chosen.quick and not chosen.only:
        names = [name for name in names if name not in WITHOUT_LIMITS]
    if {"own-cpu", "monitoring", "window", "streams"} & set(names):
        slow_model()
    before = read_load()
    rows: list[Row] = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        began_s = time.perf_counter()
        with own_home():
            for row in BENCHMARKS[name](quick=chosen.quick):
                print(row, flush=True)
                rows.append(row)
        print(f"{name}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr, flush=True)
    print("", format_table(rows), "", describe_machine(before), sep="\n")
    return 1 if any(row.kept is False for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
