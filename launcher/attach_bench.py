"""How fast a server is that others started: a few fixed prompts, asked one after the other."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from launcher.attach import Attached, PlainRequest
from launcher.base.errors import Refused
from launcher.engine.client import ChatRequest, Delta, Timings

TOKENS = 128
"""Asked for in each reply."""
_FEWEST = 5
"""A rate over fewer tokens than this means nothing."""
_MOST_CHARACTERS = 1_000 * TOKENS
"""The longest tokens of the usual vocabularies are some 200 spaces."""
_TEXT = (
    "A draft model proposes several tokens, and the large model checks all of them in one pass. Where they agree, "
    "the tokens are kept; at the first that differs, the large model's own token is taken, and drafting begins anew. "
    "The result is the same as without drafts, only the time differs. It pays when drafts are cheap and often right. "
)
PROMPTS = (
    "Explain to a beginner how a bicycle stays upright, in a few paragraphs.",
    "Write a Python function that merges two sorted lists, with a docstring and three examples.",
    f"{_TEXT * 3}\n\nSummarise the text above, then list its claims one by one.",
)
"""Prose, code, and a longer text to read."""

OnRun = Callable[[int, int], None]
"""Gets how many replies have been read, and of how many."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The mean of some runs and their standard deviation, None for a single one."""

    mean: float
    stdev: float | None
    runs: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Figure | None":
        """Return the figure of the values that are known, None when there are none."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True, slots=True)
class Measured:
    """One reply. Rates are tokens a second, of reading the prompt and of writing; unknown is None."""

    timed: bool
    prefill: float | None
    decode: float | None
    first_token_s: float | None
    drafted: int | None
    accepted: int | None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What was measured. `clock` is "engine" when the server gives timings, else "wall".

    By the wall's clock `prefill` counts the way there and the first token's own time, so the server is faster than it
    says. `unknown` says why a figure is None, by its name.
    """

    clock: Literal["engine", "wall"]
    prefill: Figure | None
    decode: Figure | None
    first_token: Figure | None
    drafted: int | None
    accepted: int | None
    unknown: Mapping[str, str]

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens that were accepted, 0 to 1; None without drafts."""
        return (self.accepted or 0) / self.drafted if self.drafted else None


class _CountedRequest(PlainRequest):
    """A request that every OpenAI-compatible server knows, and that asks for token counts."""

    def body(self) -> dict[str, Any]:
        return PlainRequest.body(self) | {"stream_options": {"include_usage": True}}


async def measure(server: Attached, *, runs: int = 3, on_run: OnRun | None = None) -> Benchmark:
    """Ask each prompt once to warm up, which counts for nothing, and then `runs` times.

    Temperature is 0, and no run shares a beginning with another, so that no cache of prompts helps. Raises what
    `Attached.chat` raises.
    """
    counts = True
    measured: list[Measured] = []
    rounds = [(number, prompt) for number in range(runs + 1) for prompt in PROMPTS]
    for done, (number, prompt) in enumerate(rounds, 1):
        request = _request(server, f"Round {number}. {prompt}", counts=counts)
        try:
            found = await _ask(server, request)
        except Refused as error:
            if done > 1 or server.offer.is_llama_server or error.status not in (400, 422):
                raise
            counts = False  # it knows no token counts
            found = await _ask(server, _request(server, f"Round {number}. {prompt}", counts=False))
        if number:
            measured.append(found)
        if on_run is not None:
            on_run(done, len(rounds))
    return _summary(measured)


def _request(server: Attached, prompt: str, *, counts: bool) -> ChatRequest:
    request = ChatRequest([{"role": "user", "content": prompt}], max_tokens=TOKENS, temperature=0.0)
    if server.offer.is_llama_server:
        return replace(request, extra={"cache_prompt": False, "ignore_eos": True})
    return _CountedRequest.of(request) if counts else request


async def _ask(server: Attached, request: ChatRequest) -> Measured:
    began_s = time.perf_counter()
    first_s = last_s = None
    timings: Timings | None = None
    end = Delta()
    left = _MOST_CHARACTERS
    async with server.chat(request) as deltas:
        async for delta in deltas:
            left -= len(delta.content) + len(delta.reasoning)
            if left < 0:
                raise Refused(
                    f"{server.offer.url} was asked for {TOKENS} tokens, and its reply does not end.",
                    "It cannot be measured: it does not keep to max_tokens.",
                )
            if delta.content or delta.reasoning:
                last_s = time.perf_counter()
                first_s = last_s if first_s is None else first_s
            timings = delta.timings or timings
            end = delta if delta.completion_tokens is not None else end
    first_token_s = None if first_s is None else first_s - began_s
    if timings is not None:
        decode = timings.tokens_per_second
        prefill = _over(timings.prompt_n, timings.prompt_ms / 1_000)
        return Measured(True, prefill, decode, first_token_s, timings.draft_n, timings.draft_n_accepted)
    writing_s = last_s - first_s if first_s is not None and last_s is not None else None
    decode = _over((end.completion_tokens or 1) - 1, writing_s)
    return Measured(False, _over(end.prompt_tokens, first_token_s), decode, first_token_s, None, None)


def _over(tokens: int | None, seconds: float | None) -> float | None:
    """Return tokens a second, None when either is unknown or there are too few of them."""
    return tokens / seconds if tokens is not None and tokens >= _FEWEST and seconds else None


def _summary(measured: Sequence[Measured]) -> Benchmark:
    timed = all(each.timed for each in measured)
    same = [each for each in measured if each.timed == timed]
    prefill, decode = Figure.of([each.prefill for each in same]), Figure.of([each.decode for each in same])
    first = Figure.of([each.first_token_s for each in same])
    drafts = [(each.drafted, each.accepted or 0) for each in same if each.drafted is not None]
    few = "too few tokens came" if timed else "the server tells no token counts, or wrote too few"
    why = {
        "prefill": few if prefill is None else "",
        "decode": few if decode is None else "",
        "first_token": "no token came" if first is None else "",
        "acceptance": "" if drafts else "no drafts were made" if timed else "the server tells nothing of drafts",
    }
    return Benchmark(
        clock="engine" if timed else "wall",
        prefill=prefill,
        decode=decode,
        first_token=first,
        drafted=sum(drafted for drafted, _ in drafts) if drafts else None,
        accepted=sum(accepted for _, accepted in drafts) if drafts else None,
        unknown={name: words for name, words in why.items() if words},
    )
