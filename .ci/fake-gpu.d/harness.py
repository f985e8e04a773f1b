"""Functions that the proofs on emulated graphics cards share (see ../fake-gpu).

A proof file ends in `run()` and is started as `python prove_NAME.py FOLDER`. It prints a line for each proof,
"ok   ..." or "FAIL ...", then "done NAME".
"""
# ruff: noqa: T201

import json
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.engine.arguments import planned_options, server_arguments
from launcher.engine.builds.build import EngineBuild
from launcher.engine.serve_options import ServeOptions
from launcher.models.memory import PlanSettings

FOLDER = Path(sys.argv[1]).resolve()
_PATIENCE_S = 180.0

Proof = Callable[[], str]
Row = dict[str, Any]
_PROOFS: dict[str, Proof] = {}


def planned_flags(setting: PlanSettings, build: EngineBuild) -> list[str]:
    """Return the arguments by which a build serves a plan's settings, without the model."""
    options = planned_options(setting, ServeOptions(Path("model.gguf")))
    return server_arguments(options, build, gpu=setting.backend != "cpu")[2:]


def proof(name: str) -> Callable[[Proof], Proof]:
    """Register a proof; it returns the figures to print, or raises."""

    def add(function: Proof) -> Proof:
        _PROOFS[name] = function
        return function

    return add


def run() -> None:
    """Run all proofs."""
    for name, function in _PROOFS.items():
        begun_s = time.monotonic()
        try:
            figures = function()
        except Exception as error:  # noqa: BLE001 -- a proof that fails for any reason has failed
            traceback.print_exc()
            place = traceback.extract_tb(error.__traceback__)[-1].line
            print(f"FAIL {name}: {type(error).__name__}: {str(error) or place}", flush=True)
        else:
            print(f"ok   {name}: {figures} ({time.monotonic() - begun_s:.1f} s)", flush=True)
    print(f"done {Path(sys.argv[0]).stem.removeprefix('prove_')}", flush=True)


def engine(cards: str) -> Path:
    """Return the llama-server with `cards`, such as "16g" or "2x12g"."""
    return FOLDER / f"llama-server-{cards}"


def model(name: str) -> Path:
    """Return the sparse model called `name` (tools/sparse_models)."""
    return FOLDER / "models" / f"{name}.gguf"


def launcher(*arguments: str) -> tuple[int, str]:
    """Run our command line as a user would; return its exit code and its standard output."""
    command = [sys.executable, "-m", "launcher", *arguments]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False, timeout=_PATIENCE_S)
    return ended.returncode, ended.stdout.decode()


def read_memory_tables(cards: str, *flags: str, tables: int) -> list[list[Row]]:
    """Start the engine and return the rows of its first `tables` memory tables; it is killed before it loads weights.

    The first table is the target's, the second the MTP context's. Raises RuntimeError, with the end of its log, if it
    prints fewer tables.
    """
    found: list[list[Row]] = []
    lines: list[str] = []
    for record in records(cards, *flags):
        lines.append(str(record.get("msg", "")))
        if record.get("type") == "fit_memory_breakdown":
            found.append(record["data"]["rows"])
        if len(found) == tables:
            return found
    raise RuntimeError(f"{len(found)} of {tables} tables, then: {''.join(lines[-10:])}")


def records(cards: str, *flags: str) -> Iterator[Row]:
    """Start the engine and yield its log records, each with its text as "msg"; it is killed when the caller stops."""
    command = [str(engine(cards)), *flags, "--log-jsonl", "-lv", "4", "--port", "0", "--no-ui"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        patience = threading.Timer(_PATIENCE_S, child.kill)
        patience.start()
        try:
            for line in child.stdout or ():
                text = line.decode("utf-8", "replace")
                yield json.loads(text) if text.startswith("{") else {"msg": text}
        finally:
            patience.cancel()
            child.kill()
