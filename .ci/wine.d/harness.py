"""Functions that the proofs with a Windows Python share (see ../wine).

A proof file ends in `run()`. It prints one line per proof, "ok   ..." or "FAIL ...", then "done NAME".
"""
# ruff: noqa: S101, T201

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from launcher.base.paths import HOME_VARIABLE

Proof = Callable[[], str]
_PROOFS: dict[str, Proof] = {}


def proof(name: str) -> Callable[[Proof], Proof]:
    """Register a proof; it returns the figures to print, or raises."""

    def add(function: Proof) -> Proof:
        _PROOFS[name] = function
        return function

    return add


def launcher(*arguments: str, **environment: str) -> tuple[int, bytes]:
    """Run one command line as a program would; return its exit code and its standard output."""
    ended = subprocess.run(
        [sys.executable, "-m", "launcher", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        env={**os.environ, **environment},
        check=False,
    )
    errors = ended.stderr.decode("utf-8", "replace")
    assert "Traceback" not in errors, errors
    return ended.returncode, ended.stdout


def run_json(*arguments: str, code: int = 0, **environment: str) -> Any:  # noqa: ANN401 -- any JSON value
    """Run one command line with --json and return what it printed."""
    ended, output = launcher(*arguments, "--json", **environment)
    assert ended == code, f"exit code {ended}: {output!r}"
    return json.loads(output.decode("utf-8", "replace"))


def run() -> None:
    """Try every proof in a home of its own kind of name, and leave no process."""
    with tempfile.TemporaryDirectory(prefix="wine proof é ", ignore_cleanup_errors=True) as folder:
        os.environ[HOME_VARIABLE] = str(Path(folder) / "home")
        for name, function in _PROOFS.items():
            try:
                verdict, result = "ok  ", function()
            except Exception as error:  # noqa: BLE001 -- whatever it was, the others are tried too
                where = traceback.extract_tb(error.__traceback__)[-1]
                verdict, result = "FAIL", f"{type(error).__name__} in line {where.lineno} of {where.name}: {error}"
            print(f"{verdict} {name}: {result}", flush=True)
            children = psutil.Process().children(recursive=True)
            for child in children:
                with suppress(psutil.Error):
                    child.kill()
            psutil.wait_procs(children, timeout=10)  # files that these hold open could not be deleted
        # Else the memory estimates that this process saves at its end would create the deleted folder again.
        del os.environ[HOME_VARIABLE]
    print(f"done {Path(sys.argv[0]).stem}", flush=True)
