"""Checks the verdict of a tune against an exhaustive measurement that uses none of the program's code.

    mtp-launcher tune MODEL.gguf --yes --json > tune.jsonl
    python -m tools.exhaustive_tune tune.jsonl --rounds 10

Every combination of the grid that the tune searched is started once a round by the command line that the tune states,
in a new random order each time, and gets each prompt of the workload with the seed of the round, after a reply that is
discarded. A combination's speed in a round is the geometric mean of the engine's own tokens/s. With --processor-time
(Linux) it is that of the tokens per second of processor time from the first token to the last: with one thread and no
GPU this is the speed on an idle computer, however busy this one is. The regret is the share of the fastest settings'
speed that the recommended ones lack. It uses no module of launcher/.

Chosen as the highest of many noisy means, the fastest settings look too fast, and so the regret is somewhat too high.
Therefore a second figure chooses the fastest settings by one half of the rounds and measures them by the other half.
"""

import argparse
import itertools
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_START_LIMIT_S = 300.0
_MOST_TRIES = 20
_FLAGS = {
    "ubatch": ("--ubatch-size",),
    "threads": ("--threads",),
    "kv": ("--cache-type-k", "--cache-type-v"),
    "draft_sampling": ("--spec-draft-sampling",),
    "p_min": ("--spec-draft-p-min",),
}
"""Arguments of the settings that a tune on a processor may vary besides the draft length."""
_DRAFTING = ("draft_sampling", "p_min")
_STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t for 95 %, two-sided, by degrees of freedom from 1 on."""

Settings = Mapping[str, Any]
Speeds = list[list[float]]
"""Logarithms of tokens/s, by round and combination."""


def list_combinations(space: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all settings of a tune's grid, MTP off first."""
    baseline = space["baseline"]
    found: list[dict[str, Any]] = []
    for draft in (0, *space["drafts"]):
        axes = [
            [(name, value) for value in (values if draft or not drafting else [baseline[name]])]
            for name, values, _, drafting in space["axes"]
        ]
        found += [{**baseline, "draft": draft, **dict(chosen)} for chosen in itertools.product(*axes)]
    return found


def name_settings(settings: Settings, baseline: Settings) -> str:
    """Return settings as short text: the draft length, and what differs from the baseline."""
    draft = settings["draft"]
    others = (f"{name} {value}" for name, value in settings.items() if name != "draft" and value != baseline.get(name))
    return ", ".join([f"draft {draft}" if draft else "MTP off", *others])


# The engine and its replies.


def make_arguments(settings: Settings) -> list[str]:
    """Return an engine's arguments for some settings."""
    words: list[str] = []
    if settings["draft"]:
        words += ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(settings["draft"])]
    for name, flags in _FLAGS.items():
        if name in settings and (settings["draft"] or name not in _DRAFTING):
            words += itertools.chain.from_iterable((flag, str(settings[name])) for flag in flags)
    return words


