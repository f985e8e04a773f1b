"""Records logs of failing engines, whose faults are known because they are deliberate.

    python -m tools.diagnosis_score.record --seed 7 --count 48 --models FOLDER --out FOLDER
        [--vulkan llama-server-on-a-small-card ...] [--cpu llama-server]

FOLDER of models has the demo (demo.gguf), the same without its head (nomtp.gguf) and large ones for `--vulkan`.
Settings that have nothing to do with the fault are drawn at random. Some logs begin with the log of an earlier run of
the same server. The labels are written to labels.toml at the same time: they name the deliberate fault, whatever the
engine then does.
"""

import argparse
import contextlib
import itertools
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tools.diagnosis_score.cases import BUILT_IN, Case, ask_shortly, draw_cases, draw_combined_cases
from tools.diagnosis_score.files import make_broken_models

_TIME_S = 40


def _draw_harmless_settings(rng: random.Random, engine: str) -> list[str]:
    """Return settings that have no effect on any fault."""
    chosen = [["-lv", rng.choice(("3", "3", "4"))], ["-t", rng.choice("12")]]
    chosen += [
        flag
        for flag in (["--metrics"], ["--no-ui"], ["-a", "mine"], ["--cors-origins", "localhost"])
        if rng.random() < 0.4
    ]
    if engine != BUILT_IN and rng.random() < 0.25:
        chosen.append(["--log-jsonl"])
    rng.shuffle(chosen)
    return [word for words in chosen for word in words]


def _run_engine(program: list[str], case: Case, port: int, folder: Path, extra: list[str]) -> tuple[str, int]:
    """Run one engine to its end, or until it has replied; return its output and its exit code."""
    arguments = [*program, *case.arguments, *extra]
    if "--port" not in arguments:
        arguments += ["--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "HF_"))}
    environment |= {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "LLAMA_CACHE": str(folder), **case.environment}

    def limit() -> None:
        if case.limit_mib:
            resource.setrlimit(resource.RLIMIT_AS, (case.limit_mib << 20,) * 2)
        if case.name == "lock":
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (65_536, 65_536))

    with (folder / "log").open("w+b") as log:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            preexec_fn=limit,
            start_new_session=True,
        )
        url = f"http://127.0.0.1:{port}"
        begun = time.monotonic()
        ready = False
        while process.poll() is None and time.monotonic() - begun < _TIME_S and not ready:
            time.sleep(0.05)
            with contextlib.suppress(OSError):
                ready = urllib.request.urlopen(f"{url}/health", timeout=1).status == 200
        if ready and case.send_requests:
            case.send_requests(url)
        if process.poll() is None:
            os.killpg(process.pid, case.end_signal)
            try:
                process.wait(8)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(0)
        return log.read().decode(errors="replace"), process.returncode


def _hide_paths(text: str, models: Path, folder: Path, engine: list[str]) -> str:
    for path in (models, folder):
        text = text.replace(str(path), "/models" if path == models else "/home/user")
    text = re.sub(r"/[\w./+-]*/(lib[\w.-]+\.so[\w.]*)", r"/usr/lib/\1", text)
    return text.replace(engine[0], "llama-server")


def _format_as_source(rng: random.Random, text: str) -> str:
    """Return a log in the format of its source: our log file, the journal, docker compose, Windows."""
    style = rng.choice(("plain", "plain", "book", "journal", "compose", "windows", "colours"))
    lines = text.splitlines()
    if style == "book":
        lines = [
            f"2026-11-20 21:07:{number // 20 % 60:02},{number * 37 % 1000:03} {line}"
            for number, line in enumerate(lines)
        ]
    elif style == "journal":
        lines = [
            f"Nov 20 21:07:{number // 20 % 60:02} host llama-server[4711]: {line}" for number, line in enumerate(lines)
        ]
    elif style == "compose":
        lines = [f"llama-1  | {line}" for line in lines]
    elif style == "colours":
        lines = [re.sub(r"^(\S+ )([EW] )", "\x1b[34m\\1\x1b[0m\x1b[31m\\2", line) + "\x1b[0m" for line in lines]
    return ("\r\n" if style == "windows" else "\n").join([*lines, ""])


def _draw_forever(rng: random.Random, models: Path, busy: int, *, two: bool) -> Iterator[Case]:
    """Yield all faults again and again, each time with other values and in another order."""
    while True:
        found = [case for case in (draw_combined_cases if two else draw_cases)(rng, models, busy) if case.engines]
        rng.shuffle(found)
        yield from found


def main() -> None:
    """Record `--count` logs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=48)
    parser.add_argument("--combined", action="store_true", help="two faults at a time")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vulkan", type=Path, action="append", default=[])
    parser.add_argument("--cpu", type=Path, action="append", default=[])
    options = parser.parse_args()
    rng = random.Random(options.seed)
    make_broken_models(options.models / "demo.gguf", options.models)
    folder = options.models.parent / "work"
    folder.mkdir(exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    built_in = [sys.executable, "-P", str(Path(__file__).parents[2] / "launcher" / "engine" / "builtin.py")]
    programs = {"cpu": [[str(path)] for path in options.cpu], "vulkan": [[str(path)] for path in options.vulkan]}
    programs[BUILT_IN] = [built_in]
    labels = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        drawn = (
            case
            for case in _draw_forever(rng, options.models, other.getsockname()[1], two=options.combined)
            if any(map(programs.get, case.engines))
        )
        for number, case in enumerate(itertools.islice(drawn, options.count), 1):
            kind = rng.choice([kind for kind in case.engines if programs[kind]])
            program = rng.choice(programs[kind])
            port = rng.randrange(20_000, 30_000)
            sound = Case("sound", (), ["-m", str(options.models / "demo.gguf")], send_requests=ask_shortly)
            before = ""
            if rng.random() < 0.3:  # a log file goes on from one run to the next
                before, _ = _run_engine(program, sound, port, folder, [])
            text, code = _run_engine(program, case, port, folder, _draw_harmless_settings(rng, kind))
            name = f"{number:02}-{case.name.replace(' ', '-').removesuffix('.gguf')}-{kind}.log"
            (options.out / name).write_bytes(
                _format_as_source(rng, _hide_paths(before + text, options.models, folder, program)).encode()
            )
            labels.append(
                f'[["{name}"]]\n'.replace('[["', '["').replace('"]]', '"]')
                + f"codes = {list(case.codes)}\nexit_code = {code}\n"
            )
            print(name, code, len(before + text), flush=True)
    (options.out / "labels.toml").write_text("\n".join(labels).replace("'", '"'))


if __name__ == "__main__":
    main()
