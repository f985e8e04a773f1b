"""Prompts of an exact size: filler text is put before the question until the prompt has the wanted number of tokens.

Only the engine has the tokenizer, so it counts the tokens: about ten requests for a prompt, each with the whole text.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from launcher.base.errors import BadOption, NothingMeasured
from launcher.base.messages import message
from launcher.engine.server.client import ChatRequest
from launcher.tuning.records import Prompt
from launcher.tuning.timed_request import build_request

# Endless filler text: the journal of an invented harbour, the same on every computer.
#
# No two entries are alike, so that neither a prompt cache nor n-gram drafts gain more from it than from other text.

_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November")
_WINDS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")
_SKIES = (
    "clear to the horizon",
    "grey with breaks towards noon",
    "low cloud, and rain since the night watch",
    "haze over the shoals, the far buoy out of sight",
    "snow in gusts",
    "high thin cloud and a ring round the sun",
    "fog until nine, then bright",
    "thunder in the hills, none here",
)
_SHIPS = (
    "Marianne",
    "Two Brothers",
    "Skua",
    "Patience",
    "Anna Lind",
    "Kestrel",
    "Halcyon",
    "Old Tom",
    "Verity",
    "Stork",
)
_KINDS = ("the cutter", "the barge", "the mail boat", "the trawler", "the yawl", "the collier", "the dredger")
_GOODS = (
    "boxes of haddock",
    "sacks of seed potatoes",
    "coils of tarred rope",
    "crates of window glass",
    "barrels of lamp oil",
    "bales of wool",
    "tons of gravel for the new pier",
    "cases of oranges, a third of them spoilt",
    "letters and a piano",
    "sheep for the island",
)
_WORK = (
    "cleaned the third lamp and cut its wick",
    "sounded the channel by the old wreck and found less water than the chart has",
    "painted the rail of the upper gallery",
    "mended the bell rope, which the gale had frayed",
    "counted the signal flags; the yellow one is missing",
    "set the clock back after the noon gun",
    "took the skiff to the outer mark and replaced its chain",
    "wrote to the board about the crack in the sea wall",
    "caulked the boat house door against the spring tide",
)
_PEOPLE = ("Olsen", "Mrs Farr", "Young Bede", "Carrow", "Ilse", "The pilot", "Dunmore", "Tarn", "The new boy")
_REMARKS = (
    "A seal lay on the slip all afternoon and would not be moved.",
    "Somebody has carved a date into the bollard, wrong by a year.",
    "Eggs are dearer again; the cook blames the ferry.",
    "Two strangers asked for the house on the point, and were told that it burnt down.",
    "The tide gauge sticks at its upper end and wants oil.",
    "Heard geese before dawn, first of the season.",
    "The inspector's report came by mail: nothing to complain of but the stairs.",
    "Lent the long ladder to the chapel.",
    "No ships after dark.",
)


def journal_entries(begin: int = 0) -> Iterator[str]:
    """Yield the journal's entries endlessly, beginning with number `begin`."""
    number = begin
    while True:
        yield _journal_entry(number)
        number += 1


def _journal_entry(number: int) -> str:
    # A hash rather than `random`, whose choices may differ between Python versions.
    digits = iter(hashlib.sha512(f"harbour {number}".encode()).digest())

    def pick(words: Sequence[str]) -> str:
        return words[next(digits) % len(words)]

    def pick_number(low: int, high: int) -> int:
        return low + (256 * next(digits) + next(digits)) % (high - low + 1)

    head = f"Entry {number + 1}, {pick_number(1, 28)} {pick(_MONTHS)}, {pick_number(4, 22)}:{pick_number(0, 59):02}."
    weather = f"Wind {pick(_WINDS)}, {pick_number(2, 47)} knots, glass at {pick_number(968, 1038)}; {pick(_SKIES)}."
    came = f"At {pick_number(5, 21)}:{pick_number(0, 59):02} {pick(_KINDS)} {pick(_SHIPS)} came in"
    trade = f"{came} with {pick_number(3, 480)} {pick(_GOODS)}."
    return f"{head} {weather} {trade} {pick(_PEOPLE)} {pick(_WORK)}. {pick(_REMARKS)}"


class TokenCounter(Protocol):
    """A server that counts the tokens of a request: an EngineClient, or a server that the user started."""

    async def count_tokens(self, request: ChatRequest) -> int:
        """Return the number of tokens of a request. See EngineClient.count_tokens."""
        ...


