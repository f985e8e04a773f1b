"""Write docs/walkthrough.md: start, break, diagnose and fix, with the output of real commands and the real engine.

    python -m tools.walkthrough

Needs Linux with prlimit. Ports, keys, paths and process ids are replaced; all else is what was printed.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs" / "walkthrough.md"
STATE = "~/.local/state/mtp-launcher"
"""Shown in place of the state folder: its usual place on Linux."""
_SCARCE = "prlimit --as=2936012800 "
"""2,800 MiB of address space: enough for the demo with a usual context, but not with one of three million tokens."""
_INTRO = """# Walkthrough: start, break, diagnose, fix

This is real output of the program with the built-in engine. `python -m tools.walkthrough` runs the commands and writes
this file; only ports, keys, paths and process ids are replaced. `tests/cli/test_walk.py` tests the same steps.
"""
_HIDDEN = (
    (r"127\.0\.0\.1:\d+", "127.0.0.1:8123"),
    (r"engine-\d+\.log", "engine-8123.log"),
    (r"(API key +)\S+", r"\1(a random one)"),
    (r"\b(pid|process) \d+", r"\1 4711"),
    (r"[ \t]+$", ""),
)
_STEPS = (
    ("An argument that the engine does not know", "serve demo --ctx 4K -- --warp-speed 9", ""),
    ("The same, from the log of the last server", "diagnose", ""),
    ("The suggested command", "", ""),
    (
        "A context that exceeds the memory (the address space is limited to 2,800 MiB)",
        "serve demo --ctx 3000000",
        "y",
    ),
    ("The same from the log", "diagnose", ""),
    ("The suggested command, with the same memory limit", "", "y"),
    ("Both faults at once, fixed by the program", "serve demo --ctx 3000000 --fix -- --warp-speed 9", "y"),
)
"""The steps, each with its title, the command (empty: the one that was proposed last), and whether memory is short."""


def run_steps(home: Path) -> Iterator[str]:
    """Run the steps one after the other; yield the text of the document."""
    program = home / "bin" / "mtp-launcher"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-m", "launcher"])} "$@"\n')
    program.chmod(0o755)
    os.environ |= {"MTP_LAUNCHER_HOME": str(home), "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    command = ""
    for number, (title, words, scarce) in enumerate(_STEPS, start=1):
        command = f"mtp-launcher {words}" if words else command
        result = _run((_SCARCE if scarce else "") + command)
        yield f"\n## {number}. {title}\n\n```console\n$ {command}\n{_hide_changing_parts(result, home)}\n```\n"
        found = re.search(r"To do: .*\n +(mtp-launcher serve .*)", result)
        command = found[1] if found else ""


def _run(command: str) -> str:
    """Run a command to its end. A server is run until it is ready, gets one request, and is stopped."""
    with subprocess.Popen(
        shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                reply = json.loads(_run_quietly("chat", "What is MTP?", "--max-tokens", "30", "--no-think", "--json"))[
                    "text"
                ]
                lines.append(f"^C\n(reply to a request meanwhile: {reply.strip()} ...)\n")
                process.terminate()
        return "".join(lines)


def _run_quietly(*words: str) -> str:
    return subprocess.run(["mtp-launcher", *words], capture_output=True, text=True, check=True).stdout


def _hide_changing_parts(text: str, home: Path) -> str:
    for pattern, shown in ((re.escape(str(home / "state")), STATE), (re.escape(str(home)), "~"), *_HIDDEN):
        text = re.sub(pattern, shown, text, flags=re.MULTILINE)
    return text.strip("\n")


def main() -> None:
    """Run all steps and write the document."""
    with tempfile.TemporaryDirectory() as folder:
        DOCS.write_text(_INTRO + "".join(run_steps(Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
