"""A usual session of an agent: it reads a file with a tool, then has three turns, with a restart before the last."""

import asyncio
import datetime
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from launcher.agents.agent import Agent
from launcher.agents.program import read_version
from tools.prove_agents.transcript import describe_command, describe_run, describe_typing
from tools.prove_agents.typed_session import typed_session
from tools.prove_agents.workplace import TREE, Workplace, read_requests, run_code, run_launcher, serve_model

QUESTION = "Read the file answer.py in this folder and say what it returns."
_LATER_QUESTIONS = ("And what is multi-token prediction?", "And what does it cost?")
"""The engine is replaced before the last one."""
_RESTART = ("restart", "--set", "draft=3")
_LEAST_REUSE = 0.95
HEADLESS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...] | None]] = {
    "opencode": (("run",), ("run", "-c")),
    "codex": (
        ("exec", "--skip-git-repo-check", "-s", "danger-full-access"),
        ("exec", "--skip-git-repo-check", "-s", "danger-full-access", "resume", "--last"),
    ),
    "qwen": (("-y", "-p"), ("-y", "-c", "-p")),
    "pi": (("-p",), ("-c", "-p")),
    "cline": ((), None),
    "claude": (("-p",), ("-c", "-p")),
    "aider": (
        ("--yes-always", "--no-git", "answer.py", "--message"),
        ("--yes-always", "--no-git", "--restore-chat-history", "answer.py", "--message"),
    ),
}
"""Arguments before the question, in the first turn and in the next; None if all turns are typed into a terminal."""


class Reuse(NamedTuple):
    """Tokens of the previous turn's `prompt` and `reply` that the first prompt of a turn reused. `lost` are tokens that
    it has in common with earlier prompts, but that were read again. With a chat template that leaves out earlier
    thinking, the reply is read again.
    """

    reused: int
    lost: int
    prompt: int
    reply: int

    def __str__(self) -> str:
        share = self.reused / max(1, self.reused + self.lost)
        return f"{100 * share:.1f} % ({self.reused:,} of {self.prompt:,} + {self.reply:,})"


@dataclass
class Outcome:
    """Results of an agent: whether it read the file by a tool, its exit codes, and the reuse of its later prompts.

    `reuse` has a number for each prompt: of the tokens that it shares with earlier prompts, the share that was reused.
    `turns` is the reuse in each later turn. `steps` are the parts of the transcript.
    """

    agent: Agent
    version: str
    read_file: bool = False
    codes: list[int] = field(default_factory=list)
    reuse: list[float] = field(default_factory=list)
    turns: list[Reuse] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The agent's name and version."""
        return f"{self.agent.title} {self.version}{', by a scripted client' if self.agent.name == 'claude' else ''}"

    @property
    def passed(self) -> bool:
        """Whether the file was read, all exit codes are 0, and enough was reused."""
        reused = len(self.turns) == len(_LATER_QUESTIONS) and all(share >= _LEAST_REUSE for share in self.reuse)
        return self.read_file and not any(self.codes) and reused

    def as_row(self) -> str:
        """Return the outcome as a row of a Markdown table."""
        turns = [str(turn) for turn in self.turns]
        turns += ["-"] * (len(_LATER_QUESTIONS) - len(turns))
        least = f"{100 * min(self.reuse):.1f} %" if self.reuse else "-"
        codes = ", ".join(map(str, self.codes))
        cells = (self.title, "yes" if self.read_file else "no", codes, *turns, least, self.name_reached())
        return f"| {' | '.join(cells)} |"

    def name_reached(self) -> str:
        """Return the hosts that the agent tried to reach, as text."""
        return ", ".join(self.reached) or "nothing"

    def describe_session(self) -> str:
        """Return the sentences above the transcript."""
        day = datetime.datetime.now(datetime.UTC).date()
        turns = ["; in turn 3, after the restart: ".join(map(str, self.turns))] if self.turns else []
        reuse = "".join(f" Reused in turn 2: {each}." for each in turns)
        return f"On {day}.{reuse} Tried to reach, and was refused: {self.name_reached()}."