CountTokens = Callable[[str], Awaitable[int]]
"""Returns the token count of a text within its prompt."""
_TOKENS_A_WORD = 1.4
"""First guess of the search, about right for English in the usual vocabularies."""
_SINGLE_TOKENS = (" a", " I", " it", ".", ",", "!", " x", "\n", " ", "a", "-")
"""Texts that are a single token in most vocabularies, appended to the filler to reach the exact number."""
_MOST_WORDS_BACK = 8
"""Words that may be removed from the filler's end if no text of `_SINGLE_TOKENS` adds exactly one token."""


async def fill_prompts(prompts: Sequence[Prompt], server: TokenCounter, *, begin: int = 0) -> tuple[Prompt, ...]:
    """Return the prompts with filler text, so that each has exactly as many tokens as its `size`.

    `begin` is the number of the journal's first entry, so that two prompts can begin differently. Raises BadOption if a
    question alone exceeds the size, and what `EngineClient.count_tokens` raises.
    """
    return tuple([prompt if prompt.size is None else await _fill_prompt(prompt, server, begin) for prompt in prompts])


async def _fill_prompt(prompt: Prompt, server: TokenCounter, begin: int) -> Prompt:
    *before, (role, question) = prompt.messages

    def with_text(text: str) -> Prompt:
        return replace(prompt, messages=(*before, (role, f"{text}\n\n{question}" if text else question)))

    async def count(text: str) -> int:
        return await server.count_tokens(build_request(with_text(text), seed=0))

    return with_text(await make_filler(prompt.size or 0, count, begin=begin))


async def make_filler(tokens: int, count: CountTokens, *, begin: int = 0) -> str:
    """Return a filler text with which the prompt has exactly `tokens`, according to `count`.

    Raises BadOption if the prompt without filler has more, and NothingMeasured in the rare case that none is found.
    """
    least = await count("")
    if least == tokens:
        return ""
    if least > tokens:
        raise BadOption(
            message(
                "The shortest prompt has {least:,} tokens, so {tokens:,} are not possible.", least=least, tokens=tokens
            ),
            message("Choose a larger size."),
        )
    words = _FillerWords(begin)
    number = await _find_most_words(words, tokens, least, count)
    for back in range(min(number, _MOST_WORDS_BACK) + 1):
        text = words.text(number - back)
        if (exact := await _append_single_tokens(text, tokens, count)) is not None:
            return exact
    raise NothingMeasured(
        message("Could not build a prompt of exactly {tokens:,} tokens.", tokens=tokens),
        message("Choose a slightly different size."),
        tokens=tokens,
    )


class _FillerWords:
    """The words of the journal, generated on demand."""

    def __init__(self, begin: int) -> None:
        self._entries = journal_entries(begin)
        self._words: list[str] = []

    def text(self, number: int) -> str:
        """Return the first `number` words as text, one entry a line."""
        while len(self._words) < number:
            for entry in islice(self._entries, 100):
                first, *others = entry.split(" ")
                self._words += [f"\n{first}" if self._words else first, *(f" {word}" for word in others)]
        return "".join(self._words[:number])


async def _find_most_words(words: _FillerWords, tokens: int, least: int, count: CountTokens) -> int:
    """Return the largest number of words that stays within `tokens`, by the secant method inside a bracket.

    `least` is the number of tokens without filler.
    """
    low, low_tokens = 0, least
    high: int | None = None
    rate = _TOKENS_A_WORD
    while high is None or high - low > 1:
        guess = low + max(1, int((tokens - low_tokens) / rate))
        if high is not None and guess >= high:
            guess = (low + high) // 2
        found = await count(words.text(guess))
        rate = max((found - least) / guess, 0.01)
        if found > tokens:
            high = guess
        else:
            low, low_tokens = guess, found
            if found == tokens:
                break
    return low


async def _append_single_tokens(text: str, tokens: int, count: CountTokens) -> str | None:
    """Return the text with single-token pieces appended up to `tokens`. None if no piece adds exactly one token."""
    counted = await count(text)
    while counted < tokens:
        for piece in _SINGLE_TOKENS:
            if await count(text + piece) == counted + 1:
                text, counted = text + piece, counted + 1
                break
        else:
            return None
    return text if counted == tokens else None
