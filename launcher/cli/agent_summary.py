"""Sums up the requests of a coding agent's session in lines for the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.base.codec import from_json
from launcher.engine.server.reread import Reread

Record = Mapping[str, Any]
"""A request with the keys of docs/json.md."""

_FAILURES = frozenset({"error", "engine ended", "refused", "cut"})


def summarize_requests(records: Sequence[Record], context: int | None, remedy: str) -> Iterator[str]:
    """Yield lines on an agent's requests, and why some were not answered, because some agents do not report it.

    `context` is the context of a request in tokens, `remedy` is how the user gets a larger one.
    """
    read = [each for each in records if each["reused_tokens"] is not None]
    if read:
        yield _describe_reading(read)
    if lost := [from_json(Reread, each["reread"]) for each in read if each["reread"]]:
        seconds = sum(each.seconds or 0.0 for each in lost)
        yield (
            f"{sum(each.tokens for each in lost):,} prompt tokens were read again, {seconds:.0f} s lost."
            f" {lost[-1].explanation}"
        )
    if too_long := [each for each in records if each["end"] == "too long"]:
        yield _explain_too_long(too_long, context, remedy)
    failed = sum(each["end"] in _FAILURES for each in records)
    if failed:
        yield f"{_count(failed)} failed: see `mtp-launcher requests`."


def _describe_reading(records: Sequence[Record]) -> str:
    reused = sum(each["reused_tokens"] for each in records)
    read = sum(each["prompt_tokens"] or 0 for each in records) - reused
    drafted = sum(each["draft_n"] or 0 for each in records)
    accepted = sum(each["draft_n_accepted"] or 0 for each in records)
    drafts = f", {100 * accepted / drafted:.0f} % of drafts accepted" if drafted else ""
    return f"{_count(len(records))}: {read:,} prompt tokens read, {reused:,} reused{drafts}."


def _explain_too_long(records: Sequence[Record], context: int | None, remedy: str) -> str:
    is_one = len(records) == 1
    prompts = "A prompt was" if is_one else f"{len(records)} prompts were"
    tokens = max(each["prompt_tokens"] or 0 for each in records)
    longest = "it" if is_one else "the longest"
    known = f": {longest} had {tokens:,} tokens, and the context has {context:,}" if tokens and context else ""
    return f"{prompts} refused as too long{known}. Begin a new conversation, or {remedy}."


def _count(number: int) -> str:
    return "1 request" if number == 1 else f"{number} requests"
