"""Prompts of an exact size: text is put before what is asked until the model reads so many tokens.

Only the engine knows its tokens, so it is asked: some ten times for a prompt, each time for the whole of it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from launcher.base.errors import BadOption, NothingMeasured
from launcher.engine.client import ChatRequest
from launcher.tuning.asking import request_of
from launcher.tuning.fill_text import entries
from launcher.tuning.records import Prompt


class Counts(Protocol):
    """A server that counts the tokens of a request: an EngineClient, or one that others started."""

    async def count_tokens(self, request: ChatRequest) -> int:
        """See EngineClient.count_tokens."""
        ...


CountTokens = Callable[[str], Awaitable[int]]
"""Returns how many tokens a text makes, with whatever stands around it."""
_TOKENS_A_WORD = 1.4
"""Where the search begins; English has about that many in the usual vocabularies."""
_SMALL = (" a", " I", " it", ".", ",", "!", " x", "\n", " ", "a", "-")
"""Texts that are one token in most vocabularies, where they stand."""
_MOST_WORDS_BACK = 8


async def sized(prompts: Sequence[Prompt], server: Counts, *, begin: int = 0) -> tuple[Prompt, ...]:
    """Return the prompts, those with a size filled to it: the model then reads exactly so many tokens.

    `begin` is the number of the journal's entry with which the text begins, so that two need not begin alike. Raises
    BadOption where what is asked has more tokens already, and what `EngineClient.count_tokens` raises.
    """
    return tuple([prompt if prompt.size is None else await _filled(prompt, server, begin) for prompt in prompts])


async def _filled(prompt: Prompt, server: Counts, begin: int) -> Prompt:
    *before, (role, question) = prompt.messages

    def with_text(text: str) -> Prompt:
        return replace(prompt, messages=(*before, (role, f"{text}\n\n{question}" if text else question)))

    async def count(text: str) -> int:
        return await server.count_tokens(request_of(with_text(text), seed=0))

    return with_text(await filler(prompt.size or 0, count, begin=begin))


async def filler(tokens: int, count: CountTokens, *, begin: int = 0) -> str:
    """Return a text of exactly so many tokens by `count`.

    Raises BadOption when `count` has more for an empty text, and NothingMeasured in the rare case that no text of this
    kind has so many.
    """
    least = await count("")
    if least == tokens:
        return ""
    if least > tokens:
        raise BadOption(
            f"The prompt has {least:,} tokens of its own, so it cannot have {tokens:,}.", "Ask for a larger size."
        )
    words = _Words(begin)
    number = await _most_words(words, tokens, least, count)
    for back in range(min(number, _MOST_WORDS_BACK) + 1):
        text = words.text(number - back)
        if (done := await _with_small(text, tokens, count)) is not None:
            return done
    raise NothingMeasured(
        f"No text of exactly {tokens:,} tokens was found.", "Ask for a few more or fewer.", tokens=tokens
    )


class _Words:
    """The journal's words, made as far as they are asked for."""

    def __init__(self, begin: int) -> None:
        self._entries = entries(begin)
        self._words: list[str] = []

    def text(self, number: int) -> str:
        """Return the first words; entries are lines."""
        while len(self._words) < number:
            for entry in islice(self._entries, 100):
                first, *others = entry.split(" ")
                self._words += [f"\n{first}" if self._words else first, *(f" {word}" for word in others)]
        return "".join(self._words[:number])


async def _most_words(words: _Words, tokens: int, least: int, count: CountTokens) -> int:
    """Return the most words that do not make more tokens than asked for, found by the secant method in a bracket."""
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


async def _with_small(text: str, tokens: int, count: CountTokens) -> str | None:
    """Return the text with single tokens behind it, so that it has as many as asked for; None where none fit."""
    have = await count(text)
    while have < tokens:
        for small in _SMALL:
            if await count(text + small) == have + 1:
                text, have = text + small, have + 1
                break
        else:
            return None
    return text if have == tokens else None