def prove_agent(place: Workplace) -> Outcome:
    """Run an agent with the scripted engine, and for three turns with the demo, the last after a restart."""
    program = shutil.which(place.agent.program, path=place.environment["PATH"])
    version = place.read_package_version() or (asyncio.run(read_version((program,))) if program else None)
    outcome = Outcome(place.agent, version or "?")
    run = run_code(place, place.scripted_options, (*HEADLESS[place.agent.name][0], QUESTION))
    outcome.codes.append(run.code)
    outcome.steps.append(describe_run(place, run))
    called = any(each["results"] for each in place.read_log() if each["tools"] != _list_check_tools())
    outcome.read_file = "returns 42" in run.agent_output and (called or not place.agent.calls_tools)
    (place.folder / "scripted.txt").write_text(run.output)
    with serve_model(place, "demo"):
        turns = run_turns(place, outcome) if HEADLESS[place.agent.name][1] else type_turns(place, outcome)
        outcome.steps.append(describe_command(place, ("requests",), run_launcher(place, "requests").stdout))
    (place.folder / "requests.json").write_text(json.dumps(turns, indent=1))
    outcome.reuse = list(find_reuse([request for turn in turns for request in turn]))
    outcome.turns = list(compare_turns(turns))
    return outcome


def _list_check_tools() -> list[str]:
    """Return the tools of `agent-check`, which follows the agent's own requests."""
    texts = json.loads((TREE / "resources" / "agent-check.json").read_text())
    return [tool["function"]["name"] for tool in texts["tools"]]


def run_turns(place: Workplace, outcome: Outcome) -> list[list[dict[str, Any]]]:
    """Ask each question by a command of its own; return the requests of each turn."""
    first, later = HEADLESS[place.agent.name]
    turns: list[list[dict[str, Any]]] = []
    for question in (QUESTION, *_LATER_QUESTIONS):
        if question == _LATER_QUESTIONS[-1]:
            outcome.steps.append(describe_command(place, _RESTART, run_launcher(place, *_RESTART).stdout))
        run = run_code(place, ["--no-check"], (*((later or ()) if turns else first), question))
        outcome.codes.append(run.code)
        outcome.steps.append(describe_run(place, run))
        turns.append(read_requests(place)[sum(map(len, turns)) :])
        (place.folder / f"demo-{len(turns)}.txt").write_text(run.output)
    return turns


def type_turns(place: Workplace, outcome: Outcome) -> list[list[dict[str, Any]]]:
    """Type each question into the agent's terminal; return the requests of each turn."""
    words = ("code", place.agent.name, "--no-check")
    turns: list[list[dict[str, Any]]] = []

    def has_answered() -> bool:
        requests = read_requests(place)[sum(map(len, turns)) :]
        return bool(requests) and all(each["state"] == "ended" for each in requests)

    outcome.steps.append(describe_command(place, words, ""))
    with typed_session(place, *words) as session:
        session.wait_until_drawn()
        for question in (QUESTION, *_LATER_QUESTIONS):
            if question == _LATER_QUESTIONS[-1]:
                outcome.steps.append(describe_command(place, _RESTART, run_launcher(place, *_RESTART).stdout))
            answer = session.ask_question(question, has_answered)
            outcome.steps.append(describe_typing(place, question, answer))
            turns.append(read_requests(place)[sum(map(len, turns)) :])
        outcome.codes.append(session.end_session())
        (place.folder / "typed.txt").write_text(session.output)
    return turns


def find_reuse(requests: list[dict[str, Any]]) -> Iterator[float]:
    """Yield a number for each later prompt: of the tokens that it shares with earlier ones, the share reused."""
    for each in requests:
        lost = count_lost(each)
        if each["reused_tokens"] or lost:
            yield each["reused_tokens"] / (each["reused_tokens"] + lost)


def count_lost(request: Mapping[str, Any]) -> int:
    """Return how many tokens of a prompt were read again although an earlier prompt has them, too."""
    return int((request["reread"] or {"tokens": 0})["tokens"])


def compare_turns(turns: list[list[dict[str, Any]]]) -> Iterator[Reuse]:
    """Yield the reuse in each later turn. Of several kinds of requests, the one with the longest prompts counts."""
    for before, after in pairwise([[each for each in turn if each["prompt_tokens"]] for turn in turns]):
        last = max(before, key=lambda each: each["prompt_tokens"])
        grown = (each for each in after if each["prompt_tokens"] > last["prompt_tokens"])
        if first := next(grown, None):
            yield Reuse(first["reused_tokens"], count_lost(first), last["prompt_tokens"], last["reply_tokens"] or 0)
