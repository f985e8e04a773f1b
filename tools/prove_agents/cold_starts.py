"""Sessions of an agent, each with a server that has just been started: what the later ones need not read again."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tools.prove_agents.turns import HEADLESS, QUESTION
from tools.prove_agents.workplace import Workplace, read_requests, run_code, serve_model

_QUESTIONS = (QUESTION, "What does multi-token prediction cost?", "Which files are in this folder?")
_MOST_READ = 0.1


class ColdStart(NamedTuple):
    """The prompts of a session: their tokens, those that were read, and those that came from disk."""

    prompt: int
    read: int
    restored: int
    seconds: float


def prove_cold_starts(place: Workplace) -> tuple[list[str], bool]:
    """Run sessions with a question each, and return them as a row, and whether the second read little enough."""
    sessions = [_run_session(place, question) for question in _QUESTIONS]
    first, second, *_ = sessions
    cells = [place.agent.title, f"{first.prompt:,}", f"{first.read:,}"]
    for each in sessions[1:]:
        share = each.read / first.read if first.read else 1.0
        cells += [f"{each.read:,} ({share:.1%})", f"{each.restored:,}"]
    return cells, second.read <= _MOST_READ * first.read


def _run_session(place: Workplace, question: str) -> ColdStart:
    with serve_model(place, "demo"):
        began_s = time.monotonic()
        run_code(place, ["--no-check"], (*HEADLESS[place.agent.name][0], question))
        seconds = time.monotonic() - began_s
        requests = read_requests(place)
    (place.folder / f"cold-{time.time():.0f}.json").write_text(repr(requests))
    return ColdStart(
        _sum_of(requests, "prompt_tokens"),
        _sum_of(requests, "prompt_tokens") - _sum_of(requests, "reused_tokens"),
        _sum_of(requests, "restored_tokens"),
        seconds,
    )


def _sum_of(requests: Sequence[dict[str, Any]], name: str) -> int:
    return sum(each[name] or 0 for each in requests)
