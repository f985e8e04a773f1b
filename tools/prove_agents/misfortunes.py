"""Agents and server errors: a prompt that is too long, a full context, an engine that ends during a reply."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

from tools.prove_agents.turns import HEADLESS, QUESTION
from tools.prove_agents.workplace import Workplace, read_requests, run_code, run_launcher, serve_model

_LIMIT_S = 150
_POLL_S = 0.1
_LONG_QUESTION_WORDS = 60_000
"""Number of words in a prompt: too many for the least context of any agent, and few enough for one command-line
argument.
"""
_LONG_FILE_SHARE = 0.2
"""Share of the context that is taken by a file which the agent reads repeatedly. Its lines have 12 tokens each."""
_READINGS = 4


def prove_misfortunes(place: Workplace) -> Iterator[str]:
    """Yield how the agent handles each error, as cells of a Markdown table."""
    yield send_overlong_prompt(place)
    yield outgrow_context(place)
    for name, disturb in (("restarted", restart_engine), ("killed", kill_engine)):
        yield disturb_reply(place, name, disturb)


def send_overlong_prompt(place: Workplace) -> str:
    """Ask a question that is longer than the context; return how the agent ends, and how many requests it sent."""
    question = "a " * _LONG_QUESTION_WORDS
    options = [*place.scripted_options, "--no-check", "--ctx", str(place.agent.least_context)]
    try:
        ended = run_code(place, options, (*HEADLESS[place.agent.name][0], question), limit_s=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"goes on: {len(place.read_log())} requests in {_LIMIT_S} s"
    (place.folder / "overlong.txt").write_text(ended.output)
    printed = ended.agent_output.replace(question.strip(), "").lower()
    result = "says so" if any(word in printed for word in ("context", "too long", "too large")) else "silent"
    return f"exit code {ended.code}, {result}, {len(place.read_log())} requests"


def outgrow_context(place: Workplace) -> str:
    """Let the agent read a long file in each turn; return its exit codes, and whether it made a summary."""
    context = place.agent.least_context * 3  # the scripted engine counts twice as many tokens as most models
    lines = int(context * _LONG_FILE_SHARE / 12)
    text = "".join(f"# line {number} of many lines\n" for number in range(lines))
    (place.project / "answer.py").write_text(f"{text}def answer():\n    return 42\n")
    first, later = HEADLESS[place.agent.name]
    codes, sizes = [], []
    for turn in range(_READINGS if later is not None else 1):
        arguments = (*(first if turn == 0 or later is None else later), QUESTION)
        try:
            ended = run_code(
                place, [*place.scripted_options, "--no-check", "--ctx", str(context)], arguments, limit_s=_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return f"goes on: {len(place.read_log())} requests in {_LIMIT_S} s"
        (place.folder / f"grown-{turn}.txt").write_text(ended.output)
        codes.append(ended.code)
        sizes += [each["tokens"] for each in place.read_log() if each["tools"] or each["tokens"] > context // 4]
    (place.project / "answer.py").write_text("def answer():\n    return 42\n")
    shrank = any(after < 0.8 * before for before, after in pairwise(sizes))
    return f"{'summed up' if shrank else 'not summed up'}, exit codes {codes}, prompts {sizes} of {context}"


def disturb_reply(place: Workplace, name: str, disturb: Callable[[Workplace], object]) -> str:
    """Call `disturb` at the first word of the scripted engine's reply; return how the session ended. The engine waits
    after that word, so the disturbance is never too late.
    """
    ended = threading.Event()
    reached = place.hold_file.with_name(f"{place.hold_file.name}.reached")

    def watch() -> None:
        while not reached.exists():
            if ended.wait(_POLL_S):
                return
        disturb(place)

    watcher = threading.Thread(target=watch, daemon=True)
    with serve_model(place, "demo", "--engine", str(place.folder / "scripted-engine")):
        place.hold_file.touch()  # not before, because a start sends a request of its own
        watcher.start()
        try:
            run = run_code(place, [], (*HEADLESS[place.agent.name][0], QUESTION), limit_s=_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"goes on after {_LIMIT_S} s"
        finally:
            ended.set()
            watcher.join()
        requests = read_requests(place)
    place.hold_file.unlink(missing_ok=True)
    if not reached.exists():
        return "no reply was held"
    reached.unlink()
    (place.folder / f"{name}.txt").write_text(run.output)
    (place.folder / f"{name}.json").write_text(json.dumps(requests, indent=1))
    answered = "answered" if "returns 42" in run.output else "no answer"
    went_on = sum(each["handovers"] > 0 and each["end"] == "complete" for each in requests)
    ends = ", ".join(str(each["end"]) for each in requests)
    return f"{answered}, exit code {run.code}, {went_on} went on, requests: {ends}"


def restart_engine(place: Workplace) -> None:
    """Restart the engine of the running server with another setting."""
    run_launcher(place, "restart", "--set", "draft=3")


def kill_engine(place: Workplace) -> None:
    """Kill the engine of the running server."""
    (server,) = json.loads(run_launcher(place, "status", "--json").stdout)
    os.kill(server["pid"], signal.SIGKILL)