@contextmanager
def start_engine(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Start an engine on a free port, yield its address and process ID once it has loaded, and end it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)], stdin=quiet, stdout=quiet, stderr=quiet
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_loaded(process, url)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def _wait_until_loaded(process: subprocess.Popen[bytes], url: str) -> None:
    end_s = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            sys.exit(f"The engine ended with exit code {process.returncode}: {process.args!r}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    sys.exit("The engine did not load in time.")


def read_processor_s(pid: int) -> float:
    """Return the seconds of processor time that all threads of a process have used."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def measure_rate(
    url: str, prompt: Mapping[str, Any], workload: Mapping[str, Any], seed: int, pid: int | None = None
) -> float:
    """Send a prompt and return the engine's own tokens/s of generation; with `pid` by its processor time.

    It is sent again if the reply was over before its first token was read here, on a busy computer.
    """
    for _ in range(_MOST_TRIES):
        rate = measure_reply(url, prompt, workload, seed, pid)
        if rate is not None:
            return rate
    sys.exit("This computer is too busy: replies are over before their first token can be read.")


def measure_reply(
    url: str, prompt: Mapping[str, Any], workload: Mapping[str, Any], seed: int, pid: int | None
) -> float | None:
    """Send a prompt once and return what `measure_rate` does; None if no processor time was used while it was read."""
    body = {
        "messages": [{"role": "user", "content": prompt["text"]}],
        "max_tokens": prompt["tokens"],
        "seed": seed,
        "cache_prompt": False,
        "stream": True,
        "timings_per_token": True,
        "chat_template_kwargs": {"enable_thinking": bool(workload.get("thinking"))},
        **workload.get("sampling", {}),
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began_s: float | None = None
    first, timings = 0, dict[str, Any]()
    with urllib.request.urlopen(request, timeout=600) as reply:
        for line in reply:
            chunk = json.loads(line[6:]) if line.startswith(b"data: {") else {}
            timings = chunk.get("timings") or timings
            if began_s is None and timings:
                began_s, first = read_processor_s(pid) if pid else 0.0, timings["predicted_n"]
    if pid is None or began_s is None:
        return float(timings["predicted_per_second"])
    took_s = read_processor_s(pid) - began_s
    return float((timings["predicted_n"] - first) / took_s) if took_s else None


def measure_round(
    combinations: Sequence[Settings],
    command: Sequence[str],
    workload: Mapping[str, Any],
    number: int,
    *,
    processor_time: bool,
) -> list[float]:
    """Start every combination once, in a random order, and return the logarithms of their tokens/s."""
    order = list(range(len(combinations)))
    random.Random(number).shuffle(order)
    speeds = [0.0] * len(combinations)
    for at in order:
        with start_engine([*command, *make_arguments(combinations[at])]) as (url, pid):
            measure_rate(url, {**workload["prompts"][0], "tokens": 32}, workload, number)
            clock = pid if processor_time else None
            rates = [measure_rate(url, prompt, workload, number, clock) for prompt in workload["prompts"]]
        speeds[at] = statistics.fmean(map(math.log, rates))
    return speeds


# The regret.


def find_fastest(speeds: Speeds) -> int:
    """Return the combination with the highest mean."""
    means = [statistics.fmean(column) for column in zip(*speeds, strict=True)]
    return means.index(max(means))


def compute_regret(speeds: Speeds, chosen: int, best: int) -> tuple[float, float]:
    """Return the share of the best combination's speed that the chosen one lacks, and half of its 95 % interval."""
    differences = [each[best] - each[chosen] for each in speeds]
    regret = 1 - math.exp(-statistics.fmean(differences))
    if len(differences) < 2:
        return regret, math.inf
    freedom = len(differences) - 1
    student = _STUDENT_95[min(freedom, len(_STUDENT_95)) - 1]
    return regret, student * statistics.stdev(differences) / math.sqrt(len(differences))


def compute_held_out_regret(speeds: Speeds, chosen: int) -> float | None:
    """Return the regret against the fastest by one half of the rounds, measured by the other; None for one round."""
    halves = speeds[::2], speeds[1::2]
    if not halves[1]:
        return None
    pairs = (halves, halves[::-1])
    return statistics.fmean(compute_regret(test, chosen, find_fastest(choice))[0] for choice, test in pairs)


def main() -> None:
    """Measure all combinations and print their speeds and the regret of the tune."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tune", type=Path, help="what `tune --json` printed")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--processor-time", action="store_true", help="speeds by the engine's processor time")
    parser.add_argument("--tokens", type=int, default=10_000, help="most tokens of a reply (default: the workload's)")
    options = parser.parse_args()
    if options.processor_time and sys.platform != "linux":
        parser.error("--processor-time reads /proc, which only Linux has.")
    events = [json.loads(line) for line in options.tune.read_text("utf-8").splitlines() if line.startswith("{")]
    plan = next(each for each in events if each.get("event") == "plan")
    space = plan["space"]
    verdict = next(each["verdict"] for each in events if "verdict" in each)
    workload = tomllib.loads((_ROOT / "resources" / "workloads" / f"{plan['workload']}.toml").read_text("utf-8"))
    for prompt in workload["prompts"]:
        prompt["tokens"] = min(options.tokens, prompt.get("tokens") or workload["tokens"])
    combinations = list_combinations(space)
    chosen = combinations.index({**space["baseline"], **verdict["settings"]})
    speeds: Speeds = []
    loads = []
    for number in range(options.rounds):
        speeds.append(
            measure_round(combinations, plan["command"], workload, number, processor_time=options.processor_time)
        )
        loads.append(os.getloadavg()[0])
        print(f"round {number + 1} of {options.rounds}, load {loads[-1]:.1f}", file=sys.stderr, flush=True)
    best = find_fastest(speeds)
    regret, half_width = compute_regret(speeds, chosen, best)
    means = [statistics.fmean(column) for column in zip(*speeds, strict=True)]
    names = [name_settings(each, space["baseline"]) for each in combinations]
    result = {
        "verdict": verdict["mtp"],
        "likely": verdict.get("likely"),
        "recommended": names[chosen],
        "fastest": names[best],
        "speeds": dict(zip(names, map(math.exp, means), strict=True)),
        "regret": regret,
        "half_width": half_width,
        "held_out_regret": compute_held_out_regret(speeds, chosen),
        "against_mtp_off": math.exp(means[chosen] - means[0]),
        "rounds": options.rounds,
        "clock": "processor" if options.processor_time else "engine",
        "load": statistics.fmean(loads),
    }
    if options.json:
        print(json.dumps(result))
        return
    for at in sorted(range(len(names)), key=lambda each: -means[each]):
        mark = " <- recommended" if at == chosen else ""
        print(f"{names[at]:<40} {math.exp(means[at]):10.1f} tokens/s{mark}")
    held_out = result["held_out_regret"]
    print(
        f"regret {100 * regret:.2f} ± {100 * half_width:.2f} %"
        + ("" if held_out is None else f", held out {100 * held_out:.2f} %")
        + f"; {result['against_mtp_off']:.3f} times MTP off; load {result['load']:.1f}"
    )


if __name__ == "__main__":
    main()
