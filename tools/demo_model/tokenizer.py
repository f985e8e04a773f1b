"""A byte-level BPE tokenizer, trained until every word of the corpus is one token, in the form GGUF wants."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

# The pre-tokenizer that the engine calls "qwen35", as far as the standard library can spell Unicode classes.
_LETTER = r"[^\W\d_]"
_WORD = re.compile(
    rf"'(?i:s|t|re|ve|m|ll|d)|(?:[^\w\r\n]|_)?{_LETTER}+|\d| ?(?:[^\w\s]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_letters() -> dict[int, str]:
    """The printable stand-in for each byte: itself where it prints, else a letter from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for place, byte in enumerate(byte for byte in range(256) if byte not in letters):
        letters[byte] = chr(256 + place)
    return letters


_LETTER_OF = _byte_letters()
_BYTE_OF = {letter: byte for byte, letter in _LETTER_OF.items()}


def to_letters(text: str) -> str:
    """UTF-8 bytes of `text`, one printable letter each."""
    return "".join(_LETTER_OF[byte] for byte in text.encode("utf-8"))


@dataclass
class Tokenizer:
    """Merges in order of rank, plain tokens in order of id (bytes first), then special tokens."""

    merges: list[tuple[str, str]]
    tokens: list[str]
    special: tuple[str, ...]
    ids: dict[str, int] = field(init=False)
    _ranks: dict[tuple[str, str], int] = field(init=False)
    _cache: dict[str, list[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.ids = {token: index for index, token in enumerate([*self.tokens, *self.special])}
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._special = re.compile("(" + "|".join(map(re.escape, self.special)) + ")")

    @classmethod
    def train(cls, texts: Iterable[str], special: tuple[str, ...]) -> Tokenizer:
        """Merge the most frequent neighbours until each word of `texts` is a single token."""
        parts = re.compile("|".join(map(re.escape, special)))
        words = Counter(to_letters(word) for text in texts for piece in parts.split(text) for word in split(piece))
        spelled = {word: list(word) for word in words}
        tokens = dict.fromkeys(_LETTER_OF[byte] for byte in range(256))
        merges: list[tuple[str, str]] = []
        pairs: Counter[tuple[str, str]] = Counter()
        holders: dict[tuple[str, str], set[str]] = defaultdict(set)
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
                holders[pair].add(word)
        while pairs:
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            merges.append(best)
            tokens["".join(best)] = None
            for word in holders.pop(best):
                for pair in pairwise(spelled[word]):
                    pairs[pair] -= words[word]
                    if not pairs[pair]:
                        del pairs[pair]
                spelled[word] = _merge(spelled[word], best)
                for pair in pairwise(spelled[word]):
                    pairs[pair] += words[word]
                    holders[pair].add(word)
        return cls(merges=merges, tokens=list(tokens), special=special)

    def __len__(self) -> int:
        return len(self.tokens) + len(self.special)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens are recognised wherever their name stands."""
        found: list[int] = []
        for piece in self._special.split(text):
            if piece in self.special:
                found.append(self.ids[piece])
            else:
                found += [self.ids[token] for word in split(piece) for token in self._spell(to_letters(word))]
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; bytes that are not UTF-8 become the replacement character."""
        raw = b"".join(self._bytes(index) for index in ids)
        return raw.decode("utf-8", errors="replace")

    def word(self, index: int) -> str:
        """The word of a token, lower case and without the space around it."""
        return self._bytes(index).decode("utf-8", errors="replace").strip().lower()

    def _bytes(self, index: int) -> bytes:
        if index >= len(self.tokens):
            return self.special[index - len(self.tokens)].encode()
        return bytes(_BYTE_OF[letter] for letter in self.tokens[index])

    def _spell(self, word: str) -> list[str]:
        if word not in self._cache:
            pieces = list(word)
            while len(pieces) > 1:
                best = min(pairwise(pieces), key=lambda pair: self._ranks.get(pair, len(self.merges)))
                if best not in self._ranks:
                    break
                pieces = _merge(pieces, best)
            self._cache[word] = pieces
        return self._cache[word]


def split(text: str) -> list[str]:
    """Cut text into the words that merges never cross; joined, they are the text again."""
    return _WORD.findall(text)


def _merge(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for piece in pieces:
        if merged and merged[-1] == pair[0] and piece == pair[1]:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged
